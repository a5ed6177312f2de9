// row_share for clang/native, 4 chunks
typedef float f32x8 __attribute__((vector_size(32)));
typedef int i32x8 __attribute__((vector_size(32)));
typedef float f32x8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef int i32x4 __attribute__((vector_size(16)));
typedef int i32x2 __attribute__((vector_size(8)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x2 __attribute__((vector_size(8)));
typedef __INT64_TYPE__ int64_t;
static inline __attribute__((always_inline)) f32x8 splat_f32x8(float x) {
  return (f32x8){x, x, x, x, x, x, x, x};
}
static inline __attribute__((always_inline)) int fold_and_i32x2(i32x2 x) {
  return x[0] & x[1];
}
static inline __attribute__((always_inline)) int fold_and_i32x4(i32x4 x) {
  return fold_and_i32x2(__builtin_shufflevector(x, x, 0, 1) & __builtin_shufflevector(x, x, 2, 3));
}
static inline __attribute__((always_inline)) int fold_and_i32x8(i32x8 x) {
  return fold_and_i32x4(__builtin_shufflevector(x, x, 0, 1, 2, 3) & __builtin_shufflevector(x, x, 4, 5, 6, 7));
}
static inline __attribute__((always_inline)) f32x8 load_if_f32x8_i32(const float* p, i32x8 mask) {
  if (fold_and_i32x8(mask)) return *(const f32x8u*)p;
  return (f32x8){mask[0] ? p[0] : 0, mask[1] ? p[1] : 0, mask[2] ? p[2] : 0, mask[3] ? p[3] : 0, mask[4] ? p[4] : 0, mask[5] ? p[5] : 0, mask[6] ? p[6] : 0, mask[7] ? p[7] : 0};
}
static inline __attribute__((always_inline)) float fold_add_f32x2(f32x2 x) {
  return x[0] + x[1];
}
static inline __attribute__((always_inline)) float fold_add_f32x4(f32x4 x) {
  return fold_add_f32x2(__builtin_shufflevector(x, x, 0, 1) + __builtin_shufflevector(x, x, 2, 3));
}
static inline __attribute__((always_inline)) float fold_add_f32x8(f32x8 x) {
  return fold_add_f32x4(__builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7));
}

void row_share(void** buffers, int64_t* variables, int64_t begin, int64_t end) {
  (void)variables;
  const float* restrict x = buffers[0];
  float* restrict out = buffers[1];
  for (int row = begin; row < end; row++) {
    f32x8 total = splat_f32x8(0.0f);
    const i32x8 n0 = (i32x8){0, 1, 2, 3, 4, 5, 6, 7};
    for (int p = 0; p < 2; p++) {
      total += load_if_f32x8_i32(&x[row*11 + p*8], p*8 + n0 < 11);
    }
    const float x0 = fold_add_f32x8(total);
    for (int j = 0; j < 11; j++) {
      out[row*11 + j] = x[row*11 + j] / x0;
    }
  }
}
