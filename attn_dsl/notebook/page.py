"""A spec as a fragment of HTML: picture of the mask, formula, inputs, and the plan of each target that has kernels."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import torch

from ..diagnostics import AttnDslError
from ..lowering.forward.explain import explain
from ..runtime import Call, Inputs, compile_for, random_inputs
from ..runtime.kernels import KERNEL_TARGETS, shape_class
from ..show import to_svg
from ..show.formula import formula, param_range
from ..show.mask import mask_grid
from ..spec import AttentionSpec, Role
from ..spec.names import STANDARD_AXES
from ..spec.shapes import depends_on

_ROWS = 48  # query rows and keys of the picture
_EXTENTS = {"batch": 1, "seq_q": _ROWS, "seq_k": _ROWS, "heads": 8, "kv_heads": 2, "dim": 128, "dim_v": 128}
_OWN_EXTENT = 64  # of an axis that only captures have
_STYLE = "vertical-align:top;text-align:left;padding:0 1.5em 0 0"


def html(spec: AttentionSpec) -> str:
    """The fragment. What cannot be shown is replaced by the reason; nothing here raises an AttnDslError."""
    try:
        inputs = random_inputs(spec, _extents(spec), operands=False)
        picture, assumed, plans = _picture(spec, inputs), inputs.notes, _plans(spec, inputs)
    except AttnDslError as error:
        picture, assumed, plans = f"<pre>no picture: {escape(str(error))}</pre>", (), ""
    return (
        f'<div class="attn-spec"><h4 style="margin:0.3em 0">{escape(spec.name)}</h4>\n'
        f'<table style="border:0"><tr style="background:none"><td style="{_STYLE}">{picture}'
        f'<div style="font-size:85%;max-width:24em">{_lines(assumed)}</div></td>\n'
        f'<td style="{_STYLE}">{_table(_meaning(spec))}{_table(_inputs(spec))}{plans}</td></tr></table></div>'
    )


def _picture(spec: AttentionSpec, inputs: Inputs) -> str:
    """The mask of the first head of the first sequence."""
    grid = mask_grid(spec, inputs.tensors, inputs.params)
    return to_svg(grid) if grid.levels else f"<pre>no pairs: {grid.seq_q} query rows, {grid.seq_k} keys</pre>"


def _extents(spec: AttentionSpec) -> dict[str, int]:
    """An extent for every axis that the spec has and does not fix."""
    names = {name for tensor in spec.tensors for axis in tensor.axes for name in depends_on(axis)}
    rows = {"seq_q", "seq_k"} if names & {"total_q", "total_k", "pages"} else set()
    own = {name: _OWN_EXTENT for name in names if name not in STANDARD_AXES and not _is_geometry_axis(spec, name)}
    standard = {name: extent for name, extent in _EXTENTS.items() if name in names | rows}
    return {name: extent for name, extent in {**standard, **own}.items() if spec.fixed(name) is None}


def _is_geometry_axis(spec: AttentionSpec, name: str) -> bool:
    """Whether only lengths and page tables have this axis: their extents follow from the sequences."""
    having = [t for t in spec.tensors if any(name in depends_on(axis) for axis in t.axes)]
    return all(tensor.role is Role.GEOMETRY for tensor in having)


def _meaning(spec: AttentionSpec) -> list[tuple[str, str]]:
    parts = formula(spec)
    rows = [("mask", parts.mask), ("score", parts.score), ("scale", parts.scale), ("q_pos", parts.q_pos)]
    rows += [] if parts.sink is None else [("sink", parts.sink)]
    rows += [] if parts.descale_v is None else [("descale v", parts.descale_v)]
    return [*rows, *parts.where]


def _inputs(spec: AttentionSpec) -> list[tuple[str, str]]:
    rows = [(t.name, f"{t.dtype}[{', '.join(map(str, t.axes))}]") for t in spec.tensors]
    for param in spec.params:
        per = f"[{param.per}]" if param.per else ""
        domain = f" in {param_range(param)}" if param_range(param) else ""
        default = "" if param.default is None else f" = {param.default}"
        rows.append((param.name, f"param {param.type}{per}{domain}{default}"))
    return [*rows, ("→", f"{spec.output.dtype}[{', '.join(map(str, spec.output.axes))}]")]


def _plans(spec: AttentionSpec, inputs: Inputs) -> str:
    """For each target with kernels its plan, folded, or why it refuses the spec."""
    defaults = {param.name: param.default for param in spec.params if param.default is not None}
    call = Call(spec, inputs.tensors, {**defaults, **inputs.params}, inputs.extents, torch.device("cpu"))
    found = []
    for name, target in KERNEL_TARGETS.items():
        try:
            compile_for(spec, name)
            plan = target.select(spec, shape_class(call, target))
            body, says = explain(plan), f"{name}: plan of the kernel, dim {plan.dim}"
        except AttnDslError as error:
            body, says = "\n".join(item.message for item in error.diagnostics), f"{name} refuses this spec"
        found.append(f"<details><summary>{escape(says)}</summary><pre>{escape(body)}</pre></details>")
    return "".join(found)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr style="background:none"><td style="{_STYLE}">{escape(name)}</td>'
        f'<td style="{_STYLE}"><code>{escape(text)}</code></td></tr>'
        for name, text in rows
    )
    return f'<table style="border:0;margin:0 0 0.5em 0">{cells}</table>'


def _lines(sentences: Iterable[str]) -> str:
    return "<br>".join(escape(sentence) for sentence in sentences)
