"""Files and the names they define: imports are followed, checked and turned into one scope per file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .. import syntax
from ..diagnostics import AttnSyntaxError, Diagnostics, Span, did_you_mean
from ..syntax import tree
from .names import is_taken

MAX_LIBRARIES = 64  # files one spec reads, directly or through other libraries
STD = Path(__file__).resolve().parent.parent / "std"

Definition = tree.Const | tree.Let | tree.Function | tree.Param | tree.TensorDecl


@dataclass(eq=False)
class Module:
    """One file: its tree, the folder its relative imports start from, its own definitions and the imported ones."""

    file: tree.File
    folder: Path | None  # None for a text without a place: relative imports are refused
    own: dict[str, tree.Const | tree.Let | tree.Function] = field(default_factory=dict)
    imported: dict[str, tuple[Module, str]] = field(default_factory=dict)  # local name -> (library, its name there)
    broken: set[str] = field(default_factory=set)  # imports that failed and are reported: uses are not reported again

    def find(self, name: str) -> tuple[Module, tree.Const | tree.Let | tree.Function] | None:
        """The definition `name` stands for in this file, with the file that holds it."""
        if name in self.own:
            return self, self.own[name]
        if name in self.imported:
            library, there = self.imported[name]
            return library, library.own[there]
        return None

    @property
    def names(self) -> set[str]:
        return set(self.own) | set(self.imported)


class Loader:
    """Reads libraries, each once."""

    def __init__(self, report: Diagnostics) -> None:
        self._report = report
        self._loaded: dict[Path, Module | None] = {}  # None while a file is being read or when it is broken
        self._open: list[Path] = []  # the chain of imports being followed
        self.libraries: list[Module] = []

    def module(self, file: tree.File, folder: Path | None) -> Module:
        """The scope of `file`. Problems are reported; what could be understood is returned."""
        module = Module(file, folder)
        for statement in file.statements:
            if isinstance(statement, tree.Const | tree.Let | tree.Function):
                self._define(module, statement.name)
                module.own.setdefault(statement.name.name, statement)
            elif isinstance(statement, tree.Import):
                self._import(module, statement)
        return module

    def _define(self, module: Module, name: tree.Name) -> None:
        taken = is_taken(name.name)
        if taken:
            self._report.error("E221", f"'{name.name}' is {taken} and cannot be redefined", name.span)
        elif name.name in module.names:
            self._report.error("E221", f"'{name.name}' is defined twice", name.span)

    def _import(self, module: Module, statement: tree.Import) -> None:
        library = self._library(module, statement)
        for item in statement.names:
            self._define(module, tree.Name(item.alias, span=item.span))
            if library is None or item.name in library.broken:
                module.broken.add(item.alias)
            elif library.find(item.name) is None:
                module.broken.add(item.alias)
                hint = did_you_mean(item.name, library.own)
                self._report.error("E213", f"{_dotted(statement)} defines no '{item.name}'", item.span, hint)
            else:
                module.imported.setdefault(item.alias, _origin(library, item.name))

    def _library(self, module: Module, statement: tree.Import) -> Module | None:
        path = self._locate(module, statement)
        if path is None:
            return None
        if path in self._open:
            chain = " -> ".join(p.name for p in [*self._open[self._open.index(path) :], path])
            self._report.error("E212", f"imports form a cycle: {chain}", statement.span)
            return None
        if path not in self._loaded and len(self._loaded) == MAX_LIBRARIES:
            self._report.error(
                "E215",
                f"{_dotted(statement)} is library {MAX_LIBRARIES + 1} of this spec; it reads at most {MAX_LIBRARIES}",
                statement.span,
                "put definitions that are used together into one file",
            )
            return None
        if path not in self._loaded:
            self._loaded[path] = None
            self._open.append(path)
            try:
                source = syntax.read_source(path)
                library = self.module(syntax.parse_source(source), path.parent)
            except AttnSyntaxError as problem:
                for diagnostic in problem.diagnostics:
                    self._report.add(diagnostic)
                return None
            finally:
                self._open.pop()
            for inner in library.file.statements:
                if not isinstance(inner, tree.Const | tree.Let | tree.Function | tree.Import):
                    self._report.error(
                        "E214",
                        f"{_dotted(statement)} is no library: it has {_kind(inner)}",
                        inner.span,
                        "move the definitions to a file of their own and import that from both",
                    )
            self._loaded[path] = library
            self.libraries.append(library)
        return self._loaded[path]

    def _locate(self, module: Module, statement: tree.Import) -> Path | None:
        span = statement.span
        if not statement.relative:
            if statement.path[0] != "std":
                hint = f"for a file beside the spec write 'from .{'.'.join(statement.path)} import ...'"
                self._report.error("E211", f"'{statement.path[0]}' is no place to import from", span, hint)
                return None
            root, parts = STD, statement.path[1:]
        elif module.folder is None:
            hint = "save the spec as a file and use load(path), or pass folder= to parse()"
            self._report.error("E211", "a text without a folder has no files beside it", span, hint)
            return None
        else:
            root, parts = module.folder, statement.path
        root = root.resolve()
        path = root.joinpath(*parts).with_suffix(".attn") if parts else root
        try:
            real = path.resolve()
            inside, found = real.is_relative_to(root), real.is_file()
        except (OSError, RuntimeError):  # a loop of links, or a name the file system refuses
            inside, found = True, False
        if not inside:
            self._report.error("E211", f"{_dotted(statement)} leads out of its folder", span)
            return None
        if not found:
            advice: str | None = "name a library, as in 'from std.window import window'"
            if parts:
                advice = did_you_mean(parts[-1], _libraries(path.parent))
            self._report.error("E210", f"there is no library {_dotted(statement)}", span, advice)
            return None
        return real


def _libraries(folder: Path) -> list[str]:
    try:
        return [path.stem for path in folder.glob("*.attn")]
    except OSError:
        return []


def _origin(library: Module, name: str) -> tuple[Module, str]:
    """Where a name re-exported by `library` is really defined."""
    return library.imported[name] if name not in library.own else (library, name)


def _dotted(statement: tree.Import) -> str:
    return f"'{'.' if statement.relative else ''}{'.'.join(statement.path)}'"


def _kind(statement: tree.Statement) -> str:
    if isinstance(statement, tree.TensorDecl):
        return f"a tensor '{statement.names[0].name}'"
    if isinstance(statement, tree.Clause):
        return f"a clause '{statement.kind}'"
    if isinstance(statement, tree.Param):
        return f"a parameter '{statement.name.name}'"
    return "a statement that belongs to a spec"


def place(span: Span) -> str:
    """`file:line:column`, for messages that point at a second place."""
    return f"{span.source.name}:{span.line}:{span.column}"
