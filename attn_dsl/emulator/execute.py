"""A decoded kernel made ready to run: global variables placed, launches carried out, findings raised."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import replace

from .errors import EmulatorError, KernelFinding
from .native import Alloc, LaunchConfig, Program, Written
from .program import DecodedProgram
from .report import Finding, LaunchReport, short_name

MODES = ("error", "collect", "off")
# Warp-instructions of one cluster, many minutes of host time: a kernel that goes on longer does not end.
BUDGET = 2_000_000_000


class Loaded:
    """A program in the execution core, together with the memory of its module's global variables."""

    def __init__(self, decoded: DecodedProgram) -> None:
        self._globals = ctypes.create_string_buffer(decoded.globals, max(1, len(decoded.globals)))
        if decoded.relocations:
            consts = bytearray(decoded.consts)
            base = ctypes.addressof(self._globals)
            for slot, offset in decoded.relocations:
                consts[4 * slot : 4 * slot + 8] = (base + offset).to_bytes(8, "little")
            decoded = replace(decoded, consts=bytes(consts))
        self.decoded = decoded
        self._program = Program(decoded)

    def written(self) -> Written | None:
        """What the last launch wrote, if it let the next grid start early."""
        return self._program.written()

    def run(
        self, config: LaunchConfig, params: bytes, allocations: Iterable[Alloc], before: Written | None = None
    ) -> LaunchReport:
        """Run one launch. Raises EmulatorError (E312) if its shape is impossible; findings are in the report.

        `before`: what the launch wrote that this one may overlap with (programmatic dependent launch).
        """
        program, name = self.decoded, short_name(self.decoded.name)
        for what, declared, given in (
            ("block", program.block, config.block),
            ("cluster", program.cluster, config.cluster),
        ):
            if declared and declared != given:
                raise EmulatorError.of("E312", f"{name}: launched with a {what} {given}, the kernel says {declared}")
        ranges = list(allocations)
        if program.globals:
            ranges.append(Alloc(ctypes.addressof(self._globals), len(program.globals)))
        result = self._program.launch(config, params, ranges, before)
        return LaunchReport.of(program.name, program.lines, config, result)


def raise_findings(findings: tuple[Finding, ...]) -> None:
    """Raise KernelFinding (E319) if there are any."""
    if findings:
        count = f"{len(findings)} findings, the first: " if len(findings) > 1 else ""
        error = KernelFinding.of("E319", f"{short_name(findings[0].kernel)}: {count}{findings[0]}")
        assert isinstance(error, KernelFinding)
        error.findings = findings
        raise error
