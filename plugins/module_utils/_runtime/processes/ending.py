# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ends the programs of ranks so that each can save its work. All that is below a rank's wrapper is its program.

A shell script or a container's runtime dies of SIGTERM at once, and what it had started has something to save; a
program with workers needs them while it saves. So the process that the wrapper started is asked first, the rest when
it is gone.
"""

from __future__ import annotations

import signal
import time
from typing import Callable, Dict, Mapping, NamedTuple

from ..hooks.exit_note import STACKS_SIGNAL
from . import processes
from .processes import Children, Process

UNUSED_SIGNAL = STACKS_SIGNAL - 1  # that programs have no handler for, unless they have one for all
STACKS_SECONDS = 0.2  # for programs to tell where they are
REST_SECONDS = 1.0  # between SIGTERM and SIGKILL for what a program left and has no handler for SIGTERM
PAUSE_SECONDS = 0.05  # between two looks at most, if a look takes no longer


class Tree(NamedTuple):
    """What runs below a rank's wrapper."""

    program: list[Process]  # what the wrapper started; nothing when it is gone
    rest: list[Process]  # parents before children

    @property
    def all(self) -> list[Process]:
        return self.program + self.rest


Trees = Dict[int, Tree]  # by the pid of the wrapper


def trees_below(wrappers: Mapping[int, int | None], children: Children) -> Trees:
    """Return what is below each wrapper. `wrappers`: its pid, and that of its program or None if that is not known.

    The other children of a wrapper are orphans: it is a subreaper.
    """
    trees: Trees = {}
    for wrapper, program in wrappers.items():
        tree = trees[wrapper] = Tree([], [])
        for process in processes.descendants(wrapper, children):
            uppermost = process.parent == wrapper and program in (None, process.pid)
            (tree.program if uppermost else tree.rest).append(process)
    return trees


class Ending:
    """Ends trees: SIGTERM to the program, to the rest when that is gone, SIGKILL to each process whose time is over."""

    def __init__(self, look: Callable[[], Trees], grace: float | None) -> None:
        """`look` returns the trees as they are now; `grace`: seconds between SIGTERM and SIGKILL, None: by process."""
        self.look, self.grace = look, grace
        self.began: dict[tuple[int, bool], float] = {}  # when a program, or its rest, was asked
        self.deadlines: dict[tuple[int, int], float] = {}  # of each process that was asked, by its identity

    def ask_for_stacks(self) -> None:
        """Have every rank tell where it hangs."""
        signal_programs(self.look(), STACKS_SIGNAL)
        time.sleep(STACKS_SECONDS)

    def run(self) -> None:
        """Return when nothing is left, or only what has outlived SIGKILL for some seconds."""
        last = time.monotonic() + 2 * (processes.longest(self.grace) + REST_SECONDS)
        pause = 0.002
        while time.monotonic() < last:
            start = time.monotonic()
            processes.collect_children()
            trees = self.look()
            if not any(tree.all for tree in trees.values()):
                return
            for wrapper, tree in trees.items():
                self.step(wrapper, tree)
            time.sleep(max(pause, time.monotonic() - start))
            pause = min(pause * 2, PAUSE_SECONDS)
        processes.kill_all(lambda: [process for tree in self.look().values() for process in tree.all])

    def step(self, wrapper: int, tree: Tree) -> None:
        """Do what is due: the program is asked, then killed; so is the rest once there is no program any more."""
        is_rest = not tree.program
        began = self.began.setdefault((wrapper, is_rest), time.monotonic())
        for process in tree.program or tree.rest:
            deadline = self.deadlines.get(process.identity)
            if deadline is None:
                default = REST_SECONDS if is_rest else processes.GRACE_SECONDS
                self.deadlines[process.identity] = began + processes.grace_of(process, self.grace, default)
                processes.terminate([process])
            elif time.monotonic() > deadline:
                processes.send(process, signal.SIGSTOP)  # so that it starts nothing new
                processes.send(process, signal.SIGKILL)


def signal_programs(trees: Trees, number: int) -> set[int]:
    """Signal every rank: the first process below its wrapper that has a handler for the signal, not also its workers.

    The signal would kill what has no handler for it, such as a shell. Return the wrappers of the ranks that got it.
    """
    quiet: set[int] = set()
    reached: set[int] = set()
    for wrapper, tree in trees.items():
        for process in tree.all:
            if process.parent in quiet:
                quiet.add(process.pid)
            elif is_turned(process, wrapper) and handles(process.pid, number):
                quiet.add(process.pid)
                reached.add(wrapper)
                processes.send(process, number)
    return reached


def is_turned(process: Process, wrapper: int) -> bool:
    """Whether a child of a wrapper has turned into the program: until then it is a copy, with the wrapper's handlers.

    A signal that is sent to a copy is lost, or kills the program. The kernel shows the new command line only when the
    handlers of the old program are gone (execve(2)), so it is to be read before them.
    """
    if process.parent != wrapper:
        return True
    words = processes.words_of(process.pid)
    return bool(words) and words != processes.words_of(wrapper)


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, and not just one for every signal.

    Podman and apptainer have: they hand on all of them to the program that they started, which may die of this one.
    """
    return processes.catches(pid, number) and not processes.catches(pid, UNUSED_SIGNAL)
