/* tcgen05.commit, tcgen05.fence, tcgen05.shift (PTX ISA, "TensorCore 5th Generation Specialized Synchronization"). */
#include "tmem.h"

typedef struct Commit {
    EmuCta *cta;
    uint32_t off, mask; /* mask: CTA ranks to signal, 0 = the CTA of the address */
} Commit;

static void run_commit(EmuAsync *a)
{
    const Commit *c = (const void *)a->payload;
    if (!c->mask) {
        emu_mbar_arrive_queue(a->w, a->in, c->cta, c->off, EMU_Q_MMA, a->clock);
        return;
    }
    for (uint32_t m = c->mask; m; m &= m - 1) {
        EmuCta *cta = emu_cta_of_rank(a->w->cluster, (uint32_t)__builtin_ctz(m));
        emu_mbar_arrive_queue(a->w, a->in, cta, c->off, EMU_Q_MMA, a->clock);
    }
}

/* Each active thread makes its own arrival; only the thread that issued the MMAs has anything to wait for. */
static int emu_h_tcgen05_commit(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    if ((exec & (exec - 1)) &&
        emu_find(w, in, EMU_FIND_UNELECTED, "tcgen05.commit by lanes %08x; every lane makes an arrival of its own", exec))
        return EMU_STOP;
    emu_tcgen05_fence(w, 0);
    int multicast = in->mod[1] & EMU_BULK_MULTICAST;
    if (multicast) emu_src_check(w, in, in->op[1].reg, 1, exec, EMU_USE_MMA);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off, mask = 0;
        EmuCta *cta = emu_shared(w, in, emu_reg(w, in->op[0].reg, 0)[lane] + (uint32_t)in->op[0].off, 8, 8, 0, &off);
        if (!cta) return EMU_STOP;
        if (multicast) {
            mask = emu_reg(w, in->op[1].reg, 0)[lane] & 0xFFFF;
            if (!mask || mask >> w->cluster->n_ctas)
                return emu_find(w, in, EMU_FIND_OOB, "tcgen05.commit to CTA mask 0x%x in a cluster of %u", mask, w->cluster->n_ctas);
        }
        EmuAsync *a = emu_async_new(w, in, EMU_Q_MMA, run_commit, sizeof(Commit));
        *(Commit *)(void *)a->payload = (Commit){cta, off, mask};
        emu_async_submit(a);
    }
    return EMU_NEXT;
}

/* Without the strict option, happens-before follows the waits themselves (commit and mbarrier, wait::ld, wait::st): fences
 * add nothing, as flash-attn-4 relies on. */
static int emu_h_tcgen05_fence(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)exec;
    emu_tcgen05_fence(w, (int)in->mod[0]);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_tcgen05_sync[] = {EMU_ENTRY(tcgen05_commit), EMU_ENTRY(tcgen05_fence), {0}};
