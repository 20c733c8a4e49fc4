/* wgmma (sm_90a): D[registers] = A[registers or shared] * B[shared] (+ D) (PTX ISA, "Asynchronous Warpgroup Level Matrix
 * Multiply-Accumulate"). Warp i of a warpgroup makes rows 16 i to 16 i + 15 from its own rows of A, so each warp's part
 * runs on its own. */
#include <string.h>

#include "aligned.h"
#include "descriptor.h"
#include "floats.h"
#include "gemm.h"

enum { A_IN_REGS = 1, SATURATE = 2 }; /* mod[2] */
enum { PENDING_D = 0, PENDING_A = 1 }; /* tag in EmuRegState.valid of a pending register */

typedef struct Wgmma {
    int a_type, b_type, d_type;
    uint8_t a_regs, accumulate, negate_a, negate_b, saturate;
    uint32_t n, k, n_d; /* n_d: registers of D */
    EmuMatrix a, b;
    const int32_t *d_reg, *a_reg; /* slots, in the program's pool */
} Wgmma;

static uint32_t k_of(int type) { return 32u / (uint32_t)emu_elem_bytes(type); }

/* ---- registers --------------------------------------------------------------------------------------------------- */

/* Row and column of value v of thread `lane` in this warp's 16 rows of D. */
static inline uint32_t d_row(uint32_t v, uint32_t lane) { return lane / 4 + 8 * (v >> 1 & 1); }
static inline uint32_t d_col(uint32_t v, uint32_t lane) { return 8 * (v >> 2) + 2 * (lane % 4) + (v & 1); }

/* D between registers and t[n][16]. */
static void d_load(EmuWarp *w, const Wgmma *x, uint32_t *t)
{
    for (uint32_t r = 0; r < x->n_d; r++) {
        const uint32_t *s = emu_reg(w, x->d_reg[r], 0);
        for (uint32_t l = 0; l < 32; l++) {
            if (x->d_type == EMU_T_F16)
                for (uint32_t h = 0; h < 2; h++)
                    t[d_col(2 * r + h, l) * 16 + d_row(2 * r + h, l)] = bits_f32(f16_f32(s[l] >> (16 * h)));
            else
                t[d_col(r, l) * 16 + d_row(r, l)] = s[l];
        }
    }
}

static void d_store(EmuWarp *w, const Wgmma *x, const uint32_t *t)
{
    for (uint32_t r = 0; r < x->n_d; r++) {
        if (x->d_reg[r] < 0) continue;
        uint32_t *s = emu_dst(w, x->d_reg[r], 0);
        for (uint32_t l = 0; l < 32; l++) {
            if (x->d_type == EMU_T_F16) {
                uint32_t lo = t[d_col(2 * r, l) * 16 + d_row(2 * r, l)], hi = t[d_col(2 * r + 1, l) * 16 + d_row(2 * r + 1, l)];
                s[l] = f32_f16(f32_bits(lo)) | f32_f16(f32_bits(hi)) << 16;
            } else {
                s[l] = t[d_col(r, l) * 16 + d_row(r, l)];
            }
        }
    }
}

/* A fragment: four registers, `per` elements each (PTX ISA, "Register Fragments for wgmma"). */
static void a_load(EmuWarp *w, const Wgmma *x, float *block)
{
    uint32_t eb = (uint32_t)emu_elem_bytes(x->a_type), per = 4 / eb;
    for (uint32_t r = 0; r < 4; r++) {
        const uint32_t *s = emu_reg(w, x->a_reg[r], 0);
        for (uint32_t l = 0; l < 32; l++) {
            float v[4];
            uint8_t raw[4];
            memcpy(raw, &s[l], 4);
            emu_widen(raw, per, x->a_type, v);
            uint32_t row = l / 4 + 8 * (r & 1), k = per * (l % 4) + 4 * per * (r >> 1);
            for (uint32_t i = 0; i < per; i++) block[(k + i) * 16 + row] = x->negate_a ? -v[i] : v[i];
        }
    }
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

/* f32 D, nearly always: the accumulators stay in their registers. */
static void run_fragments(EmuWarp *w, const Wgmma *x)
{
    float block[32 * 16], a[2 * 32 * 32], b[256 * 32], unused[2][32];
    if (x->a_regs)
        a_load(w, x, block);
    else
        emu_matrix_blocks(w->cta, &x->a, 16, x->k, x->a_type, x->negate_a, block);
    for (uint32_t h = 0; h < 2; h++) /* a[half of the rows][k][lane] */
        for (uint32_t k = 0; k < x->k; k++) {
            float *to = a + (h * x->k + k) * 32;
            const float *from = block + k * 16 + 8 * h;
            for (uint32_t g = 0; g < 8; g++)
                for (uint32_t q = 0; q < 4; q++) to[4 * g + q] = from[g];
        }
    emu_matrix_quads(w->cta, &x->b, x->n, x->k, x->b_type, x->negate_b, b);
    int exact = w->launch->exact;
    int32_t ea[2 * 32 * 32], eb[256 * 32];
    int a_max = exact ? emu_aligned_exponents(a, 2 * x->k * 32, x->a_type, ea) : 0;
    int b_max = exact ? emu_aligned_exponents(b, x->n * x->k, x->b_type, eb) : 0;
    /* 8-bit floats have fewer bits on Hopper. */
    EmuPrecision p = emu_elem_bytes(x->a_type) == 1 ? (EmuPrecision){13, 13} : (EmuPrecision){25, 23};
    for (uint32_t r = 0; r < x->n_d; r += 2) {
        float *d[2];
        for (uint32_t i = 0; i < 2; i++) d[i] = x->d_reg[r + i] < 0 ? unused[i] : (float *)(void *)emu_dst(w, x->d_reg[r + i], 0);
        uint32_t half = (r >> 1 & 1) * x->k * 32, quad = r / 4 * 8 * x->k;
        if (exact && emu_aligned_applies(a_max, b_max, x->accumulate ? d[0] : NULL, 2, 16) &&
            emu_aligned_applies(a_max, b_max, x->accumulate ? d[1] : NULL, 2, 16)) {
            for (uint32_t i = 0; i < 2; i++)
                emu_aligned_fragment(d[i], a + half, ea + half, b + quad + i * 4 * x->k, eb + quad + i * 4 * x->k, x->k,
                                     x->accumulate, p);
        } else {
            emu_gemm_fragment(d[0], d[1], a + half, b + quad, b + quad + 4 * x->k, x->k, x->accumulate);
        }
    }
}

static void run_wgmma(EmuAsync *async)
{
    const Wgmma *x = (const void *)async->payload;
    EmuWarp *w = async->w;
    static _Thread_local float a[32 * 16], b[256 * 32];
    if (x->d_type == EMU_T_F32) {
        run_fragments(w, x);
        return;
    }
    static _Thread_local uint32_t t[256 * 16];
    emu_matrix_rows(w->cta, &x->b, x->n, x->k, x->b_type, x->negate_b, b);
    if (x->a_regs)
        a_load(w, x, a);
    else
        emu_matrix_blocks(w->cta, &x->a, 16, x->k, x->a_type, x->negate_a, a);
    if (x->accumulate) d_load(w, x, t);
    if (x->d_type == EMU_T_S32)
        emu_gemm_i32((int32_t *)t, 16, (const int32_t *)(const void *)a, (const int32_t *)(const void *)b, x->n, x->k, x->accumulate, x->saturate);
    else
        emu_gemm_f32((float *)(void *)t, 16, a, b, x->n, x->k, x->accumulate);
    d_store(w, x, t);
}

/* ---- issue ------------------------------------------------------------------------------------------------------- */

/* Moves a 64-row operand to the 16 rows of this warp. */
static void own_rows(EmuMatrix *m, uint32_t warp)
{
    uint32_t per = 16u / m->elem_bytes, first = 16 * warp, units = m->span / 16u, u = first / per;
    if (!m->mn_major)
        m->start += first / 8 * m->sbo;
    else if (m->swizzle == EMU_SWZ_NONE)
        m->start += u * m->sbo;
    else
        m->start += u % units * 16 + u / units * m->lbo;
}

static int bad_descriptor(EmuWarp *w, const EmuInstr *in, const char *what, uint64_t value, const char *why)
{
    return emu_find(w, in, EMU_FIND_DESCRIPTOR, "descriptor of %s 0x%llx: %s", what, (unsigned long long)value, why);
}

static int decode(EmuWarp *w, const EmuInstr *in, uint32_t exec, Wgmma *x)
{
    int lane = emu_lowest(exec), a_mn = 0, b_mn = 0;
    x->a_type = (int)in->mod[0];
    x->b_type = (int)in->mod[3];
    x->d_type = (int)(in->mod[1] >> 16);
    x->n = in->mod[1] & 0xFFFF;
    x->k = k_of(x->a_type);
    x->n_d = x->d_type == EMU_T_F16 ? x->n / 4 : x->n / 2;
    x->a_regs = in->mod[2] & A_IN_REGS;
    x->saturate = (in->mod[2] & SATURATE) != 0;
    x->d_reg = w->prog->pool + in->op[0].reg;
    x->accumulate = emu_pred(w, &in->op[3]) >> lane & 1;
    if (in->nops > 5) {
        x->negate_a = (int32_t)emu_reg(w, in->op[4].reg, 0)[lane] < 0;
        x->negate_b = (int32_t)emu_reg(w, in->op[5].reg, 0)[lane] < 0;
    }
    if (in->nops > 6) {
        if (!x->a_regs) a_mn = emu_reg(w, in->op[6].reg, 0)[lane] != 0;
        b_mn = emu_reg(w, in->op[in->nops - 1].reg, 0)[lane] != 0;
    }
    uint64_t bdesc = emu_reg64(w, in->op[2].reg, lane);
    const char *bad = emu_matrix_wgmma(bdesc, b_mn, emu_elem_bytes(x->b_type), &x->b);
    if (bad) return bad_descriptor(w, in, "B", bdesc, bad);
    if (x->a_regs) {
        x->a_reg = w->prog->pool + in->op[1].reg;
        return EMU_NEXT;
    }
    uint64_t adesc = emu_reg64(w, in->op[1].reg, lane);
    bad = emu_matrix_wgmma(adesc, a_mn, emu_elem_bytes(x->a_type), &x->a);
    if (bad) return bad_descriptor(w, in, "A", adesc, bad);
    own_rows(&x->a, w->index % 4);
    return EMU_NEXT;
}

/* A register may be used by wgmmas one after the other; between an ordinary access and a wgmma there must be a fence. */
static int check_reg(EmuWarp *w, const EmuInstr *in, int32_t reg, uint32_t exec, int is_a, int is_read)
{
    if (reg < 0) return EMU_NEXT;
    const EmuRegState *s = &w->rstate[reg];
    if (s->epoch == EMU_PENDING) {
        if (s->valid == (is_a ? PENDING_A : PENDING_D)) return EMU_NEXT;
        return emu_find(w, in, EMU_FIND_WGMMA_ORDER, "%s", is_a ? "A is a register that a wgmma still in flight writes"
                                                                : "D is a register that a wgmma still in flight reads as A");
    }
    if (s->epoch == w->fence_epoch && s->valid &&
        emu_find(w, in, EMU_FIND_WGMMA_ORDER, "a register of %s was written after the last wgmma.fence", is_a ? "A" : "D"))
        return EMU_STOP;
    if (is_read) emu_src_check(w, in, reg, 1, exec, EMU_USE_MMA);
    return EMU_NEXT;
}

static int check(EmuWarp *w, const EmuInstr *in, uint32_t exec, const Wgmma *x)
{
    for (uint32_t r = 0; r < x->n_d; r++)
        if (check_reg(w, in, x->d_reg[r], exec, 0, x->accumulate)) return EMU_STOP;
    for (uint32_t r = 0; x->a_regs && r < 4; r++)
        if (check_reg(w, in, x->a_reg[r], exec, 1, 1)) return EMU_STOP;
    EmuActor actor = emu_actor_queue(w, in, EMU_Q_WGMMA);
    if (!x->a_regs && emu_matrix_read(&actor, w->cta, &x->a, 16, x->k, "A")) return EMU_STOP;
    return emu_matrix_read(&actor, w->cta, &x->b, x->n, x->k, "B");
}

static void pend(EmuWarp *w, int32_t reg, uint32_t clock, uint32_t tag)
{
    if (reg < 0) return;
    emu_reg_pending(w, reg, 1, EMU_Q_WGMMA, clock);
    w->rstate[reg].valid = tag;
}

static int emu_h_wgmma(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    Wgmma x = {0};
    int tracked = w->launch->checks || w->launch->late;
    if (!(in->mod[2] & A_IN_REGS)) emu_src_check(w, in, in->op[1].reg, 2, exec, EMU_USE_MMA);
    emu_src_check(w, in, in->op[2].reg, 2, exec, EMU_USE_MMA);
    if (decode(w, in, exec, &x)) return EMU_STOP;
    if (tracked && check(w, in, exec, &x)) return EMU_STOP;
    emu_count_engine(w, EMU_E_MMA_FLOP, 2ull * 16 * x.n * x.k);
    if (w->launch->late && !x.accumulate)
        for (uint32_t r = 0; r < x.n_d; r++)
            if (x.d_reg[r] >= 0 && w->rstate[x.d_reg[r]].epoch != EMU_PENDING) memset(emu_dst(w, x.d_reg[r], 0), 0xFF, 128);
    EmuAsync *a = emu_async_new(w, in, EMU_Q_WGMMA, run_wgmma, sizeof(Wgmma));
    uint32_t clock = a->clock;
    memcpy(a->payload, &x, sizeof(x));
    emu_async_submit(a);
    if (!tracked) return EMU_NEXT;
    for (uint32_t r = 0; r < x.n_d; r++) pend(w, x.d_reg[r], clock, PENDING_D);
    for (uint32_t r = 0; x.a_regs && r < 4; r++) pend(w, x.a_reg[r], clock, PENDING_A);
    return EMU_NEXT;
}

static int emu_h_wgmma_fence(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)in, (void)exec;
    w->fence_epoch++;
    return EMU_NEXT;
}

static int emu_h_wgmma_commit(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    (void)in, (void)exec;
    emu_group_commit(w, EMU_Q_WGMMA);
    return EMU_NEXT;
}

static int emu_h_wgmma_wait(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    emu_group_wait(w, EMU_Q_WGMMA, emu_uniform(w, &in->op[0], exec));
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_wgmma[] = {
    EMU_ENTRY(wgmma), EMU_ENTRY(wgmma_fence), EMU_ENTRY(wgmma_commit), EMU_ENTRY(wgmma_wait), {0}};
