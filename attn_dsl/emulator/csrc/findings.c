/* The list of findings of a launch, and the report of a deadlock. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* After these nothing sensible can follow in the same cluster. */
static int fatal(int kind)
{
    return kind == EMU_FIND_OOB || kind == EMU_FIND_MISALIGNED || kind == EMU_FIND_DEADLOCK || kind == EMU_FIND_BUDGET ||
           kind == EMU_FIND_UNSUPPORTED || kind == EMU_FIND_TRAP || kind == EMU_FIND_MBAR_INVALID ||
           kind == EMU_FIND_DESCRIPTOR || kind == EMU_FIND_TENSORMAP || kind == EMU_FIND_TMEM_ALLOC;
}

/* One missing wait or fence shows at every access of the block behind it: these count as one, the first is shown. */
static int same_mistake(const EmuFinding *a, const EmuFinding *b)
{
    if (a->kind != b->kind) return 0;
    switch (a->kind) {
    case EMU_FIND_PROXY_FENCE: case EMU_FIND_TCGEN05_ORDER: case EMU_FIND_WGMMA_ORDER: case EMU_FIND_RACE_SHARED:
    case EMU_FIND_RACE_TMEM: case EMU_FIND_UNINIT_SHARED: case EMU_FIND_UNINIT_TMEM:
        return a->site == b->site && (a->line == 0) == (b->line == 0);
    default: return a->line == b->line;
    }
}

int emu_find(EmuWarp *w, const EmuInstr *in, int kind, const char *fmt, ...)
{
    EmuLaunchCore *lc = w->launch->core;
    EmuFindings *f = lc->findings;
    if (!w->launch->checks && !fatal(kind)) return EMU_NEXT;
    EmuFinding x = {.kind = (uint32_t)kind, .line = in ? in->line : 0, .site = in ? in->site : 0, .pc = w->pc, .warp = w->index, .lanes = w->active, .times = 1};
    memcpy(x.ctaid, w->cta->ctaid, sizeof(x.ctaid));
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x.text, sizeof(x.text), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&f->lock);
    uint32_t i = 0;
    while (i < f->n && !same_mistake(&f->items[i], &x)) i++;
    if (i < f->n) {
        f->items[i].times++;
    } else {
        if (f->n == f->cap) {
            f->cap = f->cap ? f->cap * 2 : 16;
            f->items = realloc(f->items, f->cap * sizeof(EmuFinding));
        }
        f->items[f->n++] = x;
    }
    pthread_mutex_unlock(&f->lock);
    if (fatal(kind) || !lc->opt.collect) {
        w->cluster->core->stop = 1;
        lc->stop = 1;
        return EMU_STOP;
    }
    return EMU_NEXT;
}

static void describe_split(EmuWarp *w, const EmuSplit *s, char *out, size_t size)
{
    int n = snprintf(out, size, "warp %u of CTA (%u,%u,%u) lanes %08x line %u waits for ", w->index, w->cta->ctaid[0],
                     w->cta->ctaid[1], w->cta->ctaid[2], s->mask, s->in ? s->in->line : 0);
    if (n < 0 || (size_t)n >= size) return;
    char *p = out + n;
    size_t left = size - (size_t)n;
    uint32_t off = (uint32_t)s->object & 0xFFFFFF;
    switch (s->blocked) {
    case EMU_WAIT_MBAR: {
        EmuMbar *m = emu_mbar_at(w->cta, off);
        if (m)
            snprintf(p, left,
                     "parity %u of the mbarrier at 0x%x (phase bit %u, %llu arrivals of %u seen, %lld transaction bytes open)",
                     s->info, off, m->phase, (unsigned long long)m->arrivals, m->expected, (long long)m->tx);
        else
            snprintf(p, left, "the mbarrier at 0x%x, which is not initialised", off);
        break;
    }
    case EMU_WAIT_BARRIER: {
        EmuBarrier *b = &w->cta->core->bar[s->object % EMU_N_BARRIERS];
        snprintf(p, left, "named barrier %u (%u threads of %u have arrived)", (uint32_t)s->object, b->arrived, b->expected);
        break;
    }
    case EMU_WAIT_CLUSTER:
        snprintf(p, left, "the cluster barrier (%u threads of %u have arrived)", w->cluster->core->cl_arrived,
                 w->cluster->core->cl_expected);
        break;
    case EMU_WAIT_TMEM:
        snprintf(p, left, "free TMEM columns");
        break;
    default:
        snprintf(p, left, "other lanes of its warp");
    }
}

void emu_describe_deadlock(EmuCluster *c)
{
    EmuClusterCore *cc = c->core;
    char one[320];
    for (uint32_t i = 0; i < cc->n_warps; i++) { /* one finding per blocked instruction */
        EmuWarp *w = cc->order[i];
        for (uint32_t k = 0; k < w->core->n_split; k++) {
            EmuSplit *s = &w->core->split[k];
            if (!s->blocked) continue;
            describe_split(w, s, one, sizeof(one));
            w->pc = s->pc;
            w->active = s->mask;
            emu_find(w, s->in, EMU_FIND_DEADLOCK, "deadlock: %s", one);
            if (s->blocked != EMU_WAIT_MBAR) continue;
            EmuMbar *m = emu_mbar_at(w->cta, (uint32_t)s->object & 0xFFFFFF);
            if (m && !m->pending && m->tx)
                emu_find(w, s->in, EMU_FIND_MBAR_TX,
                         "every thread has arrived at the mbarrier at 0x%x but %lld transaction bytes are still %s", m->off,
                         (long long)(m->tx < 0 ? -m->tx : m->tx), m->tx > 0 ? "expected" : "too many");
        }
    }
}
