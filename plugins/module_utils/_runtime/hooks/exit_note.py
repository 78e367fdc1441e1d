# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Staged as `sitecustomize.py` in front of a rank's PYTHONPATH: notes that the program itself was done, and tells where
it hangs when it is asked.

Stock PyTorch with gloo aborts now and then in interpreter teardown after a correct run. The last atexit callback to
run writes the exit status the program had reached, so that such a death is told apart from a failure. A program sees
nothing of that: SystemExit is what it is in plain Python, also in threads and in C. It acts in the rank's own process
only, then hands over to the sitecustomize that would have been there without it.

The guard asks before it ends a job that took too long: every thread's stack goes to stderr, also if it waits in C. A
look at a running job asks as well (look_note): then they go to a file.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import faulthandler
import importlib
import os
import signal
import sys
from typing import Callable

STACKS_SIGNAL = signal.SIGRTMAX - 4  # nobody's, as far as we know: batch systems and NCCL use lower ones


def _install(pid: str, path: str) -> None:
    """Note in `path` the status that the program leaves with; nothing if the program would see that."""
    if pid != str(os.getpid()):
        return
    status = ["0"]
    original, plain_exit, main = builtins.SystemExit, sys.exit, _thread.get_ident()

    class SystemExit(original):  # type: ignore[valid-type, misc]
        """Every way to leave with a status makes one of these; one that is caught counts too."""

        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            if _thread.get_ident() == main:  # in another thread it ends that thread
                status[0] = "0" if self.code in (None, 0) else str(self.code)

    def exit(*status: object) -> None:
        try:
            plain_exit(*status)  # type: ignore[arg-type]
        except SystemExit:  # only this makes an exception of a status
            raise

    def note() -> None:
        if str(os.getpid()) == pid and getattr(sys, "last_value", None) is None:  # a fork inherits this callback
            with open(path, "w") as file:
                file.write(status[0])

    for made, name, module in ((SystemExit, "SystemExit", "builtins"), (exit, "exit", "sys")):
        made.__module__, made.__qualname__ = module, name
    if _take_place(original, SystemExit):
        builtins.SystemExit = SystemExit  # type: ignore[misc]
        if sys.version_info < (3, 12):  # a traceback has one line more then
            sys.exit = exit  # type: ignore[assignment]
        atexit.register(note)  # registered first, therefore run last


def _take_place(original: type, ours: type) -> bool:
    """Make a class what the interpreter itself raises, and ignores in threads, as SystemExit. Return whether it is.

    Else `except SystemExit` would not catch what `_thread.exit()` raises, and sys.exit() in a thread would print a
    traceback. PyExc_SystemExit is a variable of Python's C API. It keeps the class for ever: threads may outlive it.
    """
    try:
        import ctypes

        variable = ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyExc_SystemExit")
        if variable.value != id(original):
            return False
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(ours))
    except (ImportError, AttributeError, ValueError):  # an interpreter without
        return False
    variable.value = id(ours)
    try:
        _thread.exit()
    except BaseException as error:
        if type(error) is ours:
            return True
    variable.value = id(original)
    return False


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


def _watch(pid: str, directory: str) -> None:
    look = importlib.import_module("_torchfleet_look_note")
    look.listen_for_looks(directory)
    if pid == str(os.getpid()):
        watch = importlib.import_module("_torchfleet_group_note").Watch
        note = importlib.import_module("_torchfleet_arrivals_note")
        note.ask_for_record()
        arrivals = note.Arrivals(directory)
        profile = _profile(directory)

        def at_first() -> None:
            look.start_recorder(directory, arrivals)
            profile()

        watch(os.path.join(directory, "group"), at_first, arrivals)


def _profile(directory: str) -> Callable[[], None]:
    """Return what starts the profile of this rank, which does nothing if none is asked for."""
    value, main = os.environ.get("TORCHFLEET_PROFILE", ""), _thread.get_ident()
    note = importlib.import_module("_torchfleet_profile_note") if value else None
    seconds = note.asked(value, os.environ.get("RANK", "")) if note else 0.0
    return (lambda: note.start(directory, seconds, main)) if note and seconds > 0 else (lambda: None)


def _start() -> None:
    pid, _colon, path = os.environ.pop("TORCHFLEET_EXIT_NOTE", "").partition(":")
    if path:  # this is the first Python of the rank; below a shell script it is not the rank's own process
        faulthandler.register(STACKS_SIGNAL)
        _install(pid, path)
        _watch(pid, os.path.dirname(path))
    _hand_over()


if __name__ == "sitecustomize":
    _start()
