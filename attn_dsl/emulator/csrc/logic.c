/* Comparison, selection and predicate logic (PTX ISA: setp, selp, slct, and.pred, ...). */
#include <math.h>
#include <string.h>

#include "lanes.h"

static inline uint32_t pred_valid(const EmuWarp *w, const EmuOperand *o) { return o->reg >= 0 ? w->pvalid[o->reg] : 0xFFFFFFFFu; }

static inline void pred_set(EmuWarp *w, int32_t reg, uint32_t exec, uint32_t value, uint32_t valid)
{
    if (reg < 0) return;
    w->preds[reg] = (w->preds[reg] & ~exec) | (value & exec);
    w->pvalid[reg] = (w->pvalid[reg] & ~exec) | (valid & exec);
}

/* Results of setp: p = (a cmp b) BoolOp c, q = !(a cmp b) BoolOp c. */
static inline void setp_store(EmuWarp *w, const EmuInstr *in, uint32_t exec, uint32_t r, uint32_t valid)
{
    uint32_t p = r, q = ~r, c = emu_pred(w, &in->op[4]);
    switch (in->mod[1]) {
    case EMU_BOOL_AND: p &= c, q &= c; break;
    case EMU_BOOL_OR: p |= c, q |= c; break;
    case EMU_BOOL_XOR: p ^= c, q ^= c; break;
    default: break;
    }
    valid &= pred_valid(w, &in->op[4]);
    pred_set(w, in->op[0].reg, exec, p, valid);
    pred_set(w, in->op[1].reg, exec, q, valid);
}

#define COMPARE(LT, EQ, UNORD)                            \
    switch (in->mod[0]) {                                 \
    case EMU_CMP_EQ: BITS_OF((EQ)); break;                \
    case EMU_CMP_NE: BITS_OF(!(EQ) && !(UNORD)); break;   \
    case EMU_CMP_LT: BITS_OF((LT)); break;                \
    case EMU_CMP_LE: BITS_OF((LT) || (EQ)); break;        \
    case EMU_CMP_GT: BITS_OF(!(LT) && !(EQ) && !(UNORD)); break; \
    case EMU_CMP_GE: BITS_OF(!(LT) && !(UNORD)); break;   \
    case EMU_CMP_EQU: BITS_OF((EQ) || (UNORD)); break;    \
    case EMU_CMP_NEU: BITS_OF(!(EQ)); break;              \
    case EMU_CMP_LTU: BITS_OF((LT) || (UNORD)); break;    \
    case EMU_CMP_LEU: BITS_OF((LT) || (EQ) || (UNORD)); break; \
    case EMU_CMP_GTU: BITS_OF(!(LT) && !(EQ)); break;     \
    case EMU_CMP_GEU: BITS_OF(!(LT)); break;              \
    case EMU_CMP_NUM: BITS_OF(!(UNORD)); break;           \
    default: BITS_OF((UNORD)); break;                     \
    }

#define SETP(name, S, CT, READ, UNORD)                                                                    \
    LANE_HEAD(setp_##name)                                                                                \
    {                                                                                                     \
        uint32_t valid = 0xFFFFFFFFu, r = 0;                                                              \
        if (checked) valid = lane_src(w, in, 2, S, exec) & lane_src(w, in, 3, S, exec);                   \
        const uint32_t *A = emu_reg(w, in->op[2].reg, 0), *B = emu_reg(w, in->op[3].reg, 0);              \
        uint32_t t[32];                                                                                   \
        COMPARE(a < b, a == b, UNORD)                                                                     \
        for (int l = 0; l < 32; l++) r |= t[l] << l;                                                      \
        setp_store(w, in, exec, r, valid);                                                                \
        return EMU_NEXT;                                                                                  \
    }                                                                                                     \
    LANE_HANDLERS(setp_##name)
/* Comparing lanes that are not executed is harmless (setp_store masks), so the loop always takes all 32. */
#define BITS_OF_T(CT, S, READ, cond)                      \
    for (int l = 0; l < 32; l++) {                        \
        CT a = READ(LOAD##S(A)), b = READ(LOAD##S(B));    \
        (void)a, (void)b;                                 \
        t[l] = (cond) ? 1 : 0;                            \
    }

static inline float f32_of(uint32_t x)
{
    float f;
    memcpy(&f, &x, 4);
    return f;
}
static inline double f64_of(uint64_t x)
{
    double f;
    memcpy(&f, &x, 8);
    return f;
}
static inline float bf16_of(uint32_t x) { return f32_of(x << 16); }
static inline float f16_of(uint32_t x)
{
    uint16_t h = (uint16_t)x;
    _Float16 f;
    memcpy(&f, &h, 2);
    return (float)f;
}
#define AS_U16(x) ((uint16_t)(x))
#define AS_S16(x) ((int16_t)(x))
#define AS_S32(x) ((int32_t)(x))
#define AS_S64(x) ((int64_t)(x))
#define AS_IS(x) (x)

#define BITS_OF(cond) BITS_OF_T(uint16_t, 1, AS_U16, cond)
SETP(u16, 1, uint16_t, AS_U16, 0)
SETP(b16, 1, uint16_t, AS_U16, 0)
#undef BITS_OF
#define BITS_OF(cond) BITS_OF_T(int16_t, 1, AS_S16, cond)
SETP(s16, 1, int16_t, AS_S16, 0)
#undef BITS_OF
#define BITS_OF(cond) BITS_OF_T(uint32_t, 1, AS_IS, cond)
SETP(u32, 1, uint32_t, AS_IS, 0)
SETP(b32, 1, uint32_t, AS_IS, 0)
#undef BITS_OF
#define BITS_OF(cond) BITS_OF_T(int32_t, 1, AS_S32, cond)
SETP(s32, 1, int32_t, AS_S32, 0)
#undef BITS_OF
#define BITS_OF(cond) BITS_OF_T(uint64_t, 2, AS_IS, cond)
SETP(u64, 2, uint64_t, AS_IS, 0)
SETP(b64, 2, uint64_t, AS_IS, 0)
#undef BITS_OF
#define BITS_OF(cond) BITS_OF_T(int64_t, 2, AS_S64, cond)
SETP(s64, 2, int64_t, AS_S64, 0)
#undef BITS_OF
#define FLUSH(x) (in->mod[2] & EMU_FF_FTZ && fabsf(x) < 0x1p-126f ? 0.0f : (x))
#define READ_F32(x) FLUSH(f32_of(x))
#define BITS_OF(cond) BITS_OF_T(float, 1, READ_F32, cond)
SETP(f32, 1, float, f32_of, (a != a || b != b))
#undef BITS_OF
#define BITS_OF(cond) BITS_OF_T(double, 2, f64_of, cond)
SETP(f64, 2, double, f64_of, (a != a || b != b))
#undef BITS_OF
#define BITS_OF(cond) BITS_OF_T(float, 1, f16_of, cond)
SETP(f16, 1, float, f16_of, (a != a || b != b))
#undef BITS_OF
#define BITS_OF(cond) BITS_OF_T(float, 1, bf16_of, cond)
SETP(bf16, 1, float, bf16_of, (a != a || b != b))

/* selp d, a, b, p: only the chosen source must hold a value. */
#define SELP(name, S)                                                                                              \
    LANE_HEAD(selp_##name)                                                                                         \
    {                                                                                                              \
        uint32_t p = emu_pred(w, &in->op[3]), valid = 0xFFFFFFFFu;                                                 \
        if (checked) {                                                                                             \
            valid = ((lane_src(w, in, 1, S, exec) & p) | (lane_src(w, in, 2, S, exec) & ~p)) & pred_valid(w, &in->op[3]); \
            emu_dst_begin(w, in, in->op[0].reg, S, exec);                                                          \
        }                                                                                                          \
        const uint32_t *A = emu_reg(w, in->op[1].reg, 0), *B = emu_reg(w, in->op[2].reg, 0);                       \
        uint32_t *D = emu_dst(w, in->op[0].reg, 0);                                                                \
        LANE_LOOP({ STORE##S((p >> l & 1) ? LOAD##S(A) : LOAD##S(B)); })                                           \
        LANE_TAIL(S)                                                                                               \
    }                                                                                                              \
    LANE_HANDLERS(selp_##name)
SELP(b16, 1)
SELP(b32, 1)
SELP(b64, 2)
LANE3(slct_b32, 1, 1, uint32_t, (int32_t)c >= 0 ? a : b)

#define PRED2(name, EXPR)                                                                                    \
    static int emu_h_##name##_pred(EmuWarp *w, const EmuInstr *in, uint32_t exec)                            \
    {                                                                                                        \
        uint32_t a = emu_pred(w, &in->op[1]), b = emu_pred(w, &in->op[2]);                                   \
        pred_set(w, in->op[0].reg, exec, EXPR, pred_valid(w, &in->op[1]) & pred_valid(w, &in->op[2]));       \
        return EMU_NEXT;                                                                                     \
    }
PRED2(and, a & b)
PRED2(or, a | b)
PRED2(xor, a ^ b)
static int emu_h_not_pred(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    pred_set(w, in->op[0].reg, exec, ~emu_pred(w, &in->op[1]), pred_valid(w, &in->op[1]));
    return EMU_NEXT;
}
static int emu_h_mov_pred(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    pred_set(w, in->op[0].reg, exec, emu_pred(w, &in->op[1]), pred_valid(w, &in->op[1]));
    return EMU_NEXT;
}

/* testp.op.f32 p, a */
static int emu_h_testp_f32(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    const uint32_t *A = emu_reg(w, in->op[1].reg, 0);
    uint32_t valid = emu_src_check(w, in, in->op[1].reg, 1, exec, EMU_USE_VALUE), r = 0;
    for (int l = 0; l < 32; l++) {
        uint32_t e = A[l] >> 23 & 255, m = A[l] & 0x7FFFFF;
        uint32_t yes[6] = {e != 255, e == 255 && !m, e != 255 || !m, e == 255 && m, e && e != 255, !e && m};
        r |= yes[in->mod[0] % 6] << l;
    }
    pred_set(w, in->op[0].reg, exec, r, valid);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_logic[] = {
    LANE_ENTRY(setp_u16), LANE_ENTRY(setp_b16), LANE_ENTRY(setp_s16), LANE_ENTRY(setp_u32), LANE_ENTRY(setp_b32),
    LANE_ENTRY(setp_s32), LANE_ENTRY(setp_u64), LANE_ENTRY(setp_b64), LANE_ENTRY(setp_s64), LANE_ENTRY(setp_f32),
    LANE_ENTRY(setp_f64), LANE_ENTRY(setp_f16), LANE_ENTRY(setp_bf16), LANE_ENTRY(selp_b16), LANE_ENTRY(selp_b32),
    LANE_ENTRY(selp_b64), LANE_ENTRY(slct_b32), EMU_ENTRY(and_pred), EMU_ENTRY(or_pred), EMU_ENTRY(xor_pred),
    EMU_ENTRY(not_pred), EMU_ENTRY(mov_pred), EMU_ENTRY(testp_f32), {0}};
