"""Homes of nodes that have our code already, as after a first start: for tests whose subject is what comes then."""

from __future__ import annotations

import shutil
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive


def lay_runtime(lib: Path) -> None:
    """Lay the runtime into a directory for code, with the bytecode that this tree has of it.

    The sources keep their times, by which Python knows that bytecode is of them.
    """
    target = lib / runtime_archive.digest()
    for name, data in runtime_archive.sources().items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
    package, sources = target / runtime_archive.PACKAGE, runtime_archive.SOURCES
    for source in sources.rglob("*.py"):
        shutil.copystat(source, package / source.relative_to(sources))
    for bytecode in sources.rglob("__pycache__"):
        shutil.copytree(bytecode, package / bytecode.relative_to(sources))


def share_runtime(lib: Path, *homes: Path) -> None:
    """Have homes share one directory for code, so that each start finds it there, compiled."""
    for home in homes:
        home.mkdir(parents=True, exist_ok=True)
        (home / "lib").symlink_to(lib)
