# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A program that leaves nothing: whatever it started is ended with it, also in sessions of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Sequence

from .processes import Process, become_subreaper, descendants, kill_all, wait_gone

LEAVE_SECONDS = 2.0  # for an engine's own processes to end after it


def below() -> list[Process]:
    return descendants(os.getpid())


def main(words: Sequence[str]) -> int:
    """Run a program to its end, end what it left, and return its status; 125 and why if it does not start."""
    become_subreaper()
    try:
        with subprocess.Popen(words) as program:
            rc = program.wait()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 125
    if wait_gone(below, LEAVE_SECONDS):
        kill_all(below)
    return rc if rc >= 0 else 128 - rc
