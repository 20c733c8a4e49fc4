"""What processes of a test of the cache do; each gets a folder, which is both the cache's and the place for notes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from small_artifacts import fill

from attn_dsl.runtime import cache
from attn_dsl.runtime.artifact import Artifact
from attn_dsl.runtime.cache import KernelCache

cache.read_sources = lambda: cache.SOURCES  # whoever edits them while the tests run


def load(folder: Path, key: str) -> bool:
    """Loads `key`, building slowly where it is not there; notes each build. Whether the function can be called."""

    def build(into: Path) -> Artifact:
        with (folder / "notes").open("a") as notes:
            notes.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return fill(into, key)

    artifact, function = KernelCache(folder, 1 << 30).load(key, build)
    function()
    return artifact.info.key == key


def die(folder: Path, key: str) -> None:
    """Is killed in the middle of writing."""

    def build(into: Path) -> Artifact:
        fill(into, key)
        (into / "kernel.json").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    KernelCache(folder, 1 << 30).load(key, build)
