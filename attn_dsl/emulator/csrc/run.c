/* The scheduler of a cluster and the instruction loop. */
#include "core.h"

uint64_t emu_random(EmuCluster *c)
{
    uint64_t x = c->rng;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return c->rng = x;
}

int emu_block(EmuWarp *w, const EmuInstr *in, int what, uint64_t object)
{
    EmuSplit *s = emu_split(w);
    s->blocked = (uint8_t)what;
    s->object = object;
    s->in = in;
    return EMU_BLOCK;
}

void emu_wake(EmuCluster *c, int what, uint64_t object)
{
    EmuClusterCore *cc = c->core;
    cc->progress++;
    for (uint32_t i = 0; i < cc->n_warps; i++) {
        EmuWarpCore *wc = cc->order[i]->core;
        for (uint32_t k = 0; k < wc->n_split; k++)
            if (wc->split[k].blocked == what && wc->split[k].object == object) wc->split[k].blocked = 0;
    }
}

/* Chooses a split that can run; 0 if none. */
static int choose_split(EmuWarp *w, int random)
{
    EmuWarpCore *c = w->core;
    if (!c->n_split) return 0;
    uint32_t start = random ? (uint32_t)(emu_random(w->cluster) % c->n_split) : c->cur;
    for (uint32_t i = 0; i < c->n_split; i++) {
        uint32_t k = start + i;
        if (k >= c->n_split) k -= c->n_split;
        if (!c->split[k].blocked) {
            c->cur = k;
            return 1;
        }
    }
    return 0;
}

static int runnable(const EmuWarp *w)
{
    const EmuWarpCore *c = w->core;
    for (uint32_t k = 0; k < c->n_split; k++)
        if (!c->split[k].blocked) return 1;
    return 0;
}

/* Lanes of a collective instruction that are elsewhere: waits for them, or (the last to come) takes them along. Returns
 * the lanes to execute, 0 when this split must wait. */
static uint32_t rendezvous(EmuWarp *w, const EmuInstr *in, uint32_t exec, uint32_t want)
{
    EmuWarpCore *c = w->core;
    uint32_t have = exec;
    for (uint32_t k = 0; k < c->n_split; k++)
        if (k != c->cur && c->split[k].blocked == EMU_WAIT_WARP && c->split[k].in == in) have |= c->split[k].mask;
    if (want & w->live & ~have) {
        emu_block(w, in, EMU_WAIT_WARP, want);
        return 0;
    }
    return have;
}

static void release_rendezvous(EmuWarp *w, const EmuInstr *in)
{
    EmuWarpCore *c = w->core;
    for (uint32_t k = 0; k < c->n_split; k++)
        if (k != c->cur && c->split[k].blocked == EMU_WAIT_WARP && c->split[k].in == in) {
            c->split[k].blocked = 0;
            c->split[k].pc++;
        }
}

/* Runs one warp until it blocks, yields, ends or has used its share. Returns instructions run; *stop on a fatal finding. */
static uint64_t run_warp(EmuWarp *w, uint64_t share, int random, int *stop)
{
    EmuWarpCore *c = w->core;
    const EmuInstr *code = w->prog->code;
    uint64_t done = 0;
    while (c->n_split && choose_split(w, random)) {
        EmuSplit *s = &c->split[c->cur];
        uint32_t pc = s->pc, mask = s->mask;
        uint32_t meet = s->conv >= 0 ? c->conv[s->conv].pc : 0xFFFFFFFFu;
        w->active = mask;
        for (;;) {
            if (EMU_UNLIKELY(pc == meet)) {
                s->pc = pc;
                emu_warp_converge(w);
                break;
            }
            const EmuInstr *in = code + pc;
            uint32_t exec = mask;
            EmuStep step;
            if (EMU_UNLIKELY(in->flags & EMU_F_ENTRY)) emu_path_enter(w, pc);
            if (in->guard != EMU_PRED_TRUE) {
                if (EMU_UNLIKELY(w->launch->checks && (mask & ~w->pvalid[in->guard]))) {
                    s->pc = w->pc = pc;
                    if (emu_find(w, in, EMU_FIND_UNINIT_REGISTER,
                                 "the guard predicate was never written in lanes %08x", mask & ~w->pvalid[in->guard])) {
                        *stop = 1;
                        return done;
                    }
                    w->pvalid[in->guard] |= mask;
                }
                uint32_t p = w->preds[in->guard];
                exec &= in->guard_neg ? ~p : p;
                if (!exec) {
                    pc++;
                    done++;
                    if (EMU_UNLIKELY(done >= share)) {
                        s->pc = pc;
                        return done;
                    }
                    continue;
                }
            }
            w->counts[in->cls]++;
            done++;
            w->pc = pc;
            if (EMU_UNLIKELY(in->flags)) {
                s->pc = pc;
                if (in->flags & EMU_F_EVENT) emu_path_begin(w, in, pc, exec, &step);
                if (in->flags & EMU_F_TRACE) {
                    w->launch->core->executed[pc] = 1;
                    emu_trace_effect(w, in);
                }
                if ((in->flags & EMU_F_ALIGNED) && exec != w->live && w->launch->checks &&
                    emu_find(w, in, EMU_FIND_DIVERGENCE,
                             "an .aligned instruction is executed by lanes %08x of the live lanes %08x", exec, w->live)) {
                    *stop = 1;
                    return done;
                }
                if (in->flags & EMU_F_COLLECTIVE) {
                    uint32_t want = emu_uniform(w, &in->op[in->nops - 1], exec);
                    if (w->launch->checks && (exec & ~want) &&
                        emu_find(w, in, EMU_FIND_DIVERGENCE,
                                 "lanes %08x execute it but are not in its member mask %08x", exec & ~want, want)) {
                        *stop = 1;
                        return done;
                    }
                    if (EMU_UNLIKELY(want & w->live & ~exec)) {
                        uint32_t all = rendezvous(w, in, exec, want);
                        if (!all) break;
                        int rc = in->fn(w, in, all);
                        release_rendezvous(w, in);
                        if (rc == EMU_STOP) {
                            *stop = 1;
                            return done;
                        }
                        pc++;
                        s->pc = pc;
                        continue;
                    }
                }
            }
            int rc = in->fn(w, in, exec);
            if (EMU_UNLIKELY(in->flags & EMU_F_EVENT) && rc != EMU_BLOCK) emu_path_end(w, &step);
            if (EMU_LIKELY(rc == EMU_NEXT)) {
                pc++;
                if (EMU_UNLIKELY(done >= share)) {
                    s->pc = pc;
                    return done;
                }
                continue;
            }
            switch (rc) {
            case EMU_JUMP: /* the branch handler got s->pc = pc through w->pc and changed the splits */
                s = &c->split[c->cur];
                pc = s->pc;
                mask = s->mask;
                meet = s->conv >= 0 ? c->conv[s->conv].pc : 0xFFFFFFFFu;
                w->active = mask;
                if (EMU_UNLIKELY(done >= share)) return done;
                continue;
            case EMU_BLOCK:
                s->pc = pc;
                break;
            case EMU_YIELD:
                s->pc = pc + 1;
                return done;
            case EMU_EXIT:
                s->pc = pc;
                emu_warp_exit(w, exec);
                w->cluster->core->progress++;
                emu_barrier_exit(w);
                break;
            default:
                s->pc = pc;
                *stop = 1;
                return done;
            }
            break;
        }
        if (random && done * 2 >= share) return done;
    }
    return done;
}

/* Nothing can run: asynchronous work, parked lanes, time-outs of try_wait, in this order; else a deadlock. */
static int unstall(EmuCluster *c)
{
    EmuClusterCore *cc = c->core;
    if (emu_async_step(c)) return 1;
    int made = 0;
    for (uint32_t i = 0; i < cc->n_warps; i++)
        if (cc->order[i]->live) made += emu_warp_unpark(cc->order[i]);
    if (made) return 1;
    if (cc->progress == cc->stall_mark && ++cc->stalls > 2) return 0;
    if (cc->progress != cc->stall_mark) cc->stalls = 0;
    cc->stall_mark = cc->progress;
    for (uint32_t i = 0; i < cc->n_warps; i++) {
        EmuWarpCore *wc = cc->order[i]->core;
        for (uint32_t k = 0; k < wc->n_split; k++)
            if (wc->split[k].blocked == EMU_WAIT_MBAR) {
                wc->split[k].blocked = 0;
                wc->split[k].timed_out = 1;
                made++;
            }
    }
    return made != 0;
}

int emu_cluster_run(EmuCluster *c, uint64_t quantum)
{
    EmuClusterCore *cc = c->core;
    EmuLaunchCore *lc = c->launch->core;
    int random = lc->opt.seed != 0, stop = 0;
    uint64_t used = 0;
    while (used < quantum) {
        if (lc->stop || cc->stop) return EMU_RUN_STOP;
        uint32_t start = random ? (uint32_t)(emu_random(c) % cc->n_warps) : cc->next;
        EmuWarp *w = NULL;
        uint32_t live = 0;
        for (uint32_t i = 0; i < cc->n_warps; i++) {
            uint32_t k = start + i;
            if (k >= cc->n_warps) k -= cc->n_warps;
            EmuWarp *x = cc->order[k];
            if (!x->core->n_split && !x->live) continue;
            live++;
            if (runnable(x)) {
                w = x;
                cc->next = k + 1 < cc->n_warps ? k + 1 : 0;
                break;
            }
        }
        if (!w) {
            if (!live) return EMU_RUN_DONE;
            if (unstall(c)) continue;
            emu_describe_deadlock(c);
            cc->stop = 1;
            return EMU_RUN_STOP;
        }
        uint64_t share = random ? 1 + emu_random(c) % 400 : 2000;
        uint64_t n = run_warp(w, share, random, &stop);
        used += n;
        if (stop) {
            cc->stop = 1;
            return EMU_RUN_STOP;
        }
        if (c->launch->late == 2 && cc->n_async && emu_random(c) % 3 == 0) emu_async_step(c);
    }
    cc->instructions += used;
    return EMU_RUN_MORE;
}
