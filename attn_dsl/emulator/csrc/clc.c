/* clusterlaunchcontrol: take a cluster of the grid that has not started (PTX ISA, "clusterlaunchcontrol.try_cancel",
 * "clusterlaunchcontrol.query_cancel"). The 16-byte response is opaque; the layout is the one ptxas' code for
 * query_cancel reads: word 0 = ctaid.x, word 1 = ctaid.y | ctaid.z << 16, bit 0 of word 2 = cancelled. */
#include <string.h>

#include "emu.h"

typedef struct Cancel {
    uint32_t response[4];
    uint32_t off, mbar_off, n;
    EmuCta *cta[16];
} Cancel;

static void run_cancel(EmuAsync *a)
{
    const Cancel *c = (const void *)a->payload;
    for (uint32_t k = 0; k < c->n; k++) memcpy(c->cta[k]->smem + c->off, c->response, 16);
    for (uint32_t k = 0; k < c->n; k++) emu_mbar_complete_tx(a->w, a->in, c->cta[k], c->mbar_off, 16);
}

static int emu_h_clc_try_cancel(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[1].reg, 1, exec, EMU_USE_ADDRESS);
    if ((exec & (exec - 1)) &&
        emu_find(w, in, EMU_FIND_UNELECTED, "clusterlaunchcontrol.try_cancel by lanes %08x; one thread must issue it", exec))
        return EMU_STOP;
    if (w->cluster->clc_failed &&
        emu_find(w, in, EMU_FIND_CLC, "clusterlaunchcontrol.try_cancel after a response that said nothing was left"))
        return EMU_STOP;
    uint32_t lane = (uint32_t)emu_lowest(exec), id[3];
    Cancel c = {0};
    EmuCta *dst = emu_shared(w, in, emu_reg(w, in->op[0].reg, 0)[lane] + (uint32_t)in->op[0].off, 16, 16, 1, &c.off);
    EmuCta *bar = emu_shared(w, in, emu_reg(w, in->op[1].reg, 0)[lane] + (uint32_t)in->op[1].off, 8, 8, 1, &c.mbar_off);
    if (!dst || !bar) return EMU_STOP;
    if (in->mod[1] & EMU_BULK_MULTICAST)
        for (uint32_t r = 0; r < w->cluster->n_ctas; r++) c.cta[c.n++] = emu_cta_of_rank(w->cluster, r);
    else
        c.cta[c.n++] = dst;
    for (uint32_t k = 0; k < c.n; k++) {
        EmuActor actor = emu_actor_mbar(w, in, c.cta[k], c.mbar_off);
        if (emu_smem_write(&actor, c.cta[k], c.off, 16)) return EMU_STOP;
        if (w->launch->late) memset(c.cta[k]->smem + c.off, 0xFF, 16);
    }
    if (emu_grid_take(w->launch, id)) {
        c.response[0] = id[0];
        c.response[1] = (id[1] & 0xFFFF) | id[2] << 16;
        c.response[2] = 1;
    } else {
        w->cluster->clc_failed = 1;
    }
    EmuAsync *a = emu_async_new(w, in, EMU_Q_TMA, run_cancel, sizeof(Cancel));
    memcpy(a->payload, &c, sizeof(c));
    emu_async_submit(a);
    return EMU_NEXT;
}

static int emu_h_clc_is_canceled(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t valid = emu_src_check(w, in, in->op[1].reg, 4, exec, EMU_USE_VALUE), yes = 0;
    const uint32_t *word = emu_reg(w, in->op[1].reg, 2);
    int32_t p = in->op[0].reg;
    for (uint32_t l = 0; l < 32; l++) yes |= (word[l] & 1) << l;
    if (p >= 0) {
        w->preds[p] = (w->preds[p] & ~exec) | (yes & exec);
        w->pvalid[p] = (w->pvalid[p] & ~exec) | (valid & exec);
    }
    return EMU_NEXT;
}

static int emu_h_clc_get_ctaid(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t valid = emu_src_check(w, in, in->op[1].reg, 4, exec, EMU_USE_VALUE), mode = in->mod[0];
    const uint32_t *x = emu_reg(w, in->op[1].reg, 0), *yz = emu_reg(w, in->op[1].reg, 1);
    const uint32_t *ok = emu_reg(w, in->op[1].reg, 2);
    for (uint32_t l = 0; l < 32; l++) valid &= ~((~ok[l] & 1) << l); /* undefined when the response cancelled nothing */
    for (uint32_t i = 0; i < (mode == 3 ? 4u : 1u); i++) {
        int32_t reg = mode == 3 ? emu_vec(w, &in->op[0], i) : in->op[0].reg;
        uint32_t which = mode == 3 ? i : mode;
        if (reg == EMU_SINK) continue;
        emu_dst_begin(w, in, reg, 1, exec);
        uint32_t *d = emu_dst(w, reg, 0);
        for (uint32_t m = exec; m; m &= m - 1) {
            int l = __builtin_ctz(m);
            d[l] = which == 0 ? x[l] : which == 1 ? yz[l] & 0xFFFF : which == 2 ? yz[l] >> 16 : 0;
        }
        emu_dst_done(w, reg, 1, exec, valid);
    }
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_clc[] = {
    EMU_ENTRY(clc_try_cancel), EMU_ENTRY(clc_is_canceled), EMU_ENTRY(clc_get_ctaid), {0}};
