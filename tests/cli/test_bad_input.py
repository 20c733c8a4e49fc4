"""Bad input through the command line: one clear error, the right exit code, never a traceback, nothing half-written."""

import os
from pathlib import Path

import numpy
import pytest
import torch

CAUSAL = "mask = kv_idx <= q_pos\n"
QKV = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"

# name -> (content of the file, code of the error)
FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "E202"),
    "only a comment": ("# nothing\n", "E202"),
    "binary": (b"\x7fELF\x02\x01\x01\x00\x00\xff\xfe", "E200"),
    "no UTF-8": (b"# caf\xe9\n", "E200"),
    "zero bytes": (b"q: bf16[\0batch]\n", "E200"),
    "over 256 KiB": ("#" * (256 * 1024 + 1), "E201"),
    "stray character": (QKV + "mask = kv_idx $ 3\n", "E203"),
    "unterminated block": (QKV + "schedule { tile_q = 64\n", "E205"),
    "unterminated bracket": (QKV + "mask = (kv_idx <= q_pos\n", "E205"),
    "10,000 brackets deep": (QKV + f"mask = {'(' * 10_000}true{')' * 10_000}\n", "E206"),
    "10,000 operators deep": (QKV + f"mask = {'not ' * 10_000}true\n", "E206"),
    "literal of 30 digits": (QKV + f"mask = kv_idx < {10**30}\n", "E207"),
    "unknown name": (QKV + "mask = kv_idx <= position\n", "E220"),
    "recursive function": (QKV + "def f(x: int) -> int = f(x) + 1\nmask = f(kv_idx) < 3\n", "E222"),
    "wrong types": (QKV + "mask = kv_idx and true\n", "E230"),
    "mask that is no bool": (QKV + "mask = kv_idx\n", "E233"),
    "import outside": (QKV + "from .sub.up import x\n" + CAUSAL, "E210"),
    "import from nowhere": (QKV + "from os.path import join\n" + CAUSAL, "E211"),
    "no q": ("k, v: bf16[batch, seq_k, heads, dim]\n", "E240"),
    "axis twice": ("q: bf16[batch, seq_q, seq_q, dim]\nk, v: bf16[batch, seq_k, heads, dim]\n", "E242"),
    "heads that do not divide": (QKV + "axis heads = 6\naxis kv_heads = 4\n" + CAUSAL, "E243"),
    "two masks": (QKV + CAUSAL + CAUSAL, "E250"),
    "divisor that may be zero": (QKV + "const n: int = 0\nmask = kv_idx // n == 0\n", "E260"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["check", "show", "explain", "run"])
def test_bad_files(run, write, tmp_path: Path, name: str, command: str) -> None:
    content, code = FILES[name]
    options = ["--seq-q", 8, "--seq-k", 8] if command == "explain" else []
    outcome = run(command, write("bad.attn", content), *options)
    text = outcome.out if command == "check" else outcome.err
    assert outcome.code == 1
    assert f"error[{code}]: " in text
    assert text.count("error[") <= 2
    assert max(map(len, text.splitlines())) <= 400, "an error shows a part of a long line"
    assert [path.name for path in tmp_path.iterdir()] == ["bad.attn"]


@pytest.mark.parametrize("name", [name for name, (_, code) in FILES.items() if code < "E208"])
def test_fmt_leaves_files_it_cannot_read_alone(run, write, name: str) -> None:
    content, code = FILES[name]
    outcome = run("fmt", write("bad.attn", content))
    assert outcome.code == 1
    assert f"error[{code}]: " in outcome.err
    kept = Path("bad.attn").read_bytes()
    assert kept == (content if isinstance(content, bytes) else content.encode())


def test_import_cycles_and_links_that_lead_out(run, write, tmp_path: Path) -> None:
    write("one.attn", "from .two import b\ndef a(x: int) -> int = b(x)\n")
    write("two.attn", "from .one import a\ndef b(x: int) -> int = a(x)\n")
    outcome = run("check", write("spec.attn", f"from .one import a\n{CAUSAL}", operands=True))
    assert (outcome.code, "error[E212]" in outcome.out) == (1, True)
    outside = tmp_path.parent / f"{tmp_path.name}-outside.attn"
    outside.write_text("def a(x: int) -> int = x\n")
    (tmp_path / "link.attn").symlink_to(outside)
    outcome = run("check", write("spec.attn", f"from .link import a\n{CAUSAL}", operands=True))
    assert (outcome.code, "error[E211]" in outcome.out) == (1, True)


@pytest.mark.usefixtures("write")
def test_a_folder_or_an_unreadable_file_is_a_file_error(run, tmp_path: Path) -> None:
    (tmp_path / "folder.attn").mkdir()
    for command in (["show"], ["run"], ["explain", "--seq-q", 1, "--seq-k", 1]):
        outcome = run(command[0], "folder.attn", *command[1:])
        assert (outcome.code, outcome.out) == (3, "")
        assert "error[E200]: cannot read" in outcome.err
    outcome = run("check", "\0")
    assert outcome.code == 1
    assert "error[E200]" in outcome.out


BIASED = "bias: bf16[heads, seq_q, seq_k]\nmask = kv_idx <= q_pos\nscore = score + bias[h, q_idx, kv_idx]\n"
OPTIONS = ["--shape", "heads=4,kv_heads=2,seq_q=6,seq_k=6,dim=8"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--shape", "heads", ("E283", "--shape heads: not of the form AXIS=EXTENT")),
        ("--shape", "batch=-4", ("E283", "'-4' is no whole number of at least 0")),
        ("--shape", "head=4", ("E283", "no tensor has an axis 'head'", "did you mean 'heads'?")),
        ("--shape", "kv_heads=3", ("E283", "'kv_heads' is given twice (2 and 3)")),
        ("--param", "cap", ("E283", "--param cap: not of the form NAME=VALUE")),
        ("--param", "cap=1", ("E283", "the spec has no parameter 'cap'")),
        ("--const", "x=1", ("E223", "'x' is no constant and no axis of this spec")),
        ("--tensor", "bias", ("E283", "--tensor bias: not of the form NAME=FILE")),
        ("--tensor", "bais=bias.npy", ("E283", "no tensor 'bais'", "did you mean 'bias'?")),
        ("--tensor", "bias=bias.txt", ("E283", "'.txt' is no tensor file")),
        ("--tensor", "bias=missing.npy", ("E284", "cannot read missing.npy: No such file or directory")),
        ("--tensor", "bias=missing.pt", ("E284", "cannot read missing.pt: No such file or directory")),
        ("--tensor", "bias=junk.npy", ("E284", "junk.npy holds no tensor")),
        ("--tensor", "bias=junk.pt", ("E284", "junk.pt holds no tensor")),
        ("--tensor", "bias=objects.npy", ("E284", "objects.npy holds no tensor")),
        ("--tensor", "bias=dict.pt", ("E284", "dict.pt holds a dict, not a tensor")),
        ("--tensor", "bias=ints.npy", ("E283", "the file holds torch.int64, 'bias' is bf16")),
        ("--tensor", "bias=flat.npy", ("E271", "bias has 2 axes, expected 3")),
        ("--tensor", "bias=long.npy", ("E271", "axis 'seq_k'", "6", "7")),
    ],
)
def test_bad_values(run, write, option: str, value: str, words: tuple[str, ...]) -> None:
    name = write("a.attn", BIASED, operands=True)
    for junk in ("junk.npy", "junk.pt"):
        write(junk, b"\x93NUMPY or not")
    numpy.save("objects.npy", numpy.array([{}]), allow_pickle=True)
    numpy.save("ints.npy", numpy.zeros((4, 6, 6), numpy.int64))
    numpy.save("flat.npy", numpy.zeros((6, 6), numpy.float32))
    numpy.save("long.npy", numpy.zeros((4, 6, 7), numpy.float32))
    torch.save({"bias": torch.zeros(1)}, "dict.pt")
    outcome = run("run", name, *OPTIONS, option, value)
    expected = {"E284": 3, "E223": 1}.get(words[0], 2)
    assert (outcome.code, outcome.out) == (expected, "")
    assert outcome.err.count("error[") == 1
    for word in words:
        assert word in outcome.err


class Malicious:
    """Unpickling one makes a folder."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("kind", ["npy", "pt"])
def test_a_tensor_file_cannot_run_code(run, write, kind: str) -> None:
    name = write("a.attn", BIASED, operands=True)
    if kind == "npy":
        numpy.save("bias.npy", numpy.array([Malicious()]), allow_pickle=True)
    else:
        torch.save(Malicious(), "bias.pt")
    outcome = run("run", name, *OPTIONS, "--tensor", f"bias=bias.{kind}")
    assert outcome.code == 3
    assert f"error[E284]: bias.{kind} holds no tensor" in outcome.err
    assert not Path("executed").exists()


PARAMS = "param n: int in 1..=8 = 2\nparam x: float in 0.5.. = 1.0\nparam w: int in 1.. = 2\nsink = x\n"
PARAMS += "mask = (kv_idx - q_pos) % n == 0 and q_pos - kv_idx < w\n"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("n=0", "outside the declared range 1..=8"),
        ("n=9", "outside the declared range 1..=8"),
        ("n=2.5", "'2.5' is not an integer or 'unbounded'"),
        ("n=1,2", "'n' takes one value, not 2"),
        ("n=9223372036854775808", "is not an integer"),
        ("x=0.25", "outside the declared range 0.5.."),
        ("x=nan", "'nan' is not a number"),
        ("x=inf", "'inf' is not a number"),
        ("x=unbounded", "'unbounded' is not a number"),
        ("n=", "not of the form NAME=VALUE"),
        ("=3", "not of the form NAME=VALUE"),
    ],
)
def test_bad_parameters(run, write, value: str, words: str) -> None:
    outcome = run("show", write("a.attn", PARAMS, operands=True), "--param", value)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error[E283]: --param ")
    assert words in outcome.err


def test_good_parameters(run, write) -> None:
    name = write("a.attn", PARAMS, operands=True)
    outcome = run("show", name, "--param", "n=0x8", "--param", "w=unbounded", "--param", "x=1")
    assert outcome.code == 0
    assert "  with n = 8\n  with w = unbounded\n" in outcome.out
    outcome = run("show", name, "--param", "n=1", "--param", "n=2")
    assert outcome.code == 2
    assert "'n' is given twice (1 and 2)" in outcome.err


PAGED = """\
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[pages, page_size, heads, dim]
table: i32[batch, max_pages]
used: i32[batch]
paged { table = table }
lengths k { used = used }
mask = kv_idx <= q_pos
"""
PACKED = """\
q: bf16[total_q, heads, dim]
k, v: bf16[total_k, heads, dim]
starts: i32[batch + 1]
lengths q { cu_seqlens = starts }
lengths k { cu_seqlens = starts }
mask = kv_idx <= q_pos
"""


def test_page_tables_out_of_range(run, write) -> None:
    name = write("a.attn", PAGED)
    numpy.save("table.npy", numpy.array([[0, 99]], numpy.int32))
    numpy.save("used.npy", numpy.array([20], numpy.int32))
    tensors = ["--tensor", "table=table.npy", "--tensor", "used=used.npy"]
    for command in ("run", "show"):
        outcome = run(command, name, *tensors, "--shape", "seq_q=4,pages=3,page_size=16")
        assert outcome.code == 2
        assert "error[E277]" in outcome.err


def test_cumulative_lengths_that_decrease(run, write) -> None:
    name = write("a.attn", PACKED)
    for values in ([0, 5, 3, 8], [1, 5, 8], [0, 5, 99]):
        numpy.save("starts.npy", numpy.array(values, numpy.int32))
        outcome = run("run", name, "--tensor", "starts=starts.npy", "--shape", "total_q=8,total_k=8")
        assert outcome.code == 2
        assert "error[E275]" in outcome.err, values


def test_head_counts_that_do_not_divide_at_the_call(run, write) -> None:
    name = write("a.attn", CAUSAL, operands=True)
    for command in (["run"], ["show"], ["explain", "--seq-q", 8, "--seq-k", 8]):
        outcome = run(command[0], name, *command[1:], "--shape", "heads=6,kv_heads=4")
        assert outcome.code == 2, command
        assert "error[E243]: heads is 6, which is no multiple of kv_heads = 4" in outcome.err
        outcome = run(command[0], name, *command[1:], "--shape", "kv_heads=0")
        assert outcome.code == 2, command
