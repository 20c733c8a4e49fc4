/* The special function unit's 2^x and 1/x, bit by bit.
 *
 * Interpolation as Oberman and Siu describe it ("A High-Performance Area-Efficient Multifunction Interpolator", ARITH-17,
 * 2005): the upper bits of the significand choose a segment, the lower bits u give C0 + C1 u + C2 u^2, where the squarer
 * leaves out its lowest columns. The coefficients were solved for from what an H200 returns for all 2^23 significands; they
 * reproduce every one of them. */
#include "mufu.h"

#include <math.h>

#include "floats.h"
#include "mufu_tables.h"

enum { LANES = 32, SIGNIFICAND = 23, UNIT = 15 /* sums are in units of 2^-15 of the result's last bit */ };
enum { EX2_LOW = 17, EX2_DROP = 19, EX2_ROUND = 6114 }; /* bits of u, columns the squarer leaves out, constant added */
enum { RCP_LOW = 16, RCP_DROP = 17, RCP_ROUND = 2023 };

/* u^2 / 2^drop without the partial products below 2^drop; u_i u_j (i < j) counts once, one column up. */
static inline void square(const int32_t *u, int bits, int drop, int32_t *out)
{
    for (int l = 0; l < LANES; l++) out[l] = 0;
    for (int i = 0; i < bits; i++) {
        int shift = drop - 1 - i, from = i + 1 > shift ? i + 1 : shift;
        if (from >= bits && 2 * i < drop) continue;
        int32_t mask = -(1 << from), diagonal = 2 * i >= drop ? 1 << (2 * i - drop) : 0;
        for (int l = 0; l < LANES; l++) out[l] += -(u[l] >> i & 1) & (((u[l] & mask) >> shift) + diagonal);
    }
}

void emu_mufu_ex2(float *d, const float *x)
{
    int32_t u[LANES], segment[LANES], exponent[LANES], squares[LANES];
    for (int l = 0; l < LANES; l++) {
        /* Results below the normal range come from half the argument, squared, as compilers do it. */
        float v = x[l] != x[l] ? 0.0f : x[l] > 128.0f ? 128.0f : x[l] < -200.0f ? -200.0f : x[l];
        v = v < -126.0f ? v * 0.5f : v;
        float magnitude = fabsf(v) * 0x1p23f; /* exact */
        int32_t fixed = (int32_t)magnitude;
        /* A negative argument is complemented, not negated, unless it is an integer. */
        int32_t negative = magnitude == (float)fixed && !(fixed & ((1 << SIGNIFICAND) - 1)) ? -fixed : ~fixed;
        fixed = v < 0 ? negative : fixed;
        u[l] = fixed & ((1 << EX2_LOW) - 1);
        segment[l] = fixed >> EX2_LOW & 63;
        exponent[l] = fixed >> SIGNIFICAND;
    }
    square(u, EX2_LOW, EX2_DROP, squares);
    for (int l = 0; l < LANES; l++) {
        int s = segment[l];
        int64_t sum = ((int64_t)ex2_c0[s] << 13) + EX2_ROUND + (int64_t)ex2_c1[s] * u[l] + ex2_c2[s] * squares[l];
        float r = f32_bits(((uint32_t)(exponent[l] + 126) << SIGNIFICAND) + (uint32_t)(sum >> UNIT));
        r = x[l] < -126.0f ? r * r : r;
        r = x[l] >= 128.0f ? INFINITY : r;
        d[l] = x[l] != x[l] ? f32_bits(0x7FFFFFFF) : r;
    }
}

void emu_mufu_rcp(float *d, const float *x)
{
    int32_t u[LANES], squares[LANES];
    for (int l = 0; l < LANES; l++) u[l] = (int32_t)(bits_f32(x[l]) & ((1 << RCP_LOW) - 1));
    square(u, RCP_LOW, RCP_DROP, squares);
    for (int l = 0; l < LANES; l++) {
        uint32_t bits = bits_f32(x[l]), s = bits >> RCP_LOW & 127, exponent = bits >> SIGNIFICAND & 255;
        int64_t sum = ((int64_t)rcp_c0[s] << 13) + RCP_ROUND + (int64_t)rcp_c1[s] * u[l] + rcp_c2[s] * squares[l];
        float r = f32_bits((bits & 0x80000000u) | (((252 - exponent) << SIGNIFICAND) + (uint32_t)(sum >> UNIT)));
        /* Zero, infinity, NaN, and what is not normal before or after, which the unit does not see. */
        float other = 1.0f / x[l];
        r = exponent == 0 || exponent >= 253 ? other : r;
        d[l] = x[l] != x[l] ? f32_bits(0x7FFFFFFF) : r;
    }
}
