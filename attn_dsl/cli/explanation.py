"""What can be said of a spec before its sizes are known: meaning, binding times, int widths, reads, keys, targets."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..diagnostics import Diagnostic
from ..expr import INT, children_first
from ..expr.text import to_text
from ..show.formula import formula, param_range
from ..spec import AttentionSpec, DType, Role, interface_key, meaning_key, plan_key
from ..spec.model import UNBOUNDED, Tensor

WIDTH = 118  # characters of a line of text


@dataclass(frozen=True)
class Section:
    """One part of an explanation: its heading, its lines of text, and its entries in the JSON form."""

    title: str
    lines: tuple[str, ...]
    facts: Mapping[str, object]


def columns(rows: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Rows of a name and a text, the texts aligned and wrapped."""
    found = list(rows)
    width = max((len(name) for name, _ in found), default=0) + 2
    lines: list[str] = []
    for name, text in found:
        wrapped = textwrap.wrap(text, WIDTH - width - 2, break_on_hyphens=False) or [""]
        lines.append(f"{name:<{width}}{wrapped[0]}".rstrip())
        lines += [" " * width + line for line in wrapped[1:]]
    return tuple(lines)


def meaning(spec: AttentionSpec) -> Section:
    """The formula, every function expanded."""
    parts = formula(spec)
    kv_head = "kv_h" if spec.kv_heads_axis == "kv_heads" else "h"
    logarithm = "ln" if spec.lse_base == "e" else "log2"
    rows = [
        ("visible", f"the keys j for which, at kv_idx = j: {parts.mask}"),
        ("score", f"scale * sum over d of q[b, q_idx, h, d] * k[b, j, {kv_head}, d]"),
        ("scale", parts.scale),
        ("logit", parts.score),
        ("q_pos", parts.q_pos),
    ]
    if spec.kv_heads_axis == "kv_heads":
        rows.append(("kv_h", "h // (heads // kv_heads)"))
    if parts.sink is not None:
        rows.append(("sink", f"{parts.sink}, joins Z as exp(sink)"))
    rows += list(parts.where)
    total = "sum over visible j of exp(logit)" + ("" if parts.sink is None else " + exp(sink)")
    rows += [("Z", total)]
    value = f"v[b, j, {kv_head}, :]"
    if parts.descale_v is not None:
        rows.append(("descale v", parts.descale_v))
        value += " * descale v"
    rows += [("o", f"sum over visible j of exp(logit) / Z * {value}"), ("lse", f"{logarithm}(Z)")]
    facts = {
        "mask": parts.mask,
        "score": parts.score,
        "scale": parts.scale,
        "q_pos": parts.q_pos,
        "sink": parts.sink,
        "descale_v": parts.descale_v,
        "where": dict(parts.where),
        "lse_base": spec.lse_base,
    }
    return Section("meaning, at every b, h and q_idx", columns(rows), {"meaning": facts})


def binding_times(spec: AttentionSpec, values: Mapping[str, object]) -> Section:
    """What a call may change for nothing, and what is built in. `values`: the parameters of this call."""
    run: list[tuple[str, str, str]] = []  # kind, name, what it is
    for param in spec.params:
        domain = f" in {param_range(param)}" if param_range(param) else ""
        default = "" if param.default is None else f" = {number(param.default)}"
        here = values.get(param.name, param.default)
        shown = "" if here is param.default else f"; here {number(here)}"
        per = f"[{param.per}]" if param.per else ""
        run.append(("parameter", param.name, f"{param.type}{per}{domain}{default}{shown}"))
    users = _readers(spec)
    for tensor in spec.tensors:
        if tensor.role is Role.CAPTURE:
            run.append(("contents", tensor.name, f"{declared(tensor)}, read by the {' and '.join(users[tensor.name])}"))
        elif tensor.role is Role.GEOMETRY:
            run.append(("contents", tensor.name, declared(tensor)))
    names = {axis.name: None for tensor in spec.tensors for axis in tensor.axes if axis.name and axis.extent is None}
    run += [("extent", name, "") for name in names if spec.fixed(name) is None]

    fixed = [("constant", name, number(value)) for name, value in spec.constants]
    fixed += [("extent", name, str(extent)) for name, extent in spec.fixed_axes]
    operands = (Role.QUERY, Role.KEY, Role.VALUE, Role.POOL)
    fixed += [("layout", tensor.name, declared(tensor)) for tensor in spec.tensors if tensor.role in operands]
    fixed += [("layout", view.name, f"{declared(view.tensor)}, a view of {view.base}") for view in spec.views]
    axes = ", ".join(str(axis) for axis in spec.output.axes)
    fixed.append(("layout", spec.output.name, f"{spec.output.dtype}[{axes}]"))
    fixed.append(("schedule", "pack gqa", spec.pack_gqa))
    fixed += [("schedule", key, str(value)) for key, value in spec.schedule]

    lines = ("run time, a new value compiles nothing:", *_indented(columns(_by_kind(run))))
    lines += ("compile time:", *_indented(columns(_by_kind(fixed))))
    times = {"run_time": run, "compile_time": fixed}
    facts = {
        time: [{"kind": kind, "name": name, "what": what} for kind, name, what in rows] for time, rows in times.items()
    }
    return Section("binding times", lines, facts)


def _by_kind(rows: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """One line for each thing; extents without a value share one."""
    found = [(name, f"{kind}: {what}") for kind, name, what in rows if what]
    free = [name for _, name, what in rows if not what]
    return [*found, *([("extents", ", ".join(free))] if free else [])]


def integers(spec: AttentionSpec) -> Section:
    """How wide the int expressions are."""
    nodes = {node for node in children_first(spec.roots) if node.type is INT and not node.is_const}
    wide = [to_text(node) for node in children_first(spec.roots) if node in spec.wide]
    narrow = len(nodes) - len(wide)
    lines = [f"{narrow:,} in i32" + (f", {len(wide):,} in i64:" if wide else "")]
    for text in wide:
        lines += _indented(textwrap.wrap(text, WIDTH - 6, break_on_hyphens=False))
    return Section("int expressions", tuple(lines), {"integers": {"i32": narrow, "i64": len(wide), "wide": wide}})


def reads(diagnostics: Iterable[Diagnostic]) -> Section:
    """Indices that are clamped because nothing proves them inside their axis."""
    found = [item for item in diagnostics if item.code == "W266"]
    lines = []
    for item in found:
        place = "" if item.span is None else f"line {item.span.line}: "
        lines += textwrap.wrap(place + item.message, WIDTH - 4, break_on_hyphens=False)
    facts = [{"line": None if item.span is None else item.span.line, "message": item.message} for item in found]
    return Section("reads", tuple(lines or ["every index is proved inside its axis"]), {"clamped_reads": facts})


def keys(spec: AttentionSpec) -> Section:
    """The three identities."""
    found = {"meaning": meaning_key(spec), "interface": interface_key(spec), "plan": plan_key(spec)}
    return Section("keys", columns(found.items()), {"keys": found})


def targets(spec: AttentionSpec) -> Section:
    """Which targets run the spec, and why the others do not: a feature they lack, or no plan that holds the spec."""
    from ..runtime.capabilities import TARGETS, missing_features
    from .fitting import target_problems

    problems = {
        target: [f"{feature.name}: {feature.on(target)}" for feature in missing_features(spec, target)]
        or [problem.message.removeprefix(f"target '{target}': ") for problem in target_problems(spec, target)]
        for target in TARGETS
    }
    # without a forward nothing else matters
    rows = [
        (target, "yes" if not found else found[0] if found[0].startswith("forward:") else "; ".join(found))
        for target, found in problems.items()
    ]
    facts = {target: {"ok": not found, "problems": found} for target, found in problems.items()}
    return Section("targets", columns(rows), {"targets": facts})


def declared(tensor: Tensor) -> str:
    """`bf16[batch, seq_q, heads, dim]`."""
    return f"{tensor.dtype}[{', '.join(str(axis) for axis in tensor.axes)}]"


def number(value: object) -> str:
    """A parameter's or constant's value as the language writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return value.spelling
    if value == UNBOUNDED:
        return "unbounded"
    return str(value.tolist()) if hasattr(value, "tolist") else str(value)


def _indented(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"  {line}" for line in lines)


def _readers(spec: AttentionSpec) -> dict[str, list[str]]:
    """Capture -> the clauses that read it."""
    clauses = {"mask": spec.mask, "score": spec.score, "sink": spec.sink, "alignment": spec.align.offset}
    clauses["factor of v"] = spec.descale_v
    found: dict[str, list[str]] = {tensor.name: [] for tensor in spec.tensors}
    for clause, root in clauses.items():
        for name in {} if root is None else {str(n.attr): None for n in children_first([root]) if n.op == "read"}:
            found[name].append(clause)
    return found
