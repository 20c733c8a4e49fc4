/* Integer arithmetic and bit operations of 16, 32 and 64 bits (PTX ISA: "Integer Arithmetic Instructions", "Logic and
 * Shift Instructions"). Division by zero gives all ones, the remainder then is the dividend, as on hardware. */
#include "lanes.h"

typedef __int128 s128;
typedef unsigned __int128 u128;

/* 16-bit results stay zero-extended in their slot: the mask is part of each expression. */
#define LOW16(x) ((uint16_t)(x))

#define WRAP(op, sym)                                              \
    LANE2(op##_s16, 1, 1, uint16_t, LOW16(a sym b))                \
    LANE2(op##_u16, 1, 1, uint16_t, LOW16(a sym b))                \
    LANE2(op##_s32, 1, 1, uint32_t, a sym b)                       \
    LANE2(op##_u32, 1, 1, uint32_t, a sym b)                       \
    LANE2(op##_s64, 2, 2, uint64_t, a sym b)                       \
    LANE2(op##_u64, 2, 2, uint64_t, a sym b)
WRAP(add, +)
WRAP(sub, -)
LANE2(mul_lo_s16, 1, 1, uint16_t, LOW16((uint32_t)a * b))
LANE2(mul_lo_u16, 1, 1, uint16_t, LOW16((uint32_t)a * b))
LANE2(mul_lo_s32, 1, 1, uint32_t, a * b)
LANE2(mul_lo_u32, 1, 1, uint32_t, a * b)
LANE2(mul_lo_s64, 2, 2, uint64_t, a * b)
LANE2(mul_lo_u64, 2, 2, uint64_t, a * b)
LANE2(mul_hi_s16, 1, 1, int16_t, LOW16(((int32_t)a * b) >> 16))
LANE2(mul_hi_u16, 1, 1, uint16_t, LOW16(((uint32_t)a * b) >> 16))
LANE2(mul_hi_s32, 1, 1, int32_t, ((int64_t)a * b) >> 32)
LANE2(mul_hi_u32, 1, 1, uint32_t, ((uint64_t)a * b) >> 32)
LANE2(mul_hi_s64, 2, 2, int64_t, ((s128)a * b) >> 64)
LANE2(mul_hi_u64, 2, 2, uint64_t, ((u128)a * b) >> 64)
LANE2(add_sat_s32, 1, 1, int32_t, ({
          int64_t s = (int64_t)a + b;
          s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
      }))
LANE2(sub_sat_s32, 1, 1, int32_t, ({
          int64_t s = (int64_t)a - b;
          s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
      }))

#define UDIVISION(t, DS, CT, MASK)                              \
    LANE2(div_##t, DS, DS, CT, MASK(b ? a / b : (CT)-1))        \
    LANE2(rem_##t, DS, DS, CT, MASK(b ? a % b : a))
#define SDIVISION(t, DS, CT, UT, MASK)                                                       \
    LANE2(div_##t, DS, DS, CT, MASK(b == 0 ? (CT)-1 : b == -1 ? (CT)(0 - (UT)a) : a / b))    \
    LANE2(rem_##t, DS, DS, CT, MASK(b == 0 ? a : b == -1 ? 0 : a % b))
#define PLAIN(x) (x)
SDIVISION(s16, 1, int16_t, uint16_t, LOW16)
UDIVISION(u16, 1, uint16_t, LOW16)
SDIVISION(s32, 1, int32_t, uint32_t, PLAIN)
UDIVISION(u32, 1, uint32_t, PLAIN)
SDIVISION(s64, 2, int64_t, uint64_t, PLAIN)
UDIVISION(u64, 2, uint64_t, PLAIN)

#define MINMAX(t, DS, CT, MASK)                          \
    LANE2(min_##t, DS, DS, CT, MASK(a < b ? a : b))      \
    LANE2(max_##t, DS, DS, CT, MASK(a > b ? a : b))
MINMAX(s16, 1, int16_t, LOW16)
MINMAX(u16, 1, uint16_t, LOW16)
MINMAX(s32, 1, int32_t, PLAIN)
MINMAX(u32, 1, uint32_t, PLAIN)
MINMAX(s64, 2, int64_t, PLAIN)
MINMAX(u64, 2, uint64_t, PLAIN)
LANE2(min_relu_s32, 1, 1, int32_t, (a < b ? a : b) > 0 ? (a < b ? a : b) : 0)
LANE2(max_relu_s32, 1, 1, int32_t, (a > b ? a : b) > 0 ? (a > b ? a : b) : 0)
LANE1(abs_s16, 1, 1, int16_t, LOW16(a < 0 ? -a : a))
LANE1(abs_s32, 1, 1, int32_t, a < 0 ? 0u - (uint32_t)a : (uint32_t)a)
LANE1(abs_s64, 2, 2, int64_t, a < 0 ? 0ull - (uint64_t)a : (uint64_t)a)
LANE1(neg_s16, 1, 1, uint16_t, LOW16(-a))
LANE1(neg_s32, 1, 1, uint32_t, 0u - a)
LANE1(neg_s64, 2, 2, uint64_t, 0ull - a)
LANE3(sad_s32, 1, 1, uint32_t, ((int32_t)a < (int32_t)b ? b - a : a - b) + c)
LANE3(sad_u32, 1, 1, uint32_t, (a < b ? b - a : a - b) + c)

#define BITWISE(op, EXPR)                                \
    LANE2(op##_b16, 1, 1, uint16_t, LOW16(EXPR))         \
    LANE2(op##_b32, 1, 1, uint32_t, EXPR)                \
    LANE2(op##_b64, 2, 2, uint64_t, EXPR)
BITWISE(and, a & b)
BITWISE(or, a | b)
BITWISE(xor, a ^ b)
LANE1(not_b16, 1, 1, uint16_t, LOW16(~a))
LANE1(not_b32, 1, 1, uint32_t, ~a)
LANE1(not_b64, 2, 2, uint64_t, ~a)
LANE1(cnot_b16, 1, 1, uint16_t, a == 0)
LANE1(cnot_b32, 1, 1, uint32_t, a == 0)
LANE1(cnot_b64, 2, 2, uint64_t, a == 0)

/* Shift amounts are clamped, not wrapped. */
#define SHIFTS(bits, DS, UT, ST, MASK)                                                                             \
    LANE2T(shl_b##bits, DS, DS, UT, 1, uint32_t, MASK(b >= bits ? 0 : (UT)(a << (b & (bits - 1)))))                \
    LANE2T(shr_u##bits, DS, DS, UT, 1, uint32_t, MASK(b >= bits ? 0 : (UT)(a >> (b & (bits - 1)))))                \
    LANE2T(shr_b##bits, DS, DS, UT, 1, uint32_t, MASK(b >= bits ? 0 : (UT)(a >> (b & (bits - 1)))))                \
    LANE2T(shr_s##bits, DS, DS, ST, 1, uint32_t, MASK((ST)(a >> (b >= bits ? bits - 1 : b))))
SHIFTS(16, 1, uint16_t, int16_t, LOW16)
SHIFTS(32, 1, uint32_t, int32_t, PLAIN)
SHIFTS(64, 2, uint64_t, int64_t, PLAIN)

static inline uint32_t funnel_amount(const EmuInstr *in, uint32_t n) { return in->mod[0] ? n & 31 : (n > 32 ? 32 : n); }
LANE3(shf_l_b32, 1, 1, uint32_t, ({
          uint32_t n = funnel_amount(in, c);
          (uint32_t)(n >= 32 ? a : (((uint64_t)b << 32 | a) << n) >> 32);
      }))
LANE3(shf_r_b32, 1, 1, uint32_t, ({
          uint32_t n = funnel_amount(in, c);
          (uint32_t)(n >= 32 ? b : ((uint64_t)b << 32 | a) >> n);
      }))

LANE1(popc_b32, 1, 1, uint32_t, __builtin_popcount(a))
LANE1(popc_b64, 1, 2, uint64_t, __builtin_popcountll(a))
LANE1(clz_b32, 1, 1, uint32_t, a ? __builtin_clz(a) : 32)
LANE1(clz_b64, 1, 2, uint64_t, a ? __builtin_clzll(a) : 64)
static inline uint32_t reverse32(uint32_t a)
{
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0F0F0F0F) | (a & 0x0F0F0F0F) << 4;
    return __builtin_bswap32(a);
}
LANE1(brev_b32, 1, 1, uint32_t, reverse32(a))
LANE1(brev_b64, 2, 2, uint64_t, (uint64_t)reverse32((uint32_t)a) << 32 | reverse32((uint32_t)(a >> 32)))
LANE1(bfind_u32, 1, 1, uint32_t, a ? 31 - __builtin_clz(a) : -1)
LANE1(bfind_s32, 1, 1, uint32_t, ({
          uint32_t v = (int32_t)a < 0 ? ~a : a;
          v ? 31 - __builtin_clz(v) : -1;
      }))

static inline uint64_t field(uint64_t a, uint32_t pos, uint32_t len, uint32_t bits, int sign)
{
    pos &= 255;
    len &= 255;
    if (!len) return 0;
    uint32_t top = pos + len - 1 > bits - 1 ? bits - 1 : pos + len - 1;
    uint64_t s = sign ? a >> top & 1 : 0;
    uint64_t v = pos >= bits ? 0 : a >> pos;
    uint32_t have = pos >= bits ? 0 : (len < bits - pos ? len : bits - pos);
    uint64_t mask = have >= 64 ? ~0ull : (1ull << have) - 1;
    return (v & mask) | (s ? ~mask : 0);
}
LANE3(bfe_u32, 1, 1, uint32_t, field(a, b, c, 32, 0))
LANE3(bfe_s32, 1, 1, uint32_t, field(a, b, c, 32, 1))
LANE3T(bfe_u64, 2, 2, uint64_t, 1, uint32_t, 1, uint32_t, field(a, b, c, 64, 0))
LANE3T(bfe_s64, 2, 2, uint64_t, 1, uint32_t, 1, uint32_t, field(a, b, c, 64, 1))

static inline uint64_t insert(uint64_t a, uint64_t b, uint32_t pos, uint32_t len, uint32_t bits)
{
    pos &= 255;
    len &= 255;
    if (pos >= bits) return b;
    uint64_t mask = (len >= 64 ? ~0ull : (1ull << len) - 1) << pos;
    return (b & ~mask) | (a << pos & mask);
}

/* Four sources: d, a, b, c, e. */
#define LANE4(name, DS, S, CT, EXPR)                                                                                  \
    LANE_HEAD(name)                                                                                                   \
    {                                                                                                                 \
        uint32_t valid = 0xFFFFFFFFu;                                                                                 \
        if (checked) {                                                                                                \
            valid = lane_src(w, in, 1, S, exec) & lane_src(w, in, 2, S, exec) & lane_src(w, in, 3, 1, exec) &         \
                    lane_src(w, in, 4, 1, exec);                                                                      \
            emu_dst_begin(w, in, in->op[0].reg, DS, exec);                                                            \
        }                                                                                                             \
        const uint32_t *A = emu_reg(w, in->op[1].reg, 0), *B = emu_reg(w, in->op[2].reg, 0),                          \
                       *C = emu_reg(w, in->op[3].reg, 0), *E = emu_reg(w, in->op[4].reg, 0);                          \
        uint32_t *D = emu_dst(w, in->op[0].reg, 0);                                                                   \
        LANE_LOOP({                                                                                                   \
            CT a = LOAD##S(A), b = LOAD##S(B);                                                                        \
            uint32_t c = C[l], e = E[l];                                                                              \
            STORE##DS(EXPR);                                                                                          \
        })                                                                                                            \
        LANE_TAIL(DS)                                                                                                 \
    }                                                                                                                 \
    LANE_HANDLERS(name)
LANE4(bfi_b32, 1, 1, uint32_t, insert(a, b, c, e, 32))
LANE4(bfi_b64, 2, 2, uint64_t, insert(a, b, c, e, 64))

static inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t lut)
{
    uint32_t r = 0;
    for (int i = 0; i < 8; i++)
        if (lut >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}
LANE4(lop3_b32, 1, 1, uint32_t, lop3(a, b, c, e))

/* prmt: byte permutation of {b, a}. */
static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t sel, uint32_t mode)
{
    static const uint16_t table[7][4] = {{0},
                                         {0x3210, 0x4321, 0x5432, 0x6543},  /* f4e */
                                         {0x5670, 0x6701, 0x7012, 0x0123},  /* b4e */
                                         {0x0000, 0x1111, 0x2222, 0x3333},  /* rc8 */
                                         {0x3210, 0x3211, 0x3222, 0x3333},  /* ecl */
                                         {0x0000, 0x1110, 0x2210, 0x3210},  /* ecr */
                                         {0x1010, 0x3232, 0x1010, 0x3232}}; /* rc16 */
    uint64_t v = (uint64_t)b << 32 | a;
    uint32_t r = 0, s = mode ? table[mode][sel & 3] : sel;
    for (int i = 0; i < 4; i++) {
        uint32_t n = s >> (4 * i) & 15, byte = v >> (8 * (n & 7)) & 255;
        if (!mode && n & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}
LANE3(prmt_b32, 1, 1, uint32_t, permute(a, b, c, in->mod[0]))

#define ALL16(op) LANE_ENTRY(op##_s16), LANE_ENTRY(op##_u16)
#define ALL(op) ALL16(op), LANE_ENTRY(op##_s32), LANE_ENTRY(op##_u32), LANE_ENTRY(op##_s64), LANE_ENTRY(op##_u64)
#define BITS(op) LANE_ENTRY(op##_b16), LANE_ENTRY(op##_b32), LANE_ENTRY(op##_b64)
const EmuHandlerEntry emu_handlers_alu_int[] = {
    ALL(add), ALL(sub), ALL(mul_lo), ALL(mul_hi), ALL(div), ALL(rem), ALL(min), ALL(max), BITS(and), BITS(or), BITS(xor),
    BITS(not), BITS(cnot), BITS(shl), BITS(shr), ALL(shr), LANE_ENTRY(add_sat_s32), LANE_ENTRY(sub_sat_s32),
    LANE_ENTRY(min_relu_s32), LANE_ENTRY(max_relu_s32), LANE_ENTRY(abs_s16), LANE_ENTRY(abs_s32), LANE_ENTRY(abs_s64),
    LANE_ENTRY(neg_s16), LANE_ENTRY(neg_s32), LANE_ENTRY(neg_s64), LANE_ENTRY(sad_s32), LANE_ENTRY(sad_u32),
    LANE_ENTRY(shf_l_b32), LANE_ENTRY(shf_r_b32), LANE_ENTRY(popc_b32), LANE_ENTRY(popc_b64), LANE_ENTRY(clz_b32),
    LANE_ENTRY(clz_b64), LANE_ENTRY(brev_b32), LANE_ENTRY(brev_b64), LANE_ENTRY(bfind_u32), LANE_ENTRY(bfind_s32),
    LANE_ENTRY(bfe_u32), LANE_ENTRY(bfe_s32), LANE_ENTRY(bfe_u64), LANE_ENTRY(bfe_s64), LANE_ENTRY(bfi_b32),
    LANE_ENTRY(bfi_b64), LANE_ENTRY(lop3_b32), LANE_ENTRY(prmt_b32), {0}};
