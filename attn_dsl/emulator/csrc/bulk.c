/* cp.async.bulk without a tensor map: global to shared, shared to another CTA's shared, shared to global, reductions, and
 * bulk groups (PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk", "cp.async.bulk.wait_group"). */
#include <string.h>

#include "emu.h"
#include "reduce.h"

typedef struct Copy {
    const uint8_t *src; /* host address of the source (shared or global) */
    uint8_t *dst[16];
    EmuCta *mbar_cta[16];
    uint32_t mbar_off, n_dst, bytes;
    int type, op; /* reductions */
} Copy;

static void run_copy(EmuAsync *a)
{
    const Copy *c = (const void *)a->payload;
    for (uint32_t k = 0; k < c->n_dst; k++) memcpy(c->dst[k], c->src, c->bytes);
    for (uint32_t k = 0; k < c->n_dst; k++)
        if (c->mbar_cta[k]) emu_mbar_complete_tx(a->w, a->in, c->mbar_cta[k], c->mbar_off, c->bytes);
}

static uint32_t elem_bytes(int type)
{
    return type == EMU_T_F16 || type == EMU_T_BF16 ? 2 : type == EMU_T_U64 || type == EMU_T_S64 || type == EMU_T_B64 || type == EMU_T_F64 ? 8 : 4;
}

static void run_reduce(EmuAsync *a)
{
    const Copy *c = (const void *)a->payload;
    emu_reduce(c->dst[0], c->src, c->bytes / elem_bytes(c->type), c->type, c->op);
    if (c->mbar_cta[0]) emu_mbar_complete_tx(a->w, a->in, c->mbar_cta[0], c->mbar_off, c->bytes);
}

static void submit(EmuWarp *w, const EmuInstr *in, int queue, void (*run)(EmuAsync *), const Copy *c)
{
    EmuAsync *a = emu_async_new(w, in, queue, run, sizeof(Copy));
    memcpy(a->payload, c, sizeof(Copy));
    emu_async_submit(a);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static uint32_t shared_of(EmuWarp *w, const EmuOperand *o, uint32_t lane) { return emu_reg(w, o->reg, 0)[lane] + (uint32_t)o->off; }
static uint64_t global_of(EmuWarp *w, const EmuOperand *o, uint32_t lane)
{
    return emu_reg64(w, o->reg, (int)lane) + (uint64_t)(int64_t)o->off;
}

static int size_of(EmuWarp *w, const EmuInstr *in, const EmuOperand *o, uint32_t lane, Copy *c)
{
    c->bytes = emu_reg(w, o->reg, 0)[lane];
    if (c->bytes % 16)
        return emu_find(w, in, EMU_FIND_MISALIGNED, "a bulk copy of %u bytes; the size must be a multiple of 16", c->bytes);
    return EMU_NEXT;
}

/* Lane `lane` repeats what lane `first` does: operands 0 to n-1 agree. */
static int repeats(EmuWarp *w, const EmuInstr *in, uint32_t n, uint32_t first, uint32_t lane)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *r = emu_reg(w, in->op[i].reg, 0);
        if (r[first] != r[lane]) return 0;
    }
    return 1;
}

typedef int (*OneLane)(EmuWarp *, const EmuInstr *, uint32_t);

/* Runs `one` for every lane with its own operands. Repetitions of one copy are an un-elected instruction unless harmless. */
static int each(EmuWarp *w, const EmuInstr *in, uint32_t exec, OneLane one, int harmless, const char *what)
{
    uint32_t first = (uint32_t)emu_lowest(exec);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        if (lane != first && repeats(w, in, 3, first, lane)) {
            if (!harmless && emu_find(w, in, EMU_FIND_UNELECTED, "%s by lanes %08x; one elected thread must issue it", what, exec))
                return EMU_STOP;
            continue;
        }
        if (one(w, in, lane)) return EMU_STOP;
    }
    return EMU_NEXT;
}

static void poison_late(EmuWarp *w, const Copy *c)
{
    for (uint32_t k = 0; w->launch->late && k < c->n_dst; k++) memset(c->dst[k], 0xFF, c->bytes);
}

/* ---- loads ------------------------------------------------------------------------------------------------------- */

static int load_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane)
{
    Copy c = {0};
    uint32_t off;
    if (size_of(w, in, &in->op[2], lane, &c)) return EMU_STOP;
    c.src = emu_global(w, in, global_of(w, &in->op[1], lane), c.bytes, 16, 0);
    EmuCta *dst = emu_shared(w, in, shared_of(w, &in->op[0], lane), c.bytes, 16, !(in->mod[1] & EMU_BULK_DST_CLUSTER), &off);
    EmuCta *bar = emu_shared(w, in, shared_of(w, &in->op[3], lane), 8, 8, 0, &c.mbar_off);
    if (!c.src || !dst || !bar) return EMU_STOP;
    if (bar != dst && !(in->mod[1] & EMU_BULK_MULTICAST))
        return emu_find(w, in, EMU_FIND_MBAR_INVALID, "the mbarrier is in CTA rank %u, the destination in CTA rank %u", bar->rank, dst->rank);
    uint32_t mask = 1u << dst->rank;
    if (in->mod[1] & EMU_BULK_MULTICAST) {
        mask = emu_reg(w, in->op[4].reg, 0)[lane] & 0xFFFF;
        if (!mask || mask >> w->cluster->n_ctas)
            return emu_find(w, in, EMU_FIND_OOB, "multicast to CTA mask 0x%x in a cluster of %u", mask, w->cluster->n_ctas);
    }
    for (; mask; mask &= mask - 1) {
        EmuCta *to = emu_cta_of_rank(w->cluster, (uint32_t)__builtin_ctz(mask));
        EmuActor actor = emu_actor_mbar(w, in, to, c.mbar_off);
        if (emu_smem_write(&actor, to, off, c.bytes)) return EMU_STOP;
        c.dst[c.n_dst] = to->smem + off;
        c.mbar_cta[c.n_dst++] = to;
    }
    emu_count_engine(w, EMU_E_BULK, c.bytes);
    poison_late(w, &c);
    submit(w, in, EMU_Q_TMA, run_copy, &c);
    return EMU_NEXT;
}

static int emu_h_bulk_load(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[1].reg, 2, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[2].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[3].reg, 1, exec, EMU_USE_ADDRESS);
    return each(w, in, exec, load_lane, 0, "a bulk load");
}

/* Shared memory of this CTA to shared memory of any CTA of the cluster; `reduce` to it or copy. The source is read by the
 * same work that signals the mbarrier. */
static int push_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane, int reduce)
{
    Copy c = {.type = (int)in->mod[0], .op = (int)in->mod[2], .n_dst = 1};
    uint32_t to_off, from_off;
    if (size_of(w, in, &in->op[2], lane, &c)) return EMU_STOP;
    EmuCta *to = emu_shared(w, in, shared_of(w, &in->op[0], lane), c.bytes, 16, 0, &to_off);
    EmuCta *from = emu_shared(w, in, shared_of(w, &in->op[1], lane), c.bytes, 16, 1, &from_off);
    EmuCta *bar = emu_shared(w, in, shared_of(w, &in->op[3], lane), 8, 8, 0, &c.mbar_off);
    if (!to || !from || !bar) return EMU_STOP;
    if (bar != to)
        return emu_find(w, in, EMU_FIND_MBAR_INVALID, "the mbarrier is in CTA rank %u, the destination in CTA rank %u", bar->rank, to->rank);
    EmuActor actor = emu_actor_mbar(w, in, bar, c.mbar_off);
    if (emu_smem_read(&actor, from, from_off, c.bytes)) return EMU_STOP;
    actor.in_order = (uint8_t)reduce; /* reductions are atomic: several may update one place before their phase ends */
    if (reduce && emu_smem_read(&actor, to, to_off, c.bytes)) return EMU_STOP;
    if (emu_smem_write(&actor, to, to_off, c.bytes)) return EMU_STOP;
    c.src = from->smem + from_off;
    c.dst[0] = to->smem + to_off;
    c.mbar_cta[0] = bar;
    emu_count_engine(w, EMU_E_BULK, c.bytes);
    if (!reduce) poison_late(w, &c);
    submit(w, in, EMU_Q_TMA, reduce ? run_reduce : run_copy, &c);
    return EMU_NEXT;
}

static int dsmem_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane) { return push_lane(w, in, lane, 0); }
static int dsmem_reduce_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane) { return push_lane(w, in, lane, 1); }

static int emu_h_bulk_dsmem(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    for (int i = 0; i < 4; i++) emu_src_check(w, in, in->op[i].reg, 1, exec, EMU_USE_ADDRESS);
    return each(w, in, exec, dsmem_lane, 0, "a bulk copy");
}

/* ---- st.async -------------------------------------------------------------------------------------------------------- */

typedef struct AsyncStore {
    uint8_t *dst;
    EmuCta *mbar_cta;
    uint32_t mbar_off, bytes;
    uint32_t words[4];
} AsyncStore;

static void run_async_store(EmuAsync *a)
{
    const AsyncStore *s = (const void *)a->payload;
    memcpy(s->dst, s->words, s->bytes);
    emu_mbar_complete_tx(a->w, a->in, s->mbar_cta, s->mbar_off, s->bytes);
}

/* st.async: each lane stores up to 16 bytes to shared memory of the cluster and signals an mbarrier beside it (PTX ISA,
 * "st.async"). mod[0]: type of an element, 32 or 64 bits. */
static int emu_h_st_async(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    const EmuOperand *v = &in->op[1];
    uint32_t slots = elem_bytes((int)in->mod[0]) / 4;
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[2].reg, 1, exec, EMU_USE_ADDRESS);
    for (int32_t i = 0; i < v->off; i++) emu_src_check(w, in, emu_vec(w, v, (uint32_t)i), slots, exec, EMU_USE_STORE);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off;
        AsyncStore s = {.bytes = (uint32_t)v->off * slots * 4};
        EmuCta *to = emu_shared(w, in, shared_of(w, &in->op[0], lane), s.bytes, s.bytes, 0, &off);
        s.mbar_cta = emu_shared(w, in, shared_of(w, &in->op[2], lane), 8, 8, 0, &s.mbar_off);
        if (!to || !s.mbar_cta) return EMU_STOP;
        if (s.mbar_cta != to)
            return emu_find(w, in, EMU_FIND_MBAR_INVALID, "the mbarrier is in CTA rank %u, the destination in CTA rank %u",
                            s.mbar_cta->rank, to->rank);
        EmuActor actor = emu_actor_mbar(w, in, to, s.mbar_off);
        if (emu_smem_write(&actor, to, off, s.bytes)) return EMU_STOP;
        for (int32_t i = 0; i < v->off; i++)
            for (uint32_t k = 0; k < slots; k++)
                s.words[(uint32_t)i * slots + k] = emu_reg(w, emu_vec(w, v, (uint32_t)i), k)[lane];
        s.dst = to->smem + off;
        if (w->launch->late) memset(s.dst, 0xFF, s.bytes);
        EmuAsync *a = emu_async_new(w, in, EMU_Q_TMA, run_async_store, sizeof(s));
        memcpy(a->payload, &s, sizeof(s));
        emu_async_submit(a);
    }
    return EMU_NEXT;
}

/* ---- stores and reductions --------------------------------------------------------------------------------------- */

static int out_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane, int reduce)
{
    Copy c = {.type = (int)in->mod[0], .op = (int)in->mod[2], .n_dst = 1};
    uint32_t off;
    if (size_of(w, in, &in->op[2], lane, &c)) return EMU_STOP;
    EmuCta *from = emu_shared(w, in, shared_of(w, &in->op[1], lane), c.bytes, 16, 1, &off);
    c.dst[0] = emu_global(w, in, global_of(w, &in->op[0], lane), c.bytes, 16, 1);
    if (!from || !c.dst[0]) return EMU_STOP;
    EmuActor actor = emu_actor_queue(w, in, EMU_Q_BULK);
    if (emu_smem_read(&actor, from, off, c.bytes)) return EMU_STOP;
    c.src = from->smem + off;
    emu_count_engine(w, EMU_E_BULK, c.bytes);
    submit(w, in, EMU_Q_BULK, reduce ? run_reduce : run_copy, &c);
    return EMU_NEXT;
}

static int store_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane) { return out_lane(w, in, lane, 0); }
static int reduce_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane) { return out_lane(w, in, lane, 1); }

static void out_sources(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_src_check(w, in, in->op[0].reg, 2, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[1].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[2].reg, 1, exec, EMU_USE_ADDRESS);
}

static int emu_h_bulk_store(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    out_sources(w, in, exec);
    return each(w, in, exec, store_lane, 1, "a bulk store");
}

static int emu_h_bulk_reduce(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    int type = (int)in->mod[0], op = (int)in->mod[2];
    if (!emu_reduce_supported(type, op))
        return emu_find(w, in, EMU_FIND_UNSUPPORTED, "cp.reduce.async.bulk: this operation does not exist for the type");
    if (in->mod[1] & EMU_BULK_DST_CLUSTER) {
        for (int i = 0; i < 4; i++) emu_src_check(w, in, in->op[i].reg, 1, exec, EMU_USE_ADDRESS);
        return each(w, in, exec, dsmem_reduce_lane, 0, "a bulk reduction");
    }
    out_sources(w, in, exec);
    return each(w, in, exec, reduce_lane, 0, "a bulk reduction");
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static int emu_h_bulk_commit(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)in, (void)exec;
    emu_group_commit(w, EMU_Q_BULK);
    return EMU_NEXT;
}

static int emu_h_bulk_wait(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_group_wait(w, EMU_Q_BULK, emu_uniform(w, &in->op[0], exec));
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_bulk[] = {
    EMU_ENTRY(bulk_load),   EMU_ENTRY(bulk_dsmem),  EMU_ENTRY(bulk_store), EMU_ENTRY(bulk_reduce),
    EMU_ENTRY(bulk_commit), EMU_ENTRY(bulk_wait),   EMU_ENTRY(st_async),   {0}};
