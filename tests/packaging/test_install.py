"""The distribution holds the whole package: built, installed into a fresh environment, and imported there.

Twice: as a wheel and as an editable install, because `lowering/` and `kernels/` lie outside `attn_dsl/` and the two
kinds of install find them by different means.
"""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = {"attn_dsl": "attn_dsl", "lowering": "attn_dsl.lowering", "kernels": "attn_dsl.kernels"}
# Files the package reads at run time, or compiles, besides its modules.
DATA = ("*.lark", "*.attn", "*.json", "*.c", "*.h", "py.typed")

# Not requirements of the package: what is imported without them is what `pip install attn-dsl` gives.
NOT_REQUIRED = (
    "PIL",
    "cuda",
    "cutlass",
    "hypothesis",
    "numpy",
    "pygments",
    "pytest",
    "transformers",
    "triton",
    "tvm_ffi",
)
# Modules that need an extra, by prefix: the extra and the package whose absence they report.
NEEDS_EXTRA = {
    "attn_dsl.kernels.": ("cute", {"cutlass", "cuda", "tvm_ffi"}),
    "attn_dsl.integrations.transformers": ("transformers", {"transformers"}),
    "attn_dsl.highlight.lexer": ("highlight", {"pygments"}),
}

# Runs in the fresh environment. Prints {module: None, or the name of the package it misses} and where they lie.
WALK = """
import importlib, json, sys

hidden = set(json.loads(sys.argv[1]))

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"hidden: {name}", name=name)

sys.meta_path.insert(0, Hide())
import pkgutil

outcome, places = {}, {}
for root in ("attn_dsl", "attn_dsl.lowering", "attn_dsl.kernels"):
    pending = [root]
    while pending:
        name = pending.pop()
        if name in outcome:
            continue
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in hidden:
                raise
            outcome[name] = error.name.partition(".")[0]
            continue
        outcome[name] = None
        places[name] = module.__file__
        pending += [f"{name}.{found.name}" for found in pkgutil.iter_modules(getattr(module, "__path__", ()))]
print(json.dumps([outcome, places]))
"""


@dataclass(frozen=True)
class Install:
    python: Path
    place: Path  # every module of the package must lie below it
    cwd: Path  # a folder from which nothing of the checkout can be imported by chance


def run(*command: str | Path, cwd: Path) -> str:
    # Neither the caller's import path nor its pip settings about targets may reach the fresh environment.
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_TARGET", "PIP_USER"))}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(python: Path, *arguments: str | Path, cwd: Path) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", *arguments, cwd=cwd)


def files_of(source: Path, *patterns: str) -> set[str]:
    """Names, as the wheel spells them, of the files in the three source folders that match a pattern."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(source / folder).as_posix()}"
        for folder, package in SOURCES.items()
        for pattern in patterns
        for path in (source / folder).rglob(pattern)
    }


def modules_of(source: Path) -> set[str]:
    return {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files_of(source, "*.py")}


def site_packages(python: Path) -> Path:
    return Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=python.parent).strip())


def fresh_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def lend_requirements(python: Path) -> None:
    """Make this environment's packages importable in the fresh one, except this project itself.

    Python does not read .pth files found through a .pth file, so an editable install here stays unseen there.
    """
    homes = [str(Path(importlib.util.find_spec(name).origin).parents[1]) for name in ("torch", "lark", "cutlass")]
    assert not any((Path(home) / "attn_dsl").exists() for home in homes), "the project is installed here as a copy"
    (site_packages(python) / "lent.pth").write_text("\n".join(dict.fromkeys(homes)), encoding="utf-8")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the distribution is built from, so that no build product lies in the checkout or comes from it."""
    copy = tmp_path_factory.mktemp("source")
    for folder in SOURCES:
        shutil.copytree(CHECKOUT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for path in CHECKOUT.iterdir():
        if path.is_file():
            shutil.copy(path, copy / path.name)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = ("wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", out, source)
    pip(Path(sys.executable), *build, cwd=out)
    (found,) = out.glob("attn_dsl-*.whl")
    return found


@pytest.fixture(scope="module")
def installed_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    folder = tmp_path_factory.mktemp("from-wheel")
    python = fresh_environment(folder / "venv")
    pip(python, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    lend_requirements(python)
    return Install(python, site_packages(python), folder)


@pytest.fixture(scope="module")
def installed_editable(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    folder = tmp_path_factory.mktemp("editable")
    python = fresh_environment(folder / "venv")
    # The build runs in the fresh environment, which needs the build backend and nothing else.
    backend = importlib.metadata.distribution("setuptools")
    for name in {path.parts[0] for path in backend.files or ()}:
        (site_packages(python) / name).symlink_to(backend.locate_file(name))
    pip(python, "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-e", source, cwd=folder)
    lend_requirements(python)
    return Install(python, source, folder)


@pytest.fixture(params=["wheel", "editable"])
def install(request: pytest.FixtureRequest) -> Install:
    return request.getfixturevalue(f"installed_{request.param}")


def walk(install: Install, hidden: tuple[str, ...]) -> dict[str, str | None]:
    script = install.cwd / "walk.py"
    script.write_text(WALK, encoding="utf-8")
    outcome, places = json.loads(run(install.python, script, json.dumps(hidden), cwd=install.cwd).splitlines()[-1])
    astray = {name: place for name, place in places.items() if not Path(place).is_relative_to(install.place)}
    assert not astray
    return outcome


def test_wheel_holds_every_file(source: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = files_of(source, "*.py", *DATA)
    assert expected - names == set(), "missing from the wheel"
    stray = {name for name in names - expected if ".dist-info/" not in name}
    assert stray == set(), "in the wheel and not in the source"
    assert {name.split("/")[0] for name in names} == {"attn_dsl", wheel.name.split("-py3")[0] + ".dist-info"}


def test_wheel_holds_grammar_and_standard_library(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.endswith(".lark") for name in names)
    assert any(name.startswith("attn_dsl/std/") and name.endswith(".attn") for name in names)
    assert "attn_dsl/py.typed" in names


def test_every_module_imports(source: Path, install: Install) -> None:
    assert walk(install, hidden=()) == dict.fromkeys(modules_of(source))


def test_requirements_suffice(install: Install) -> None:
    """With torch and lark alone every module imports, or belongs to an extra and misses just what that extra brings."""
    outcome = walk(install, hidden=NOT_REQUIRED)
    wrong = {
        name: missing
        for name, missing in outcome.items()
        if missing is not None
        and not any(name.startswith(prefix) and missing in brings for prefix, (_, brings) in NEEDS_EXTRA.items())
    }
    assert wrong == {}


def test_command_is_installed(install: Install) -> None:
    told = run(install.python.parent / "attn-dsl", "--help", cwd=install.cwd)
    assert "usage" in told.lower()
