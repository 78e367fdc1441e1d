"""What is said of a job, from what it left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import FILE_BYTES, JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.first_failure import (
    blame_launcher,
    blame_lost_node,
    deaths_of,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.restart_rule import node_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.result import (
    Found,
    cancelled_by_node_note,
    summarize,
    write_result,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import Verdict, VerdictCode
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.metrics import Metrics
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import ITEMS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import STATES, RankError
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import record_forms
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.explanation import cause_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import headline, verdict

# Made once: jsonschema.validate() judges the schema too, each time.
RESULT = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[2] / "docs" / "result.schema.json").read_text())
)
START = 1_800_000_000.0
STAGING = {"started": 0.0, "private_tmp": ""}


def order(ranks: int = 2) -> dict[str, Any]:
    return {
        "job_id": "job",
        "world_size": ranks,
        "backend": "gloo",
        "host": "head",
        "head": "head",
        "ranks": [],
        "run_dir": "/runs/job",
        "launcher": {"name": "openmpi", "version": "5.0.11", "path": "/m"},
        "shown_command": ["/m"],
        "placement": [place(rank) for rank in range(ranks)],
    }


def order_of(*hosts: str) -> dict[str, Any]:
    """Return the order of n1, which is the head, for a job with a rank on each of these."""
    places = [place(rank, host) for rank, host in enumerate(hosts)]
    own = [rank for rank, host in enumerate(hosts) if host == "n1"]
    return order(len(hosts)) | {"head": "n1", "host": "n1", "ranks": own, "placement": places}


def place(rank: int, host: str = "n1") -> dict[str, Any]:
    return {"rank": rank, "local_rank": rank, "host": host}


def record(rank: int, rc: int | None = 0, ended: float = 9.0, **changed: Any) -> dict[str, Any]:
    """Return the record of a rank that ended (or runs: rc None) so many seconds after the start."""
    done = {} if rc is None else {"rc": rc, "signal": None, "finished": False, "error": "", "ended": START + ended}
    return {"rank": rank, "pid": 100 + rank, "cpus": [0], "started": START + 1, **done, **changed}


def orphan(rank: int, ended: float = 1.9) -> dict[str, Any]:
    """Return the record of a rank whose wrapper died, as the guard writes it."""
    return record(rank, 1, ended, error_code="wrapper_died", error="its wrapper died")


def summary(
    records: list[dict[str, Any]],
    end: tuple[str, str, float] | None = None,
    lines: dict[int, str] | None = None,
    launcher: dict[str, Any] | None = None,
    ranks: int = 2,
    hang: Verdict | None = None,
) -> dict[str, Any]:
    note = {"reason": end[0], "detail": end[1], "at": START + end[2]} if end else None
    found = Found({"head": []}, {}, START, START + 10, hang=hang)
    last = {rank: ("stderr", (lines or {}).get(rank, "")) for rank in range(ranks)}
    result = summarize(
        order(ranks),
        {row["rank"]: row for row in records},
        note,
        last,
        launcher or {"rc": 0, "last_line": ""},
        found,
    )
    RESULT.validate(result)
    return result


def states(result: dict[str, Any]) -> list[str]:
    return [row["state"] for row in result["ranks"]]


def test_success_needs_a_record_of_every_rank() -> None:
    good = summary([record(0), record(1)])
    assert (good["state"], good["rc"], good["first_failure"], good["seconds"]) == ("succeeded", 0, None, 10.0)
    assert (good["started"], good["ended"]) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:00:10.000Z")
    silent = summary([record(0)])  # the launcher says 0, but rank 1 never told: Open MPI 5 after a lost daemon
    assert (silent["state"], silent["rc"], silent["silent_ranks"]) == ("failed", 1, [1])
    assert states(silent) == ["succeeded", "silent"]


def test_the_earliest_failure_is_blamed_and_its_status_is_the_jobs() -> None:
    result = summary([record(0, 1, 5.2), record(1, 7, 5.1)], ("rank_failed", "", 5.3), {1: "ValueError: x"})
    assert (result["state"], result["rc"]) == ("failed", 7)
    assert result["first_failure"] == {
        "rank": 1,
        "host": "n1",
        "cause": "exit status 7",
        "message": "ValueError: x",
        "log": "/runs/job/ranks/1/stderr",
    }


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_does_not_change_who_is_blamed(step: float) -> None:
    """Rank 1 failed first; the clock of their node was set between the two ends."""
    ticks = [{"started_tick": 1.0, "ended_tick": 5.2}, {"started_tick": 1.0, "ended_tick": 5.1}]
    result = summary([record(0, 1, 5.2 + step, **ticks[0]), record(1, 7, 5.1, **ticks[1])], ("rank_failed", "", 5.3))
    assert result["first_failure"]["rank"] == 1 and result["rc"] == 7


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2345",
        "RuntimeError: Connection reset by peer",
        "RuntimeError: Timed out waiting 8000ms for recv operation to complete",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_a_consequence_is_not_the_cause(line: str) -> None:
    result = summary([record(0, 1, 5.0), record(1, 137, 5.1, signal=9)], ("rank_failed", "", 5.2), {0: line})
    assert result["first_failure"]["rank"] == 1
    assert result["first_failure"]["cause"] == "killed by SIGKILL"
    alone = summary([record(0, 1, 5.0), record(1)], None, {0: line})
    assert alone["first_failure"]["rank"] == 0


def test_of_two_at_the_same_moment_the_one_that_says_why_is_blamed() -> None:
    result = summary([record(0, 1, 5.004), record(1, 1, 5.0)], ("rank_failed", "", 5.1), {0: "ValueError: x"})
    assert result["first_failure"]["rank"] == 0
    later = summary([record(0, 1, 5.2), record(1, 1, 5.0)], ("rank_failed", "", 5.3), {0: "ValueError: x"})
    assert later["first_failure"]["rank"] == 1


def test_ranks_that_we_ended_did_not_fail() -> None:
    result = summary([record(0, 3, 5.0), record(1, 143, 5.5, signal=15)], ("rank_failed", "", 5.1))
    assert states(result) == ["failed", "ended"]
    handled = summary([record(0, 3, 5.0), record(1, 1, 5.5)], ("rank_failed", "", 5.1))  # it caught SIGTERM and left
    assert states(handled) == ["failed", "ended"]


@pytest.mark.parametrize(
    ("rc", "signal", "cause"),
    [
        (139, 11, "killed by SIGSEGV"),
        (139, None, "exit status 139 (SIGSEGV, as shells report it)"),
        (137, None, "exit status 137 (SIGKILL, as shells report it)"),
        (7, None, "exit status 7"),
        (128, None, "exit status 128"),
        (138, None, "exit status 138"),  # SIGUSR1: no program dies of it unasked
        (255, None, "exit status 255"),
    ],
)
def test_a_signal_is_named_also_where_a_shell_reports_it(rc: int, signal: int | None, cause: str) -> None:
    result = summary([record(0, rc, signal=signal)], ("rank_failed", "", 9.5), ranks=1)
    assert (result["rc"], result["ranks"][0]["signal"], result["first_failure"]["cause"]) == (rc, signal, cause)


def test_death_in_teardown_is_told_apart() -> None:
    result = summary([record(0), record(1, 134, signal=6, finished=True)])
    assert (result["state"], result["ranks"][1]["rc"], result["ranks"][1]["signal"]) == ("succeeded", 134, 6)
    assert summary([record(0), record(1, 134, signal=6)])["state"] == "failed"


@pytest.mark.parametrize(
    ("reason", "state", "rc"), [("timed_out", "timed_out", 124), ("cancelled", "cancelled", 130), ("lost", "lost", 1)]
)
def test_why_it_was_ended(reason: str, state: str, rc: int) -> None:
    ended = [record(rank, 143, 5.5, signal=15) for rank in (0, 1)]
    result = summary(ended, (reason, "job_timeout of 5 s", 5.0), {0: "epoch 3"})
    assert (result["state"], result["rc"], states(result)) == (state, rc, ["ended", "ended"])
    assert (result["first_failure"] is None) == (reason == "cancelled")
    nobody = "no rank is known to have kept the others waiting" in verdict(result, "/runs/job")
    assert nobody == (reason == "timed_out"), "rank 0 is shown, and is not to blame"
    assert state in verdict(result, "/runs/job")


RANK_1 = Verdict(VerdictCode.BLAMED, [1], "rank 1 on n1 is sleeping; rank 0 waits for it")


@pytest.mark.parametrize(
    ("reason", "state"), [("timed_out", "timed_out"), ("hung", "failed"), ("cancelled", "cancelled"), ("lost", "lost")]
)
def test_a_hang_is_told_in_the_result(reason: str, state: str) -> None:
    """Of a job that a person ended it is a note: nothing failed. No node is kept out for a signal that came from us."""
    ended = [record(rank, 143, 5.5, signal=15) for rank in (0, 1)]
    result = summary(ended, (reason, "why", 5.0), hang=RANK_1)
    assert (result["state"], states(result), node_of(result)) == (state, ["ended", "ended"], "")
    failure, notes = result["first_failure"], [note["text"] for note in result["notes"] if note["code"] == "hung"]
    if reason in ("timed_out", "hung"):
        assert (failure["rank"], failure["cause"]) == (1, f"why: {RANK_1.sentence}")
        assert RANK_1.sentence not in headline(result), "the line on the first failure says it"
        codes = [note["code"] for note in result["notes"]]
        assert codes == (["hang_end", "hung"] if reason == "hung" else ["kept_waiting"])
        assert (found := cause_of(result, Path("/nowhere"))) and found["id"] == (
            "hang" if reason == "hung" else "time-over"
        )
    else:
        assert failure is None or (failure["rank"], failure["cause"]) == (None, "why")
        assert RANK_1.sentence in headline(result)
    assert notes == [f"it hung: {RANK_1.sentence}"] or reason == "timed_out"


def test_two_nodes_of_which_one_has_a_rank_that_hung_both_stay() -> None:
    ended = [record(rank, 143, 5.5, signal=15) for rank in (0, 1)]
    result = summary(ended, ("hung", "why", 5.0), hang=RANK_1)
    result["placement"][0]["host"] = result["ranks"][0]["host"] = "n2"
    assert node_of(result) == ""
    result["ranks"][1]["state"] = "failed"  # a signal that came from elsewhere
    assert node_of(result) == "n1"


def test_a_node_that_cancels_a_job_is_named(tmp_path: Path) -> None:
    """Reproduced before: a worker could end a job as if its user had, and nothing said which."""
    end = {"reason": "cancelled", "detail": "SIGTERM to the supervisor on n2", "at": START}
    assert cancelled_by_node_note("cancelled", {**end, "host": ""}) == []  # Ctrl-C, or a signal to the head
    (note,) = cancelled_by_node_note("cancelled", {**end, "host": "n2"})
    assert note["text"] == "n2 ended it: SIGTERM to the supervisor on n2"
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    job.claim_end("cancelled", end["detail"], "n2")
    result = write_result(job, order(), STAGING, Metrics(job), {})
    RESULT.validate(result)
    assert (result["state"], result["notes"]) == ("cancelled", [note])


def test_a_job_that_was_done_before_the_deadline_succeeded() -> None:
    result = summary([record(0), record(1)], ("timed_out", "", 9.5), hang=RANK_1)
    assert (result["state"], result["notes"]) == ("succeeded", [])


def test_a_rank_without_a_record_is_blamed_where_the_launcher_says_that_all_is_well() -> None:
    for end in (None, ("launcher_died", "openmpi on head ended with status 0", 1)):
        result = summary([record(0)], end, launcher={"rc": 0, "last_line": ""})
        failure = result["first_failure"]
        assert (result["state"], result["rc"], failure["rank"]) == ("failed", 1, 1)
        assert failure["cause"] == "it left no record, and openmpi ended with status 0"


def test_the_launcher_is_blamed_where_no_rank_is() -> None:
    result = summary(
        [], ("launcher_died", "openmpi ended with status 213", 1), launcher={"rc": 213, "last_line": "no slots"}
    )
    assert result["rc"] == 213
    assert result["first_failure"] == {
        "rank": None,
        "host": "head",
        "cause": "openmpi ended with status 213",
        "message": "no slots",
        "log": "/runs/job/launcher.out",
    }
    assert verdict(result, "/r") == (
        "job job failed: head: openmpi ended with status 213: no slots; log: /runs/job/launcher.out"
    )


def test_no_worker_is_blamed_for_a_head_that_only_launches(tmp_path: Path) -> None:
    """Else a job that is started again would leave out the first worker when its head had been lost twice."""
    for hosts, blamed in ((("n2", "n3"), (None, "n1")), (("n1", "n2"), (0, "n1"))):
        job = JobDir(str(tmp_path / hosts[0]))
        job.create([0, 1])
        job.claim_end("lost", "the supervisor died")
        result = write_result(job, order_of(*hosts), STAGING, Metrics(job), {})
        RESULT.validate(result)
        failure = result["first_failure"]
        assert failure and (failure["rank"], failure["host"], failure["cause"]) == (*blamed, "the supervisor died")
        assert node_of(result) == ("" if blamed[0] is None else "n1")


def test_a_wrapper_that_died_is_a_failure_of_its_rank() -> None:
    dead, other = orphan(0, 5.0), record(1, 143, 5.5, signal=15)
    result = summary([dead, other], ("wrapper_died", "the wrapper of rank 0 died", 5.1))
    assert states(result) == ["failed", "ended"]
    assert result["first_failure"]["cause"] == "its wrapper died"


@pytest.mark.parametrize("reason", ["timed_out", "cancelled", "lost"])
def test_a_program_that_saves_its_state_when_told_to_end_was_not_done(reason: str) -> None:
    result = summary([record(0, 0, 5.2), record(1, 0, 5.3)], (reason, "", 5.0))
    assert (result["state"], states(result)) == (reason, ["ended", "ended"])


def test_misplaced_rank() -> None:
    end = ("rank_failed", "", 0.5)
    misplaced = record(1, 77, error_code="misplaced", error="placement: world size is 1, planned 2")
    result = summary([record(0), misplaced], end)
    assert result["first_failure"]["cause"] == "placement: world size is 1, planned 2"


def death(host: str, reason: str = "launcher_died") -> dict[str, Any]:
    return {"reason": reason, "detail": "openmpi ended", "host": host, "at": START + 2}


def ended(rc: int, at: float, unasked: bool = True) -> dict[str, Any]:
    return {"rc": rc, "at": START + at, "unasked": unasked}


KILLED = [
    ("n1", ended(213, 1.5), ended(137, 1.4), "n2"),  # mpirun dies of its daemon
    ("", ended(213, 1.5), ended(137, 1.4), "n2"),
    ("n2", ended(137, 2.1), ended(7, 1.9), "n1"),  # a daemon ends when mpiexec is killed
    ("n2", ended(137, 2.1), ended(134, 1.9), "n1"),  # or aborts, and is heard of first
    ("n2", ended(137, 2.1), ended(137, 1.9), "n1"),  # or kills itself
    ("n1", ended(137, 1.5), ended(143, 1.4, unasked=False), "n1"),  # that was us
    ("n1", ended(213, 1.5), ended(137, 1.4, unasked=False), "n1"),  # and that
    ("n1", {"pid": 7}, {}, "n1"),  # nobody ended
]


def blame(
    end: dict[str, Any] | None,
    launcher: dict[str, Any],
    daemons: dict[str, dict[str, Any]],
    records: dict[int, dict[str, Any]],
) -> dict[str, Any] | None:
    return blame_launcher(end, deaths_of({"n1": launcher, **daemons}, "n1"), records, "n1")


@pytest.mark.parametrize(("claimed", "launcher", "daemon", "blamed"), KILLED)
def test_whoever_was_killed_first_is_blamed(
    claimed: str, launcher: dict[str, Any], daemon: dict[str, Any], blamed: str
) -> None:
    end = blame(death(claimed), launcher, {"n2": daemon}, {})
    assert end and (end["host"] or "n1") == blamed


def test_what_is_no_death_of_a_launcher_is_left_alone() -> None:
    launcher = ended(143, 3, unasked=False)
    for reason in ("rank_failed", "wrapper_died", "lost", "cancelled"):
        other = death("n2", reason)
        assert blame(other, launcher, {"n2": ended(137, 0)}, {}) == other
    assert blame(None, launcher, {}, {}) is None


@pytest.mark.parametrize(
    ("launcher", "daemon", "host", "told"),
    [
        (ended(137, 1.9), ended(137, 1.8), "n1", True),  # mpiexec was killed: its daemons kill wrappers and themselves
        (ended(213, 1.9), ended(137, 1.2), "n2", True),  # a daemon was
        (ended(213, 1.9), ended(137, 1.8), "n1", None),  # the wrapper was, and Hydra ends the rest
    ],
)
def test_a_wrapper_that_died_with_a_launcher(
    launcher: dict[str, Any], daemon: dict[str, Any], host: str, told: bool | None
) -> None:
    torn = {"host": "n1", "ended": START + 1.5, "error_code": "wrapper_died"}
    end = blame(death("n1", "wrapper_died"), launcher, {"n2": daemon}, {0: torn})
    assert end and (end["host"], torn.get("ended_by_us")) == (host, told)


@pytest.mark.parametrize(
    ("launcher", "number", "host"),
    [
        (ended(137, 1.9), 9, "n1"),
        (ended(137, 1.9), 11, "n2"),  # that rank failed by itself
        (ended(137, 1.9, unasked=False), 9, "n2"),  # we killed the launcher
        (ended(143, 1.9), 9, "n2"),  # the rank was killed, and srun left
    ],
)
def test_a_rank_that_slurm_killed_with_its_srun(launcher: dict[str, Any], number: int, host: str) -> None:
    """Its program went before its wrapper, so that it looks as if the rank had failed, on whatever node."""
    killed = {"host": "n2", "ended": START + 1.5, "signal": number}
    end = blame(death("n2", "rank_failed"), launcher, {}, {2: killed})
    assert end and (end["host"], killed.get("ended_by_us", False)) == (host, host == "n1")


@pytest.mark.parametrize("reason", ["launcher_died", "wrapper_died"])
def test_a_rank_that_slurm_killed_elsewhere_is_not_blamed(reason: str) -> None:
    """Reproduced before on a head without ranks: srun was killed there, the wrappers of n2, and a program of n3."""
    killed = {"host": "n3", "ended": START + 1.5, "signal": 9}
    torn = {"host": "n2", "ended": START + 1.6, "error_code": "wrapper_died"}
    end = blame(death("n1" if reason == "launcher_died" else "n2", reason), ended(137, 1.9), {}, {0: torn, 3: killed})
    assert end and (end["host"], killed.get("ended_by_us"), torn.get("ended_by_us")) == ("n1", True, True)


WORDS = ("", "the wrapper of rank 0 died", "its wrapper died", "placement: x", "lost\tx")


@pytest.mark.parametrize("words", WORDS)
def test_sentences_decide_nothing(words: str) -> None:
    """Codes do. Reproduced before: another wording of "the wrapper of" blamed another process."""
    for code in RankError:
        errors = {"error_code": code, "error": words}
        result = summary([record(0, 0, 4.0), record(1, 0, 4.0, **errors)], ("rank_failed", words, 5.0))
        assert (result["state"] == "failed") == (code == "misplaced"), code
    for reason, state in STATES.items():
        assert summary([record(0)], (reason, words, 5.0))["state"] == state
        torn = {0: orphan(0, 2.0) | {"host": "n1", "error": words}}
        end = blame({**death("n1", reason), "detail": words}, ended(137, 1.9), {}, torn)
        ours = reason in ("launcher_died", "wrapper_died")
        assert end and (end["reason"] == "launcher_died", torn[0].get("ended_by_us", False)) == (ours, ours)


OF_N2 = {"records": {}, "lines": {}, "leftovers": [], "launcher": {}, "metrics": []}


@pytest.mark.parametrize(
    ("batch", "state"), [("CANCELLED", "cancelled"), ("TIMEOUT", "failed"), ("NODE_FAIL", "failed")]
)
@pytest.mark.parametrize("claimed", ["launcher_died", "wrapper_died", "rank_failed"])
def test_the_batch_system_that_ended_a_job_is_named_and_no_rank(
    tmp_path: Path, claimed: str, batch: str, state: str
) -> None:
    """Reproduced before: srun, which had left with 128 + 9 as its ranks, "was killed", or a wrapper had died."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    job.write("ranks/0/record.json", orphan(0, 5.0) if claimed == "wrapper_died" else record(0, 137, 5.0, signal=9))
    job.write("launcher.json", {"pid": 7, **ended(137, 5.0)})
    job.write("batch.json", {"state": batch})
    job.claim_end(claimed, "rank 0 failed", "n1")
    result = write_result(job, order_of("n1", "n2"), STAGING, Metrics(job), {"n2": OF_N2})
    RESULT.validate(result)
    assert result["state"] == state and "failed" not in states(result)
    if state == "failed":
        assert result["first_failure"]["cause"] == f"Slurm ended the job: {batch}"
        assert (result["first_failure"]["rank"], result["first_failure"]["host"]) == (None, "n1")
    else:
        assert [note["text"] for note in result["notes"]] == ["n1 ended it: somebody cancelled it in Slurm (scancel)"]


def test_what_ended_the_job_before_the_batch_system_stands(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    job.write("batch.json", {"state": "TIMEOUT"})
    job.claim_end("timed_out", "job_timeout of 20 s", "n1")
    result = write_result(job, order_of("n1", "n2"), STAGING, Metrics(job), {"n2": OF_N2})
    assert result["state"] == "timed_out"


GONE = "RuntimeError: Connection closed by peer [10.0.0.2]:2345"
SILENCE = [
    ("launcher_died", ended(0, 1.9), {}, "", "lost"),  # mpirun left because its daemon was gone
    ("rank_failed", {"pid": 7}, {0: record(0, 1, 1.9)}, GONE, "lost"),
    ("wrapper_died", {"pid": 7}, {0: orphan(0)}, "", "lost"),  # Hydra killed it
    ("rank_failed", {"pid": 7}, {0: record(0, 1, 1.9)}, "ValueError: x", "rank_failed"),
    ("rank_failed", {"pid": 7}, {0: record(0, 139, 1.9, signal=11)}, GONE, "rank_failed"),
    ("launcher_died", ended(137, 1.9), {}, "", "launcher_died"),  # it was killed
    ("cancelled", ended(143, 2.1, unasked=False), {}, "", "cancelled"),
]


@pytest.mark.parametrize(("claimed", "launcher", "records", "line", "reason"), SILENCE)
def test_a_node_that_did_not_answer_at_the_end_is_the_cause(
    claimed: str, launcher: dict[str, Any], records: dict[int, dict[str, Any]], line: str, reason: str
) -> None:
    lines = {0: ("stderr", line)}
    end = blame_lost_node(death("n1", claimed), ["n2"], launcher, records, lines)
    assert end and (end["reason"], end["host"]) == (reason, "n2" if reason == "lost" else "n1")
    answered = blame_lost_node(death("n1", claimed), [], launcher, records, lines)
    assert answered == death("n1", claimed)


def test_the_result_of_a_job_whose_launcher_left_while_a_node_was_silent(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    job.write("ranks/0/record.json", record(0, 143, 5.5, signal=15, ended_by_us=True))
    job.write("launcher.json", ended(0, 5.0))
    job.claim_end("launcher_died", "openmpi on n1 ended with status 0")
    result = write_result(job, order_of("n1", "n2"), STAGING, Metrics(job), {})
    RESULT.validate(result)
    assert (result["state"], result["first_failure"]["host"]) == ("lost", "n2")
    assert result["first_failure"]["cause"] == "n2 is lost: it did not answer when the job ended"


def test_a_node_that_tells_much_does_not_make_others_silent(tmp_path: Path) -> None:
    """Reproduced before: what all told went through one file, and one of more than FILE_BYTES was taken for none."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    part = {"lines": {}, "leftovers": [], "launcher": {}, "metrics": []}
    parts = {"n2": {**part, "records": {"0": record(0)}}, "n3": {**part, "records": {"1": record(1)}}}
    parts["n3"]["more"] = "x" * (FILE_BYTES + 1)
    assert states(write_result(job, order_of("n2", "n3"), STAGING, Metrics(job), parts)) == ["succeeded", "succeeded"]


def test_a_program_on_the_head_does_not_make_the_result_too_much(tmp_path: Path) -> None:
    """Reproduced before: the controller refused the result, and the head was not believed."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    job.write("leftovers.json", [{"pid": pid, "command": "fork bomb", "ended": "SIGKILL"} for pid in range(5000)])
    metrics = Metrics(job)
    for number in range(ITEMS + 1):
        metrics.note(f"m{number}", 0, number)
    alone = order(1) | {"ranks": [0], "placement": [place(0, "head")]}
    record_forms.RESULT(write_result(job, alone, STAGING, metrics, {}))


def test_a_node_reports_no_metric_for_a_rank_of_another(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    part = {"lines": {}, "leftovers": [], "launcher": {}}
    parts = {
        "n2": {**part, "records": {"0": record(0)}, "metrics": [["loss", 0, 0.5]]},
        "n3": {**part, "records": {"1": record(1)}, "metrics": [["loss", 0, 0.0], ["accuracy", 0, 1.0], ["own", 1, 7]]},
    }
    assert write_result(job, order_of("n2", "n3"), STAGING, Metrics(job), parts)["metrics"] == {"loss": 0.5, "own": 7}


def test_no_host_makes_a_rank_of_another_host_succeed(tmp_path: Path) -> None:
    """n2 is lost without a word. What n3, or a program on the head, left in the name of its rank is no success."""
    for liar in ("n3", "n1"):
        job = JobDir(str(tmp_path / liar))
        job.create([0, 1, 2])
        lie = record(1, error="all is well", ended_by_us=False, host=liar)
        started = {"local_rank": 0, "host": "n1", "wrapper_pid": 1}
        job.write("ranks/0/record.json", record(0, ended_by_us=False) | started)
        if liar == "n1":
            job.write("ranks/1/record.json", lie | started)
        told = {"2": record(2, ended_by_us=False), **({"1": lie} if liar == "n3" else {})}
        job.claim_end("lost", "n2 is lost: silent for 30 s", "n2")
        part = {"records": told, "lines": {}, "leftovers": [], "launcher": {}, "metrics": []}
        result = write_result(job, order_of("n1", "n2", "n3"), STAGING, Metrics(job), {"n3": part})
        RESULT.validate(result)
        assert (result["state"], states(result)) == ("lost", ["succeeded", "failed", "succeeded"])
