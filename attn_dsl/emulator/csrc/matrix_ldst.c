/* ldmatrix and stmatrix of 8x8 matrices of 16-bit elements (PTX ISA, "ldmatrix", "stmatrix"). Lane 8 i + r gives the
 * address of row r of matrix i; lane t holds elements 2 (t % 4) and the next of row t / 4, transposed: of column t / 4. */
#include <string.h>

#include "emu.h"

typedef struct Rows {
    uint8_t *row[32]; /* host addresses of n rows of 16 bytes */
    uint32_t n;
} Rows;

static int rows_of(EmuWarp *w, const EmuInstr *in, const EmuOperand *mem, uint32_t exec, int write, Rows *rows)
{
    if (in->mod[2] != 16)
        return emu_find(w, in, EMU_FIND_UNSUPPORTED, "matrices of %u-bit elements are not modelled; 16-bit ones are", in->mod[2]);
    rows->n = 8 * in->mod[0];
    emu_src_check(w, in, mem->reg, 1, exec & (rows->n == 32 ? 0xFFFFFFFFu : (1u << rows->n) - 1), EMU_USE_ADDRESS);
    EmuActor actor = emu_actor_warp(w, in);
    for (uint32_t l = 0; l < rows->n; l++) {
        uint32_t off;
        EmuCta *cta = emu_shared(w, in, emu_reg(w, mem->reg, 0)[l] + (uint32_t)mem->off, 16, 16, 1, &off);
        if (!cta || (write ? emu_smem_write(&actor, cta, off, 16) : emu_smem_read(&actor, cta, off, 16))) return EMU_STOP;
        rows->row[l] = cta->smem + off;
    }
    emu_count_engine(w, EMU_E_SHARED_BYTES, rows->n * 16);
    return EMU_NEXT;
}

/* Where half h of matrix i of lane t is. */
static inline uint8_t *element(const Rows *rows, uint32_t i, uint32_t t, uint32_t h, int trans)
{
    uint32_t row = trans ? 2 * (t % 4) + h : t / 4, col = trans ? t / 4 : 2 * (t % 4) + h;
    return rows->row[8 * i + row] + 2 * col;
}

static int emu_h_stmatrix(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    Rows rows;
    const EmuOperand *v = &in->op[1];
    int trans = in->mod[1] & 1;
    for (uint32_t i = 0; i < in->mod[0]; i++) emu_src_check(w, in, emu_vec(w, v, i), 1, exec, EMU_USE_STORE);
    if (rows_of(w, in, &in->op[0], exec, 1, &rows)) return EMU_STOP;
    for (uint32_t i = 0; i < in->mod[0]; i++) {
        const uint32_t *s = emu_reg(w, emu_vec(w, v, i), 0);
        for (uint32_t t = 0; t < 32; t++)
            for (uint32_t h = 0; h < 2; h++) {
                uint16_t x = (uint16_t)(s[t] >> (16 * h));
                memcpy(element(&rows, i, t, h, trans), &x, 2);
            }
    }
    return EMU_NEXT;
}

static int emu_h_ldmatrix(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    Rows rows;
    const EmuOperand *v = &in->op[0];
    int trans = in->mod[1] & 1;
    if (rows_of(w, in, &in->op[1], exec, 0, &rows)) return EMU_STOP;
    for (uint32_t i = 0; i < in->mod[0]; i++) {
        int32_t reg = emu_vec(w, v, i);
        if (reg == EMU_SINK) continue;
        emu_dst_begin(w, in, reg, 1, exec);
        uint32_t *d = emu_dst(w, reg, 0);
        for (uint32_t t = 0; t < 32; t++) {
            uint16_t x[2];
            for (uint32_t h = 0; h < 2; h++) memcpy(&x[h], element(&rows, i, t, h, trans), 2);
            d[t] = x[0] | (uint32_t)x[1] << 16;
        }
        emu_dst_done(w, reg, 1, exec, 0xFFFFFFFFu);
    }
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_matrix_ldst[] = {EMU_ENTRY(stmatrix), EMU_ENTRY(ldmatrix), {0}};
