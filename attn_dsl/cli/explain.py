"""`attn-dsl explain`: what a spec means, what it costs, and what a kernel of it would have built in."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..spec import AttentionSpec
from . import explanation, files, values
from .console import OK, Progress, UsageError, print_json
from .explanation import Section

if TYPE_CHECKING:
    from ..runtime import Inputs

_EPILOG = """\
examples:
  attn-dsl explain window.attn --seq-q 4096 --seq-k 4096
  attn-dsl explain window.attn --seq-q 1 --seq-k 131072 --heads 32 --kv-heads 8 --param tokens=1024
  attn-dsl explain window.attn --seq-q 8192 --seq-k 8192 --tile-q 128 --tile-k 64 --format json

Tensors the mask reads are generated unless --tensor gives them; the section on tiles says what was assumed."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="say what a spec means and what it costs",
        description="Prints a spec's formula, binding times, int widths, clamped reads, tiles, work, keys and targets.",
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="an .attn file with q, k and v, or - for standard input")
    parser.add_argument("--seq-q", type=values.natural, required=True, metavar="N", help="query rows")
    parser.add_argument("--seq-k", type=values.natural, required=True, metavar="N", help="keys")
    for option, what in (
        ("batch", "sequences"),
        ("heads", "query heads"),
        ("kv-heads", "K/V heads"),
        ("dim", "elements of a head"),
    ):
        parser.add_argument(f"--{option}", type=values.positive, metavar="N", help=what)
    parser.add_argument("--tile-q", type=values.positive, metavar="N", help="rows of a query tile (default 128)")
    parser.add_argument("--tile-k", type=values.positive, metavar="N", help="keys of a key tile (default 128)")
    parser.add_argument("--pack", choices=("on", "off"), help="put the query heads of a K/V head into one tile or not")
    parser.add_argument("--target", choices=("sm90", "sm100"), help="print the plan of this target's kernel too")
    parser.add_argument("--time", action="store_true", help="predict the time of the target's kernel, without a GPU")
    parser.add_argument("--trace", metavar="FILE", help="write what --time simulated, for Perfetto or chrome://tracing")
    values.add_inputs(parser)
    values.add_format(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Explains the spec of `options`; the exit code."""
    if options.time and options.target is None:
        raise UsageError.say("--time needs a target", "--target sm90")
    if options.trace is not None and not options.time:
        raise UsageError.say("--trace needs --time")
    checked = files.examine(options.file, values.constants(options.const))
    spec = files.spec_of(options.file, checked)
    with Progress("loading torch") as progress:
        from .plan_report import plan
        from .tile_report import cost, tiles, work

        progress.step("analysing tiles")
        inputs, notes = inputs_of(spec, options, operands=options.time)
        found = cost(spec, inputs, notes, options.tile_q, options.tile_k, options.pack)
        planned = [] if options.target is None else [plan(spec, inputs, options.target)]
        if options.time:
            from .time_report import timed

            progress.step("simulating the kernel")
            planned.append(timed(spec, inputs, options.target, options.trace))
    sections = [
        explanation.meaning(spec),
        explanation.binding_times(spec, inputs.params),
        explanation.integers(spec),
        explanation.reads(checked.diagnostics),
        tiles(found),
        work(found),
        *planned,
        explanation.keys(spec),
        explanation.targets(spec),
    ]
    if options.format == "json":
        facts: dict[str, object] = {"ok": True, "file": options.file, "name": spec.name}
        for section in sections:
            facts.update(section.facts)
        print_json(facts)
    else:
        print("\n".join(_text(f"{spec.name} ({options.file})", sections)))
    return OK


def inputs_of(spec: AttentionSpec, options: argparse.Namespace, *, operands: bool = False) -> tuple[Inputs, list[str]]:
    """The call that is explained: sizes of the options, contents only of what the mask reads."""
    from .inputs import make_inputs

    asked = {name: getattr(options, name) for name in ("batch", "seq_q", "seq_k", "heads", "kv_heads", "dim")}
    return make_inputs(spec, options, asked=asked, defaults={}, operands=operands)


def _text(title: str, sections: Iterable[Section]) -> list[str]:
    lines = [title]
    for section in sections:
        lines += ["", section.title, *(f"  {line}".rstrip() for line in section.lines)]
    return lines
