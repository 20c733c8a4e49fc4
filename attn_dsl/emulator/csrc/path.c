/* The path option: what every warp of the chosen clusters executed, as a list of steps. A step is the entry of a basic
 * block, or an instruction that others can see (mbarriers, barriers, MMAs, copies, tensor memory) with the values of its
 * operands and the bytes or floating-point operations it counted. A timing model runs on these. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

int emu_path_event(const EmuInstr *in)
{
    return (in->cls >= EMU_C_TMEM && in->cls <= EMU_C_BARRIER) || (in->cls == EMU_C_FENCE && in->nops);
}

/* A step at `pc`, not yet part of the path. */
void emu_path_begin(EmuWarp *w, const EmuInstr *in, uint32_t pc, uint32_t exec, EmuStep *s)
{
    int lane = emu_lowest(exec);
    memset(s, 0, sizeof(*s));
    s->pc = pc;
    s->lanes = exec;
    for (uint32_t i = 0; i < in->nops && i < EMU_STEP_OPS; i++) {
        int32_t reg = in->op[i].reg;
        int known = reg >= 0 ? reg < (int32_t)w->prog->n_slots : ~reg < (int32_t)w->prog->n_consts;
        if (known) s->op[i] = emu_reg(w, reg, 0)[lane] + (uint32_t)in->op[i].off;
    }
    for (int k = 0; k < EMU_N_ENGINES; k++) s->amount -= w->engines[k];
}

void emu_path_end(EmuWarp *w, EmuStep *s)
{
    EmuWarpCore *c = w->core;
    for (int k = 0; k < EMU_N_ENGINES; k++) s->amount += w->engines[k];
    if (c->n_steps == c->cap_steps) {
        c->cap_steps = c->cap_steps ? 2 * c->cap_steps : 1024;
        c->steps = realloc(c->steps, c->cap_steps * sizeof(EmuStep));
        if (!c->steps) abort();
    }
    c->steps[c->n_steps++] = *s;
}

/* Entry of a block: no operands, no lanes. */
void emu_path_enter(EmuWarp *w, uint32_t pc)
{
    EmuStep s = {.pc = pc};
    for (int k = 0; k < EMU_N_ENGINES; k++) s.amount -= w->engines[k];
    emu_path_end(w, &s);
}

/* The warp is done: its steps are the launch's. Under the launch's lock. */
void emu_path_keep(EmuWarp *w, EmuPaths *all)
{
    EmuWarpCore *c = w->core;
    const EmuLaunch *l = w->launch;
    if (!c->steps) return;
    if (all->n == all->cap) {
        all->cap = all->cap ? 2 * all->cap : 64;
        all->items = realloc(all->items, all->cap * sizeof(EmuPath));
        if (!all->items) abort();
    }
    const uint32_t *id = w->cta->ctaid;
    all->items[all->n++] = (EmuPath){.cta = ((uint64_t)id[2] * l->grid[1] + id[1]) * l->grid[0] + id[0],
                                     .warp = w->index,
                                     .n = c->n_steps,
                                     .steps = c->steps};
    c->steps = NULL;
    c->n_steps = c->cap_steps = 0;
}

void emu_paths_free(EmuPaths *all)
{
    for (uint32_t i = 0; i < all->n; i++) free(all->items[i].steps);
    free(all->items);
    memset(all, 0, sizeof(*all));
}

EMU_API uint32_t emu_path_get(void *program, uint32_t i, EmuPath *out)
{
    EmuHandle *h = program;
    if (i < h->paths.n) *out = h->paths.items[i];
    return h->paths.n;
}
