"""Executes and follows the kernels of `timing_cases` without a GPU, and keeps what the timing model simulates.

    python benchmarks/timing_sample.py FOLDER [--only full/ours,causal/fa4]

`timing_calibrate.py` reads FOLDER.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
import warnings
from pathlib import Path

import torch
from timing_cases import KERNELS, Case, name_of

from attn_dsl import emulator
from attn_dsl.timing.predict import Sampled, sample
from attn_dsl.timing.tables import table


def sampled(case: Case, who: str) -> Sampled:
    """One launch, recorded with line information and sampled."""
    given = case.inputs("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with emulator.device("sm_90a", findings="off", record=True, only=(0,), lines=True) as gpu:
            if who == "fa4":
                case.peer(given)()
            else:
                from attn_dsl.runtime import bind
                from attn_dsl.runtime.kernels import SM90, Kernels

                spec = case.spec
                Kernels(spec, SM90).launch(bind(spec, (), {**given, **case.values}, False), None, None)
    if len(gpu.launches) > 1:
        print(f"{case.name}/{who}: {len(gpu.launches)} launches", file=sys.stderr)
    sizes = sum(x.numel() * x.element_size() for x in given.values()) + given["q"].numel() * 2
    return sample(gpu.launches[0], table("sm90"), sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    chosen = options.only.split(",") if options.only else [name_of(case, who) for case, who in KERNELS]
    for case, who in KERNELS:
        name = name_of(case, who)
        if name in chosen:
            begin = time.perf_counter()
            found = sampled(case, who)
            (options.folder / f"{name.replace('/', '-')}.pickle").write_bytes(pickle.dumps(found, protocol=5))
            work = [block.instructions for block in found.blocks]
            print(
                f"{name}: grid {found.grid}, {found.resident} resident, {work[0]} to {work[-1]} instructions, "
                f"{found.foreign:.1%} foreign, {time.perf_counter() - begin:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
