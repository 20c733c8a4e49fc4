/* Instructions across the lanes of a warp (PTX ISA: shfl.sync, vote.sync, match.sync, elect.sync, redux.sync, activemask). */
#include <math.h>
#include <string.h>

#include "floats.h"
#include "lanes.h"

static void set_pred(EmuWarp *w, int32_t reg, uint32_t exec, uint32_t v)
{
    if (reg < 0) return;
    w->preds[reg] = (w->preds[reg] & ~exec) | (v & exec);
    w->pvalid[reg] |= exec;
}

static int emu_h_shfl(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t src[32], from[32], p = 0, valid = emu_src_check(w, in, in->op[2].reg, 1, exec, EMU_USE_VALUE), out_valid = 0;
    emu_src_check(w, in, in->op[3].reg, 1, exec, EMU_USE_VALUE);
    emu_src_check(w, in, in->op[4].reg, 1, exec, EMU_USE_VALUE);
    memcpy(src, emu_reg(w, in->op[2].reg, 0), sizeof(src));
    const uint32_t *B = emu_reg(w, in->op[3].reg, 0), *C = emu_reg(w, in->op[4].reg, 0);
    for (uint32_t l = 0; l < 32; l++) {
        uint32_t b = B[l] & 31, clamp = C[l] & 31, seg = C[l] >> 8 & 31;
        uint32_t max_lane = (l & seg) | (clamp & ~seg), j, ok;
        switch (in->mod[0]) {
        case EMU_SHFL_UP: j = l - b; ok = (int32_t)j >= (int32_t)max_lane; break;
        case EMU_SHFL_DOWN: j = l + b; ok = j <= max_lane; break;
        case EMU_SHFL_BFLY: j = l ^ b; ok = j <= max_lane; break;
        default: j = (l & seg) | (b & ~seg); ok = j <= max_lane; break;
        }
        from[l] = ok ? j & 31 : l;
        p |= ok << l;
        out_valid |= (valid >> from[l] & 1) << l;
        if ((exec >> l & 1) && !(exec >> from[l] & 1) && w->launch->checks &&
            emu_find(w, in, EMU_FIND_DIVERGENCE, "lane %u takes the value of lane %u, which does not take part", l, from[l]))
            return EMU_STOP;
    }
    if (in->op[0].reg >= 0) {
        emu_dst_begin(w, in, in->op[0].reg, 1, exec);
        uint32_t *d = emu_dst(w, in->op[0].reg, 0);
        EMU_LANES(exec, d[l] = src[from[l]]);
        emu_dst_done(w, in->op[0].reg, 1, exec, out_valid);
    }
    set_pred(w, in->op[1].reg, exec, p);
    return EMU_NEXT;
}

static int emu_h_vote(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t v = emu_pred(w, &in->op[1]) & exec;
    if (in->mod[0] == EMU_VOTE_BALLOT) {
        emu_dst_begin(w, in, in->op[0].reg, 1, exec);
        uint32_t *d = emu_dst(w, in->op[0].reg, 0);
        EMU_LANES(exec, d[l] = v);
        emu_dst_done(w, in->op[0].reg, 1, exec, 0xFFFFFFFFu);
        return EMU_NEXT;
    }
    int yes = in->mod[0] == EMU_VOTE_ALL ? v == exec : in->mod[0] == EMU_VOTE_ANY ? v != 0 : v == exec || v == 0;
    set_pred(w, in->op[0].reg, exec, yes ? exec : 0);
    return EMU_NEXT;
}

/* The leader is the lowest lane of the mask that executes it. */
static int emu_h_elect(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t mask = emu_uniform(w, &in->op[2], exec) & exec;
    if (!mask) mask = exec;
    int leader = emu_lowest(mask);
    if (in->op[0].reg >= 0) {
        emu_dst_begin(w, in, in->op[0].reg, 1, exec);
        uint32_t *d = emu_dst(w, in->op[0].reg, 0);
        EMU_LANES(exec, d[l] = (uint32_t)leader);
        emu_dst_done(w, in->op[0].reg, 1, exec, 0xFFFFFFFFu);
    }
    set_pred(w, in->op[1].reg, exec, 1u << leader);
    return EMU_NEXT;
}

static uint32_t combine(const EmuInstr *in, uint32_t a, uint32_t b)
{
    int sgn = in->mod[1] == EMU_T_S32;
    if (in->mod[1] == EMU_T_F32) { /* NaN loses unless .NaN; -0 < +0 */
        float x = f32_bits(a), y = f32_bits(b);
        if (x != x || y != y) {
            if ((in->mod[2] & EMU_FF_NAN) || (x != x && y != y)) return 0x7FFFFFFF;
            return x != x ? b : a;
        }
        int max = in->mod[0] == EMU_A_MAX;
        if (x == y) return max ? a & b : a | b;
        return (x > y) == max ? a : b;
    }
    switch (in->mod[0]) {
    case EMU_A_ADD: return a + b;
    case EMU_A_MIN: return sgn ? ((int32_t)a < (int32_t)b ? a : b) : (a < b ? a : b);
    case EMU_A_MAX: return sgn ? ((int32_t)a > (int32_t)b ? a : b) : (a > b ? a : b);
    case EMU_A_AND: return a & b;
    case EMU_A_OR: return a | b;
    default: return a ^ b;
    }
}

static int emu_h_redux(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t valid = emu_src_check(w, in, in->op[1].reg, 1, exec, EMU_USE_VALUE), have = 0, r = 0;
    const uint32_t *A = emu_reg(w, in->op[1].reg, 0);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t v = A[__builtin_ctz(m)];
        if (in->mod[2] & EMU_FF_ABS) v &= 0x7FFFFFFF;
        r = have ? combine(in, r, v) : v;
        have = 1;
    }
    emu_dst_begin(w, in, in->op[0].reg, 1, exec);
    uint32_t *d = emu_dst(w, in->op[0].reg, 0);
    EMU_LANES(exec, d[l] = r);
    emu_dst_done(w, in->op[0].reg, 1, exec, (valid & exec) == exec ? 0xFFFFFFFFu : 0);
    return EMU_NEXT;
}

static int emu_h_match(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    int wide = in->mod[1] == EMU_T_B64;
    emu_src_check(w, in, in->op[2].reg, wide ? 2 : 1, exec, EMU_USE_VALUE);
    uint32_t out[32], all = 1;
    for (uint32_t m = exec; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        uint64_t v = wide ? emu_reg64(w, in->op[2].reg, l) : emu_reg(w, in->op[2].reg, 0)[l];
        out[l] = 0;
        for (uint32_t k = exec; k; k &= k - 1) {
            int j = __builtin_ctz(k);
            uint64_t u = wide ? emu_reg64(w, in->op[2].reg, j) : emu_reg(w, in->op[2].reg, 0)[j];
            out[l] |= (uint32_t)(u == v) << j;
        }
        all &= out[l] == exec;
    }
    emu_dst_begin(w, in, in->op[0].reg, 1, exec);
    uint32_t *d = emu_dst(w, in->op[0].reg, 0);
    EMU_LANES(exec, d[l] = in->mod[0] ? (all ? exec : 0) : out[l]);
    emu_dst_done(w, in->op[0].reg, 1, exec, 0xFFFFFFFFu);
    set_pred(w, in->op[1].reg, exec, all ? exec : 0);
    return EMU_NEXT;
}

static int emu_h_activemask(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_dst_begin(w, in, in->op[0].reg, 1, exec);
    uint32_t *d = emu_dst(w, in->op[0].reg, 0);
    EMU_LANES(exec, d[l] = exec);
    emu_dst_done(w, in->op[0].reg, 1, exec, 0xFFFFFFFFu);
    return EMU_NEXT;
}

static int emu_h_bar_warp_sync(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)w;
    (void)in;
    (void)exec;
    return EMU_NEXT; /* the rendezvous of the member mask has happened before the handler is called */
}

const EmuHandlerEntry emu_handlers_warp_ops[] = {
    EMU_ENTRY(shfl), EMU_ENTRY(vote), EMU_ENTRY(elect), EMU_ENTRY(redux), EMU_ENTRY(match), EMU_ENTRY(activemask),
    EMU_ENTRY(bar_warp_sync), {0}};
