/* Shared-memory matrix descriptors of tcgen05 and wgmma, and the addresses they stand for (PTX ISA, "Shared memory
 * matrix layout", "Matrix descriptor"). */
#ifndef EMU_DESCRIPTOR_H
#define EMU_DESCRIPTOR_H
#include "emu.h"
#include "swizzle.h"

typedef struct EmuMatrix {
    uint32_t start, lbo, sbo; /* bytes; start is a window offset */
    uint8_t swizzle;          /* EMU_SWZ_* */
    uint8_t mn_major;
    uint8_t elem_bytes;
    uint8_t rows;             /* K rows of one MN-major pattern */
    uint16_t span;            /* bytes of one row of the pattern */
    uint16_t mask;            /* address ^= address >> shift & mask */
    uint8_t shift;
} EmuMatrix;

/* Decode a 64-bit descriptor. Return NULL, or what is wrong with it (a static sentence). */
const char *emu_matrix_tcgen05(uint64_t desc, int mn_major, int elem_bytes, EmuMatrix *out);
const char *emu_matrix_wgmma(uint64_t desc, int mn_major, int elem_bytes, EmuMatrix *out);

/* Shared address of a 16-byte unit: K-major, row `a` and unit `b` along K; MN-major, unit `a` along M or N and row `b`
 * along K. */
static inline uint32_t emu_matrix_unit(const EmuMatrix *m, uint32_t a, uint32_t b)
{
    uint32_t units = m->span / 16u, addr = m->start;
    if (!m->mn_major)
        addr += (a % 8) * m->span + (a / 8) * m->sbo + b * (m->mask ? 16 : m->lbo);
    else if (!m->mask)
        addr += a * m->sbo + (b % 8) * 16 + (b / 8) * m->lbo;
    else
        addr += (a % units) * 16 + (a / units) * m->lbo + (b % m->rows) * m->span + (b / m->rows) * m->sbo;
    return addr ^ (addr >> m->shift & m->mask);
}

/* Checks and records the read of an mn x k operand (k in elements) as the fewest contiguous ranges, and that it lies in
 * the window. Returns EMU_NEXT, or EMU_STOP after a finding. */
int emu_matrix_read(const EmuActor *actor, EmuCta *cta, const EmuMatrix *m, uint32_t mn, uint32_t k, const char *what);

/* Copies the operand as f32 (int32 for 8-bit integers, see `type`) to rows[mn][k]. */
void emu_matrix_rows(const EmuCta *cta, const EmuMatrix *m, uint32_t mn, uint32_t k, int type, int negate, float *rows);
/* Copies the operand to blocks of 16 rows: blocks[mn / 16][k][16]. */
void emu_matrix_blocks(const EmuCta *cta, const EmuMatrix *m, uint32_t mn, uint32_t k, int type, int negate, float *blocks);

/* Copies the operand in the order of wgmma's accumulators: quads[mn / 8][mn % 2][k][mn % 8 / 2]. */
void emu_matrix_quads(const EmuCta *cta, const EmuMatrix *m, uint32_t mn, uint32_t k, int type, int negate, float *quads);

/* Widens n elements of a type (EMU_T_*) to f32, or to int32 for EMU_T_S8 and EMU_T_U8. */
void emu_widen(const uint8_t *src, uint32_t n, int type, float *out);
/* Bytes of an MMA operand element. */
static inline int emu_elem_bytes(int type)
{
    return type == EMU_T_TF32 ? 4 : type == EMU_T_F16 || type == EMU_T_BF16 ? 2 : 1;
}

#endif
