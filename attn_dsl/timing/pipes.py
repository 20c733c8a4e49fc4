"""Which unit of a multiprocessor executes a machine instruction, and for how long it is taken.

Classes follow the CUDA C++ Programming Guide ("Arithmetic Instructions", throughput by compute capability) and what
`benchmarks/timing_micro.py` measures; a class is looked up by opcode, the most specific prefix first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .machine_code import Instruction

# Units of a sub-partition, and two that its multiprocessor has once.
UNITS = ("fma", "imad", "alu", "xu", "uniform", "branch", "tensor", "memory", "tma")
SHARED_UNITS = frozenset({"memory", "tma"})

# opcode prefix -> class of the table: a unit, and the names of parameters for its time and latency
CLASSES: dict[str, str] = {
    "FFMA2": "packed",
    "FADD2": "packed",
    "FMUL2": "packed",
    "FFMA": "fma",
    "FADD": "fma",
    "FMUL": "fma",
    "HFMA2": "half",
    "HADD2": "half",
    "HMUL2": "half",
    "IMAD": "imad",
    "IDP": "imad",
    "MUFU": "xu",
    "F2I": "xu",
    "I2F.": "xu",
    "F2FP": "alu",
    "F2F": "xu",
    "POPC": "xu",
    "FLO": "xu",
    "BREV": "xu",
    "FCHK": "xu",
    "BRA": "branch",
    "BRX": "branch",
    "BSSY": "branch",
    "BSYNC": "branch",
    "BREAK": "branch",
    "WARPSYNC": "branch",
    "EXIT": "branch",
    "CALL": "branch",
    "RET": "branch",
    "NOP": "branch",
    "NANOSLEEP": "branch",
    "USETMAXREG": "branch",
    "SHFL": "shuffle",
    "LDS.128": "shared_128",
    "STS.128": "shared_128",
    "LDS.64": "shared_64",
    "STS.64": "shared_64",
    "LDSM": "shared_128",
    "STSM": "shared_128",
    "LDS": "shared",
    "STS": "shared",
    "ATOMS": "shared",
    "LDG": "global",
    "LDL": "global",
    "LD.": "global",
    "ATOMG": "global",
    "RED": "global",
    "STG": "store",
    "STL": "store",
    "ST.": "store",
    "LDGSTS": "global",
    "LDC": "constant",
    "ULDC": "uniform",
    "S2R": "special",
    "S2UR": "special",
    "SYNCS": "sync",
    "ARRIVES": "sync",
    "BAR": "sync",
    "FENCE": "fence",
    "MEMBAR": "fence",
    "ERRBAR": "fence",
    "CCTL": "fence",
    "UTMALDG": "copy",
    "UTMASTG": "copy",
    "UTMAREDG": "copy",
    "UBLKCP": "copy",
    "UTMA": "sync",
    "UTC": "sync",
    "HGMMA": "mma",
    "QGMMA": "mma",
    "IGMMA": "mma",
    "WARPGROUP": "sync",
    "LDTM": "tmem",
    "STTM": "tmem",
    "U": "uniform",
}
_UNIT = {
    "fma": "fma",
    "packed": "fma",
    "half": "fma",
    "imad": "imad",
    "alu": "alu",
    "xu": "xu",
    "uniform": "uniform",
    "branch": "branch",
    "mma": "tensor",
    "copy": "tma",
}


@dataclass(frozen=True)
class Use:
    """What an instruction takes of its unit."""

    unit: str
    cycles: float  # until the unit takes the next one
    beside: float  # cycles more while the tensor core of the sub-partition works
    latency: float  # cycles from issue until its scoreboard goes down, where it has one


@lru_cache(maxsize=4096)
def class_of(opcode: str) -> str:
    """The class of an opcode; what no prefix names runs on the ALU."""
    best = max((prefix for prefix in CLASSES if opcode.startswith(prefix)), key=len, default="")
    return CLASSES[best] if best else "alu"


def use_of(instruction: Instruction, table: Mapping[str, float]) -> Use:
    """Of the parameters `rate.CLASS`, `beside.CLASS` and `latency.CLASS`."""
    name = class_of(instruction.opcode)
    return Use(
        _UNIT.get(name, "memory"),
        table[f"rate.{name}"],
        table.get(f"beside.{name}", 0.0),
        table.get(f"latency.{name}", 0.0),
    )
