"""One cell of the fault matrix: a job, a fault, and what is true afterwards."""

from __future__ import annotations

import dataclasses
import hashlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.driver import END_SECONDS, POLL_SECONDS, command, wait_until, whole_result
from tests.faults.bed import NODES, PROGRAM, Bed
from tests.faults.rows import ANY, Row
from tests.lab.cluster import Job

FLOOD_LINES = 500_000  # of program/steady.py
LINES_BEFORE = 3  # that each rank has flushed before anything is done
SEEN_CHARACTERS = 400
WATCH_SECONDS = 40.0  # beyond the promised time, until what is left is called left
QUEUE_SECONDS = 15.0  # for a batch system to see that its job has ended
BUSY_SECONDS = 1.0  # that a look may come too late on a busy machine
NOTHING = PROGRAM.parent / "nothing.py"


@dataclasses.dataclass
class Outcome:
    """What became of a cell. Seconds since the fault, or since the ranks of a job that goes on were told to finish.

    `wrong`: what should have been otherwise, each as a code and what was seen.
    """

    gone: float | None = None  # until nothing was left
    returned: float | None = None  # until ansible-playbook was over
    following: float | None = None  # that the next job took, from the command until its run was here
    told: dict[str, Any] = dataclasses.field(default_factory=dict)  # of result.json
    wrong: list[list[str]] = dataclasses.field(default_factory=list)

    def blame(self, code: str, seen: object) -> None:
        self.wrong.append([code, " ".join(str(seen).split())[:SEEN_CHARACTERS]])


class CellRun:
    """Plays a cell, step by step. Nothing of it is left when play() returns."""

    def __init__(self, bed: Bed, row: Row, launcher: str, job_id: str) -> None:
        self.bed, self.row, self.launcher, self.job_id = bed, row, launcher, job_id
        self.outcome = Outcome()
        self.began = 0.0
        self.before: set[int] = set()
        self.job: Job

    def play(self, following: bool = True) -> Outcome:
        """Play it. `following`: also start the next job, which proves that nothing stands in its way."""
        self.bed.mend()
        self.before, beside = self.bed.supervisors(*NODES), self.bed.bystanders()
        assert all(beside.values()), beside
        try:
            self.row.before(self)
            self.begin()
            self.end()
            self.row.undo(self)
            self.settle()
            if not self.row.needs_cleaning:
                self.look_at_queue()
            if following:
                self.start_the_next()
            self.bring_home()
            self.look_at_queue()
            self.judge()
            self.look_beside(beside)
        except (AssertionError, OSError, subprocess.SubprocessError, LookupError, ValueError, StopIteration) as error:
            self.outcome.blame("broken", f"{type(error).__name__}: {error}")
        finally:
            self.leave()
        return self.outcome

    # --- the job and the fault ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the job; do what the row does when all ranks write."""
        words = [self.row.program, str(self.row.culprit)] if self.row.script == PROGRAM else [self.row.program]
        given = {**self.given(self.job_id), **self.row.given}
        self.job = self.bed.cluster.start(workload=str(self.row.script), workload_args=words, **given)
        self.began = time.monotonic()
        if self.row.starts:
            self.job.wait_until(self.runs, 120.0)
        self.row.do(self)
        if self.row.goes_on:
            self.finish()
        self.began = time.monotonic() if self.row.starts else self.began

    def given(self, job_id: str) -> dict[str, Any]:
        """Return what every job is started with."""
        return {"np": 4, "ranks_per_node": 1, "launcher": self.launcher, "job_id": job_id}

    def runs(self) -> bool:
        """Whether every rank has written what it writes before anything is done."""
        assert self.job.process.poll() is None, self.job.output
        if self.row.script != PROGRAM:
            return all(self.row.program in self.said(rank) for rank in range(len(NODES)))
        if self.row.program == "binary":
            return all(self.bed.noted(self.job_id, rank, "hash").strip("0") for rank in range(len(NODES)))
        least = LINES_BEFORE if self.row.program != "flood" or not self.row.goes_on else FLOOD_LINES
        return all(int(self.bed.noted(self.job_id, rank) or 0) >= least for rank in range(len(NODES)))

    def said(self, rank: int) -> str:
        """Return what a rank has written so far, on its node."""
        home = self.bed.cluster.home_of(NODES[rank])
        return self.bed.lab.read(NODES[rank], f"{home}/jobs/{self.job_id}/ranks/{rank}/stdout")

    def finish(self) -> None:
        """Have all ranks leave with status 0."""
        self.bed.tell(self.job_id, "done")

    # --- the end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Wait until nothing is left, and until the playbook is over."""
        apart = {*self.row.late, *self.row.cleaned}
        if not self.row.starts:
            self.job.process.wait(120)
        self.outcome.gone = self.wait_until_gone([node for node in NODES if node not in apart], self.row.within)
        try:
            self.job.process.wait(WATCH_SECONDS)
            self.outcome.returned = self.seconds()
        except subprocess.TimeoutExpired:
            self.outcome.blame("playbook", f"it has not returned after {self.seconds():.0f} s")

    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 1)

    def wait_until_gone(self, nodes: list[str], within: float) -> float | None:
        """Return the seconds until none of the job's processes was left on some nodes; None if some stayed."""
        while left := self.bed.of_job(self.job_id, *nodes):
            if self.seconds() > within + WATCH_SECONDS:
                self.outcome.blame("left", self.named(left))
                return None
            time.sleep(POLL_SECONDS)
        if self.seconds() > within + BUSY_SECONDS:
            self.outcome.blame("late", f"gone after {self.seconds()} s, promised were {within:g} s")
        return self.seconds()

    def named(self, processes: list[int]) -> str:
        return "; ".join(f"{pid} {' '.join(command(pid))[:80]}" for pid in processes)

    def settle(self) -> None:
        """See what the nodes end by themselves that could not before."""
        if self.row.late:
            self.began = time.monotonic()
            self.wait_until_gone(list(self.row.late), END_SECONDS)

    def look_at_queue(self) -> None:
        """See that no batch system has anything left of the job."""
        try:
            wait_until(lambda: not self.bed.queued(self.job_id), QUEUE_SECONDS)
        except AssertionError:
            self.outcome.blame("queue", f"Slurm has {', '.join(self.bed.queued(self.job_id))}")

    def start_the_next(self) -> None:
        """Start another job at once, before anybody has cleaned up."""
        start = time.monotonic()
        job = self.bed.cluster.play(workload=str(NOTHING), **self.given(f"{self.job_id}-next"))
        self.outcome.following = round(time.monotonic() - start, 1)
        if job.process.returncode or job.result["state"] != "succeeded":
            self.outcome.blame("next", job.output[-SEEN_CHARACTERS:])

    def bring_home(self) -> None:
        """Have the run here: by the playbook's own worker, or by clean.yml where the row says so."""
        if not self.row.needs_cleaning:
            if "refused" not in self.row.states:
                wait_until((self.job.run_dir / "fetched.json").exists, 30.0, lambda: self.job.output[-SEEN_CHARACTERS:])
            return
        cleaned = self.bed.cluster.clean()
        if cleaned.process.returncode:
            self.outcome.blame("clean", cleaned.output[-SEEN_CHARACTERS:])
        self.began = time.monotonic()
        self.wait_until_gone(list(NODES), END_SECONDS)

    # --- what is true ------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Compare the result with what the row says, and the ranks' files with what they flushed."""
        if "refused" in self.row.states:
            named = self.job.process.returncode == 2 and self.row.hosts[0] in self.job.output
            if not named or self.job.run_dir.exists():
                self.outcome.blame("refused", self.job.output[-SEEN_CHARACTERS:])
            return
        result = whole_result(self.job.run_dir / "result.json")
        failure, cause = result["first_failure"] or {}, result.get("cause") or {}
        told = {"host": failure.get("host", ""), "rank": failure.get("rank"), "cause": cause.get("id", "")}
        self.outcome.told = {"state": result["state"], "rc": result["rc"], **told}
        for code, seen in self.untrue(self.outcome.told):
            self.outcome.blame(code, f"{seen} ({failure.get('cause', '')})")
        for said in self.output_faults():
            self.outcome.blame("output", said)

    def untrue(self, told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield what a result tells that the row does not say."""
        row, status = self.row, self.job.process.returncode
        if told["state"] not in row.states:
            yield "state", told["state"]
        if row.rc is not None and told["rc"] != row.rc:
            yield "rc", str(told["rc"])
        if told["host"] not in (row.hosts or ("",)) or (row.rank != ANY and told["rank"] != row.rank):
            yield "first failure", f"rank {told['rank']} on {told['host']}"
        if row.cause and told["cause"] != row.cause:
            yield "cause", told["cause"] or "none"
        if status is not None and status >= 0 and (status == 0) != (told["state"] == "succeeded"):
            yield "playbook", f"exit status {status}"

    def output_faults(self) -> Iterator[str]:
        """Yield what is wrong with the files of ranks: a line that is missing, doubled or cut."""
        if self.row.script != PROGRAM:
            return
        for rank in range(len(NODES)):
            path = self.job.run_dir / "ranks" / str(rank) / "stdout"
            data = path.read_bytes() if path.exists() else b""
            fault = self.byte_fault(rank, data) if self.row.program == "binary" else self.line_fault(rank, data)
            if fault:
                yield f"rank {rank}: {fault}"

    def byte_fault(self, rank: int, data: bytes) -> str:
        wrote = self.bed.noted(self.job_id, rank, "hash")
        return "" if hashlib.sha256(data).hexdigest() == wrote else "other bytes than it wrote"

    def line_fault(self, rank: int, data: bytes) -> str:
        lines, flushed = data.split(b"\n")[:-1], int(self.bed.noted(self.job_id, rank) or 0)
        if any(line != b"line %d" % number for number, line in enumerate(lines, 1)):
            return "lines in disorder"
        return f"{len(lines)} of {flushed} lines" if self.row.whole and len(lines) < flushed else ""

    def look_beside(self, beside: dict[str, list[int]]) -> None:
        """See that bystanders live, but on nodes that lost power, and that nothing of torchfleet's own is left."""
        now = self.bed.bystanders()
        for what, were in beside.items():
            if what[-2:] != self.row.down and not set(were) <= set(now[what]):
                self.outcome.blame("bystander", f"{what} is gone")
        try:
            wait_until(lambda: not self.bed.supervisors(*NODES) - self.before, 10.0)
        except AssertionError:
            left = sorted(self.bed.supervisors(*NODES) - self.before)
            self.outcome.blame("left", f"supervisors or guards: {self.named(left)}")

    def leave(self) -> None:
        """End what is left, whatever the cell came to."""
        process = self.job.process if hasattr(self, "job") else None
        if process and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if self.outcome.wrong:
            self.bed.mend_nodes()
            self.bed.sweep(self.job_id)
            self.row.undo(self)
            self.bed.cluster.clean()
