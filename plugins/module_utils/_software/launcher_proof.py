# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The proof that an MPI launcher works on this machine: it has the right version, and starts two processes.

The proof is made once and leaves a file. That is removed when the launcher is installed again, and never copied.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS

from .proof_error import UnprovenError

PROOF = "torchfleet-proof.txt"
SECONDS = 120


def given_proof(path: Path) -> str:
    """Return the version of a launcher that was proven before, or an empty string."""
    try:
        return (path / PROOF).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def prove(launcher: str, path: Path, version: str = "", components: Sequence[str] = ()) -> str:
    """Return the version of a launcher and write the proof. Raise UnprovenError if the launcher does not work.

    `version`: the required one, or "". `components`: required ones of Open MPI, as ompi_info --parsable names them.
    """
    found = find_version(launcher, path, version)
    find_components(path, components)
    start_two(launcher, path)
    (path / PROOF).write_text(found + "\n", encoding="utf-8")
    return found


def find_version(launcher: str, path: Path, wanted: str) -> str:
    """Return the version that a launcher prints. Raise UnprovenError if it is not the required one."""
    mpirun = f"{path}/bin/mpirun"
    said = run([mpirun, "--version"], path)
    match = re.search(LAUNCHERS[launcher].version, said, re.MULTILINE)
    if not match or match.group(1) != (wanted or match.group(1)):
        raise UnprovenError(f"{mpirun} should be {launcher} {wanted}".rstrip() + f", but says: {shorten(said)}")
    return match.group(1)


def find_components(path: Path, components: Sequence[str]) -> None:
    """Raise UnprovenError if a component is missing: configure silently leaves out what it does not find."""
    said = run([f"{path}/bin/ompi_info", "--parsable"], path) if components else ""
    lacking = [name for name in components if name not in said]
    if lacking:
        raise UnprovenError(f"{path} was built without {', '.join(lacking)}")


def start_two(launcher: str, path: Path) -> None:
    """Start two processes. Raise UnprovenError unless they are rank 0 and rank 1."""
    row = LAUNCHERS[launcher]
    options = [*(row.as_root if os.getuid() == 0 else ()), *row.crowded]
    argv = [f"{path}/bin/mpirun", *options, "-n", "2", "printenv", row.identity[0]]
    said = run(argv, path)
    if sorted(said.split()) != ["0", "1"]:
        raise UnprovenError(f"{' '.join(argv)} should start ranks 0 and 1, but says: {shorten(said)}")


def run(argv: Sequence[str], path: Path) -> str:
    """Return what a program writes to stdout. UnprovenError if it cannot run, fails or does not end."""
    env = {**os.environ, "PATH": f"{path}/bin:{os.environ.get('PATH', os.defpath)}"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what a wheel's launcher imports is compiled here once, not in every job
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnprovenError(f"{' '.join(argv)} did not end within {SECONDS} s") from None
    except OSError as error:
        raise UnprovenError(f"{argv[0]} does not run: {error.strerror}") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        lines = (done.stderr.decode(errors="replace") + said).splitlines()
        words = shorten(" ".join(line for line in lines if line.strip(" -")), 300) or "(nothing)"
        raise UnprovenError(f"{' '.join(argv)} ended with status {done.returncode} and said: {words}")
    return said


def shorten(text: str, most: int = 100) -> str:
    """Return a text on one line, cut where it is too long."""
    return " ".join(text.split())[:most]
