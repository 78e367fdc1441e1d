# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that waits in the queue of the head with its controller, until it is its turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.queue.job_queue import busy_on_nodes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.queue_messages import EnterQueue
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import AnyFacts
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import BEAT_SECONDS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import StopWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .connection import ASK_SECONDS, SILENT_SECONDS
from .job_list import waits_line
from .plan import LaunchPlan
from .request import Request
from .session import Session

NODES_SECONDS = 5.0  # between two looks at nodes on which a job of another head runs
Facts = Mapping[str, AnyFacts]


class Turn:
    """The wait of one job for its turn. `controller`: who starts it; `say` shows a line."""

    def __init__(
        self, session: Session, request: Request, controller: str, stop: StopWatch, say: Callable[[str], None]
    ) -> None:
        self.session, self.request, self.controller, self.stop, self.say = session, request, controller, stop, say
        self.beaten = time.monotonic()
        self.told = ""

    def would_wait(self, plan: LaunchPlan) -> str:
        """Return a line that says whether the job would wait, and for which job. The job does not enter the queue."""
        frame = self.session.ask(self.entry(plan, look=True))
        if frame["kind"] != "queued":
            raise self.refusal(plan, frame["reason"] if frame["kind"] == "refused" else "it did not answer")
        first = frame["first"]
        return waits_line(plan.job_id, frame["ahead"], first) if first else f"job {plan.job_id} would not wait"

    def take(
        self, plan: LaunchPlan, facts: Facts, plan_anew: Callable[[], tuple[LaunchPlan, Facts]]
    ) -> tuple[LaunchPlan, Facts]:
        """Return when it is the job's turn: its plan, and the facts that this is made of.

        `plan_anew` looks at the nodes: if the job waited, they are looked at just before it starts. Stopped if the user
        stops it. InputError if it may not wait, or for what cannot work any more. HeadLost.
        """
        while True:
            hosts = hosts_of(plan)
            if self.wait(plan):
                plan, facts = plan_anew()
            others = busy_on_nodes(hosts_of(plan), facts)
            if not others and hosts_of(plan) == hosts:
                return plan, facts
            if others:
                self.tell(waits_line(plan.job_id, len(others), others[0]))
                self.pause()
                plan, facts = plan_anew()

    def wait(self, plan: LaunchPlan) -> bool:
        """Return when no job of this head is ahead: whether there was one."""
        self.session.queued = True
        self.session.remote.channel.send(self.entry(plan))
        waited = False
        while True:
            frame = self.session.answer(self.listen, SILENT_SECONDS, math.inf)
            if frame["kind"] == "turn":
                return waited
            if frame["kind"] == "refused":
                raise self.refusal(plan, frame["reason"])
            if frame["kind"] != "queued":
                raise self.session.other_question()
            waited = True
            self.tell(waits_line(plan.job_id, frame["ahead"], frame["first"]))

    def entry(self, plan: LaunchPlan, look: bool = False) -> EnterQueue:
        """Return the message that asks for a place in the queue."""
        return {
            "kind": "queue",
            "beats": True,
            "home": self.session.home,
            "job_id": plan.job_id,
            "controller": self.controller,
            "owner": plan.owner,
            "hosts": hosts_of(plan),
            "ranks": plan.world_size,
            "launcher": plan.launcher,
            "backend": plan.backend,
            "lease": self.request.lease,
            "queue_timeout": self.request.queue_timeout,
            "look": look,
        }

    def refusal(self, plan: LaunchPlan, reason: str) -> InputError:
        return InputError("queue", plan.job_id, reason)

    def tell(self, line: str) -> None:
        """Show a line, unless it is there already."""
        if line != self.told:
            self.told = line
            self.say(line)

    def listen(self) -> bool:
        """Give the head a sign of life, and see whether the user wants to stop. Stopped."""
        self.stop.check()
        if time.monotonic() - self.beaten > BEAT_SECONDS:
            self.beaten = time.monotonic()
            self.session.remote.channel.offer({"kind": "beat"})
        return False

    def pause(self) -> None:
        """Let some seconds pass."""
        until = time.monotonic() + NODES_SECONDS
        while time.monotonic() < until:
            self.listen()
            time.sleep(ASK_SECONDS)


def hosts_of(plan: LaunchPlan) -> list[str]:
    """Return the nodes on which ranks run."""
    return [node.name for node in plan.nodes]


def take_out(session: Session, job_id: str) -> bool:
    """Take a job out of the queue that waits with its controller; return whether it did."""
    answer = session.ask({"kind": "unqueue", "beats": True, "home": session.home, "job_id": job_id})
    return answer["kind"] == "unqueued" and answer["found"]
