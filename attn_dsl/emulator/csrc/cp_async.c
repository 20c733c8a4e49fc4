/* cp.async: per-thread copies of 4, 8 or 16 bytes from global to shared memory, groups, and arrival on an mbarrier (PTX
 * ISA, "cp.async", "cp.async.mbarrier.arrive"). The writes go through the generic proxy. */
#include <string.h>

#include "emu.h"

enum { SRC_SIZE = 1, IGNORE_SRC = 2 }; /* mod[1] */

typedef struct Copies {
    uint32_t n, bytes;
    struct {
        uint8_t *dst;
        const uint8_t *src;
        uint32_t size; /* bytes to read; the rest is zero */
    } lane[32];
} Copies;

static void run_copies(EmuAsync *a)
{
    const Copies *c = (const void *)a->payload;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->lane[i].size) memcpy(c->lane[i].dst, c->lane[i].src, c->lane[i].size);
        memset(c->lane[i].dst + c->lane[i].size, 0, c->bytes - c->lane[i].size);
    }
}

/* Bytes lane reads. */
static uint32_t source_size(EmuWarp *w, const EmuInstr *in, uint32_t lane, uint32_t bytes)
{
    if (in->mod[1] == SRC_SIZE) return emu_reg(w, in->op[3].reg, 0)[lane];
    if (in->mod[1] == IGNORE_SRC) return emu_pred(w, &in->op[3]) >> lane & 1 ? 0 : bytes;
    return bytes;
}

static int emu_h_cp_async(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    Copies c = {.bytes = emu_uniform(w, &in->op[2], exec)};
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[1].reg, 2, exec, EMU_USE_ADDRESS);
    if (in->mod[1] == SRC_SIZE) emu_src_check(w, in, in->op[3].reg, 1, exec, EMU_USE_ADDRESS);
    EmuActor actor = emu_actor_queue(w, in, EMU_Q_CPASYNC);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off, size = source_size(w, in, lane, c.bytes);
        if (size > c.bytes)
            return emu_find(w, in, EMU_FIND_OOB, "cp.async reads %u bytes of a copy of %u", size, c.bytes);
        EmuCta *cta = emu_shared(w, in, emu_reg(w, in->op[0].reg, 0)[lane] + (uint32_t)in->op[0].off, c.bytes, c.bytes, 1, &off);
        if (!cta) return EMU_STOP;
        uint64_t from = emu_reg64(w, in->op[1].reg, (int)lane) + (uint64_t)(int64_t)in->op[1].off;
        const uint8_t *src = size ? emu_global(w, in, from, size, c.bytes, 0) : NULL;
        if (size && !src) return EMU_STOP;
        if (emu_smem_write(&actor, cta, off, c.bytes)) return EMU_STOP;
        c.lane[c.n].dst = cta->smem + off;
        c.lane[c.n].src = src;
        c.lane[c.n++].size = size;
        if (w->launch->late) memset(cta->smem + off, 0xFF, c.bytes);
    }
    emu_count_engine(w, EMU_E_CPASYNC, (uint64_t)c.n * c.bytes);
    EmuAsync *a = emu_async_new(w, in, EMU_Q_CPASYNC, run_copies, sizeof(Copies));
    memcpy(a->payload, &c, sizeof(c));
    emu_async_submit(a);
    return EMU_NEXT;
}

static int emu_h_cp_async_commit(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)in, (void)exec;
    emu_group_commit(w, EMU_Q_CPASYNC);
    return EMU_NEXT;
}

static int emu_h_cp_async_wait(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_group_wait(w, EMU_Q_CPASYNC, emu_uniform(w, &in->op[0], exec));
    return EMU_NEXT;
}

static int emu_h_cp_async_wait_all(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)in, (void)exec;
    emu_group_commit(w, EMU_Q_CPASYNC);
    emu_group_wait(w, EMU_Q_CPASYNC, 0);
    return EMU_NEXT;
}

typedef struct Arrive {
    uint32_t n;
    struct {
        EmuCta *cta;
        uint32_t off;
    } lane[32];
} Arrive;

static void run_arrive(EmuAsync *a)
{
    const Arrive *r = (const void *)a->payload;
    for (uint32_t i = 0; i < r->n; i++) emu_mbar_arrive_queue(a->w, a->in, r->lane[i].cta, r->lane[i].off, EMU_Q_CPASYNC, a->clock);
}

static int emu_h_cp_async_mbar_arrive(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    Arrive r = {0};
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    for (uint32_t m = exec; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m), off;
        EmuCta *cta = emu_shared(w, in, emu_reg(w, in->op[0].reg, 0)[lane] + (uint32_t)in->op[0].off, 8, 8, 1, &off);
        if (!cta) return EMU_STOP;
        if (!in->mod[0]) emu_mbar_inc_pending(w, in, cta, off);
        r.lane[r.n].cta = cta;
        r.lane[r.n++].off = off;
    }
    EmuAsync *a = emu_async_new(w, in, EMU_Q_CPASYNC, run_arrive, sizeof(Arrive));
    memcpy(a->payload, &r, sizeof(r));
    emu_async_submit(a);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_cp_async[] = {
    EMU_ENTRY(cp_async),          EMU_ENTRY(cp_async_commit),      EMU_ENTRY(cp_async_wait),
    EMU_ENTRY(cp_async_wait_all), EMU_ENTRY(cp_async_mbar_arrive), {0}};
