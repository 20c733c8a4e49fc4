"""Opcode table: tcgen05, wgmma, matrix loads and stores, cluster launch control (PTX ISA 9.1, 9.7.14 to 9.7.16)."""

from __future__ import annotations

from .forms import TYPES, Choices, Form, Number
from .isa import isa

_GROUP = "cg=cta_group::1|cta_group::2"
_ALIGNED = isa.F_ALIGNED
_CP_SHAPES = {
    "128x256b": isa.CP_128X256B,
    "128x128b": isa.CP_128X128B,
    "64x128b.warpx2::02_13": isa.CP_64X128B_02_13,
    "64x128b.warpx2::01_23": isa.CP_64X128B_01_23,
    "32x128b.warpx4": isa.CP_32X128B_X4,
    "4x256b": isa.CP_4X256B,
}
_KIND_CLASS = {"kind::f16": "MMA_F16", "kind::tf32": "MMA_TF32", "kind::f8f6f4": "MMA_F8", "kind::i8": "MMA_I8"}


def _tmem() -> list[Form]:
    mods: tuple[Number, ...] = ("TS:shape", "INT:num", "HAS:pack")
    forms: list[Form] = [
        Form(
            f"tcgen05.alloc.{_GROUP}.sync.aligned.shared::cta?.b32",
            "tcgen05_alloc",
            "m s:u32",
            "TMEM",
            ("INT:cg",),
            _ALIGNED,
        ),
        Form(
            f"tcgen05.dealloc.{_GROUP}.sync.aligned.b32",
            "tcgen05_dealloc",
            "s:b32 s:u32",
            "TMEM",
            ("INT:cg",),
            _ALIGNED,
        ),
        Form(
            f"tcgen05.relinquish_alloc_permit.{_GROUP}.sync.aligned",
            "tcgen05_relinquish",
            "",
            "TMEM",
            ("INT:cg",),
            _ALIGNED,
        ),
        Form("tcgen05.wait::ld.sync.aligned", "tcgen05_wait", "", "TMEM", (0,), _ALIGNED),
        Form("tcgen05.wait::st.sync.aligned", "tcgen05_wait", "", "TMEM", (1,), _ALIGNED),
    ]
    for shape, per_count in (("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4)):
        for i in range(8):
            count = per_count << i
            if count > 128:
                break
            head = f"sync.aligned.shape={shape}.num=x{1 << i}"
            forms += [
                Form(
                    f"tcgen05.ld.{head}.pack=pack::16b?.b32", "tcgen05_ld", f"dv:b32*{count} m", "TMEM", mods, _ALIGNED
                ),
                Form(
                    f"tcgen05.st.{head}.pack=unpack::16b?.b32",
                    "tcgen05_st",
                    f"m sv:b32*{count}",
                    "TMEM",
                    mods,
                    _ALIGNED,
                ),
            ]
    for count in (1 << i for i in range(8)):
        head = f"sync.aligned.shape=16x32bx2.num=x{count}"
        ld, st = f"tcgen05.ld.{head}.pack=pack::16b?.b32", f"tcgen05.st.{head}.pack=unpack::16b?.b32"
        forms += [
            Form(ld, "tcgen05_ld", f"dv:b32*{count} m i", "TMEM", mods, _ALIGNED),
            Form(st, "tcgen05_st", f"m i sv:b32*{count}", "TMEM", mods, _ALIGNED),
        ]
    return forms


def _tcgen05() -> list[Form]:
    forms: list[Form] = []
    pattern = rf"tcgen05.mma.{_GROUP}.kind={'|'.join(_KIND_CLASS)}.collector=/collector::a::\w+/?"
    for from_tmem in (0, 1):
        for masked in (0, 1):
            for scaled in (0, 1):
                operands = " ".join(
                    ["m", "m" if from_tmem else "s:b64", "s:b64 s:b32", *(["v:b32"] * masked), "sp", *(["i"] * scaled)]
                )
                bits = from_tmem | masked << 1 | scaled << 2
                mods = ("K:kind", bits, "INT:cg")
                forms.append(Form(pattern, "tcgen05_mma", operands, lambda c: _KIND_CLASS[c["kind"]], mods))
    forms += [
        Form("tcgen05.mma.x=/.*/", "", "*", "OTHER", hint="block scaling, .sp, .ws and .ashift are not modelled"),
        Form(
            f"tcgen05.commit.{_GROUP}.mbarrier::arrive::one.shared::cluster?.b64",
            "tcgen05_commit",
            "m",
            "MBARRIER",
            ("INT:cg", 0),
        ),
        Form(
            f"tcgen05.commit.{_GROUP}.mbarrier::arrive::one.shared::cluster?.multicast::cluster.b64",
            "tcgen05_commit",
            "m s:b16",
            "MBARRIER",
            ("INT:cg", isa.BULK_MULTICAST),
        ),
        Form(
            f"tcgen05.cp.{_GROUP}.shape=/{'|'.join(_CP_SHAPES)}/",
            "tcgen05_cp",
            "m s:b64",
            "TMEM",
            ("INT:cg", lambda c: _CP_SHAPES[c["shape"]]),
        ),
        Form("tcgen05.shift.x=/.*/", "", "*", "TMEM", hint="tcgen05.shift is not modelled"),
        Form("tcgen05.fence::before_thread_sync", "tcgen05_fence", "", "FENCE", (0,)),
        Form("tcgen05.fence::after_thread_sync", "tcgen05_fence", "", "FENCE", (1,)),
    ]
    return forms


def _shape(choices: Choices) -> tuple[int, int]:
    n, k = choices["shape"].removeprefix("m64n").split("k")
    return int(n), int(k)


def _wgmma_class(choices: Choices) -> str:
    operand = choices["at"]
    if operand == "tf32":
        return "MMA_TF32"
    return "MMA_F16" if operand in ("f16", "bf16") else "MMA_I8" if operand in ("s8", "u8") else "MMA_F8"


def _result(choices: Choices) -> int:
    return _shape(choices)[0] | TYPES[choices["dt"]] << 16


def _wgmma() -> list[Form]:
    forms = [
        Form("wgmma.fence.sync.aligned", "wgmma_fence", "", "FENCE", (), _ALIGNED),
        Form("wgmma.commit_group.sync.aligned", "wgmma_commit", "", "FENCE", (), _ALIGNED),
        Form("wgmma.wait_group.sync.aligned", "wgmma_wait", "i", "FENCE", (), _ALIGNED),
    ]
    kinds = (
        (16, "f32|f16", "f16", "f16", 4),  # K, D types, A types, B types, immediates with A in shared memory
        (16, "f32", "bf16", "bf16", 4),
        (8, "f32", "tf32", "tf32", 2),
        (32, "f32|f16", "e4m3|e5m2", "e4m3|e5m2", 2),
        (32, "s32", "s8|u8", "s8|u8", 0),
    )
    for k, results, a, b, immediates in kinds:
        shape = rf"shape=/m64n\d+k{k}/"
        pattern = (
            f"wgmma.mma_async.sync.aligned.{shape}.dt={results}.at={a}.bt={b}{'.satfinite?' if a == 's8|u8' else ''}"
        )
        for in_registers in (0, 1):
            # With A in registers the transpose immediate of A is gone.
            count = immediates - 1 if in_registers and immediates == 4 else immediates
            operands = " ".join(["xv:b32", "v:b32" if in_registers else "s:b64", "s:b64", "sp", *(["i"] * count)])
            mods = ("T:at", _result, lambda c, a=in_registers: a | 2 * ("satfinite" in c), "T:bt")
            forms.append(Form(pattern, "wgmma", operands, _wgmma_class, mods, _ALIGNED))
    return forms


def _matrices() -> list[Form]:
    forms: list[Form] = []
    for count in (1, 2, 4):
        tail = f"num=x{count}.trans?.space=shared|shared::cta?"
        forms += [
            Form(
                f"ldmatrix.sync.aligned.m8n8.{tail}.b16",
                "ldmatrix",
                f"dv:b32*{count} m",
                "SHARED",
                ("INT:num", "HAS:trans", 16),
                _ALIGNED,
            ),
            Form(
                f"stmatrix.sync.aligned.m8n8.{tail}.b16",
                "stmatrix",
                f"m sv:b32*{count}",
                "SHARED",
                ("INT:num", "HAS:trans", 16),
                _ALIGNED,
            ),
        ]
    forms.append(Form("stmatrix.x=/.*/", "", "*", "SHARED", hint="only m8n8 with .b16 is modelled"))
    forms.append(Form("mma.x=/.*/", "", "*", "OTHER", hint="warp-level mma is not modelled; use wgmma or tcgen05.mma"))
    return forms


def _cluster_launch() -> list[Form]:
    head = "clusterlaunchcontrol"
    tail = "mbarrier::complete_tx::bytes.all=multicast::cluster::all?.b128"
    query = f"{head}.query_cancel"
    return [
        Form(f"{head}.try_cancel.async.space=shared::cta?.{tail}", "clc_try_cancel", "m m", "TMA", (0, "HAS:all")),
        Form(f"{query}.is_canceled.pred.b128", "clc_is_canceled", "dp s:b128", "OTHER"),
        Form(f"{query}.get_first_ctaid::x.b32.b128", "clc_get_ctaid", "d:b32 s:b128", "OTHER", (0,)),
        Form(f"{query}.get_first_ctaid::y.b32.b128", "clc_get_ctaid", "d:b32 s:b128", "OTHER", (1,)),
        Form(f"{query}.get_first_ctaid::z.b32.b128", "clc_get_ctaid", "d:b32 s:b128", "OTHER", (2,)),
        Form(f"{query}.get_first_ctaid.v4.b32.b128", "clc_get_ctaid", "dv:b32*4 s:b128", "OTHER", (3,)),
    ]


FORMS = [*_tmem(), *_tcgen05(), *_wgmma(), *_matrices(), *_cluster_launch()]
