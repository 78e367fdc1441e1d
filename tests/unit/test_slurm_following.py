"""A job on nodes of Slurm is followed: programs in place of srun say what it said, and what no entry of ours says."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import EndReason
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import lines_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.slurm_entry import BEAT, END
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled import slurm_following
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.slurm_following import SlurmFollowing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.slurm_request import names_partitions
from tests.unit.test_slurm_site import Recorded, recorded

ORDER: Any = {
    "job_id": "demo",
    "head": "node0",
    "placement": [{"rank": rank, "local_rank": rank % 2, "host": f"node{rank // 2}"} for rank in range(4)],
    "lease": 60.0,
    "grace": None,
}
REPORT = {"records": {}, "lines": {}, "leftovers": [], "launcher": {}, "metrics": []}
RECORD = {"rank": 0, "local_rank": 0, "wrapper_pid": 1, "cpus": [], "started": 1.0, "ended": 2.0, "rc": 0}
PLACED, OVER = {"kind": "placed"}, {"kind": "over", "report": REPORT}
LINE = {"kind": "line", "rank": 3, "stream": "stdout", "text": "loss 0.1", "skipped": 0}


def here(number: int) -> dict[str, object]:
    said = {"said": ["SLURM_NODEID"], "nic": "eth0", "rdma": [], "python": "python3", "node": f"n{number + 1}"}
    return {"kind": "here", "number": number, **said}


def said_by(number: int, *frames: dict[str, Any]) -> str:
    """Return what srun --label prints of the frames of a node."""
    lines: list[str] = []
    for frame in frames:
        lines += lines_of(frame, len(lines), 900)
    return "".join(f"{number}: {line}\n" for line in lines)


class Job(SlurmFollowing):
    """A job that a program of the test stands for. `printed`: by its srun, which then runs `code`."""

    def __init__(self, place: Path, printed: str, errors: str = "", code: str = "", name: str = "none") -> None:
        self.shown: list[Any] = []
        self.notes: list[str] = []
        program = f"import os, sys, time\nos.write(1, {printed.encode()!r})\nos.write(2, {errors.encode()!r})\n{code}"
        super().__init__(
            Recorded(), f"torchfleet-{name}-0123456789ab", [sys.executable, "-c", program], b"parcel", ORDER, place,
            60.0, self.shown.append, self.notes.append,
        )  # fmt: skip

    def ended(self) -> dict[str, Any]:
        """Follow it to its end, and return why it ended."""
        self.run(lambda: None, lambda: False)
        return dict(self.end or {})


def test_the_output_of_each_node_is_its_own(tmp_path: Path) -> None:
    """What a node says of ranks of another one is not shown, and a line without a label is nobody's."""
    false = {**LINE, "rank": 0, "text": "false"}
    files = ("ranks/3/stdout", "launcher.node1.out", "ranks/0/stdout", "launcher.out", "ranks/3/../0/stdout")
    sent = [{"kind": "output", "name": name, "first": True, "content": "eA==", "cut": 0} for name in files]
    node0 = said_by(0, here(0), PLACED, OVER)
    records = {"0": {**RECORD, "host": "node0"}, "3": {**RECORD, "rank": 3, "host": "node1"}}
    over = {"kind": "over", "report": {**REPORT, "records": records}}
    job = Job(tmp_path, node0 + "srun: noise\n9: x\n" + said_by(1, here(1), PLACED, LINE, false, *sent, over))
    assert job.ended() == {}
    assert list(job.reports["node1"]["records"]) == ["3"]
    assert [frame["text"] for frame in job.shown] == ["loss 0.1"] and set(job.reports) == {"node0", "node1"}
    assert "node1: on n2, python3, NIC eth0" in job.notes
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "launcher.node1.out",
        "ranks/3/stdout",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--partition=none",), "srun: error: invalid partition specified: none"),
        (
            ("--label", "/opt/none/python"),
            "slurmstepd-n2: error: execve(): /opt/none/python: No such file or directory",
        ),
    ],
)
def test_a_job_that_slurm_refuses_says_why(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """What a node says counts before what srun says of that node's status."""
    done = recorded("srun", *words)
    job = Job(tmp_path, "", done["stderr"], f"sys.exit({done['status']})")
    found = job.ended()
    assert (found["reason"], found["detail"]) == (EndReason.NOT_STARTED, said)
    job.keep_said(tmp_path)
    assert (tmp_path / "launcher.out").read_text() == done["stderr"]
    assert (tmp_path / "launcher.out").stat().st_mode & 0o777 == 0o600


def test_what_a_site_prints_on_a_node_is_no_start_of_ours(tmp_path: Path) -> None:
    """Prologs of tasks print to them: that nothing was started is told all the same, in the words of the node."""
    errors = "1: slurmstepd-n2: error: execve(): /opt/python: No such file or directory\n"
    found = Job(tmp_path, "0: Welcome\n1: Welcome\n", errors, "sys.exit(127)").ended()
    assert found["reason"] == EndReason.NOT_STARTED and found["detail"] == errors[3:].strip()


def test_output_that_is_cut_names_the_option_of_slurm(tmp_path: Path) -> None:
    cut = {"kind": "output", "name": "ranks/2/stdout", "first": True, "content": "YQo=", "cut": 9}
    Job(tmp_path, said_by(0, here(0), PLACED, OVER) + said_by(1, here(1), PLACED, cut, OVER)).ended()
    text = (tmp_path / "ranks" / "2" / "stdout").read_text()
    assert text == "... the first 9 bytes are not here: slurm_output limits what comes home\na\n"


def test_a_node_that_did_not_start_is_told_by_its_own_words(tmp_path: Path) -> None:
    """And not by those for which the job waited in the queue before."""
    errors = "0: noise\nsrun: error: n2: task 1: Exited with exit code 2\n1: error: execve(): /opt/python: Not there\n"
    job = Job(tmp_path, said_by(0, here(0), PLACED), errors, "time.sleep(600)", "later")
    job.name, job.next_look = "torchfleet-later-00ff00ff00ff", 0.0
    job.look()
    while not (job.heard["node0"] and job.said):
        job.read()
    job.began -= 6000.0
    late = job.reason_to_end()
    assert late and late[0].detail == "1 of 2 nodes did not start in 600 s: error: execve(): /opt/python: Not there"
    job.srun.kill()
    job.close()


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        (said_by(1, here(0)), "node1 is lost: its log cannot be trusted: it takes itself for node 0"),
        ("1: @torchfleet 0 : [1]\n", "node1 is lost: its log cannot be trusted"),
        ("1: @torchfleet 0 : " + "x" * 20_000 + "\n", "node1 is lost: its log cannot be trusted"),
    ],
)
def test_a_node_that_says_what_no_entry_says_is_lost(tmp_path: Path, printed: str, why: str) -> None:
    found = Job(tmp_path, said_by(0, here(0), OVER) + printed).ended()
    assert (found["reason"], found["host"]) == (EndReason.LOST, "node1") and found["detail"].startswith(why)


def test_srun_that_dies_loses_the_nodes_that_have_not_told_their_end(tmp_path: Path) -> None:
    printed = said_by(0, here(0), PLACED, OVER) + said_by(1, here(1), PLACED)
    found = Job(tmp_path, printed, "srun: error: Node failure on n2\n", "os.kill(os.getpid(), 9)").ended()
    assert (found["reason"], found["host"]) == (EndReason.LOST, "node1")
    assert found["detail"] == "node1 is lost: srun ended with status -9: srun: error: Node failure on n2"


def test_what_srun_said_is_kept_beside_what_the_launcher_said(tmp_path: Path) -> None:
    """Such as slurmstepd on memory."""
    (tmp_path / "launcher.out").write_text("torchrun's")
    over = said_by(0, here(0), OVER) + said_by(1, here(1), OVER)
    job = Job(tmp_path, over, "0: slurmstepd: \x1b[31moom_kill\n")
    job.ended()
    job.keep_said(tmp_path)
    assert (tmp_path / "launcher.out").read_text() == "torchrun's"
    assert (tmp_path / "srun.out").read_text() == "0: slurmstepd: [31moom_kill\n"


def test_a_silent_node_is_lost(tmp_path: Path) -> None:
    job = Job(tmp_path, said_by(0, here(0), PLACED) + said_by(1, here(1), PLACED), code="time.sleep(600)")
    while not all(job.heard.values()):
        job.read()
    assert job.reason_to_end() is None
    job.heard["node1"] -= 60.0 + slurm_following.SILENT_BEATS + 1.0
    found = job.reason_to_end()
    assert found and found[0].code == EndReason.LOST and found[1] == "node1"
    assert job.seats["node1"].gone and not job.seats["node0"].gone
    job.srun.kill()
    job.close()


def test_nodes_are_asked_to_end_by_their_input(tmp_path: Path) -> None:
    """Their ranks have their time then. Signs of life have come before."""
    code = "got = b''\nwhile not got.endswith(b'!'): got += os.read(0, 99)\nprint(repr(got), file=sys.stderr)"
    job = Job(tmp_path, said_by(0, here(0), PLACED), code=code)
    job.last_beat -= 60.0
    while not job.heard["node0"] or job.waiting:
        job.read()
    job.last_beat -= 60.0
    job.read()
    job.end_job(slurm_following.reasons.timed_out(5.0))
    while job.open:
        job.read()
    got = bytes(job.said).strip().removeprefix(b"b'").removesuffix(b"'")
    assert got.startswith(b"parcel" + BEAT) and got.endswith(BEAT + END) and got.count(END) == 1
    assert ("scancel", "--quiet") not in [words[:2] for words in job.slurm.asked]  # type: ignore[attr-defined]
    job.close()


@pytest.mark.parametrize(("name", "why"), [("three", "Slurm will not start it: PartitionNodeLimit: "), ("later", "")])
def test_a_job_that_waits_for_what_never_comes_is_ended(tmp_path: Path, name: str, why: str) -> None:
    """And one that waits for room goes on until its time is over."""
    whole = {"three": "torchfleet-three-3333cccc3333", "later": "torchfleet-later-00ff00ff00ff"}[name]
    job = Job(tmp_path, "", code="time.sleep(600)")
    job.name, job.next_look, job.next_tell = whole, 0.0, 0.0
    job.look()
    found = job.reason_to_end()
    if why:
        assert found and found[0].code == EndReason.NOT_STARTED and found[0].detail.startswith(why)
    else:
        assert found is None and job.notes == ["job demo waits in Slurm's queue: PENDING, Resources"]
        job.began -= 61.0
        late = job.reason_to_end()
        assert late and late[0].detail == "2 of 2 nodes did not start in 60 s: PENDING, Resources"
        job.end_job(*late)
        assert job.over() and ("scancel", "--quiet", number_of(whole)) in job.slurm.asked  # type: ignore[attr-defined]
    job.srun.kill()
    job.close()


def test_the_time_in_the_queue_is_not_that_of_the_start(tmp_path: Path) -> None:
    """Slurm brought the nodes in the last second: their ranks have their time to start."""
    job = Job(tmp_path, said_by(0, here(0)), code="time.sleep(600)")
    job.began -= 59.0
    while not job.heard["node0"]:
        job.read()
    assert job.reason_to_end() is None and time.monotonic() - job.began < 30
    job.srun.kill()
    job.close()


@pytest.mark.parametrize(
    ("words", "choice"),
    [(["--partition=a,b"], True), (["-pa,b"], True), (["--partition=a", "-wn1,n2"], False)],
)
def test_a_job_with_a_choice_of_partitions_waits(tmp_path: Path, words: list[str], choice: bool) -> None:
    """Slurm gives the reason of the partition that it tried last."""
    job = Job(tmp_path, "", code="time.sleep(600)")
    job.has_choice = names_partitions(words)
    job.name, job.next_look = "torchfleet-three-3333cccc3333", 0.0
    job.look()
    assert job.row and job.row.reason == "PartitionNodeLimit" and (job.reason_to_end() is None) == choice
    job.srun.kill()
    job.close()


def test_squeue_is_asked_less_and_less(tmp_path: Path) -> None:
    job = Job(tmp_path, "", code="time.sleep(600)")
    pauses = []
    for _look in range(6):
        job.next_look = began = time.monotonic()
        job.look()
        pauses.append(round(job.next_look - began))
    assert pauses == [5, 10, 20, 40, 60, 60]
    job.srun.kill()
    job.close()


def number_of(name: str) -> str:
    """Return the number of a job in what was recorded."""
    rows = recorded("squeue", "--me")["stdout"].splitlines()
    return str(next(row for row in rows if name in row).partition("|")[0])
