"""Records launches on the emulator so that `hardware_replay.py` can run the same ones on an H200, and shows the result.

    python benchmarks/emulator_hardware.py record OUT.pt     # here: small kernels and flash-attn-4's sm_90a forwards
    python hardware_replay.py OUT.pt RESULT.json             # on a machine with an H200
    python benchmarks/emulator_hardware.py table RESULT.json

A recording is a list of cases: `before` and `after` are the bytes of every tensor the launches may touch, `launches`
have the image (cubin or PTX), the launch shape, the parameters and the place of every address in them, `outputs` name
the byte ranges to compare.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from hardware_cases import SmallCase, small_cases

from attn_dsl import emulator
from attn_dsl.emulator import ptx

Range = tuple[int, int]  # address, bytes


def find_pointers(params: bytes, ranges: Sequence[Range]) -> list[tuple[int, int, int]]:
    """(offset in params, range, offset in the range) of every 8-byte word that is an address inside a range.

    The address in a tensor map may lie 2^30 rows before its range: so sequences of any length are told apart by what is
    out of bounds (flash-attn-4, varlen). The offset is negative then.
    """
    found = []
    for at in range(0, len(params) - 7, 8):
        word = int.from_bytes(params[at : at + 8], "little")
        for shift in (0, *_ragged_shifts(params, at)):
            for i, (base, size) in enumerate(ranges):
                if base <= (word + shift) % ADDRESSES < base + size:
                    found.append((at, i, word - base))
    return found


ADDRESSES = 1 << 57  # an address in a tensor map has so many bits


def _ragged_shifts(params: bytes, at: int) -> list[int]:
    """If a tensor map may begin at `at`: 2^30 times each of its strides, in bytes."""
    if at % 64 or at + 128 > len(params):
        return []
    return [int.from_bytes(params[at + 12 + 4 * i : at + 16 + 4 * i], "little") << 34 for i in range(4)]


def contents(ranges: Sequence[Range]) -> list[bytes]:
    return [ctypes.string_at(base, size) for base, size in ranges]


def record_small(case: SmallCase) -> dict[str, Any]:
    kernel = ptx.load(case.text)
    tensors = [a for a in case.args if isinstance(a, torch.Tensor)]
    ranges = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors]
    before = contents(ranges)
    kernel.launch((case.grid, 1, 1), (case.block, 1, 1), list(case.args), smem=case.smem, exact=True)
    params = ptx.pack_arguments(kernel.program, list(case.args))
    launch = {
        "image": case.text.encode() + b"\0",
        "kernel": kernel.program.name,
        "grid": (case.grid, 1, 1),
        "block": (case.block, 1, 1),
        "cluster": (1, 1, 1),
        "smem": case.smem,
        "params": params,
        "layout": kernel.program.params,
        "pointers": find_pointers(params, ranges),
    }
    outputs = []
    for name, i, dtype in case.outputs:
        index = next(k for k, t in enumerate(tensors) if t is case.args[i])
        outputs.append((name, index, 0, len(before[index]), dtype))
    return {"name": case.name, "before": before, "after": contents(ranges), "launches": [launch], "outputs": outputs}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def _flash_cases() -> dict[str, Callable[[], tuple[torch.Tensor, ...]]]:
    from flash_attn.cute import flash_attn_func

    def dense(
        b: int, sq: int, sk: int, h: int, hk: int, d: int, **options: Any
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        def call() -> tuple[torch.Tensor, ...]:
            return flash_attn_func(
                _random(b, sq, h, d), _random(b, sk, hk, d), _random(b, sk, hk, d), return_lse=True, **options
            )

        return call

    return {
        "FA4 causal, head dim 128": dense(1, 512, 512, 2, 2, 128, causal=True),
        "FA4 full, head dim 128": dense(1, 384, 640, 2, 2, 128),
        "FA4 causal, Sq != Sk": dense(2, 200, 457, 2, 2, 128, causal=True),
        "FA4 window 100": dense(1, 512, 512, 2, 2, 128, causal=True, window_size=(100, 0)),
        "FA4 GQA 4:1": dense(1, 300, 300, 8, 2, 128, causal=True),
        "FA4 causal, head dim 64": dense(1, 512, 512, 4, 4, 64, causal=True),
        "FA4 softcap 30": dense(1, 384, 384, 2, 2, 128, causal=True, softcap=30.0),
        "FA4 full, head dim 64": dense(1, 384, 384, 2, 2, 64),
        "FA4 causal, head dim 96": dense(1, 300, 300, 2, 2, 96, causal=True),
        "FA4 causal, head dim 256": dense(1, 300, 300, 2, 2, 256, causal=True),
        "FA4 varlen, causal": _packed((100, 1, 180, 0, 129), 4, 2, 128),
    }


def _packed(lengths: Sequence[int], h: int, hk: int, d: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    from flash_attn.cute import flash_attn_varlen_func

    def call() -> tuple[torch.Tensor, ...]:
        total, starts = sum(lengths), torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
        return flash_attn_varlen_func(
            *(_random(total, heads, d) for heads in (h, hk, hk)),
            cu_seqlens_q=starts,
            cu_seqlens_k=starts,
            max_seqlen_q=max(lengths),
            max_seqlen_k=max(lengths),
            causal=True,
            return_lse=True,
        )

    return call


def record_calls(calls: Mapping[str, Callable[[], Sequence[torch.Tensor]]]) -> list[dict[str, Any]]:
    """What the launches of each call did; a call returns its outputs: out, then lse."""
    cases = []
    with emulator.device("sm_90a", findings="collect", record=True, exact=True) as gpu:
        for name, call in calls.items():
            gpu.launches.clear()
            results = [t for t in call() if isinstance(t, torch.Tensor)]
            ranges = sorted({(a.base, a.size) for launch in gpu.launches for a in launch.allocations})
            used = {i for launch in gpu.launches for _, i, _ in find_pointers(launch.params, ranges)}
            ranges = [ranges[i] for i in sorted(used)]
            after = contents(ranges)
            before = list(after)
            outputs = []
            for label, t in zip(("out", "lse"), results, strict=False):
                storage = t.untyped_storage()
                index = ranges.index((storage.data_ptr(), storage.nbytes()))
                before[index] = bytes(storage.nbytes())
                outputs.append((label, index, 0, storage.nbytes(), str(t.dtype).removeprefix("torch.")))
            launches = []
            for launch in gpu.launches:
                launches.append(
                    {
                        "image": launch.image,
                        "kernel": launch.kernel,
                        "grid": launch.config.grid,
                        "block": launch.config.block,
                        "cluster": launch.config.cluster,
                        "smem": launch.config.dyn_smem,
                        "params": launch.params,
                        "layout": launch.decoded.params,
                        "pointers": find_pointers(launch.params, ranges),
                    }
                )
            kept = {index for _, index, *_ in outputs}
            after = [data if i in kept else b"" for i, data in enumerate(after)]
            cases.append({"name": name, "before": before, "after": after, "launches": launches, "outputs": outputs})
            print(f"recorded {name}: {len(launches)} launches", flush=True)
    return cases


def table(result: dict[str, Any]) -> str:
    """The comparison as a Markdown table."""
    lines = [
        "| kernel | output | values | bit-equal | largest difference (ulps) | relative difference by norm |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        if "error" in row:
            lines.append(f"| {row['case']} | error | | | | {row['error']} |")
            continue
        different = round((1 - row["equal"]) * row["values"])
        equal = (
            f"{100 * row['equal']:.2f} %" if row["equal"] < 0.9999 else f"all but {different}" if different else "all"
        )
        lines.append(
            f"| {row['case']} | {row['output']} | {row['values']} | {equal} | {row['ulps']} | {row['relative']:.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    command, path = sys.argv[1], Path(sys.argv[2])
    if command == "record":
        small = [record_small(case) for case in small_cases()]
        torch.manual_seed(7)
        torch.save(small + record_calls(_flash_cases()), path)
    elif command == "table":
        print(table(json.loads(path.read_text())))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
