"""Opcode table: addresses, loads, stores, atomics and asynchronous copies (PTX ISA 9.1, chapters 9.7.9, 9.7.13)."""

from __future__ import annotations

from .forms import Choices, Form, Number, number
from .isa import isa

_SCOPE = "scope=cta|cluster|gpu|sys?"
_LEVEL1 = r"evict=/L1::\w+/?"
_HINT = "L2::cache_hint?"
_PREFETCH = r"prefetch=/L2::\d+B/?"
_VALUES = "vec=v2|v4|v8?.t=b8|u8|s8|b16|u16|s16|f16|bf16|b32|u32|s32|f32|b64|u64|s64|f64|b128"
_CLASS = {"local": "LOCAL", "param": "PARAM", "param::entry": "PARAM"}


def _space_class(choices: Choices) -> str:
    space = choices.get("space", "global")
    return "SHARED" if space.startswith("shared") else _CLASS.get(space, "GLOBAL")


def _vector_width(choices: Choices) -> int:
    return int(choices.get("vec", "v1")[1:])


def _loads() -> list[Form]:
    spaces = "global|local|param|shared|shared::cta|shared::cluster"
    load = f"sem=weak|volatile|relaxed|acquire?.{_SCOPE}.space=const|param::entry|{spaces}?.cop=ca|cg|cs|lu|cv?.nc?"
    store = f"sem=weak|volatile|relaxed|release?.{_SCOPE}.space={spaces}?.cop=wb|cg|cs|wt?"
    tail = rf"{_LEVEL1}.evict2=/L2::evict_\w+/?.{_HINT}"
    mods = ("SPACE:space", "T:t", "REGBITS", "SEM:sem")
    return [
        Form(f"ld.{load}.{tail}.{_PREFETCH}.{_VALUES}", "ld", "dv:{t} m s:b64?", _space_class, mods),
        Form(f"st.{store}.{tail}.{_VALUES}", "st", "m sv:{t} s:b64?", _space_class, mods),
    ]


def _operation(choices: Choices) -> int:
    return number("A:op", choices) | number("SEM:sem", choices) << 8


# What atom and red do, and the types it exists for (PTX ISA, `atom`), with the place of the cache hint.
_ATOMICS = (
    f"op=add.{_HINT}.t=u32|s32|u64|f32|f64",
    f"op=add.noftz.{_HINT}.t=f16|bf16|f16x2|bf16x2",
    f"op=min|max.{_HINT}.t=u32|s32|u64|s64",
    f"op=and|or|xor.{_HINT}.t=b32|b64",
    f"op=inc|dec.{_HINT}.t=u32",
)
# With a vector, on global memory: the elements are separate operations.
_VECTOR_ATOMICS = (
    f"op=add.{_HINT}.vec=v2|v4.t=f32",
    f"op=add|min|max.noftz.{_HINT}.vec=v2|v4|v8.t=f16|bf16",
    f"op=add|min|max.noftz.{_HINT}.vec=v2|v4.t=f16x2|bf16x2",
)


def _atomics() -> list[Form]:
    spaces = "space=global|shared|shared::cta|shared::cluster?"
    atom, red = (f"sem={orders}?.{_SCOPE}" for orders in ("relaxed|acquire|release|acq_rel", "relaxed|release"))
    mods = ("SPACE:space", "T:t", _vector_width, _operation)
    forms = []
    for tail in (*(f"{spaces}.{kind}" for kind in _ATOMICS), *(f"space=global?.{kind}" for kind in _VECTOR_ATOMICS)):
        forms += [
            Form(f"atom.{atom}.{tail}", "atom", "dv:{t} m sv:{t} s:b64?", _space_class, mods),
            Form(f"red.{red}.{tail}", "red", "m sv:{t} s:b64?", _space_class, mods),
        ]
    head = f"{atom}.{spaces}"
    return [
        *forms,
        Form(f"atom.{head}.op=exch.{_HINT}.t=b32|b64", "atom", "dv:{t} m sv:{t} s:b64?", _space_class, mods),
        Form(f"atom.{head}.op=cas.{_HINT}.t=b16|b32|b64", "atom", "dv:{t} m sv:{t} sv:{t} s:b64?", _space_class, mods),
        Form(f"atom.{head}.op=exch|cas.{_HINT}.b128", "", "*", "GLOBAL", hint="128-bit atomics are not modelled"),
        Form("red.async.x=/.*/", "", "*", "SHARED", hint="use cp.reduce.async.bulk"),
        Form(
            "st.async.weak?.shared::cluster?.mbarrier::complete_tx::bytes.vec=v2|v4?.t=b32|u32|s32|f32|b64|u64|s64|f64",
            "st_async",
            "m sv:{t} m",
            "SHARED",
            ("T:t",),
        ),
        Form("multimem.x=/.*/", "", "*", "GLOBAL", hint="multicast memory is not modelled"),
    ]


def _addresses() -> list[Form]:
    spaces = "const|global|local|param|shared|shared::cta|shared::cluster"
    return [
        Form(f"cvta.to?.space={spaces}.t=u64", "cvta", "d:{t} address:{t}", "INT", ("SPACE:space", "HAS:to", "INT:t")),
        Form(
            "mapa.space=shared::cluster?.t=u32|u64", "mapa", "d:{t} address:{t} s:u32", "INT", ("INT:t", "SPACE:space")
        ),
        Form("getctarank.space=shared::cluster?.t=u32|u64", "getctarank", "d:u32 s:{t}", "INT"),
        Form(f"isspacep.space={spaces}", "isspacep", "dp s:u64", "SELECT", ("SPACE:space",)),
        Form("createpolicy.x=/.*/", "mov_b64", "d:b64 zero:b64 *", "OTHER"),
        Form("prefetch.x=/.*/", "nop", "*", "OTHER"),
        Form("prefetchu.x=/.*/", "nop", "*", "OTHER"),
        Form("discard.x=/.*/", "nop", "*", "OTHER"),
        Form("applypriority.x=/.*/", "nop", "*", "OTHER"),
        Form("cp.async.bulk.prefetch.x=/.*/", "nop", "*", "TMA"),
    ]


def _cp_async() -> list[Form]:
    tail = f"shared=shared|shared::cta.global.{_HINT}.{_PREFETCH}"
    return [
        Form(f"cp.async.cop=ca|cg.{tail}", "cp_async", "m m i", "CPASYNC"),
        Form(f"cp.async.cop=ca|cg.{tail}", "cp_async", "m m i s:u32 s:b64?", "CPASYNC", (0, 1)),
        Form(f"cp.async.cop=ca|cg.{tail}", "cp_async", "m m i sp s:b64?", "CPASYNC", (0, 2)),
        Form(f"cp.async.cop=ca|cg.{tail}", "cp_async", "m m i s:b64", "CPASYNC"),
        Form("cp.async.commit_group", "cp_async_commit", "", "CPASYNC"),
        Form("cp.async.wait_group", "cp_async_wait", "i", "CPASYNC"),
        Form("cp.async.wait_all", "cp_async_wait_all", "", "CPASYNC"),
        Form(
            "cp.async.mbarrier.arrive.noinc?.space=shared|shared::cta?.b64",
            "cp_async_mbar_arrive",
            "m",
            "MBARRIER",
            ("HAS:noinc",),
        ),
    ]


_TX = "mbarrier::complete_tx::bytes"
_DIMS = "dims=1d|2d|3d|4d|5d"
_TO_SHARED = "dst=shared::cta|shared::cluster.global"


def _bits(choices: Choices) -> int:
    group = choices.get("cg") or choices.get("cg2") or ""
    return (
        (isa.BULK_MULTICAST if choices.get("multicast") else 0)
        | (isa.BULK_CACHE_HINT if choices.get("hint") else 0)
        | (isa.BULK_CTA_GROUP2 if group.endswith("2") else 0)
        | (isa.BULK_DST_CLUSTER if choices.get("dst") == "shared::cluster" else 0)
        | (isa.BULK_READ if choices.get("read") else 0)
    )


def _copies(
    head: str,
    handler: str,
    operands: str,
    mods: tuple[Number, ...],
    *,
    tail: str = "",
    load: bool = False,
    tensor: bool = False,
) -> list[Form]:
    """A bulk copy with and without its optional parts; each brings an operand: the CTA mask, then the cache policy.

    The ISA writes `.cta_group` before the cache hint, compilers behind it.
    """
    group, group2 = (".cg=cta_group::1|cta_group::2?", ".cg2=cta_group::1|cta_group::2?") if tensor else ("", "")
    forms = []
    for multicast in (False, True) if load else (False,):
        for hint in (False, True):
            pattern = head
            pattern += ".multicast=multicast::cluster" if multicast else ""
            pattern += group + (".hint=L2::cache_hint" if hint else "") + group2 + tail
            full = operands + (" s:b16" if multicast else "") + (" s:b64" if hint else "")
            forms.append(Form(pattern, handler, full, "TMA", mods))
    return forms


# Bulk reductions and the types they exist for (PTX ISA, `cp.reduce.async.bulk`): to global and to shared memory.
_REDUCTIONS = (
    "op=add.t=u32|s32|u64|f32|f64",
    "op=add.noftz.t=f16|bf16",
    "op=min|max.t=u32|s32|u64|s64|f16|bf16",
    "op=and|or|xor.t=b32|b64",
    "op=inc|dec.t=u32",
)
_PUSHED_REDUCTIONS = ("op=add.t=u32|s32|u64", "op=min|max.t=u32|s32", "op=and|or|xor.t=b32", "op=inc|dec.t=u32")


def _bulk() -> list[Form]:
    ops = "op=add|min|max|inc|dec|and|or|xor"
    tensor = f"tensor.{_DIMS}"
    store = "global.shared::cta"
    push = f"dst=shared::cluster.shared::cta.{_TX}"
    mods: tuple[Number, ...] = ("INT:dims", _bits)
    return [
        *_copies(
            f"cp.async.bulk.{tensor}.{_TO_SHARED}.tile?.{_TX}", "tma_load", "m mc m", mods, load=True, tensor=True
        ),
        *_copies(f"cp.async.bulk.{tensor}.{store}.tile?.bulk_group", "tma_store", "mc m", mods),
        *_copies(
            f"cp.reduce.async.bulk.{tensor}.{store}.{ops}.tile?.bulk_group", "tma_reduce", "mc m", (*mods, "A:op")
        ),
        *_copies(f"cp.async.bulk.{_TO_SHARED}.{_TX}", "bulk_load", "m m s:u32 m", (0, _bits), load=True),
        *_copies(f"cp.async.bulk.{store}.bulk_group", "bulk_store", "m m s:u32", (0, _bits)),
        *(
            form
            for tail in _REDUCTIONS
            for form in _copies(
                f"cp.reduce.async.bulk.{store}.bulk_group",
                "bulk_reduce",
                "m m s:u32",
                ("T:t", _bits, "A:op"),
                tail=f".{tail}",
            )
        ),
        Form(f"cp.async.bulk.{push}", "bulk_dsmem", "m m s:u32 m", "TMA", (0, _bits)),
        *(
            Form(f"cp.reduce.async.bulk.{push}.{tail}", "bulk_reduce", "m m s:u32 m", "TMA", ("T:t", _bits, "A:op"))
            for tail in _PUSHED_REDUCTIONS
        ),
        Form("cp.async.bulk.commit_group", "bulk_commit", "", "TMA"),
        Form("cp.async.bulk.wait_group.read?", "bulk_wait", "i", "TMA", (0, _bits)),
        Form("cp.async.bulk.tensor.x=/.*/", "", "*", "TMA", hint="im2col, gather4 and scatter4 are not modelled"),
    ]


FORMS = [*_loads(), *_atomics(), *_addresses(), *_cp_async(), *_bulk()]
