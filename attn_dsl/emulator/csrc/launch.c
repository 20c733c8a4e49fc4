/* A launch: the machine's memory, worker threads that take clusters off the grid, and the results Python asks for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define POISON 0xFF /* NaN in every float format */

static void *xalloc(size_t n) /* zeroed, 64-byte aligned */
{
    n = (n + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, n ? n : 64);
    if (!p) abort();
    memset(p, 0, n ? n : 64);
    return p;
}

int emu_cluster_init(EmuCluster *c, EmuLaunch *l)
{
    const EmuProgram *prog = l->prog;
    uint32_t threads = l->block[0] * l->block[1] * l->block[2], warps = (threads + 31) / 32;
    c->launch = l;
    c->n_ctas = l->cluster[0] * l->cluster[1] * l->cluster[2];
    c->core = xalloc(sizeof(EmuClusterCore));
    EmuClusterCore *cc = c->core;
    cc->n_warps = warps * c->n_ctas;
    cc->cap_agents = 2 + cc->n_warps * (3 + EMU_N_QUEUES) + c->n_ctas * 256;
    if (cc->cap_agents > EMU_MAX_AGENTS - 1) cc->cap_agents = EMU_MAX_AGENTS - 1;
    cc->agents = xalloc(cc->cap_agents * sizeof(EmuAgentInfo));
    cc->order = xalloc(cc->n_warps * sizeof(EmuWarp *));
    cc->cl_vc = xalloc(cc->cap_agents * 4);
    cc->cl_avc = xalloc(cc->cap_agents * 4);
    cc->cap_sets = 1 << 18;
    cc->sets = malloc((size_t)cc->cap_sets * 4);
    c->ctas = xalloc(c->n_ctas * sizeof(EmuCta));
    uint32_t window = (uint32_t)l->core->smem_window;
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        EmuCta *t = &c->ctas[r];
        t->cluster = c;
        t->rank = r;
        t->smem_size = window;
        t->smem = xalloc(window + 64);
        t->core = xalloc(sizeof(EmuCtaCore));
        t->core->mbar_index = xalloc((window / 8 + 1) * 2);
        t->core->remote = xalloc(cc->cap_agents * 4);
        t->core->remote_line = xalloc(cc->cap_agents * 4);
        if (l->checks) {
            t->smem_wr = xalloc(window + 64);
            t->smem_rd = xalloc(window + 64);
        }
        if (prog->target >= 100) {
            t->tmem = xalloc(512 * 128 * 4);
            t->tmem_owner = xalloc(512);
            t->tmem_wr = xalloc(512 * 8 * 4);
            t->tmem_rd = xalloc(512 * 8 * 4);
        }
        for (int b = 0; b < EMU_N_BARRIERS; b++) {
            t->core->bar[b].vc = xalloc(cc->cap_agents * 4);
            t->core->bar[b].avc = xalloc(cc->cap_agents * 4);
        }
        t->n_warps = warps;
        t->warps = xalloc(warps * sizeof(EmuWarp));
        for (uint32_t i = 0; i < warps; i++) {
            EmuWarp *w = &t->warps[i];
            w->prog = prog;
            w->launch = l;
            w->cluster = c;
            w->cta = t;
            w->index = i;
            w->regs = xalloc((size_t)prog->n_slots * 128);
            w->rstate = xalloc(prog->n_slots * sizeof(EmuRegState));
            w->preds = xalloc(prog->n_preds * 4 + 4);
            w->pvalid = xalloc(prog->n_preds * 4 + 4);
            w->vc = xalloc(cc->cap_agents * 4);
            w->avc = xalloc(cc->cap_agents * 4);
            w->tvc = l->strict ? xalloc(cc->cap_agents * 4) : w->vc;
            w->relaxed_vc = l->strict ? xalloc(cc->cap_agents * 4) : NULL;
            w->core = xalloc(sizeof(EmuWarpCore));
            w->core->fence_vc = xalloc(cc->cap_agents * 4);
            w->core->fence_avc = xalloc(cc->cap_agents * 4);
            w->core->pending = xalloc(prog->n_slots * sizeof(EmuPending));
            w->core->pending_slots[0] = xalloc(prog->n_slots * 4);
            w->core->pending_slots[1] = xalloc(prog->n_slots * 4);
            w->core->local = prog->local_bytes ? xalloc((size_t)prog->local_bytes * 32) : NULL;
            for (int q = 0; q < EMU_N_QUEUES; q++) w->group_clock[q] = xalloc(EMU_GROUP_RING * 4);
            cc->order[r * warps + i] = w;
        }
    }
    return 0;
}

/* Makes the cluster fresh for position `linear` of the grid. */
void emu_cluster_start(EmuCluster *c, uint64_t linear)
{
    EmuLaunch *l = c->launch;
    EmuLaunchCore *lc = l->core;
    EmuClusterCore *cc = c->core;
    c->id[0] = (uint32_t)(linear % lc->nc[0]);
    c->id[1] = (uint32_t)(linear / lc->nc[0] % lc->nc[1]);
    c->id[2] = (uint32_t)(linear / lc->nc[0] / lc->nc[1]);
    c->rng = (lc->opt.seed + 1) * 0x9E3779B97F4A7C15ull ^ (linear + 1) * 0xD1B54A32D192ED03ull;
    if (!c->rng) c->rng = 1;
    c->clc_failed = 0;
    cc->n_agents = 1; /* agent 0 is nobody */
    cc->grid_agent = lc->before ? emu_agent_new(c, 10, 0, 0, 0) : 0;
    cc->next = 0;
    cc->progress = cc->stall_mark = 0;
    cc->stalls = 0;
    cc->cl_arrived = cc->cl_phase = 0;
    cc->n_sets = 1;
    cc->stop = 0;
    cc->slices = 0;
    cc->last_set_in = 0;
    memset(cc->cl_vc, 0, cc->cap_agents * 4);
    memset(cc->cl_avc, 0, cc->cap_agents * 4);
    uint32_t threads = l->block[0] * l->block[1] * l->block[2];
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        EmuCta *t = &c->ctas[r];
        t->ctaid[0] = c->id[0] * l->cluster[0] + r % l->cluster[0];
        t->ctaid[1] = c->id[1] * l->cluster[1] + r / l->cluster[0] % l->cluster[1];
        t->ctaid[2] = c->id[2] * l->cluster[2] + r / l->cluster[0] / l->cluster[1];
        memset(t->smem, POISON, t->smem_size);
        memset(t->core->mbar_index, 0, (t->smem_size / 8 + 1) * 2);
        t->core->n_mbars = 0;
        memset(t->core->remote, 0, cc->cap_agents * 4);
        t->core->n_split_words = t->core->free_split = 0;
        if (l->checks) {
            memset(t->smem_wr, 0, t->smem_size);
            memset(t->smem_rd, 0, t->smem_size);
        }
        if (t->tmem) {
            memset(t->tmem, POISON, 512 * 128 * 4);
            memset(t->tmem_owner, 0, 512);
            memset(t->tmem_wr, 0, 512 * 8 * 4);
            memset(t->tmem_rd, 0, 512 * 8 * 4);
            t->tmem_next_alloc = t->tmem_relinquished = 0;
        }
        for (int b = 0; b < EMU_N_BARRIERS; b++) {
            EmuBarrier *x = &t->core->bar[b];
            x->expected = x->arrived = x->all = 0;
            memset(x->vc, 0, cc->cap_agents * 4);
            memset(x->avc, 0, cc->cap_agents * 4);
        }
        for (uint32_t i = 0; i < t->n_warps; i++) {
            EmuWarp *w = &t->warps[i];
            uint32_t left = threads - i * 32;
            w->live = left >= 32 ? 0xFFFFFFFFu : (1u << left) - 1;
            w->fence_epoch = 1;
            w->agent = emu_agent_new(c, 0, r, i, 0);
            memset(w->queue_agent, 0, sizeof(w->queue_agent));
            memset(w->queue_clock, 0, sizeof(w->queue_clock));
            memset(w->group_open, 0, sizeof(w->group_open));
            memset(w->group_done, 0, sizeof(w->group_done));
            memset(w->group_count, 0, sizeof(w->group_count));
            memset(w->vc, 0, cc->cap_agents * 4);
            memset(w->avc, 0, cc->cap_agents * 4);
            memset(w->tvc, 0, cc->cap_agents * 4);
            if (l->strict) memset(w->relaxed_vc, 0, cc->cap_agents * 4);
            memset(w->core->fence_vc, 0, cc->cap_agents * 4);
            memset(w->core->fence_avc, 0, cc->cap_agents * 4);
            w->core->init_agent = w->core->init_clock = w->core->atomic_agent = 0;
            w->vc[w->agent] = 1;
            memset(w->rstate, 0, w->prog->n_slots * sizeof(EmuRegState));
            memset(w->pvalid, 0, w->prog->n_preds * 4);
            memset(w->core->pending, 0, w->prog->n_slots * sizeof(EmuPending));
            w->core->n_pending[0] = w->core->n_pending[1] = 0;
            w->core->n_waited = 0;
            w->core->max_regs = w->core->cluster_arrived = w->core->cluster_phase = 0;
            if (w->core->local) memset(w->core->local, POISON, (size_t)w->prog->local_bytes * 32);
            for (int s = 0; s < EMU_SLOT_FIRST; s++) {
                for (int k = 0; k < 32; k++) w->regs[s * 32 + k] = s == EMU_SLOT_SHARED ? r << 24 : 0;
                w->rstate[s].valid = 0xFFFFFFFFu;
            }
            w->core->n_steps = 0;
            emu_warp_reset(w);
        }
    }
}

void emu_cluster_finish(EmuCluster *c)
{
    EmuLaunchCore *lc = c->launch->core;
    uint32_t width = EMU_N_CLASSES + EMU_N_ENGINES;
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        EmuCta *t = &c->ctas[r];
        if (!c->core->stop) {
            emu_cta_end_checks(t);
            if (t->tmem && emu_tmem_cta_end) emu_tmem_cta_end(t);
        }
    }
    emu_async_free_all(c);
    pthread_mutex_lock(&lc->lock);
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        EmuCta *t = &c->ctas[r];
        if (t->tmem_peak > lc->tmem_peak) lc->tmem_peak = t->tmem_peak;
        for (uint32_t i = 0; i < t->n_warps; i++) {
            EmuWarp *w = &t->warps[i];
            for (int k = 0; k < EMU_N_CLASSES; k++) {
                lc->counts[i * width + k] += w->counts[k];
                lc->instructions += w->counts[k];
            }
            for (int k = 0; k < EMU_N_ENGINES; k++) lc->counts[i * width + EMU_N_CLASSES + k] += w->engines[k];
            if (lc->paths) emu_path_keep(w, lc->paths);
            memset(w->counts, 0, sizeof(w->counts));
            memset(w->engines, 0, sizeof(w->engines));
        }
    }
    pthread_mutex_unlock(&lc->lock);
}

void emu_cluster_free(EmuCluster *c)
{
    EmuClusterCore *cc = c->core;
    const EmuLaunch *l = c->launch;
    for (uint32_t r = 0; r < c->n_ctas; r++) {
        EmuCta *t = &c->ctas[r];
        for (uint32_t i = 0; i < t->n_warps; i++) {
            EmuWarp *w = &t->warps[i];
            if (l->strict) free(w->tvc), free(w->relaxed_vc);
            free(w->regs), free(w->rstate), free(w->preds), free(w->pvalid), free(w->vc), free(w->avc);
            free(w->core->fence_vc), free(w->core->fence_avc), free(w->core->pending), free(w->core->pending_slots[0]), free(w->core->pending_slots[1]), free(w->core->local), free(w->core->steps);
            for (int q = 0; q < EMU_N_QUEUES; q++) free(w->group_clock[q]);
            free(w->core);
        }
        for (uint32_t i = 0; i < t->core->cap_mbars && t->core->mbars; i++)
            if (t->core->mbars[i]) free(t->core->mbars[i]->vc), free(t->core->mbars[i]->avc), free(t->core->mbars[i]);
        for (int b = 0; b < EMU_N_BARRIERS; b++) free(t->core->bar[b].vc), free(t->core->bar[b].avc);
        free(t->core->remote), free(t->core->remote_line), free(t->core->mbars), free(t->core->mbar_index);
        free(t->core->byte_wr), free(t->core->byte_rd), free(t->core);
        free(t->smem), free(t->smem_wr), free(t->smem_rd), free(t->tmem), free(t->tmem_owner), free(t->tmem_wr), free(t->tmem_rd);
        free(t->warps);
    }
    free(c->ctas), free(cc->agents), free(cc->order), free(cc->cl_vc), free(cc->cl_avc), free(cc->sets), free(cc);
}

void emu_count_engine(EmuWarp *w, int engine, uint64_t amount) { w->engines[engine] += amount; }

static int take(EmuLaunchCore *lc, uint64_t *linear)
{
    int ok = 0;
    pthread_mutex_lock(&lc->lock);
    if (lc->next_cluster < lc->n_clusters && !lc->stop) {
        *linear = lc->opt.only ? lc->opt.only[lc->next_cluster] : lc->next_cluster;
        lc->next_cluster++;
        ok = 1;
    }
    pthread_mutex_unlock(&lc->lock);
    return ok;
}

int emu_grid_take(EmuLaunch *l, uint32_t ctaid[3])
{
    uint64_t linear;
    if (!take(l->core, &linear)) return 0;
    ctaid[0] = (uint32_t)(linear % l->core->nc[0]) * l->cluster[0];
    ctaid[1] = (uint32_t)(linear / l->core->nc[0] % l->core->nc[1]) * l->cluster[1];
    ctaid[2] = (uint32_t)(linear / l->core->nc[0] / l->core->nc[1]) * l->cluster[2];
    return 1;
}

/* A cluster that runs very long may wait for global memory another cluster writes: then others start beside it. */
enum { SLICE = 4000000, RESIDENT = 132 };

static void *worker(void *arg)
{
    EmuLaunch *l = arg;
    EmuLaunchCore *lc = l->core;
    EmuCluster *all[RESIDENT];
    uint32_t n = 0;
    EmuCluster *spare[RESIDENT];
    uint32_t n_spare = 0;
    uint64_t linear, used = 0, slice = lc->opt.budget && lc->opt.budget < SLICE ? lc->opt.budget : SLICE;
    for (;;) {
        if (n < RESIDENT && (n == 0 || used >= SLICE) && take(lc, &linear)) {
            EmuCluster *c;
            if (n_spare) {
                c = spare[--n_spare];
            } else {
                c = xalloc(sizeof(*c));
                emu_cluster_init(c, l);
            }
            emu_cluster_start(c, linear);
            all[n++] = c;
        }
        if (!n) break;
        used = 0;
        for (uint32_t i = 0; i < n;) {
            int rc = emu_cluster_run(all[i], slice);
            if (rc == EMU_RUN_MORE) {
                used = SLICE;
                all[i]->core->slices++;
                if (lc->opt.budget && all[i]->core->slices * slice >= lc->opt.budget) {
                    emu_find(all[i]->core->order[0], NULL, EMU_FIND_BUDGET,
                             "a cluster has run more than %llu warp-instructions, the budget; it may never end",
                             (unsigned long long)lc->opt.budget);
                    rc = EMU_RUN_STOP;
                } else {
                    i++;
                    continue;
                }
            }
            emu_cluster_finish(all[i]);
            spare[n_spare++] = all[i];
            all[i] = all[--n];
        }
    }
    for (uint32_t i = 0; i < n_spare; i++) {
        emu_cluster_free(spare[i]);
        free(spare[i]);
    }
    return NULL;
}

static int by_base(const void *a, const void *b)
{
    uint64_t x = ((const EmuAlloc *)a)->base, y = ((const EmuAlloc *)b)->base;
    return x < y ? -1 : x > y;
}

EMU_API int emu_launch(void *program, const EmuOptions *opt, const void *params, uint32_t n_allocs, const EmuAlloc *allocs,
                       EmuResult *result, char *err, uint32_t err_size)
{
    EmuHandle *h = program;
    EmuProgram *p = &h->prog;
    EmuLaunchCore lc = {.opt = *opt, .findings = &h->findings, .n_allocs = n_allocs, .param_bytes = p->param_bytes};
    EmuLaunch l = {.prog = p,
                   .dyn_smem = opt->dyn_smem,
                   .checks = (int)opt->checks,
                   .late = (int)opt->late,
                   .strict = opt->checks && opt->strict_tcgen05,
                   .exact = (int)opt->exact,
                   .core = &lc};
    memset(result, 0, sizeof(*result));
    uint64_t threads = 1, n_ctas = 1;
    for (int i = 0; i < 3; i++) {
        l.grid[i] = opt->grid[i];
        l.block[i] = opt->block[i];
        l.cluster[i] = opt->cluster[i];
        threads *= opt->block[i];
        n_ctas *= opt->cluster[i];
        if (!opt->grid[i] || !opt->block[i] || !opt->cluster[i] || opt->grid[i] % opt->cluster[i]) {
            snprintf(err, err_size, "grid %u, block %u, cluster %u in dimension %d: each at least 1, grid a multiple of cluster",
                     opt->grid[i], opt->block[i], opt->cluster[i], i);
            return 2;
        }
        lc.nc[i] = opt->grid[i] / opt->cluster[i];
    }
    if (threads > 1024 || n_ctas > 16) {
        snprintf(err, err_size, "%llu threads per block (at most 1024), %llu CTAs per cluster (at most 16)",
                 (unsigned long long)threads, (unsigned long long)n_ctas);
        return 2;
    }
    uint64_t smem = ((uint64_t)p->static_smem + 1023) / 1024 * 1024 + opt->dyn_smem;
    if (!p->static_smem) smem = opt->dyn_smem;
    if (smem > 232448) {
        snprintf(err, err_size, "%llu bytes of shared memory; an SM gives one CTA at most 232448", (unsigned long long)smem);
        return 2;
    }
    lc.smem_window = (EMU_SHARED_BASE + smem + 63) / 64 * 64;
    lc.n_clusters = (uint64_t)lc.nc[0] * lc.nc[1] * lc.nc[2];
    if (opt->only) {
        for (uint64_t i = 0; i < opt->n_only; i++)
            if (opt->only[i] >= lc.n_clusters) {
                snprintf(err, err_size, "cluster %llu of a grid of %llu", (unsigned long long)opt->only[i],
                         (unsigned long long)lc.n_clusters);
                return 2;
            }
        lc.n_clusters = opt->n_only;
    }
    l.params = xalloc(p->param_bytes + 64);
    memcpy(l.params, params, p->param_bytes);
    EmuAlloc *sorted = malloc((n_allocs + 1) * sizeof(EmuAlloc));
    memcpy(sorted, allocs, n_allocs * sizeof(EmuAlloc));
    qsort(sorted, n_allocs, sizeof(EmuAlloc), by_base);
    lc.allocs = sorted;
    h->findings.n = 0;
    lc.n_roles = (uint32_t)((threads + 31) / 32);
    free(h->counts);
    free(h->uses);
    lc.uses = h->uses = opt->trace ? calloc(EMU_MAX_USES, sizeof(EmuMbarUse)) : NULL;
    free(h->executed);
    lc.executed = h->executed = opt->trace ? calloc(p->n_instr + 1, 1) : NULL;
    emu_paths_free(&h->paths);
    lc.paths = opt->path ? &h->paths : NULL;
    lc.counts = h->counts = calloc(lc.n_roles, (EMU_N_CLASSES + EMU_N_ENGINES) * 8);
    h->n_roles = lc.n_roles;
    pthread_mutex_init(&lc.lock, NULL);
    emu_written_free(h->written);
    h->written = NULL;
    lc.written = l.checks && emu_publishes(p) ? emu_written_new(sorted, n_allocs) : NULL;
    lc.before = l.checks ? opt->before : NULL;
    int checked = l.checks || l.late;
    for (uint32_t i = 0; i < p->n_instr; i++) {
        p->code[i].fn = checked ? p->checked[p->handler_of[i]] : p->fast[p->handler_of[i]];
        EmuInstr *in = &p->code[i];
        int entry = opt->path && (i == 0 || in->site != in[-1].site), event = opt->path && emu_path_event(in);
        in->flags = (uint8_t)((in->flags & ~(EMU_F_TRACE | EMU_F_ENTRY | EMU_F_EVENT)) | (opt->trace ? EMU_F_TRACE : 0) |
                              (entry ? EMU_F_ENTRY : 0) | (event ? EMU_F_EVENT : 0));
    }
    uint64_t n_threads = opt->threads ? opt->threads : (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (n_threads > lc.n_clusters) n_threads = lc.n_clusters;
    if (n_threads > 256) n_threads = 256;
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    pthread_t tid[256];
    uint64_t started = 0;
    for (uint64_t i = 1; i < n_threads; i++)
        if (!pthread_create(&tid[started], NULL, worker, &l)) started++;
    worker(&l);
    for (uint64_t i = 0; i < started; i++) pthread_join(tid[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    free(h->print);
    h->print = lc.print;
    h->print_len = lc.print_len;
    if (lc.published)
        h->written = lc.written;
    else
        emu_written_free(lc.written);
    free(l.params);
    free(sorted);
    pthread_mutex_destroy(&lc.lock);
    result->n_findings = h->findings.n;
    result->stopped = (uint32_t)lc.stop;
    result->instructions = lc.instructions;
    result->nanoseconds = (uint64_t)(t1.tv_sec - t0.tv_sec) * 1000000000ull + (uint64_t)t1.tv_nsec - (uint64_t)t0.tv_nsec;
    result->n_roles = lc.n_roles;
    result->smem_bytes = (uint32_t)smem;
    result->tmem_columns = lc.tmem_peak;
    return lc.stop ? 1 : 0;
}

EMU_API int emu_finding_get(void *program, uint32_t i, EmuFinding *out)
{
    EmuHandle *h = program;
    if (i >= h->findings.n) return 1;
    *out = h->findings.items[i];
    return 0;
}

EMU_API int emu_counts_get(void *program, uint32_t role, uint64_t *classes, uint64_t *engines)
{
    EmuHandle *h = program;
    if (role >= h->n_roles) return 1;
    const uint64_t *p = h->counts + (size_t)role * (EMU_N_CLASSES + EMU_N_ENGINES);
    memcpy(classes, p, EMU_N_CLASSES * 8);
    memcpy(engines, p + EMU_N_CLASSES, EMU_N_ENGINES * 8);
    return 0;
}

EMU_API void emu_executed_get(void *program, uint8_t *out)
{
    EmuHandle *h = program;
    if (h->executed) memcpy(out, h->executed, h->prog.n_instr);
}

EMU_API uint32_t emu_mbar_uses_get(void *program, EmuMbarUse *out, uint32_t max)
{
    EmuHandle *h = program;
    uint32_t n = 0;
    for (uint32_t i = 0; h->uses && i < EMU_MAX_USES; i++) {
        if (!h->uses[i].executed) continue;
        if (n < max) out[n] = h->uses[i];
        n++;
    }
    return n;
}

EMU_API uint64_t emu_printf_get(void *program, char *out, uint64_t size)
{
    EmuHandle *h = program;
    if (size && h->print_len) memcpy(out, h->print, h->print_len < size ? h->print_len : size);
    return h->print_len;
}
