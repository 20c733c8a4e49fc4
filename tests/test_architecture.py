"""Which part of the package may import which: the line of data runs one way, and this holds it to that.

Read from the syntax tree, so imports inside functions and under TYPE_CHECKING count too: knowing a type is knowing.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
SOURCES = {"attn_dsl": "attn_dsl", "lowering": "attn_dsl.lowering", "kernels": "attn_dsl.kernels"}


@dataclass(frozen=True)
class Room:
    name: str  # module prefix; the longest that fits a module is its room
    may: frozenset[str]  # module prefixes of this package it may import, itself aside; "*" is every one
    external: frozenset[str]  # top-level third-party packages it may import
    why: str


def room(name: str, *, may: str = "", external: str = "", why: str) -> Room:
    return Room(
        f"attn_dsl.{name}" if name else "attn_dsl",
        frozenset(part if part == "*" else f"attn_dsl.{part}" for part in may.split()),
        frozenset(external.split()),
        why,
    )


# One row for each folder. Modules directly in attn_dsl/ form the facade, which no other room may import.
ROOMS = (
    room("_version", why="one constant, read by the build"),
    room("diagnostics", why="every room reports problems, so this one knows none of them"),
    room("std", why="specs, not code"),
    room(
        "expr",
        may="diagnostics",
        external="torch",
        why="an expression means the same everywhere, so it cannot know where it came from or goes",
    ),
    room(
        "syntax",
        may="diagnostics expr.operators",
        external="lark",
        why="a tree knows its text, not types, tensors or GPUs; spelling and precedence are in the operator table",
    ),
    room("spec", may="diagnostics expr syntax", why="a typed spec knows no tile, no device and no tensor's contents"),
    room(
        "lowering",
        may="diagnostics expr spec",
        external="torch",
        why="plans are decided from specs; a template asks its plan, and a plan never asks a template",
    ),
    room(
        "kernels",
        may="diagnostics expr lowering",
        external="cuda cutlass torch tvm_ffi",
        why="a template sees a plan, tensors and scalars, never the language",
    ),
    room(
        "reference",
        may="diagnostics expr spec",
        external="torch",
        why="the oracle must not share the tile analysis and the plans it is there to judge",
    ),
    room(
        "show",
        may="diagnostics expr lowering reference spec",
        external="PIL torch",
        why="draws what the oracle and the tile analysis say and decides nothing",
    ),
    room(
        "emulator",
        may="diagnostics",
        external="cutlass torch tvm_ffi",
        why="a device that runs instructions: it must not know what attention is, or it could be lenient",
    ),
    room(
        "runtime",
        may="_version diagnostics expr kernels lowering reference spec",
        external="cuda cutlass filelock torch tvm_ffi",
        why="compiles, caches and launches what the other rooms decided; the reference is one of its targets",
    ),
    room(
        "timing",
        may="diagnostics emulator runtime.artifact runtime.cubin",
        external="torch",
        why="times what a kernel executes: machine code and events, whatever they compute",
    ),
    room(
        "convert",
        may="diagnostics expr runtime spec syntax",
        external="torch",
        why="writes texts of the language from other tools' functions; what a text means is the checker's business",
    ),
    room(
        "serving",
        may="diagnostics runtime",
        external="torch",
        why="works on results and on storage, whatever spec or kernel they are of",
    ),
    room(
        "integrations",
        may="diagnostics expr reference runtime spec syntax",
        external="torch transformers",
        why="brings specs into other people's libraries; what a spec means and how it runs is decided elsewhere",
    ),
    room(
        "highlight",
        may="diagnostics expr spec syntax",
        external="pygments",
        why="colours words; which words there are is said by the grammar and the lists of names",
    ),
    room(
        "notebook",
        may="diagnostics lowering runtime show spec",
        external="torch",
        why="puts pictures, formulas and plans of other rooms on one page",
    ),
    room("cli", may="*", external="PIL numpy torch", why="a user of the whole package; numpy reads .npy files"),
    room("", may="*", external="torch", why="the facade puts the rooms together"),
)
ROOM_NAMES = {each.name for each in ROOMS}


def covers(prefix: str, module: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def room_of(module: str) -> Room:
    return max((each for each in ROOMS if covers(each.name, module)), key=lambda each: len(each.name))


def modules() -> Iterator[tuple[str, Path]]:
    for folder, package in SOURCES.items():
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            parts = path.relative_to(CHECKOUT / folder).with_suffix("").parts
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


def imported(module: str, is_package: bool, source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute name) for every import; of `from m import n` the name is `m.n`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) + is_package - node.level] if node.level else []
            prefix = [*base, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*prefix, alias.name])) for alias in node.names)


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    here = room_of(module)
    found = []
    for line, target in imported(module, is_package, source):
        top = target.partition(".")[0]
        if top == "attn_dsl":
            there = room_of(target)
            allowed = there == here or "*" in here.may or any(covers(prefix, target) for prefix in here.may)
        else:
            allowed = top in sys.stdlib_module_names or top in here.external
        if not allowed:
            found.append(f"{module}:{line} imports {target}: {here.name} may not ({here.why})")
    return found


def test_every_folder_has_a_row() -> None:
    folders = {".".join(name.split(".")[:2]) for name, path in modules() if path.parent != CHECKOUT / "attn_dsl"}
    assert folders <= ROOM_NAMES, "a new folder needs a row in ROOMS that says what it may import, and why"


def test_rows_name_rooms() -> None:
    named = {prefix for each in ROOMS for prefix in each.may if prefix != "*"}
    assert {room_of(prefix).name for prefix in named} <= ROOM_NAMES - {"attn_dsl"}


def test_imports_follow_the_table() -> None:
    checked = 0
    found = []
    for module, path in modules():
        checked += 1
        found += violations(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    assert checked > 3
    assert not found, "\n".join(found)


def test_the_document_has_the_same_table() -> None:
    text = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\|", text, re.MULTILINE)
    said = {name: "*" if may == "everything" else " ".join(re.findall(r"`([\w.]+)`", may)) for name, may in rows}
    meant = {
        each.name.removeprefix("attn_dsl."): " ".join(sorted(prefix.removeprefix("attn_dsl.") for prefix in each.may))
        for each in ROOMS
        if each.name not in ("attn_dsl", "attn_dsl._version")
    }
    assert said == meant


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("attn_dsl.syntax.parse", "import attn_dsl.spec.types"),
        ("attn_dsl.syntax.parse", "from attn_dsl import spec"),
        ("attn_dsl.syntax.parse", "from ..spec import types"),
        ("attn_dsl.syntax.parse", "from .. import spec"),
        ("attn_dsl.syntax.parse", "def f():\n    from attn_dsl.runtime import cache"),
        ("attn_dsl.syntax.parse", "if TYPE_CHECKING:\n    from attn_dsl.lowering.plan import Plan"),
        ("attn_dsl.syntax.parse", "from attn_dsl import load"),
        ("attn_dsl.syntax.parse", "import torch.nn"),
        ("attn_dsl.syntax.parse", "from ..expr import node"),
        ("attn_dsl.syntax.parse", "from ..expr.operators_extra import x"),
        ("attn_dsl.spec.types", "from attn_dsl.lowering import tiles"),
        ("attn_dsl.expr.node", "from attn_dsl.spec import types"),
        ("attn_dsl.lowering.plan", "from attn_dsl.kernels.sm100 import forward"),
        ("attn_dsl.lowering.plan", "from attn_dsl.runtime import cache"),
        ("attn_dsl.emulator.gpu", "from attn_dsl.spec import types"),
        ("attn_dsl.reference.forward", "from attn_dsl.lowering import tiles"),
        ("attn_dsl.spec.types", "import cutlass.cute as cute"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("attn_dsl.spec.types", "from ..expr import node"),
        ("attn_dsl.spec.types", "from . import axes"),
        ("attn_dsl.syntax.precedence", "from ..expr.operators import OPERATORS"),
        ("attn_dsl.syntax.parse", "import lark\nimport re\nfrom pathlib import Path"),
        ("attn_dsl.kernels.sm100.forward", "import cutlass\nfrom attn_dsl.lowering.plan import Plan"),
        ("attn_dsl.api", "from attn_dsl.runtime import cache"),
    ],
)
def test_a_permitted_import_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_a_relative_import_in_a_package_starts_at_the_package() -> None:
    assert list(imported("attn_dsl.spec", True, "from . import axes")) == [(1, "attn_dsl.spec.axes")]
    assert list(imported("attn_dsl.spec.types", False, "from . import axes")) == [(1, "attn_dsl.spec.axes")]
