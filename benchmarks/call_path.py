"""Host time of one call, in microseconds: what a call costs before the GPU begins, beside others in the same process.

    python benchmarks/call_path.py [BUNDLE]

B1 S128 H8 D128, bf16, causal. With a bundle nothing is compiled and CuTe DSL need not be installed. Each number is the
median over 15 rounds of 200 calls that start with an idle device, so that no call waits for room in its queue; rounds
of all calls alternate, so that all see the same clocks. Peers that are not installed have no number. A line before says
how long the kernel took to make, and to load from the cache in a process that has imported everything.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attn_dsl
from attn_dsl.runtime import CompiledAttention, kernels, random_inputs

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
CAUSAL = HEAD + "mask = kv_idx <= q_pos"
WINDOW = HEAD + "param window: int in 1.. = 4096\nmask = 0 <= q_pos - kv_idx < window"
SIZES = {"batch": 1, "seq_q": 128, "seq_k": 128, "heads": 8, "kv_heads": 8, "dim": 128}
ROUNDS, CALLS, WARM_UP = 15, 200, 20

Call = Callable[[], object]


def host_times(calls: dict[str, Call]) -> dict[str, float]:
    """Microseconds of one call of each."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            found[name].append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(times) for name, times in found.items()}


def ours(compiled: CompiledAttention, windowed: CompiledAttention | None) -> dict[str, Call]:
    """Our calls, and what they are made of."""
    q, k, v = (random_inputs(compiled.spec, SIZES, device="cuda").tensors[name] for name in ("q", "k", "v"))
    o, lse = compiled(q, k, v, return_lse=True)
    room = k.new_zeros(k.shape[0], k.shape[1] + ROUNDS * CALLS + WARM_UP, *k.shape[2:])
    grown = iter([room[:, : length + 1] for length in range(k.shape[1], room.shape[1])])
    rows: dict[str, Call] = {
        "call": lambda: compiled(q, k, v),
        "call, lse returned": lambda: compiled(q, k, v, return_lse=True),
        "call into buffers": lambda: compiled(q, k, v, out=o, lse=lse),
        "call with a K/V that grew": partial(_grown, compiled, q, grown),
        "call checked in full": lambda: compiled.checked((q, k, v), {}, None, None, False),
    }
    if windowed is not None:
        rows["call with a parameter"] = lambda: windowed(q, k, v, window=100)
    backend = compiled.backend
    assert isinstance(backend, kernels.Kernels)
    (recipe,) = (recipe for layout, recipe in backend.recipes.items() if len(layout) == 4 * 3 + 2)
    assert recipe.arguments is not None
    rows["the launch alone"] = partial(_launch, recipe.function, q, k, v, o, lse, recipe.arguments.fixed)
    nothing = _nothing()
    if nothing is not None:
        rows["TVM-FFI, nothing launched"] = partial(nothing, q, k, v, o, lse, recipe.arguments.fixed)
    rows["torch.empty_like"] = lambda: torch.empty_like(q)
    return rows


def _grown(compiled: CompiledAttention, q: torch.Tensor, grown: Iterator[torch.Tensor]) -> object:
    """A call whose layout no call had before."""
    k = next(grown)
    return compiled(q, k, k)


def _launch(function: Callable[..., object] | None, *arguments: object) -> object:
    assert function is not None
    return function(*arguments)


def _nothing() -> Callable[..., object] | None:
    """TVM-FFI's own function that does nothing, of releases that bring one."""
    import tvm_ffi

    found: Callable[..., object] | None = tvm_ffi.get_global_func("testing.nop", allow_missing=True)
    return found


def peers() -> dict[str, Call]:
    """The same attention by others."""
    shape = (SIZES["batch"], SIZES["seq_q"], SIZES["heads"], SIZES["dim"])
    q, k, v = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    rows: dict[str, Call] = {"SDPA": lambda: sdpa(*heads_first, is_causal=True)}
    length = SIZES["seq_q"]
    block_mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, length, length, "cuda")
    flex = torch.compile(flex_attention, dynamic=False)
    rows["FlexAttention, compiled"] = lambda: flex(*heads_first, block_mask=block_mask)
    try:
        from flash_attn.cute.interface import flash_attn_func
    except ImportError:
        return rows
    return rows | {"flash-attn-4": lambda: flash_attn_func(q, k, v, causal=True)}


def first_calls(spec: attn_dsl.AttentionSpec, target: str) -> str:
    """How long the first call of two objects takes: one compiles the kernel or finds it on disk, one loads it."""
    inputs = random_inputs(spec, SIZES, device="cuda").tensors
    took = []
    for _ in range(2):
        compiled = attn_dsl.compile(spec, target=target)
        start = time.perf_counter()
        compiled.warmup(**inputs)
        took.append((time.perf_counter() - start) * 1e3)
    return f"kernel made {took[0]:.0f} ms, loaded from the cache {took[1]:.1f} ms"


def main(bundle: str | None) -> None:
    target = {(9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm100"}[torch.cuda.get_device_capability()]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    windowed = None
    if bundle is None:
        spec = attn_dsl.parse(CAUSAL, name="causal")
        print(first_calls(spec, target), flush=True)
        compiled = attn_dsl.compile(spec, target=target)
        windowed = attn_dsl.compile(attn_dsl.parse(WINDOW, name="window"), target=target)
    else:
        compiled = attn_dsl.load_bundle(bundle)
    with torch.no_grad():
        for name, microseconds in host_times(ours(compiled, windowed) | peers()).items():
            print(f"{name:26} {microseconds:7.2f} us", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
