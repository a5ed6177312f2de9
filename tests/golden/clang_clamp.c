// clamp for clang/native
typedef __INT16_TYPE__ int16_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __INT64_TYPE__ int64_t;

void clamp(void** buffers, int64_t* variables, int64_t begin, int64_t end) {
  (void)begin; (void)end;
  const int16_t* restrict x = buffers[0];
  uint8_t* restrict out = buffers[1];
  const int64_t n = variables[0];
  for (int64_t i = 0; i < n; i++) {
    const int16_t n0 = x[i];
    out[i] = (uint8_t)(255 < n0 ? 255 : n0 < 0 ? 0 : n0);
  }
}
