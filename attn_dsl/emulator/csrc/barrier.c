/* Named barriers, the cluster barrier, fences, setmaxnreg (PTX ISA: bar/barrier, barrier.cluster, fence, setmaxnreg). */
#include <string.h>

#include "core.h"

static uint32_t live_threads(const EmuCta *cta)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cta->n_warps; i++) n += cta->warps[i].live ? 32 : 0;
    return n;
}

/* Results of bar.red in one word: how many predicates were true, whether all, whether any. */
static uint32_t reduced(const EmuBarrier *b) { return b->red_pop | b->red_and << 16 | b->red_or << 17; }

static void complete(EmuCta *cta, uint32_t id, EmuBarrier *b)
{
    EmuCluster *c = cta->cluster;
    for (uint32_t i = 0; i < cta->n_warps; i++) {
        EmuWarp *x = &cta->warps[i];
        for (uint32_t k = 0; k < x->core->n_split; k++) {
            EmuSplit *s = &x->core->split[k];
            if (s->blocked != EMU_WAIT_BARRIER || s->object != id) continue;
            s->blocked = 0;
            s->resume = 1;
            s->info = reduced(b); /* the barrier may be in use again before this warp runs */
            emu_acquire(x, b->vc, b->avc);
        }
    }
    b->expected = b->arrived = b->all = 0;
    c->core->progress++;
}

/* Threads exit: barriers that wait for every thread of the CTA expect fewer, and so does the cluster barrier. */
static void cluster_check(EmuCluster *c);
void emu_barrier_exit(EmuWarp *w)
{
    for (uint32_t i = 0; i < EMU_N_BARRIERS; i++) {
        EmuBarrier *b = &w->cta->core->bar[i];
        if (!b->all || !b->arrived) continue;
        b->expected = live_threads(w->cta);
        if (b->arrived >= b->expected) complete(w->cta, i, b);
    }
    cluster_check(w->cluster);
}

/* One warp arrives. Returns EMU_NEXT and sets *done when that completes the barrier. */
static int arrive(EmuWarp *w, const EmuInstr *in, uint32_t exec, const EmuOperand *count, int wait, uint32_t *id, int *done)
{
    uint32_t a = emu_uniform(w, &in->op[0], exec);
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_VALUE);
    *id = a;
    if (a >= EMU_N_BARRIERS) return emu_find(w, in, EMU_FIND_BARRIER_COUNT, "named barrier %u; there are 0 to 15", a) ? EMU_STOP : EMU_NEXT;
    EmuBarrier *b = &w->cta->core->bar[a];
    uint32_t n = live_threads(w->cta), all = 1;
    if (count) {
        emu_src_check(w, in, count->reg, 1, exec, EMU_USE_VALUE);
        n = emu_uniform(w, count, exec);
        all = 0;
        if ((n == 0 || n % 32) &&
            emu_find(w, in, EMU_FIND_BARRIER_COUNT, "named barrier %u with a thread count of %u, which is not a multiple of 32", a, n))
            return EMU_STOP;
        if (n > w->cta->n_warps * 32 && emu_find(w, in, EMU_FIND_BARRIER_COUNT,
                                                 "named barrier %u expects %u threads; the CTA has %u", a, n, w->cta->n_warps * 32))
            return EMU_STOP;
    }
    if (b->expected && b->expected != n &&
        emu_find(w, in, EMU_FIND_BARRIER_COUNT, "named barrier %u: this warp expects %u threads, an earlier one %u", a, n, b->expected))
        return EMU_STOP;
    b->expected = n;
    b->all = all;
    b->arrived += exec == w->live ? 32 : (uint32_t)__builtin_popcount(exec);
    if (b->arrived > b->expected &&
        emu_find(w, in, EMU_FIND_BARRIER_COUNT, "named barrier %u: %u threads have arrived, %u were expected", a, b->arrived, b->expected))
        return EMU_STOP;
    emu_release(w, b->vc, b->avc);
    w->cluster->core->progress++;
    *done = b->arrived >= b->expected;
    if (*done) {
        if (wait) emu_acquire(w, b->vc, b->avc);
        complete(w->cta, a, b);
    }
    return EMU_NEXT;
}

static int emu_h_bar_sync(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuSplit *s = emu_split(w);
    if (s->resume) {
        s->resume = 0;
        return EMU_NEXT;
    }
    uint32_t id;
    int done = 0;
    if (arrive(w, in, exec, in->nops > 1 ? &in->op[1] : NULL, 1, &id, &done)) return EMU_STOP;
    if (done) return EMU_NEXT;
    s->info = w->cta->core->bar[id & 15].expected;
    return emu_block(w, in, EMU_WAIT_BARRIER, id);
}

static int emu_h_bar_arrive(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t id;
    int done = 0;
    return arrive(w, in, exec, &in->op[1], 0, &id, &done);
}

/* bar.red: a reduction of predicates over the threads of the barrier. */
static int emu_h_bar_red(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuSplit *s = emu_split(w);
    const EmuOperand *pred = &in->op[in->nops - 1];
    EmuInstr shifted = *in;
    shifted.op[0] = in->op[1];
    uint32_t id = emu_uniform(w, &in->op[1], exec) & 15;
    EmuBarrier *b = &w->cta->core->bar[id];
    uint32_t result = s->info;
    if (!s->resume) {
        uint32_t p = emu_pred(w, pred) & exec;
        if (!b->arrived) {
            b->red_pop = b->red_or = 0;
            b->red_and = 1;
        }
        b->red_pop += (uint32_t)__builtin_popcount(p);
        b->red_or |= p != 0;
        b->red_and &= p == exec;
        int done = 0;
        if (arrive(w, &shifted, exec, in->nops > 3 ? &in->op[2] : NULL, 1, &id, &done)) return EMU_STOP;
        if (!done) {
            s->info = b->expected;
            return emu_block(w, in, EMU_WAIT_BARRIER, id);
        }
        result = reduced(b);
    }
    s->resume = 0;
    if (in->mod[0] == 0) {
        emu_dst_begin(w, in, in->op[0].reg, 1, exec);
        uint32_t *d = emu_dst(w, in->op[0].reg, 0);
        EMU_LANES(exec, d[l] = result & 0xFFFF);
        emu_dst_done(w, in->op[0].reg, 1, exec, 0xFFFFFFFFu);
    } else {
        uint32_t v = result >> (in->mod[0] == 1 ? 16 : 17) & 1 ? exec : 0;
        w->preds[in->op[0].reg] = (w->preds[in->op[0].reg] & ~exec) | v;
        w->pvalid[in->op[0].reg] |= exec;
    }
    return EMU_NEXT;
}

/* The open phase completes when every live lane of the cluster has arrived. */
static void cluster_check(EmuCluster *c)
{
    EmuClusterCore *cc = c->core;
    uint32_t arrived = 0, expected = 0;
    for (uint32_t i = 0; i < cc->n_warps; i++) {
        EmuWarp *x = cc->order[i];
        expected += (uint32_t)__builtin_popcount(x->live);
        arrived += (uint32_t)__builtin_popcount(x->live & x->core->cluster_arrived);
    }
    cc->cl_arrived = arrived;
    cc->cl_expected = expected;
    if (arrived < expected || !expected) return;
    for (uint32_t i = 0; i < cc->n_warps; i++) cc->order[i]->core->cluster_arrived = 0;
    cc->cl_phase++;
    cc->cl_arrived = 0;
    emu_wake(c, EMU_WAIT_CLUSTER, 0);
}

static int emu_h_cluster_arrive(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuClusterCore *cc = w->cluster->core;
    if ((w->core->cluster_arrived & exec) &&
        emu_find(w, in, EMU_FIND_BARRIER_COUNT, "lanes %08x arrive twice in one phase of the cluster barrier",
                 w->core->cluster_arrived & exec))
        return EMU_STOP;
    if (!in->mod[0])
        emu_release(w, cc->cl_vc, cc->cl_avc);
    else
        emu_release_fenced(w, cc->cl_vc, cc->cl_avc);
    w->core->cluster_arrived |= exec;
    w->core->cluster_phase = cc->cl_phase + 1;
    cc->progress++;
    cluster_check(w->cluster);
    return EMU_NEXT;
}

static int emu_h_cluster_wait(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuClusterCore *cc = w->cluster->core;
    (void)exec;
    if (cc->cl_phase < w->core->cluster_phase) return emu_block(w, in, EMU_WAIT_CLUSTER, 0);
    emu_acquire(w, cc->cl_vc, cc->cl_avc);
    return EMU_NEXT;
}

static int emu_h_fence(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)exec;
    if (!w->launch->checks) return EMU_NEXT;
    if (in->mod[0] == EMU_FENCE_PROXY_ASYNC && in->mod[1] != 1) {
        emu_vc_join(w->cluster, w->avc, w->vc);
        w->vc[w->agent]++;
    }
    if (in->mod[0] == EMU_FENCE_MEMBAR) {
        emu_vc_join(w->cluster, w->core->fence_vc, w->vc);
        emu_vc_join(w->cluster, w->core->fence_avc, w->avc);
        w->vc[w->agent]++;
    }
    if (in->mod[0] == EMU_FENCE_MBARRIER_INIT) w->core->fence_vc[w->core->init_agent] = w->core->init_clock;
    if (in->mod[0] == EMU_FENCE_MBARRIER_INIT || in->mod[0] == EMU_FENCE_PROXY_ASYNC) {
        EmuCtaCore *cc = w->cta->core;
        for (uint32_t i = 0; i < cc->n_mbars; i++)
            if (cc->mbars[i]->init_warp == w->index) cc->mbars[i]->init_fenced = 1;
    }
    return EMU_NEXT;
}

/* The register file holds 64 K registers per SM; a CTA's warps may not ask for more in all. */
static int emu_h_setmaxnreg(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)exec;
    w->core->max_regs = in->mod[1];
    uint32_t total = 0;
    for (uint32_t i = 0; i < w->cta->n_warps; i++) {
        if (!w->cta->warps[i].core->max_regs) return EMU_NEXT; /* not every warp has said what it needs */
        total += w->cta->warps[i].core->max_regs * 32;
    }
    if (total > 65536)
        return emu_find(w, in, EMU_FIND_REGISTER_BUDGET,
                        "after setmaxnreg the warps of the CTA hold %u registers; an SM has 65536", total)
                   ? EMU_STOP
                   : EMU_NEXT;
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_barrier[] = {
    EMU_ENTRY(bar_sync),     EMU_ENTRY(bar_arrive), EMU_ENTRY(bar_red),   EMU_ENTRY(cluster_arrive),
    EMU_ENTRY(cluster_wait), EMU_ENTRY(fence),      EMU_ENTRY(setmaxnreg), {0}};
