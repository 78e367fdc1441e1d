# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Proving that an environment works on this machine: a program runs in it, once."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Sequence

from .environment import PROOF, Request


def prove(request: Request, program: str, arguments: Sequence[str]) -> tuple[bool, str]:
    """Return whether the program ran, and "" or why the environment does not work.

    The program gets the arguments and the path of a file that it leaves. It runs once, unless the file goes.
    """
    proof = request.place / PROOF
    if not program or proof.exists():
        return False, ""
    argv = [str(request.place / "bin" / "python"), "-I", "-", *arguments, str(proof)]
    # What it imports is compiled here once, and not in every rank of every job.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    try:
        done = subprocess.run(
            argv,
            input=program.encode(),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        return True, f"{request.role}: {request.place} is broken: {error}"
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    ended = (
        f"killed by {signal.Signals(-done.returncode).name}"
        if done.returncode < 0
        else f"exit status {done.returncode}"
    )
    why = [ended, *lines][-1]
    return True, f"{request.role}: {request.place} is broken: {why}" if done.returncode else ""
