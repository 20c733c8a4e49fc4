/* atom and red (PTX ISA: "Parallel Synchronization and Communication Instructions: atom, red"). CTAs may run on several
 * host threads, so global atomics take a lock. add.f32 in global memory flushes subnormals, in shared memory it does not. */
#include <pthread.h>
#include <string.h>

#include "core.h"
#include "floats.h"

static pthread_mutex_t global_lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t bytes_of(uint32_t t)
{
    switch (t) {
    case EMU_T_B16: case EMU_T_U16: case EMU_T_S16: case EMU_T_F16: case EMU_T_BF16: return 2;
    case EMU_T_B64: case EMU_T_U64: case EMU_T_S64: case EMU_T_F64: return 8;
    case EMU_T_B128: return 16;
    default: return 4;
    }
}

static float flush(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v; }

static uint32_t half_add(uint32_t a, uint32_t b, const EmuFormat *f) { return emu_encode(emu_decode(a, f) + emu_decode(b, f), f, EMU_RN, 0); }
static uint32_t half_pick(uint32_t a, uint32_t b, const EmuFormat *f, int max)
{
    double x = emu_decode(a, f), y = emu_decode(b, f);
    if (x != x) return b;
    if (y != y) return a;
    return (x > y) == max ? a : b;
}

static uint64_t apply_half(int op, uint64_t a, uint64_t b, const EmuFormat *f)
{
    return op == EMU_A_ADD ? half_add((uint32_t)a, (uint32_t)b, f) : half_pick((uint32_t)a, (uint32_t)b, f, op == EMU_A_MAX);
}

static uint64_t apply(uint32_t type, int op, int global, uint64_t a, uint64_t b, uint64_t c)
{
    int is64 = bytes_of(type) == 8, is_signed = type == EMU_T_S32 || type == EMU_T_S64;
    switch (type) {
    case EMU_T_F32:
        if (op == EMU_A_ADD) {
            float x = f32_bits((uint32_t)a), y = f32_bits((uint32_t)b);
            if (global) return bits_f32(flush(flush(x) + flush(y)));
            return bits_f32(x + y);
        }
        break;
    case EMU_T_F64: if (op == EMU_A_ADD) return bits_f64(f64_bits(a) + f64_bits(b)); break;
    case EMU_T_F16: return apply_half(op, a & 0xFFFF, b & 0xFFFF, &EMU_FMT_F16);
    case EMU_T_BF16: return apply_half(op, a & 0xFFFF, b & 0xFFFF, &EMU_FMT_BF16);
    case EMU_T_F16X2:
        return apply_half(op, a & 0xFFFF, b & 0xFFFF, &EMU_FMT_F16) | apply_half(op, a >> 16, b >> 16, &EMU_FMT_F16) << 16;
    case EMU_T_BF16X2:
        return apply_half(op, a & 0xFFFF, b & 0xFFFF, &EMU_FMT_BF16) | apply_half(op, a >> 16, b >> 16, &EMU_FMT_BF16) << 16;
    default: break;
    }
    uint64_t mask = is64 ? ~0ull : bytes_of(type) == 2 ? 0xFFFF : 0xFFFFFFFFu;
    a &= mask, b &= mask, c &= mask;
    int less = is_signed ? (is64 ? (int64_t)a < (int64_t)b : (int32_t)a < (int32_t)b) : a < b;
    switch (op) {
    case EMU_A_ADD: return (a + b) & mask;
    case EMU_A_MIN: return less ? a : b;
    case EMU_A_MAX: return less ? b : a;
    case EMU_A_AND: return a & b;
    case EMU_A_OR: return a | b;
    case EMU_A_XOR: return a ^ b;
    case EMU_A_INC: return a >= b ? 0 : a + 1;
    case EMU_A_DEC: return a == 0 || a > b ? b : a - 1;
    case EMU_A_EXCH: return b;
    default: return a == b ? c : a; /* CAS: operands compare, swap */
    }
}

/* One lane, one element. Atomics acquire and release nothing here; they do not race with each other. */
static int one(EmuWarp *w, const EmuInstr *in, const EmuOperand *mem, int l, uint32_t skip, int32_t b_reg, int32_t c_reg, uint64_t *old)
{
    uint32_t type = in->mod[1], size = bytes_of(type), off = 0;
    int space = (int)in->mod[0], op = (int)(in->mod[3] & 255);
    uint64_t addr;
    uint8_t *p;
    if (space == EMU_S_SHARED || space == EMU_S_SHARED_CLUSTER) {
        addr = EMU_SHARED_WINDOW | (uint32_t)(emu_reg(w, mem->reg, 0)[l] + (uint32_t)mem->off);
    } else {
        addr = emu_reg64(w, mem->reg, l) + (uint64_t)(int64_t)mem->off;
    }
    addr += skip;
    int shared = space != EMU_S_GLOBAL && EMU_IS_SHARED(addr);
    if (shared) {
        EmuCta *cta = emu_shared(w, in, (uint32_t)addr, size, size, space == EMU_S_SHARED, &off);
        if (!cta) return 1;
        if (w->launch->checks) {
            EmuActor actor = emu_actor_atomic(w, in);
            if (cta != w->cta) emu_remote_access(cta, in, actor.epoch);
            if (emu_smem_read(&actor, cta, off, size) || emu_smem_write(&actor, cta, off, size)) return 1;
        }
        p = cta->smem + off;
    } else {
        p = emu_global(w, in, addr, size, size, 1);
        if (!p) return 1;
    }
    uint64_t b = size == 8 ? emu_reg64(w, b_reg, l) : emu_reg(w, b_reg, 0)[l];
    uint64_t c = c_reg == EMU_SINK ? 0 : size == 8 ? emu_reg64(w, c_reg, l) : emu_reg(w, c_reg, 0)[l];
    if (!shared) pthread_mutex_lock(&global_lock);
    uint64_t v = 0;
    memcpy(&v, p, size);
    *old = v;
    v = apply(type, op, !shared, v, b, c);
    memcpy(p, &v, size);
    if (!shared) pthread_mutex_unlock(&global_lock);
    return 0;
}

/* Operands are vectors (of one element in the common form); element i is `size` bytes further on. */
static int emu_h_atom(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t size = bytes_of(in->mod[1]), slots = size == 8 ? 2 : 1;
    int swap = (in->mod[3] & 255) == EMU_A_CAS;
    if (size == 16) return emu_find(w, in, EMU_FIND_UNSUPPORTED, "128-bit atomics are not modelled") ? EMU_STOP : EMU_NEXT;
    emu_src_check(w, in, in->op[1].reg, in->mod[0] == EMU_S_SHARED || in->mod[0] == EMU_S_SHARED_CLUSTER ? 1 : 2, exec, EMU_USE_ADDRESS);
    for (int32_t i = 0; i < in->op[2].off; i++) {
        int32_t d = emu_vec(w, &in->op[0], (uint32_t)i), b = emu_vec(w, &in->op[2], (uint32_t)i);
        int32_t c = swap ? emu_vec(w, &in->op[3], (uint32_t)i) : EMU_SINK;
        emu_src_check(w, in, b, slots, exec, EMU_USE_STORE);
        if (swap) emu_src_check(w, in, c, slots, exec, EMU_USE_STORE);
        if (d >= 0) emu_dst_begin(w, in, d, slots, exec);
        for (uint32_t m = exec; m; m &= m - 1) {
            int l = __builtin_ctz(m);
            uint64_t old;
            if (one(w, in, &in->op[1], l, (uint32_t)i * size, b, c, &old)) return EMU_STOP;
            if (d < 0) continue;
            emu_dst(w, d, 0)[l] = (uint32_t)old;
            if (slots == 2) emu_dst(w, d, 1)[l] = (uint32_t)(old >> 32);
        }
        if (d >= 0) emu_dst_done(w, d, slots, exec, 0xFFFFFFFFu);
    }
    w->cluster->core->progress++;
    return EMU_NEXT;
}

static int emu_h_red(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    uint32_t size = bytes_of(in->mod[1]), slots = size == 8 ? 2 : 1;
    emu_src_check(w, in, in->op[0].reg, in->mod[0] == EMU_S_SHARED || in->mod[0] == EMU_S_SHARED_CLUSTER ? 1 : 2, exec, EMU_USE_ADDRESS);
    for (int32_t i = 0; i < in->op[1].off; i++) {
        int32_t reg = emu_vec(w, &in->op[1], (uint32_t)i);
        emu_src_check(w, in, reg, slots, exec, EMU_USE_STORE);
        for (uint32_t m = exec; m; m &= m - 1) {
            uint64_t old;
            if (one(w, in, &in->op[0], __builtin_ctz(m), (uint32_t)i * size, reg, EMU_SINK, &old)) return EMU_STOP;
        }
    }
    w->cluster->core->progress++;
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_atom[] = {EMU_ENTRY(atom), EMU_ENTRY(red), {0}};
