/* Programmatic dependent launch: a grid may start before the one before it has ended, and must execute griddepcontrol.wait
 * before it touches what that one wrote (PTX ISA, "griddepcontrol"). Launches run one after the other here, so the rule is
 * checked: what a grid writes is noted when it lets dependents start, and the wait is an event other warps can learn of. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

EmuWritten *emu_written_new(const EmuAlloc *allocs, uint32_t n)
{
    EmuWritten *x = calloc(1, sizeof(*x));
    x->n = n;
    x->allocs = malloc((n + 1) * sizeof(EmuAlloc));
    x->words = calloc(n + 1, sizeof(uint8_t *));
    memcpy(x->allocs, allocs, n * sizeof(EmuAlloc));
    for (uint32_t i = 0; i < n; i++) x->words[i] = calloc(allocs[i].size / 4 + 2, 1);
    return x;
}

EMU_API void emu_written_free(void *written)
{
    EmuWritten *x = written;
    if (!x) return;
    for (uint32_t i = 0; i < x->n; i++) free(x->words[i]);
    free(x->words), free(x->allocs), free(x);
}

EMU_API void *emu_written_take(void *program)
{
    EmuHandle *h = program;
    EmuWritten *x = h->written;
    h->written = NULL;
    return x;
}

/* The bytes for [addr, addr + size), or NULL; *n of them. */
static uint8_t *words_of(const EmuWritten *x, uint64_t addr, uint64_t size, uint64_t *n)
{
    uint32_t lo = 0, hi = x->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (x->allocs[mid].base + x->allocs[mid].size <= addr)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == x->n || addr < x->allocs[lo].base) return NULL;
    uint64_t first = (addr - x->allocs[lo].base) / 4;
    uint64_t end = addr + size - x->allocs[lo].base, limit = x->allocs[lo].size;
    *n = ((end < limit ? end : limit) + 3) / 4 - first;
    return x->words[lo] + first;
}

int emu_grid_access(EmuWarp *w, const EmuInstr *in, uint64_t addr, uint64_t size, int write)
{
    EmuLaunchCore *lc = w->launch->core;
    uint64_t n;
    if (EMU_LIKELY(!lc->written && !lc->before) || !in) return EMU_NEXT;
    uint8_t *words = write && lc->written ? words_of(lc->written, addr, size, &n) : NULL;
    if (words) memset(words, 1, n);
    if (!lc->before || w->vc[w->cluster->core->grid_agent]) return EMU_NEXT;
    words = words_of(lc->before, addr, size, &n);
    if (!words || !memchr(words, 1, n)) return EMU_NEXT;
    return emu_find(w, in, EMU_FIND_GRID_ORDER,
                    "global %s at 0x%llx, which the grid before wrote: that grid may still run (it has executed "
                    "griddepcontrol.launch_dependents), and no griddepcontrol.wait comes before",
                    write ? "write" : "read", (unsigned long long)addr);
}

static int emu_h_griddepcontrol(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)exec;
    if (in->mod[0])
        __atomic_store_n(&w->launch->core->published, 1, __ATOMIC_RELAXED);
    else if (w->launch->core->before)
        w->vc[w->cluster->core->grid_agent] = 1;
    return EMU_NEXT;
}

int emu_publishes(const EmuProgram *p)
{
    for (uint32_t i = 0; i < p->n_instr; i++)
        if (p->checked[p->handler_of[i]] == emu_h_griddepcontrol && p->code[i].mod[0]) return 1;
    return 0;
}

const EmuHandlerEntry emu_handlers_grid[] = {EMU_ENTRY(griddepcontrol), {0}};
