"""Runs program.py in two forked processes: where QEMU translates a program, that starts no others of its kind."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import traceback
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
RANKS = 2


def run_as(rank: int) -> int:
    """Run it as a rank. Return the exit status."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    os.environ.update(where, WORLD_SIZE=str(RANKS), RANK=str(rank))
    try:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def main() -> int:
    """Start the ranks. Return the highest of their statuses."""
    importlib.import_module("torch")  # once for all, since it takes minutes where each instruction is translated
    started = []
    for rank in range(RANKS):
        process = os.fork()
        if process == 0:
            os._exit(run_as(rank))
        started.append(process)
    return max(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0 for process in started)


if __name__ == "__main__":
    sys.exit(main())
