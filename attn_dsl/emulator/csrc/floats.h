/* Bit-level float formats: f16, bf16, e4m3, e5m2, and rounding of a double to them in one step. */
#ifndef EMU_FLOATS_H
#define EMU_FLOATS_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "emu_isa.h"

static inline float f32_bits(uint32_t x)
{
    float f;
    memcpy(&f, &x, 4);
    return f;
}
static inline uint32_t bits_f32(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    return x;
}
static inline double f64_bits(uint64_t x)
{
    double f;
    memcpy(&f, &x, 8);
    return f;
}
static inline uint64_t bits_f64(double f)
{
    uint64_t x;
    memcpy(&x, &f, 8);
    return x;
}

/* Between a change of the host's rounding mode and arithmetic on the array `v`: neither moves past the other. */
#define EMU_ROUNDING_BARRIER(v) __asm__ volatile("" : : "r"(v) : "memory");

/* A float format: exponent and mantissa bits; `finite` formats have no infinity (e4m3: only 0x7F is NaN). */
typedef struct EmuFormat {
    int exp_bits, man_bits, bias, finite;
    uint32_t nan;
} EmuFormat;
static const EmuFormat EMU_FMT_F16 = {5, 10, 15, 0, 0x7FFF};
static const EmuFormat EMU_FMT_BF16 = {8, 7, 127, 0, 0x7FFF};
static const EmuFormat EMU_FMT_TF32 = {8, 10, 127, 0, 0x3FFFF}; /* 19 bits; shift left by 13 for the register */
static const EmuFormat EMU_FMT_E4M3 = {4, 3, 7, 1, 0x7F};
static const EmuFormat EMU_FMT_E5M2 = {5, 2, 15, 0, 0x7F};

static inline double emu_decode(uint32_t x, const EmuFormat *f)
{
    uint32_t man = x & ((1u << f->man_bits) - 1), exp = x >> f->man_bits & ((1u << f->exp_bits) - 1);
    double sign = x >> (f->man_bits + f->exp_bits) & 1 ? -1.0 : 1.0;
    if (f->finite ? (exp == 15 && man == 7) : (exp == (1u << f->exp_bits) - 1 && man)) return NAN;
    if (!f->finite && exp == (1u << f->exp_bits) - 1) return sign * INFINITY;
    if (!exp) return sign * ldexp((double)man, 1 - f->bias - f->man_bits);
    return sign * ldexp((double)(man | 1u << f->man_bits), (int)exp - f->bias - f->man_bits);
}

/* Rounds `v` (exact, or rounded to odd) to the format. `rounding` EMU_RN, RZ, RM, RP, RNA; overflow gives infinity, or
 * the largest finite number when `sat` (satfinite) or the rounding does not reach infinity. */
static inline uint32_t emu_encode(double v, const EmuFormat *f, int rounding, int sat)
{
    uint32_t sign_bit = 1u << (f->man_bits + f->exp_bits), sign = signbit(v) ? sign_bit : 0;
    uint32_t top = ((1u << f->exp_bits) - 1) << f->man_bits; /* infinity, where there is one */
    uint32_t largest = f->finite ? 0x7E : top - 1;
    if (v != v) return f->nan;
    double a = fabs(v);
    if (a == 0) return sign;
    if (isinf(a)) return sign | (sat || f->finite ? largest : top);
    int e;
    frexp(a, &e); /* a = m * 2^e, m in [0.5, 1) */
    int lsb = e - 1 - f->man_bits;
    if (lsb < 1 - f->bias - f->man_bits) lsb = 1 - f->bias - f->man_bits;
    double scaled = ldexp(a, -lsb), whole = floor(scaled), rest = scaled - whole;
    int up = 0;
    switch (rounding) {
    case EMU_RN: up = rest > 0.5 || (rest == 0.5 && fmod(whole, 2.0) == 1.0); break;
    case EMU_RNA: up = rest >= 0.5; break;
    case EMU_RM: up = sign && rest > 0; break;
    case EMU_RP: up = !sign && rest > 0; break;
    default: break;
    }
    uint64_t n = (uint64_t)whole + (uint64_t)up;
    /* n * 2^lsb; consecutive encodings are consecutive integers */
    int64_t exp_field = lsb + f->man_bits + f->bias - 1;
    uint64_t code = n + ((uint64_t)exp_field << f->man_bits);
    if (lsb == 1 - f->bias - f->man_bits) code = n;
    if (code > largest) {
        int to_infinity = rounding == EMU_RN || rounding == EMU_RNA || (rounding == EMU_RP && !sign) || (rounding == EMU_RM && sign);
        if (f->finite) return sign | (sat || !to_infinity ? largest : f->nan);
        return sign | (sat || !to_infinity ? largest : top);
    }
    return sign | (uint32_t)code;
}

/* Fast exact widening and RN-even narrowing of the two common formats. */
static inline float bf16_f32(uint32_t x) { return f32_bits((x & 0xFFFF) << 16); }
static inline uint32_t f32_bf16(uint32_t x)
{
    uint32_t r = (x + 0x7FFF + (x >> 16 & 1)) >> 16;
    return (x & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : r;
}
static inline float f16_f32(uint32_t x)
{
    uint16_t h = (uint16_t)x;
    _Float16 f;
    memcpy(&f, &h, 2);
    return (float)f;
}
static inline uint32_t f32_f16(float v)
{
    if (v != v) return 0x7FFF;
    _Float16 h = (_Float16)v;
    uint16_t x;
    memcpy(&x, &h, 2);
    return x;
}
#endif
