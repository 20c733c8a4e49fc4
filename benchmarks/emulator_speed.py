"""How fast the emulator decodes and runs flash-attn-4's forwards.

    python benchmarks/emulator_speed.py sm_100a|sm_90a [--large]

Rates are warp-instructions per second of processor time on one core, best of three; `--large` adds S = 4096, H = 8.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings

import torch

from attn_dsl import emulator
from attn_dsl.emulator import RecordedLaunch
from attn_dsl.emulator.decoder import decode

SHAPES = [(512, 2, 128, True), (2048, 1, 128, True), (1024, 2, 128, False), (2048, 1, 64, True)]  # S, H, D, causal
LARGE = (4096, 8, 128, True)


def record(arch: str, length: int, heads: int, dim: int, causal: bool) -> RecordedLaunch:
    with emulator.device(arch, findings="collect", record=True) as gpu:
        from flash_attn.cute import flash_attn_func

        torch.manual_seed(5)
        q, k, v = (torch.randn(1, length, heads, dim).to(torch.bfloat16) for _ in range(3))
        flash_attn_func(q, k, v, causal=causal)
    return gpu.launches[-1]


def rate(launch: RecordedLaunch, repeats: int, **options: bool) -> tuple[float, int]:
    """Best million warp-instructions per second of processor time, and how many there are."""
    best, count = 0.0, 0
    for _ in range(repeats):
        start = time.thread_time()
        report = launch.replay(threads=1, **options)
        best = max(best, report.instructions / (time.thread_time() - start) / 1e6)
        count = report.instructions
    return best, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arch", choices=["sm_100a", "sm_90a"])
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| forward | warp-instructions | million/s, all findings | findings off | all findings, exact | decode, s |")
    print("|---|---|---|---|---|---|")
    for shape in [*SHAPES, *([LARGE] if args.large else [])]:
        length, heads, dim, causal = shape
        launch = record(args.arch, length, heads, dim, causal)
        start = time.process_time()
        decode(launch.ptx, launch.kernel)
        decoding = time.process_time() - start
        repeats = 1 if shape == LARGE else 3
        on, count = rate(launch, repeats, checks=True)
        off, _ = rate(launch, repeats, checks=False)
        exact, _ = rate(launch, repeats, checks=True, exact=True)
        name = f"{args.arch} {'causal' if causal else 'full'} S{length} H{heads} D{dim}"
        print(f"| {name} | {count} | {on:.1f} | {off:.1f} | {exact:.1f} | {decoding:.2f} |", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\nlargest resident size of the process: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
