/* Divergence and reconvergence of a warp.
 *
 * A warp is a set of splits (program counter, lanes). A divergent branch opens a reconvergence entry at the branch's
 * immediate post-dominator; both sides run independently (either may block without stopping the other) and meet there.
 * When nothing else in the cluster can run, lanes that wait at a reconvergence point go on alone: Volta and later
 * guarantee each thread progress, so waiting there must not be the reason of a deadlock. */
#include <string.h>

#include "core.h"

void emu_warp_reset(EmuWarp *w)
{
    EmuWarpCore *c = w->core;
    memset(c->split, 0, sizeof(c->split[0]));
    for (int i = 0; i < EMU_MAX_CONV; i++) c->conv[i].used = 0;
    c->split[0] = (EmuSplit){.pc = 0, .mask = w->live, .conv = -1};
    c->n_split = w->live ? 1 : 0;
    c->cur = 0;
    w->pc = 0;
    w->active = w->live;
}

static int conv_new(EmuWarpCore *c)
{
    for (int i = 0; i < EMU_MAX_CONV; i++)
        if (!c->conv[i].used) return i;
    return -1;
}

static void split_remove(EmuWarpCore *c, uint32_t i)
{
    c->n_split--;
    if (i != c->n_split) c->split[i] = c->split[c->n_split];
    if (c->cur == c->n_split && c->cur != i) c->cur = i;
}

/* Lets the lanes of entry k go on if all that live are there; repeats for outer entries at the same place. */
static void conv_release(EmuWarp *w, int k)
{
    EmuWarpCore *c = w->core;
    EmuConv *v = &c->conv[k];
    uint32_t live = v->expect & w->live;
    if (v->arrived != live) return;
    v->used = 0;
    if (!live) return;
    uint32_t i = c->n_split++;
    c->split[i] = (EmuSplit){.pc = v->pc, .mask = live, .conv = v->parent};
    if (v->parent >= 0 && c->conv[v->parent].pc == v->pc) {
        int parent = v->parent;
        c->conv[parent].arrived |= live;
        c->n_split--;
        conv_release(w, parent);
    }
}

/* The split `cur` stands at its reconvergence point: park it, maybe release. */
void emu_warp_converge(EmuWarp *w)
{
    EmuWarpCore *c = w->core;
    EmuSplit s = c->split[c->cur];
    c->conv[s.conv].arrived |= s.mask;
    split_remove(c, c->cur);
    conv_release(w, s.conv);
    if (c->cur >= c->n_split) c->cur = 0;
}

int emu_warp_branch(EmuWarp *w, uint32_t taken, uint32_t target, int32_t reconverge)
{
    EmuWarpCore *c = w->core;
    EmuSplit *s = &c->split[c->cur];
    uint32_t next = s->pc + 1, mask = s->mask, rest = mask & ~taken;
    if (!rest) {
        s->pc = target;
        return EMU_JUMP;
    }
    int k = s->conv;
    if (reconverge >= 0 && (k < 0 || c->conv[k].pc != (uint32_t)reconverge)) {
        k = conv_new(c);
        if (k >= 0) {
            c->conv[k] = (EmuConv){.pc = (uint32_t)reconverge, .expect = mask, .parent = s->conv, .used = 1};
        } else {
            k = s->conv; /* no room: run apart until the outer point */
        }
    }
    s->pc = next;
    s->mask = rest;
    s->conv = k;
    c->split[c->n_split++] = (EmuSplit){.pc = target, .mask = taken, .conv = k};
    return EMU_JUMP;
}

void emu_warp_exit(EmuWarp *w, uint32_t lanes)
{
    EmuWarpCore *c = w->core;
    EmuSplit *s = &c->split[c->cur];
    w->live &= ~lanes;
    s->mask &= ~lanes;
    s->pc++;
    if (!s->mask) {
        split_remove(c, c->cur);
        if (c->cur >= c->n_split) c->cur = 0;
    }
    for (uint32_t i = 0; i < c->n_split; i++) /* who waits for the exited lanes looks again */
        if (c->split[i].blocked == EMU_WAIT_WARP) c->split[i].blocked = 0;
    for (int again = 1; again;) { /* an entry whose missing lanes have exited is complete */
        again = 0;
        for (int k = 0; k < EMU_MAX_CONV; k++) {
            EmuConv *v = &c->conv[k];
            if (v->used && v->arrived == (v->expect & w->live)) {
                conv_release(w, k);
                again = 1;
            }
        }
    }
}

/* Lanes parked at reconvergence points go on without the others. Returns how many splits that made. */
int emu_warp_unpark(EmuWarp *w)
{
    EmuWarpCore *c = w->core;
    int made = 0;
    for (int k = 0; k < EMU_MAX_CONV; k++) {
        EmuConv *v = &c->conv[k];
        if (!v->used || !v->arrived) continue;
        c->split[c->n_split++] = (EmuSplit){.pc = v->pc, .mask = v->arrived, .conv = v->parent};
        v->expect &= ~v->arrived;
        v->arrived = 0;
        made++;
    }
    return made;
}
