# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Staged with the exit note: notes the sizes of the process groups that a rank's program used.

Frameworks that find no GPU may train in each rank alone, and every rank leaves with status 0. Some form a group and do
nothing in it (accelerate 1.15): gloo counts collectives and messages, other backends are taken to be used. Groups are
looked at when they are destroyed, the others at the end. Then the program adds END, unless its ranks may have met where
this process does not see it: by MPI, by another library, in programs that it started. Where there is no END (no torch,
a signal, os._exit) nothing is known.

No function of torch is wrapped and no frame of ours is in a traceback: one dict of torch's is replaced.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Callable, Protocol

C10D = "torch.distributed.distributed_c10d"
RPC = "torch.distributed.rpc.api"
END = "end"
# What else makes processes meet; and children that come up as new programs, whose groups are not seen here.
OTHERS = (
    "horovod",
    "ray",
    "jax",
    "tensorflow",
    "multiprocessing.popen_spawn_posix",
    "multiprocessing.popen_forkserver",
)
CHILD_SECONDS = 0.5  # of CPU: less than the import of torch takes


class Arrivals(Protocol):
    """What the watch needs of arrivals_note."""

    def filed(self, group: Any, size: int) -> None: ...
    def left(self) -> None: ...
    def note(self) -> None: ...


class Watch:
    """Looks on as modules are imported until torch.distributed is there, then at its table of groups."""

    def __init__(
        self, path: str, at_first: Callable[[], None] = lambda: None, arrivals: Arrivals | None = None
    ) -> None:
        """`at_first` is called when this process makes its first group; `arrivals` is told of each, and of the end."""
        self.path, self.at_first, self.arrivals = path, at_first, arrivals
        self.pid = os.getpid()
        self.largest = 0
        self.forks = 0
        self.table: Any = None
        sys.meta_path.insert(0, self)
        os.register_at_fork(after_in_parent=self.count_fork)
        atexit.register(self.at_end)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Find no module. Whatever of torch is imported after its table of groups was made lets us take its place."""
        if self.table is None and name.startswith("torch."):
            self.take_table()

    def take_table(self) -> None:
        module: Any = sys.modules.get(C10D)
        there = getattr(module, "_pg_group_ranks", None)
        if type(there) is dict:
            self.table = table_for(self)
            self.table.update(there)
            module._pg_group_ranks = self.table

    def count_fork(self) -> None:
        self.forks += 1

    def filed(self, group: Any, ranks: Any) -> None:
        """Note a new group of a forked child at once: such children leave without at_end()."""
        if os.getpid() != self.pid:
            self.note(len(ranks))
            return
        if self.arrivals:
            self.arrivals.filed(group, len(ranks))
        at_first, self.at_first = self.at_first, lambda: None
        at_first()

    def left(self, group: Any, ranks: Any) -> None:
        """Note a group that will not be used any more."""
        if self.arrivals and os.getpid() == self.pid:
            self.arrivals.left()
        if was_used(group):
            self.note(len(ranks))

    def note(self, size: int) -> None:
        """Note the size of a group, if no larger one was seen."""
        if size > self.largest:
            self.largest = size
            self.write(str(size))

    def write(self, word: str) -> None:
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            return
        try:
            os.write(descriptor, word.encode() + b"\n")
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def at_end(self) -> None:
        if os.getpid() != self.pid:  # a fork inherits this callback
            return
        if self.arrivals:
            self.arrivals.note()
        if self.table is None:
            self.take_table()
        for group, ranks in list((self.table or {}).items()):
            self.left(group, ranks)
        self.note(len(getattr(sys.modules.get(RPC), "_ALL_WORKER_NAMES", ())))
        if self.table is not None and not self.may_have_met():
            self.write(END)

    def may_have_met(self) -> bool:
        """Whether ranks may have communicated outside the groups that the table lists.

        A forked child has this watch too, so children that worked count only where nothing was forked.
        """
        times = os.times()
        started = self.forks == 0 and times.children_user + times.children_system > CHILD_SECONDS
        return started or any(name in sys.modules for name in OTHERS) or mpi_is_loaded()


def was_used(group: Any) -> bool:
    """Whether something was done in a group, or may have been."""
    try:
        return bool(group._get_backend_name() != "gloo" or group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError, TypeError):
        return True


def table_for(watch: Watch) -> Any:
    """Return a dict that tells the watch of the groups that are put into it and taken out."""

    class Table(dict):  # type: ignore[type-arg]
        def __setitem__(self, group: object, ranks: Any) -> None:
            super().__setitem__(group, ranks)
            watch.filed(group, ranks)

        def __delitem__(self, group: object) -> None:
            self.pop(group)

        def pop(self, group: object, *default: Any) -> Any:
            if group in self:
                watch.left(group, self[group])
            return super().pop(group, *default)

        def clear(self) -> None:
            for group, ranks in self.items():
                watch.left(group, ranks)
            super().clear()

    return Table()


def mpi_is_loaded() -> bool:
    """Whether this process has the library of an MPI."""
    try:
        with open("/proc/self/maps", errors="replace") as maps:
            return "/libmpi" in maps.read()
    except OSError:
        return True
