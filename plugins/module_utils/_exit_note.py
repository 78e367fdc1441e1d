# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Staged as `sitecustomize.py` in front of a rank's PYTHONPATH: notes that the program itself was done, and tells where
it hangs when it is asked.

Stock PyTorch with gloo aborts now and then in interpreter teardown after a correct run. The last atexit callback to
run writes the exit status the program had reached, so that such a death is told apart from a failure. It acts in the
rank's own process only, then hands over to the sitecustomize that would have been there without it.

The guard asks before it ends a job that took too long: every thread's stack goes to stderr, also if it waits in C.
"""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import importlib
import os
import signal
import sys

STACKS_SIGNAL = signal.SIGRTMAX - 4  # nobody's, as far as we know: batch systems and NCCL use lower ones


def _install(pid: str, path: str) -> None:
    if pid != str(os.getpid()):
        return
    status = ["0"]
    original = builtins.SystemExit

    class SystemExit(original):  # type: ignore[valid-type, misc]
        """Every way to leave with a status makes one of these; one that is caught counts too."""

        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            status[0] = "0" if self.code in (None, 0) else str(self.code)

    def noting_exit(code: object = None, /) -> None:
        raise SystemExit(code)

    def note() -> None:
        if str(os.getpid()) == pid and getattr(sys, "last_value", None) is None:  # a fork inherits this callback
            with open(path, "w") as file:
                file.write(status[0])

    SystemExit.__module__, SystemExit.__qualname__ = "builtins", "SystemExit"
    builtins.SystemExit = SystemExit  # type: ignore[misc]
    sys.exit = noting_exit  # type: ignore[assignment]
    atexit.register(note)  # registered first, therefore run last


def _hand_over() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != here]
    os.environ.pop("PYTHONPATH", None)
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ImportError:  # none there, as most often
        pass
    sys.modules.setdefault(__name__, ours)


def _watch_groups(pid: str, path: str) -> None:
    if pid == str(os.getpid()):
        watch = importlib.import_module("_torchfleet_group_note").Watch
        watch(os.path.join(os.path.dirname(path), "group"))


def _start() -> None:
    pid, _colon, path = os.environ.pop("TORCHFLEET_EXIT_NOTE", "").partition(":")
    if path:  # this is the first Python of the rank; below a shell script it is not the rank's own process
        faulthandler.register(STACKS_SIGNAL)
        _install(pid, path)
        _watch_groups(pid, path)
    _hand_over()


if __name__ == "sitecustomize":
    _start()
