/* mbarrier objects (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"). The state lives
 * outside shared memory; the object's 8 bytes hold a fixed pattern so that data written over it is found. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

EmuMbar *emu_mbar_at(EmuCta *cta, uint32_t off)
{
    if (off % 8 || off + 8 > cta->smem_size) return NULL;
    uint16_t i = cta->core->mbar_index[off / 8];
    if (!i) return NULL;
    EmuMbar *m = cta->core->mbars[i - 1];
    return m->live ? m : NULL;
}

static EmuMbar *mbar_make(EmuWarp *w, EmuCta *cta, uint32_t off)
{
    EmuCtaCore *cc = cta->core;
    if (cc->mbar_index[off / 8]) return cc->mbars[cc->mbar_index[off / 8] - 1];
    if (cc->n_mbars == cc->cap_mbars) {
        cc->cap_mbars = cc->cap_mbars ? cc->cap_mbars * 2 : 64;
        cc->mbars = realloc(cc->mbars, cc->cap_mbars * sizeof(EmuMbar *));
        for (uint32_t i = cc->n_mbars; i < cc->cap_mbars; i++) cc->mbars[i] = NULL;
    }
    EmuMbar *m = cc->mbars[cc->n_mbars];
    uint32_t cap = w->cluster->core->cap_agents;
    if (!m) {
        m = cc->mbars[cc->n_mbars] = calloc(1, sizeof(*m));
        m->vc = calloc(cap, 4);
        m->avc = calloc(cap, 4);
    }
    uint32_t *vc = m->vc, *avc = m->avc;
    memset(m, 0, sizeof(*m));
    m->vc = vc;
    m->avc = avc;
    memset(vc, 0, cap * 4);
    memset(avc, 0, cap * 4);
    m->off = off;
    m->agent = emu_agent_new(w->cluster, 8, cta->rank, 0, off);
    cc->mbar_index[off / 8] = (uint16_t)(++cc->n_mbars);
    return m;
}

void emu_trace_mbar(EmuWarp *w, const EmuInstr *in, EmuCta *cta, EmuMbar *m, int wait)
{
    EmuLaunchCore *lc = w->launch->core;
    if (EMU_LIKELY(!lc->uses) || !in) return;
    const uint32_t *g = w->launch->grid;
    uint32_t linear = cta->ctaid[0] + g[0] * (cta->ctaid[1] + g[1] * cta->ctaid[2]), tries = 0;
    uint32_t phase = (uint32_t)m->completed + !wait;
    uint32_t i = (in->line * 2654435761u ^ m->off * 40503u ^ linear * 7919u) % EMU_MAX_USES;
    pthread_mutex_lock(&lc->lock);
    EmuMbarUse *u = &lc->uses[i];
    while (u->executed && (u->line != in->line || u->off != m->off || u->cta != linear) && ++tries < EMU_MAX_USES) {
        i = (i + 1) % EMU_MAX_USES;
        u = &lc->uses[i];
    }
    if (!u->executed) *u = (EmuMbarUse){.line = in->line, .off = m->off, .cta = linear, .phase = phase};
    u->executed++;
    u->depended += wait && m->completed;
    if (wait ? phase > u->phase : phase < u->phase) u->phase = phase;
    EmuWarpCore *c = w->core;
    uint32_t k = 0;
    while (k < c->n_waited && c->waited[k] != i) k++;
    if (wait && k == c->n_waited && k < 64) c->waited[c->n_waited++] = (uint16_t)i;
    pthread_mutex_unlock(&lc->lock);
}

/* An instruction with an effect beyond registers: noted at every wait this warp has passed. */
void emu_trace_effect(EmuWarp *w, const EmuInstr *in)
{
    EmuLaunchCore *lc = w->launch->core;
    if (in->cls < EMU_C_SHARED || in->cls == EMU_C_PARAM || in->cls == EMU_C_FENCE || in->cls == EMU_C_WARP || in->cls == EMU_C_BRANCH) return;
    if (in->cls == EMU_C_OTHER || !w->core->n_waited) return;
    pthread_mutex_lock(&lc->lock);
    for (uint32_t k = 0; k < w->core->n_waited; k++) {
        EmuMbarUse *u = &lc->uses[w->core->waited[k]];
        uint32_t n = u->n_after < EMU_USE_AFTER ? u->n_after : EMU_USE_AFTER, j = 0;
        if (u->line == in->line) continue;
        while (j < n && u->after[j] != in->line) j++;
        if (j < n) continue;
        if (n < EMU_USE_AFTER) u->after[n] = in->line;
        u->n_after++;
    }
    pthread_mutex_unlock(&lc->lock);
}

/* The object an instruction names; reports one that is not initialised, or whose initialisation this warp has not seen. */
static EmuMbar *find(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off, int async)
{
    EmuMbar *m = emu_mbar_at(cta, off);
    if (!m) {
        emu_find(w, in, EMU_FIND_MBAR_INVALID, "no mbarrier was initialised at shared address 0x%x of CTA rank %u", off, cta->rank);
        return NULL;
    }
    if (!w->launch->checks) return m;
    EmuActor a = emu_actor_warp(w, in);
    if (EMU_UNLIKELY(!emu_ordered(&a, m->init_epoch))) {
        if (emu_find(w, in, EMU_FIND_RACE_SHARED,
                     "uses the mbarrier at 0x%x of CTA rank %u; its initialisation by warp %u is not ordered before", off,
                     cta->rank, m->init_warp))
            return NULL;
        m->init_epoch = 0;
    }
    if (EMU_UNLIKELY(!m->init_fenced && (async || cta != w->cta))) {
        if (emu_find(w, in, EMU_FIND_PROXY_FENCE,
                     "the mbarrier at 0x%x of CTA rank %u is used %s with no fence.mbarrier_init or fence.proxy.async after its initialisation",
                     off, cta->rank, async ? "by asynchronous work" : "from another CTA"))
            return NULL;
        m->init_fenced = 1;
    }
    return m;
}

static void complete_if_done(EmuWarp *w, const EmuInstr *in, EmuCta *cta, EmuMbar *m)
{
    if (m->pending || m->tx) return;
    EmuClusterCore *cc = w->cluster->core;
    m->phase ^= 1;
    m->pending = m->expected;
    m->completed++;
    m->clock++;
    m->arrivals = 0;
    if (w->launch->checks) m->vc[m->agent] = m->clock;
    uint64_t object = (uint64_t)cta->rank << 24 | m->off;
    for (uint32_t i = 0; i < cc->n_warps; i++) {
        EmuWarp *x = cc->order[i];
        if (x->cta != cta) continue;
        for (uint32_t k = 0; k < x->core->n_split; k++) {
            EmuSplit *s = &x->core->split[k];
            if (s->resume && s->in && s->object == object && s->in->fn && s->blocked == 0 && s->info == m->phase && w->launch->checks &&
                s->resume == 2)
                emu_find(x, s->in, EMU_FIND_MBAR_PHASE,
                         "the mbarrier at 0x%x has completed another phase before this wait saw the one it waits for", m->off);
            if (s->blocked == EMU_WAIT_MBAR && s->object == object && s->info != m->phase) {
                s->blocked = 0;
                s->resume = 2;
            }
        }
    }
    (void)in;
    cc->progress++;
}

static int arrive(EmuWarp *w, const EmuInstr *in, EmuCta *cta, EmuMbar *m, uint32_t n)
{
    emu_trace_mbar(w, in, cta, m, 0);
    if (EMU_UNLIKELY(n > m->pending)) {
        if (emu_find(w, in, EMU_FIND_MBAR_OVER_ARRIVAL,
                     "%u arrivals at the mbarrier at 0x%x of CTA rank %u, which expects only %u more in this phase (%u in all)", n,
                     m->off, cta->rank, m->pending, m->expected))
            return EMU_STOP;
        n = m->pending;
    }
    m->pending -= n;
    m->arrivals += n;
    w->cluster->core->progress++;
    complete_if_done(w, in, cta, m);
    return EMU_NEXT;
}

static void complete_tx(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off, uint32_t bytes, int async)
{
    EmuMbar *m = find(w, in, cta, off, async);
    if (!m) return;
    if (cta != w->cta && w->launch->checks) emu_remote_access(cta, in, EMU_EPOCH(m->agent, m->clock + 1));
    m->tx -= bytes;
    w->cluster->core->progress++;
    complete_if_done(w, in, cta, m);
}

void emu_mbar_complete_tx(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off, uint32_t bytes)
{
    complete_tx(w, in, cta, off, bytes, 1);
}

void emu_mbar_arrive_queue(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off, int queue, uint32_t clock)
{
    EmuMbar *m = find(w, in, cta, off, queue != EMU_Q_CPASYNC);
    if (!m) return;
    if (w->launch->checks) {
        if (cta != w->cta && w->queue_agent[queue]) emu_remote_access(cta, in, EMU_EPOCH(w->queue_agent[queue], clock));
        emu_vc_join(w->cluster, m->vc, w->vc);
        emu_vc_join(w->cluster, m->avc, w->avc);
        uint32_t agent = w->queue_agent[queue];
        if (agent && m->vc[agent] < clock) m->vc[agent] = clock;
        w->vc[w->agent]++;
    }
    arrive(w, in, cta, m, 1);
}

void emu_mbar_inc_pending(EmuWarp *w, const EmuInstr *in, EmuCta *cta, uint32_t off)
{
    EmuMbar *m = find(w, in, cta, off, 0);
    if (m) m->pending++;
}

/* Shared memory of a CTA is gone when its last thread exits: what other CTAs did to it must have been seen before. */
static void check_remote(EmuCta *cta)
{
    EmuCluster *c = cta->cluster;
    if (c->n_ctas < 2 || !c->launch->checks) return;
    for (uint32_t a = 1; a < c->core->n_agents; a++) {
        uint32_t seen = 0, clock = cta->core->remote[a];
        for (uint32_t i = 0; clock && i < cta->n_warps; i++) seen = cta->warps[i].vc[a] > seen ? cta->warps[i].vc[a] : seen;
        if (seen >= clock) continue;
        char who[160];
        emu_agent_name(c, EMU_EPOCH(a, clock), who, sizeof(who));
        emu_find(&cta->warps[0], NULL, EMU_FIND_ASYNC_LEFT,
                 "the CTA may end before %s (line %u) has reached its shared memory: no warp of it has waited for that", who,
                 cta->core->remote_line[a]);
        return;
    }
}

/* At the end of a CTA: no bytes may have come that nobody announced (announced bytes that never come only matter to who
 * waits for them, and then they are a deadlock), and no bulk store may still read its shared memory. */
void emu_cta_end_checks(EmuCta *cta)
{
    EmuCtaCore *cc = cta->core;
    for (uint32_t i = 0; i < cc->n_mbars; i++) {
        EmuMbar *m = cc->mbars[i];
        if (m->live && m->tx < 0)
            emu_find(&cta->warps[0], NULL, EMU_FIND_MBAR_TX,
                     "the kernel ends with %lld transaction bytes delivered but never expected at the mbarrier at 0x%x",
                     (long long)-m->tx, m->off);
    }
    check_remote(cta);
    for (uint32_t i = 0; i < cta->n_warps; i++) {
        EmuWarp *w = &cta->warps[i];
        uint32_t agent = w->queue_agent[EMU_Q_BULK];
        if (agent && w->vc[agent] < w->queue_clock[EMU_Q_BULK])
            emu_find(w, NULL, EMU_FIND_ASYNC_LEFT,
                     "warp %u ends before cp.async.bulk.wait_group has seen its bulk store of line %u; the shared memory it reads may be gone",
                     w->index, cta->cluster->core->agents[agent].lines[w->queue_clock[EMU_Q_BULK] % 16]);
    }
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static EmuCta *locate(EmuWarp *w, const EmuInstr *in, const EmuOperand *o, uint32_t lane, int space, uint32_t *off)
{
    uint64_t addr = emu_reg(w, o->reg, 0)[lane] + (uint32_t)o->off;
    if (space == EMU_S_GENERIC) {
        uint64_t full = emu_reg64(w, o->reg, (int)lane) + (uint64_t)(int64_t)o->off;
        if (!EMU_IS_SHARED(full)) {
            emu_find(w, in, EMU_FIND_OOB, "the mbarrier address 0x%llx is not in shared memory", (unsigned long long)full);
            return NULL;
        }
        addr = (uint32_t)full;
    }
    return emu_shared(w, in, (uint32_t)addr, 8, 8, space != EMU_S_SHARED_CLUSTER && space != EMU_S_GENERIC, off);
}

static int emu_h_mbar_init(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[1].reg, 1, exec, EMU_USE_VALUE);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off;
        EmuCta *cta = locate(w, in, &in->op[0], lane, (int)in->mod[0], &off);
        if (!cta) return EMU_STOP;
        uint32_t n = emu_reg(w, in->op[1].reg, 0)[lane];
        if ((n == 0 || n > 0xFFFFF) && emu_find(w, in, EMU_FIND_MBAR_INVALID, "mbarrier.init with count %u (1 to 2^20-1)", n))
            return EMU_STOP;
        EmuActor a = emu_actor_warp(w, in);
        if (w->launch->checks) {
            if (cta->smem_wr[off / 4] == EMU_EPOCH_MBAR) cta->smem_wr[off / 4] = cta->smem_wr[off / 4 + 1] = 0;
            if (emu_smem_write(&a, cta, off, 8)) return EMU_STOP;
            cta->smem_wr[off / 4] = cta->smem_wr[off / 4 + 1] = EMU_EPOCH_MBAR;
        }
        EmuMbar *b = mbar_make(w, cta, off);
        b->live = 1;
        b->phase = 0;
        b->init_fenced = 0;
        b->expected = b->pending = n;
        b->tx = 0;
        b->completed = b->arrivals = 0;
        if (!w->core->init_agent) w->core->init_agent = emu_agent_new(w->cluster, 9, w->cta->rank, w->index, 0);
        b->init_epoch = EMU_EPOCH(w->core->init_agent, ++w->core->init_clock);
        if (w->launch->checks) w->vc[w->core->init_agent] = w->core->init_clock;
        b->init_warp = w->index;
        emu_trace_mbar(w, in, cta, b, 0);
        memset(cta->smem + off, 0xA5, 8);
    }
    return EMU_NEXT;
}

static int emu_h_mbar_inval(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t off;
        EmuCta *cta = locate(w, in, &in->op[0], (uint32_t)__builtin_ctz(m), (int)in->mod[0], &off);
        if (!cta) return EMU_STOP;
        EmuMbar *b = find(w, in, cta, off, 0);
        if (!b) return EMU_STOP;
        b->live = 0;
        if (w->launch->checks) cta->smem_wr[off / 4] = cta->smem_wr[off / 4 + 1] = 0;
    }
    return EMU_NEXT;
}

enum { ARR_EXPECT_TX = 1, ARR_DROP = 2, ARR_NO_COMPLETE = 4, ARR_COUNT = 8, ARR_RELAXED = 16 };

static int emu_h_mbar_arrive(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t flags = in->mod[1];
    int third = in->nops > 2 && (flags & (ARR_EXPECT_TX | ARR_COUNT));
    emu_src_check(w, in, in->op[1].reg, 1, exec, EMU_USE_ADDRESS);
    if (third) emu_src_check(w, in, in->op[2].reg, 1, exec, EMU_USE_STORE);
    if ((flags & ARR_EXPECT_TX) && (exec & (exec - 1)) && w->launch->checks) {
        uint32_t first = emu_uniform(w, &in->op[1], exec), same = 0;
        for (uint32_t m = exec; m; m &= m - 1) same += emu_reg(w, in->op[1].reg, 0)[__builtin_ctz(m)] == first;
        uint32_t off;
        EmuCta *cta = locate(w, in, &in->op[1], (uint32_t)emu_lowest(exec), (int)in->mod[0], &off);
        EmuMbar *b = cta ? emu_mbar_at(cta, off) : NULL;
        if (b && b->expected < same &&
            emu_find(w, in, EMU_FIND_UNELECTED, "arrive.expect_tx on the mbarrier at 0x%x by %u lanes; it expects %u arrivals", off,
                     same, b->expected))
            return EMU_STOP;
    }
    int dst = in->op[0].reg >= 0;
    if (dst) emu_dst_begin(w, in, in->op[0].reg, 2, exec);
    int released = 0;
    EmuMbar *last = NULL;
    uint64_t phase = 0;
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off;
        EmuCta *cta = locate(w, in, &in->op[1], lane, (int)in->mod[0], &off);
        if (!cta) return EMU_STOP;
        EmuMbar *b = find(w, in, cta, off, 0);
        if (!b) return EMU_STOP;
        if (b == last && b->completed != phase &&
            emu_find(w, in, EMU_FIND_MBAR_OVER_ARRIVAL,
                     "the phase of the mbarrier at 0x%x completes before lane %u of this instruction has arrived: its arrival counts for the next phase",
                     off, lane))
            return EMU_STOP;
        last = b;
        phase = b->completed;
        uint32_t n = third && !(flags & ARR_EXPECT_TX) ? emu_reg(w, in->op[2].reg, 0)[lane] : 1;
        if ((flags & ARR_NO_COMPLETE) && n >= b->pending &&
            emu_find(w, in, EMU_FIND_MBAR_OVER_ARRIVAL, "arrive.noComplete of %u at the mbarrier at 0x%x, whose phase it completes (%u pending)",
                     n, off, b->pending))
            return EMU_STOP;
        if (flags & ARR_EXPECT_TX) b->tx += emu_reg(w, in->op[2].reg, 0)[lane];
        if (dst) { /* the state of the phase before this arrival: phase number, enough for test_wait with a state operand */
            emu_dst(w, in->op[0].reg, 0)[lane] = b->phase;
            emu_dst(w, in->op[0].reg, 1)[lane] = b->pending;
        }
        if (cta != w->cta && w->launch->checks) emu_remote_access(cta, in, EMU_EPOCH(w->agent, w->vc[w->agent]));
        if (!(flags & ARR_RELAXED) && w->launch->checks) {
            emu_vc_join(w->cluster, b->vc, w->vc);
            emu_vc_join(w->cluster, b->avc, w->avc);
            released = 1;
        } else {
            emu_release_fenced(w, b->vc, b->avc);
        }
        if (flags & ARR_DROP) {
            if (b->expected < n && emu_find(w, in, EMU_FIND_MBAR_OVER_ARRIVAL, "arrive_drop below zero at 0x%x", off)) return EMU_STOP;
            b->expected -= n;
        }
        if (arrive(w, in, cta, b, n)) return EMU_STOP;
    }
    if (released) w->vc[w->agent]++;
    if (dst) emu_dst_done(w, in->op[0].reg, 2, exec, 0xFFFFFFFFu);
    return EMU_NEXT;
}

static int emu_h_mbar_expect_tx(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off;
        EmuCta *cta = locate(w, in, &in->op[0], lane, (int)in->mod[0], &off);
        EmuMbar *b = cta ? find(w, in, cta, off, 0) : NULL;
        if (!b) return EMU_STOP;
        b->tx += emu_reg(w, in->op[1].reg, 0)[lane];
    }
    return EMU_NEXT;
}

static int emu_h_mbar_complete_tx(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off;
        EmuCta *cta = locate(w, in, &in->op[0], lane, (int)in->mod[0], &off);
        if (!cta) return EMU_STOP;
        complete_tx(w, in, cta, off, emu_reg(w, in->op[1].reg, 0)[lane], 0);
    }
    return EMU_NEXT;
}

/* try_wait blocks until the phase completes; it says false only when nothing else in the cluster can run. Every lane of
 * one execution gets the same answer when all name one mbarrier (spin loops branch with bra.uni). */
static int emu_h_mbar_try_wait(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    EmuSplit *s = emu_split(w);
    emu_src_check(w, in, in->op[1].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[2].reg, 1, exec, EMU_USE_BRANCH);
    int test = in->mod[0] == 1, parity_form = in->mod[1] == 1;
    uint32_t yes = 0, first_off = 0, first_parity = 0, resumed = s->resume == 2, last_off = 0xFFFFFFFFu;
    uint32_t last_yes = 0, last_parity = 2;
    EmuMbar *waiting = NULL;
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off;
        uint32_t addr = emu_reg(w, in->op[1].reg, 0)[lane] + (uint32_t)in->op[1].off;
        uint32_t parity = emu_reg(w, in->op[2].reg, 0)[lane];
        if (parity_form && parity > 1) parity &= 1;
        if (addr == last_off && parity == last_parity) {
            yes |= last_yes << lane;
            continue;
        }
        EmuCta *cta = locate(w, in, &in->op[1], lane, EMU_S_SHARED, &off);
        EmuMbar *b = cta ? find(w, in, cta, off, 0) : NULL;
        if (!b) return EMU_STOP;
        uint32_t done = b->phase != (parity & 1) || (resumed && off == (uint32_t)(s->object & 0xFFFFFF));
        if (done) {
            emu_trace_mbar(w, in, cta, b, 1);
            if (!in->mod[2])
                emu_acquire(w, b->vc, b->avc);
            else if (w->launch->strict)
                emu_vc_join(w->cluster, w->relaxed_vc, b->vc);
        } else if (!waiting) {
            waiting = b;
            first_off = off;
            first_parity = parity & 1;
        }
        yes |= done << lane;
        last_off = addr;
        last_parity = parity;
        last_yes = done;
    }
    s->resume = 0;
    if (waiting && !test && !s->timed_out) {
        s->info = first_parity;
        return emu_block(w, in, EMU_WAIT_MBAR, (uint64_t)w->cta->rank << 24 | first_off);
    }
    s->timed_out = 0;
    if (in->op[0].reg >= 0) {
        w->preds[in->op[0].reg] = (w->preds[in->op[0].reg] & ~exec) | (yes & exec);
        w->pvalid[in->op[0].reg] |= exec;
    }
    return waiting ? EMU_YIELD : EMU_NEXT;
}

static int emu_h_mbar_pending_count(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    const uint32_t *s = emu_reg(w, in->op[1].reg, 1);
    uint32_t v = emu_src_check(w, in, in->op[1].reg, 2, exec, EMU_USE_VALUE);
    emu_dst_begin(w, in, in->op[0].reg, 1, exec);
    uint32_t *d = emu_dst(w, in->op[0].reg, 0);
    EMU_LANES(exec, d[l] = s[l]);
    emu_dst_done(w, in->op[0].reg, 1, exec, v);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_mbarrier[] = {
    EMU_ENTRY(mbar_init),    EMU_ENTRY(mbar_inval),       EMU_ENTRY(mbar_arrive),        EMU_ENTRY(mbar_expect_tx),
    EMU_ENTRY(mbar_complete_tx), EMU_ENTRY(mbar_try_wait), EMU_ENTRY(mbar_pending_count), {0}};
