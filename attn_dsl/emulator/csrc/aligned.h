/* Tensor-core arithmetic bit by bit, after the model of MMA-Sim (Xie et al., arXiv 2511.10909): the K products and the
 * accumulator are aligned to the largest exponent, each is truncated to `bits` fraction bits there, the sum is exact, and
 * the f32 result is truncated. bits: 25; for 8-bit floats on Hopper 13, and then the result keeps 13 fraction bits. */
#ifndef EMU_ALIGNED_H
#define EMU_ALIGNED_H
#include <stddef.h>
#include <stdint.h>

enum { EMU_ALIGNED_SPECIAL = 1000 };

typedef struct EmuPrecision {
    int bits, out_bits; /* fraction bits of the aligned terms and of the result */
} EmuPrecision;

/* Exponents of n widened operands of a type (EMU_T_*). Returns the largest; EMU_ALIGNED_SPECIAL or more if one is infinite
 * or NaN. */
int emu_aligned_exponents(const float *x, uint32_t n, int type, int32_t *e);
/* Whether operands with these largest exponents and n accumulators (or none: d NULL) are within the model: all finite, no
 * product beyond f32. Otherwise the plain multiplication of gemm.h gives infinities and NaNs. */
int emu_aligned_applies(int a_max, int b_max, const float *d, uint32_t n, size_t ld);

/* As emu_gemm_f32: d[n][16], a[k][16], b[n][k]. */
void emu_aligned_gemm(float *d, size_t ld, const float *a, const int32_t *ea, const float *b, const int32_t *eb, uint32_t n,
                      uint32_t k, int accumulate, EmuPrecision p);
/* As one half of emu_gemm_fragment: d[32], a[k][32], b[k][4]. */
void emu_aligned_fragment(float *d, const float *a, const int32_t *ea, const float *b, const int32_t *eb, uint32_t k,
                          int accumulate, EmuPrecision p);

#endif
