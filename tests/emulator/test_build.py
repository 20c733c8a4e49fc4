"""Building the native libraries: once, keyed by what goes in, with a clear error when it cannot be done."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from attn_dsl.emulator import EmulatorError, build
from attn_dsl.emulator.cache import decoded
from attn_dsl.emulator.hostcode import runtime_names
from attn_dsl.emulator.isa import isa

TEXT = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k() { ret; }\n"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder, and nothing remembered from earlier builds."""
    monkeypatch.setenv("ATTN_DSL_CACHE_DIR", str(tmp_path))
    build._compiler.cache_clear()
    build._library.cache_clear()
    yield tmp_path
    build._compiler.cache_clear()
    build._library.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_no_compiler_is_one_clear_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(EmulatorError, match="no 'no-such-compiler'") as caught:
        build.runtime_library()
    assert caught.value.code == "E310"
    assert "gcc" in str(caught.value)


def test_a_library_is_built_once_and_again_when_its_source_changes(fresh: Path):
    folder = fresh / "source"
    folder.mkdir()
    source = folder / "a.c"
    source.write_text('__attribute__((visibility("default"))) int value(void) { return 1; }\n')
    first = build._library("test", folder)
    stamp = first.stat().st_mtime_ns
    build._library.cache_clear()
    assert build._library("test", folder) == first
    assert first.stat().st_mtime_ns == stamp
    assert ctypes.CDLL(str(first)).value() == 1
    source.write_text(source.read_text().replace("return 1", "return 2"))
    build._library.cache_clear()
    second = build._library("test", folder)
    assert second != first
    assert ctypes.CDLL(str(second)).value() == 2


def test_what_the_compiler_says_is_shown(fresh: Path):
    folder = fresh / "source"
    folder.mkdir()
    (folder / "a.c").write_text("int f(void) { return nonsense; }\n")
    with pytest.raises(EmulatorError, match="nonsense") as caught:
        build._library("test", folder)
    assert caught.value.code == "E310"
    assert not list(fresh.glob("native/*.so"))


def test_a_cache_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTN_DSL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(EmulatorError, match="ATTN_DSL_CACHE_DIR") as caught:
        build.cache_dir()
    assert caught.value.code == "E310"


def test_a_cache_folder_that_cannot_be_written_is_named(fresh: Path):
    (fresh / "native").write_text("")
    with pytest.raises(EmulatorError, match="ATTN_DSL_CACHE_DIR") as caught:
        build.runtime_library()
    assert caught.value.code == "E310"


def test_every_runtime_function_also_has_a_name_of_its_own():
    names = runtime_names(build.runtime_library().read_bytes())
    library = ctypes.CDLL(str(build.runtime_library()))
    assert {"_cudaLaunchKernelEx", "_cudaLibraryLoadData", "cuda_dialect_init_library_once"} <= set(names)
    for name in names:
        own = ctypes.cast(getattr(library, "attn_emu" + name), ctypes.c_void_p).value
        assert own == ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def test_decoded_kernels_are_kept_on_disk_and_a_broken_entry_is_replaced(fresh: Path):
    decoded.cache_clear()
    program = decoded(TEXT)
    [entry] = (fresh / "decoded").glob("*.pickle")
    decoded.cache_clear()
    assert decoded(TEXT) == program
    entry.write_bytes(b"broken")
    decoded.cache_clear()
    assert decoded(TEXT) == program
    assert entry.read_bytes() != b"broken"
    decoded.cache_clear()


def test_numbers_come_from_the_header():
    assert isa.SHARED_BASE == 0x400
    assert isa.PRED_TRUE == -1
    assert isa.names("CP_")["128X256B"] == 0
    with pytest.raises(AttributeError, match="EMU_NO_SUCH"):
        _ = isa.NO_SUCH
