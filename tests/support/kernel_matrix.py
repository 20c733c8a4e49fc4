"""The gallery on a kernel target's virtual device: cells of spec, dtype and head dimension, each of many launches.

A launch is right if nothing is found and its outputs are as near to float64 as rounding allows: o within twice the
error of an exact computation that rounds its weights as the kernel does, plus one unit in the last place; lse within
2e-4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.cli.accuracy import ROUNDOFF
from attn_dsl.cli.run import with_dtype
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.binding import Call
from attn_dsl.runtime.kernels import KERNEL_TARGETS, Kernels
from attn_dsl.spec import AttentionSpec, DType

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = tuple(sorted(path.stem for path in EXAMPLES.glob("*.attn")))
# the first two dozen variants that the project set out with, in their order
FIRST = (
    *("vit_full", "llama_causal", "mistral_window", "modernbert_window", "gemma2_local", "gemma3_image"),
    *("gpt_oss_local", "softmax_plus_one", "streaming_llm", "paligemma_prefix", "packed_documents"),
    *("packed_documents_window", "llama4_chunked", "llama4_nope", "qwen_logn", "bloom_alibi", "jina_alibi"),
    *("t5_decoder", "kerple_log", "sandwich", "swin_window", "swin_v2_cosine", "longformer", "longformer_dilated"),
)
DTYPES = {"bf16": DType.BF16, "f16": DType.F16}
TORCH = {DType.BF16: torch.bfloat16, DType.F16: torch.float16}
DIMS = (8, 40, 64, 72, 96, 128, 192, 256)
LENGTHS = (  # queries, keys
    (1, 1),
    (63, 257),
    (127, 128),
    (128, 128),
    (129, 640),
    (255, 384),
    (257, 255),
    (384, 129),
    (640, 127),
    (130, 0),
    (0, 70),
)
GROUPS = range(1, 17)  # query heads of a K/V head
# parameters whose defaults would make every small case alike
SMALL = {
    "window_tokens": 70,
    "chunk": 100,
    "tokens": 50,
    "reach": 40,
    "block": 16,
    "local_blocks": 3,
    "tile": 24,
    "latents": 16,
    "height": 14,
    "width": 18,
    "trained_tokens": 64,
    "query_scalar": 64.0,
    "prompt": 20,
    "frame": 60,
    "tiles_t": 1,
    "tiles_h": 2,
    "tiles_w": 1,
}
POSITIVE = ("strength", "rate")  # captures that a logarithm needs to be so
LSE_BOUND = 2e-4  # absolute
ROOM = 8  # elements after each row of q, k and v, full of NaN


@dataclass(frozen=True)
class Cell:
    """One kernel: a spec of the gallery in one dtype, for one head dimension and one number of heads that share K/V."""

    spec: str
    dtype: str
    dim: int
    group: int

    def __str__(self) -> str:
        return f"{self.spec}-{self.dtype}-{self.dim}-{self.group}"


def cells(dims: tuple[int, ...] = DIMS, specs: tuple[str, ...] = SPECS) -> Iterator[Cell]:
    """All of them; groups take turns, and specs that fix their head dimension have one."""
    place = 0
    for name in specs:
        spec = load(name)
        fixed = spec.fixed("dim")
        for dtype in DTYPES:
            for dim in dims if fixed is None else (fixed,):
                place += 1
                share = spec.kv_heads_axis == "kv_heads"
                yield Cell(name, dtype, dim, GROUPS[place * 5 % len(GROUPS)] if share else 1)


def load(name: str) -> AttentionSpec:
    return attn_dsl.load(EXAMPLES / f"{name}.attn")


def kernels_of(cell: Cell, target: str, schedule: Mapping[str, int] | None = None) -> Kernels:
    """Raises UnsupportedError if the target refuses the spec, with `schedule` as its hints to the plan."""
    spec = with_dtype(load(cell.spec), DTYPES[cell.dtype])
    if schedule is not None:
        spec = replace(spec, schedule=tuple(schedule.items()))
    attn_dsl.compile(spec, target=target)
    return Kernels(spec, KERNEL_TARGETS[target])


def launch(kernels: Kernels, cell: Cell, lengths: tuple[int, int], seed: int, late: int) -> str:
    """What is wrong with one launch under a schedule drawn by `seed`: nothing if it is "". Outputs are NaN before."""
    spec = kernels.spec
    call = call_of(spec, cell, lengths, seed)
    o_exact, lse_exact = reference.attention(spec, call.tensors, call.params, precision="float64")
    o = torch.full(o_exact.shape, math.nan, dtype=TORCH[DTYPES[cell.dtype]])
    lse = torch.full(lse_exact.shape, math.nan)
    with emulator.device(kernels.target.arch, findings="collect", late=late, seed=seed, strict=True) as gpu:
        kernels.launch(call, o, lse)
    if gpu.findings:
        return f"finding {gpu.findings[0]}"
    return compare(spec, call, o, o_exact) or compare_lse(lse, lse_exact)


def call_of(spec: AttentionSpec, cell: Cell, lengths: tuple[int, int], seed: int) -> Call:
    """Random inputs of a cell."""
    fixed = dict(spec.fixed_axes)
    kv_heads = 2 if cell.group <= 2 else 1
    wanted = {"batch": 2, "heads": cell.group * kv_heads, "dim": cell.dim, "dim_v": cell.dim}
    wanted |= {"seq_q": lengths[0], "seq_k": lengths[1], "total_q": lengths[0], "total_k": lengths[1]}
    wanted |= {"kv_heads": kv_heads} | fixed
    named = {str(axis.name) for tensor in spec.tensors for axis in tensor.axes if axis.name is not None}
    if spec.lengths_q.cu_seqlens is not None:
        named.add("batch")  # as batch + 1
    if spec.paging is not None:
        named.add("seq_k")  # the longest sequence in pages
    extents = {axis: extent for axis, extent in wanted.items() if axis in named}
    extents |= dict.fromkeys(named - set(wanted), 64)
    params = {param.name: SMALL[param.name] for param in spec.params if param.name in SMALL and param.per is None}
    inputs = random_inputs(spec, extents, seed=seed, given=params)
    tensors = {name: _spread(t, seed) if name in ("q", "k", "v") else t for name, t in inputs.tensors.items()}
    tensors |= {name: tensors[name].abs() for name in POSITIVE if name in tensors}
    return bind(spec, (), {**tensors, **inputs.params}, False)


def _spread(tensor: Tensor, seed: int) -> Tensor:
    """The same values with rows apart and, for every other seed, the outer axes in another order in memory."""
    order = list(range(tensor.dim() - 1))
    order = order[::-1] if seed % 2 else order
    wide = torch.full((*(tensor.shape[axis] for axis in order), tensor.shape[-1] + ROOM), math.nan, dtype=tensor.dtype)
    back = [order.index(axis) for axis in range(tensor.dim() - 1)]
    view = wide.permute(*back, tensor.dim() - 1)[..., : tensor.shape[-1]]
    return view.copy_(tensor)


def compare(spec: AttentionSpec, call: Call, o: Tensor, exact: Tensor) -> str:
    """What is wrong with o, "" if nothing; `exact` is the oracle's, in float64."""
    if not bool(o.isfinite().all()):
        return f"o has {int((~o.isfinite()).sum())} elements that are not finite"
    if not exact.numel():
        return ""
    rounded = rounded_weights(*without_views(spec, call)).to(o.dtype).double()
    error = float((rounded - exact).abs().max())
    ulp = 2 * ROUNDOFF[spec.output.dtype] * exact.abs().clamp(min=torch.finfo(o.dtype).smallest_normal)
    worst = float(((o.double() - exact).abs() - 2 * error - ulp).max())
    return f"o is {worst:.2e} past a bound of {2 * error:.2e} and one ulp" if worst > 0 else ""


def without_views(spec: AttentionSpec, call: Call) -> tuple[AttentionSpec, Call]:
    """The same attention, with tensors of their own where `spec` has views."""
    cut = {}
    for view in spec.views:
        kinds = {"keep": lambda part: slice(None), "select": lambda part: part.start}
        places = [kinds.get(part.kind, lambda part: slice(part.start, part.stop))(part) for part in view.slices]
        cut[view.name] = call.tensors[view.base][tuple(places)].contiguous()
    spec = replace(spec, views=(), tensors=(*spec.tensors, *(view.tensor for view in spec.views)))
    return spec, replace(call, spec=spec, tensors={**call.tensors, **cut})


def compare_lse(lse: Tensor, exact: Tensor) -> str:
    """Likewise with lse."""
    same = exact.isinf()
    if not torch.equal(lse.double()[same], exact[same]):
        return "lse differs where it is infinite"
    difference = (lse.double() - exact)[~same].abs()
    if difference.numel() and not float(difference.max()) <= LSE_BOUND:
        return f"lse is off by {float(difference.max()):.2e}"
    return ""


def rounded_weights(spec: AttentionSpec, call: Call) -> Tensor:
    """o in float64, but for weights that are rounded to the dtype of v, relative to the largest of their row.

    The oracle gives the weights: with unit vectors in the place of v, o is a slice of them.
    """
    axes = [str(axis.name) for axis in spec.tensor("v").axes]
    v = pool = call.tensors["v"]
    if axes[:2] == ["pages", "page_size"]:  # a page list names no slot twice: the pool is one row of slots
        axes, v = ["total_k", *axes[2:]], pool.flatten(0, 1)
    slots = "seq_k" if "seq_k" in axes else "total_k"
    rows, width = axes.index(slots), v.shape[axes.index(spec.dim_v_axis)]
    seq_k = v.shape[rows]
    if not seq_k:
        return reference.attention(spec, call.tensors, call.params, precision="float64")[0]
    slices = []
    for start in range(0, seq_k, width):
        unit = torch.zeros(seq_k, width, dtype=v.dtype)
        count = min(width, seq_k - start)
        unit[start : start + count, :count] = torch.eye(count, dtype=v.dtype)
        shape = [seq_k if axis == rows else width if axis == len(axes) - 1 else 1 for axis in range(len(axes))]
        tensors = {**call.tensors, "v": unit.reshape(shape).expand(v.shape).reshape(pool.shape)}
        slices.append(reference.attention(spec, tensors, call.params, precision="float64")[0][..., :count])
    weights = torch.cat(slices, -1)
    largest = weights.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    rounded = (weights / largest).to(v.dtype).double() * largest
    out = [str(axis) for axis in spec.output.axes]
    letters = {"batch": "b", "seq_q": "q", "total_q": "q", "heads": "h", slots: "k"}
    letters |= {spec.kv_heads_axis: "h", spec.dim_v_axis: "d"}
    heads = call.extents["heads"] // call.extents[spec.kv_heads_axis]
    values = v.double().repeat_interleave(heads, axes.index(spec.kv_heads_axis))
    left = "".join("k" if axis == spec.dim_v_axis else letters[axis] for axis in out)
    right, result = ("".join(letters[axis] for axis in names) for names in (axes, out))
    return torch.einsum(f"{left},{right}->{result}", rounded, values)
