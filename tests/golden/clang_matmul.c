// matmul for clang/native, 4 chunks
typedef float f32x8 __attribute__((vector_size(32)));
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL(n) PRAGMA(clang loop unroll(full))
#else
#define UNROLL(n) PRAGMA(GCC unroll n)
#endif
typedef float f32x8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef __INT64_TYPE__ int64_t;
static inline __attribute__((always_inline)) f32x8 splat_f32x8(float x) {
  return (f32x8){x, x, x, x, x, x, x, x};
}
static inline __attribute__((always_inline)) f32x8 fma_f32x8(f32x8 x, f32x8 y, f32x8 z) {
#ifdef __clang__
#pragma clang fp contract(fast)
  return x*y + z;
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  for (int l = 0; l < 8; l++) z[l] = __builtin_fmaf(x[l], y[l], z[l]);
  return z;
#else
  return x*y + z;
#endif
}

void matmul(void** buffers, int64_t* variables, int64_t begin, int64_t end) {
  (void)variables;
  float* restrict C = buffers[0];
  const float* restrict A = buffers[1];
  const float* restrict B = buffers[2];
  for (int m = begin; m < end; m++) {
    for (int n = 0; n < 4; n++) {
      f32x8 acc[8];
      UNROLL(4)
      for (int i = 0; i < 4; i++) {
        UNROLL(2)
        for (int j = 0; j < 2; j++) {
          acc[i*2 + j] = splat_f32x8(0.0f);
        }
      }
      for (int k = 0; k < 32; k++) {
        UNROLL(4)
        for (int i = 0; i < 4; i++) {
          const f32x8 x0 = splat_f32x8(A[(m*4 + i)*32 + k]);
          UNROLL(2)
          for (int j = 0; j < 2; j++) {
            acc[i*2 + j] = fma_f32x8(x0, *(const f32x8u*)&B[k*64 + n*16 + j*8], acc[i*2 + j]);
          }
        }
      }
      UNROLL(4)
      for (int i = 0; i < 4; i++) {
        UNROLL(2)
        for (int j = 0; j < 2; j++) {
          *(f32x8u*)&C[(m*4 + i)*64 + n*16 + j*8] = acc[i*2 + j];
        }
      }
    }
  }
}
