/* cp.async.bulk.tensor in tile mode: loads, stores and reductions of 1 to 5 dimensions (PTX ISA, "cp.async.bulk.tensor",
 * "cp.reduce.async.bulk.tensor", "Tensor Access Modes"). */
#include "tensormap.h"

#include <string.h>

#include "reduce.h"

/* One copy of one box. */
typedef struct Tile {
    EmuTensorMap map;
    int64_t at[5];             /* coordinates of the first element */
    uint32_t off;              /* shared window offset */
    EmuCta *cta[16];           /* destinations of a load; cta[0] is the source of a store */
    EmuCta *mbar_cta[16];
    uint32_t n_ctas, mbar_off;
    int op;                    /* EMU_A_*, reductions */
} Tile;

enum { LOAD = 0, STORE = 1, REDUCE = 2 };

/* ---- the box as rows --------------------------------------------------------------------------------------------- */

typedef struct Row {
    uint32_t off;      /* of the row in the box, bytes, before the swizzle */
    int inside;        /* the outer coordinates are inside the tensor */
    uint64_t global;   /* address of element `first` */
    uint32_t first, n; /* elements of the row that are inside: [first, first + n) */
} Row;

/* Row `i` of the box (all dimensions but the innermost, second one fastest). */
static Row row_of(const Tile *t, uint32_t i)
{
    const EmuTensorMap *m = &t->map;
    Row r = {.off = i * m->row_bytes, .inside = 1, .global = m->base};
    for (uint32_t d = 1; d < m->rank; d++) {
        int64_t c = t->at[d] + (int64_t)(i % m->box[d]) * m->step[d];
        i /= m->box[d];
        r.inside &= c >= 0 && c < m->dim[d];
        r.global += (uint64_t)c * m->stride[d];
    }
    int64_t lo = t->at[0] < 0 ? -t->at[0] : 0, hi = m->dim[0] - t->at[0];
    if (hi > m->box[0]) hi = m->box[0];
    if (!r.inside || hi <= lo) return (Row){.off = r.off};
    r.first = (uint32_t)lo;
    r.n = (uint32_t)(hi - lo);
    r.global += (uint64_t)(t->at[0] + lo) * m->elem_bytes;
    return r;
}

static uint32_t n_rows(const EmuTensorMap *m) { return m->box_bytes / m->row_bytes; }

/* The elements inside (if any) must lie between two addresses of one allocation. */
static int global_check(EmuWarp *w, const EmuInstr *in, const Tile *t, int write)
{
    uint64_t lo = UINT64_MAX, hi = 0;
    const EmuTensorMap *m = &t->map;
    for (uint32_t i = 0; i < n_rows(m); i++) {
        Row r = row_of(t, i);
        if (!r.n) continue;
        uint64_t end = r.global + (uint64_t)r.n * m->elem_bytes;
        if (emu_grid_access(w, in, r.global, end - r.global, write)) return EMU_STOP;
        lo = r.global < lo ? r.global : lo;
        hi = end > hi ? end : hi;
    }
    return lo > hi || emu_global_bounds(w, in, lo, hi - lo, 1, write) ? EMU_NEXT : EMU_STOP;
}

/* Shared bytes that stay together under the swizzle. */
static inline uint32_t piece_bytes(const EmuTensorMap *m)
{
    return m->swizzle == EMU_SWZ_NONE ? m->row_bytes : m->swizzle == EMU_SWZ_128B_32B_FLIP ? 8 : 16;
}

static void fill_outside(const EmuTensorMap *m, uint8_t *row)
{
    if (!m->fill_nan) {
        memset(row, 0, m->row_bytes);
        return;
    }
    uint64_t nan = m->elem_bytes == 8 ? 0x7FFFFFFFFFFFFFFFull : m->elem_bytes == 4 ? 0x7FFFFFFF : 0x7FFF;
    for (uint32_t i = 0; i < m->box[0]; i++) memcpy(row + i * m->elem_bytes, &nan, m->elem_bytes);
}

static void run_load(EmuAsync *a)
{
    const Tile *t = (const void *)a->payload;
    const EmuTensorMap *m = &t->map;
    uint8_t row[2048];
    uint32_t step = piece_bytes(m);
    for (uint32_t i = 0; i < n_rows(m); i++) {
        Row r = row_of(t, i);
        if (r.n != m->box[0]) fill_outside(m, row);
        const uint8_t *src = row;
        if (r.n == m->box[0])
            src = (const uint8_t *)(uintptr_t)r.global;
        else if (r.n)
            memcpy(row + r.first * m->elem_bytes, (const void *)(uintptr_t)r.global, r.n * m->elem_bytes);
        for (uint32_t k = 0; k < t->n_ctas; k++) {
            uint8_t *smem = t->cta[k]->smem;
            if (step == 16)
                for (uint32_t b = 0; b < m->row_bytes; b += 16) memcpy(smem + emu_swizzle(t->off + r.off + b, m->swizzle), src + b, 16);
            else
                for (uint32_t b = 0; b < m->row_bytes; b += step)
                    memcpy(smem + emu_swizzle(t->off + r.off + b, m->swizzle), src + b, step);
        }
    }
    for (uint32_t k = 0; k < t->n_ctas; k++) emu_mbar_complete_tx(a->w, a->in, t->mbar_cta[k], t->mbar_off, m->box_bytes);
}

/* One row of shared memory in tensor order. */
static void gather(const Tile *t, uint32_t off, uint8_t *row)
{
    const EmuTensorMap *m = &t->map;
    uint32_t step = piece_bytes(m);
    for (uint32_t b = 0; b < m->row_bytes; b += step) memcpy(row + b, t->cta[0]->smem + emu_swizzle(t->off + off + b, m->swizzle), step);
}

static void run_store(EmuAsync *a)
{
    const Tile *t = (const void *)a->payload;
    const EmuTensorMap *m = &t->map;
    uint8_t row[2048];
    for (uint32_t i = 0; i < n_rows(m); i++) {
        Row r = row_of(t, i);
        if (!r.n) continue;
        gather(t, r.off, row);
        memcpy((void *)(uintptr_t)r.global, row + r.first * m->elem_bytes, r.n * m->elem_bytes);
    }
}

static void run_reduce(EmuAsync *a)
{
    const Tile *t = (const void *)a->payload;
    const EmuTensorMap *m = &t->map;
    uint8_t row[2048];
    for (uint32_t i = 0; i < n_rows(m); i++) {
        Row r = row_of(t, i);
        if (!r.n) continue;
        gather(t, r.off, row);
        emu_reduce((uint8_t *)(uintptr_t)r.global, row + r.first * m->elem_bytes, r.n, m->type, t->op);
    }
}

/* ---- issue ------------------------------------------------------------------------------------------------------- */

static int take_map(EmuWarp *w, const EmuInstr *in, const EmuOperand *o, const EmuOperand *coords, uint32_t lane, Tile *t)
{
    uint64_t addr = emu_reg64(w, o->reg, (int)lane) + (uint64_t)(int64_t)o->off;
    const uint8_t *p = emu_global(w, in, addr, 128, 64, 0);
    if (!p) return EMU_STOP;
    const char *bad = emu_tensormap_decode(p, &t->map);
    if (bad) return emu_find(w, in, EMU_FIND_TENSORMAP, "the tensor map at 0x%llx: %s", (unsigned long long)addr, bad);
    if (t->map.rank != in->mod[0])
        return emu_find(w, in, EMU_FIND_TENSORMAP, "a %u-dimensional copy with a tensor map of rank %u", in->mod[0], t->map.rank);
    for (uint32_t d = 0; d < t->map.rank; d++) t->at[d] = (int32_t)emu_reg(w, emu_vec(w, coords, d), 0)[lane];
    return EMU_NEXT;
}

/* Shared side: alignment and bounds of the whole box. */
static EmuCta *take_shared(EmuWarp *w, const EmuInstr *in, const EmuOperand *o, uint32_t lane, int own, Tile *t)
{
    uint32_t addr = emu_reg(w, o->reg, 0)[lane] + (uint32_t)o->off;
    return emu_shared(w, in, addr, t->map.box_bytes, 128, own, &t->off);
}

static void check_sources(EmuWarp *w, const EmuInstr *in, uint32_t exec, const EmuOperand *map, const EmuOperand *coords,
                          const EmuOperand *shared)
{
    emu_src_check(w, in, map->reg, 2, exec, EMU_USE_ADDRESS);
    for (int32_t i = 0; i < coords->off; i++) emu_src_check(w, in, emu_vec(w, coords, (uint32_t)i), 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, shared->reg, 1, exec, EMU_USE_ADDRESS);
}

/* Whether lane `b` issues the same copy as lane `a`. */
static int same_copy(EmuWarp *w, const EmuOperand *map, const EmuOperand *coords, const EmuOperand *shared, uint32_t a, uint32_t b)
{
    int same = emu_reg64(w, map->reg, (int)a) == emu_reg64(w, map->reg, (int)b) &&
               emu_reg(w, shared->reg, 0)[a] == emu_reg(w, shared->reg, 0)[b];
    for (int32_t i = 0; i < coords->off; i++) {
        const uint32_t *c = emu_reg(w, emu_vec(w, coords, (uint32_t)i), 0);
        same &= c[a] == c[b];
    }
    return same;
}

static void submit(EmuWarp *w, const EmuInstr *in, int queue, void (*run)(EmuAsync *), const Tile *t)
{
    EmuAsync *a = emu_async_new(w, in, queue, run, sizeof(Tile));
    memcpy(a->payload, t, sizeof(Tile));
    emu_async_submit(a);
}

static void poison_tile(const Tile *t)
{
    for (uint32_t k = 0; k < t->n_ctas; k++) memset(t->cta[k]->smem + t->off, 0xFF, t->map.box_bytes);
}

/* Destinations and mbarriers: one CTA, or those of the multicast mask at the same offsets. With cta_group::2 the mbarrier
 * is in the CTA of the destination's pair that its address names. */
static int take_targets(EmuWarp *w, const EmuInstr *in, uint32_t lane, EmuCta *dst, Tile *t)
{
    const EmuOperand *mb = &in->op[3];
    int pair = in->mod[1] & EMU_BULK_CTA_GROUP2, multicast = in->mod[1] & EMU_BULK_MULTICAST;
    EmuCta *bar = emu_shared(w, in, emu_reg(w, mb->reg, 0)[lane] + (uint32_t)mb->off, 8, 8, 0, &t->mbar_off);
    if (!bar) return EMU_STOP;
    if (!multicast) {
        if (pair ? (bar->rank ^ dst->rank) > 1 : bar != dst)
            return emu_find(w, in, EMU_FIND_MBAR_INVALID, "the mbarrier is in CTA rank %u, the destination in CTA rank %u%s", bar->rank,
                            dst->rank, pair ? "; they must be in one pair" : "; only .cta_group::2 may signal the other CTA of the pair");
        t->cta[0] = dst;
        t->mbar_cta[0] = bar;
        t->n_ctas = 1;
        return EMU_NEXT;
    }
    uint32_t mask = emu_reg(w, in->op[4].reg, 0)[lane] & 0xFFFF;
    if (!mask || mask >> w->cluster->n_ctas)
        return emu_find(w, in, EMU_FIND_OOB, "multicast to CTA mask 0x%x in a cluster of %u", mask, w->cluster->n_ctas);
    for (; mask; mask &= mask - 1) {
        uint32_t rank = (uint32_t)__builtin_ctz(mask);
        t->cta[t->n_ctas] = emu_cta_of_rank(w->cluster, rank);
        t->mbar_cta[t->n_ctas++] = emu_cta_of_rank(w->cluster, pair ? (rank & ~1u) | (bar->rank & 1) : rank);
    }
    return EMU_NEXT;
}

static int load_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane)
{
    Tile t = {0};
    if (take_map(w, in, &in->op[1], &in->op[2], lane, &t)) return EMU_STOP;
    EmuCta *dst = take_shared(w, in, &in->op[0], lane, !(in->mod[1] & EMU_BULK_DST_CLUSTER), &t);
    if (!dst || take_targets(w, in, lane, dst, &t) || global_check(w, in, &t, 0)) return EMU_STOP;
    for (uint32_t k = 0; k < t.n_ctas; k++) {
        EmuActor actor = emu_actor_mbar(w, in, t.mbar_cta[k], t.mbar_off);
        if (emu_smem_write(&actor, t.cta[k], t.off, t.map.box_bytes)) return EMU_STOP;
    }
    emu_count_engine(w, EMU_E_TMA_LOAD, t.map.box_bytes);
    if (w->launch->late) poison_tile(&t);
    submit(w, in, EMU_Q_TMA, run_load, &t);
    return EMU_NEXT;
}

static int emu_h_tma_load(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    check_sources(w, in, exec, &in->op[1], &in->op[2], &in->op[0]);
    emu_src_check(w, in, in->op[3].reg, 1, exec, EMU_USE_ADDRESS);
    if (in->mod[1] & EMU_BULK_MULTICAST) emu_src_check(w, in, in->op[4].reg, 1, exec, EMU_USE_ADDRESS);
    uint32_t first = (uint32_t)emu_lowest(exec);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        if (lane != first && same_copy(w, &in->op[1], &in->op[2], &in->op[0], first, lane)) {
            if (emu_find(w, in, EMU_FIND_UNELECTED, "a TMA load by lanes %08x; one elected thread must issue it", exec)) return EMU_STOP;
            continue;
        }
        if (load_lane(w, in, lane)) return EMU_STOP;
    }
    return EMU_NEXT;
}

/* Reads of the box: whole when every row is inside, else row by row, since rows outside move nothing. */
static int check_source(const EmuActor *act, const Tile *t)
{
    const EmuTensorMap *m = &t->map;
    uint32_t rows = n_rows(m), all = 1;
    for (uint32_t i = 0; i < rows && all; i++) all = row_of(t, i).n == m->box[0];
    if (all) return emu_smem_read(act, t->cta[0], t->off, m->box_bytes);
    for (uint32_t i = 0; i < rows; i++) {
        Row r = row_of(t, i);
        if (r.n == m->box[0] && emu_smem_read(act, t->cta[0], t->off + r.off, m->row_bytes)) return EMU_STOP;
        if (r.n == m->box[0] || !r.n) continue;
        uint32_t step = piece_bytes(m) == 8 ? 8 : 16, end = (r.first + r.n) * m->elem_bytes;
        for (uint32_t b = r.first * m->elem_bytes / step * step; b < end; b += step)
            if (emu_smem_read(act, t->cta[0], emu_swizzle(t->off + r.off + b, m->swizzle), step)) return EMU_STOP;
    }
    return EMU_NEXT;
}

static int store_lane(EmuWarp *w, const EmuInstr *in, uint32_t lane, int op)
{
    Tile t = {.op = (int)in->mod[2], .n_ctas = 1};
    if (take_map(w, in, &in->op[0], &in->op[1], lane, &t)) return EMU_STOP;
    t.cta[0] = take_shared(w, in, &in->op[2], lane, 1, &t);
    if (!t.cta[0]) return EMU_STOP;
    if (op == REDUCE && !emu_reduce_supported(t.map.type, t.op))
        return emu_find(w, in, EMU_FIND_UNSUPPORTED, "this reduction operation does not exist for the element type of the tensor map");
    if (global_check(w, in, &t, 1)) return EMU_STOP;
    EmuActor actor = emu_actor_queue(w, in, EMU_Q_BULK);
    if (check_source(&actor, &t)) return EMU_STOP;
    emu_count_engine(w, op == REDUCE ? EMU_E_TMA_REDUCE : EMU_E_TMA_STORE, t.map.box_bytes);
    submit(w, in, EMU_Q_BULK, op == REDUCE ? run_reduce : run_store, &t);
    return EMU_NEXT;
}

static int store(EmuWarp *w, const EmuInstr *in, uint32_t exec, int op)
{
    check_sources(w, in, exec, &in->op[0], &in->op[1], &in->op[2]);
    uint32_t first = (uint32_t)emu_lowest(exec);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        if (lane != first && same_copy(w, &in->op[0], &in->op[1], &in->op[2], first, lane)) {
            if (op == REDUCE && emu_find(w, in, EMU_FIND_UNELECTED, "a TMA reduction by lanes %08x; one elected thread must issue it", exec))
                return EMU_STOP;
            continue; /* an identical store: hardware issues one per warp */
        }
        if (store_lane(w, in, lane, op)) return EMU_STOP;
    }
    return EMU_NEXT;
}

static int emu_h_tma_store(EmuWarp *w, const EmuInstr *in, uint32_t exec) { return store(w, in, exec, STORE); }
static int emu_h_tma_reduce(EmuWarp *w, const EmuInstr *in, uint32_t exec) { return store(w, in, exec, REDUCE); }

const EmuHandlerEntry emu_handlers_tma[] = {EMU_ENTRY(tma_load), EMU_ENTRY(tma_store), EMU_ENTRY(tma_reduce), {0}};
