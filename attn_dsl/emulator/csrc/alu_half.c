/* f16 and bf16 arithmetic, plain and packed, and mixed precision with an f32 result (PTX ISA: "Half Precision Floating
 * Point Instructions", "Mixed Precision Floating Point Instructions"). Sums and products of two 16-bit floats are exact in
 * double or rounded to odd there, so the one rounding to 16 bits is right. */
#include <fenv.h>
#include <math.h>

#include "floats.h"
#include "lanes.h"

/* a * b + c in double, rounded to odd: a later rounding to 50 bits or fewer is as if from the exact value. */
static inline double fma_odd(double a, double b, double c)
{
    double p = a * b; /* exact: 22 bits at most */
    double s = p + c, bb = s - p, err = (p - (s - bb)) + (c - bb);
    if (err != 0 && isfinite(s) && !(bits_f64(s) & 1)) {
        uint64_t x = bits_f64(s);
        s = f64_bits((err > 0) == (s > 0) ? x + 1 : x - 1);
    }
    return s;
}

enum { H_ADD, H_SUB, H_MUL, H_FMA, H_MIN, H_MAX, H_NEG, H_ABS, H_EX2, H_TANH };

static inline uint32_t half_finish(double v, const EmuFormat *f, const EmuInstr *in)
{
    uint32_t flags = in->mod[1];
    if (flags & EMU_FF_SAT) v = v > 0 ? (v > 1 ? 1 : v) : 0; /* NaN and -0 become +0 */
    if (flags & EMU_FF_RELU) v = v != v || v > 0 ? v : 0;
    uint32_t r = emu_encode(v, f, in->mod[0], 0);
    if ((flags & EMU_FF_FTZ) && f->exp_bits == 5 && !(r & 0x7C00)) r &= 0x8000;
    return r;
}

static uint32_t half_op(int op, const EmuInstr *in, const EmuFormat *f, uint32_t x, uint32_t y, uint32_t z)
{
    uint32_t flags = in->mod[1];
    if ((flags & EMU_FF_FTZ) && f->exp_bits == 5) {
        if (!(x & 0x7C00)) x &= 0x8000;
        if (!(y & 0x7C00)) y &= 0x8000;
        if (!(z & 0x7C00)) z &= 0x8000;
    }
    uint32_t sign = 0; /* of both operands, with .xorsign.abs */
    if (flags & EMU_FF_XORSIGN) {
        sign = (x ^ y) & 0x8000;
        x &= 0x7FFF, y &= 0x7FFF;
    }
    if (op == H_NEG) return (x ^ 0x8000) & 0xFFFF;
    if (op == H_ABS) return x & 0x7FFF;
    double a = emu_decode(x & 0xFFFF, f), b = emu_decode(y & 0xFFFF, f), c = emu_decode(z & 0xFFFF, f);
    switch (op) {
    case H_ADD: return half_finish(fma_odd(a, 1.0, b), f, in);
    case H_SUB: return half_finish(fma_odd(a, 1.0, -b), f, in);
    case H_MUL: return half_finish(a * b, f, in);
    case H_FMA: return half_finish(fma_odd(a, b, c), f, in);
    case H_EX2: return half_finish(exp2(a), f, in);
    case H_TANH: return half_finish(tanh(a), f, in);
    default: break;
    }
    if ((a != a && b != b) || ((flags & EMU_FF_NAN) && (a != a || b != b))) return 0x7FFF;
    if (a != a) return (y & 0xFFFF) | sign;
    if (b != b) return (x & 0xFFFF) | sign;
    if (a == b) return ((op == H_MAX ? x & y : x | y) & 0xFFFF) | sign;
    return (((a > b) == (op == H_MAX) ? x : y) & 0xFFFF) | sign;
}

static inline uint32_t half_pair(int op, const EmuInstr *in, const EmuFormat *f, uint32_t x, uint32_t y, uint32_t z)
{
    return half_op(op, in, f, x, y, z) | half_op(op, in, f, x >> 16, y >> 16, z >> 16) << 16;
}

#define TYPES(op, N, CODE, ARGS)                                                     \
    LANE##N(op##_f16, 1, 1, uint32_t, half_op(CODE, in, &EMU_FMT_F16, ARGS))         \
    LANE##N(op##_bf16, 1, 1, uint32_t, half_op(CODE, in, &EMU_FMT_BF16, ARGS))       \
    LANE##N(op##_f16x2, 1, 1, uint32_t, half_pair(CODE, in, &EMU_FMT_F16, ARGS))     \
    LANE##N(op##_bf16x2, 1, 1, uint32_t, half_pair(CODE, in, &EMU_FMT_BF16, ARGS))
#define ONE a, 0, 0
#define TWO a, b, 0
#define THREE a, b, c
TYPES(add, 2, H_ADD, TWO)
TYPES(sub, 2, H_SUB, TWO)
TYPES(mul, 2, H_MUL, TWO)
TYPES(fma, 3, H_FMA, THREE)
TYPES(min, 2, H_MIN, TWO)
TYPES(max, 2, H_MAX, TWO)
TYPES(neg, 1, H_NEG, ONE)
TYPES(abs, 1, H_ABS, ONE)
TYPES(ex2, 1, H_EX2, ONE)
TYPES(tanh, 1, H_TANH, ONE)

static inline uint32_t nan_bits(float v) { return v != v ? 0x7FFFFFFF : bits_f32(v); }
static inline uint32_t mixed(const EmuInstr *in, float a, float b, float c)
{
    static const int modes[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    float v[4] = {a, b, c, 0};
    if (in->mod[0] != EMU_RN) {
        fesetround(modes[in->mod[0] & 3]);
        EMU_ROUNDING_BARRIER(v)
        v[3] = __builtin_fmaf(v[0], v[1], v[2]);
        EMU_ROUNDING_BARRIER(v)
        fesetround(FE_TONEAREST);
    } else {
        v[3] = __builtin_fmaf(a, b, c);
    }
    if (in->mod[1] & EMU_FF_SAT) v[3] = v[3] > 0 ? (v[3] > 1 ? 1 : v[3]) : 0;
    return nan_bits(v[3]);
}
LANE3(fma_f32_bf16, 1, 1, uint32_t, mixed(in, bf16_f32(a), bf16_f32(b), f32_bits(c)))
LANE3(fma_f32_f16, 1, 1, uint32_t, mixed(in, f16_f32(a), f16_f32(b), f32_bits(c)))
LANE2(add_f32_bf16, 1, 1, uint32_t, mixed(in, bf16_f32(a), 1.0f, f32_bits(b)))
LANE2(add_f32_f16, 1, 1, uint32_t, mixed(in, f16_f32(a), 1.0f, f32_bits(b)))
LANE2(sub_f32_bf16, 1, 1, uint32_t, mixed(in, bf16_f32(a), 1.0f, -f32_bits(b)))
LANE2(sub_f32_f16, 1, 1, uint32_t, mixed(in, f16_f32(a), 1.0f, -f32_bits(b)))

#define ROW(op) LANE_ENTRY(op##_f16), LANE_ENTRY(op##_bf16), LANE_ENTRY(op##_f16x2), LANE_ENTRY(op##_bf16x2)
const EmuHandlerEntry emu_handlers_alu_half[] = {
    ROW(add), ROW(sub), ROW(mul), ROW(fma), ROW(min), ROW(max), ROW(neg), ROW(abs), ROW(ex2), ROW(tanh),
    LANE_ENTRY(fma_f32_bf16), LANE_ENTRY(fma_f32_f16), LANE_ENTRY(add_f32_bf16), LANE_ENTRY(add_f32_f16),
    LANE_ENTRY(sub_f32_bf16), LANE_ENTRY(sub_f32_f16), {0}};
