# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How our entry on a node of Slurm differs from a pod's: srun starts it, and its input and output are the wire.

What the controller writes comes to all nodes alike: our files, then a byte as a sign of life now and then, then END.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
import time
from typing import Callable, Iterator

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.node_job import NodeJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import ready
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Ending

from .entry import Entry, Lease, Peers
from .place import NoPlace

FORM = "slurm"  # the word on the command line that asks for it
BY_CONTROLLER = "a request of the controller"
BEAT, END = b".", b"!"  # what the controller writes when our files are here
# slurmstepd sends at most 1,024 bytes of a line at once, and srun puts a label and a line end to each piece (measured
# with 22.05; MAX_MSG_LEN of its source). Mark and number take some 40.
PART_CHARACTERS = 900
HOME = "torchfleet-slurm-"  # begins the name of a job's directory on a node
STARTING_SECONDS = 600.0  # in which a directory may have no job yet
NODES_MOST = 100_000  # of a list of nodes
NAME = r"[A-Za-z0-9._-]"
# One element of Slurm's list of nodes: texts, and numbers in brackets.
ELEMENT = re.compile(rf"(?:{NAME}|\[[0-9,-]+\])+\Z")
PART = re.compile(rf"\[([0-9,-]+)\]|({NAME}+)")
COMMA = re.compile(r",(?![^\[]*\])")  # between elements, not between numbers
RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")


class InputLease:
    """The controller's sign of life: anything that comes over the standard input. Its end is the controller's."""

    def __init__(self, seconds: float, on_end: Callable[[], None], descriptor: int = 0) -> None:
        """`on_end` is called when the controller asks for the end of the job."""
        self.seconds, self.on_end, self.descriptor = seconds, on_end, descriptor
        self.heard, self.closed = time.monotonic(), False

    def is_over(self) -> bool:
        """Whether the controller is gone, or was silent for so long."""
        while not self.closed and ready([self.descriptor], 0):
            data = os.read(self.descriptor, 4096)
            self.heard, self.closed = time.monotonic(), not data
            if END in data:
                self.on_end()
        return self.closed or time.monotonic() - self.heard > self.seconds


class SlurmEntry(Entry):
    """Runs the job of one node to its end."""

    unit = "node"
    part_characters = PART_CHARACTERS
    asked = False  # whether the controller asked for the end

    def run(self) -> int:
        """Return the exit status, and leave nothing on the node. NoPlace, OSError, ValueError: nothing was started.

        The other nodes would wait for this one: so the controller is told.
        """
        sweep(self.home)
        try:
            return super().run()
        except (NoPlace, OSError, ValueError) as error:
            reason = reasons.never_started(error)
            self.say({"kind": "ending", "reason": reason.code, "detail": reason.detail})
            raise
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def peers(self, first: str, number: int, count: int) -> Peers:
        """Return the nodes that this one must reach: a node may know itself by an address that others cannot reach."""
        text = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST") or ""
        names = nodes_in(text)
        if len(names) != count:
            raise NoPlace(f"Slurm's list of nodes {text[:200]!r} has {len(names)}, and the plan {count}")
        return Peers(names[0], names[1 if number == 0 and count > 1 else 0])

    def lease_for(self, seconds: float) -> Lease | None:
        return InputLease(seconds, self.on_asked)

    def on_asked(self) -> None:
        """Note that the controller ends the job, unless a signal came before."""
        if not self.signalled:
            self.signalled, self.asked = BY_CONTROLLER, True

    def ending(self, job: NodeJob, message: Ending) -> Ending:
        """Return what the controller is told of why the guard ends the job.

        Slurm sends the signal that ends a job to all its processes: a rank that dies of it did not fail by itself.
        """
        if not self.by_slurm:
            return message
        reason = reasons.signalled(self.signalled, f"{self.unit} {job.order['host']}")
        return {**message, "reason": reason.code, "detail": reason.detail}

    @property
    def by_slurm(self) -> bool:
        """Whether a signal ended this node's part."""
        return bool(self.signalled) and not self.asked

    def machine(self) -> str | None:
        return os.environ.get("SLURMD_NODENAME")

    def leave(self) -> None:
        """Do nothing: srun brings home what was printed."""

    def secrets(self) -> dict[str, str]:
        """Return the secret variables of the ranks, and take their files away. OSError."""
        found = super().secrets()
        shutil.rmtree(self.source + "-secret", ignore_errors=True)
        return found


def sweep(home: str) -> None:
    """Remove what jobs of this user left on the node whose entry was killed. `home`: of this job."""
    for path in glob.glob(os.path.join(os.path.dirname(home), f"{HOME}*")):
        try:
            found = os.lstat(path)
        except OSError:  # its own entry has removed it
            continue
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and path != home
        if not own or time.time() - found.st_mtime <= STARTING_SECONDS:  # into those of others we do not look
            continue
        if not any(JobDir(job).running() for job in glob.glob(os.path.join(path, "jobs", "*"))):
            shutil.rmtree(path, ignore_errors=True)


def nodes_in(text: str) -> list[str]:
    """Return the nodes of a list as Slurm writes it, such as `gpu[001-003,007],login1`, in its order. NoPlace."""
    found: list[str] = []
    for element in filter(None, COMMA.split(text)):
        if not ELEMENT.match(element):
            raise NoPlace(f"Slurm's list of nodes cannot be read: {text[:200]!r}")
        found += names_of(element, NODES_MOST - len(found))
    return found


def names_of(element: str, most: int) -> list[str]:
    """Return the nodes of one element. NoPlace for more than `most`."""
    names = [""]
    for numbers, plain in PART.findall(element):
        names = [name + end for name in names for end in (numbers_in(numbers, most) if numbers else [plain])]
        if len(names) > most:
            raise NoPlace(f"Slurm's list of nodes has more than {NODES_MOST:,}")
    return names


def numbers_in(text: str, most: int) -> Iterator[str]:
    """Yield the numbers of ranges, with the zeros before them. NoPlace."""
    count = 0
    for part in text.split(","):
        found = RANGE.match(part)
        if not found:
            raise NoPlace(f"Slurm's list of nodes has no numbers: [{text[:100]}]")
        first, last = found.group(1), found.group(2) or found.group(1)
        count += int(last) - int(first) + 1
        if count > most:
            raise NoPlace(f"Slurm's list of nodes has more than {NODES_MOST:,}")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
