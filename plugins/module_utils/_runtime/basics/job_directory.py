# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The directory of one job on one node: the files by which its processes share what they know, and which outlive them.

`<home>/jobs/<job id>/`: order.json (all that this node is told of the job), staging.json (what it added when it staged
the job), hostfile, bin/ (what launchers call), events (a FIFO: a byte wakes the guard), gate (a FIFO: opened when ranks
may begin, or when the job is ended), lock (held while the job runs, and until its files were fetched), launcher.json,
launcher.out, end.json (why the job was ended, first writer wins), over.json (nothing of it runs here any more),
processes.json (noted_processes), leftovers.json, metrics.jsonl, ranks/<n>/{stdout,stderr,record.json} with the FIFOs
through which output comes (rank_output) and those files through which ranks tell where they are (look_note) and how
they fare (arrivals_note, profile_note), look.lock, evidence.json (of a job that took too long), and where a folder was
shipped src/ (the job's own tree, job_files) with listing.json. On the head also routes.json (how it reaches the other
nodes), clocks.json (clocks.py) and result.json. attempts/<n>/ has files of earlier attempts (earlier_attempts.py).
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Iterable, Mapping, Tuple, TypeVar, Union, cast

from ..types.codes import known
from ..types.reasons import EndReason, RankError
from .file_locks import wait_for_lock

if TYPE_CHECKING:  # a rank must not pay for the types
    from typing import TypeGuard

    from ..types.orders import JobRoute, Order, Place, Staging
    from ..types.records import End, LauncherExit, Leftover, RankRecord

FETCHED_MARK = "fetched"  # file in a job directory: the controller has all of it
OLD_FETCHED_MARK = "home"  # of 0.4
BALLAST_BYTES = 1 << 20  # kept free for our own files
LOCK_SECONDS = 10.0  # for those who only ask whether a job runs to have their answer
RANK_PROGRAM, AGENT_PROGRAM = "torchfleet-rank", "torchfleet-agent"  # in bin/: what launchers call
PIPES = {"stdout": "stdout.pipe", "stderr": "stderr.pipe"}  # of each rank
FILE_BYTES = 64 << 20  # of a file of ours; more is none
TEXT_BYTES = 2000  # of what a daemon said that its launcher is told
Form = Mapping[str, Union[type, Tuple[type, ...]]]  # the types of fields by name
Kind = TypeVar("Kind")
NUMBER = (int, float)  # of seconds, as all numbers here that need not be whole
SECONDS_MOST = 1e11  # since the epoch, or since the machine came up
# Types of what is in files that a program of the job could have written; of order.json, what is read when it is over.
ORDER: Form = {
    **dict.fromkeys(("job_id", "home", "host", "head", "controller", "run_dir", "backend"), str),
    **{"placement": list, "ranks": list, "launcher": dict, "world_size": int, "shown_command": (str, list)},
}
PLACE: Form = {"rank": int, "host": str}
STAGING: Form = {"started": NUMBER, "private_tmp": str}
ROUTE: Form = dict.fromkeys(("host", "home", "interpreter"), str)
END: Form = {"reason": str, "detail": str, "at": NUMBER}
END_LATE: Form = {"host": str, "tick": NUMBER}
LAUNCHER: Form = {"pid": int}
LEFTOVER: Form = {"pid": int, "command": str}
RECORD: Form = {"rank": int, "local_rank": int, "host": str, "wrapper_pid": int, "cpus": list, "started": NUMBER}
OVER: Form = {"rc": int, "ended": NUMBER, "finished": bool, "error": str}  # what a record has at its end, all or none
# A record may have them.
LATE: Form = {
    **dict.fromkeys(("started_tick", "ended_tick", "cpu_seconds"), NUMBER),
    **{"peak_bytes": int, "error_code": str},
}
ID = (0, 9_999_999)  # least and most, as in record_forms.py: a look at the job would fail of other numbers
RANGES = {"rc": (0, 255), "signal": (1, 64), "peak_bytes": (0, 10**18), "wrapper_pid": ID, "local_rank": ID, "pid": ID}
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
NUMBERS = itertools.count()


def unique() -> str:
    """Return a part of a file name that no other process and no other thread of this one uses."""
    return f"{os.getpid()}.{next(NUMBERS)}"


def remove(path: str) -> None:
    """Take away a directory with all in it. The imports are late: a rank must not pay for them."""
    import shutil

    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:
        pass
    if os.path.isdir(path) and not os.path.islink(path):  # such as a thousand directories in each other
        import subprocess

        subprocess.run(["rm", "-rf", "--", path], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def open_file(path: str) -> int:
    """Open a file for reading. OSError for a link, a pipe or a device in its place: none is followed or waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", path)
    return descriptor


def json_in(path: str, most: int) -> object:
    """Return what is in a JSON file of at most so many bytes; None if it is not there, not whole, or not ours."""
    try:
        with open(open_file(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size  # read() would take memory for all that it is asked for
            data = file.read(size + 1) if size <= most else b""
        return json.loads(data) if len(data) <= most else None
    except (OSError, ValueError, RecursionError):
        return None


def fits(value: object, form: Form) -> TypeGuard[dict[str, object]]:
    """Whether a value is an object with these fields, each of its type."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kind)
        and (kind is bool) == isinstance(value[name], bool)
        and (kind is not NUMBER or 0 <= value[name] <= SECONDS_MOST)  # neither is true of NaN
        for name, kind in form.items()
    )


def field(value: object, name: str, kind: type[Kind]) -> Kind | None:
    """Return a field of an object; None if it is not there, or not of this type."""
    return cast(Kind, value[name]) if fits(value, {name: kind}) else None


def rows_of(found: object) -> list[Leftover]:
    """Return the rows of leftovers, of whatever was found in their place."""
    return [cast("Leftover", row) for row in found if fits(row, LEFTOVER)] if isinstance(found, list) else []


class JobDir:
    """Paths and small atomic files of a job directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.job_id = os.path.basename(path)

    def at(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def rank(self, rank: int, *names: str) -> str:
        return self.at("ranks", str(rank), *names)

    def create(self, ranks: list[int]) -> None:
        """Make the directory and a place for each rank. FileExistsError if the job id was used before."""
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        os.mkdir(self.path, 0o700)
        try:
            self.fill(ranks)
        except OSError:
            remove(self.path)
            raise

    def fill(self, ranks: list[int]) -> None:
        """Make what the processes of a job share. OSError."""
        os.mkdir(self.at("ranks"), 0o700)
        for rank in ranks:
            os.mkdir(self.rank(rank), 0o700)
            for name in PIPES.values():
                os.mkfifo(self.rank(rank, name), 0o600)
        os.mkfifo(self.at("events"), 0o600)
        os.mkfifo(self.at("gate"), 0o600)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        ballast = os.open(self.at("ballast"), flags, 0o600)  # that of the attempt before stays
        os.posix_fallocate(ballast, 0, BALLAST_BYTES)
        os.close(ballast)

    def write(self, name: str, value: object) -> None:
        """Write a JSON file so that a reader sees the old one or the whole new one, never a part.

        On a full disk the ballast makes room, so that the outcome of a job is recorded even then.
        """
        temporary = self.at(f"{name}.{unique()}.tmp")
        try:
            write_json(temporary, value)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self.drop_ballast():
                raise
            write_json(temporary, value)
        try:
            os.replace(temporary, self.at(name))
        except IsADirectoryError:  # a program of the job made it
            remove(self.at(name))
            os.replace(temporary, self.at(name))

    def drop_ballast(self) -> bool:
        """Give back the space that was kept free; return whether there was any."""
        try:
            os.unlink(self.at("ballast"))
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> object:
        """Return the value of a JSON file, or None if it is not there, not whole, or no file of ours."""
        return json_in(self.at(name), FILE_BYTES)

    def order(self) -> Order | None:
        """Return what the job is; None if it is not known, or a program of the job changed it beyond use."""
        found = self.read_order()
        if not fits(found, ORDER):
            return None
        order = cast("Order", found)
        whole = all(fits(place, PLACE) for place in order["placement"])
        whole = whole and all(type(rank) is int for rank in order["ranks"])
        return order if whole and fits(order["launcher"], {"name": str, "version": str}) else None

    def read_order(self) -> object:
        """Return what is in order.json, whoever wrote it, in the form of this version."""
        found = self.read("order.json")
        if fits(found, {"host": str, "placement": list}) and "ranks" not in found:
            return with_ranks_and_head(found)
        return found

    def staging(self) -> Staging | None:
        """Return what this node added to the order; None if that is not known."""
        found = self.read("staging.json") or self.read("order.json")  # the second had it up to 0.4
        return cast("Staging", {name: found[name] for name in STAGING}) if fits(found, STAGING) else None

    def routes(self) -> list[JobRoute]:
        """Return how the head reaches the other nodes of the job: none on these."""
        found = self.read("routes.json")
        if found is None:  # up to 0.4 the order had them, by another name
            peers: list[object] = field(self.read("order.json"), "peers", list) or []
            found = [{**row, "host": row["name"]} for row in peers if fits(row, {"name": str})]
        return [cast("JobRoute", row) for row in found if fits(row, ROUTE)] if isinstance(found, list) else []

    def record(self, rank: int) -> RankRecord | None:
        """Return the record of a rank; None for one that its wrapper did not write, and cannot have."""
        found = self.read(os.path.join("ranks", str(rank), "record.json"))
        if not fits(found, RECORD) or found["rank"] != rank:
            return None
        whole = fits(found, {name: kind for name, kind in LATE.items() if name in found})
        rows = [(found[name], *ends) for name, ends in RANGES.items() if found.get(name) is not None]
        whole = whole and all(type(value) is int and least <= value <= most for value, least, most in rows)
        if "error_code" in found:
            found["error_code"] = known(RankError, found["error_code"])
        whole = whole and found.get("error_code", "") is not None  # None: no code of ours
        is_over = any(name in found for name in OVER) or bool(found.get("error_code"))
        return cast("RankRecord", found) if whole and (fits(found, OVER) or not is_over) else None

    def end(self) -> End | None:
        """Return why the job was ended, or None."""
        found = self.read("end.json")
        reason = known(EndReason, found["reason"]) if fits(found, END) else None
        if not isinstance(found, dict) or reason is None:
            return None
        late = {name: found[name] for name, kind in END_LATE.items() if fits(found, {name: kind})}
        return cast("End", {"reason": reason, "detail": found["detail"], "at": found["at"], **late})

    def launcher(self) -> LauncherExit:
        """Return what became of the launcher here, or nothing."""
        found = self.read("launcher.json")
        if not fits(found, LAUNCHER) or ("rc" in found and not fits(found, {"rc": int, "at": NUMBER})):
            return {}
        return cast("LauncherExit", found)

    def launcher_text(self) -> str:
        """Return the end of the output of the launcher, or daemon, here."""
        try:
            with open(open_file(self.at("launcher.out")), "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TEXT_BYTES))
                return file.read(TEXT_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""

    def leftovers(self) -> list[Leftover]:
        """Return what outlived its rank and was ended."""
        return rows_of(self.read("leftovers.json"))

    def claim_end(self, reason: EndReason, detail: str = "", host: str = "") -> None:
        """Write why the job is ended, with `host` if that happened on another node. Only the first reason stands.

        What is no reason does not: a program of the job may have put anything there.
        """
        note = f"end.{unique()}.json"
        found: End = {"reason": reason, "detail": detail, "host": host, "at": time.time(), "tick": time.monotonic()}
        self.write(note, found)
        try:
            os.link(self.at(note), self.at("end.json"))
        except FileExistsError:
            if self.end() is None:
                self.write("end.json", found)
        finally:
            os.unlink(self.at(note))

    def lock(self) -> int:
        """Take the job's lock and return its descriptor; it is held until the last process that has it is gone.

        Whoever asks whether the job runs has the lock shared for a moment: that is waited for. OSError.
        """
        found = wait_for_lock(self.at("lock"), fcntl.LOCK_EX, LOCK_SECONDS)
        if found is None:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), self.at("lock"))
        return found

    def has_lock(self, descriptor: int) -> bool:
        """Whether a descriptor is of the lock in this directory."""
        try:
            there, own = os.lstat(self.at("lock")), os.fstat(descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)

    def note_over(self) -> None:
        """Note that nothing of the job runs on this node any more: its lock is held until its files were fetched."""
        try:
            self.write("over.json", {"at": time.time()})
        except OSError:  # there is no room: it counts as running until then
            pass

    def is_over(self) -> bool:
        """Whether nothing of the job runs on this node any more."""
        return os.path.lexists(self.at("over.json"))

    def is_fetched(self) -> bool:
        """Whether the controller has all files of the job: the next clean.yml removes what is left of it."""
        return any(os.path.exists(self.at(mark)) for mark in (FETCHED_MARK, OLD_FETCHED_MARK))

    def running(self) -> bool:
        """Whether somebody still looks after this job.

        What cannot be told (no descriptor left, a disk or a network that fails) counts as yes: clean.yml kills what
        nobody looks after. The lock is asked for shared, so that two who ask do not take each other for the job.
        """
        try:
            # Anybody's mark may name a pipe, or a link to a device of root's to which something happens then.
            descriptor = os.open(self.at("lock"), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def wake(self) -> None:
        """Wake the guard; nobody listening is no error."""
        try:
            descriptor = os.open(self.at("events"), os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(descriptor, b".")
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def open_gate(self) -> None:
        """Wake the ranks that wait to begin: each looks whether it may, or whether the job is ended."""
        try:
            os.close(os.open(self.at("gate"), os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # none waits
            pass


def ranks_on(host: str, placement: Iterable[Place]) -> list[int]:
    """Return the ranks that run on another node; those of this one are in its order."""
    return [place["rank"] for place in placement if place["host"] == host]


def with_ranks_and_head(order: dict[str, object]) -> dict[str, object]:
    """Return an order of version 0.4 with what later ones have: there the head was the node with `peers`."""
    host = order["host"]
    places = cast("list[object]", order["placement"])
    ranks = [place["rank"] for place in places if fits(place, PLACE) and place["host"] == host]
    return {**order, "ranks": ranks, "head": host if isinstance(order.get("peers"), list) else ""}


def write_json(path: str, value: object) -> None:
    """Write a value as JSON for people and programs, readable by its owner only."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def jobs(home: str) -> list[JobDir]:
    """Return the job directories under a torchfleet home, oldest first. One that disappears meanwhile is skipped."""
    found = []
    try:
        with os.scandir(os.path.join(home, "jobs")) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        found.append((entry.stat().st_mtime, entry.path))
                except FileNotFoundError:
                    pass
    except FileNotFoundError:
        return []
    return [JobDir(path) for _time, path in sorted(found)]
