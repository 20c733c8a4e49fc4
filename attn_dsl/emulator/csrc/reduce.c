#include "reduce.h"

#include <string.h>

#include "floats.h"

static int size_of(int type)
{
    switch (type) {
    case EMU_T_F16:
    case EMU_T_BF16: return 2;
    case EMU_T_U32:
    case EMU_T_S32:
    case EMU_T_B32:
    case EMU_T_F32: return 4;
    case EMU_T_U64:
    case EMU_T_S64:
    case EMU_T_B64:
    case EMU_T_F64: return 8;
    default: return 0;
    }
}

int emu_reduce_supported(int type, int op)
{
    int bits = op == EMU_A_AND || op == EMU_A_OR || op == EMU_A_XOR, order = op == EMU_A_MIN || op == EMU_A_MAX;
    switch (type) {
    case EMU_T_F16:
    case EMU_T_BF16: return op == EMU_A_ADD || order;
    case EMU_T_F32:
    case EMU_T_F64: return op == EMU_A_ADD;
    case EMU_T_U32: return op == EMU_A_ADD || order || bits || op == EMU_A_INC || op == EMU_A_DEC;
    case EMU_T_S32:
    case EMU_T_U64:
    case EMU_T_S64: return op == EMU_A_ADD || order || bits;
    case EMU_T_B32:
    case EMU_T_B64: return bits;
    default: return 0;
    }
}

static float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static uint32_t half_op(uint32_t a, uint32_t b, int type, int op)
{
    float x = type == EMU_T_F16 ? f16_f32(a) : bf16_f32(a), y = type == EMU_T_F16 ? f16_f32(b) : bf16_f32(b);
    float r = op == EMU_A_ADD ? x + y : op == EMU_A_MIN ? fminf(x, y) : fmaxf(x, y);
    return type == EMU_T_F16 ? f32_f16(r) : f32_bf16(bits_f32(r));
}

static uint32_t op32(uint32_t a, uint32_t b, int type, int op)
{
    if (type == EMU_T_F32) return bits_f32(flush(flush(f32_bits(a)) + flush(f32_bits(b))));
    int less = type == EMU_T_S32 ? (int32_t)a < (int32_t)b : a < b;
    switch (op) {
    case EMU_A_ADD: return a + b;
    case EMU_A_MIN: return less ? a : b;
    case EMU_A_MAX: return less ? b : a;
    case EMU_A_AND: return a & b;
    case EMU_A_OR: return a | b;
    case EMU_A_XOR: return a ^ b;
    case EMU_A_INC: return a >= b ? 0 : a + 1;
    default: return a == 0 || a > b ? b : a - 1;
    }
}

static uint64_t op64(uint64_t a, uint64_t b, int type, int op)
{
    if (type == EMU_T_F64) return bits_f64(f64_bits(a) + f64_bits(b));
    int less = type == EMU_T_S64 ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case EMU_A_ADD: return a + b;
    case EMU_A_MIN: return less ? a : b;
    case EMU_A_MAX: return less ? b : a;
    case EMU_A_AND: return a & b;
    case EMU_A_OR: return a | b;
    default: return a ^ b;
    }
}

/* Compare and exchange of the aligned word: other CTAs run on other threads. */
static void one(uint8_t *p, const uint8_t *s, int type, int op, int size)
{
    if (size == 8) {
        uint64_t b, *d = (uint64_t *)(void *)p, old = __atomic_load_n(d, __ATOMIC_RELAXED);
        memcpy(&b, s, 8);
        while (!__atomic_compare_exchange_n(d, &old, op64(old, b, type, op), 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
        return;
    }
    uintptr_t at = (uintptr_t)p;
    uint32_t shift = (uint32_t)(at & 3) * 8, b = 0, mask = size == 4 ? 0xFFFFFFFFu : 0xFFFFu << shift;
    uint32_t *d = (uint32_t *)(at & ~(uintptr_t)3), old = __atomic_load_n(d, __ATOMIC_RELAXED), want;
    memcpy(&b, s, (size_t)size);
    do {
        uint32_t r = size == 4 ? op32(old, b, type, op) : half_op(old >> shift & 0xFFFF, b, type, op);
        want = (old & ~mask) | (r << shift & mask);
    } while (!__atomic_compare_exchange_n(d, &old, want, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

void emu_reduce(uint8_t *dst, const uint8_t *src, uint32_t n, int type, int op)
{
    int size = size_of(type);
    for (uint32_t i = 0; i < n; i++) one(dst + i * (uint32_t)size, src + i * (uint32_t)size, type, op, size);
}
