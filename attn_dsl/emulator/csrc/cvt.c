/* cvt between integer and float types, scalar and packed (PTX ISA: "Data Movement and Conversion Instructions: cvt"). */
#include <math.h>

#include "floats.h"
#include "lanes.h"

static const EmuFormat FMT_F32 = {8, 23, 127, 0, 0x7FFFFFFF};

typedef struct TypeInfo {
    uint8_t bits, is_float, is_signed;
} TypeInfo;

static TypeInfo info(uint32_t t)
{
    switch (t) {
    case EMU_T_B8: case EMU_T_U8: return (TypeInfo){8, 0, 0};
    case EMU_T_S8: return (TypeInfo){8, 0, 1};
    case EMU_T_B16: case EMU_T_U16: return (TypeInfo){16, 0, 0};
    case EMU_T_S16: return (TypeInfo){16, 0, 1};
    case EMU_T_B32: case EMU_T_U32: return (TypeInfo){32, 0, 0};
    case EMU_T_S32: return (TypeInfo){32, 0, 1};
    case EMU_T_B64: case EMU_T_U64: return (TypeInfo){64, 0, 0};
    case EMU_T_S64: return (TypeInfo){64, 0, 1};
    case EMU_T_F64: return (TypeInfo){64, 1, 1};
    case EMU_T_F32: case EMU_T_TF32: return (TypeInfo){32, 1, 1};
    case EMU_T_F16: case EMU_T_BF16: return (TypeInfo){16, 1, 1};
    default: return (TypeInfo){8, 1, 1};
    }
}

static const EmuFormat *format(uint32_t t)
{
    switch (t) {
    case EMU_T_F16: case EMU_T_F16X2: return &EMU_FMT_F16;
    case EMU_T_BF16: case EMU_T_BF16X2: return &EMU_FMT_BF16;
    case EMU_T_TF32: return &EMU_FMT_TF32;
    case EMU_T_E4M3: case EMU_T_E4M3X2: return &EMU_FMT_E4M3;
    case EMU_T_E5M2: case EMU_T_E5M2X2: return &EMU_FMT_E5M2;
    default: return &FMT_F32;
    }
}

static double read_float(uint32_t t, uint64_t x, uint32_t flags)
{
    if (t == EMU_T_F64) return f64_bits(x);
    if (t == EMU_T_F32) {
        float f = f32_bits((uint32_t)x);
        return (flags & EMU_FF_FTZ) && fabsf(f) < 0x1p-126f ? copysign(0.0, f) : (double)f;
    }
    if (t == EMU_T_TF32) return f32_bits((uint32_t)x & ~0x1FFFu);
    return emu_decode((uint32_t)x, format(t));
}

static double round_integral(double v, uint32_t mode)
{
    switch (mode) {
    case EMU_RNI: return nearbyint(v);
    case EMU_RMI: return floor(v);
    case EMU_RPI: return ceil(v);
    default: return trunc(v);
    }
}

static uint64_t write_float(uint32_t t, double v, uint32_t rounding, uint32_t flags)
{
    uint32_t mode = rounding;
    if (rounding >= EMU_RNI && rounding <= EMU_RPI) {
        v = round_integral(v, rounding);
        mode = EMU_RN;
    } else if (rounding == EMU_RNONE) {
        mode = EMU_RN;
    }
    if (flags & EMU_FF_SAT) v = v > 0 ? (v > 1 ? 1 : v) : 0; /* NaN and -0 become +0 */
    if ((flags & EMU_FF_RELU) && v == v && !(v > 0)) v = 0;
    if (t == EMU_T_F64) return v != v ? 0x7FFFFFFFFFFFFFFFull : bits_f64(v);
    uint32_t r = emu_encode(v, format(t), (int)mode, flags & EMU_FF_SATFINITE);
    if (t == EMU_T_TF32) r <<= 13;
    if (t == EMU_T_F32 && (flags & EMU_FF_FTZ) && !(r & 0x7F800000)) r &= 0x80000000u;
    return r;
}

/* An integer as a double; when it has more than 53 bits, rounded to odd so that a later rounding to fewer is the only one. */
static double int_to_double(uint64_t x, int is_signed)
{
    int neg = is_signed && (int64_t)x < 0;
    uint64_t m = neg ? 0 - x : x;
    if (m >> 53) {
        int shift = 11 - __builtin_clzll(m);
        uint64_t low = m & ((1ull << shift) - 1);
        m = (m >> shift | (low != 0)) << shift;
    }
    return neg ? -(double)m : (double)m;
}

/* An integer rounded to a double. */
static double int_to_f64(uint64_t x, int is_signed, uint32_t rounding)
{
    int neg = is_signed && (int64_t)x < 0, shift = 0;
    uint64_t m = neg ? 0 - x : x;
    if (m >> 53) {
        shift = 11 - __builtin_clzll(m);
        uint64_t low = m & ((1ull << shift) - 1), half = 1ull << (shift - 1);
        m >>= shift;
        switch (rounding) {
        case EMU_RZ: break;
        case EMU_RM: m += neg && low; break;
        case EMU_RP: m += !neg && low; break;
        default: m += low > half || (low == half && (m & 1)); break;
        }
    }
    double v = ldexp((double)m, shift);
    return neg ? -v : v;
}

static uint64_t float_to_int(double v, TypeInfo d, uint32_t rounding)
{
    if (v != v) return d.bits == 64 ? 1ull << 63 : 0;
    v = round_integral(v, rounding);
    double low = d.is_signed ? -ldexp(1, d.bits - 1) : 0, high = ldexp(1, d.bits - (d.is_signed ? 1 : 0));
    if (v < low) v = low;
    if (v >= high) return d.is_signed ? (1ull << (d.bits - 1)) - 1 : (d.bits == 64 ? ~0ull : (1ull << d.bits) - 1);
    return d.is_signed ? (uint64_t)(int64_t)v : (uint64_t)v;
}

static uint64_t narrow(uint64_t x, TypeInfo t)
{
    if (t.bits == 64) return x;
    uint64_t v = x & ((1ull << t.bits) - 1);
    return t.is_signed && (v >> (t.bits - 1) & 1) ? v | ~0ull << t.bits : v;
}

static uint64_t saturate_int(uint64_t x, TypeInfo s, TypeInfo d)
{
    int neg = s.is_signed && (int64_t)x < 0;
    uint64_t high = d.bits == 64 ? (d.is_signed ? INT64_MAX : ~0ull) : (1ull << (d.bits - d.is_signed)) - 1;
    if (!neg) return x > high ? high : x;
    if (!d.is_signed) return 0;
    int64_t low = d.bits == 64 ? INT64_MIN : -(1ll << (d.bits - 1));
    return (int64_t)x < low ? (uint64_t)low : x;
}

/* One scalar conversion. A narrow signed result is kept sign-extended to the width of its register. */
static uint64_t convert(const EmuInstr *in, uint64_t x)
{
    uint32_t dt = in->mod[0], st = in->mod[1], rounding = in->mod[2], flags = in->mod[3];
    TypeInfo d = info(dt), s = info(st);
    if (dt == EMU_T_TF32 && (x & 0x7FFFFFFF) > 0x7F800000) return x & ~0x1FFFull; /* measured on an H200: NaN is truncated */
    if (s.is_float) {
        double v = read_float(st, x, flags);
        return d.is_float ? write_float(dt, v, rounding, flags) : float_to_int(v, d, rounding);
    }
    uint64_t v = narrow(x, s);
    if (dt == EMU_T_F64) return bits_f64(int_to_f64(v, s.is_signed, rounding));
    if (d.is_float) return write_float(dt, int_to_double(v, s.is_signed), rounding, flags);
    if (flags & EMU_FF_SAT) v = saturate_int(v, s, d);
    v = narrow(v, d);
    return d.bits == 16 ? (uint16_t)v : v;
}

static int packed_type(uint32_t t) { return t >= EMU_T_F16X2 && t <= EMU_T_E5M2X2; }

/* Packed results: {a, b} -> upper, lower; a packed source converts element by element. */
static uint32_t convert_packed(const EmuInstr *in, uint32_t a, uint32_t b)
{
    uint32_t dt = in->mod[0], st = in->mod[1], half = dt == EMU_T_E4M3X2 || dt == EMU_T_E5M2X2 ? 8 : 16;
    double hi, lo;
    if (packed_type(st)) {
        uint32_t shift = st == EMU_T_E4M3X2 || st == EMU_T_E5M2X2 ? 8 : 16;
        hi = emu_decode(a >> shift, format(st));
        lo = emu_decode(a & ((1u << shift) - 1), format(st));
    } else {
        hi = read_float(st, a, in->mod[3]);
        lo = read_float(st, b, in->mod[3]);
    }
    uint32_t h = (uint32_t)write_float(dt, hi, in->mod[2], in->mod[3]), l = (uint32_t)write_float(dt, lo, in->mod[2], in->mod[3]);
    return h << half | l;
}

/* The conversions hot kernels use, without the detour through double. */
LANE2(cvt_bf16x2, 1, 1, uint32_t, f32_bf16(a) << 16 | f32_bf16(b))
LANE1(cvt_copy, 1, 1, uint32_t, a)
LANE1(cvt_zext16, 1, 1, uint32_t, a & 0xFFFF)
LANE1(cvt_sext16, 1, 1, uint32_t, (int32_t)(int16_t)a)
LANE1(cvt_widen_u32, 2, 1, uint32_t, a)
LANE1(cvt_widen_s32, 2, 1, uint32_t, (int64_t)(int32_t)a)
LANE1(cvt_bf16_f32, 1, 1, uint32_t, (a & 0x7FFF) > 0x7F80 ? 0x7FFFFFFF : a << 16)
LANE1(cvt_s32_f32, 1, 1, uint32_t, bits_f32((float)(int32_t)a))
LANE1(cvt_u32_f32, 1, 1, uint32_t, bits_f32((float)a))

static int any_cvt(EmuWarp *w, const EmuInstr *in, uint32_t exec, int checked)
{
    uint32_t dt = in->mod[0], st = in->mod[1], valid = 0xFFFFFFFFu;
    uint32_t ds = !packed_type(dt) && info(dt).bits == 64 ? 2 : 1, ss = !packed_type(st) && info(st).bits == 64 ? 2 : 1;
    int pair = packed_type(dt) && in->nops > 2;
    if (checked) {
        valid = lane_src(w, in, 1, ss, exec);
        if (pair) valid &= lane_src(w, in, 2, ss, exec);
        emu_dst_begin(w, in, in->op[0].reg, ds, exec);
    }
    for (uint32_t m = exec; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        uint64_t r;
        if (packed_type(dt))
            r = convert_packed(in, emu_reg(w, in->op[1].reg, 0)[l], pair ? emu_reg(w, in->op[2].reg, 0)[l] : 0);
        else
            r = convert(in, ss == 2 ? emu_reg64(w, in->op[1].reg, l) : emu_reg(w, in->op[1].reg, 0)[l]);
        emu_dst(w, in->op[0].reg, 0)[l] = (uint32_t)r;
        if (ds == 2) emu_dst(w, in->op[0].reg, 1)[l] = (uint32_t)(r >> 32);
    }
    if (checked) emu_dst_done(w, in->op[0].reg, ds, exec, valid);
    return EMU_NEXT;
}

static inline __attribute__((always_inline)) int route(EmuWarp *w, const EmuInstr *in, uint32_t exec, int checked)
{
    uint32_t dt = in->mod[0], st = in->mod[1], flags = in->mod[3];
    if (!flags) {
#define GO(name) return checked ? emu_c_##name(w, in, exec) : emu_f_##name(w, in, exec)
        if (dt == EMU_T_BF16X2 && st == EMU_T_F32 && in->mod[2] == EMU_RN) GO(cvt_bf16x2);
        TypeInfo d = info(dt), s = info(st);
        if (!packed_type(dt) && !packed_type(st)) {
            if (!d.is_float && !s.is_float) {
                if (d.bits == 32 && (s.bits == 32 || s.bits == 64)) GO(cvt_copy);
                if (d.bits == 32 && s.bits == 16 && !s.is_signed) GO(cvt_zext16);
                if (d.bits == 32 && s.bits == 16 && s.is_signed) GO(cvt_sext16);
                if (d.bits == 16 && !d.is_signed && s.bits == 32) GO(cvt_zext16);
                if (d.bits == 64 && s.bits == 32 && !s.is_signed) GO(cvt_widen_u32);
                if (d.bits == 64 && s.bits == 32 && s.is_signed) GO(cvt_widen_s32);
            }
            if (dt == EMU_T_F32 && st == EMU_T_BF16) GO(cvt_bf16_f32);
            if (dt == EMU_T_F32 && s.bits == 32 && !s.is_float && in->mod[2] == EMU_RN) {
                if (s.is_signed) GO(cvt_s32_f32);
                GO(cvt_u32_f32);
            }
        }
#undef GO
    }
    return any_cvt(w, in, exec, checked);
}
static int emu_c_cvt(EmuWarp *w, const EmuInstr *in, uint32_t exec) { return route(w, in, exec, 1); }
static int emu_f_cvt(EmuWarp *w, const EmuInstr *in, uint32_t exec) { return route(w, in, exec, 0); }

const EmuHandlerEntry emu_handlers_cvt[] = {LANE_ENTRY(cvt), {0}};
