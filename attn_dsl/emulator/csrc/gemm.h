/* The arithmetic of one MMA on operands widened to 32 bits. Products of the narrow formats are exact in f32; a block of
 * K products is summed from zero and then added to the accumulator, both in f32 to nearest. Hardware adds aligned
 * products exactly and truncates; NVIDIA states no order or rounding. */
#ifndef EMU_GEMM_H
#define EMU_GEMM_H
#include <stddef.h>
#include <stdint.h>

enum { EMU_GEMM_ROWS = 16 }; /* rows of one block */

/* d[n][0..15] = (accumulate ? d : 0) + sum over k of a[k][0..15] * b[n][k]; `ld` elements between d[n] and d[n + 1].
 * n is a multiple of 8. */
void emu_gemm_f32(float *d, size_t ld, const float *a, const float *b, uint32_t n, uint32_t k, int accumulate);
/* The same in the register layout of wgmma: lane 4 g + q of d0 is row g, column 2 q; of d1 column 2 q + 1.
 * a[k][32]: rows by lane (each g four times); b0[k][4], b1[k][4]: columns by q. */
void emu_gemm_fragment(float *d0, float *d1, const float *a, const float *b0, const float *b1, uint32_t k, int accumulate);
void emu_gemm_i32(int32_t *d, size_t ld, const int32_t *a, const int32_t *b, uint32_t n, uint32_t k, int accumulate, int saturate);

#endif
