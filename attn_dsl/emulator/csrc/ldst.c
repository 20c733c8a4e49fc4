/* ld and st of all state spaces (PTX ISA: "Data Movement and Conversion Instructions: ld, st"). */
#include <string.h>

#include "core.h"

static uint32_t type_bytes(uint32_t t)
{
    switch (t) {
    case EMU_T_B8: case EMU_T_U8: case EMU_T_S8: return 1;
    case EMU_T_B16: case EMU_T_U16: case EMU_T_S16: case EMU_T_F16: case EMU_T_BF16: return 2;
    case EMU_T_B64: case EMU_T_U64: case EMU_T_S64: case EMU_T_F64: return 8;
    case EMU_T_B128: return 16;
    default: return 4;
    }
}

/* The address of a lane: 32 bits for shared and local, 64 for global and generic (which is resolved here). */
static int lane_space(const EmuWarp *w, const EmuInstr *in, const EmuOperand *o, int lane, uint64_t *addr)
{
    int space = (int)in->mod[0];
    if (space == EMU_S_SHARED || space == EMU_S_SHARED_CLUSTER || space == EMU_S_LOCAL || space == EMU_S_PARAM || space == EMU_S_CONST) {
        *addr = (uint32_t)(emu_reg(w, o->reg, 0)[lane] + (uint32_t)o->off);
        return space;
    }
    *addr = emu_reg64(w, o->reg, lane) + (uint64_t)(int64_t)o->off;
    if (space == EMU_S_GLOBAL) return space;
    if (EMU_IS_SHARED(*addr)) {
        *addr = (uint32_t)*addr;
        return EMU_S_SHARED_CLUSTER;
    }
    if (*addr >> 48 == 0xFE) {
        *addr = (uint32_t)*addr;
        return EMU_S_LOCAL;
    }
    return EMU_S_GLOBAL;
}

static uint8_t *locate(EmuWarp *w, const EmuInstr *in, const EmuOperand *o, int lane, uint32_t size, int write, EmuActor *actor)
{
    uint64_t addr;
    int space = lane_space(w, in, o, lane, &addr);
    switch (space) {
    case EMU_S_GLOBAL: return emu_global(w, in, addr, size, size, write);
    case EMU_S_SHARED: case EMU_S_SHARED_CLUSTER: {
        uint32_t off;
        EmuCta *cta = emu_shared(w, in, (uint32_t)addr, size, size, space == EMU_S_SHARED, &off);
        if (!cta) return NULL;
        if (w->launch->checks && cta != w->cta) emu_remote_access(cta, in, actor->epoch);
        if (w->launch->checks && (write ? emu_smem_write(actor, cta, off, size) : emu_smem_read(actor, cta, off, size))) return NULL;
        return cta->smem + off;
    }
    case EMU_S_LOCAL:
        if (addr + size > w->prog->local_bytes || addr % (size < 16 ? size : 16)) {
            emu_find(w, in, EMU_FIND_OOB, "local access of %u bytes at 0x%llx; the thread has %u bytes", size, (unsigned long long)addr,
                     w->prog->local_bytes);
            return NULL;
        }
        return w->core->local + (size_t)lane * w->prog->local_bytes + addr;
    case EMU_S_PARAM:
        if (write || addr + size > w->launch->core->param_bytes) {
            emu_find(w, in, EMU_FIND_OOB, "parameter access of %u bytes at %llu; there are %u", size, (unsigned long long)addr,
                     w->launch->core->param_bytes);
            return NULL;
        }
        return w->launch->params + addr;
    default:
        emu_find(w, in, EMU_FIND_UNSUPPORTED, "constant memory is not modelled");
        return NULL;
    }
}

/* A full warp whose lanes touch one run of shared memory (or all the same word): one check instead of 32. Returns 1 and
 * fills p, 0 if the lanes are scattered, -1 after a finding. */
static int shared_run(EmuWarp *w, const EmuInstr *in, const EmuOperand *o, uint32_t exec, uint32_t size, int write, EmuActor *actor,
                      uint8_t **p)
{
    if (exec != 0xFFFFFFFFu || in->mod[0] != EMU_S_SHARED) return 0;
    const uint32_t *a = emu_reg(w, o->reg, 0);
    uint32_t step = a[1] - a[0], same = 1, off;
    if (step != size && step != 0) return 0;
    for (uint32_t l = 0; l < 32; l++) same &= a[l] - a[0] == l * step;
    if (!same) return 0;
    uint32_t total = step ? 32 * size : size;
    EmuCta *cta = emu_shared(w, in, a[0] + (uint32_t)o->off, total, size, 1, &off);
    if (!cta) return -1;
    if (w->launch->checks && (write ? emu_smem_write(actor, cta, off, total) : emu_smem_read(actor, cta, off, total))) return -1;
    for (uint32_t l = 0; l < 32; l++) p[l] = cta->smem + off + l * step;
    return 1;
}

static void put(uint32_t *d, int lane, uint32_t type, const uint8_t *p, uint32_t slots)
{
    uint32_t v[4] = {0, 0, 0, 0};
    switch (type) {
    case EMU_T_B8: case EMU_T_U8: v[0] = *p; break;
    case EMU_T_S8: v[0] = (uint32_t)(int32_t)(int8_t)*p; v[1] = v[0] >> 31 ? ~0u : 0; break;
    case EMU_T_S16: {
        int16_t h;
        memcpy(&h, p, 2);
        v[0] = slots == 0 ? (uint16_t)h : (uint32_t)(int32_t)h;
        v[1] = v[0] >> 31 ? ~0u : 0;
        break;
    }
    case EMU_T_B16: case EMU_T_U16: case EMU_T_F16: case EMU_T_BF16: memcpy(v, p, 2); break;
    case EMU_T_S32: memcpy(v, p, 4); v[1] = v[0] >> 31 ? ~0u : 0; break;
    default: memcpy(v, p, type_bytes(type));
    }
    for (uint32_t s = 0; s < (slots ? slots : 1); s++) d[32 * s + (uint32_t)lane] = v[s];
}

static uint32_t address_slots(const EmuInstr *in) { return in->mod[0] == EMU_S_GENERIC || in->mod[0] == EMU_S_GLOBAL ? 2 : 1; }

/* Kernel parameters are the same for every lane. */
static int ld_param(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t n = (uint32_t)in->op[0].off, bytes = type_bytes(in->mod[1]), bits = in->mod[2], slots = bits > 32 ? bits / 32 : 1;
    uint32_t at = emu_reg(w, in->op[1].reg, 0)[emu_lowest(exec)] + (uint32_t)in->op[1].off;
    if (at + n * bytes > w->launch->core->param_bytes)
        return emu_find(w, in, EMU_FIND_OOB, "parameter access at %u; there are %u bytes", at, w->launch->core->param_bytes) ? EMU_STOP : EMU_NEXT;
    for (uint32_t i = 0; i < n; i++) {
        int32_t reg = emu_vec(w, &in->op[0], i);
        if (reg == EMU_SINK) continue;
        emu_dst_begin(w, in, reg, slots, exec);
        uint32_t *d = emu_dst(w, reg, 0);
        EMU_LANES(exec, put(d, l, in->mod[1], w->launch->params + at + i * bytes, bits == 16 ? 0 : slots));
        emu_dst_done(w, reg, slots, exec, 0xFFFFFFFFu);
    }
    return EMU_NEXT;
}

static int emu_h_ld(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    if (in->mod[0] == EMU_S_PARAM) return ld_param(w, in, exec);
    uint32_t n = (uint32_t)in->op[0].off, bytes = type_bytes(in->mod[1]), bits = in->mod[2], slots = bits > 32 ? bits / 32 : 1;
    emu_src_check(w, in, in->op[1].reg, address_slots(in), exec, EMU_USE_ADDRESS);
    for (uint32_t i = 0; i < n; i++) {
        int32_t reg = emu_vec(w, &in->op[0], i);
        if (reg != EMU_SINK) emu_dst_begin(w, in, reg, slots, exec);
    }
    uint8_t *p[32];
    EmuActor actor = {0}; /* a load that is not weak does not race with atomics */
    if (w->launch->checks) actor = in->mod[3] == EMU_SEM_WEAK ? emu_actor_warp(w, in) : emu_actor_atomic(w, in);
    int run = shared_run(w, in, &in->op[1], exec, bytes * n, 0, &actor, p);
    if (run < 0) return EMU_STOP;
    for (uint32_t m = run ? 0 : exec; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        p[l] = locate(w, in, &in->op[1], l, bytes * n, 0, &actor);
        if (!p[l]) return EMU_STOP;
    }
    emu_count_engine(w, in->cls == EMU_C_SHARED ? EMU_E_SHARED_BYTES : EMU_E_GLOBAL_BYTES, (uint64_t)__builtin_popcount(exec) * bytes * n);
    for (uint32_t i = 0; i < n; i++) {
        int32_t reg = emu_vec(w, &in->op[0], i);
        if (reg == EMU_SINK) continue;
        uint32_t *d = emu_dst(w, reg, 0);
        if (bytes == 4 && slots == 1) {
            EMU_LANES(exec, memcpy(&d[l], p[l] + 4 * i, 4));
        } else {
            EMU_LANES(exec, put(d, l, in->mod[1], p[l] + bytes * i, bits == 16 ? 0 : slots));
        }
        emu_dst_done(w, reg, slots, exec, 0xFFFFFFFFu);
    }
    return EMU_NEXT;
}

static int emu_h_st(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t n = (uint32_t)in->op[1].off, bytes = type_bytes(in->mod[1]), bits = in->mod[2], slots = bits > 32 ? bits / 32 : 1;
    emu_src_check(w, in, in->op[0].reg, address_slots(in), exec, EMU_USE_ADDRESS);
    for (uint32_t i = 0; i < n; i++) {
        int32_t reg = emu_vec(w, &in->op[1], i);
        emu_src_check(w, in, reg, slots, exec, in->mod[0] == EMU_S_LOCAL ? EMU_USE_VALUE : EMU_USE_STORE);
    }
    EmuActor actor = w->launch->checks ? emu_actor_warp(w, in) : (EmuActor){0};
    uint8_t *at[32];
    int run = shared_run(w, in, &in->op[0], exec, bytes * n, 1, &actor, at);
    if (run < 0) return EMU_STOP;
    for (uint32_t m = exec; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        uint8_t *p = run ? at[l] : locate(w, in, &in->op[0], l, bytes * n, 1, &actor);
        if (!p) return EMU_STOP;
        for (uint32_t i = 0; i < n; i++) {
            int32_t reg = emu_vec(w, &in->op[1], i);
            for (uint32_t s = 0; s < (bytes > 4 ? bytes / 4 : 1); s++) {
                uint32_t v = emu_reg(w, reg, s)[l];
                memcpy(p + bytes * i + 4 * s, &v, bytes < 4 ? bytes : 4);
            }
        }
    }
    emu_count_engine(w, in->cls == EMU_C_SHARED ? EMU_E_SHARED_BYTES : EMU_E_GLOBAL_BYTES, (uint64_t)__builtin_popcount(exec) * bytes * n);
    w->cluster->core->progress++;
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_ldst[] = {EMU_ENTRY(ld), EMU_ENTRY(st), {0}};
