/* Address resolution: global memory is host memory inside known allocations, shared addresses carry the CTA rank. */
#include "core.h"

EmuCta *emu_cta_of_rank(EmuCluster *c, uint32_t rank) { return rank < c->n_ctas ? &c->ctas[rank] : 0; }

static const EmuAlloc *alloc_of(const EmuLaunchCore *lc, uint64_t addr)
{
    uint32_t lo = 0, hi = lc->n_allocs; /* sorted by base, disjoint */
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (lc->allocs[mid].base + lc->allocs[mid].size <= addr)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < lc->n_allocs ? &lc->allocs[lo] : 0;
}

uint8_t *emu_global(EmuWarp *w, const EmuInstr *in, uint64_t addr, uint64_t size, uint32_t align, int write)
{
    uint8_t *p = emu_global_bounds(w, in, addr, size, align, write);
    return p && emu_grid_access(w, in, addr, size, write) ? 0 : p;
}

uint8_t *emu_global_bounds(EmuWarp *w, const EmuInstr *in, uint64_t addr, uint64_t size, uint32_t align, int write)
{
    EmuLaunchCore *lc = w->launch->core;
    if (align > 1 && addr % align) {
        emu_find(w, in, EMU_FIND_MISALIGNED, "global address 0x%llx is not a multiple of %u", (unsigned long long)addr, align);
        return 0;
    }
    const EmuAlloc *a = alloc_of(lc, addr);
    if (!a || addr < a->base || addr + size > a->base + a->size) {
        uint64_t params = (uint64_t)(uintptr_t)w->launch->params;
        if (!write && addr >= params && addr + size <= params + lc->param_bytes) return (uint8_t *)(uintptr_t)addr;
        if (a && addr + size > a->base && addr < a->base + a->size)
            emu_find(w, in, EMU_FIND_OOB, "global %s of %llu bytes at 0x%llx leaves allocation %u (%llu bytes at 0x%llx)",
                     write ? "write" : "read", (unsigned long long)size, (unsigned long long)addr, a->id,
                     (unsigned long long)a->size, (unsigned long long)a->base);
        else
            emu_find(w, in, EMU_FIND_OOB, "global %s of %llu bytes at 0x%llx is outside every known allocation",
                     write ? "write" : "read", (unsigned long long)size, (unsigned long long)addr);
        return 0;
    }
    if (write && !a->writable) {
        emu_find(w, in, EMU_FIND_OOB, "global write at 0x%llx into read-only allocation %u", (unsigned long long)addr, a->id);
        return 0;
    }
    return (uint8_t *)(uintptr_t)addr;
}

EmuCta *emu_shared(EmuWarp *w, const EmuInstr *in, uint32_t addr, uint64_t size, uint32_t align, int own, uint32_t *off)
{
    uint32_t rank = addr >> 24, o = addr & 0xFFFFFF;
    *off = o;
    if (align > 1 && o % align) {
        emu_find(w, in, EMU_FIND_MISALIGNED, "shared address 0x%x is not a multiple of %u", addr, align);
        return 0;
    }
    EmuCta *cta = emu_cta_of_rank(w->cluster, rank);
    if (!cta || (own && cta != w->cta)) {
        emu_find(w, in, EMU_FIND_OOB, "shared address 0x%x names CTA rank %u; %s", addr, rank,
                 cta ? "a .shared::cta access must stay in its own CTA" : "the cluster has no such CTA");
        return 0;
    }
    if (o < EMU_SHARED_BASE || o + size > cta->smem_size) {
        emu_find(w, in, EMU_FIND_OOB, "shared access of %llu bytes at 0x%x is outside the CTA's memory (0x%x to 0x%x)",
                 (unsigned long long)size, addr, EMU_SHARED_BASE, cta->smem_size);
        return 0;
    }
    return cta;
}
