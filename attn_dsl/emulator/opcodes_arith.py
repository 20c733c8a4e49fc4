"""Opcode table: arithmetic, logic, comparison, conversion (PTX ISA 9.1, chapters 9.7.1 to 9.7.8)."""

from __future__ import annotations

from .forms import Choices, Form
from .isa import isa

_INT = "t=s16|u16|s32|u32|s64|u64"
_BITS = "t=b16|b32|b64"
_XORSIGN = r"xorsign=/xorsign\.abs/?"
_RND = "rnd=rn|rz|rm|rp"
_D_S = "d:{t} s:{t}"
_D_SS = "d:{t} s:{t} s:{t}"
_D_SSS = "d:{t} s:{t} s:{t} s:{t}"
_PRMT_MODES = ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
_TESTP = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


def _integer() -> list[Form]:
    forms = [
        Form("mul.wide.t=s16|u16|s32|u32", "mul_wide_{t}", "d:{wide} s:{t} s:{t}", "INT"),
        Form("mad.wide.t=s16|u16|s32|u32", "mad_wide_{t}", "d:{wide} s:{t} s:{t} s:{wide}", "INT"),
        Form(f"mul.half=lo|hi.{_INT}", "mul_{half}_{t}", _D_SS, "INT"),
        Form(f"mad.lo.{_INT}", "mad_lo_{t}", _D_SSS, "INT"),
        Form("mad.hi.t=s32|u32|s64|u64", "mad_hi_{t}", _D_SSS, "INT"),
        Form("abs.t=s16|s32|s64", "abs_{t}", _D_S, "INT"),
        Form("neg.t=s16|s32|s64", "neg_{t}", _D_S, "INT"),
        Form(f"not.{_BITS}", "not_{t}", _D_S, "INT"),
        Form("not.pred", "not_pred", "dp sp", "SELECT"),
        Form("cnot.t=b32", "cnot_{t}", _D_S, "INT"),
        Form(f"shl.{_BITS}", "shl_{t}", "d:{t} s:{t} s:u32", "INT"),
        Form("shr.t=b16|b32|b64|s16|u16|s32|u32|s64|u64", "shr_{t}", "d:{t} s:{t} s:u32", "INT"),
        Form("popc.t=b32|b64", "popc_{t}", "d:u32 s:{t}", "INT"),
        Form("clz.t=b32|b64", "clz_{t}", "d:u32 s:{t}", "INT"),
        Form("brev.t=b32|b64", "brev_{t}", _D_S, "INT"),
        Form("bfind.t=u32|s32", "bfind_{t}", "d:u32 s:{t}", "INT"),
        Form("bfe.t=u32|s32|u64|s64", "bfe_{t}", "d:{t} s:{t} s:u32 s:u32", "INT"),
        Form("bfi.t=b32|b64", "bfi_{t}", "d:{t} s:{t} s:{t} s:u32 s:u32", "INT"),
        Form(
            f"prmt.b32.mode={'|'.join(_PRMT_MODES[1:])}?",
            "prmt_b32",
            "d:b32 s:b32 s:b32 s:b32",
            "INT",
            (lambda c: _PRMT_MODES.index(c.get("mode", "")),),
        ),
        Form("lop3.b32", "lop3_b32", "d:b32 s:b32 s:b32 s:b32 i", "INT"),
        Form(
            "shf.way=l|r.mode=clamp|wrap.b32",
            "shf_{way}_b32",
            "d:b32 s:b32 s:b32 s:u32",
            "INT",
            (lambda c: int(c["mode"] == "wrap"),),
        ),
        Form("sad.t=u32|s32", "sad_{t}", _D_SSS, "INT"),
        Form("op=min|max.relu.t=s32", "{op}_relu_{t}", _D_SS, "INT"),
        Form("op=add|sub.sat.t=s32", "{op}_sat_{t}", _D_SS, "INT"),
        Form("op=dp4a|dp2a.x=/.*/", "", "*", "INT", hint="packed dot products are not modelled"),
        Form("op=addc|subc.x=/.*/", "", "*", "INT", hint="the carry flag is not modelled"),
        Form("op=add|sub|mad.x=/.*cc.*/", "", "*", "INT", hint="the carry flag is not modelled"),
    ]
    forms += [Form(f"{op}.{_INT}", f"{op}_{{t}}", _D_SS, "INT") for op in ("add", "sub", "div", "rem", "min", "max")]
    for op in ("and", "or", "xor"):
        forms += [
            Form(f"{op}.{_BITS}", f"{op}_{{t}}", _D_SS, "INT"),
            Form(f"{op}.pred", f"{op}_pred", "dp sp sp", "SELECT"),
        ]
    return forms


def _floating() -> list[Form]:
    flags = ("RND:rnd", "FF:ftz+sat+relu")
    forms: list[Form] = []
    for op in ("add", "sub", "mul"):
        forms += [
            Form(f"{op}.{_RND}?.ftz?.sat?.t=f32", f"{op}_f32", _D_SS, "F32", flags),
            Form(f"{op}.{_RND}?.ftz?.t=f32x2", f"{op}_f32x2", _D_SS, "F32X2", flags),
            Form(f"{op}.{_RND}?.t=f64", f"{op}_f64", _D_SS, "OTHER", flags),
            Form(f"{op}.rnd=rn?.ftz?.sat?.t=f16|f16x2", f"{op}_{{t}}", _D_SS, "HALF", flags),
            Form(f"{op}.rnd=rn?.t=bf16|bf16x2", f"{op}_{{t}}", _D_SS, "HALF", flags),
        ]
    forms += [
        Form(f"op=add|sub.{_RND}?.sat?.f32.t=f16|bf16", "{op}_f32_{t}", "d:f32 s:{t} s:f32", "F32", flags),
        Form(f"op=fma|mad.{_RND}.ftz?.sat?.t=f32", "fma_f32", _D_SSS, "F32", flags),
        Form(f"fma.{_RND}.ftz?.t=f32x2", "fma_f32x2", _D_SSS, "F32X2", flags),
        Form(f"op=fma|mad.{_RND}.t=f64", "fma_f64", _D_SSS, "OTHER", flags),
        Form("fma.rnd=rn.ftz?.sat?.relu?.t=f16|f16x2", "fma_{t}", _D_SSS, "HALF", flags),
        Form("fma.rnd=rn.relu?.t=bf16|bf16x2", "fma_{t}", _D_SSS, "HALF", flags),
        Form(f"fma.{_RND}.sat?.f32.t=f16|bf16", "fma_f32_{t}", "d:f32 s:{t} s:{t} s:f32", "F32", flags),
        Form("copysign.t=f32", "copysign_f32", _D_SS, "F32"),
        Form(
            f"testp.test={'|'.join(_TESTP)}.t=f32",
            "testp_f32",
            "dp s:f32",
            "SELECT",
            (lambda c: _TESTP.index(c["test"]),),
        ),
    ]
    for op in ("min", "max"):
        mods = (0, "FF:ftz+NaN+xorsign")
        forms += [
            Form(f"{op}.ftz?.NaN?.{_XORSIGN}.t=f32", f"{op}_f32", _D_SS, "F32", mods),
            Form(f"{op}.ftz?.NaN?.t=f32", f"{op}3_f32", _D_SSS, "F32", mods),
            Form(f"{op}.t=f64", f"{op}_f64", _D_SS, "OTHER", mods),
            Form(f"{op}.ftz?.NaN?.{_XORSIGN}.t=f16|f16x2", f"{op}_{{t}}", _D_SS, "HALF", mods),
            Form(f"{op}.NaN?.{_XORSIGN}.t=bf16|bf16x2", f"{op}_{{t}}", _D_SS, "HALF", mods),
        ]
    for op in ("neg", "abs"):
        forms += [
            Form(f"{op}.ftz?.t=f32", f"{op}_f32", _D_S, "F32", (0, "FF:ftz")),
            Form(f"{op}.t=f64", f"{op}_f64", _D_S, "OTHER"),
            Form(f"{op}.ftz?.t=f16|f16x2", f"{op}_{{t}}", _D_S, "HALF", (0, "FF:ftz")),
            Form(f"{op}.t=bf16|bf16x2", f"{op}_{{t}}", _D_S, "HALF"),
        ]
    return forms


def _functions() -> list[Form]:
    approx = (0, lambda c: isa.FF_APPROX | (isa.FF_FTZ if c.get("ftz") else 0))
    rounded = ("RND:rnd", "FF:ftz")
    forms = [
        Form("div.how=approx|full.ftz?.t=f32", "div_f32", _D_SS, "MUFU", approx),
        Form(f"div.{_RND}.ftz?.t=f32", "div_f32", _D_SS, "MUFU", rounded),
        Form(f"div.{_RND}.t=f64", "div_f64", _D_SS, "OTHER", rounded),
        Form("ex2.approx.ftz?.t=f32", "ex2_f32", _D_S, "EX2", approx),
        Form("ex2.approx.t=f16|f16x2", "ex2_{t}", _D_S, "EX2", approx),
        Form("ex2.approx.ftz.t=bf16|bf16x2", "ex2_{t}", _D_S, "EX2", (0, isa.FF_APPROX | isa.FF_FTZ)),
        Form("tanh.approx.t=f32|f16|f16x2|bf16|bf16x2", "tanh_{t}", _D_S, "MUFU", approx),
        Form("rsqrt.approx.ftz?.t=f32", "rsqrt_f32", _D_S, "MUFU", approx),
    ]
    forms += [Form(f"{op}.approx.ftz?.t=f32", f"{op}_f32", _D_S, "MUFU", approx) for op in ("lg2", "sin", "cos")]
    for op in ("rcp", "sqrt"):
        forms += [
            Form(f"{op}.approx.ftz?.t=f32", f"{op}_f32", _D_S, "MUFU", approx),
            Form(f"{op}.{_RND}.ftz?.t=f32", f"{op}_f32", _D_S, "MUFU", rounded),
        ]
    return forms


_INT_TYPES = "u8|s8|u16|s16|u32|s32|u64|s64"


def _convert() -> list[Form]:
    mods = ("T:dt", "T:st", "RNDC:rnd", "FF:ftz+sat+relu+satfinite")
    every = f"{_INT_TYPES}|f16|bf16|f32|f64"
    rounding = "rnd=rn|rz|rm|rp|rni|rzi|rmi|rpi?"
    return [
        Form("cvt.rnd=rn|rz.satfinite?.relu?.dt=f16x2|bf16x2.st=f32", "cvt", "d:b32 s:f32 s:f32", "CVT", mods),
        Form("cvt.rnd=rn|rz.relu?.satfinite=satfinite.dt=f16x2|bf16x2.st=f32", "cvt", "d:b32 s:f32 s:f32", "CVT", mods),
        Form("cvt.rnd=rn.satfinite=satfinite.relu?.dt=e4m3x2|e5m2x2.st=f32", "cvt", "d:b16 s:f32 s:f32", "CVT", mods),
        Form(
            "cvt.rnd=rn.satfinite=satfinite.relu?.dt=e4m3x2|e5m2x2.st=f16x2|bf16x2", "cvt", "d:b16 s:b32", "CVT", mods
        ),
        Form("cvt.rnd=rn.relu?.dt=f16x2.st=e4m3x2|e5m2x2", "cvt", "d:b32 s:b16", "CVT", mods),
        Form("cvt.rnd=rn|rz|rna.satfinite?.relu?.dt=tf32.st=f32", "cvt", "d:b32 s:f32", "CVT", mods),
        Form(f"cvt.{rounding}.ftz?.relu?.sat?.satfinite?.dt={every}.st={every}", "cvt", "dw:{dt} sw:{st}", "CVT", mods),
    ]


def _compare() -> list[Form]:
    forms: list[Form] = []
    ordered = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
    kinds = (
        ("eq|ne", "t=b16|b32|b64"),
        ("eq|ne|lt|le|gt|ge", "t=s16|s32|s64"),
        ("eq|ne|lt|le|gt|ge|lo|ls|hi|hs", "t=u16|u32|u64"),
        (ordered, "t=f64|bf16"),
        (ordered, "ftz?.t=f32|f16"),
    )
    for comparisons, tail in kinds:
        mods = ("CMP:cmp", "BOOL:bool", "FF:ftz")
        head = f"setp.cmp={comparisons}"
        forms += [
            Form(f"{head}.{tail}", "setp_{t}", "p|q s:{t} s:{t} true", "SELECT", mods),
            Form(f"{head}.bool=and|or|xor.{tail}", "setp_{t}", "p|q s:{t} s:{t} sp", "SELECT", mods),
        ]
    forms += [
        Form(
            "selp.t=b16|u16|s16|f16|bf16|b32|u32|s32|f32|b64|u64|s64|f64", "selp_{b}", "d:{t} s:{t} s:{t} sp", "SELECT"
        ),
        Form("slct.t=b32|u32|s32|f32.s32", "slct_b32", "d:{t} s:{t} s:{t} s:s32", "SELECT"),
        Form("set.x=/.*/", "", "*", "SELECT", hint="use setp and selp"),
    ]
    return forms


def _mov_type(choices: Choices) -> str:
    return "SELECT" if choices["t"] == "pred" else "MOVE"


def _moves() -> list[Form]:
    types = "b16|u16|s16|f16|bf16|b32|u32|s32|f32|b64|u64|s64|f64|b128|pred"
    # Its operands decide what a mov is (a copy, packing, an address, a special register): decoder.py.
    return [Form(f"mov.t={types}", "mov", "mov", _mov_type)]


FORMS = [*_integer(), *_floating(), *_functions(), *_convert(), *_compare(), *_moves()]
