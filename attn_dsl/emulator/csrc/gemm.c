/* See gemm.h. Vectors are GCC vector types; the compiler splits them to what the machine has. */
#pragma GCC optimize("fp-contract=fast") /* products are exact, so fusing the addition changes nothing */
#include "gemm.h"

typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t I16 __attribute__((vector_size(64), aligned(4), may_alias));

void emu_gemm_f32(float *d, size_t ld, const float *a, const float *b, uint32_t n, uint32_t k, int accumulate)
{
    for (uint32_t i = 0; i < n; i += 4, d += 4 * ld, b += 4 * k) {
        V8 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, t0 = {0}, t1 = {0}, t2 = {0}, t3 = {0};
        for (uint32_t j = 0; j < k; j++) {
            V8 x = *(const V8 *)(a + j * 16), y = *(const V8 *)(a + j * 16 + 8);
            s0 += x * b[j];
            t0 += y * b[j];
            s1 += x * b[k + j];
            t1 += y * b[k + j];
            s2 += x * b[2 * k + j];
            t2 += y * b[2 * k + j];
            s3 += x * b[3 * k + j];
            t3 += y * b[3 * k + j];
        }
        V8 *d0 = (V8 *)d, *d1 = (V8 *)(d + ld), *d2 = (V8 *)(d + 2 * ld), *d3 = (V8 *)(d + 3 * ld);
        if (accumulate) {
            s0 += d0[0];
            t0 += d0[1];
            s1 += d1[0];
            t1 += d1[1];
            s2 += d2[0];
            t2 += d2[1];
            s3 += d3[0];
            t3 += d3[1];
        }
        d0[0] = s0;
        d0[1] = t0;
        d1[0] = s1;
        d1[1] = t1;
        d2[0] = s2;
        d2[1] = t2;
        d3[0] = s3;
        d3[1] = t3;
    }
}

static inline V8 twice(const float *p) { return (V8){p[0], p[1], p[2], p[3], p[0], p[1], p[2], p[3]}; }

void emu_gemm_fragment(float *d0, float *d1, const float *a, const float *b0, const float *b1, uint32_t k, int accumulate)
{
    V8 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, t0 = {0}, t1 = {0}, t2 = {0}, t3 = {0};
    for (uint32_t j = 0; j < k; j++) {
        const V8 *x = (const V8 *)(a + j * 32);
        V8 y = twice(b0 + j * 4), z = twice(b1 + j * 4);
        s0 += x[0] * y;
        s1 += x[1] * y;
        s2 += x[2] * y;
        s3 += x[3] * y;
        t0 += x[0] * z;
        t1 += x[1] * z;
        t2 += x[2] * z;
        t3 += x[3] * z;
    }
    V8 *p = (V8 *)d0, *q = (V8 *)d1;
    if (accumulate) {
        s0 += p[0];
        s1 += p[1];
        s2 += p[2];
        s3 += p[3];
        t0 += q[0];
        t1 += q[1];
        t2 += q[2];
        t3 += q[3];
    }
    p[0] = s0;
    p[1] = s1;
    p[2] = s2;
    p[3] = s3;
    q[0] = t0;
    q[1] = t1;
    q[2] = t2;
    q[3] = t3;
}

static int32_t clamp(int64_t v) { return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v; }

void emu_gemm_i32(int32_t *d, size_t ld, const int32_t *a, const int32_t *b, uint32_t n, uint32_t k, int accumulate, int saturate)
{
    for (uint32_t i = 0; i < n; i++, d += ld, b += k) {
        I16 s = {0};
        for (uint32_t j = 0; j < k; j++) s += *(const I16 *)(a + j * 16) * b[j];
        if (accumulate && saturate) {
            for (int r = 0; r < 16; r++) d[r] = clamp((int64_t)d[r] + s[r]);
            continue;
        }
        if (accumulate) s += *(I16 *)d;
        *(I16 *)d = s;
    }
}
