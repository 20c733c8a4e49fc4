/* Matrix descriptors: decoding, addresses, and fetching operands. */
#include "descriptor.h"

#include "emu_abi.h"
#include "floats.h"

static void common(uint64_t desc, int mn_major, int elem_bytes, EmuMatrix *out)
{
    out->start = (uint32_t)(desc & 0x3FFF) << 4;
    out->lbo = (uint32_t)(desc >> 16 & 0x3FFF) << 4;
    out->sbo = (uint32_t)(desc >> 32 & 0x3FFF) << 4;
    out->mn_major = (uint8_t)mn_major;
    out->elem_bytes = (uint8_t)elem_bytes;
}

/* Rules both kinds share, once the swizzle is known. */
static const char *finish(uint64_t desc, EmuMatrix *m)
{
    static const struct {
        uint8_t shift, mask, rows;
    } pattern[EMU_N_SWZ] = {[EMU_SWZ_NONE] = {0, 0, 8},        [EMU_SWZ_32B] = {3, 0x10, 8},     [EMU_SWZ_64B] = {3, 0x30, 8},
                            [EMU_SWZ_128B] = {3, 0x70, 8}, [EMU_SWZ_128B_32B] = {2, 0x60, 4}};
    m->span = (uint16_t)emu_swizzle_span(m->swizzle);
    m->shift = pattern[m->swizzle].shift;
    m->mask = pattern[m->swizzle].mask;
    m->rows = pattern[m->swizzle].rows;
    if (desc >> 49 & 7) return "a non-zero base offset (bits 49-51) is not modelled";
    uint32_t span = m->span, atom = m->rows * span;
    if (m->swizzle != EMU_SWZ_NONE && (m->sbo % atom || (m->mn_major && m->lbo % atom)))
        return "a stride is not a multiple of the swizzle pattern (8 rows)";
    if (m->mn_major && m->swizzle != EMU_SWZ_NONE && m->start % span)
        return "an MN-major operand starts in the middle of a swizzled row";
    return 0;
}

const char *emu_matrix_tcgen05(uint64_t desc, int mn_major, int elem_bytes, EmuMatrix *out)
{
    static const int8_t modes[8] = {EMU_SWZ_NONE, EMU_SWZ_128B_32B, EMU_SWZ_128B, -1, EMU_SWZ_64B, -1, EMU_SWZ_32B, -1};
    common(desc, mn_major, elem_bytes, out);
    int mode = modes[desc >> 61];
    if (mode < 0) return "swizzle code (bits 61-63) 3, 5 or 7 does not exist";
    out->swizzle = (uint8_t)mode;
    if ((desc >> 46 & 7) != 1) return "bits 46-48 must be 0b001";
    if (desc >> 14 & 3 || desc >> 30 & 3) return "bits 14-15 and 30-31 must be zero";
    if (desc >> 52 & 0x1FF) return "bits 52-60 must be zero";
    if (mode == EMU_SWZ_128B_32B && (elem_bytes != 4 || !mn_major))
        return "the 32-byte-atom swizzle is for MN-major 32-bit operands only";
    if (elem_bytes == 4 && mn_major && mode != EMU_SWZ_128B_32B)
        return "an MN-major 32-bit operand needs the 32-byte-atom swizzle";
    return finish(desc, out);
}

const char *emu_matrix_wgmma(uint64_t desc, int mn_major, int elem_bytes, EmuMatrix *out)
{
    static const uint8_t modes[4] = {EMU_SWZ_NONE, EMU_SWZ_128B, EMU_SWZ_64B, EMU_SWZ_32B};
    common(desc, mn_major, elem_bytes, out);
    out->swizzle = modes[desc >> 62];
    if (desc >> 14 & 3 || desc >> 30 & 3 || desc >> 46 & 7 || desc >> 52 & 0x3FF)
        return "bits 14-15, 30-31, 46-48 and 52-61 must be zero";
    return finish(desc, out);
}

static int range(const EmuActor *a, EmuCta *cta, uint32_t off, uint32_t size, const char *what)
{
    if (off < EMU_SHARED_BASE || off + size > cta->smem_size)
        return emu_find(a->w, a->in, EMU_FIND_OOB,
                        "operand %s: the descriptor reaches shared address 0x%x, outside the CTA's memory (0x%x to 0x%x)", what, off,
                        EMU_SHARED_BASE, cta->smem_size);
    return emu_smem_read(a, cta, off, size);
}

int emu_matrix_read(const EmuActor *actor, EmuCta *cta, const EmuMatrix *m, uint32_t mn, uint32_t k, const char *what)
{
    uint32_t per = 16u / m->elem_bytes, span = m->span, units = span / 16;
    int rc = EMU_NEXT;
    if (!m->mn_major) {
        uint32_t ku = k / per;
        if (m->swizzle == EMU_SWZ_NONE) { /* 8 rows of one unit each are contiguous */
            for (uint32_t g = 0; g < mn / 8 && !rc; g++)
                for (uint32_t u = 0; u < ku && !rc; u++) rc = range(actor, cta, emu_matrix_unit(m, g * 8, u), 128, what);
        } else if (units == ku) {
            for (uint32_t g = 0; g < mn / 8 && !rc; g++)
                rc = range(actor, cta, m->start + g * m->sbo, 8 * span, what);
        } else if (ku == 2 && m->start % 32 == 0) { /* the exclusive or keeps aligned pairs of units together */
            for (uint32_t r = 0; r < mn && !rc; r++) rc = range(actor, cta, emu_matrix_unit(m, r, 0) & ~16u, 32, what);
        } else {
            for (uint32_t r = 0; r < mn && !rc; r++)
                for (uint32_t u = 0; u < ku && !rc; u++) rc = range(actor, cta, emu_matrix_unit(m, r, u), 16, what);
        }
        return rc;
    }
    uint32_t mu = mn / per, rows = m->rows;
    if (m->swizzle == EMU_SWZ_NONE) {
        for (uint32_t u = 0; u < mu && !rc; u++)
            for (uint32_t g = 0; g < k / 8 && !rc; g++) rc = range(actor, cta, emu_matrix_unit(m, u, g * 8), 128, what);
        return rc;
    }
    for (uint32_t u = 0; u < mu && !rc; u += units) {
        uint32_t full = mu - u >= units;
        for (uint32_t g = 0; g < k / rows && !rc; g++) {
            if (full) {
                rc = range(actor, cta, m->start + u / units * m->lbo + g * m->sbo, rows * span, what);
                continue;
            }
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t v = u; v < mu && !rc; v++) rc = range(actor, cta, emu_matrix_unit(m, v, g * rows + r), 16, what);
        }
    }
    return rc;
}

static float e4m3_table[256], e5m2_table[256];

static __attribute__((constructor)) void fill_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        e4m3_table[i] = (float)emu_decode(i, &EMU_FMT_E4M3);
        e5m2_table[i] = (float)emu_decode(i, &EMU_FMT_E5M2);
    }
}

void emu_widen(const uint8_t *src, uint32_t n, int type, float *out)
{
    const uint16_t *h = (const uint16_t *)(const void *)src;
    int32_t *s = (int32_t *)(void *)out;
    switch (type) {
    case EMU_T_BF16:
        for (uint32_t i = 0; i < n; i++) out[i] = bf16_f32(h[i]);
        break;
    case EMU_T_F16:
        for (uint32_t i = 0; i < n; i++) out[i] = f16_f32(h[i]);
        break;
    case EMU_T_TF32: /* the low 13 bits are ignored */
        for (uint32_t i = 0; i < n; i++) out[i] = f32_bits(((const uint32_t *)(const void *)src)[i] & 0xFFFFE000u);
        break;
    case EMU_T_E4M3:
        for (uint32_t i = 0; i < n; i++) out[i] = e4m3_table[src[i]];
        break;
    case EMU_T_E5M2:
        for (uint32_t i = 0; i < n; i++) out[i] = e5m2_table[src[i]];
        break;
    case EMU_T_S8:
        for (uint32_t i = 0; i < n; i++) s[i] = (int8_t)src[i];
        break;
    default:
        for (uint32_t i = 0; i < n; i++) s[i] = src[i];
        break;
    }
}

/* One unit, always a whole 16 bytes, so that the loop above has a constant length. */
static inline void unit(const EmuCta *cta, uint32_t off, int type, float *out)
{
    const uint8_t *p = cta->smem + off;
    if (type == EMU_T_BF16)
        emu_widen(p, 8, EMU_T_BF16, out);
    else if (type == EMU_T_F16)
        emu_widen(p, 8, EMU_T_F16, out);
    else
        emu_widen(p, type == EMU_T_TF32 ? 4 : 16, type, out);
}

static void flip(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = -x[i];
}

void emu_matrix_rows(const EmuCta *cta, const EmuMatrix *m, uint32_t mn, uint32_t k, int type, int negate, float *rows)
{
    uint32_t per = 16u / m->elem_bytes;
    if (!m->mn_major) {
        for (uint32_t r = 0; r < mn; r++)
            for (uint32_t u = 0; u < k / per; u++) unit(cta, emu_matrix_unit(m, r, u), type, rows + r * k + u * per);
    } else {
        for (uint32_t u = 0; u < mn / per; u++)
            for (uint32_t j = 0; j < k; j++) {
                float t[16];
                unit(cta, emu_matrix_unit(m, u, j), type, t);
                for (uint32_t i = 0; i < per; i++) rows[(u * per + i) * k + j] = t[i];
            }
    }
    if (negate) flip(rows, mn * k);
}

void emu_matrix_blocks(const EmuCta *cta, const EmuMatrix *m, uint32_t mn, uint32_t k, int type, int negate, float *blocks)
{
    uint32_t per = 16u / m->elem_bytes;
    if (!m->mn_major) {
        for (uint32_t r = 0; r < mn; r++) {
            float t[16], *to = blocks + (r / 16) * 16 * k + r % 16;
            for (uint32_t u = 0; u < k / per; u++) {
                unit(cta, emu_matrix_unit(m, r, u), type, t);
                for (uint32_t i = 0; i < per; i++) to[(u * per + i) * 16] = t[i];
            }
        }
    } else {
        for (uint32_t u = 0; u < mn / per; u++)
            for (uint32_t j = 0; j < k; j++) {
                uint32_t r = u * per;
                unit(cta, emu_matrix_unit(m, u, j), type, blocks + (r / 16) * 16 * k + j * 16 + r % 16);
            }
    }
    if (negate) flip(blocks, mn * k);
}

/* Eight rows of one unit along K each: t[row][per] to even and odd rows of quads, k the fastest but for the quad. */
static inline void put_rows(const float (*t)[16], uint32_t per, float *even, float *odd)
{
    for (uint32_t i = 0; i < per; i++)
        for (uint32_t q = 0; q < 4; q++) {
            even[i * 4 + q] = t[2 * q][i];
            odd[i * 4 + q] = t[2 * q + 1][i];
        }
}

void emu_matrix_quads(const EmuCta *cta, const EmuMatrix *m, uint32_t mn, uint32_t k, int type, int negate, float *quads)
{
    uint32_t per = 16u / m->elem_bytes;
    if (!m->mn_major) {
        float t[8][16];
        for (uint32_t g = 0; g < mn / 8; g++)
            for (uint32_t u = 0; u < k / per; u++) {
                for (uint32_t r = 0; r < 8; r++) unit(cta, emu_matrix_unit(m, g * 8 + r, u), type, t[r]);
                float *even = quads + (g * 2 * k + u * per) * 4, *odd = even + 4 * k;
                if (per == 8)
                    put_rows((const float (*)[16])t, 8, even, odd);
                else
                    put_rows((const float (*)[16])t, per, even, odd);
            }
    } else {
        for (uint32_t u = 0; u < mn / per; u++)
            for (uint32_t j = 0; j < k; j++) {
                float t[16];
                unit(cta, emu_matrix_unit(m, u, j), type, t);
                for (uint32_t i = 0; i < per; i += 8) { /* eight columns (MN-major types have 8 or 16) make two quads */
                    float *even = quads + ((u * per + i) / 8 * 2 * k + j) * 4, *odd = even + 4 * k;
                    for (uint32_t q = 0; q < 4; q++) {
                        even[q] = t[i + 2 * q];
                        odd[q] = t[i + 2 * q + 1];
                    }
                }
            }
    }
    if (negate) flip(quads, mn * k);
}

/* For tests: the shared address of element (mn, k) of a descriptor; 0xFFFFFFFF if the descriptor is refused. */
EMU_API uint32_t emu_descriptor_address(uint64_t desc, int wgmma, int mn_major, int elem_bytes, uint32_t mn, uint32_t k)
{
    EmuMatrix m;
    const char *bad = wgmma ? emu_matrix_wgmma(desc, mn_major, elem_bytes, &m) : emu_matrix_tcgen05(desc, mn_major, elem_bytes, &m);
    if (bad) return 0xFFFFFFFFu;
    uint32_t per = 16u / (uint32_t)elem_bytes;
    return mn_major ? emu_matrix_unit(&m, mn / per, k) + mn % per * (uint32_t)elem_bytes
                    : emu_matrix_unit(&m, mn, k / per) + k % per * (uint32_t)elem_bytes;
}
