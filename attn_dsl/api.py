"""What a Python user calls: texts and files to specs, specs to something that runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import syntax
from .diagnostics import Source
from .spec import AttentionSpec, resolve
from .spec.resolve import Override

if TYPE_CHECKING:
    from .runtime import CompiledAttention


def load(path: str | Path, **constants: Override) -> AttentionSpec:
    """The typed spec of a `.attn` file, named after the file.

    `constants` replace `const` values of the file (a dtype by its name) and fix axes: `load(path, dim=128)`.

    Raises:
        AttnSyntaxError: the file is no `.attn` text (E20x).
        SpecError: the text breaks a rule of the language (E21x to E26x); every problem of the file is in it.
    """
    path = Path(path)
    file = syntax.parse_source(syntax.read_source(path))
    return resolve(file, name=path.stem, folder=path.parent, constants=constants)


def parse(text: str, *, name: str = "spec", folder: str | Path | None = None, **constants: Override) -> AttentionSpec:
    """The typed spec of a text. `folder` is where its relative imports start; without it there are none.

    Raises:
        AttnSyntaxError, SpecError: as `load`.
    """
    if not isinstance(text, str):
        raise TypeError(f"parse() takes the text of a spec as str, not {type(text).__name__}; load() takes a path")
    file = syntax.parse_source(Source("<text>", text))
    return resolve(file, name=name, folder=None if folder is None else Path(folder), constants=constants)


def compile(spec: AttentionSpec | str | Path, *, target: str = "auto", **constants: Override) -> CompiledAttention:
    """A callable for a spec, or for the `.attn` file at a path.

    `target` is `"reference"` (PyTorch, any device, with gradients), a GPU architecture that `capabilities()` lists, or
    `"auto"`: in this version the reference, whatever the machine. `constants` as in `load`.

    Raises:
        AttnSyntaxError, SpecError: as `load`.
        UnsupportedError: the target does not exist (E280), cannot do what the spec asks (E281), or is not here (E282).
    """
    from .runtime import compile_for

    if not isinstance(spec, AttentionSpec):
        spec = load(spec, **constants)
    elif constants:
        spec = respecialise(spec, **constants)
    return compile_for(spec, target)


def respecialise(spec: AttentionSpec, **constants: Override) -> AttentionSpec:
    """The same spec with other constants; those given before stay unless they are given again."""
    if spec.origin is None:
        raise ValueError(f"spec {spec.name!r} was built without a text: its constants cannot be changed")
    origin = spec.origin
    merged = {**dict(origin.constants), **constants}
    return resolve(origin.file, name=spec.name, folder=origin.folder, constants=merged)


def capabilities() -> dict[str, dict[str, str]]:
    """Feature by target, machine-readable: `capabilities()["paged K/V"]["sm90"]` is `"yes"` or the reason why not."""
    from .runtime import capabilities as table

    return table()


def load_bundle(folder: str | Path, *, target: str | None = None) -> CompiledAttention:
    """The kernels that `attn-dsl compile FILE --out FOLDER` wrote, as what `compile` returns; needs no CuTe DSL.

    `target` chooses between those of the bundle; None: the one for the GPU that is here.

    Raises:
        UnsupportedError: the bundle is damaged (E320), of another format, version, machine or GPU (E321); at a call:
            without a kernel for its shape class (E322). What loading needs besides torch is missing (E282).
    """
    from .runtime import load_bundle as load_from

    return load_from(Path(folder), target)
