"""`attn-dsl show`: the mask as a picture."""

from __future__ import annotations

import argparse

from .. import show as pictures
from ..expr import Expr, children_first
from ..show import MaskGrid, TerminalStyle
from ..spec import AttentionSpec
from ..spec.model import UNBOUNDED
from . import files, values
from .console import OK, Progress, UsageError, plural, terminal_style, write_whole

_MAX_PAIRS = 2**30  # pairs one picture may evaluate: half a minute of one core
_PNG_CELLS = 512  # cells along the longer side of a PNG; larger masks are drawn by tiles

_EPILOG = """\
examples:
  attn-dsl show causal.attn
  attn-dsl show window.attn --seq-q 24 --seq-k 48 --param tokens=8
  attn-dsl show alibi.attn --head 3 --shape heads=8
  attn-dsl show document.attn --seq-q 2048 --tensor document=ids.npy
  attn-dsl show window.attn --seq-q 64 --png window.png

Tensors the mask reads are generated (documents of random lengths, random tables) unless --tensor gives them; the
caption says what was assumed. A mask too large for the terminal is drawn by tiles: all, some or none visible."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "show",
        help="draw a mask in the terminal or as a PNG file",
        description="Draws one head's mask of one sequence: query rows down, keys across.",
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="an .attn file with q, k and v, or - for standard input")
    parser.add_argument(
        "--seq-q", type=values.natural, metavar="N", help="query rows (default: as many as keys, or 64)"
    )
    parser.add_argument(
        "--seq-k", type=values.natural, metavar="N", help="keys (default: as many as query rows, or 64)"
    )
    parser.add_argument("--batch", type=values.natural, default=0, metavar="B", help="which sequence (default 0)")
    parser.add_argument("--head", type=values.natural, default=0, metavar="H", help="which query head (default 0)")
    values.add_inputs(parser)
    parser.add_argument("--png", metavar="OUT", help="write a PNG file instead of drawing in the terminal")
    parser.add_argument("--scale", type=values.positive, metavar="N", help="pixels of one cell of the PNG")
    parser.add_argument("--no-labels", action="store_true", help="leave the axis labels out of the PNG")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colour in the terminal")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Draws the mask that `options` asks for; the exit code."""
    if options.png is None and (options.scale is not None or options.no_labels):
        raise UsageError.say("--scale and --no-labels describe a PNG file", "add --png OUT")
    if options.png is not None and not options.png.lower().endswith(".png"):
        raise UsageError.say(f"--png {options.png}: not the name of a PNG file", "give a name that ends in .png")
    spec = files.spec(options.file, values.constants(options.const))
    style = terminal_style(options.color)
    with Progress("loading torch") as progress:
        grid, assumed = _grid(spec, options, style, progress)
    if options.png is not None:
        if not grid.levels:
            raise UsageError.say(f"nothing to draw: {grid.seq_q} query rows, {grid.seq_k} keys")
        write_whole(options.png, pictures.to_png(grid, scale=options.scale, labels=not options.no_labels))
        print(f"{options.png}: {_caption(spec, grid, options)}")
    else:
        print(_caption(spec, grid, options))
        for line in pictures.render(grid, style):
            print(line)
    for sentence in assumed:
        print(f"  with {sentence}")
    return OK


def _grid(
    spec: AttentionSpec, options: argparse.Namespace, style: TerminalStyle, progress: Progress
) -> tuple[MaskGrid, list[str]]:
    """The mask as the options want it, and a sentence for each run-time value behind it."""
    from ..show.mask import mask_grid
    from .inputs import make_inputs, notes_on_mask

    defaults = {"batch": options.batch + 1, "seq_q": 64, "seq_k": 64}
    if options.head > 0:
        defaults["heads"] = options.head + 1
    asked = {"seq_q": options.seq_q, "seq_k": options.seq_k}
    inputs, notes = make_inputs(spec, options, asked=asked, defaults=defaults, operands=False)
    for option, value, axis in (("--batch", options.batch, "batch"), ("--head", options.head, "heads")):
        if value >= inputs.extents[axis]:
            raise UsageError.say(f"{option} {value}: axis '{axis}' has {inputs.extents[axis]} entries, from 0")

    def tiles(rows: int, keys: int) -> tuple[int, int]:
        if rows * keys > _MAX_PAIRS:
            raise UsageError.say(
                f"{rows:,} query rows and {keys:,} keys are more than the {_MAX_PAIRS:,} pairs a picture evaluates",
                "'attn-dsl explain' counts tiles at any length",
            )
        if options.png is None:
            return pictures.fit(rows, keys, style)
        tile = max(1, -(-max(rows, keys) // _PNG_CELLS))
        return tile, tile

    grid = mask_grid(
        spec,
        inputs.tensors,
        inputs.params,
        batch=options.batch,
        head=options.head,
        tiles=tiles,
        progress=lambda done, total: progress.step(f"evaluating the mask: {done / total:.0%}"),
    )
    named = {str(node.attr) for node in children_first([spec.mask, *_offset(spec)]) if node.op == "param"}
    chosen = [
        f"{param.name} = {_value(inputs.params.get(param.name, param.default))}"
        for param in spec.params
        if param.name in named
    ]
    return grid, [*chosen, *notes_on_mask(spec, notes)]


def _offset(spec: AttentionSpec) -> tuple[Expr, ...]:
    return () if spec.align.offset is None else (spec.align.offset,)


def _value(value: object) -> str:
    if value == UNBOUNDED:
        return "unbounded"
    return str(value.tolist()) if hasattr(value, "tolist") else str(value)


def _caption(spec: AttentionSpec, grid: MaskGrid, options: argparse.Namespace) -> str:
    pairs = grid.seq_q * grid.seq_k
    share = f" ({grid.visible / pairs:.1%})" if pairs else ""
    return (
        f"{spec.name}: sequence {options.batch}, head {options.head}, {plural(grid.seq_q, 'query row')}, "
        f"{plural(grid.seq_k, 'key')}, {grid.visible:,} of {plural(pairs, 'pair')} visible{share}"
    )
