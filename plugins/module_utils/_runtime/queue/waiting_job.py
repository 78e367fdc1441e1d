# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A detached job that waits in the queue on the head, without its controller, and starts when its nodes are free.

It was planned before it waits. Its nodes are looked at anew when its turn comes: one that is not as it was planned for
ends it. So does whatever ends a job that runs. It then leaves a result as any other job does. If the head restarts it
waits again, in its place, as soon as somebody looks at the queue (kept_job).
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Sequence

from ..basics.job_directory import JobDir, remove
from ..head.audience import Audience
from ..head.head_job import order_of
from ..head.planned_nodes import Difference, Head, PlannedNodes
from ..head.restarting import run_attempts, text_of
from ..head.result import write_result
from ..node_job.node_job import private_directory
from ..nodes.leftovers import PRIVATE
from ..ranks.metrics import final_metrics
from ..transfer.shipment import Shipment
from ..types import reasons
from ..types.job_rows import Ahead, JobRow
from ..types.orders import Order, Staging
from ..types.reasons import NoteCode, Reason
from ..types.records import FirstFailure, Note, Result
from ..types.restarts import RETURN_SECONDS
from ..wire import protocol
from ..wire.channel import ready
from ..wire.link import ConnectionLost
from .job_queue import LOOK_SECONDS, Queue, Ticket, busy_on_nodes, entry_in, is_over, news_of, owner_of
from .kept_job import keep, kept_in, take_up

NODES_SECONDS = 5.0  # between two looks at nodes on which a job of another head runs
NEVER_BEGAN = "nothing of it was started, and its place in the queue is free"


class WaitingJob:
    """A detached job from its order to its turn, or to its end before that."""

    def __init__(self, head: Head, frame: protocol.Run) -> None:
        self.head, self.frame = head, frame
        self.run_order, self.timeout = frame["order"], frame.get("queue_timeout")
        self.order = order_of(self.run_order, self.run_order["job"]["head"])
        self.rule = frame.get("restart")
        self.nodes = PlannedNodes(head, self.run_order)
        self.hosts = self.nodes.hosts
        self.queue = Queue(self.order["home"])
        self.audience = Audience(head.channel, detached=True)
        self.waited = False
        self.patient_until = 0.0  # with nodes that are not as they were: they may have restarted, too
        self.different: Difference | None = None
        self.private = ""
        self.ticket: Ticket | None = None

    def run(self, again: Ticket | None = None) -> None:
        """Wait, and run the job. One that did not wait is refused as any other is. `again`: the place that it had."""
        try:
            reason = self.wait(self.enter_again(again) if again else self.enter())
            if reason and self.head.signalled and self.stays():
                return
            refused = None if reason else run_attempts(self.head, self.run_order, self.audience, self.leave, self.rule)
        except (OSError, ValueError) as error:
            reason, refused = None, protocol.Refused(kind="refused", reason=f"cannot wait in the queue: {error}")
        if refused and not self.waited:
            self.head.channel.send(refused)
        elif refused:
            self.give_up(reasons.never_started(text_of(refused)))
        elif reason:
            self.give_up(reason)
        self.leave()

    def enter(self) -> Ticket:
        """Take the last place in the queue, and let followers in. OSError, ValueError."""
        remove_dead(self.queue)
        self.private = private_directory()
        self.audience.open(self.private, self.order)
        job = self.order
        ticket = self.ticket = self.queue.enter(
            {
                "job_id": job["job_id"],
                "controller": job["controller"],
                "owner": owner_of(job),
                "hosts": self.hosts,
                "ranks": len(job["placement"]),
                "launcher": job["launcher"]["name"],
                "backend": job["backend"],
                "detached": True,
                "private_tmp": self.private,
            }
        )
        note_order(ticket.path, job)
        keep(JobDir(place_of(ticket.path)), self.frame, self.head.asked, self.head.facts, self.head.offered)
        return ticket

    def enter_again(self, ticket: Ticket) -> Ticket:
        """Take the place again that the job had before the head restarted, and let followers in. OSError."""
        self.ticket, self.waited = ticket, True
        self.patient_until = time.monotonic() + RETURN_SECONDS
        self.private = private_directory()
        self.audience.open(self.private, self.order)
        with self.queue.held(alone=True):
            old = ticket.entry["private_tmp"]
            ticket.entry["private_tmp"] = self.private
            ticket.write()
        if PRIVATE.search(old):
            remove(old)
        return ticket

    def stays(self) -> bool:
        """Let go of the ticket of a job that is kept, so that it waits again if the head restarts now.

        A machine that goes down sends SIGTERM to all processes. If it does not, the next who looks finds the job lost.
        """
        ticket = self.ticket
        if not ticket or not ticket.valid or kept_in(JobDir(place_of(ticket.path))) is None:
            return False
        self.ticket = None
        os.close(ticket.descriptor)
        return True

    def leave(self) -> None:
        """Leave the queue: the job runs, or is over."""
        ticket, self.ticket = self.ticket, None
        if ticket:
            ticket.leave()
            remove(place_of(ticket.path))
        if self.private:
            remove(self.private)

    def wait(self, ticket: Ticket) -> Reason | None:
        """Return when it is the job's turn; or why it ends before. OSError."""
        told: object = None
        facts, looked = self.nodes.facts, time.monotonic()
        ahead: Sequence[Ahead] = ()
        while True:
            if self.head.signalled:  # first: as the head goes down, what is ahead of it goes as well
                return reasons.signalled(self.head.signalled, "the supervisor")
            ahead = self.queue.ahead_of(ticket, ahead)
            if not ahead and self.waited and time.monotonic() >= looked:
                facts, looked = self.nodes.look_anew(), time.monotonic() + NODES_SECONDS
                self.different = self.nodes.changed(facts)
                if self.different and self.is_final(self.different):
                    return reasons.never_started(self.different.text)
            ahead = ahead or busy_on_nodes(self.hosts, facts)
            if not ahead and not self.different and not is_over(ticket, self.timeout):
                problem = ship_again(self.head, self.order["home"]) if self.waited else ""
                return reasons.never_started(problem) if problem else None
            if news_of(ahead) != told:
                told = news_of(ahead)
                self.audience.send({"kind": "queued", "ahead": len(ahead), "first": ahead[0] if ahead else None})
            self.begin_to_wait()
            reason = self.reason_to_end(ticket, ahead)
            if reason:
                return reason
            ready(self.audience.inputs(), LOOK_SECONDS)

    def is_final(self, different: Difference) -> bool:
        """Whether a job that waited gives up for this; one that came back with the head is patient with its nodes."""
        return different.code == NoteCode.NODE_REMOVED or time.monotonic() > self.patient_until

    def begin_to_wait(self) -> None:
        """Let go of the controller, and of the other nodes: they may restart meanwhile."""
        if self.waited:
            return
        self.waited = True
        self.head.release()
        if self.head.shipment:
            self.head.shipment.release()
        self.nodes.let_go()

    def reason_to_end(self, ticket: Ticket, ahead: Sequence[Ahead]) -> Reason | None:
        """Return why the job must not wait any longer, or None."""
        frame = self.audience.receive()
        if frame and frame["kind"] == "end":
            return reasons.reason_in(frame)
        if not ticket.valid:
            return reasons.TAKEN_OUT_OF_QUEUE
        if is_over(ticket, self.timeout):
            return reasons.waited_too_long(self.timeout or 0.0, ahead)
        return None

    def give_up(self, reason: Reason) -> None:
        """End the job before it began: with a result, as any other."""
        ticket = self.ticket
        try:
            since = ticket.entry["since"] if ticket else time.time()
            result = leave_result(self.order, since, reason, self.different)
            self.audience.send({"kind": "result", "result": result})
        except OSError:  # there is no room: its ticket stays without a holder, and the next who looks finds it lost
            if ticket:
                os.close(ticket.descriptor)
            self.ticket = None
        self.audience.close()


def place_of(ticket: str) -> str:
    """Return the directory beside a ticket, which has the order of a detached job."""
    return ticket[: -len(".json")]


def note_order(ticket: str, order: Order) -> None:
    """Keep the order of a job that waits: if its process dies, it is known what it was. OSError."""
    os.mkdir(place_of(ticket), 0o700)
    JobDir(place_of(ticket)).write("order.json", order)


def wait_again(head: Head, path: str, descriptor: int) -> None:
    """Wait for a job that waited before the head restarted, in its place. `descriptor`: has the lock of its ticket."""
    entry, kept = entry_in(path), kept_in(JobDir(place_of(path)))
    if entry is None or kept is None:
        return
    head.asked, head.facts, head.offered = kept["asked"], kept["facts"], kept["offered"]
    ticket = Ticket(path, descriptor, entry)
    ticket.began -= max(0.0, time.time() - entry["since"])
    WaitingJob(head, kept["run"]).run(ticket)


def leave_result(order: Order, since: float, reason: Reason, different: Difference | None = None) -> Result:
    """Make the directory of a job that never started, with its result, and return that. OSError.

    `different`: what was not as it was planned with, if that is why.
    """
    job = JobDir(os.path.join(order["home"], "jobs", order["job_id"]))
    job.create([])
    staging: Staging = {"started": since, "private_tmp": ""}
    job.write("order.json", order)
    job.write("staging.json", staging)
    job.claim_end(*reason)
    result = write_result(job, order, staging, final_metrics(job, order), {}, max(0.0, time.time() - since))
    if result["first_failure"]:  # no rank is to blame, for none was started
        place, cause = different.host if different else order["head"], reason.detail
        result["first_failure"] = FirstFailure(rank=None, host=place, cause=cause, message="", log=order["run_dir"])
        if different:
            result["notes"].append(Note(code=different.code, text=NEVER_BEGAN))
        job.write("result.json", result)
    return result


def remove_dead(queue: Queue) -> None:
    """Take away the tickets whose processes are gone. OSError.

    A detached job waits again if the head restarted. Else it is lost, and leaves a result that says so: whoever asks
    for it shall hear of it.
    """
    if not queue.has_dead():
        return
    with queue.held(alone=True):
        for path in queue.dead():
            entry, place = entry_in(path), JobDir(place_of(path))
            if entry and entry["detached"] and take_up(queue.home, path, place):
                continue
            order = place.order() if entry and entry["detached"] else None
            if entry and order and order["job_id"] == entry["job_id"]:
                with contextlib.suppress(FileExistsError):  # it had just been started
                    leave_result({**order, "home": queue.home}, entry["since"], reasons.DIED_WAITING)
            if entry and PRIVATE.search(entry["private_tmp"]):
                remove(entry["private_tmp"])
            remove(place.path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def ship_again(head: Head, home: str) -> str:
    """Bring the folder of the script to the nodes as they are now, from the stores. Return why it cannot be."""
    offer = head.offered
    if offer is None:
        return ""
    head.shipment = own = Shipment(home, offer["files"]) if offer["here"] else None
    said = own.finish() if own else ""
    if said:
        return f"{offer['here']}: {said}; start it again"
    for name in offer["nodes"]:
        try:
            peer = head.peers[name]
            for digest in sorted(peer.ask_for_folder(offer["files"])):
                if own:
                    peer.channel.send_file(digest, own.store.path(digest))
            said = peer.check_folder()
        except (ConnectionLost, KeyError) as error:
            said = f"{name}: {error}"
        if said:
            return f"{said}; start it again"
    return ""


def waiting_rows(queue: Queue, controller: str) -> list[JobRow]:
    """Return what a list of jobs has of those that wait, first come first. OSError."""
    remove_dead(queue)
    return [
        {
            "job_id": entry["job_id"],
            "state": "waiting",
            "owner": entry["owner"],
            "own": entry["controller"] == controller,
            "fetched": False,
            "seconds": max(0.0, time.time() - entry["since"]),
            "restarts": 0,
            "position": position,
            "ranks": entry["ranks"],
            "hosts": entry["hosts"],
            "launcher": entry["launcher"],
            "backend": entry["backend"],
            "values": {},
            "before": {},
            "paced_seconds": 0.0,
        }
        for position, entry in enumerate(queue.entries(), 1)
        if not os.path.lexists(os.path.join(queue.home, "jobs", entry["job_id"]))
    ]
