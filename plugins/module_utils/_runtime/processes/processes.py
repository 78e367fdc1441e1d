# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes of a job on this node: find them, end them, name what was left. Linux, standard library only."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, NamedTuple

if TYPE_CHECKING:  # a rank must not pay for the types
    from ..types.records import Leftover

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
PF_EXITING = 0x4  # linux/sched.h
JOB_VARIABLE = "TORCHFLEET_JOB_ID"
JOB_DIR_VARIABLE = "TORCHFLEET_JOB_DIR"  # whose lock tells whether somebody still looks after the job
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL, unless the user said how long
SAVING_SECONDS = 30.0  # the same for a process with a handler for SIGTERM: torchrun, Kubernetes and Slurm give as much


class Process(NamedTuple):
    """One row of /proc: `started` (clock ticks since boot) tells a process from a later one with the same pid."""

    pid: int
    parent: int
    state: str
    started: int

    @property
    def identity(self) -> tuple[int, int]:
        """Return what stays the same as long as the process lives, also when its parent is gone."""
        return self.pid, self.started


Children = Dict[int, List[Process]]  # by the pid of the parent


def stopped_for(pid: int, since: float | None) -> float | None:
    """Return since when (monotonic seconds) a process is stopped, None if it is not; `since` is the last answer."""
    process = read(pid)
    if process is None or process.state not in "Tt":
        return None
    return since if since is not None else time.monotonic()


class Mark(NamedTuple):
    """What the processes of a job have in their environment."""

    job_id: str
    job_dir: str


def listen_for_children() -> int:
    """Return a descriptor that becomes readable whenever a child ends, or another signal with a handler comes."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def become_subreaper() -> None:
    """Make orphans below this process its children, also after setsid and double forks (prctl(2))."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed when the process that started this one is gone (prctl(2))."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prctl(option: int, value: int) -> None:
    """Call prctl(2). OSError."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def read(pid: int) -> Process | None:
    """Return the process with this pid, or None if there is none."""
    fields = stat_of(pid)
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[19])) if fields else None


def stat_of(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rsplit(b")", 1)[1].split()  # the name before ")" may hold anything
    except (OSError, IndexError):
        return []


def wait_if_exiting(child: int, seconds: float) -> None:
    """Wait until a child that has begun to exit can be collected. Others may have noticed it before.

    The kernel closes its connections first, and a busy machine may interrupt it then.
    """
    deadline = time.monotonic() + seconds
    while (fields := stat_of(child)) and int(fields[6]) & PF_EXITING and time.monotonic() < deadline:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.01)


def boot() -> str:
    """Return what tells this run of the machine, or of its container, from the one before; empty if it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip()
        with open("/proc/1/stat") as file:  # in a container its own first process
            return f"{machine} {file.read().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):  # hidepid of proc(5)
        return ""


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended. Hydra leaves a wrapper that died a zombie while its rank lives."""
    process = read(pid)
    return process is not None and process.state not in "ZX"


def identity(pid: int) -> dict[str, int]:
    """Return pid and start of a process, for a file: with identified() no later process of that pid is taken for it."""
    process = read(pid)
    return {"pid": pid, "started": process.started if process else 0}


def identified(noted: object) -> Process | None:
    """Return the process that identity() noted, None if it is gone or nothing was noted."""
    pid, started = (noted.get("pid"), noted.get("started")) if isinstance(noted, dict) else (None, None)
    process = read(pid) if isinstance(pid, int) else None
    return process if process and process.started == started else None


def by_parent() -> Children:
    """Read /proc once: all processes, zombies too, whose children are still theirs for a moment."""
    children: Children = {}
    for name in os.listdir("/proc"):
        process = read(int(name)) if name.isdigit() else None
        if process:
            children.setdefault(process.parent, []).append(process)
    return children


def living(children: Children | None = None) -> list[Process]:
    """Return every process that is not a zombie; `children`: what by_parent() returned, if that was called already."""
    found = (by_parent() if children is None else children).values()
    return [process for siblings in found for process in siblings if process.state not in "ZX"]


def descendants(root: int, children: Children | None = None) -> list[Process]:
    """Return the living processes below `root`, parents before children; `children` as in living()."""
    children = by_parent() if children is None else children
    found: list[Process] = []
    level = children.get(root, [])
    while level:
        found += level
        level = [process for parent in level for process in children.get(parent.pid, ())]
    return [process for process in found if process.state not in "ZX"]


def mark_of(pid: int) -> Mark | None:
    """Return the mark in the environment of a process, None if it has none or belongs to another user."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            entries = environ.read().split(b"\0")
    except OSError:
        return None
    found = dict(entry.decode(errors="surrogateescape").partition("=")[::2] for entry in entries)
    job_id = found.get(JOB_VARIABLE)
    return Mark(job_id, found.get(JOB_DIR_VARIABLE, "")) if job_id else None


def namespace(pid: int | str) -> str:
    """Return the name of a process's PID namespace, or an empty text."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def marked(children: Children | None = None) -> list[tuple[Process, Mark]]:
    """Return this user's living processes that carry the mark of a job, with it; `children` as in living().

    Root sees into containers: what runs there belongs to a node of its own, whose files are not ours.
    """
    here = namespace("self")
    near = (process for process in living(children) if process.pid != os.getpid() and namespace(process.pid) == here)
    pairs = ((process, mark_of(process.pid)) for process in near)
    return [(process, mark) for process, mark in pairs if mark is not None and is_same(process)]


def is_same(process: Process) -> bool:
    """Whether the process that was seen has its number still: another may have taken it meanwhile."""
    now = read(process.pid)
    return now is not None and now.identity == process.identity


def ancestors(children: Children) -> set[int]:
    """Return the pids above this process."""
    parents = {child.pid: parent for parent, below in children.items() for child in below}
    found: set[int] = set()
    pid = os.getpid()
    while pid in parents and parents[pid] not in found:
        pid = parents[pid]
        found.add(pid)
    return found


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (SigCgt, proc(5))."""
    try:
        with open(f"/proc/{pid}/status") as status:
            masks = [line.split()[1] for line in status if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(masks and int(masks[0], 16) >> (number - 1) & 1)


def words_of(pid: int) -> list[bytes]:
    """Return the command line of a process, at most 4096 bytes of it; nothing if it is gone or has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            return [word for word in cmdline.read(4096).split(b"\0") if word]
    except OSError:
        return []


def command_of(pid: int) -> str:
    """Return the command line of a process for people to read, at most 200 characters."""
    text = " ".join(word.decode(errors="replace") for word in words_of(pid))
    return "".join(letter if letter.isprintable() else " " for letter in text)[:200] or "?"


def send(process: Process, number: int) -> bool:
    """Signal exactly this process, never a later one that got its pid. Return whether it was still there."""
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1  # Python 3.8 has none
    except ProcessLookupError:
        return False
    except OSError:  # kernels before 5.3, sandboxes, no descriptor left: the process may well be there
        handle = -1
    try:
        now = read(process.pid)
        if now is None or now.started != process.started:
            return False
        if handle < 0:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def collect_children() -> None:
    """Reap whatever children of this process have ended, so that no zombies stay."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def terminate(processes: Iterable[Process]) -> None:
    """Ask processes to end; a stopped one is continued so that it can hear it."""
    for process in processes:
        send(process, signal.SIGTERM)
        send(process, signal.SIGCONT)


def grace_of(process: Process, grace: float | None, default: float = GRACE_SECONDS) -> float:
    """Return the seconds between SIGTERM and SIGKILL for a process: `grace` of the user, else by what it does."""
    if grace is not None:
        return grace
    return SAVING_SECONDS if catches(process.pid, signal.SIGTERM) else default


def longest(grace: float | None) -> float:
    """Return the seconds that any process may have between SIGTERM and SIGKILL."""
    return SAVING_SECONDS if grace is None else grace


def wait_gone(find: Callable[[], list[Process]], seconds: float) -> list[Process]:
    """Poll until `find` finds nothing or the time is over; return what it found last. Half of the time is slept."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while True:
        collect_children()
        start = time.monotonic()
        left = find()
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(max(pause, time.monotonic() - start))
        pause = min(pause * 2, 0.05)


def kill_all(find: Callable[[], list[Process]], seconds: float = 5.0) -> list[Process]:
    """Stop, then kill all that `find` finds until it finds nothing; return what could not be killed (D state).

    Stopping first keeps a fork bomb from outrunning the sweep.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = find()
        if not left or time.monotonic() >= deadline:
            return left
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in left:
                send(process, number)
        collect_children()
        time.sleep(0.005)


def end_all(find: Callable[[], list[Process]], grace: float) -> list[Leftover]:
    """End what `find` finds: SIGTERM, `grace` seconds, then SIGKILL. Return one row per process ended.

    Row: pid, command, ended (the signal it took, or null if it survived even SIGKILL).
    """
    seen: dict[tuple[int, int], str] = {}

    def look() -> list[Process]:
        found = find()
        for process in found:
            if process.identity not in seen:
                seen[process.identity] = command_of(process.pid)
        return found

    terminate(look())
    stubborn = {process.pid for process in wait_gone(look, grace)}
    unkillable = {process.pid for process in kill_all(look)} if stubborn else set()

    def how(pid: int) -> str | None:
        return None if pid in unkillable else "SIGKILL" if pid in stubborn else "SIGTERM"

    return [{"pid": pid, "command": words, "ended": how(pid)} for (pid, _started), words in seen.items()]
