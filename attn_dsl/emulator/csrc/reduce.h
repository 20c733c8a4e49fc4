/* Reductions on global memory by the bulk engine, element by element, atomic against other CTAs. */
#ifndef EMU_REDUCE_H
#define EMU_REDUCE_H
#include <stdint.h>

int emu_reduce_supported(int type, int op); /* EMU_T_*, EMU_A_* */
/* dst[i] = dst[i] op src[i] for n elements; f32 additions flush subnormals (PTX ISA, "cp.reduce.async.bulk"). */
void emu_reduce(uint8_t *dst, const uint8_t *src, uint32_t n, int type, int op);

#endif
