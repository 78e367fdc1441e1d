# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Follows a job in pods: the log of each while it runs, and what the cluster says of them.

When one pod has failed, the cluster takes the others away within a second, and their logs with them: so logs are read
from the start, all at a time. What ended a job is decided by codes of the pods and fields of the API, never by a text.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import JobOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import Reason
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import protocol
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import ready
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import REFUSED

from .following import Doubt, Following, Seat
from .kubectl import Kubectl, KubeError, Pod
from .lease import Lease
from .manifest import LABEL
from .pod_memory import OOM_KILLED, killed
from .pod_waiting import Waiting

LOOK_SECONDS = 1.0  # between two looks at the pods
READ_SECONDS = 0.2  # between two reads of the logs
NOT_READY_SECONDS = 10.0  # that a machine may be not ready
BLOCK = 1 << 20
# Why a container waits that will never start (kubelet's reasons).
HOPELESS = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"),
    *("CreateContainerError", "RunContainerError"),
)
PULLS = ("ErrImagePull", "ImagePullBackOff")  # may pass: a registry that does not answer for a moment
PULL_SECONDS = 20.0  # that an image may not come
KILLED_SECONDS = 15.0  # for the cluster, which may be busy, to say how a container ended in which a rank was killed


@dataclass
class PodSeat(Seat):
    """One pod of the plan while the job runs."""

    log: subprocess.Popen[bytes] | None = None
    pod: Pod | None = None  # as it was seen last
    last_log: bool = False  # its container had ended when its log was opened
    unpulled: float = 0.0  # since when its image does not come, by the monotonic clock
    unpulled_why: str = ""


class PodFollowing(Following[PodSeat]):
    """One job in pods, from its creation to the end of its last pod."""

    unit = "pod"
    output_option = "pod_output"
    ended_there = "was deleted or evicted"

    def __init__(
        self,
        kubectl: Kubectl,
        name: str,
        order: JobOrder,
        run_dir: Path,
        start_timeout: float,
        show: Callable[[protocol.Line | protocol.Report], None],
        say: Callable[[str], None],
        lease: Lease | None = None,
    ) -> None:
        hosts = dict.fromkeys(place["host"] for place in order["placement"])
        super().__init__(order, {host: PodSeat(host) for host in hosts}, run_dir, start_timeout, show, say)
        self.kubectl, self.name, self.lease = kubectl, name, lease
        self.unanswered = 0.0  # since when the API gives no answer
        self.next_look = 0.0
        self.waiting = Waiting(kubectl, name, say)

    def read(self) -> None:
        """Read what came of all logs."""
        open_logs = {seat.log.stdout.fileno(): seat for seat in self.seats.values() if seat.log and seat.log.stdout}
        found = ready(open_logs, READ_SECONDS)
        if not open_logs:
            time.sleep(READ_SECONDS)
        for descriptor in found:
            self.read_log(open_logs[descriptor], descriptor)

    def read_log(self, seat: PodSeat, descriptor: int) -> None:
        """Read the log of a pod. A log with a line that no pod of ours writes is read no further."""
        data = os.read(descriptor, BLOCK)
        if not data:
            self.close_log(seat)
            seat.gone = seat.last_log
        elif not self.take(seat, data):
            self.close_log(seat)

    def look(self) -> None:
        """Look at the pods once in a while. KubeError if the API gives no answer for the lease."""
        if time.monotonic() >= self.next_look:
            self.look_now()
            self.next_look = time.monotonic() + LOOK_SECONDS

    def look_now(self) -> None:
        """Look at the pods, and renew their lease. KubeError if the API gives no answer for the lease."""
        try:
            self.take_pods(self.kubectl.pods(self.name, list(self.seats)))
            if not self.end:
                self.waiting.tell(self.not_begun(), len(self.seats))
            if self.lease and not self.end:
                self.lease.renew()
                if all(seat.placed for seat in self.seats.values()):
                    self.lease.note_running()
            self.unanswered = 0.0
        except KubeError:
            self.unanswered = self.unanswered or time.monotonic()
            if time.monotonic() - self.unanswered > self.order["lease"]:
                raise

    def take_pods(self, pods: list[Pod]) -> None:
        """Note what the cluster says of all pods."""
        for host, seat in self.seats.items():
            # Another may have been made since, and an operator gives it the same name: ranks do not start again.
            found = [pod for pod in pods if pod.host == host and (seat.pod is None or pod.uid == seat.pod.uid)]
            self.look_at(seat, found[0] if found else None)

    def look_at(self, seat: PodSeat, pod: Pod | None) -> None:
        """Note what the cluster says of a pod."""
        now = time.monotonic()
        if pod is None:
            if seat.pod and not seat.report:
                seat.suspected.setdefault(self.lost(seat.host, "was deleted"), Doubt(now))
            seat.gone = seat.gone or (seat.log is None and bool(seat.pod or self.end))
            return
        seat.pod = pod
        seat.unpulled = (seat.unpulled or now) if pod.container.waiting in PULLS else 0.0
        if pod.container.waiting == PULLS[0]:  # the other one does not say why
            seat.unpulled_why = pod.container.message
        if pod.began and seat.log is None and not (seat.report or seat.gone):
            seat.reader.again()
            seat.last_log = bool(pod.container.ended)
            seat.log = self.kubectl.follow_log(pod.name)
        if not seat.report:
            passing = {lost_machine(seat.host, pod.node)}
            doubts = self.doubts_about(seat.host, pod, now)
            kept = {why: doubt for why, doubt in seat.suspected.items() if why not in passing or why in doubts}
            seat.suspected = {**doubts, **kept}

    def never_starts(self) -> tuple[Reason, str] | None:
        """Return why a pod will never run, and which."""
        now = time.monotonic()
        for host, seat in self.seats.items():
            why = never_starts(seat, now) if seat.pod else None
            if why:
                return why, host
        return None

    def not_begun(self) -> dict[str, Pod | None]:
        """Return the pods that do not run yet, by host."""
        seats = [seat for seat in self.seats.values() if not (seat.placed or seat.report)]
        return {seat.host: seat.pod for seat in seats if not (seat.pod and seat.pod.began)}

    def not_started(self, missing: list[str]) -> Reason:
        """Return that pods did not start in time, and why. Others wait for them, and count only if there are none."""
        pods = self.not_begun()
        said = self.waiting.why(pods) if pods else ""
        return reasons.nodes_not_started(len(pods or missing), len(self.seats), self.start_timeout, said, "pods")

    def end_there(self) -> None:
        """Delete the job in the cluster."""
        with contextlib.suppress(KubeError):  # take_away() tries again, and says what is left
            self.kubectl.delete(f"{LABEL}={self.name}", wait=False)

    def close_log(self, seat: PodSeat) -> None:
        """Stop reading a log."""
        if seat.log:
            if seat.log.poll() is None:
                seat.log.kill()
            seat.log.wait()
            if seat.log.stdout:
                seat.log.stdout.close()
            seat.log = None

    def close(self) -> None:
        """Stop reading all logs."""
        for seat in self.seats.values():
            self.close_log(seat)

    def finish(self) -> None:
        """Look at pods with ranks that were killed until the cluster says how their containers ended."""
        until = time.monotonic() + KILLED_SECONDS
        while time.monotonic() < until and any(
            seat.report and killed(seat.report, self.end) and seat.pod and not seat.pod.container.ended
            for seat in self.seats.values()
        ):
            with contextlib.suppress(KubeError):  # the result does without
                self.look_now()
            time.sleep(READ_SECONDS)

    @property
    def out_of_memory(self) -> list[str]:
        """Return the pods in which something was killed for want of memory, by what the cluster said last."""
        return [host for host, seat in self.seats.items() if seat.pod and seat.pod.container.ended == OOM_KILLED]

    def doubts_about(self, host: str, pod: Pod, now: float) -> dict[Reason, Doubt]:
        """Return why a pod may be lost, by what the cluster says of it."""
        found = {}
        if pod.reason:
            found[self.lost(host, f"was ended: {pod.reason}{after(pod.message)}")] = Doubt(now)
        elif pod.deleted:
            found[self.lost(host, "was deleted or evicted")] = Doubt(now)
        if pod.container.running and pod.ready is False:
            found[lost_machine(host, pod.node)] = Doubt(now, NOT_READY_SECONDS)
        return found


def lost_machine(host: str, machine: str) -> Reason:
    """Return that nobody answers on the machine of a pod."""
    return reasons.node_lost(host, f"its machine {machine} is not ready")


def after(text: str) -> str:
    """Return a text that follows another one."""
    return f": {text}" if text else ""


def never_starts(seat: PodSeat, now: float) -> Reason | None:
    """Return why the container of a pod will never run, or ended before it was ours. `now`: the monotonic clock."""
    container = seat.pod.container if seat.pod else None
    if container is None or seat.report:
        return None
    if container.waiting in HOPELESS and not (container.waiting in PULLS and now - seat.unpulled < PULL_SECONDS):
        said = (seat.unpulled_why if container.waiting in PULLS else "") or container.message
        return reasons.never_started(f"{container.waiting}{after(said)}")
    if not (container.ended and seat.gone):
        return None
    said = seat.reader.said[-1] if seat.reader.said else container.message
    if container.status == REFUSED or seat.reader.number < 0:
        return reasons.never_started(said or container.ended)
    how = f"its pod ended with status {container.status} ({container.ended}){after(container.message)}"
    return reasons.node_lost(seat.host, how)
