"""Settings: `pack gqa`, `lse_base` and `schedule`."""

from __future__ import annotations

from ..diagnostics import Diagnostics, did_you_mean
from ..syntax import tree
from .names import PACK_MODES, SCHEDULE_INTS, SCHEDULE_WORDS
from .statements import Statements
from .typer import Typer


class SettingsReader:
    """Reads the settings of a spec file."""

    def __init__(self, report: Diagnostics, typer: Typer, statements: Statements) -> None:
        self._report = report
        self._typer = typer
        self._statements = statements

    def pack(self) -> str:
        """`pack gqa`: auto, on or off."""
        pack = self._statements.one(tree.PackDecl, "'pack gqa'")
        mode = "auto"
        if pack is not None:
            if pack.what.name != "gqa":
                self._report.error(
                    "E252", f"'pack {pack.what.name}' is not known", pack.what.span, "write 'pack gqa auto'"
                )
            mode = pack.mode.name
            if mode not in PACK_MODES:
                hint = did_you_mean(mode, PACK_MODES)
                self._report.error(
                    "E252", f"'pack gqa' is one of {', '.join(PACK_MODES)}; given '{mode}'", pack.mode.span, hint
                )
        return mode

    def lse_base(self) -> str:
        """`e` or `2`."""
        base = self._statements.one(tree.LseBase, "'lse_base'")
        lse_base = "e"
        if base is not None:
            value = base.value
            if isinstance(value, tree.Literal) and value.value == 2 and not isinstance(value.value, bool | float):
                lse_base = "2"
            elif not (isinstance(value, tree.Name) and value.name == "e"):
                self._report.error("E252", "'lse_base' is e or 2", value.span)
        return lse_base

    def schedule(self) -> tuple[tuple[str, int | str], ...]:
        """The entries of the `schedule` block, by key."""
        node = self._statements.one(tree.ScheduleDecl, "'schedule'")
        found: dict[str, int | str] = {}
        if node is not None and not node.settings:
            keys = ", ".join((*SCHEDULE_INTS, *SCHEDULE_WORDS))
            self._report.error("E252", "'schedule' has no settings", node.span, f"keys: {keys}")
        for setting in () if node is None else node.settings:
            key = setting.key.name
            if key in found:
                self._report.error("E252", f"'schedule' sets '{key}' twice", setting.key.span)
            elif key in SCHEDULE_WORDS:
                words = SCHEDULE_WORDS[key]
                if isinstance(setting.value, tree.Name) and setting.value.name in words:
                    found[key] = setting.value.name
                else:
                    self._report.error("E252", f"'{key}' is one of {', '.join(words)}", setting.value.span)
            elif key in SCHEDULE_INTS:
                low, high = SCHEDULE_INTS[key]
                value = self._typer.constant(setting.value, self._typer.root, f"'{key}'")
                if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
                    found[key] = value
                elif value is not None:
                    message = f"'{key}' is an int from {low} to {high}; given {value}"
                    self._report.error("E252", message, setting.value.span)
            else:
                known = [*SCHEDULE_INTS, *SCHEDULE_WORDS]
                self._report.error(
                    "E252", f"'schedule' has no setting '{key}'", setting.key.span, did_you_mean(key, known)
                )
        return tuple(sorted(found.items()))
