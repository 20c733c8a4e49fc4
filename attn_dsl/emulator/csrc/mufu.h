/* Special functions bit by bit as the hardware computes them (a launch with `exact`). */
#ifndef EMU_MUFU_H
#define EMU_MUFU_H

/* d[i] = ex2.approx(x[i]) or rcp.approx(x[i]) of 32 lanes; the caller flushes subnormals for .ftz. */
void emu_mufu_ex2(float *d, const float *x);
void emu_mufu_rcp(float *d, const float *x);

#endif
