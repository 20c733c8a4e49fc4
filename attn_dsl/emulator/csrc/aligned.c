#include "aligned.h"

#include "emu_isa.h"
#include "floats.h"

typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t I8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float V4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t I4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int Native8 __attribute__((vector_size(32)));
typedef double D4 __attribute__((vector_size(32)));
typedef int64_t L4 __attribute__((vector_size(32)));
enum { MAX_K = 32, LOWEST = -100, HIGHEST = 127 }; /* exponents the scaling below can express */

static int smallest_exponent(int type)
{
    return type == EMU_T_F16 || type == EMU_T_E5M2 ? -14 : type == EMU_T_E4M3 ? -6 : -126;
}

int emu_aligned_exponents(const float *x, uint32_t n, int type, int32_t *e)
{
    int32_t low = smallest_exponent(type), top = -EMU_ALIGNED_SPECIAL;
    for (uint32_t i = 0; i < n; i++) {
        int32_t u = (int32_t)(bits_f32(x[i]) & 0x7FFFFFFF), v = (u >> 23) - 127;
        v = v < low ? low : v; /* subnormals of the narrow format are not normalised */
        v = u == 0 ? -126 : v;
        v = u >= 0x7F800000 ? EMU_ALIGNED_SPECIAL : v;
        e[i] = v;
        top = v > top ? v : top;
    }
    return top;
}

int emu_aligned_applies(int a_max, int b_max, const float *d, uint32_t n, size_t ld)
{
    if (a_max + b_max >= HIGHEST) return 0;
    uint32_t top = 0;
    for (uint32_t i = 0; d && i < n; i++)
        for (uint32_t r = 0; r < 16; r++) {
            uint32_t u = bits_f32(d[i * ld + r]) & 0x7F800000u;
            top = u > top ? u : top;
        }
    return top != 0x7F800000u;
}

static inline I8 larger(I8 x, I8 y)
{
#ifdef __AVX2__
    return (I8)__builtin_ia32_pmaxsd256((Native8)x, (Native8)y);
#else
    I8 m = x > y;
    return (x & m) | (y & ~m);
#endif
}

/* (float)(sum * 2^scale), truncated to the fraction bits of `keep`. */
static inline V4 finish(I4 s, I4 t, I4 c, I4 scale, L4 keep)
{
    D4 sum = __builtin_convertvector(s, D4) + __builtin_convertvector(t, D4) + __builtin_convertvector(c, D4);
    sum = (D4)((L4)sum & keep);
    L4 power = (__builtin_convertvector(scale, L4) + 1023) << 52;
    return __builtin_convertvector(sum * (D4)power, V4);
}

/* Eight lanes of D: a and ea `step` elements from one k to the next, b and eb spread over the lanes. */
static inline V8 dot(const float *a, const int32_t *ea, size_t step, const V8 *b, const I8 *eb, uint32_t k, V8 c, EmuPrecision p)
{
    I8 e = larger((((I8)c >> 23) & 255) - 127, (I8){0} + LOWEST);
    for (uint32_t j = 0; j < k; j++) e = larger(e, *(const I8 *)(ea + j * step) + eb[j]);
    V8 scale = (V8)((127 + p.bits - e) << 23);
    I8 s = {0}, t = {0}, d = __builtin_convertvector(c * scale, I8);
    for (uint32_t j = 0; j < k; j += 2) {
        s += __builtin_convertvector(*(const V8 *)(a + j * step) * b[j] * scale, I8);
        t += __builtin_convertvector(*(const V8 *)(a + (j + 1) * step) * b[j + 1] * scale, I8);
    }
    L4 keep = (L4){-1, -1, -1, -1} << (52 - p.out_bits);
    I8 power = e - p.bits;
    union {
        V8 whole;
        V4 half[2];
    } out;
    const I4 *s4 = (const I4 *)&s, *t4 = (const I4 *)&t, *d4 = (const I4 *)&d, *p4 = (const I4 *)&power;
    for (int i = 0; i < 2; i++) out.half[i] = finish(s4[i], t4[i], d4[i], p4[i], keep);
    return out.whole;
}

void emu_aligned_gemm(float *d, size_t ld, const float *a, const int32_t *ea, const float *b, const int32_t *eb, uint32_t n,
                      uint32_t k, int accumulate, EmuPrecision p)
{
    for (uint32_t i = 0; i < n; i++, d += ld, b += k, eb += k) {
        V8 x[MAX_K];
        I8 e[MAX_K];
        for (uint32_t j = 0; j < k; j++) {
            x[j] = (V8){0} + b[j];
            e[j] = (I8){0} + eb[j];
        }
        for (int h = 0; h < 2; h++) {
            V8 c = accumulate ? *(V8 *)(d + 8 * h) : (V8){0};
            *(V8 *)(d + 8 * h) = dot(a + 8 * h, ea + 8 * h, 16, x, e, k, c, p);
        }
    }
}

void emu_aligned_fragment(float *d, const float *a, const int32_t *ea, const float *b, const int32_t *eb, uint32_t k,
                          int accumulate, EmuPrecision p)
{
    V8 x[MAX_K];
    I8 e[MAX_K];
    for (uint32_t j = 0; j < k; j++, b += 4, eb += 4) {
        x[j] = (V8){b[0], b[1], b[2], b[3], b[0], b[1], b[2], b[3]};
        e[j] = (I8){eb[0], eb[1], eb[2], eb[3], eb[0], eb[1], eb[2], eb[3]};
    }
    for (int h = 0; h < 4; h++) {
        V8 c = accumulate ? *(V8 *)(d + 8 * h) : (V8){0};
        *(V8 *)(d + 8 * h) = dot(a + 8 * h, ea + 8 * h, 32, x, e, k, c, p);
    }
}
