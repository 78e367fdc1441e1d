# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Downloads wheels with pip for a machine with another Python or C library than this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_make import PipCall

from .package_locks import PackageLock, name_of

# pip takes a Python and a platform to download for, but asks the Python it runs in what a marker such as
# `python_version >= "3.12"` says.
PIP = """
import json, sys
import pip._vendor.packaging.markers as markers
from pip._internal.cli.main import main
here = markers.default_environment()
there = {**here, **json.loads(sys.argv.pop(1))}
markers.default_environment = lambda: there
sys.exit(main())
"""


class NotFoundError(Exception):
    """Wheels are missing: which, or what pip says of them."""


@dataclass(frozen=True)
class Download:
    """What is to be downloaded."""

    packages: Sequence[str]
    wheelhouse: str
    index_url: str
    locked: PackageLock
    into: Path  # for files that pip reads
    torch_packages: Sequence[str] = ()  # those of `packages` that are compiled for a build of torch
    torch_index_url: str = ""  # where those are


def download(wanted: Download, python: str, libc: str, machine: str, has_own_build: Callable[[], bool]) -> None:
    """Download what is missing for a machine. NotFoundError with pip's own words if that fails.

    `has_own_build` says whether the wheelhouse has a build of the first package with a version of its own (+cpu).
    """
    argv = pip_download(wanted.wheelhouse, python, libc, machine)
    Path(wanted.wheelhouse).mkdir(parents=True, exist_ok=True)
    if not run_pip([*argv, "--no-index", "--", *wanted.packages]):
        return  # what is there is not looked for elsewhere
    is_locked = bool(wanted.locked.get("lines"))
    calls = locked_pip_calls(wanted, argv, has_own_build) if is_locked else pip_calls(wanted)
    for call in [PipCall(["--no-deps"], list(wanted.torch_packages), wanted.torch_index_url), *calls]:
        if call.packages or "--requirement" in call.options:
            error = run_pip([*argv, *call.options, "--", *call.packages], call.environment)
            if error:
                raise NotFoundError(error)


def pip_download(wheelhouse: str, python: str, libc: str, machine: str) -> list[str]:
    """Return the command that downloads wheels for a machine."""
    newest = int([*libc.split("."), "17"][1])
    platforms = [f"manylinux_2_{number}_{machine}" for number in range(newest, 4, -1)] + [f"manylinux2014_{machine}"]
    markers = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    argv = [
        sys.executable,
        "-P",
        "-c",
        PIP,
        json.dumps(markers),
        "download",
        "--quiet",
        "--no-input",
        "--only-binary=:all:",
    ]
    argv += ["--disable-pip-version-check", f"--python-version={python}", f"--dest={wheelhouse}"]
    return [*argv, "--find-links", wheelhouse, *[f"--platform={platform}" for platform in platforms]]


def pip_calls(wanted: Download) -> list[PipCall]:
    """Return the calls of pip: never for two indexes at once, as on the machine (environment_make)."""
    packages, index = list(wanted.packages), wanted.index_url
    return [PipCall([], packages[:1], index), PipCall([], packages[1:])] if index else [PipCall([], packages)]


def locked_pip_calls(wanted: Download, argv: Sequence[str], has_own_build: Callable[[], bool]) -> list[PipCall]:
    """Return the same where there is a lock: what it has by its checksums, and then the rest, as on the machine."""
    locked, first, index = wanted.locked, list(wanted.packages[:1]), wanted.index_url
    # A build of one's own is brought from where pip is told of it here (find-links).
    own = bool(index) or (not run_pip([*argv, "--no-index", "--no-deps", "--", *first]) and has_own_build())
    left_out = {name_of(package) for package in wanted.torch_packages} | {*(locked["of_the_build"] if own else [])}
    lines = [line for line in locked["lines"] if line.split("==")[0] not in left_out]
    hashed, versions = wanted.into / "lock.txt", wanted.into / "versions.txt"
    hashed.write_text("\n".join([*lines, ""]), encoding="utf-8")
    versions.write_text("\n".join([line.split(" --hash")[0] for line in lines] + [""]), encoding="utf-8")
    constrained = ["--constraint", str(versions)]
    return [
        PipCall(["--require-hashes", "--requirement", str(hashed)], []),
        PipCall(constrained, first if index else [], index),
        PipCall(constrained, [package for package in locked["more"] if package not in (first if own else [])]),
    ]


def run_pip(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run pip. Return "", or what it says of errors if it fails."""
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"pip ended with {done.returncode}"]
    return "; ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:]) if done.returncode else ""
