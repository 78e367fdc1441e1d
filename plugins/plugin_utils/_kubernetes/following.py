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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._kubernetes.pod import REFUSED, launcher_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._kubernetes.pod_log import FromPod, LogReader
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import protocol, reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.channel import ready
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.frames import RANK_FILE
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.job_directory import ranks_on
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.orders import JobOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.reasons import EndReason, Reason
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.records import End, NodeReport
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.remote_node import own_ranks_report

from .kubectl import Kubectl, KubeError, Pod
from .lease import Lease
from .manifest import GRACE_SECONDS, LABEL
from .pod_memory import OOM_KILLED, killed
from .pod_output import OutputFiles
from .pod_waiting import Waiting

LOOK_SECONDS = 1.0  # between two looks at the pods
READ_SECONDS = 0.2  # between two reads of the logs
SUSPECT_SECONDS = 3.0  # that a pod may be on its way out before that counts: the log of the one to blame comes first
NOT_READY_SECONDS = 10.0  # that a machine may be not ready
BLOCK = 1 << 20
# Why a container waits that will never start (kubelet's reasons).
HOPELESS = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"),
    *("CreateContainerError", "RunContainerError"),
)
PULLS = ("ErrImagePull", "ImagePullBackOff")  # may pass: a registry that does not answer for a moment
PULL_SECONDS = 20.0  # that an image may not come
KILLED_SECONDS = 5.0  # for the cluster to say how a container ended in which a rank was killed


class Doubt(NamedTuple):
    """Since when a pod may be lost, and how many seconds of that are too many."""

    since: float
    patience: float = SUSPECT_SECONDS


@dataclass
class Seat:
    """One pod of the plan while the job runs."""

    host: str
    reader: LogReader = field(default_factory=LogReader)
    log: subprocess.Popen[bytes] | None = None
    pod: Pod | None = None  # as it was seen last
    placed: bool = False
    report: NodeReport | None = None
    suspected: dict[Reason, Doubt] = field(default_factory=dict)  # why it may be lost
    last_log: bool = False  # its container had ended when its log was opened
    gone: bool = False  # nothing more comes
    unpulled: float = 0.0  # since when its image does not come, by the monotonic clock
    unpulled_why: str = ""
    refused: str = ""  # why its log is not read any more


class Following:
    """One job in pods, from its creation to the end of its last pod."""

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
        self.kubectl, self.name, self.order, self.show, self.say = kubectl, name, order, show, say
        self.start_timeout, self.lease = start_timeout, lease
        hosts = list(dict.fromkeys(place["host"] for place in order["placement"]))
        self.seats = {host: Seat(host) for host in hosts}
        self.output = OutputFiles(run_dir)
        self.started = time.time()
        self.began = time.monotonic()
        self.end: End | None = None
        self.deadline = 0.0  # for pods to go, when the job is ended
        self.unanswered = 0.0  # since when the API gives no answer
        self.waiting = Waiting(kubectl, name, say)

    def run(self, reason_to_stop: Callable[[], Reason | None], insisted: Callable[[], bool]) -> None:
        """Follow the job until every pod has reported its end or is gone. KubeError if the API is lost."""
        next_look = 0.0
        try:
            while not self.over():
                self.read_logs()
                if time.monotonic() >= next_look:
                    self.look()
                    next_look = time.monotonic() + LOOK_SECONDS
                asked = reason_to_stop()
                found = (asked, "") if asked else self.reason_to_end()
                if found:
                    self.end_job(*found)
                if insisted():
                    break
            else:
                self.ask_who_killed()
        finally:
            self.close()
        if self.end is None and self.doubts():
            why, _doubt, host = self.doubts()[0]
            self.note_end(why, host)

    def over(self) -> bool:
        """Whether nothing more comes of any pod."""
        if self.end and self.deadline and time.monotonic() > self.deadline:
            return True
        return all(seat.report or seat.gone for seat in self.seats.values())

    def read_logs(self) -> None:
        """Read what came of all logs."""
        open_logs = {seat.log.stdout.fileno(): seat for seat in self.seats.values() if seat.log and seat.log.stdout}
        found = ready(open_logs, READ_SECONDS)
        if not open_logs:
            time.sleep(READ_SECONDS)
        for descriptor in found:
            self.read_log(open_logs[descriptor], descriptor)

    def read_log(self, seat: Seat, descriptor: int) -> None:
        """Read the log of a pod, and handle its frames. One that says what no pod of ours says is not read any more."""
        data = os.read(descriptor, BLOCK)
        if not data:
            self.close_log(seat)
            seat.gone = seat.last_log
            return
        try:
            missing = seat.reader.missing
            for frame in seat.reader.take(data):
                self.on_frame(seat, frame)
            if seat.reader.missing and not missing:
                seat.placed = True  # that may have been there: only a log of megabytes is rotated
                self.say(f"{seat.host}: a part of its log was rotated away on its machine: its output may lack")
        except BadFrame as error:
            seat.refused = str(error)
            self.close_log(seat)
            seat.gone = True
            self.end_job(reasons.node_lost(seat.host, f"its log cannot be trusted: {error}"), seat.host)

    def on_frame(self, seat: Seat, frame: FromPod) -> None:
        """Handle one frame of a pod, which speaks for its own ranks only. BadFrame, OSError."""
        own = ranks_on(seat.host, self.order["placement"])
        if frame["kind"] == "line" or frame["kind"] == "report":
            if frame["rank"] in own:
                self.show(frame)
            if frame["kind"] == "report" and frame["rank"] in own:
                self.output.note_metrics(frame)
        elif frame["kind"] == "here":
            if frame["number"] != list(self.seats).index(seat.host):
                raise BadFrame(f"it takes itself for pod {frame['number']}")
            self.say(f"{seat.host}: on {frame['node'] or 'an unknown machine'}, {frame['python']}, NIC {frame['nic']}")
        elif frame["kind"] == "placed":
            seat.placed = True
        elif frame["kind"] == "ending":
            self.on_ending(seat, Reason(frame["reason"], frame["detail"]))
        elif frame["kind"] == "output":
            found = RANK_FILE.match(frame["name"])
            is_own = bool(found and int(found.group(1)) in own)
            if is_own or frame["name"] == launcher_file(seat.host, self.order["head"]):
                self.output.take(frame)
        elif frame["kind"] == "over":
            seat.report = own_ranks_report(seat.host, frame["report"])

    def on_ending(self, seat: Seat, reason: Reason) -> None:
        """Note why a pod ends its part. A signal that nobody here sent came with the end of the pod."""
        if reason.code == EndReason.CANCELLED:
            seat.suspected.setdefault(lost(seat.host, "was deleted or evicted"), Doubt(time.monotonic()))
        else:
            self.end_job(reason, seat.host)

    def look(self) -> None:
        """Look at the pods, and renew their lease. KubeError if the API gives no answer for the lease."""
        try:
            self.take(self.kubectl.pods(self.name, list(self.seats)))
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

    def take(self, pods: list[Pod]) -> None:
        """Note what the cluster says of all pods."""
        for host, seat in self.seats.items():
            name = seat.pod.name if seat.pod else ""  # the Job may have made another since: ranks do not start again
            found = [pod for pod in pods if pod.host == host and name in ("", pod.name)]
            self.look_at(seat, found[0] if found else None)

    def look_at(self, seat: Seat, pod: Pod | None) -> None:
        """Note what the cluster says of a pod."""
        now = time.monotonic()
        if pod is None:
            if seat.pod and not seat.report:
                seat.suspected.setdefault(lost(seat.host, "was deleted"), Doubt(now))
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
            doubts = doubts_about(seat.host, pod, now)
            kept = {why: doubt for why, doubt in seat.suspected.items() if why not in passing or why in doubts}
            seat.suspected = {**doubts, **kept}

    def reason_to_end(self) -> tuple[Reason, str] | None:
        """Return why the job must end now by what the cluster says, and which pod that is about (empty: several)."""
        if self.end:
            return None
        now = time.monotonic()
        for host, seat in self.seats.items():
            why = never_starts(seat, now) if seat.pod else None
            if why:
                return why, host
        for why, doubt, host in self.doubts():
            if now - doubt.since > doubt.patience:
                return why, host
        missing = [host for host, seat in self.seats.items() if not (seat.placed or seat.report)]
        if missing and now - self.began > self.start_timeout:
            return self.not_started(missing), ""
        return None

    def doubts(self) -> list[tuple[Reason, Doubt, str]]:
        """Return why pods may be lost, since when and which, the oldest first."""
        rows = [(why, doubt, host) for host, seat in self.seats.items() for why, doubt in seat.suspected.items()]
        return sorted(rows, key=lambda row: row[1].since)

    def not_begun(self) -> dict[str, Pod | None]:
        """Return the pods that do not run yet, by host."""
        seats = [seat for seat in self.seats.values() if not (seat.placed or seat.report)]
        return {seat.host: seat.pod for seat in seats if not (seat.pod and seat.pod.began)}

    def not_started(self, missing: list[str]) -> Reason:
        """Return that pods did not start in time, and why. Others wait for them, and count only if there are none."""
        pods = self.not_begun()
        said = self.waiting.why(pods) if pods else ""
        return reasons.pods_not_started(len(pods or missing), len(self.seats), self.start_timeout, said)

    def end_job(self, reason: Reason, host: str = "") -> None:
        """End the job in the cluster. The first reason stands."""
        if self.end is None:
            self.note_end(reason, host)
            self.deadline = time.monotonic() + (self.order["grace"] or 0) + 2 * GRACE_SECONDS
            with contextlib.suppress(KubeError):  # clean() tries again, and says what is left
                self.kubectl.delete(f"{LABEL}={self.name}", wait=False)

    def note_end(self, reason: Reason, host: str = "") -> None:
        """Note why the job ended."""
        self.end = {"reason": reason.code, "detail": reason.detail, "at": time.time(), "host": host}

    def close_log(self, seat: Seat) -> None:
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

    def ask_who_killed(self) -> None:
        """Look at pods with ranks that were killed until the cluster says how their containers ended."""
        until = time.monotonic() + KILLED_SECONDS
        while time.monotonic() < until and any(
            seat.report and killed(seat.report, self.end) and seat.pod and not seat.pod.container.ended
            for seat in self.seats.values()
        ):
            with contextlib.suppress(KubeError):  # the result does without
                self.look()
            time.sleep(READ_SECONDS)

    @property
    def short(self) -> list[str]:
        """Return the pods in which something was killed for want of memory, by the last that the cluster said."""
        return [host for host, seat in self.seats.items() if seat.pod and seat.pod.container.ended == OOM_KILLED]

    @property
    def reports(self) -> Mapping[str, NodeReport]:
        """Return the final reports of the pods, by host."""
        return {host: seat.report for host, seat in self.seats.items() if seat.report}


def lost(host: str, how: str) -> Reason:
    """Return that a pod is gone."""
    return reasons.node_lost(host, f"its pod {how}")


def lost_machine(host: str, machine: str) -> Reason:
    """Return that nobody answers on the machine of a pod."""
    return reasons.node_lost(host, f"its machine {machine} is not ready")


def doubts_about(host: str, pod: Pod, now: float) -> dict[Reason, Doubt]:
    """Return why a pod may be lost, by what the cluster says of it."""
    found = {}
    if pod.reason:
        found[lost(host, f"was ended: {pod.reason}{after(pod.message)}")] = Doubt(now)
    elif pod.deleted:
        found[lost(host, "was deleted or evicted")] = Doubt(now)
    if pod.container.running and pod.ready is False:
        found[lost_machine(host, pod.node)] = Doubt(now, NOT_READY_SECONDS)
    return found


def after(text: str) -> str:
    """Return a text that follows another one."""
    return f": {text}" if text else ""


def never_starts(seat: Seat, now: float) -> Reason | None:
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
