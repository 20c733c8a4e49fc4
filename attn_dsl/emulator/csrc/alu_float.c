/* f32, packed f32x2 and f64 arithmetic (PTX ISA: "Floating Point Instructions"). NaN results are the canonical NaN.
 * Rounding other than to nearest runs the same loop under another rounding mode of the host. */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "floats.h"
#include "lanes.h"
#include "mufu.h"

#define KEEP __attribute__((noinline, noclone))
typedef float __attribute__((may_alias)) lanef;

static const int host_rounding[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

static inline float flush(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v; }
static inline float canonical(float v) { return v != v ? f32_bits(0x7FFFFFFF) : v; }
static inline float saturate(float v) { return v > 0 ? (v > 1 ? 1.0f : v) : 0.0f; } /* NaN and -0 become +0 */

/* One loop over n floats for each operation, n = 32 (f32) or 64 (f32x2). */
#define VECTOR2(op, EXPR)                                                                  \
    static KEEP void vec_##op(float *restrict d, const lanef *x, const lanef *y, int n)    \
    {                                                                                      \
        for (int i = 0; i < n; i++) {                                                      \
            float a = x[i], b = y[i], r = (EXPR);                                          \
            d[i] = r != r ? f32_bits(0x7FFFFFFF) : r;                                      \
        }                                                                                  \
    }
VECTOR2(add, a + b)
VECTOR2(sub, a - b)
VECTOR2(mul, a * b)
VECTOR2(div, a / b)
static KEEP void vec_fma(float *restrict d, const lanef *x, const lanef *y, const lanef *z, int n)
{
    for (int i = 0; i < n; i++) {
        float r = __builtin_fmaf(x[i], y[i], z[i]);
        d[i] = r != r ? f32_bits(0x7FFFFFFF) : r;
    }
}

static inline void write_floats(EmuWarp *w, const EmuInstr *in, const float *r, uint32_t slots, uint32_t exec)
{
    uint32_t *d = emu_dst(w, in->op[0].reg, 0);
    for (uint32_t s = 0; s < slots; s++) {
        const float *p = r + 32 * s;
        if (exec == 0xFFFFFFFFu)
            memcpy(d + 32 * s, p, 128);
        else
            EMU_LANES(exec, d[32 * s + (uint32_t)l] = bits_f32(p[l]));
    }
}

static inline void flush_all(float *d, const uint32_t *s, int n)
{
    for (int i = 0; i < n; i++) d[i] = flush(f32_bits(s[i]));
}

#define ARITH(fn, slots, nsrc, CALL)                                                                              \
    static inline __attribute__((always_inline)) int lane_##fn(EmuWarp *w, const EmuInstr *in, uint32_t exec, int checked) \
    {                                                                                                             \
        uint32_t valid = 0xFFFFFFFFu;                                                                             \
        if (checked) {                                                                                            \
            for (int i = 1; i <= nsrc; i++) valid &= lane_src(w, in, i, slots, exec);                             \
            emu_dst_begin(w, in, in->op[0].reg, slots, exec);                                                     \
        }                                                                                                         \
        const lanef *x = (const lanef *)emu_reg(w, in->op[1].reg, 0), *y = (const lanef *)emu_reg(w, in->op[2].reg, 0), \
                    *z = nsrc > 2 ? (const lanef *)emu_reg(w, in->op[3].reg, 0) : x;                              \
        (void)z;                                                                                                  \
        float r[64], fx[64], fy[64], fz[64];                                                                      \
        int n = 32 * slots, ftz = in->mod[1] & EMU_FF_FTZ;                                                        \
        if (EMU_UNLIKELY(ftz)) {                                                                                  \
            flush_all(fx, (const uint32_t *)x, n);                                                                \
            flush_all(fy, (const uint32_t *)y, n);                                                                \
            flush_all(fz, (const uint32_t *)z, n);                                                                \
            x = fx, y = fy, z = fz;                                                                               \
        }                                                                                                         \
        if (EMU_UNLIKELY(in->mod[0] != EMU_RN)) {                                                                 \
            fesetround(host_rounding[in->mod[0] & 3]);                                                            \
            EMU_ROUNDING_BARRIER(r)                                                                               \
            CALL;                                                                                                 \
            EMU_ROUNDING_BARRIER(r)                                                                               \
            fesetround(FE_TONEAREST);                                                                             \
        } else {                                                                                                  \
            CALL;                                                                                                 \
        }                                                                                                         \
        if (EMU_UNLIKELY(ftz))                                                                                    \
            for (int i = 0; i < n; i++) r[i] = flush(r[i]);                                                       \
        if (EMU_UNLIKELY(in->mod[1] & EMU_FF_SAT))                                                                \
            for (int i = 0; i < n; i++) r[i] = saturate(r[i]);                                                    \
        write_floats(w, in, r, slots, exec);                                                                      \
        LANE_TAIL(slots)                                                                                          \
    }                                                                                                             \
    LANE_HANDLERS(fn)
ARITH(add_f32, 1, 2, vec_add(r, x, y, n))
ARITH(sub_f32, 1, 2, vec_sub(r, x, y, n))
ARITH(mul_f32, 1, 2, vec_mul(r, x, y, n))
ARITH(div_f32, 1, 2, vec_div(r, x, y, n))
ARITH(fma_f32, 1, 3, vec_fma(r, x, y, z, n))
ARITH(add_f32x2, 2, 2, vec_add(r, x, y, n))
ARITH(sub_f32x2, 2, 2, vec_sub(r, x, y, n))
ARITH(mul_f32x2, 2, 2, vec_mul(r, x, y, n))
ARITH(fma_f32x2, 2, 3, vec_fma(r, x, y, z, n))

/* min and max: a NaN loses to a number unless .NaN; -0 < +0. */
static inline uint32_t pick(uint32_t x, uint32_t y, uint32_t flags, int max)
{
    float a = f32_bits(x), b = f32_bits(y);
    uint32_t sign = 0;
    if (flags & EMU_FF_FTZ) a = flush(a), b = flush(b);
    if (flags & EMU_FF_XORSIGN) {
        sign = (x ^ y) & 0x80000000u;
        a = fabsf(a), b = fabsf(b);
    }
    if (flags & EMU_FF_ABS) a = fabsf(a), b = fabsf(b);
    if ((a != a && b != b) || ((flags & EMU_FF_NAN) && (a != a || b != b))) return 0x7FFFFFFF;
    if (a != a) return bits_f32(b) | sign;
    if (b != b) return bits_f32(a) | sign;
    if (a == b) return (max ? bits_f32(a) & bits_f32(b) : bits_f32(a) | bits_f32(b)) | sign;
    return bits_f32((a > b) == (max != 0) ? a : b) | sign;
}
static inline uint32_t max_plain(uint32_t x, uint32_t y)
{
    float a = f32_bits(x), b = f32_bits(y);
    uint32_t r = a > b ? x : y;
    r = a == b ? x & y : r;
    r = a != a ? y : r;
    r = b != b ? x : r;
    return a != a && b != b ? 0x7FFFFFFF : r;
}
static inline uint32_t min_plain(uint32_t x, uint32_t y)
{
    float a = f32_bits(x), b = f32_bits(y);
    uint32_t r = a < b ? x : y;
    r = a == b ? x | y : r;
    r = a != a ? y : r;
    r = b != b ? x : r;
    return a != a && b != b ? 0x7FFFFFFF : r;
}
LANE2(max_plain_f32, 1, 1, uint32_t, max_plain(a, b))
LANE2(min_plain_f32, 1, 1, uint32_t, min_plain(a, b))
LANE2(max_flags_f32, 1, 1, uint32_t, pick(a, b, in->mod[1], 1))
LANE2(min_flags_f32, 1, 1, uint32_t, pick(a, b, in->mod[1], 0))
#define BY_FLAGS(op)                                                                      \
    static int emu_c_##op##_f32(EmuWarp *w, const EmuInstr *in, uint32_t exec)            \
    {                                                                                     \
        return in->mod[1] ? emu_c_##op##_flags_f32(w, in, exec) : emu_c_##op##_plain_f32(w, in, exec); \
    }                                                                                     \
    static int emu_f_##op##_f32(EmuWarp *w, const EmuInstr *in, uint32_t exec)            \
    {                                                                                     \
        return in->mod[1] ? emu_f_##op##_flags_f32(w, in, exec) : emu_f_##op##_plain_f32(w, in, exec); \
    }
BY_FLAGS(max)
BY_FLAGS(min)
LANE3(max3_plain_f32, 1, 1, uint32_t, max_plain(max_plain(a, b), c))
LANE3(min3_plain_f32, 1, 1, uint32_t, min_plain(min_plain(a, b), c))
LANE3(max3_flags_f32, 1, 1, uint32_t, pick(pick(a, b, in->mod[1], 1), c, in->mod[1], 1))
LANE3(min3_flags_f32, 1, 1, uint32_t, pick(pick(a, b, in->mod[1], 0), c, in->mod[1], 0))
BY_FLAGS(max3)
BY_FLAGS(min3)

static inline uint32_t ftz_bits(uint32_t x, uint32_t flags) { return (flags & EMU_FF_FTZ) && !(x & 0x7F800000) ? x & 0x80000000u : x; }
LANE1(neg_f32, 1, 1, uint32_t, ftz_bits(a, in->mod[1]) ^ 0x80000000u)
LANE1(abs_f32, 1, 1, uint32_t, ftz_bits(a, in->mod[1]) & 0x7FFFFFFFu)
LANE1(neg_f32x2, 2, 2, uint64_t, a ^ 0x8000000080000000ull)
LANE1(abs_f32x2, 2, 2, uint64_t, a & 0x7FFFFFFF7FFFFFFFull)
LANE2(copysign_f32, 1, 1, uint32_t, (b & 0x7FFFFFFFu) | (a & 0x80000000u))

/* ---- one-argument functions; the approximate ones are rounded from double: within the documented bounds -------------- */

/* 2^x: 2^rint(x) times a Taylor polynomial in double; the error before rounding is below 2^-36. */
static KEEP void vec_ex2(float *restrict d, const lanef *x, int n)
{
    for (int i = 0; i < n; i++) {
        double v = x[i];
        v = v > 300.0 ? 300.0 : v;
        v = v < -300.0 ? -300.0 : v;
        double k = (v + 0x1.8p52) - 0x1.8p52, t = (v - k) * 0x1.62e42fefa39efp-1;
        double p = 1.0 / 362880;
        p = p * t + 1.0 / 40320;
        p = p * t + 1.0 / 5040;
        p = p * t + 1.0 / 720;
        p = p * t + 1.0 / 120;
        p = p * t + 1.0 / 24;
        p = p * t + 1.0 / 6;
        p = p * t + 0.5;
        p = p * t + 1.0;
        p = p * t + 1.0;
        double scale = f64_bits((bits_f64(k + 0x1.8p52) + 1023) << 52);
        float r = (float)(p * scale);
        d[i] = x[i] != x[i] ? f32_bits(0x7FFFFFFF) : r;
    }
}
static KEEP void vec_rcp(float *restrict d, const lanef *x, int n)
{
    for (int i = 0; i < n; i++) d[i] = canonical(1.0f / x[i]);
}
static KEEP void vec_sqrt(float *restrict d, const lanef *x, int n)
{
    for (int i = 0; i < n; i++) d[i] = canonical(sqrtf(x[i]));
}
static KEEP void vec_rsqrt(float *restrict d, const lanef *x, int n)
{
    for (int i = 0; i < n; i++) d[i] = canonical((float)(1.0 / sqrt((double)x[i])));
}
static KEEP void vec_lg2(float *restrict d, const lanef *x, int n)
{
    for (int i = 0; i < n; i++) d[i] = canonical((float)log2((double)x[i]));
}
static KEEP void vec_sin(float *restrict d, const lanef *x, int n)
{
    for (int i = 0; i < n; i++) d[i] = canonical((float)sin((double)x[i]));
}
static KEEP void vec_cos(float *restrict d, const lanef *x, int n)
{
    for (int i = 0; i < n; i++) d[i] = canonical((float)cos((double)x[i]));
}
static KEEP void vec_tanh(float *restrict d, const lanef *x, int n)
{
    for (int i = 0; i < n; i++) d[i] = canonical((float)tanh((double)x[i]));
}

#define FUNCTION(fn, CALL)                                                                    \
    LANE_HEAD(fn##_f32)                                                                       \
    {                                                                                         \
        uint32_t valid = 0xFFFFFFFFu;                                                         \
        if (checked) {                                                                        \
            valid = lane_src(w, in, 1, 1, exec);                                              \
            emu_dst_begin(w, in, in->op[0].reg, 1, exec);                                     \
        }                                                                                     \
        float r[32], fx[32];                                                                  \
        const lanef *x = (const lanef *)emu_reg(w, in->op[1].reg, 0);                         \
        int ftz = in->mod[1] & EMU_FF_FTZ;                                                    \
        if (ftz) {                                                                            \
            flush_all(fx, (const uint32_t *)x, 32);                                           \
            x = fx;                                                                           \
        }                                                                                     \
        if (EMU_UNLIKELY(in->mod[0] != EMU_RN)) {                                             \
            fesetround(host_rounding[in->mod[0] & 3]);                                        \
            EMU_ROUNDING_BARRIER(r)                                                           \
            CALL;                                                                             \
            EMU_ROUNDING_BARRIER(r)                                                           \
            fesetround(FE_TONEAREST);                                                         \
        } else {                                                                              \
            CALL;                                                                             \
        }                                                                                     \
        if (ftz)                                                                              \
            for (int i = 0; i < 32; i++) r[i] = flush(r[i]);                                  \
        write_floats(w, in, r, 1, exec);                                                      \
        LANE_TAIL(1)                                                                          \
    }                                                                                         \
    LANE_HANDLERS(fn##_f32)
FUNCTION(ex2, w->launch->exact ? emu_mufu_ex2(r, x) : vec_ex2(r, x, 32))
FUNCTION(rcp, w->launch->exact && (in->mod[1] & EMU_FF_APPROX) ? emu_mufu_rcp(r, x) : vec_rcp(r, x, 32))
FUNCTION(sqrt, vec_sqrt(r, x, 32))
FUNCTION(rsqrt, vec_rsqrt(r, x, 32))
FUNCTION(lg2, vec_lg2(r, x, 32))
FUNCTION(sin, vec_sin(r, x, 32))
FUNCTION(cos, vec_cos(r, x, 32))
FUNCTION(tanh, vec_tanh(r, x, 32))

/* ---- f64 --------------------------------------------------------------------------------------------------------- */

static inline uint64_t canonical64(double v) { return v != v ? 0x7FFFFFFFFFFFFFFFull : bits_f64(v); }
static KEEP double f64_op(int op, double a, double b, double c)
{
    switch (op) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return a / b;
    default: return fma(a, b, c);
    }
}
static inline uint64_t f64_rounded(const EmuInstr *in, int op, double a, double b, double c)
{
    if (in->mod[0] == EMU_RN) return canonical64(f64_op(op, a, b, c));
    double v[4] = {a, b, c, 0};
    fesetround(host_rounding[in->mod[0] & 3]);
    EMU_ROUNDING_BARRIER(v)
    v[3] = f64_op(op, v[0], v[1], v[2]);
    EMU_ROUNDING_BARRIER(v)
    fesetround(FE_TONEAREST);
    return canonical64(v[3]);
}
LANE2(add_f64, 2, 2, uint64_t, f64_rounded(in, 0, f64_bits(a), f64_bits(b), 0))
LANE2(sub_f64, 2, 2, uint64_t, f64_rounded(in, 1, f64_bits(a), f64_bits(b), 0))
LANE2(mul_f64, 2, 2, uint64_t, f64_rounded(in, 2, f64_bits(a), f64_bits(b), 0))
LANE2(div_f64, 2, 2, uint64_t, f64_rounded(in, 3, f64_bits(a), f64_bits(b), 0))
LANE3(fma_f64, 2, 2, uint64_t, f64_rounded(in, 4, f64_bits(a), f64_bits(b), f64_bits(c)))
LANE1(neg_f64, 2, 2, uint64_t, a ^ 1ull << 63)
LANE1(abs_f64, 2, 2, uint64_t, a & ~(1ull << 63))
LANE2(min_f64, 2, 2, uint64_t, canonical64(fmin(f64_bits(a), f64_bits(b))))
LANE2(max_f64, 2, 2, uint64_t, canonical64(fmax(f64_bits(a), f64_bits(b))))

#define X2(op) LANE_ENTRY(op##_f32), LANE_ENTRY(op##_f32x2)
const EmuHandlerEntry emu_handlers_alu_float[] = {
    X2(add), X2(sub), X2(mul), X2(fma), X2(neg), X2(abs), LANE_ENTRY(div_f32), LANE_ENTRY(max_f32), LANE_ENTRY(min_f32),
    LANE_ENTRY(max3_f32), LANE_ENTRY(min3_f32), LANE_ENTRY(copysign_f32), LANE_ENTRY(ex2_f32), LANE_ENTRY(rcp_f32),
    LANE_ENTRY(sqrt_f32), LANE_ENTRY(rsqrt_f32), LANE_ENTRY(lg2_f32), LANE_ENTRY(sin_f32), LANE_ENTRY(cos_f32),
    LANE_ENTRY(tanh_f32), LANE_ENTRY(add_f64), LANE_ENTRY(sub_f64), LANE_ENTRY(mul_f64), LANE_ENTRY(div_f64),
    LANE_ENTRY(fma_f64), LANE_ENTRY(neg_f64), LANE_ENTRY(abs_f64), LANE_ENTRY(min_f64), LANE_ENTRY(max_f64), {0}};
