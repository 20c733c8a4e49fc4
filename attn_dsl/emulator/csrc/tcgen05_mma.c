/* tcgen05.mma: D[tmem] = A[smem or tmem] * B[smem] (+ D), kinds f16, tf32, f8f6f4, i8, one CTA or a pair (PTX ISA,
 * "tcgen05.mma", "Instruction descriptor", "Matrix fragments / layout organisation"). */
#include <string.h>

#include "aligned.h"
#include "core.h" /* EmuWarpCore: is the MMA queue empty */
#include "descriptor.h"
#include "floats.h"
#include "gemm.h"
#include "tmem.h"

enum { A_IN_TMEM = 1, HAS_MASK = 2, HAS_SCALE = 4 }; /* mod[1] */
enum { D_F16 = 0, D_F32 = 1, D_S32 = 2 };

typedef struct Mma {
    int a_type, b_type, d_type; /* EMU_T_*, EMU_T_*, D_* */
    uint8_t negate_a, negate_b, a_mn, b_mn, a_tmem, accumulate, saturate, masked, exact;
    uint32_t m, n, k; /* m: rows of the whole MMA (both CTAs) */
    uint32_t ctas;    /* 1 or 2 */
    uint32_t scale;   /* D is scaled by 2^-scale first */
    uint32_t d_col, d_lane, a_col;
    EmuMatrix a, b;
    EmuCta *cta[2];
    uint32_t mask[8]; /* lanes of D not to write; four words per CTA */
} Mma;

/* Where the rows of one CTA live: blocks of 16 rows. Second half of the columns (M = 128 over two CTAs) 64 lanes on. */
static uint32_t rows_per_cta(const Mma *x) { return x->m / x->ctas; }
static int half_columns(const Mma *x) { return x->ctas == 2 && x->m == 128; }
static uint32_t block_lane(const Mma *x, uint32_t block)
{
    if (x->ctas == 1 && x->m == 64) return block * 32 + x->d_lane;
    return block * 16;
}
static uint32_t d_columns(const Mma *x) { return half_columns(x) ? x->n / 2 : x->n; }
static uint32_t d_groups(const Mma *x)
{
    if (x->ctas == 1 && x->m == 64) return x->d_lane ? 0xAA : 0x55;
    return 0xFF;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

static const char *decode_types(uint32_t d, int kind, Mma *x)
{
    static const int f8[8] = {EMU_T_E4M3, EMU_T_E5M2, -1, -1, -1, -1, -1, -1};
    uint32_t a = d >> 7 & 7, b = d >> 10 & 7;
    x->d_type = (int)(d >> 4 & 3);
    switch (kind) {
    case EMU_K_F16:
        if (a > 1 || b > 1) return "kind::f16 takes A and B types 0 (f16) and 1 (bf16)";
        x->a_type = a ? EMU_T_BF16 : EMU_T_F16;
        x->b_type = b ? EMU_T_BF16 : EMU_T_F16;
        break;
    case EMU_K_TF32:
        if (a != 2 || b != 2) return "kind::tf32 takes A and B type 2 (tf32)";
        x->a_type = x->b_type = EMU_T_TF32;
        break;
    case EMU_K_F8F6F4:
        if (f8[a] < 0 || f8[b] < 0) return "kind::f8f6f4 is modelled for A and B types 0 (e4m3) and 1 (e5m2) only";
        x->a_type = f8[a];
        x->b_type = f8[b];
        break;
    default:
        if (a > 1 || b > 1) return "kind::i8 takes A and B types 0 (u8) and 1 (s8)";
        x->a_type = a ? EMU_T_S8 : EMU_T_U8;
        x->b_type = b ? EMU_T_S8 : EMU_T_U8;
    }
    if (kind == EMU_K_I8 ? x->d_type != D_S32 : x->d_type != D_F32 && (x->d_type != D_F16 || kind == EMU_K_TF32))
        return "this D type does not go with the kind";
    return 0;
}

/* Sizes: PTX ISA, "Matrix shape" table of tcgen05.mma. */
static const char *decode_shape(uint32_t d, int kind, Mma *x)
{
    x->n = (d >> 17 & 0x3F) << 3;
    x->m = (d >> 24 & 0x1F) << 4;
    x->k = kind == EMU_K_F16 ? 16 : kind == EMU_K_TF32 ? 8 : 32;
    if (x->ctas == 1 ? x->m != 64 && x->m != 128 : x->m != 128 && x->m != 256) return "M must be 64 or 128, or 128 or 256 over two CTAs";
    uint32_t step = x->ctas == 2 ? (kind == EMU_K_I8 ? 32 : 16) : kind == EMU_K_I8 && x->n > 24 ? 16 : 8;
    if (x->b_mn && (kind == EMU_K_F8F6F4 || kind == EMU_K_I8)) step = x->ctas == 2 ? 32 : 16;
    if (x->n < step || x->n > 256 || x->n % step) return "N is not a size this kind has";
    return 0;
}

static const char *decode_instr(uint32_t d, int kind, Mma *x)
{
    if (d & 7) return "sparse MMA (bits 0-2) is not modelled";
    if (d >> 6 & 1 || d >> 23 & 1 || d >> 29 & 7) return "bits 6, 23 and 29-31 must be zero";
    x->saturate = d >> 3 & 1;
    if (x->saturate && kind != EMU_K_I8) return "saturation (bit 3) is for kind::i8 only";
    x->negate_a = d >> 13 & 1;
    x->negate_b = d >> 14 & 1;
    if (kind == EMU_K_I8 && (x->negate_a || x->negate_b)) return "kind::i8 cannot negate (bits 13, 14)";
    x->a_mn = d >> 15 & 1;
    x->b_mn = d >> 16 & 1;
    const char *bad = decode_types(d, kind, x);
    return bad ? bad : decode_shape(d, kind, x);
}

static int bad_descriptor(EmuWarp *w, const EmuInstr *in, const char *what, uint64_t value, const char *why)
{
    return emu_find(w, in, EMU_FIND_DESCRIPTOR, "%s 0x%llx: %s", what, (unsigned long long)value, why);
}

static int decode(EmuWarp *w, const EmuInstr *in, uint32_t exec, Mma *x)
{
    int lane = emu_lowest(exec), kind = (int)in->mod[0];
    uint32_t next = 4, flags = in->mod[1];
    memset(x, 0, sizeof(*x));
    x->ctas = in->mod[2];
    x->a_tmem = flags & A_IN_TMEM;
    x->cta[0] = w->cta;
    if (x->ctas == 2) {
        EmuCta *peer = emu_peer(w->cta);
        if (!peer) return emu_find(w, in, EMU_FIND_DESCRIPTOR, "cta_group::2 in a cluster without a CTA of rank %u", w->cta->rank ^ 1);
        x->cta[w->cta->rank & 1] = w->cta;
        x->cta[~w->cta->rank & 1] = peer;
    }
    uint32_t d = emu_reg(w, in->op[0].reg, 0)[lane] + (uint32_t)in->op[0].off;
    uint32_t idesc = emu_reg(w, in->op[3].reg, 0)[lane];
    uint64_t bdesc = emu_reg64(w, in->op[2].reg, lane);
    const char *bad = decode_instr(idesc, kind, x);
    if (bad) return bad_descriptor(w, in, "instruction descriptor", idesc, bad);
    x->d_col = d & 0xFFFF;
    x->d_lane = d >> 16;
    bad = emu_matrix_tcgen05(bdesc, x->b_mn, emu_elem_bytes(x->b_type), &x->b);
    if (bad) return bad_descriptor(w, in, "descriptor of B", bdesc, bad);
    if (x->a_tmem) {
        uint32_t a = emu_reg(w, in->op[1].reg, 0)[lane] + (uint32_t)in->op[1].off;
        x->a_col = a & 0xFFFF;
        if (x->a_mn) return bad_descriptor(w, in, "instruction descriptor", idesc, "A in TMEM is K-major only");
        if (a >> 16 != x->d_lane)
            return emu_find(w, in, EMU_FIND_DESCRIPTOR, "A starts at TMEM lane %u, D at lane %u; they must agree", a >> 16, x->d_lane);
    } else {
        uint64_t adesc = emu_reg64(w, in->op[1].reg, lane);
        bad = emu_matrix_tcgen05(adesc, x->a_mn, emu_elem_bytes(x->a_type), &x->a);
        if (bad) return bad_descriptor(w, in, "descriptor of A", adesc, bad);
    }
    if (x->d_lane && !(x->d_lane == 16 && x->ctas == 1 && x->m == 64))
        return emu_find(w, in, EMU_FIND_DESCRIPTOR, "D starts at TMEM lane %u; M = %u needs lane 0%s", x->d_lane, x->m,
                        x->ctas == 1 && x->m == 64 ? " or 16" : "");
    if (flags & HAS_MASK) {
        const EmuOperand *v = &in->op[next++];
        if (v->off != (int32_t)(4 * x->ctas))
            return emu_find(w, in, EMU_FIND_DESCRIPTOR, "disable-output-lane has %d words; cta_group::%u takes %u", v->off, x->ctas,
                            4 * x->ctas);
        for (int32_t i = 0; i < v->off && i < 8; i++) {
            x->mask[i] = emu_reg(w, emu_vec(w, v, (uint32_t)i), 0)[lane];
            x->masked |= x->mask[i] != 0;
        }
    }
    x->accumulate = emu_pred(w, &in->op[next++]) >> lane & 1;
    if (flags & HAS_SCALE) x->scale = emu_reg(w, in->op[next].reg, 0)[lane];
    if ((flags & HAS_SCALE) && kind != EMU_K_F16 && kind != EMU_K_TF32)
        return emu_find(w, in, EMU_FIND_DESCRIPTOR, "scale-input-d is for kind::f16 and kind::tf32 only");
    if (x->scale > 15) return emu_find(w, in, EMU_FIND_DESCRIPTOR, "scale-input-d %u; it is 0 to 15", x->scale);
    return EMU_NEXT;
}

/* ---- checks at issue --------------------------------------------------------------------------------------------- */

static uint32_t a_tmem_columns(const Mma *x) { return x->k * (uint32_t)emu_elem_bytes(x->a_type) / 4; }

static int check(const EmuActor *act, const Mma *x)
{
    EmuWarp *w = act->w;
    for (uint32_t r = 0; r < x->ctas; r++) {
        EmuCta *cta = x->cta[r];
        if (emu_tmem_columns(w, act->in, cta, x->d_col, d_columns(x), "tcgen05.mma writes")) return EMU_STOP;
        if (x->a_tmem && emu_tmem_columns(w, act->in, cta, x->a_col, a_tmem_columns(x), "tcgen05.mma reads A from")) return EMU_STOP;
        if (!w->launch->checks) continue;
        if (x->a_tmem) {
            if (emu_tmem_read(act, cta, x->a_col, a_tmem_columns(x), d_groups(x))) return EMU_STOP;
        } else if (emu_matrix_read(act, cta, &x->a, rows_per_cta(x), x->k, "A")) {
            return EMU_STOP;
        }
        if (emu_matrix_read(act, cta, &x->b, x->n / x->ctas, x->k, "B")) return EMU_STOP;
        if (x->accumulate && emu_tmem_read(act, cta, x->d_col, d_columns(x), d_groups(x))) return EMU_STOP;
        if (emu_tmem_write(act, cta, x->d_col, d_columns(x), d_groups(x))) return EMU_STOP;
    }
    return EMU_NEXT;
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

/* A from TMEM: 4 / elem_bytes consecutive k in one cell. blocks[block][k][16]. With half columns, each half of D has its
 * own copy of the rows of A, in its own lanes. */
static void fetch_a_tmem(const Mma *x, EmuCta *cta, uint32_t half, float *blocks)
{
    uint32_t eb = (uint32_t)emu_elem_bytes(x->a_type), per = 4 / eb;
    for (uint32_t b = 0; b < rows_per_cta(x) / 16; b++)
        for (uint32_t c = 0; c < x->k / per; c++) {
            const uint32_t *cells = emu_tmem_cell(cta, x->a_col + c, block_lane(x, b) + 64 * half);
            for (uint32_t i = 0; i < per; i++) {
                float *to = blocks + (b * x->k + c * per + i) * 16;
                uint8_t raw[64];
                for (uint32_t r = 0; r < 16; r++) {
                    uint32_t v = cells[r] >> (i * eb * 8);
                    memcpy(raw + r * eb, &v, eb);
                }
                emu_widen(raw, 16, x->a_type, to);
            }
        }
    if (x->negate_a)
        for (uint32_t i = 0; i < rows_per_cta(x) * x->k; i++) blocks[i] = -blocks[i];
}

/* Widened operands, and their exponents when the arithmetic is the tensor core's. */
typedef struct Operands {
    float a[128 * 32], b[256 * 32];
    int32_t ea[128 * 32], eb[256 * 32];
    int a_max, b_max;
} Operands;

/* One block of 16 rows and n columns: d[n][128 lanes]. */
static void block(const Mma *x, uint32_t *d, const Operands *o, uint32_t a_at, uint32_t b_at, uint32_t n)
{
    const float *a = o->a + a_at, *b = o->b + b_at;
    if (x->exact && emu_aligned_applies(o->a_max, o->b_max, x->accumulate ? (float *)(void *)d : NULL, n, EMU_TMEM_LANES)) {
        emu_aligned_gemm((float *)(void *)d, EMU_TMEM_LANES, a, o->ea + a_at, b, o->eb + b_at, n, x->k, x->accumulate,
                         (EmuPrecision){25, 23});
        return;
    }
    if (x->d_type == D_S32) {
        emu_gemm_i32((int32_t *)d, EMU_TMEM_LANES, (const int32_t *)(const void *)a, (const int32_t *)(const void *)b, n, x->k,
                     x->accumulate, x->saturate);
        return;
    }
    if (x->d_type == D_F32 && !x->scale) {
        emu_gemm_f32((float *)(void *)d, EMU_TMEM_LANES, a, b, n, x->k, x->accumulate);
        return;
    }
    float t[256 * 16], scale = 1.0f / (float)(1u << x->scale);
    for (uint32_t c = 0; c < n && x->accumulate; c++)
        for (uint32_t r = 0; r < 16; r++) {
            uint32_t v = d[c * EMU_TMEM_LANES + r];
            t[c * 16 + r] = (x->d_type == D_F16 ? f16_f32(v) : f32_bits(v)) * scale;
        }
    emu_gemm_f32(t, 16, a, b, n, x->k, x->accumulate);
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t r = 0; r < 16; r++) {
            float v = t[c * 16 + r];
            d[c * EMU_TMEM_LANES + r] = x->d_type == D_F16 ? f32_f16(v) : bits_f32(v);
        }
}

/* The part of D in one CTA. */
static void compute(const Mma *x, uint32_t r, Operands *o)
{
    EmuCta *cta = x->cta[r];
    uint32_t halves = half_columns(x) ? 2 : 1, n = x->n / halves, rows = rows_per_cta(x);
    if (!x->a_tmem) emu_matrix_blocks(cta, &x->a, rows, x->k, x->a_type, x->negate_a, o->a);
    for (uint32_t h = 0; h < halves; h++) {
        if (x->a_tmem) fetch_a_tmem(x, cta, h, o->a);
        if (x->exact) o->a_max = emu_aligned_exponents(o->a, rows * x->k, x->a_type, o->ea);
        for (uint32_t i = 0; i < rows / 16; i++)
            block(x, emu_tmem_cell(cta, x->d_col, block_lane(x, i) + 64 * h), o, i * 16 * x->k, h * n * x->k, n);
    }
}

/* disable-output-lane: masked lanes of D keep what they hold. */
static void compute_masked(const Mma *x, uint32_t r, Operands *o)
{
    static _Thread_local uint32_t saved[256 * EMU_TMEM_LANES];
    uint32_t *d = emu_tmem_cell(x->cta[r], x->d_col, 0), cells = d_columns(x) * EMU_TMEM_LANES;
    const uint32_t *mask = x->mask + 4 * r;
    memcpy(saved, d, (size_t)cells * 4);
    compute(x, r, o);
    for (uint32_t i = 0; i < cells; i++)
        if (mask[i % EMU_TMEM_LANES / 32] >> (i % 32) & 1) d[i] = saved[i];
}

static void run_mma(EmuAsync *async)
{
    const Mma *x = (const void *)async->payload;
    static _Thread_local Operands o;
    uint32_t n = x->n / x->ctas;
    for (uint32_t r = 0; r < x->ctas; r++)
        emu_matrix_rows(x->cta[r], &x->b, n, x->k, x->b_type, x->negate_b, o.b + r * n * x->k);
    if (x->exact) o.b_max = emu_aligned_exponents(o.b, x->n * x->k, x->b_type, o.eb);
    for (uint32_t r = 0; r < x->ctas; r++)
        (x->masked ? compute_masked : compute)(x, r, &o);
}

/* Late mode: D holds NaN until the MMA is done. Only when D is not an input, and no earlier MMA is still to run. */
static void poison(EmuWarp *w, const Mma *x)
{
    if (x->accumulate || x->masked || w->core->head[EMU_Q_MMA]) return;
    for (uint32_t r = 0; r < x->ctas; r++)
        for (uint32_t c = 0; c < d_columns(x); c++)
            for (uint32_t l = 0; l < EMU_TMEM_LANES; l++)
                if (d_groups(x) >> (l / 16) & 1) *emu_tmem_cell(x->cta[r], x->d_col + c, l) = EMU_POISON_NAN;
}

static int emu_h_tcgen05_mma(EmuWarp *w, const EmuInstr *in, uint32_t exec)
{
    Mma x;
    int a_slots = in->mod[1] & A_IN_TMEM ? 1 : 2;
    emu_src_check(w, in, in->op[0].reg, 1, exec, EMU_USE_ADDRESS);
    emu_src_check(w, in, in->op[1].reg, (uint32_t)a_slots, exec, EMU_USE_MMA);
    emu_src_check(w, in, in->op[2].reg, 2, exec, EMU_USE_MMA);
    emu_src_check(w, in, in->op[3].reg, 1, exec, EMU_USE_MMA);
    if ((exec & (exec - 1)) &&
        emu_find(w, in, EMU_FIND_UNELECTED, "tcgen05.mma by lanes %08x; one elected thread must issue it", exec))
        return EMU_STOP;
    if (decode(w, in, exec, &x)) return EMU_STOP;
    x.exact = w->launch->exact && x.d_type == D_F32 && !x.scale;
    EmuActor actor = emu_actor_queue(w, in, EMU_Q_MMA);
    if (check(&actor, &x)) return EMU_STOP;
    emu_count_engine(w, EMU_E_MMA_FLOP, 2ull * x.m * x.n * x.k);
    if (w->launch->late) poison(w, &x);
    EmuAsync *a = emu_async_new(w, in, EMU_Q_MMA, run_mma, sizeof(Mma));
    memcpy(a->payload, &x, sizeof(x));
    emu_async_submit(a);
    return EMU_NEXT;
}

const EmuHandlerEntry emu_handlers_tcgen05_mma[] = {EMU_ENTRY(tcgen05_mma), {0}};
