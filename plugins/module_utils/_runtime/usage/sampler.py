# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The sampler of a node: what a job's ranks take of it, read once a second while they run.

It is a process of its own below the guard: the driver of a GPU may hang, or crash whoever asks it, and neither may keep
the guard from ending the job. It ends with the guard, and is no process of the job. What it read is in USAGE_FILE of
the job directory at its end, and every WRITE_SECONDS.

Its cost is bounded by its pace: after a sample it rests for at least so long that it takes SHARE of a core. A list of
all processes costs more than a sample, so that is made anew more rarely.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Collection

from ..basics.job_directory import JobDir
from ..processes import noted_processes, processes
from ..processes.job_processes import found_below
from ..processes.processes import Process
from ..types.forms import BadFrame
from ..types.orders import Order
from ..types.usage import USAGE, NodeUsage
from . import usage_node
from .usage_gpus import gpus_here, numbered
from .usage_series import Folded, Rates

USAGE_FILE = "node_usage.json"  # in the job directory
DELAY_SECONDS = 0.5  # from the start of the ranks: a job that is over by then is not worth a process
PACE_SECONDS = 1.0  # between two samples
SHARE = 0.004  # of a core that samples may take, and lists of processes once more
LIST_SECONDS = 5.0  # between two lists of the processes of the ranks
WRITE_SECONDS = 30.0
END_SECONDS = 1.0  # for the last sample: the guard waits no longer
POLL_SECONDS = 0.002


class Sampling:
    """The sampler as its guard sees it."""

    def __init__(self, job: JobDir, order: Order) -> None:
        self.job, self.order = job, order
        self.process: Process | None = None
        self.due: float | None = None  # when it is to start, by the monotonic clock
        self.started = False

    def look(self, placed: bool) -> Collection[int]:
        """Start the sampler some time after the ranks are in their places. Return its pid, if it has one."""
        now = time.monotonic()
        if placed and self.due is None:
            self.due = now + DELAY_SECONDS
        if self.due is not None and now >= self.due and not self.started:
            self.started = True
            if self.order["sample"]:
                self.start()
        return [self.process.pid] if self.process else []

    def start(self) -> None:
        """Fork it. A signal that comes before it listens waits for it, because it is blocked."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
        except OSError:  # the job has all processes that its user or container may have
            pid = -1
        if pid == 0:
            be_sampler(self.job, self.order)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self.process = processes.read(pid) if pid > 0 else None

    def stop(self) -> None:
        """Ask it for its last sample."""
        if self.process:
            processes.send(self.process, signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it is gone, and kill it if it hangs."""
        if not self.process:
            return
        deadline = time.monotonic() + END_SECONDS
        while processes.identified({"pid": self.process.pid, "started": self.process.started}) is not None:
            processes.collect_children()
            if time.monotonic() > deadline:
                processes.send(self.process, signal.SIGKILL)
                return
            time.sleep(POLL_SECONDS)


def be_sampler(job: JobDir, order: Order) -> None:
    """In the child: sample until SIGTERM. Never returns."""
    try:
        processes.die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))  # pipes of the guard, the lock of the job
        Sampler(job, order).run()
    finally:
        os._exit(0)


class Sampler:
    """Reads, and folds what it read."""

    def __init__(self, job: JobDir, order: Order, root: str = "/") -> None:
        self.job, self.order, self.root = job, order, root
        self.devices = usage_node.devices(order["nic"], root)
        self.gpus = gpus_here(root)
        self.rates, self.folded = Rates(), Folded()
        self.guard = os.getppid()
        self.began, self.start = time.time(), time.monotonic()
        self.trees: dict[int, list[Process]] = {}  # by rank: its program, and what that started
        self.list_at = 0.0
        self.noted: Collection[tuple[int, int]] = ()  # identities of the processes that were noted last
        self.ticks = 0  # of CPU that all of them had
        self.cpu: dict[tuple[int, int], tuple[int, int]] = {}  # of each at the last sample, with its parent's pid
        self.waits: dict[int, tuple[float, int, float, int]] = {}  # by rank: time and nanoseconds, first and last

    def run(self) -> None:
        """Sample until SIGTERM comes."""
        write_at = time.monotonic() + WRITE_SECONDS
        ended = False
        while True:
            before = time.thread_time()
            self.sample(time.monotonic())
            if ended or time.monotonic() >= write_at:
                with contextlib.suppress(OSError):  # a full disk ends the job by the rank that hits it
                    self.job.write(USAGE_FILE, self.usage())
                write_at = time.monotonic() + WRITE_SECONDS
            if ended:
                return
            rest = (time.thread_time() - before) / SHARE
            pause = max(rest, PACE_SECONDS - (time.monotonic() - self.start) % PACE_SECONDS)
            ended = signal.sigtimedwait({signal.SIGTERM}, pause) is not None

    def sample(self, now: float) -> None:
        """Take one sample. `now`: by the monotonic clock."""
        if now >= self.list_at:
            before = time.thread_time()
            self.trees = rank_trees(self.job, self.order, self.guard)
            self.note_processes()
            self.list_at = now + max(LIST_SECONDS, (time.thread_time() - before) / SHARE)
        memory, ticks = self.take()
        if self.folded.samples and not self.cpu:  # all are gone: their last second is not one of doing nothing
            return
        counters = usage_node.counters(self.devices, self.root)
        counters["cpu"] = ticks, 1 / usage_node.TICKS
        values = {
            **self.rates.add(counters, now),
            **usage_node.gauges(self.devices, self.root),
            **numbered([vendor.values() for vendor in self.gpus]),
            "memory": float(memory),
        }
        if "cpu" in values:  # of a child that its parent waited for all of it comes at once
            values["cpu"] = min(values["cpu"], float(self.devices.cores))
        self.folded.add(now - self.start, values)
        self.note_waits(now)

    def note_processes(self) -> None:
        """Note the processes of the ranks if there are others than before."""
        found = {process.identity: process for tree in self.trees.values() for process in tree}
        if found.keys() != self.noted:
            with contextlib.suppress(OSError):  # a full disk ends the job by the rank that hits it
                noted_processes.note(self.job, found.values())
                self.noted = found.keys()

    def take(self) -> tuple[int, int]:
        """Return the bytes that the ranks' processes hold, and the ticks of CPU that they had since the start.

        A process that its parent waited for is in the parent's ticks from then on. What one had before it was seen
        first does not count: it was not in this second.
        """
        memory = 0
        seen: dict[tuple[int, int], tuple[int, int]] = {}
        for process in (process for tree in self.trees.values() for process in tree):
            found = usage_node.taken(process.pid, self.root)
            if found and found.started == process.started:
                memory += found.memory
                seen[process.identity] = found.cpu, process.parent
        living = {pid for pid, _started in seen}
        moved = sum(
            ticks for identity, (ticks, parent) in self.cpu.items() if identity not in seen and parent in living
        )
        grown = sum(
            ticks - self.cpu[identity][0] for identity, (ticks, _parent) in seen.items() if identity in self.cpu
        )
        self.ticks += max(0, grown - moved)
        self.cpu = seen
        return memory, self.ticks

    def note_waits(self, now: float) -> None:
        """Note for how long the main thread of each rank has waited for a CPU."""
        for rank, tree in self.trees.items():
            waited = usage_node.waited(tree[0].pid, self.root) if tree else -1
            if waited >= 0:
                first = self.waits.get(rank, (now, waited, now, waited))
                if waited >= first[3]:  # else its pid is another process's
                    self.waits[rank] = (*first[:2], now, waited)

    def usage(self) -> NodeUsage:
        """Return what was read until now."""
        limits = {**self.devices.limits, "cpu": float(ranks_cpus(self.job, self.order) or self.devices.cores)}
        limits.update(numbered([vendor.limits() for vendor in self.gpus]))
        waited = {
            str(rank): min(1.0, (last - first) / 1e9 / (until - since))
            for rank, (since, first, until, last) in self.waits.items()
            if until > since
        }
        return {
            "began": self.began,
            "bucket": self.folded.seconds,
            "samples": self.folded.samples,
            "cost": round(time.process_time(), 3),
            "cores": self.devices.cores,
            "nic": self.order["nic"],
            "limits": limits,
            "waited": {rank: round(share, 4) for rank, share in waited.items()},
            "series": self.folded.series(),
        }


def ranks_cpus(job: JobDir, order: Order) -> int:
    """Return on how many CPUs any of this node's ranks may run; 0 if no record says so."""
    records = [record for rank in order["ranks"] for record in [job.record(rank)] if record]
    return len({cpu for record in records for cpu in record["cpus"] if isinstance(cpu, int)})


def rank_trees(job: JobDir, order: Order, guard: int) -> dict[int, list[Process]]:
    """Return the processes of each rank on this node: its program first, without the wrapper.

    `guard`: its pid. A program may write any pid as that of its wrapper: one that is none of this job has nothing here.
    """
    children = processes.by_parent()
    records = [record for rank in order["ranks"] for record in [job.record(rank)] if record]
    of_job = found_below(job, order, guard, children)
    found: dict[int, list[Process]] = {}
    for record in records:
        wrapper = record["wrapper_pid"]
        below = processes.descendants(wrapper, children) if wrapper in of_job else []
        found[record["rank"]] = sorted(below, key=lambda process: process.pid != record.get("pid"))
    return found


def noted_usage(job: JobDir) -> NodeUsage | None:
    """Return what a sampler noted; None if there was none, or a program of the job changed it beyond use."""
    found = job.read(USAGE_FILE)
    try:
        return None if found is None else USAGE(found)
    except (BadFrame, ValueError, OverflowError):
        return None
