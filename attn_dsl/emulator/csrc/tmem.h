/* Tensor memory: 512 columns x 128 lanes x 32 bits per CTA, addressed lane << 16 | column (PTX ISA, "Tensor Memory"). */
#ifndef EMU_TMEM_H
#define EMU_TMEM_H
#include "emu.h"

enum { EMU_TMEM_COLS = 512, EMU_TMEM_LANES = 128 };
#define EMU_POISON_NAN 0x7FFFFFFFu /* what a destination holds until its asynchronous write is done (late mode) */

static inline uint32_t *emu_tmem_cell(EmuCta *cta, uint32_t col, uint32_t lane)
{
    return cta->tmem + col * EMU_TMEM_LANES + lane;
}

/* Reports columns [col, col + n) that do not exist or are not allocated. */
int emu_tmem_columns(EmuWarp *w, const EmuInstr *in, const EmuCta *cta, uint32_t col, uint32_t n, const char *what);
/* Value of a uniform operand that must agree over `exec`: checks that it was written (for `use`) and that lanes agree. */
int emu_uniform_check(EmuWarp *w, const EmuInstr *in, const EmuOperand *o, uint32_t slots, uint32_t exec, int use, const char *what);
/* The other CTA of a pair (rank ^ 1), or NULL. */
static inline EmuCta *emu_peer(EmuCta *cta) { return emu_cta_of_rank(cta->cluster, cta->rank ^ 1); }

#endif
