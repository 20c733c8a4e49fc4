"""`attn-dsl run`: a spec on tensors, timed and compared with float64."""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..diagnostics import UnsupportedError
from ..spec import AttentionSpec, DType, Role
from . import files, values
from .console import FINDINGS, OK, Progress, UsageError, plural, print_json
from .emulated import DEVICE, Emulation, call_emulated

if TYPE_CHECKING:
    import torch

    from ..runtime import CompiledAttention, Inputs
    from .accuracy import Comparison

OPERAND_DTYPES = {dtype.spelling: dtype for dtype in (DType.F32, DType.F16, DType.BF16, DType.E4M3, DType.E5M2)}
_SIZES = {"batch": 1, "seq_q": 256, "seq_k": 256}  # of axes nobody gives

_EPILOG = """\
examples:
  attn-dsl run window.attn
  attn-dsl run window.attn --check
  attn-dsl run window.attn --shape batch=2,heads=8,kv_heads=2,seq_q=64,seq_k=64,dim=64 --param tokens=16 --check
  attn-dsl run bias.attn --tensor bias=bias.npy --seed 7 --check
  attn-dsl run window.attn --dtype f32 --format json

Extents nobody gives: batch 1, seq_q and seq_k each as the other or 256, heads 8, kv_heads a quarter of heads, dim 64.

The bounds of --check, with u the unit roundoff of the output's dtype (f32 2^-24, f16 2^-11, bf16 2^-8, e4m3 2^-4,
e5m2 2^-3): |o - o64| <= (2 u + 1e-5) |o64| in the 2-norm, max |o - o64| <= (4 u + 1e-4) max |o64|, and
|lse - lse64| <= 1e-4 max(1, |lse64|). Infinities and NaN have to be in the same places."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="run a spec on random or given tensors",
        description="Runs a spec on random or given tensors; prints its time and, with --check, its error.",
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="an .attn file with q, k and v, or - for standard input")
    values.add_inputs(parser)
    parser.add_argument("--dtype", choices=tuple(OPERAND_DTYPES), help="of q, k, v and o, instead of the file's")
    parser.add_argument("--target", default="auto", metavar="NAME", help="where to run (default auto)")
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="DEVICE",
        help=f"of the tensors: cpu (default), cuda, cuda:1; {DEVICE} runs PTX on the CPU and finds races",
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the reference in float64; exit code 1 if off"
    )
    parser.add_argument("--repeat", type=values.positive, default=5, metavar="N", help="timed runs (default 5)")
    values.add_format(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the spec of `options`; the exit code."""
    spec = files.spec(options.file, values.constants(options.const))
    if options.dtype is not None:
        spec = with_dtype(spec, OPERAND_DTYPES[options.dtype])
    with Progress("loading torch") as progress:
        from ..runtime import compile_for
        from .inputs import make_inputs

        emulate = options.device == DEVICE
        device = "cpu" if emulate else device_of(options.device)
        compiled = compile_for(spec, options.target)
        progress.step("making inputs")
        inputs, notes = make_inputs(spec, options, asked={}, defaults=_SIZES, device=device)
        progress.step(f"running on {compiled.target}")
        emulation, seconds = None, []
        if emulate:
            output, lse, emulation = call_emulated(compiled, {**inputs.tensors, **inputs.params})
        else:
            output, lse = _call(compiled, inputs)
            seconds = [_timed(compiled, inputs, device) for _ in range(options.repeat)]
        comparisons: tuple[Comparison, ...] = ()
        if options.check:
            progress.step("computing the reference in float64")
            comparisons = _compare(spec, inputs, output, lse, compiled.target)
    result = _Result(
        file=options.file,
        target=compiled.target,
        device=DEVICE if emulate else str(output.device),
        extents=tuple(sorted(inputs.extents.items())),
        seed=options.seed,
        assumed=tuple(notes),
        output=f"{spec.output.dtype}{list(output.shape)}",
        lse=f"f32{list(lse.shape)}",
        comparisons=comparisons,
        seconds=tuple(seconds),
        emulation=emulation,
    )
    if options.format == "json":
        print_json(result.as_dict())
    else:
        print("\n".join(result.lines()))
    return OK if result.ok else FINDINGS


@dataclass(frozen=True)
class _Result:
    """What one run has to say."""

    file: str
    target: str
    device: str
    extents: tuple[tuple[str, int], ...]  # axis name, elements
    seed: int
    assumed: tuple[str, ...]
    output: str  # dtype and shape
    lse: str
    comparisons: tuple[Comparison, ...]  # none without --check
    seconds: tuple[float, ...]  # one per timed call; none on the emulator, where time means nothing
    emulation: Emulation | None  # on the emulator

    @property
    def ok(self) -> bool:
        return all(comparison.ok for comparison in self.comparisons)

    def as_dict(self) -> dict[str, object]:
        """The JSON form; docs/cli.md describes it."""
        return {
            "ok": self.ok,
            "file": self.file,
            "target": self.target,
            "device": self.device,
            "extents": dict(self.extents),
            "seed": self.seed,
            "assumed": list(self.assumed),
            "outputs": {"o": self.output, "lse": self.lse},
            "checks": [comparison.as_dict() for comparison in self.comparisons],
            "seconds": self._times(),
            "emulator": None if self.emulation is None else self.emulation.as_dict(),
        }

    def _times(self) -> dict[str, float] | None:
        if not self.seconds:
            return None
        return {
            "median": statistics.median(self.seconds),
            "min": min(self.seconds),
            "max": max(self.seconds),
            "calls": len(self.seconds),
        }

    def lines(self) -> list[str]:
        """The text form."""
        sizes = ", ".join(f"{name}={extent}" for name, extent in self.extents)
        found = [f"target  {self.target} on {self.device}", f"inputs  {sizes}; seed {self.seed}"]
        found += [f"        {sentence}" for sentence in self.assumed]
        found.append(f"output  o {self.output}, lse {self.lse}")
        for comparison in self.comparisons:
            for measure in comparison.measures:
                verdict = "" if measure.ok else "  TOO LARGE"
                label = f"{comparison.output} by {measure.name}"
                found.append(f"error   {label}: {measure.error:.2e}, bound {measure.bound:.2e}{verdict}")
            if comparison.misplaced:
                found.append(f"error   {comparison.output}: {comparison.misplaced:,} infinities or NaN MISPLACED")
        if self.emulation is not None:
            return [*found, self.emulation.line()]
        middle, low, high = (f"{1e3 * f(self.seconds):.3g}" for f in (statistics.median, min, max))
        found.append(f"time    median {middle} ms of {plural(len(self.seconds), 'call')} ({low} to {high})")
        return found


def with_dtype(spec: AttentionSpec, dtype: DType) -> AttentionSpec:
    """`spec` with another element type of q, k, v, their pools and o."""
    operands = (Role.QUERY, Role.KEY, Role.VALUE, Role.POOL)
    return replace(
        spec,
        tensors=tuple(replace(t, dtype=dtype) if t.role in operands else t for t in spec.tensors),
        views=tuple(replace(view, tensor=replace(view.tensor, dtype=dtype)) for view in spec.views),
        output=replace(spec.output, dtype=dtype),
    )


def device_of(name: str) -> str:
    """A device of that name. Raises UnsupportedError (E282) if it cannot be used, UsageError if there is none."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no such device"
        if name.partition(":")[0] in ("cpu", "cuda"):
            raise UnsupportedError.of("E282", f"device '{name}' cannot be used: {reason}") from None
        raise UsageError.say(f"--device {name}: no device of that name", "cpu, cuda or cuda:N") from None
    return name


def _call(compiled: CompiledAttention, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    named: dict[str, Any] = {**inputs.tensors, **inputs.params}
    result = compiled(**named, return_lse=True)
    assert isinstance(result, tuple)
    return result


def _timed(compiled: CompiledAttention, inputs: Inputs, device: str) -> float:
    """Seconds of one call that gives o alone, the device's work included."""
    import torch

    named: dict[str, Any] = {**inputs.tensors, **inputs.params}
    start = time.perf_counter()
    compiled(**named, return_lse=False)
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _compare(
    spec: AttentionSpec, inputs: Inputs, output: torch.Tensor, lse: torch.Tensor, target: str
) -> tuple[Comparison, ...]:
    from .. import reference
    from ..runtime import bind
    from .accuracy import compare_lse, compare_output

    call = bind(spec, (), {**inputs.tensors, **inputs.params})
    exact_output, exact_lse = reference.attention(spec, call.tensors, call.params, precision="float64")
    weights = None if target == "reference" else spec.tensor("q").dtype
    return compare_output(output, exact_output, spec.output.dtype, weights), compare_lse(lse, exact_lse)
