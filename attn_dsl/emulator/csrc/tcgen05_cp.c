/* tcgen05.cp: shared memory to TMEM (PTX ISA, "tcgen05.cp"). Rows are those of a K-major descriptor, in 16-byte units;
 * four cells of one lane per unit. */
#include <string.h>

#include "descriptor.h"
#include "tmem.h"

typedef struct Shape {
    uint32_t rows, units, copies; /* source rows, 16-byte units per row, copies in TMEM */
} Shape;
static const Shape shapes[] = {
    [EMU_CP_128X256B] = {128, 2, 1},     [EMU_CP_128X128B] = {128, 1, 1},    [EMU_CP_64X128B_02_13] = {64, 1, 2},
    [EMU_CP_64X128B_01_23] = {64, 1, 2}, [EMU_CP_32X128B_X4] = {32, 1, 4},   [EMU_CP_4X256B] = {4, 2, 1}};

static uint32_t lane_of(int shape, uint32_t row, uint32_t copy)
{
    switch (shape) {
    case EMU_CP_64X128B_02_13: return row + 64 * copy;
    case EMU_CP_64X128B_01_23: return row % 32 + 64 * (row / 32) + 32 * copy;
    case EMU_CP_32X128B_X4: return row + 32 * copy;
    case EMU_CP_4X256B: return 32 * row;
    default: return row;
    }
}

typedef struct Copy {
    EmuMatrix src;
    int shape;
    uint32_t col, lane, ctas;
    EmuCta *cta[2];
} Copy;

static void run_copy(EmuAsync *a)
{
    const Copy *c = (const void *)a->payload;
    const Shape *s = &shapes[c->shape];
    for (uint32_t k = 0; k < c->ctas; k++)
        for (uint32_t r = 0; r < s->rows; r++)
            for (uint32_t u = 0; u < s->units; u++) {
                uint32_t v[4];
                memcpy(v, c->cta[k]->smem + emu_matrix_unit(&c->src, r, u), 16);
                for (uint32_t i = 0; i < s->copies; i++)
                    for (uint32_t j = 0; j < 4; j++)
                        *emu_tmem_cell(c->cta[k], c->col + u * 4 + j, c->lane + lane_of(c->shape, r, i)) = v[j];
            }
}

/* Source bytes: every unit of every row. */
static int check_source(const EmuActor *act, EmuCta *cta, const Copy *c)
{
    const Shape *s = &shapes[c->shape];
    for (uint32_t r = 0; r < s->rows; r++)
        for (uint32_t u = 0; u < s->units; u++) {
            uint32_t off = emu_matrix_unit(&c->src, r, u);
            if (off < EMU_SHARED_BASE || off + 16 > cta->smem_size)
                return emu_find(act->w, act->in, EMU_FIND_OOB, "tcgen05.cp: the descriptor reaches shared address 0x%x, outside the CTA's memory", off);
            if (emu_smem_read(act, cta, off, 16)) return EMU_STOP;
        }
    return EMU_NEXT;
}

static int emu_h_tcgen05_cp(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[1].reg, 2, exec, EMU_USE_MMA);
    if ((exec & (exec - 1)) &&
        emu_find(w, in, EMU_FIND_UNELECTED, "tcgen05.cp by lanes %08x; one elected thread must issue it", exec))
        return EMU_STOP;
    int lane = emu_lowest(exec);
    uint32_t addr = emu_reg(w, in->op[0].reg, 0)[lane] + (uint32_t)in->op[0].off;
    uint64_t desc = emu_reg64(w, in->op[1].reg, lane);
    Copy c = {.shape = (int)in->mod[1], .col = addr & 0xFFFF, .lane = addr >> 16, .ctas = in->mod[0], .cta = {w->cta, NULL}};
    const char *bad = emu_matrix_tcgen05(desc, 0, 1, &c.src);
    if (bad) return emu_find(w, in, EMU_FIND_DESCRIPTOR, "descriptor of tcgen05.cp 0x%llx: %s", (unsigned long long)desc, bad);
    if (c.ctas == 2 && !(c.cta[1] = emu_peer(w->cta)))
        return emu_find(w, in, EMU_FIND_DESCRIPTOR, "cta_group::2 in a cluster without a CTA of rank %u", w->cta->rank ^ 1);
    if (c.lane && !(c.shape == EMU_CP_4X256B && c.lane < 32))
        return emu_find(w, in, EMU_FIND_MISALIGNED, "tcgen05.cp to TMEM lane %u; this shape starts at lane 0", c.lane);
    EmuActor actor = emu_actor_queue(w, in, EMU_Q_MMA);
    uint32_t cols = shapes[c.shape].units * 4;
    uint32_t groups = c.shape == EMU_CP_4X256B ? 0x55u << (c.lane / 16) : 0xFFu;
    for (uint32_t k = 0; k < c.ctas; k++) {
        if (emu_tmem_columns(w, in, c.cta[k], c.col, cols, "tcgen05.cp writes")) return EMU_STOP;
        if (check_source(&actor, c.cta[k], &c)) return EMU_STOP;
        if (emu_tmem_write(&actor, c.cta[k], c.col, cols, groups)) return EMU_STOP;
    }
    EmuAsync *a = emu_async_new(w, in, EMU_Q_MMA, run_copy, sizeof(Copy));
    memcpy(a->payload, &c, sizeof(c));
    emu_async_submit(a);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_tcgen05_cp[] = {EMU_ENTRY(tcgen05_cp), {0}};
