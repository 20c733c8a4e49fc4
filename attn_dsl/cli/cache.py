"""`attn-dsl cache`: the folder of compiled kernels."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from . import values
from .console import FINDINGS, OK, plural, print_json

if TYPE_CHECKING:
    from ..runtime.cache import Entry, KernelCache

_ACTIONS = ("ls", "verify", "clear")
_EPILOG = """\
examples:
  attn-dsl cache ls
  attn-dsl cache verify --format json
  attn-dsl cache clear

ATTN_DSL_CACHE_DIR names another folder, ATTN_DSL_CACHE_MB another limit (default 1024 MiB, 0: keep nothing)."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cache",
        help="list, verify or clear the compiled kernels on disk",
        description="Lists, verifies or clears the compiled kernels on disk.",
        epilog=_EPILOG,
    )
    parser.add_argument("action", choices=_ACTIONS, help="ls lists, verify compares checksums, clear removes all")
    values.add_format(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Does what was asked for; the exit code."""
    from ..runtime.cache import kernel_cache

    cache = kernel_cache()
    if options.action == "clear":
        return _clear(cache, options.format)
    if options.action == "verify":
        return _verify(cache, options.format)
    return _list(cache, options.format)


def _list(cache: KernelCache, form: str) -> int:
    entries = sorted(cache.entries(), key=lambda entry: entry.used, reverse=True)
    total = sum(entry.bytes for entry in entries)
    if form == "json":
        kernels = [_as_dict(entry) for entry in entries]
        print_json({"ok": True, "folder": str(cache.folder), "limit": cache.limit, "bytes": total, "kernels": kernels})
        return OK
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        info = entry.info
        dims = f"dim {info.dim}, dim_v {info.dim_v}" if info.dim else f"dim_v {info.dim_v}"
        print(f"{info.key[:12]}  {used}  {entry.bytes:>9,} bytes  {info.signature.target:<5}  {info.spec}, {dims}")
    print(f"{plural(len(entries), 'kernel')}, {total / 2**20:.1f} of {cache.limit >> 20} MiB in {cache.folder}")
    return OK


def _as_dict(entry: Entry) -> dict[str, object]:
    info = entry.info
    return {
        "key": info.key,
        "spec": info.spec,
        "target": info.signature.target,
        "dim": info.dim,
        "dim_v": info.dim_v,
        "bytes": entry.bytes,
        "used": entry.used,
        "versions": dict(info.facts),
    }


def _verify(cache: KernelCache, form: str) -> int:
    damaged = cache.verify()
    whole = len(cache.entries())
    if form == "json":
        found = [{"key": key, "problem": problem} for key, problem in damaged]
        print_json({"ok": not damaged, "whole": whole, "damaged": found})
    else:
        for key, problem in damaged:
            print(f"{key[:12]}  {problem}; set aside")
        print(f"{plural(whole, 'kernel')} whole, {len(damaged)} damaged")
    return FINDINGS if damaged else OK


def _clear(cache: KernelCache, form: str) -> int:
    count, size = cache.clear()
    if form == "json":
        print_json({"ok": True, "removed": count, "bytes": size})
    else:
        print(f"{plural(count, 'kernel')} removed, {size / 2**20:.1f} MiB")
    return OK
