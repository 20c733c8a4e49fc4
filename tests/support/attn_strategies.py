"""Hypothesis strategies for syntax trees: everything the grammar can say, sensible or not."""

from __future__ import annotations

from hypothesis import strategies as st

from attn_dsl.diagnostics import Source, Span
from attn_dsl.syntax import tree
from attn_dsl.syntax.precedence import COMPARISONS, INFIX, PREFIX

_SPAN = Span(Source("<generated>", ""), 0, 0)
# axis, index, function and dtype names are plain names to the grammar, as are words with a meaning in one place only
_NAMES = (
    "q",
    "k",
    "batch",
    "heads",
    "q_idx",
    "q_pos",
    "bf16",
    "offset",
    "gqa",
    "used",
    "e",
    "sum",
    "min",
    "_",
    "x_1",
    "on",
)


def names() -> st.SearchStrategy[tree.Name]:
    return st.sampled_from(_NAMES).map(lambda name: tree.Name(name, span=_SPAN))


def _make(kind: type, *parts: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(*parts).map(lambda values: kind(*values, span=_SPAN))


def _several(part: st.SearchStrategy, least: int = 0, most: int = 3) -> st.SearchStrategy[tuple]:
    return st.lists(part, min_size=least, max_size=most).map(tuple)


_LITERALS = st.one_of(
    st.booleans(),
    st.integers(0, 2**63 - 1),
    st.integers(0, 20),
    st.floats(min_value=0.0, allow_infinity=False, allow_nan=False).map(abs),
)
_VALUE_WORDS = st.sampled_from((*_NAMES, "score", "unbounded"))


def _ranges(ends: st.SearchStrategy) -> st.SearchStrategy[tree.Range]:
    both = _make(tree.Range, ends, ends, st.booleans())
    return both | _make(tree.Range, ends, st.none(), st.just(False)) | _make(tree.Range, st.none(), ends, st.booleans())


def _grown(inner: st.SearchStrategy) -> st.SearchStrategy:
    infix = st.sampled_from([operator for operator in INFIX if operator not in COMPARISONS])
    chains = st.integers(1, 3).flatmap(
        lambda count: st.tuples(
            st.tuples(*[st.sampled_from(COMPARISONS)] * count), st.tuples(*[inner] * (count + 1))
        ).map(lambda parts: tree.Comparison(*parts, span=_SPAN))
    )
    arguments = _make(tree.Argument, st.none() | st.sampled_from(_NAMES), inner)
    return st.one_of(
        _make(tree.Unary, st.sampled_from(list(PREFIX)), inner),
        _make(tree.Binary, infix, inner, inner),
        chains,
        _make(tree.Conditional, inner, inner, inner),
        _make(tree.Call, names(), _several(arguments)),
        _make(tree.Read, names(), _several(inner, 1)),
        _make(tree.Reduction, st.sampled_from(_NAMES), names(), _make(tree.Range, inner, inner, st.booleans()), inner),
    )


def expressions(max_leaves: int = 12) -> st.SearchStrategy:
    """Any expression, of up to about `max_leaves` names and numbers."""
    leaves = _make(tree.Literal, _LITERALS) | _make(tree.Name, _VALUE_WORDS)
    return st.recursive(leaves, _grown, max_leaves=max_leaves)


def statements() -> st.SearchStrategy:
    """Any statement."""
    value = expressions()
    optional = st.none() | value
    types = _make(tree.TensorType, names(), _several(expressions(4), 1))
    settings = _several(_make(tree.Setting, names(), expressions(4)))
    imported = st.tuples(st.sampled_from(_NAMES), st.sampled_from(_NAMES)).map(
        lambda pair: tree.ImportedName(*pair, span=_SPAN)
    )
    lets = _several(_make(tree.Let, names(), value))
    bodies = st.booleans().flatmap(lambda braces: st.tuples(lets if braces else st.just(()), value, st.just(braces)))
    functions = st.tuples(names(), _several(_make(tree.FunctionParam, names(), names() | types)), names(), bodies).map(
        lambda parts: tree.Function(*parts[:3], *parts[3], span=_SPAN)
    )
    slices = _make(tree.WholeAxis) | _ranges(expressions(4)) | expressions(4)
    return st.one_of(
        _make(tree.Import, st.booleans(), _several(st.sampled_from(_NAMES), 1), _several(imported, 1)),
        _make(tree.Const, names(), names(), value),
        _make(tree.FixAxis, names(), value),
        _make(tree.TensorDecl, _several(names(), 1), types),
        _make(tree.ViewDecl, names(), names(), _several(slices, 1)),
        _make(tree.Param, names(), names(), st.none() | names(), st.none() | _ranges(expressions(4)), optional),
        _make(tree.Let, names(), value),
        functions,
        _make(tree.AlignDecl, names(), optional),
        _make(tree.LengthsDecl, names(), settings),
        _make(tree.PagedDecl, settings),
        _make(tree.ScheduleDecl, settings),
        _make(tree.PackDecl, names(), names()),
        _make(tree.Clause, st.sampled_from(("mask", "score", "scale", "sink")), value),
        _make(tree.LseBase, value),
    )


def files(most: int = 4) -> st.SearchStrategy[tree.File]:
    """Files of one to `most` statements; they belong to no text, so a formatter finds no comments in them."""
    return _several(statements(), 1, most).map(lambda body: tree.File(_SPAN.source, body))
