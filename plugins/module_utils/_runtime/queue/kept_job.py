# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A detached job that waits in the queue outlives a restart of the head: who looks at the queue lets it wait again.

What its process was told lies beside its ticket, so it has its place and its plan again. Nothing starts it at boot: the
next command that asks this head does. A job with secrets is not kept, for those are in no file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import sys
from typing import Mapping, TypedDict, cast

from ..basics.bootstrap import ENTRY
from ..basics.job_directory import Form, JobDir, fits
from ..processes.processes import boot
from ..types.file_messages import FolderOffer
from ..types.records import AnyFacts
from ..wire import protocol

KEPT = "kept.json"
FORM: Form = {"boot": str, "entry": str, "run": dict, "asked": dict, "facts": dict}
OWN_ENTRY = os.path.join(sys.path[0], ENTRY)
VERSION = re.compile(r"[0-9a-f]{16}\Z")  # of the runtime, whose directory has its name


class Kept(TypedDict):
    """The request for a job that waits. `entry`: the runtime that received it."""

    boot: str
    entry: str
    run: protocol.Run
    asked: protocol.Survey
    facts: dict[str, AnyFacts]
    offered: FolderOffer | None


def keep(
    place: JobDir,
    run: protocol.Run,
    asked: protocol.Survey | None,
    facts: Mapping[str, AnyFacts],
    offered: FolderOffer | None,
) -> None:
    """Write the request for a job that waits to the directory beside its ticket. OSError."""
    if asked is None or any(run["order"]["secrets"].values()):
        return
    kept: Kept = {
        "boot": boot(),
        "entry": OWN_ENTRY,
        "run": run,
        "asked": asked,
        "facts": dict(facts),
        "offered": offered,
    }
    place.write(KEPT, kept)


def kept_in(place: JobDir) -> Kept | None:
    """Return what is kept of a job; None if nothing is, or what is there is not ours."""
    found = place.read(KEPT)
    return cast(Kept, {"offered": None, **found}) if fits(found, FORM) else None


def take_up(home: str, ticket: str, place: JobDir) -> bool:
    """Start a process that waits for a ticket whose holder is gone, if it went with an earlier run of the machine.

    Call it with the lock of the queue. The process holds the lock of the ticket when this returns.
    """
    kept, now = kept_in(place), boot()
    if not kept or not now or kept["boot"] in ("", now) or not is_entry(home, kept["entry"]):
        return False
    try:
        descriptor = os.open(ticket, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        place.write(KEPT, {**kept, "boot": now})  # first: one that cannot go on is lost when it is looked at again
        subprocess.Popen(
            [sys.executable, "-I", "-S", kept["entry"], "wait", ticket, str(descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=[descriptor],
            start_new_session=True,
        )
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def is_entry(home: str, path: str) -> bool:
    """Whether a path is that of a runtime which is there."""
    directory, name = os.path.split(path)
    place, version = os.path.split(directory)
    with contextlib.suppress(OSError, ValueError):
        same = os.path.realpath(place) == os.path.realpath(os.path.join(home, "lib"))
        return same and name == ENTRY and bool(VERSION.match(version)) and os.path.isfile(path)
    return False
