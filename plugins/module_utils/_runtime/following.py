# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that another supervisor looks after: what it is, how far it has come, and following it for a controller."""

from __future__ import annotations

import os
import socket
import time
from typing import cast

from .basics.job_directory import JobDir
from .head.audience import SEND_SECONDS, SOCKET
from .nodes.leftovers import PRIVATE
from .queue.job_queue import Entry, Queue, owner_of
from .ranks.metrics import first_report, last_values
from .transfer.fetched_files import age, state_in
from .types.job_rows import JobRow
from .types.reasons import AnyState
from .types.records import Result
from .wire.channel import BEAT_SECONDS, Channel, SupervisorChannel, ready
from .wire.protocol import FromFollower, FromHead

GONE = "no job of this name runs here: it was fetched and removed, or never started"
WAITS = "it waits in the queue with the controller that started it, which alone can follow it until it runs"
DEAD = "its supervisor died: ansible-playbook clean.yml ends what is left, and fetches its files"
BUSY = "it is running but takes no followers now: it is starting, or has too many; try again"
ROOM_SECONDS = 30.0  # for a job to let somebody in
RESULT_SECONDS = 30.0  # for a job that is over to write its result
JobChannel = Channel[FromFollower, FromHead]


def row_of(job: JobDir, controller: str) -> JobRow | None:
    """Return what a list of jobs has of a job; None if this node is not its head, or it is not known any more."""
    order, staging = job.order(), job.staging()
    if not order or not staging or order["head"] != order["host"]:
        return None
    running = job.running()
    first = first_report(job) if running else None
    state: AnyState = "running" if running else state_in(job.read("result.json")) or "lost"
    return {
        "job_id": job.job_id,
        "state": state,
        "owner": owner_of(order),
        "own": order["controller"] == controller,
        "fetched": job.is_fetched(),
        "seconds": time.time() - staging["started"] if running else age(job),
        "restarts": order.get("restarts", 0),
        "position": 0,
        "ranks": len(order["placement"]),
        "hosts": list(dict.fromkeys(place["host"] for place in order["placement"])),
        "launcher": order["launcher"]["name"],
        "backend": order["backend"],
        "values": last_values(job, order),
        "before": first["values"] if first else {},
        "paced_seconds": max(0.0, time.time() - first["time"]) if first else 0.0,
    }


def place_of_followers(job: JobDir) -> str:
    """Return the directory where a job that runs, or waits by itself, lets followers in; empty if there is none."""
    staging = job.staging()
    if staging and job.running():
        return staging["private_tmp"]
    entry = entry_of(job)
    return entry["private_tmp"] if entry else ""


def entry_of(job: JobDir) -> Entry | None:
    """Return the place of a job in the queue, None if it is in none."""
    try:
        return Queue(os.path.dirname(os.path.dirname(job.path))).find(job.job_id)
    except OSError:
        return None


def waits_by_itself(job: JobDir) -> bool:
    """Whether a job waits in the queue without its controller."""
    entry = entry_of(job)
    return bool(entry and entry["detached"])


def connect(job: JobDir) -> JobChannel | None:
    """Return a channel to the supervisor of a job that runs here; None if there is none."""
    place = place_of_followers(job)
    if not PRIVATE.search(place):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.path.join(place, SOCKET))
    except OSError:  # it is just over
        connection.close()
        return None
    descriptor = connection.detach()
    return Channel(descriptor, os.dup(descriptor), SEND_SECONDS)


def follow(job: JobDir, controller: SupervisorChannel) -> str:
    """Pass on what a job tells until it is over or the controller leaves, then its result. Return why there is none."""
    channel = let_in(job, controller)
    if channel:
        try:
            if not pass_on(channel, controller):
                return ""  # the controller left, or has the result
        finally:
            channel.close()
    return send_result(job, controller)


def let_in(job: JobDir, controller: SupervisorChannel) -> JobChannel | None:
    """Return a channel to the supervisor of a job; None if the job is over, or lets nobody in for some time."""
    until, channel = time.monotonic() + ROOM_SECONDS, connect(job)
    while not channel and (job.running() or waits_by_itself(job)) and time.monotonic() < until:
        controller.offer({"kind": "beat"})
        time.sleep(0.1)
        channel = connect(job)
    return channel


def pass_on(channel: JobChannel, controller: SupervisorChannel) -> bool:
    """Pass frames on both ways. Return whether the job's side closed before it sent a result."""
    beat = time.monotonic()
    while True:
        found = ready([channel.incoming, controller.incoming], BEAT_SECONDS)
        try:
            frame = channel.receive(0) if channel.incoming in found or channel.buffer else None
            while frame:
                controller.send(frame)
                if frame["kind"] == "result":
                    return False
                frame = channel.receive(0)
        except EOFError:
            return True
        try:
            asked = controller.receive(0) if controller.incoming in found or controller.buffer else None
        except EOFError:
            return False
        if asked and asked["kind"] == "end":
            channel.send(asked)
        if time.monotonic() - beat > BEAT_SECONDS:
            beat = time.monotonic()
            controller.offer({"kind": "beat"})


def send_result(job: JobDir, controller: SupervisorChannel) -> str:
    """Send the result of a job when it is over. Return why there is none."""
    order = job.order()
    if not order or order["head"] != order["host"]:
        return WAITS if entry_of(job) else GONE
    until = time.monotonic() + RESULT_SECONDS
    while job.running() and time.monotonic() < until:
        controller.offer({"kind": "beat"})
        time.sleep(0.1)
    if job.running():
        return BUSY
    result = job.read("result.json")
    if not state_in(result):
        return DEAD
    controller.send({"kind": "attached", "placement": order["placement"]})
    controller.send({"kind": "result", "result": cast(Result, result)})  # the controller checks it
    return ""
