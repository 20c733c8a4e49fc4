"""Running PTX text: arguments, launch shapes, modes."""

from __future__ import annotations

import ctypes
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from attn_dsl.emulator import EmulatorError, KernelFinding, ptx

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"

# out[tid] = the parameter, whatever its type.
COPY = (
    HEAD + ".visible .entry k(.param .u64 out, .param .align 8 .b8 value[8]) {\n.reg .b32 %r<4>;\n.reg .b64 %d<6>;\n"
    "ld.param.u64 %d1, [out];\nld.param.b64 %d2, [value];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %d3, %r1, 8;\n"
    "add.s64 %d4, %d1, %d3;\nst.global.b64 [%d4], %d2;\nret;\n}\n"
)


class Pair(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int32), ("b", ctypes.c_float)]


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (7, struct.pack("<q", 7)),
        (-2, struct.pack("<q", -2)),
        (1 << 63, struct.pack("<Q", 1 << 63)),
        (1.5, struct.pack("<d", 1.5)),
        (b"12345678", b"12345678"),
        (Pair(3, 0.25), struct.pack("<if", 3, 0.25)),
    ],
)
def test_arguments_by_value(value: Any, raw: bytes):
    out = torch.zeros(32, dtype=torch.int64)
    ptx.load(COPY).launch((1, 1, 1), (32, 1, 1), [out, value])
    assert out.tolist() == [int.from_bytes(raw, "little", signed=True)] * 32


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, b"1234", Pair])
def test_arguments_that_do_not_fit(value: Any):
    out = torch.zeros(32, dtype=torch.int64)
    kernel = ptx.load(COPY)
    with pytest.raises((EmulatorError, AttributeError)) as caught:
        kernel.launch((1, 1, 1), (32, 1, 1), [out, value])
    if isinstance(caught.value, EmulatorError):
        assert caught.value.code == "E312"
        assert "argument 1" in str(caught.value)


def test_the_number_of_arguments_is_checked():
    with pytest.raises(EmulatorError, match="takes 2 arguments, 1") as caught:
        ptx.load(COPY).launch((1, 1, 1), (32, 1, 1), [0])
    assert caught.value.code == "E312"


def test_only_the_memory_of_the_arguments_may_be_touched():
    out = torch.zeros(16, dtype=torch.int64)
    with pytest.raises(KernelFinding, match="oob"):
        ptx.load(COPY).launch((1, 1, 1), (32, 1, 1), [out, 1])
    view = torch.zeros(64, dtype=torch.int64)[8:40]
    ptx.load(COPY).launch((1, 1, 1), (32, 1, 1), [view, 1])
    assert view.tolist() == [1] * 32


@pytest.mark.parametrize(
    ("directive", "shape", "words"),
    [
        (".reqntid 64, 1, 1", {"block": (32, 1, 1)}, "(64, 1, 1)"),
        (".reqnctapercluster 2, 1, 1", {"grid": (2, 1, 1), "cluster": (1, 1, 1)}, "(2, 1, 1)"),
        ("", {"block": (1025, 1, 1)}, "1024"),
        ("", {"block": (0, 1, 1)}, "at least 1"),
        ("", {"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "multiple of cluster"),
        ("", {"smem": 232_449}, "232448"),
        ("", {"findings": "some"}, "error, collect, off"),
        ("", {"late": 3}, "late=3"),
        ("", {"threads": -1}, "threads=-1"),
        ("", {"seed": 1 << 64}, "seed=18446744073709551616"),
        ("", {"budget": 0.5}, "budget=0.5"),
    ],
)
def test_impossible_launches(directive: str, shape: dict[str, Any], words: str):
    kernel = ptx.load(f"{HEAD}.visible .entry k() {directive} {{ ret; }}\n")
    call: dict[str, Any] = {"grid": (1, 1, 1), "block": (32, 1, 1), "args": [], **shape}
    with pytest.raises(EmulatorError) as caught:
        kernel.launch(**call)
    assert caught.value.code == "E312"
    assert words in str(caught.value)


def test_launches_from_several_threads_keep_their_findings_apart():
    kernel = ptx.load(COPY)

    def findings(size: int) -> int:
        out = torch.zeros(size, dtype=torch.int64)
        return len(kernel.launch((64, 1, 1), (32, 1, 1), [out, 1], findings="collect").findings)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(findings, [16, 32] * 100)) == [1, 0] * 100


def test_a_cluster_the_kernel_declares_is_the_default():
    text = f"{HEAD}.visible .entry k() .reqnctapercluster 2, 1, 1 {{ ret; }}\n"
    assert ptx.load(text).launch((4, 1, 1), (32, 1, 1), []).config.cluster == (2, 1, 1)


def test_a_tensor_somewhere_else_is_refused():
    with pytest.raises(EmulatorError, match="meta") as caught:
        ptx.load(COPY).launch((1, 1, 1), (32, 1, 1), [torch.zeros(32, device="meta"), 1])
    assert caught.value.code == "E312"


def test_the_report_names_kernel_roles_and_findings():
    text = (
        HEAD + ".visible .entry roles(.param .u64 p) {\n"
        ".reg .pred %p<3>;\n.reg .b32 %r<4>;\n.reg .f32 %f<2>;\n.reg .b64 %d<2>;\n"
        "mov.u32 %r1, %tid.x;\nsetp.ge.u32 %p1, %r1, 64;\n@%p1 bra OTHER;\nmov.f32 %f1, 0f3F800000;\n"
        "ex2.approx.ftz.f32 %f1, %f1;\nret;\nOTHER:\nld.param.u64 %d1, [p];\nst.global.b32 [%d1], %r1;\nret;\n}\n"
    )
    report = ptx.load(text).launch((1, 1, 1), (96, 1, 1), [0], findings="collect")
    assert [finding.kind for finding in report.findings] == ["oob"]
    shown = str(report)
    assert "warps 0-1: " in shown
    assert "ex2 2" in shown
    assert "warp 2: " in shown
    assert "st.global.b32 [%d1], %r1;" in shown
    assert report.classes["ex2"] == 2
    assert [role["ex2"] for role in report.roles] == [1, 1, 0]
