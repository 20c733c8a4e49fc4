/* tcgen05.ld, tcgen05.st, tcgen05.wait (PTX ISA, "Tensor Memory Access Instructions"; shapes in "Data movement shape").
 * A warp reaches the 32 lanes of its quarter only: lanes 32 * (warp index % 4). */
#include <string.h>

#include "tmem.h"

/* One access, decoded: registers are pairs (r, thread) <-> cells (column, lane). */
typedef struct Access {
    int shape;
    uint32_t n_regs, packed; /* registers per thread; 16-bit halves of two cells in one register */
    uint32_t lane, col;      /* from the address */
    uint32_t second;         /* 16x32bx2: column offset of the upper 16 threads */
    uint32_t lanes, cols;    /* lanes reached (16 or 32), columns reached */
} Access;

static uint32_t regs_of(int shape, uint32_t count)
{
    return shape == EMU_TS_16X128B ? 2 * count : shape == EMU_TS_16X256B ? 4 * count : count;
}

/* Cell of value v (a register, or half a register when packed) of thread t. */
static inline uint32_t cell(const Access *a, uint32_t v, uint32_t t, uint32_t *lane)
{
    switch (a->shape) {
    case EMU_TS_32X32B: *lane = a->lane + t; return a->col + v;
    case EMU_TS_16X64B: *lane = a->lane + (t >> 2) + 8 * (t & 1); return a->col + (t >> 1 & 1) + 2 * v;
    case EMU_TS_16X128B: *lane = a->lane + (t >> 2) + 8 * (v & 1); return a->col + (t & 3) + 4 * (v >> 1);
    case EMU_TS_16X256B: *lane = a->lane + (t >> 2) + 8 * (v >> 1 & 1); return a->col + 2 * (t & 3) + (v & 1) + 8 * (v >> 2);
    default: *lane = a->lane + (t & 15); return a->col + v + (t >= 16 ? a->second : 0);
    }
}

/* Columns that `values` values per thread span. */
static uint32_t columns_of(int shape, uint32_t values)
{
    return shape == EMU_TS_16X64B || shape == EMU_TS_16X128B || shape == EMU_TS_16X256B ? 2 * values : values;
}

static int decode(EmuWarp *w, const EmuInstr *in, const EmuOperand *mem, const EmuOperand *imm, uint32_t exec, const char *what, Access *a)
{
    if (exec != 0xFFFFFFFFu &&
        emu_find(w, in, EMU_FIND_DIVERGENCE, "%s by lanes %08x; the whole warp must execute it", what, exec))
        return EMU_STOP;
    if (emu_uniform_check(w, in, mem, 1, exec, EMU_USE_ADDRESS, "the TMEM address")) return EMU_STOP;
    uint32_t addr = emu_uniform(w, mem, exec) + (uint32_t)mem->off;
    a->shape = (int)in->mod[0];
    a->n_regs = regs_of(a->shape, in->mod[1]);
    a->packed = in->mod[2] & 1;
    a->lane = addr >> 16;
    a->col = addr & 0xFFFF;
    a->second = imm ? emu_uniform(w, imm, exec) : 0;
    a->lanes = a->shape == EMU_TS_32X32B ? 32 : 16;
    uint32_t values = a->n_regs << a->packed;
    a->cols = columns_of(a->shape, values);
    uint32_t base = 32 * (w->index % 4);
    if (a->lane < base || a->lane + a->lanes > base + 32)
        return emu_find(w, in, EMU_FIND_OOB, "%s of TMEM lanes %u to %u by warp %u, which reaches lanes %u to %u only", what, a->lane,
                        a->lane + a->lanes - 1, w->index, base, base + 31);
    if (a->lane % 16)
        return emu_find(w, in, EMU_FIND_MISALIGNED, "%s from TMEM lane %u; it must be a multiple of 16", what, a->lane);
    if (emu_tmem_columns(w, in, w->cta, a->col, a->cols, what)) return EMU_STOP;
    if (a->shape == EMU_TS_16X32BX2) return emu_tmem_columns(w, in, w->cta, a->col + a->second, a->cols, what);
    return EMU_NEXT;
}

static int shadow(const Access *a, const EmuActor *actor, EmuCta *cta, int write)
{
    uint32_t groups = (a->lanes == 32 ? 3u : 1u) << (a->lane / 16);
    int (*check)(const EmuActor *, EmuCta *, uint32_t, uint32_t, uint32_t) = write ? emu_tmem_write : emu_tmem_read;
    if (check(actor, cta, a->col, a->cols, groups)) return EMU_STOP;
    if (a->shape == EMU_TS_16X32BX2 && a->second) return check(actor, cta, a->col + a->second, a->cols, groups);
    return EMU_NEXT;
}

static void load(EmuWarp *w, const Access *a, const int32_t *regs)
{
    EmuCta *cta = w->cta;
    for (uint32_t r = 0; r < a->n_regs; r++) {
        if (regs[r] == EMU_SINK) continue;
        uint32_t *d = emu_dst(w, regs[r], 0), lane;
        if (a->shape == EMU_TS_32X32B && !a->packed) {
            memcpy(d, emu_tmem_cell(cta, a->col + r, a->lane), 128);
            continue;
        }
        for (uint32_t t = 0; t < 32; t++) {
            if (a->packed) {
                uint32_t c0 = cell(a, 2 * r, t, &lane), lo = *emu_tmem_cell(cta, c0, lane) & 0xFFFF;
                uint32_t c1 = cell(a, 2 * r + 1, t, &lane);
                d[t] = lo | *emu_tmem_cell(cta, c1, lane) << 16;
            } else {
                uint32_t c = cell(a, r, t, &lane);
                d[t] = *emu_tmem_cell(cta, c, lane);
            }
        }
    }
}

/* regs: n_regs x 32 values. */
static void store(EmuCta *cta, const Access *a, uint32_t r, const uint32_t *s)
{
    uint32_t lane;
    if (a->shape == EMU_TS_32X32B && !a->packed) {
        memcpy(emu_tmem_cell(cta, a->col + r, a->lane), s, 128);
        return;
    }
    for (uint32_t t = 0; t < 32; t++) {
        if (a->packed) {
            uint32_t c0 = cell(a, 2 * r, t, &lane);
            *emu_tmem_cell(cta, c0, lane) = s[t] & 0xFFFF;
            uint32_t c1 = cell(a, 2 * r + 1, t, &lane);
            *emu_tmem_cell(cta, c1, lane) = s[t] >> 16;
        } else {
            uint32_t c = cell(a, r, t, &lane);
            *emu_tmem_cell(cta, c, lane) = s[t];
        }
    }
}

typedef struct Load {
    Access a;
    const int32_t *regs; /* in the program's pool */
} Load;

static void run_load(EmuAsync *x)
{
    const Load *l = (const void *)x->payload;
    load(x->w, &l->a, l->regs);
}

static int emu_h_tcgen05_ld(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    Access a;
    if (decode(w, in, &in->op[1], in->nops > 2 ? &in->op[2] : NULL, exec, "tcgen05.ld", &a)) return EMU_STOP;
    const int32_t *regs = w->prog->pool + in->op[0].reg;
    emu_count_engine(w, EMU_E_TMEM_BYTES, a.n_regs * 128);
    if (!w->launch->checks && !w->launch->late) {
        load(w, &a, regs);
        return EMU_NEXT;
    }
    for (uint32_t r = 0; r < a.n_regs; r++)
        if (regs[r] != EMU_SINK) emu_dst_begin(w, in, regs[r], 1, exec);
    EmuActor actor = emu_actor_queue(w, in, EMU_Q_TLD);
    if (shadow(&a, &actor, w->cta, 0)) return EMU_STOP;
    EmuAsync *x = emu_async_new(w, in, EMU_Q_TLD, run_load, sizeof(Load));
    *(Load *)(void *)x->payload = (Load){a, regs};
    uint32_t clock = x->clock;
    if (w->launch->late)
        for (uint32_t r = 0; r < a.n_regs; r++)
            if (regs[r] != EMU_SINK) memset(emu_dst(w, regs[r], 0), 0xFF, 128);
    emu_async_submit(x);
    for (uint32_t r = 0; r < a.n_regs; r++)
        if (regs[r] != EMU_SINK) emu_reg_pending(w, regs[r], 1, EMU_Q_TLD, clock);
    return EMU_NEXT;
}

typedef struct Store {
    Access a;
    uint32_t values[]; /* n_regs x 32 */
} Store;

static void run_store(EmuAsync *x)
{
    const Store *s = (const void *)x->payload;
    for (uint32_t r = 0; r < s->a.n_regs; r++) store(x->w->cta, &s->a, r, s->values + r * 32);
}

static int emu_h_tcgen05_st(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    Access a;
    int split = in->nops > 2; /* 16x32bx2 has its column offset between the address and the registers */
    if (decode(w, in, &in->op[0], split ? &in->op[1] : NULL, exec, "tcgen05.st", &a)) return EMU_STOP;
    const int32_t *regs = w->prog->pool + in->op[split ? 2 : 1].reg;
    emu_count_engine(w, EMU_E_TMEM_BYTES, a.n_regs * 128);
    if (w->launch->checks || w->launch->late) {
        for (uint32_t r = 0; r < a.n_regs; r++) emu_src_check(w, in, regs[r], 1, exec, EMU_USE_STORE);
        EmuActor actor = emu_actor_queue(w, in, EMU_Q_TST);
        if (shadow(&a, &actor, w->cta, 1)) return EMU_STOP;
    }
    if (!w->launch->late) {
        for (uint32_t r = 0; r < a.n_regs; r++) store(w->cta, &a, r, emu_reg(w, regs[r], 0));
        return EMU_NEXT;
    }
    uint32_t poison[32];
    for (int l = 0; l < 32; l++) poison[l] = EMU_POISON_NAN;
    EmuAsync *x = emu_async_new(w, in, EMU_Q_TST, run_store, sizeof(Store) + (size_t)a.n_regs * 128);
    Store *s = (void *)x->payload;
    s->a = a;
    for (uint32_t r = 0; r < a.n_regs; r++) {
        memcpy(s->values + r * 32, emu_reg(w, regs[r], 0), 128);
        store(w->cta, &a, r, poison);
    }
    emu_async_submit(x);
    return EMU_NEXT;
}

static int emu_h_tcgen05_wait(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)exec;
    int q = in->mod[0] ? EMU_Q_TST : EMU_Q_TLD;
    emu_queue_drain(w, q);
    emu_queue_seen(w, q, w->queue_clock[q]);
    if (q == EMU_Q_TLD) emu_reg_release(w, q, w->queue_clock[q]);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_tmem_ldst[] = {
    EMU_ENTRY(tcgen05_ld), EMU_ENTRY(tcgen05_st), EMU_ENTRY(tcgen05_wait), {0}};
