/* Lane-wise instructions: one definition makes the checked handler (tracks which lanes hold values) and the fast one. */
#ifndef EMU_LANES_H
#define EMU_LANES_H
#include "core.h"

static inline __attribute__((always_inline)) uint32_t lane_src(EmuWarp *w, const EmuInstr *in, int i, uint32_t n, uint32_t exec)
{
    int32_t reg = in->op[i].reg;
    if (reg < 0) return 0xFFFFFFFFu;
    uint32_t valid = w->rstate[reg].valid;
    int pending = w->rstate[reg].epoch == EMU_PENDING;
    for (uint32_t k = 1; k < n; k++) {
        valid &= w->rstate[reg + k].valid;
        pending |= w->rstate[reg + k].epoch == EMU_PENDING;
    }
    if (EMU_UNLIKELY(pending)) return emu_src_check(w, in, reg, n, exec, EMU_USE_VALUE);
    return valid;
}

#define LOAD1(P) (P[l])
#define LOAD2(P) (P[l] | (uint64_t)P[32 + l] << 32)
#define STORE1(v) D[l] = (uint32_t)(v)
#define STORE2(v)                    \
    do {                             \
        uint64_t v_ = (uint64_t)(v); \
        D[l] = (uint32_t)v_;         \
        D[32 + l] = (uint32_t)(v_ >> 32); \
    } while (0)

/* Sources of a lane are read before its result is written; lanes never depend on each other: ivdep holds even when the
 * slots of source and destination overlap. */
#define LANE_LOOP(...)                                                  \
    if (EMU_LIKELY(exec == 0xFFFFFFFFu)) {                              \
        _Pragma("GCC ivdep") for (int l = 0; l < 32; l++) { __VA_ARGS__ } \
    } else {                                                            \
        for (uint32_t m_ = exec; m_; m_ &= m_ - 1) {                    \
            int l = __builtin_ctz(m_);                                  \
            __VA_ARGS__                                                 \
        }                                                               \
    }

#define LANE_HANDLERS(name)                                                                                          \
    static int emu_c_##name(EmuWarp *w, const EmuInstr *in, uint32_t exec) { return lane_##name(w, in, exec, 1); }   \
    static int emu_f_##name(EmuWarp *w, const EmuInstr *in, uint32_t exec) { return lane_##name(w, in, exec, 0); }

#define LANE_HEAD(name) \
    static inline __attribute__((always_inline)) int lane_##name(EmuWarp *w, const EmuInstr *in, uint32_t exec, int checked)

#define LANE_TAIL(DS)                                                            \
    if (checked) emu_dst_done(w, in->op[0].reg, DS, exec, valid);                \
    return EMU_NEXT;

/* d = EXPR(a): DS, AS slots of d and a; CT the C type a is read as. */
#define LANE1(name, DS, AS, CT, EXPR)                                            \
    LANE_HEAD(name)                                                              \
    {                                                                            \
        uint32_t valid = 0xFFFFFFFFu;                                            \
        if (checked) {                                                           \
            valid = lane_src(w, in, 1, AS, exec);                                \
            emu_dst_begin(w, in, in->op[0].reg, DS, exec);                       \
        }                                                                        \
        const uint32_t *A = emu_reg(w, in->op[1].reg, 0);                        \
        uint32_t *D = emu_dst(w, in->op[0].reg, 0);                              \
        LANE_LOOP({                                                              \
            CT a = (CT)LOAD##AS(A);                                              \
            STORE##DS(EXPR);                                                     \
        })                                                                       \
        LANE_TAIL(DS)                                                            \
    }                                                                            \
    LANE_HANDLERS(name)

#define LANE2T(name, DS, AS, AT, BS, BT, EXPR)                                   \
    LANE_HEAD(name)                                                              \
    {                                                                            \
        uint32_t valid = 0xFFFFFFFFu;                                            \
        if (checked) {                                                           \
            valid = lane_src(w, in, 1, AS, exec) & lane_src(w, in, 2, BS, exec); \
            emu_dst_begin(w, in, in->op[0].reg, DS, exec);                       \
        }                                                                        \
        const uint32_t *A = emu_reg(w, in->op[1].reg, 0), *B = emu_reg(w, in->op[2].reg, 0); \
        uint32_t *D = emu_dst(w, in->op[0].reg, 0);                              \
        LANE_LOOP({                                                              \
            AT a = (AT)LOAD##AS(A);                                              \
            BT b = (BT)LOAD##BS(B);                                              \
            STORE##DS(EXPR);                                                     \
        })                                                                       \
        LANE_TAIL(DS)                                                            \
    }                                                                            \
    LANE_HANDLERS(name)
#define LANE2(name, DS, S, CT, EXPR) LANE2T(name, DS, S, CT, S, CT, EXPR)

#define LANE3T(name, DS, AS, AT, BS, BT, CS, CCT, EXPR)                          \
    LANE_HEAD(name)                                                              \
    {                                                                            \
        uint32_t valid = 0xFFFFFFFFu;                                            \
        if (checked) {                                                           \
            valid = lane_src(w, in, 1, AS, exec) & lane_src(w, in, 2, BS, exec) & lane_src(w, in, 3, CS, exec); \
            emu_dst_begin(w, in, in->op[0].reg, DS, exec);                       \
        }                                                                        \
        const uint32_t *A = emu_reg(w, in->op[1].reg, 0), *B = emu_reg(w, in->op[2].reg, 0), \
                       *C = emu_reg(w, in->op[3].reg, 0);                        \
        uint32_t *D = emu_dst(w, in->op[0].reg, 0);                              \
        LANE_LOOP({                                                              \
            AT a = (AT)LOAD##AS(A);                                              \
            BT b = (BT)LOAD##BS(B);                                              \
            CCT c = (CCT)LOAD##CS(C);                                            \
            STORE##DS(EXPR);                                                     \
        })                                                                       \
        LANE_TAIL(DS)                                                            \
    }                                                                            \
    LANE_HANDLERS(name)
#define LANE3(name, DS, S, CT, EXPR) LANE3T(name, DS, S, CT, S, CT, S, CT, EXPR)

#define LANE_ENTRY(name) { #name, emu_f_##name, emu_c_##name }
#endif
