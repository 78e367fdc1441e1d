# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The queue of a cluster: jobs that wait for their nodes, first come, first served.

`<home>/queue/` on the head has a ticket for each of them, `<number>-<job id>.json`. The process that waits holds the
lock of its ticket. When that process is gone, for whatever reason, the kernel releases the lock: nobody waits for a
dead one. `lock` is held for a moment by who enters, and shared by who looks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from typing import Iterator, Mapping, Sequence, cast

from ..basics.file_locks import PAUSE_SECONDS, wait_for_lock
from ..basics.job_directory import JOB_ID, Form, JobDir, fits, jobs, json_in, open_file
from ..basics.job_directory import NUMBER as SECONDS
from ..nodes.survey import row
from ..transfer.fetched_files import state_in
from ..types.job_rows import Ahead, QueuedJob
from ..types.orders import Order
from ..types.records import AnyFacts

DIRECTORY, LOCK, LIMITS = "queue", "lock", "limits.json"
NOBODY = "?"  # the owner of a job of a version that noted none
TICKET = re.compile(r"(?P<number>[0-9]{9})-(?P<job_id>[A-Za-z0-9][A-Za-z0-9._-]{0,99})\.json\Z")
LOCK_SECONDS = 10.0  # for those who look or enter to be done
LOOK_SECONDS = 0.5  # between two looks at the queue of a job that is soon to run
MOST_SECONDS = 10.0  # and of one that has many ahead: each look reads all tickets
ENTRY_BYTES = 16 << 20  # of a ticket: the names of 100,000 nodes
FORM: Form = {
    **dict.fromkeys(("job_id", "controller", "owner", "launcher", "backend", "private_tmp"), str),
    **{"hosts": list, "ranks": int, "detached": bool, "since": SECONDS},
}
LIMIT_NAMES = ("waiting", "running")  # jobs of one user
USERS = "users"  # in limits.json: the limits of some users by name, in place of those for everybody
LIMITS_FORM = '{"waiting": 4, "running": 2, "users": {"alice": {"running": 8}}}'


class Entry(QueuedJob):
    """A job in the queue. `number`: its place in the order. `since`: when it came, in seconds since the epoch."""

    number: int
    since: float


class Ticket:
    """A place in the queue, held by this process."""

    def __init__(self, path: str, descriptor: int, entry: Entry) -> None:
        self.path, self.descriptor, self.entry = path, descriptor, entry
        self.began = time.monotonic()
        self.next_look = 0.0  # at the queue, by the same clock

    @property
    def valid(self) -> bool:
        """Whether the ticket is still there: who takes it away takes the job out of the queue."""
        try:
            there, own = os.lstat(self.path), os.fstat(self.descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)

    def write(self) -> None:
        """Write the ticket in place: another file would not have its lock. Call it with the queue's. OSError."""
        text = json.dumps(self.entry).encode() + b"\n"
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text, 0)

    def leave(self) -> None:
        """Leave the queue."""
        if self.valid:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        os.close(self.descriptor)


class Queue:
    """The queue below a torchfleet home."""

    def __init__(self, home: str) -> None:
        self.home, self.path = home, os.path.join(home, DIRECTORY)

    @contextlib.contextmanager
    def held(self, alone: bool) -> Iterator[None]:
        """Hold the lock of the queue, for a moment. OSError after LOCK_SECONDS: somebody was stopped who has it."""
        path = os.path.join(self.path, LOCK)
        descriptor = wait_for_lock(path, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, LOCK_SECONDS)
        if descriptor is None:
            raise OSError(f"the queue is in use for more than {LOCK_SECONDS:.0f} s: see {path}")
        try:
            yield
        finally:
            os.close(descriptor)

    def enter(self, job: QueuedJob) -> Ticket:
        """Take the last place. ValueError if the job waits or ran already, or for the limits of its owner. OSError."""
        os.makedirs(self.path, 0o700, exist_ok=True)
        with self.held(alone=True):
            names = self.names()
            waiting = self.read(names)
            known = os.path.lexists(os.path.join(self.home, "jobs", job["job_id"]))
            if known or any(entry["job_id"] == job["job_id"] for entry in waiting):
                raise ValueError("a job of this name waits or ran already: choose another -e job_id")
            self.check_limits(user_of(job["owner"]), waiting)
            number = 1 + max((int(name[:9]) for name in names), default=0)
            entry = cast(Entry, {**job, "number": number, "since": time.time()})
            path = os.path.join(self.path, f"{number:09d}-{job['job_id']}.json")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            ticket = Ticket(path, descriptor, entry)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ticket.write()
            except OSError:
                ticket.leave()
                raise
        return ticket

    def move(self, ticket: Ticket, hosts: Sequence[str]) -> None:
        """Write the nodes that the job is planned for now: they may change while it is in the queue. OSError."""
        if list(hosts) != ticket.entry["hosts"]:
            with self.held(alone=True):  # who reads half a ticket takes its job for none, and overtakes it
                ticket.entry["hosts"] = list(hosts)
                ticket.write()

    def check_limits(self, user: str, waiting: Sequence[Entry]) -> None:
        """ValueError if a user has as many jobs as limits.json allows. OSError, ValueError if it cannot be read.

        The jobs of all controllers on which the user has this name count.
        """
        path = os.path.join(self.path, LIMITS)
        if not os.path.lexists(path):
            return
        limits = limits_of(user, JobDir(self.path).read(LIMITS))
        if limits is None:
            raise ValueError(f"{path} is not as {LIMITS_FORM}: repair or remove it")
        orders = [job.order() for job in jobs(self.home) if job.running() and not state_in(job.read("result.json"))]
        counts = {
            "waiting": sum(user_of(entry["owner"]) == user for entry in waiting),
            "running": sum(order is not None and user_of(owner_of(order)) == user for order in orders),
        }
        for name, most in limits.items():
            if counts[name] >= most:
                has = f"{counts[name]} jobs of user {user} are {name}"
                raise ValueError(f"{has}, and {path} allows {most}: wait, or end one")

    def entries(self) -> list[Entry]:
        """Return the jobs that wait, first come first. OSError."""
        if not os.path.isdir(self.path):
            return []
        with self.held(alone=False):
            return self.read(self.names())

    def names(self) -> list[str]:
        """Return the names of all tickets in their order, those of the dead among them."""
        return sorted(name for name in os.listdir(self.path) if TICKET.match(name))

    def read(self, names: Sequence[str]) -> list[Entry]:
        """Return the tickets that are somebody's; call it with the lock. What is no ticket of ours is left out."""
        found = [entry_in(os.path.join(self.path, name)) for name in names if self.is_live(name)]
        return [entry for entry in found if entry]

    def is_live(self, name: str) -> bool:
        """Whether the process that holds a ticket is there."""
        try:
            descriptor = open_file(os.path.join(self.path, name))
        except OSError:
            return False
        try:
            return not is_free(descriptor)
        finally:
            os.close(descriptor)

    def has_dead(self) -> bool:
        """Whether there are tickets whose holders are gone. OSError."""
        if not os.path.isdir(self.path):
            return False
        with self.held(alone=False):
            return bool(self.dead())

    def dead(self) -> list[str]:
        """Return the paths of tickets whose holders are gone; call it with the lock."""
        return [os.path.join(self.path, name) for name in self.names() if not self.is_live(name)]

    def find(self, job_id: str) -> Entry | None:
        """Return a job that waits, None if there is none of this name. OSError."""
        return next((entry for entry in self.entries() if entry["job_id"] == job_id), None)

    def take_out(self, job_id: str) -> bool:
        """Take a job out of the queue; return whether it was there. Its process notices, and is waited for. OSError."""
        entry = self.find(job_id)
        if entry is None:
            return False
        path = os.path.join(self.path, f"{entry['number']:09d}-{job_id}.json")
        try:
            descriptor = open_file(path)
            os.unlink(path)
        except FileNotFoundError:
            return False
        deadline = time.monotonic() + LOCK_SECONDS
        try:
            while not is_free(descriptor) and time.monotonic() < deadline:
                time.sleep(PAUSE_SECONDS)
        finally:
            os.close(descriptor)
        return True

    def ahead_of(self, ticket: Ticket, last: Sequence[Ahead]) -> Sequence[Ahead]:
        """Return what the job of a ticket waits for; if it is not told just now, what it was `last`. OSError.

        Who has more than a few jobs ahead looks less often: a hundred that wait would keep a core busy.
        """
        if last and time.monotonic() < ticket.next_look:
            return last
        try:
            found = self.ahead(ticket.entry["hosts"], ticket.entry["number"])
        except OSError:
            if not last:
                raise
            return last
        ticket.next_look = time.monotonic() + min(MOST_SECONDS, LOOK_SECONDS * (len(found) // 4))
        return found

    def ahead(self, hosts: Sequence[str], number: int | None = None) -> list[Ahead]:
        """Return what a job on these nodes waits for, the first to be over first: none if it may run.

        Running jobs of this head, then jobs that came before; of both, those with some of these nodes. `number`: of
        the job's own ticket, None if it has none. OSError.
        """
        wanted = set(hosts)
        waiting = self.entries()  # first: a job that starts meanwhile is seen as one or the other
        found = sorted(running_on(self.home, wanted), key=lambda job: -job["seconds"])
        started = {job["job_id"] for job in found}
        for entry in waiting:
            before = (number is None or entry["number"] < number) and entry["job_id"] not in started
            if before and wanted.intersection(entry["hosts"]):
                seconds = max(0.0, time.time() - entry["since"])
                known, owner = row(entry["job_id"], self.path), entry["owner"]
                found.append({**known, "owner": owner, "state": "waiting", "seconds": seconds})
        return found


def owner_of(order: Order) -> str:
    """Return who started a job, as people know them. An order of an older version, or of another hand, has no text."""
    found = cast(Mapping[str, object], order).get("owner")
    return found if isinstance(found, str) else NOBODY


def user_of(owner: str) -> str:
    """Return the name of the user of user@controller. A name of a directory service may have an @ itself."""
    return owner.rpartition("@")[0] or owner


def limits_of(user: str, found: object) -> dict[str, int] | None:
    """Return the limits of a user in what limits.json has: the user's own, and else those for everybody.

    None if it is not as it must be, for whichever user.
    """
    if not isinstance(found, dict) or not isinstance(found.get(USERS, {}), dict):
        return None
    users = found.get(USERS, {})
    everybody = {name: most for name, most in found.items() if name != USERS}
    if not all(map(are_limits, (everybody, *users.values()))):
        return None
    return {**everybody, **users.get(user, {})}


def are_limits(found: object) -> bool:
    """Whether an object has limits, each a whole number of jobs."""
    return isinstance(found, dict) and all(
        name in LIMIT_NAMES and type(most) is int and most >= 0 for name, most in found.items()
    )


def is_free(descriptor: int) -> bool:
    """Whether nobody holds the lock of a file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def entry_in(path: str) -> Entry | None:
    """Return what is in a ticket. None if it is not there, or not ours: any program of the user may write there."""
    named = TICKET.match(os.path.basename(path))
    found = json_in(path, ENTRY_BYTES)
    found = {"owner": NOBODY, **found} if isinstance(found, dict) else found
    if not named or not fits(found, FORM):
        return None
    entry = cast(Entry, {**found, "number": int(named["number"])})
    whole = entry["job_id"] == named["job_id"] and entry["ranks"] >= 1
    return entry if whole and all(isinstance(host, str) for host in entry["hosts"]) else None


def running_on(home: str, hosts: set[str]) -> list[Ahead]:
    """Return the jobs of this head that have ranks on some of these nodes, or are being staged: where is not known.

    One that has a result is over, though its files may still be fetched.
    """
    found: list[Ahead] = []
    for job in jobs(home):
        if not JOB_ID.match(job.job_id) or not job.running() or state_in(job.read("result.json")):
            continue
        order, staging = job.order(), job.staging()
        if order is None or hosts.intersection(place["host"] for place in order["placement"]):
            seconds = max(0.0, time.time() - staging["started"]) if staging else 0.0
            known = row(job.job_id, job.path)
            owner = owner_of(order) if order else known["owner"]
            found.append({**known, "owner": owner, "state": "running", "seconds": seconds})
    return found


def busy_on_nodes(hosts: Sequence[str], facts: Mapping[str, AnyFacts]) -> list[Ahead]:
    """Return the jobs that these nodes know by themselves: of another head, or over on this one and not yet there.

    Those of other users and homes are not among them, whatever their names: nobody here waits for them.
    """
    found: dict[str, Ahead] = {}
    for host in hosts:
        fact = facts.get(host)
        if fact is None or "unreachable" in fact:
            continue
        for job in fact["running"]:
            if job["own_home"]:
                found[job["job_id"]] = {**job, "state": "running", "seconds": 0.0}
    return list(found.values())


def news_of(ahead: Sequence[Ahead]) -> tuple[object, ...]:
    """Return what of the jobs ahead is worth a line when it changes."""
    return (len(ahead), ahead[0]["job_id"], ahead[0]["state"]) if ahead else ()


def is_over(ticket: Ticket, seconds: float | None) -> bool:
    """Whether a job has waited for as long as it may; None: without end."""
    return seconds is not None and time.monotonic() - ticket.began > seconds
