/* Moves, packing, special registers and address conversion (PTX ISA: "Data Movement and Conversion": mov, cvta, mapa). */
#include <time.h>

#include "lanes.h"

LANE1(mov_b16, 1, 1, uint32_t, a)
LANE1(mov_b32, 1, 1, uint32_t, a)
LANE1(mov_b64, 2, 2, uint64_t, a)

static inline void copy_slot(uint32_t *d, const uint32_t *s, uint32_t exec) { EMU_LANES(exec, d[l] = s[l]); }

LANE_HEAD(mov_b128)
{
    uint32_t valid = checked ? lane_src(w, in, 1, 4, exec) : 0xFFFFFFFFu, t[4][32];
    if (checked) emu_dst_begin(w, in, in->op[0].reg, 4, exec);
    for (uint32_t k = 0; k < 4; k++) copy_slot(t[k], emu_reg(w, in->op[1].reg, k), 0xFFFFFFFFu);
    for (uint32_t k = 0; k < 4; k++) copy_slot(emu_dst(w, in->op[0].reg, k), t[k], exec);
    LANE_TAIL(4)
}
LANE_HANDLERS(mov_b128)

/* {low, high} -> 64 bits, the common case. */
static inline __attribute__((always_inline)) int pack_pair(EmuWarp *w, const EmuInstr *in, uint32_t exec, int checked)
{
    int32_t lo = emu_vec(w, &in->op[1], 0), hi = emu_vec(w, &in->op[1], 1);
    uint32_t valid = 0xFFFFFFFFu;
    if (checked) {
        if (lo >= 0) valid = w->rstate[lo].valid;
        if (hi >= 0) valid &= w->rstate[hi].valid;
        if (EMU_UNLIKELY((valid & exec) != exec))
            valid = emu_src_check(w, in, lo, 1, exec, EMU_USE_VALUE) & emu_src_check(w, in, hi, 1, exec, EMU_USE_VALUE);
        emu_dst_begin(w, in, in->op[0].reg, 2, exec);
    }
    const uint32_t *A = emu_reg(w, lo, 0), *B = emu_reg(w, hi, 0);
    uint32_t *D = emu_dst(w, in->op[0].reg, 0);
    LANE_LOOP({
        uint32_t a = A[l], b = B[l];
        D[l] = a;
        D[32 + l] = b;
    })
    LANE_TAIL(2)
}

static inline __attribute__((always_inline)) int unpack_pair(EmuWarp *w, const EmuInstr *in, uint32_t exec, int checked)
{
    int32_t lo = emu_vec(w, &in->op[0], 0), hi = emu_vec(w, &in->op[0], 1);
    uint32_t valid = checked ? lane_src(w, in, 1, 2, exec) : 0xFFFFFFFFu;
    if (checked) {
        emu_dst_begin(w, in, lo, 1, exec);
        emu_dst_begin(w, in, hi, 1, exec);
    }
    const uint32_t *A = emu_reg(w, in->op[1].reg, 0), *B = emu_reg(w, in->op[1].reg, 1);
    uint32_t *D = emu_dst(w, lo, 0), *E = emu_dst(w, hi, 0);
    LANE_LOOP({
        uint32_t a = A[l], b = B[l];
        D[l] = a;
        E[l] = b;
    })
    if (checked) {
        emu_dst_done(w, lo, 1, exec, valid);
        emu_dst_done(w, hi, 1, exec, valid);
    }
    return EMU_NEXT;
}

/* Elements are gathered before anything is written: source and destination slots may overlap. */
LANE_HEAD(mov_pack)
{
    if (in->mod[0] == 32 && in->mod[1] == 64) return pack_pair(w, in, exec, checked);
    uint32_t bits = in->mod[0], total = in->mod[1], n = total / bits, valid = 0xFFFFFFFFu, t[4][32];
    uint32_t slots = total > 32 ? total / 32 : 1, words = bits > 32 ? bits / 32 : 1;
    for (uint32_t i = 0; checked && i < n; i++) {
        int32_t reg = emu_vec(w, &in->op[1], i);
        if (reg >= 0) valid &= emu_src_check(w, in, reg, words, exec, EMU_USE_VALUE);
    }
    if (bits >= 32) {
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < words; k++)
                copy_slot(t[i * words + k], emu_reg(w, emu_vec(w, &in->op[1], i), k), 0xFFFFFFFFu);
    } else {
        uint32_t per = 32 / bits, mask = (1u << bits) - 1;
        for (uint32_t s = 0; s < slots; s++) {
            for (int l = 0; l < 32; l++) t[s][l] = 0;
            for (uint32_t i = s * per; i < n && i < (s + 1) * per; i++) {
                const uint32_t *a = emu_reg(w, emu_vec(w, &in->op[1], i), 0);
                uint32_t shift = (i - s * per) * bits;
                for (int l = 0; l < 32; l++) t[s][l] |= (a[l] & mask) << shift;
            }
        }
    }
    if (checked) emu_dst_begin(w, in, in->op[0].reg, slots, exec);
    for (uint32_t s = 0; s < slots; s++) copy_slot(emu_dst(w, in->op[0].reg, s), t[s], exec);
    LANE_TAIL(slots)
}
LANE_HANDLERS(mov_pack)

LANE_HEAD(mov_unpack)
{
    if (in->mod[0] == 32 && in->mod[1] == 64 && emu_vec(w, &in->op[0], 0) >= 0 && emu_vec(w, &in->op[0], 1) >= 0)
        return unpack_pair(w, in, exec, checked);
    uint32_t bits = in->mod[0], total = in->mod[1], n = total / bits, t[4][32];
    uint32_t slots = total > 32 ? total / 32 : 1, words = bits > 32 ? bits / 32 : 1;
    uint32_t valid = checked ? lane_src(w, in, 1, slots, exec) : 0xFFFFFFFFu;
    for (uint32_t s = 0; s < slots; s++) copy_slot(t[s], emu_reg(w, in->op[1].reg, s), 0xFFFFFFFFu);
    for (uint32_t i = 0; i < n; i++) {
        int32_t reg = emu_vec(w, &in->op[0], i);
        if (reg == EMU_SINK) continue;
        if (checked) emu_dst_begin(w, in, reg, words, exec);
        if (bits >= 32) {
            for (uint32_t k = 0; k < words; k++) copy_slot(emu_dst(w, reg, k), t[i * words + k], exec);
        } else {
            uint32_t shift = i * bits % 32, mask = (1u << bits) - 1, *d = emu_dst(w, reg, 0);
            const uint32_t *s = t[i * bits / 32];
            EMU_LANES(exec, d[l] = s[l] >> shift & mask);
        }
        if (checked) emu_dst_done(w, reg, words, exec, valid);
    }
    return EMU_NEXT;
}
LANE_HANDLERS(mov_unpack)

/* lea: d = reg + off, for addresses of shared symbols. */
LANE1(lea_b32, 1, 1, uint32_t, a + (uint32_t)in->op[1].off)
LANE1(lea_b64, 2, 1, uint32_t, (uint64_t)(uint32_t)(a + (uint32_t)in->op[1].off))

static int store64(EmuWarp *w, const EmuInstr *in, uint32_t exec, uint64_t value)
{
    emu_dst_begin(w, in, in->op[0].reg, 2, exec);
    uint32_t *d = emu_dst(w, in->op[0].reg, 0);
    EMU_LANES(exec, d[l] = (uint32_t)value; d[32 + l] = (uint32_t)(value >> 32));
    emu_dst_done(w, in->op[0].reg, 2, exec, 0xFFFFFFFFu);
    return EMU_NEXT;
}

static int emu_h_param_addr(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    return store64(w, in, exec, (uint64_t)(uintptr_t)w->launch->params + in->mod[0]);
}

/* An address inside the thread's local memory; cvta.local makes it generic. */
static int emu_h_local_addr(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    if (in->mod[1] == EMU_T_B64 || in->mod[1] == EMU_T_U64 || in->mod[1] == EMU_T_S64) return store64(w, in, exec, in->mod[0]);
    emu_dst_begin(w, in, in->op[0].reg, 1, exec);
    uint32_t *d = emu_dst(w, in->op[0].reg, 0);
    EMU_LANES(exec, d[l] = in->mod[0]);
    emu_dst_done(w, in->op[0].reg, 1, exec, 0xFFFFFFFFu);
    return EMU_NEXT;
}

static uint64_t special(const EmuWarp *w, uint32_t code, uint32_t lane)
{
    const EmuLaunch *g = w->launch;
    uint32_t t = w->index * 32 + lane, rank = w->cta->rank;
    switch (code) {
    case EMU_SR_TID_X: return t % g->block[0];
    case EMU_SR_TID_Y: return t / g->block[0] % g->block[1];
    case EMU_SR_TID_Z: return t / g->block[0] / g->block[1];
    case EMU_SR_NTID_X: case EMU_SR_NTID_Y: case EMU_SR_NTID_Z: return g->block[code - EMU_SR_NTID_X];
    case EMU_SR_CTAID_X: case EMU_SR_CTAID_Y: case EMU_SR_CTAID_Z: return w->cta->ctaid[code - EMU_SR_CTAID_X];
    case EMU_SR_NCTAID_X: case EMU_SR_NCTAID_Y: case EMU_SR_NCTAID_Z: return g->grid[code - EMU_SR_NCTAID_X];
    case EMU_SR_LANEID: return lane;
    case EMU_SR_WARPID: return w->index;
    case EMU_SR_NWARPID: return w->cta->n_warps;
    case EMU_SR_SMID: return rank;
    case EMU_SR_NSMID: return w->prog->target >= 100 ? 148 : 132;
    case EMU_SR_CLUSTERID_X: case EMU_SR_CLUSTERID_Y: case EMU_SR_CLUSTERID_Z: return w->cluster->id[code - EMU_SR_CLUSTERID_X];
    case EMU_SR_NCLUSTERID_X: case EMU_SR_NCLUSTERID_Y: case EMU_SR_NCLUSTERID_Z:
        return g->grid[code - EMU_SR_NCLUSTERID_X] / g->cluster[code - EMU_SR_NCLUSTERID_X];
    case EMU_SR_CLUSTER_CTAID_X: return rank % g->cluster[0];
    case EMU_SR_CLUSTER_CTAID_Y: return rank / g->cluster[0] % g->cluster[1];
    case EMU_SR_CLUSTER_CTAID_Z: return rank / g->cluster[0] / g->cluster[1];
    case EMU_SR_CLUSTER_NCTAID_X: case EMU_SR_CLUSTER_NCTAID_Y: case EMU_SR_CLUSTER_NCTAID_Z:
        return g->cluster[code - EMU_SR_CLUSTER_NCTAID_X];
    case EMU_SR_CLUSTER_CTARANK: return rank;
    case EMU_SR_CLUSTER_NCTARANK: return w->cluster->n_ctas;
    case EMU_SR_CLOCK: case EMU_SR_CLOCK64: return w->cluster->core->instructions;
    case EMU_SR_LANEMASK_EQ: return 1u << lane;
    case EMU_SR_LANEMASK_LT: return (1u << lane) - 1;
    case EMU_SR_LANEMASK_LE: return (2ull << lane) - 1;
    case EMU_SR_LANEMASK_GT: return ~((2ull << lane) - 1) & 0xFFFFFFFFu;
    case EMU_SR_LANEMASK_GE: return ~((1ull << lane) - 1) & 0xFFFFFFFFu;
    case EMU_SR_DYNAMIC_SMEM_SIZE: return g->dyn_smem;
    case EMU_SR_TOTAL_SMEM_SIZE: return w->cta->smem_size;
    default: {
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
    }
    }
}

static int emu_h_mov_sreg(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t wide = in->mod[1] == EMU_T_U64 || in->mod[1] == EMU_T_B64 || in->mod[1] == EMU_T_S64;
    emu_dst_begin(w, in, in->op[0].reg, 1 + wide, exec);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(m);
        uint64_t v = special(w, in->mod[0], l);
        emu_dst(w, in->op[0].reg, 0)[l] = (uint32_t)v;
        if (wide) emu_dst(w, in->op[0].reg, 1)[l] = (uint32_t)(v >> 32);
    }
    emu_dst_done(w, in->op[0].reg, 1 + wide, exec, 0xFFFFFFFFu);
    return EMU_NEXT;
}

/* Generic address of an address in `space`, or back. Global and parameter addresses are host addresses already. */
static uint64_t convert_address(uint64_t a, uint32_t space, int to)
{
    if (space == EMU_S_SHARED || space == EMU_S_SHARED_CLUSTER) return to ? (uint32_t)a : EMU_SHARED_WINDOW | (uint32_t)a;
    if (space == EMU_S_LOCAL) return to ? (uint32_t)a : EMU_LOCAL_WINDOW | (uint32_t)a;
    return a;
}

static int emu_h_cvta(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t valid = emu_src_check(w, in, in->op[1].reg, in->mod[2] == 64 ? 2 : 1, exec, EMU_USE_VALUE);
    uint32_t n = in->mod[2] == 64 ? 2 : 1;
    emu_dst_begin(w, in, in->op[0].reg, n, exec);
    for (uint32_t m = exec; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        uint64_t a = n == 2 ? emu_reg64(w, in->op[1].reg, l) : emu_reg(w, in->op[1].reg, 0)[l];
        a = convert_address(a + (uint64_t)(int64_t)in->op[1].off, in->mod[0], in->mod[1] == 1);
        emu_dst(w, in->op[0].reg, 0)[l] = (uint32_t)a;
        if (n == 2) emu_dst(w, in->op[0].reg, 1)[l] = (uint32_t)(a >> 32);
    }
    emu_dst_done(w, in->op[0].reg, n, exec, valid);
    return EMU_NEXT;
}

/* mapa: the address of the same place in another CTA of the cluster. */
static int emu_h_mapa(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t n = in->mod[0] == 64 ? 2 : 1;
    uint32_t valid = emu_src_check(w, in, in->op[1].reg, n, exec, EMU_USE_VALUE) &
                     emu_src_check(w, in, in->op[2].reg, 1, exec, EMU_USE_VALUE);
    emu_dst_begin(w, in, in->op[0].reg, n, exec);
    for (uint32_t m = exec; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        uint32_t a = emu_reg(w, in->op[1].reg, 0)[l] + (uint32_t)in->op[1].off, r = emu_reg(w, in->op[2].reg, 0)[l];
        uint32_t high = n == 2 ? emu_reg(w, in->op[1].reg, 1)[l] : 0;
        emu_dst(w, in->op[0].reg, 0)[l] = (a & 0x00FFFFFF) | r << 24;
        if (n == 2) emu_dst(w, in->op[0].reg, 1)[l] = high;
    }
    emu_dst_done(w, in->op[0].reg, n, exec, valid);
    return EMU_NEXT;
}

LANE1(getctarank, 1, 1, uint32_t, a >> 24)

static int emu_h_isspacep(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint64_t params = (uint64_t)(uintptr_t)w->launch->params;
    uint32_t r = 0, valid = emu_src_check(w, in, in->op[1].reg, 2, exec, EMU_USE_VALUE);
    for (int l = 0; l < 32; l++) {
        uint64_t a = emu_reg64(w, in->op[1].reg, l);
        int shared = EMU_IS_SHARED(a), local = a >> 48 == 0xFE, yes;
        switch (in->mod[0]) {
        case EMU_S_SHARED: yes = shared && ((uint32_t)a >> 24) == w->cta->rank; break;
        case EMU_S_SHARED_CLUSTER: yes = shared; break;
        case EMU_S_LOCAL: yes = local; break;
        case EMU_S_PARAM: yes = a - params < w->launch->core->param_bytes; break;
        case EMU_S_CONST: yes = 0; break; /* constant memory is not modelled */
        default: yes = !shared && !local; /* the window of the parameters lies in that of global memory */
        }
        r |= (uint32_t)yes << l;
    }
    w->preds[in->op[0].reg] = (w->preds[in->op[0].reg] & ~exec) | (r & exec);
    w->pvalid[in->op[0].reg] = (w->pvalid[in->op[0].reg] & ~exec) | (valid & exec);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_move[] = {
    LANE_ENTRY(mov_b16), LANE_ENTRY(mov_b32),   LANE_ENTRY(mov_b64),   LANE_ENTRY(mov_b128), LANE_ENTRY(mov_pack),
    LANE_ENTRY(mov_unpack), LANE_ENTRY(lea_b32), LANE_ENTRY(lea_b64),  EMU_ENTRY(param_addr), EMU_ENTRY(local_addr),
    EMU_ENTRY(mov_sreg), EMU_ENTRY(cvta),       EMU_ENTRY(mapa),       LANE_ENTRY(getctarank), EMU_ENTRY(isspacep), {0}};
