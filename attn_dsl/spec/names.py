"""The names the language gives a meaning to. Each list is stated here once; `docs/language.md` explains them."""

from __future__ import annotations

from .model import DType

# index name -> the axes it may index as it stands
INDEX_AXES: dict[str, tuple[str, ...]] = {
    "b": ("batch",),
    "h": ("heads",),
    "kv_h": ("kv_heads",),
    "q_idx": ("seq_q", "total_q"),
    "kv_idx": ("seq_k", "total_k"),
    "q_pos": ("seq_k", "total_k"),
}
LENGTHS = ("seq_q", "seq_k")  # in an expression: the length of this sequence
INDEX_NAMES = (*INDEX_AXES, *LENGTHS, "score")

STANDARD_AXES = (
    "batch",
    "seq_q",
    "seq_k",
    "total_q",
    "total_k",
    "heads",
    "kv_heads",
    "dim",
    "dim_v",
    "pages",
    "page_size",
)
TYPED_AXES = frozenset(axis for axes in INDEX_AXES.values() for axis in axes)  # axes only their own index reads
LIBRARY_AXES = ("batch", "heads", "kv_heads", "dim", "dim_v")  # extents a library may use: every spec has them

UNARY_FUNCTIONS = ("exp", "exp2", "log", "log2", "tanh", "sqrt", "sigmoid", "sin", "cos")  # float to float
FUNCTIONS = ("min", "max", "abs", "clamp", "floor", "float", *UNARY_FUNCTIONS)
REDUCTIONS = ("sum", "any", "all", "min", "max")

OPERANDS = ("q", "k", "v")
OUTPUTS = ("o", "lse")
CALL_KEYWORDS = ("out", "return_lse", "debug", "target", "name", "folder")  # options of a call, compile() and parse()
DTYPES: dict[str, DType] = {dtype.spelling: dtype for dtype in DType}
VALUE_TYPES = ("int", "float", "bool")

# names people know from elsewhere, for things the language is not made for (E251)
FOREIGN = {
    "softmax": "the normaliser is always one softmax over the visible keys",
    "dropout": "dropout is random, and nothing in a spec is",
    "rand": "nothing in a spec is random",
    "random": "nothing in a spec is random",
    "bernoulli": "nothing in a spec is random",
    "philox": "nothing in a spec is random",
}

MAX_NODES = 20_000  # distinct expression nodes of one spec
MAX_TERMS = 4_096  # terms of one reduction
MAX_STEPS = 40_000  # tree nodes visited while functions and reductions are expanded
MAX_DEPTH = 120  # nesting: each operator counts 1, each call or use of a definition 2 more

PARAM_AXES = ("heads", "kv_heads", "batch")
PACK_MODES = ("auto", "on", "off")
SCHEDULE_INTS = {  # key -> smallest and largest value
    "tile_q": (1, 1024),
    "tile_k": (1, 1024),
    "stages": (1, 32),
    "registers": (24, 256),
    "exp2_share": (0, 100),
    "splits": (1, 256),
}
SCHEDULE_WORDS = {"order": ("auto", "linear", "longest_first", "head_major")}


CALL_OPTION = "an option of calls and of compile()"


def is_taken(name: str) -> str | None:
    """Why a definition may not be called `name`, or None if it may."""
    if name in INDEX_NAMES or name == "unbounded":
        return "an index name"
    if name in STANDARD_AXES:
        return "an axis name"
    if name in FUNCTIONS or name in REDUCTIONS:
        return "a builtin function"
    if name in DTYPES or name in VALUE_TYPES or name == "dtype":
        return "a type"
    if name in OPERANDS or name in OUTPUTS:
        return "a tensor of every spec"
    if name in CALL_KEYWORDS:
        return CALL_OPTION
    return None
