/* Queues of asynchronous work, groups, and registers that asynchronous instructions own. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

EmuAsync *emu_async_new(EmuWarp *w, const EmuInstr *in, int queue, void (*run)(EmuAsync *), size_t payload_size)
{
    EmuAsync *a = aligned_alloc(16, (sizeof(EmuAsync) + payload_size + 15) & ~(size_t)15);
    a->next = NULL;
    a->run = run;
    a->w = w;
    a->in = in;
    a->queue = (uint8_t)queue;
    a->clock = w->queue_clock[queue];
    a->group = w->group_count[queue];
    a->size = payload_size;
    return a;
}

void emu_async_submit(EmuAsync *a)
{
    EmuWarp *w = a->w;
    w->group_open[a->queue]++;
    if (!w->launch->late) {
        a->run(a);
        free(a);
        return;
    }
    EmuWarpCore *c = w->core;
    if (c->tail[a->queue])
        c->tail[a->queue]->next = a;
    else
        c->head[a->queue] = a;
    c->tail[a->queue] = a;
    w->cluster->core->n_async++;
}

static void run_head(EmuWarp *w, int q)
{
    EmuWarpCore *c = w->core;
    EmuAsync *a = c->head[q];
    c->head[q] = a->next;
    if (!a->next) c->tail[q] = NULL;
    w->cluster->core->n_async--;
    a->run(a);
    free(a);
}

void emu_queue_drain(EmuWarp *w, int queue)
{
    while (w->core->head[queue]) run_head(w, queue);
}

/* Late mode: completes one entry, chosen at random among the heads of the queues (any entry for EMU_Q_TMA). */
int emu_async_step(EmuCluster *c)
{
    EmuClusterCore *cc = c->core;
    if (!cc->n_async) return 0;
    uint32_t start = (uint32_t)(emu_random(c) % (cc->n_warps * EMU_N_QUEUES));
    for (uint32_t i = 0; i < cc->n_warps * EMU_N_QUEUES; i++) {
        uint32_t k = (start + i) % (cc->n_warps * EMU_N_QUEUES);
        EmuWarp *w = cc->order[k / EMU_N_QUEUES];
        EmuWarpCore *wc = w->core;
        int q = (int)(k % EMU_N_QUEUES);
        EmuAsync *a = wc->head[q], *before = NULL;
        if (!a) continue;
        if (q == EMU_Q_TMA) {
            uint32_t skip = (uint32_t)(emu_random(c) % 4);
            while (skip-- && a->next) {
                before = a;
                a = a->next;
            }
        }
        if (!before) {
            run_head(w, q);
        } else {
            before->next = a->next;
            if (!a->next) wc->tail[q] = before;
            cc->n_async--;
            a->run(a);
            free(a);
        }
        cc->progress++;
        return 1;
    }
    return 0;
}

void emu_async_free_all(EmuCluster *c)
{
    for (uint32_t i = 0; i < c->core->n_warps; i++)
        for (int q = 0; q < EMU_N_QUEUES; q++) {
            EmuWarpCore *wc = c->core->order[i]->core;
            while (wc->head[q]) {
                EmuAsync *a = wc->head[q];
                wc->head[q] = a->next;
                free(a);
            }
            wc->tail[q] = NULL;
        }
    c->core->n_async = 0;
}

void emu_group_commit(EmuWarp *w, int queue)
{
    w->group_clock[queue][w->group_count[queue] % EMU_GROUP_RING] = w->queue_clock[queue];
    w->group_count[queue]++;
    w->group_open[queue] = 0;
}

void emu_group_wait(EmuWarp *w, int queue, uint32_t n)
{
    if (w->group_count[queue] <= n) return;
    uint32_t upto = w->group_count[queue] - n; /* groups 0..upto-1 are complete */
    while (w->core->head[queue] && w->core->head[queue]->group < upto) run_head(w, queue);
    if (n >= EMU_GROUP_RING) return;
    uint32_t clock = w->group_clock[queue][(upto - 1) % EMU_GROUP_RING];
    if (upto > w->group_done[queue]) w->group_done[queue] = upto;
    emu_queue_seen(w, queue, clock);
    emu_reg_release(w, queue, clock);
}

/* Only two queues own registers: tcgen05.ld and wgmma. */
static int list_of(int q) { return q == EMU_Q_WGMMA; }

void emu_reg_pending(EmuWarp *w, int32_t reg, uint32_t n, int q, uint32_t clock)
{
    EmuWarpCore *c = w->core;
    int list = list_of(q);
    for (uint32_t i = 0; reg >= 0 && i < n; i++) {
        EmuPending *p = &c->pending[reg + i];
        p->clock = clock;
        p->queue = (uint8_t)q;
        if (!(p->listed >> list & 1)) {
            p->listed |= (uint8_t)(1 << list);
            c->pending_slots[list][c->n_pending[list]++] = reg + (int32_t)i;
        }
        w->rstate[reg + i] = (EmuRegState){0, EMU_PENDING};
    }
}

void emu_reg_release(EmuWarp *w, int q, uint32_t clock)
{
    EmuWarpCore *c = w->core;
    int list = list_of(q);
    int32_t *slots = c->pending_slots[list];
    uint32_t keep = 0;
    for (uint32_t i = 0; i < c->n_pending[list]; i++) {
        int32_t slot = slots[i];
        EmuPending *p = &c->pending[slot];
        if (w->rstate[slot].epoch == EMU_PENDING && p->queue == q && p->clock > clock) {
            slots[keep++] = slot;
            continue;
        }
        p->listed &= (uint8_t)~(1 << list);
        if (w->rstate[slot].epoch == EMU_PENDING && p->queue == q) w->rstate[slot] = (EmuRegState){0xFFFFFFFFu, 0};
    }
    c->n_pending[list] = keep;
}

/* A pending register is touched: a tcgen05.ld result waits for its load, a wgmma register is a finding. */
static void touch(EmuWarp *w, const EmuInstr *in, int32_t slot, int write)
{
    EmuWarpCore *c = w->core;
    EmuPending p = c->pending[slot];
    if (p.queue == EMU_Q_TLD) {
        while (c->head[EMU_Q_TLD] && c->head[EMU_Q_TLD]->clock <= p.clock) run_head(w, EMU_Q_TLD);
        /* the value is there; only wait::ld says that the read is done, too (PTX ISA, "Register dependencies") */
        if (!w->launch->strict) emu_queue_seen(w, EMU_Q_TLD, p.clock);
    } else {
        emu_find(w, in, EMU_FIND_WGMMA_ORDER,
                 "%s a register that a wgmma still in flight uses; wgmma.wait_group must come first",
                 write ? "writes" : "reads");
    }
    emu_reg_release(w, p.queue, p.clock);
}

uint32_t emu_src_check(EmuWarp *w, const EmuInstr *in, int32_t reg, uint32_t n, uint32_t exec, int use)
{
    static const char *const uses[] = {"a value", "an address", "a branch", "a store", "an MMA"};
    if (reg < 0) return 0xFFFFFFFFu;
    uint32_t valid = 0xFFFFFFFFu;
    for (uint32_t i = 0; i < n; i++) {
        if (EMU_UNLIKELY(w->rstate[reg + i].epoch == EMU_PENDING)) touch(w, in, reg + (int32_t)i, 0);
        valid &= w->rstate[reg + i].valid;
    }
    if (EMU_UNLIKELY(use != EMU_USE_VALUE && (exec & ~valid) && w->launch->checks)) {
        emu_find(w, in, EMU_FIND_UNINIT_REGISTER, "lanes %08x use a register nobody wrote for %s", exec & ~valid, uses[use]);
        for (uint32_t i = 0; i < n; i++) w->rstate[reg + i].valid |= exec;
    }
    return valid;
}

void emu_dst_touch(EmuWarp *w, const EmuInstr *in, int32_t reg) { touch(w, in, reg, 1); }
