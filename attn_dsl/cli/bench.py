"""`attn-dsl bench`: a spec's time beside that of torch's own attention functions."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..spec import AttentionSpec
from . import files, values
from .chart import Bar, chart, duration
from .console import FINDINGS, OK, Progress, UsageError, plural, print_json, write_whole
from .run import OPERAND_DTYPES, with_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from ..runtime import CompiledAttention, Inputs
    from .contenders import Contender

BOUND = 0.02  # |o - o'| over |o|, by norm: beyond this two contenders compute different things
_SEQUENCES = {"cpu": "128,256,512", "cuda": "1024,4096,16384"}

_EPILOG = """\
examples:
  attn-dsl bench window.attn
  attn-dsl bench window.attn --seq 256,1024 --shape heads=16,kv_heads=4,dim=64 --param window_tokens=128
  attn-dsl bench window.attn --device cuda --target sm90 --png window.png

SDPA takes part where a mask and an added bias can say the spec, FlexAttention where functions of positions can. Masks
and biases of SDPA and block masks of FlexAttention are made before the clock starts."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "bench",
        help="time a spec beside SDPA and FlexAttention",
        description="Times a spec beside torch's attention functions on the same inputs, and compares the results.",
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="an .attn file with q, k and v, or - for standard input")
    parser.add_argument("--seq", metavar="N,N,...", help="query rows and keys of each measurement")
    parser.add_argument("--dtype", choices=tuple(OPERAND_DTYPES), help="of q, k, v and o, instead of the file's")
    parser.add_argument("--target", default="auto", metavar="NAME", help="of the spec (default auto)")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="of the tensors: cpu (default), cuda, cuda:1")
    parser.add_argument("--repeat", type=values.positive, default=5, metavar="N", help="timed calls (default 5)")
    parser.add_argument("--png", metavar="OUT", help="write a bar chart too")
    values.add_inputs(parser)
    values.add_format(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Times the spec of `options`; the exit code."""
    if options.png is not None and not options.png.lower().endswith(".png"):
        raise UsageError.say(f"--png {options.png}: not the name of a PNG file", "give a name that ends in .png")
    spec = files.spec(options.file, values.constants(options.const))
    if options.dtype is not None:
        spec = with_dtype(spec, OPERAND_DTYPES[options.dtype])
    kind = options.device.partition(":")[0]
    sequences = _sequences(options.seq or _SEQUENCES.get(kind, _SEQUENCES["cpu"]))
    with Progress("loading torch") as progress:
        from ..runtime import compile_for
        from .run import device_of

        device = device_of(options.device)
        compiled = compile_for(spec, options.target)
        rows = [_measure(spec, compiled, options, seq, device, progress) for seq in sequences]
    if options.png is not None:
        groups = [(f"{row.seq}", [Bar(entry.name, entry.median) for entry in row.entries]) for row in rows]
        write_whole(options.png, chart(f"{spec.name} on {device}: time of a call, by length", groups))
    ok = all(entry.difference is None or entry.difference <= BOUND for row in rows for entry in row.entries)
    if options.format == "json":
        found = [row.as_dict() for row in rows]
        print_json({"ok": ok, "file": options.file, "target": compiled.target, "device": device, "rows": found})
    else:
        print("\n".join(_lines(spec, rows, device)))
        if options.png is not None:
            print(f"  chart: {options.png}")
    return OK if ok else FINDINGS


@dataclass(frozen=True)
class Entry:
    """One contender at one length."""

    name: str
    seconds: tuple[float, ...]  # of each call; none if it is absent
    difference: float | None  # |o - o'| over |o| by norm, o being the target's; None for the target itself
    note: str

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    def as_dict(self) -> dict[str, object]:
        """The JSON form; docs/cli.md describes it."""
        times = {"median": self.median, "min": min(self.seconds), "max": max(self.seconds)} if self.seconds else None
        return {"name": self.name, "seconds": times, "difference": self.difference, "note": self.note}


@dataclass(frozen=True)
class Row:
    """All contenders at one length."""

    seq: int
    extents: tuple[tuple[str, int], ...]  # axis name, elements
    assumed: tuple[str, ...]  # what was generated
    entries: tuple[Entry, ...]

    def as_dict(self) -> dict[str, object]:
        return {
            "seq": self.seq,
            "extents": dict(self.extents),
            "assumed": list(self.assumed),
            "contenders": [entry.as_dict() for entry in self.entries],
        }


def _sequences(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError.say(f"--seq {text}: not a list of whole numbers of at least 1")
    return found


def _measure(
    spec: AttentionSpec,
    compiled: CompiledAttention,
    options: argparse.Namespace,
    seq: int,
    device: str,
    progress: Progress,
) -> Row:
    from .contenders import contenders
    from .inputs import make_inputs

    progress.step(f"length {seq}: making inputs")
    defaults = {"batch": 1, "seq_q": seq, "seq_k": seq}
    inputs, notes = make_inputs(spec, options, asked={}, defaults=defaults, device=device)
    entries: list[Entry] = []
    exact: Tensor | None = None
    for contender in contenders(compiled, inputs):
        progress.step(f"length {seq}: {contender.name}")
        if contender.call is None:
            entries.append(Entry(contender.name, (), None, contender.note))
            continue
        o = contender.call()  # compiles, where something is compiled
        difference = None if exact is None else float((o - exact).norm() / exact.norm().clamp(min=1e-30))
        exact = o if exact is None else exact
        seconds = tuple(_seconds(contender, inputs) for _ in range(options.repeat))
        entries.append(Entry(contender.name, seconds, difference, contender.note))
    return Row(seq, tuple(sorted(inputs.extents.items())), tuple(notes), tuple(entries))


def _seconds(contender: Contender, inputs: Inputs) -> float:
    """Seconds of one call, the device's work included."""
    import torch

    assert contender.call is not None
    device = inputs.tensors["q"].device if "q" in inputs.tensors else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    contender.call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _lines(spec: AttentionSpec, rows: list[Row], device: str) -> Iterable[str]:
    sizes = ", ".join(f"{name}={extent}" for name, extent in rows[0].extents if not name.startswith("seq_"))
    calls = max(len(entry.seconds) for entry in rows[0].entries)
    yield f"{spec.name} on {device}: {sizes}; median of {plural(calls, 'call')}"
    names = [entry.name for entry in rows[0].entries]
    widths = [max(16, len(name) + 2) for name in names]
    yield "  " + f"{'length':>8}" + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    for row in rows:
        cells = [_cell(entry, row.entries[0]) for entry in row.entries]
        yield "  " + f"{row.seq:>8}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    if any(entry.seconds for row in rows for entry in row.entries[1:]):
        yield f"  Nx: N times as fast as {names[0]}"
    for name in names:
        notes = dict.fromkeys(entry.note for row in rows for entry in row.entries if entry.name == name and entry.note)
        if notes:
            yield f"  {name}: {'; '.join(notes)}"
    for row in rows:
        for entry in row.entries:
            if entry.difference is not None and entry.difference > BOUND:
                off = f"{entry.difference:.1e} of the norm, bound {BOUND}"
                yield f"  DIFFERS at length {row.seq}: {entry.name} by {off}"
    for sentence in dict.fromkeys(sentence for row in rows for sentence in row.assumed):
        yield f"  with {sentence}"


def _cell(entry: Entry, first: Entry) -> str:
    if entry.median is None:
        return "-"
    if entry is first or first.median is None:
        return duration(entry.median)
    ratio = first.median / entry.median
    return f"{duration(entry.median)} {ratio:.0f}x" if ratio >= 10 else f"{duration(entry.median)} {ratio:.2g}x"
