"""Replays recorded launches on a real GPU and compares what they leave in memory with what the emulator left there.

Needs torch with CUDA and `cuda.bindings`, not this package: `python hardware_replay.py RECORDINGS.pt [RESULT.json]`.
`emulator_hardware.py` makes the recordings and documents their format.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

import torch
from cuda.bindings import driver

_MAX_DYNAMIC_SHARED = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_PORTABLE_CLUSTER = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_CLUSTER_DIMENSION = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION

ADDRESSES = 1 << 57  # an address in a tensor map has so many bits, and may lie far before the memory it is for


def checked(result: tuple[Any, ...]) -> Any:
    """The values of a driver call; raises when its status is not success."""
    if int(result[0]) != 0:
        raise RuntimeError(f"the driver says {result[0]}")
    return result[1] if len(result) == 2 else result[1:]


def place(contents: bytes) -> torch.Tensor:
    """A copy of host memory in device memory."""
    return torch.frombuffer(bytearray(contents), dtype=torch.uint8).cuda()


def patched(params: bytes, pointers: list[tuple[int, int, int]], memory: list[torch.Tensor]) -> bytes:
    """The parameter buffer with every address in it pointing into device memory."""
    out = bytearray(params)
    for at, index, offset in pointers:
        struct.pack_into("<Q", out, at, (memory[index].data_ptr() + offset) % ADDRESSES)
    return bytes(out)


def run_launch(launch: dict[str, Any], memory: list[torch.Tensor]) -> None:
    module = checked(driver.cuModuleLoadData(launch["image"]))
    function = checked(driver.cuModuleGetFunction(module, launch["kernel"].encode()))
    checked((*driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, launch["smem"]), None))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch["grid"]
    config.blockDimX, config.blockDimY, config.blockDimZ = launch["block"]
    config.sharedMemBytes = launch["smem"]
    config.hStream = torch.cuda.current_stream().cuda_stream
    if launch["cluster"] != (1, 1, 1):
        checked((*driver.cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTER, 1), None))
        attribute = driver.CUlaunchAttribute()
        attribute.id = _CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = launch["cluster"]
        config.attrs, config.numAttrs = [attribute], 1
    params = patched(launch["params"], launch["pointers"], memory)
    values = [params[offset : offset + size] for offset, size in launch["layout"]]
    # Each kernel parameter is passed by the address of its bytes.
    buffers = [torch.frombuffer(bytearray(v), dtype=torch.uint8) for v in values]
    addresses = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.int64)
    checked((*driver.cuLaunchKernelEx(config, function, addresses.data_ptr(), 0), None))
    torch.cuda.synchronize()


def ordered(bits: torch.Tensor) -> torch.Tensor:
    """Float encodings as integers in the order of the values: neighbours differ by one."""
    wide = bits.long()
    return torch.where(wide < 0, -(wide & torch.iinfo(bits.dtype).max), wide)


def compare(name: str, dtype: torch.dtype, ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, Any]:
    """Of one output: the share of bit-equal values, and how far the others are."""
    size = torch.empty(0, dtype=dtype).element_size()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    equal = ours.view(bits) == theirs.view(bits)
    row: dict[str, Any] = {"output": name, "values": equal.numel(), "equal": equal.float().mean().item()}
    different = (~equal).nonzero().flatten()[:6].tolist()
    row["examples"] = [(i, hex(ours.view(bits)[i].item()), hex(theirs.view(bits)[i].item())) for i in different]
    if dtype.is_floating_point:
        a, b = ours.view(dtype).double(), theirs.view(dtype).double()
        finite = a.isfinite() & b.isfinite()
        row["relative"] = ((a - b)[finite].norm() / b[finite].norm().clamp_min(1e-300)).item()
        row["ulps"] = (
            (ordered(ours.view(bits)) - ordered(theirs.view(bits)))[finite].abs().max().item() if finite.any() else 0
        )
    else:
        row["relative"], row["ulps"] = 0.0 if equal.all() else 1.0, 0
    return row


def replay(case: dict[str, Any]) -> list[dict[str, Any]]:
    memory = [place(contents) for contents in case["before"]]
    for launch in case["launches"]:
        run_launch(launch, memory)
    rows = []
    for name, index, start, size, dtype in case["outputs"]:
        theirs = memory[index].cpu()[start : start + size]
        ours = torch.frombuffer(bytearray(case["after"][index]), dtype=torch.uint8)[start : start + size]
        rows.append({"case": case["name"], **compare(name, getattr(torch, dtype), ours, theirs)})
    return rows


def main() -> None:
    torch.zeros(1).cuda()  # makes the context current
    rows = []
    for case in torch.load(sys.argv[1], weights_only=False):
        try:
            rows += replay(case)
        except RuntimeError as error:
            rows.append({"case": case["name"], "output": "-", "error": str(error)})
        print(json.dumps(rows[-1]), flush=True)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
