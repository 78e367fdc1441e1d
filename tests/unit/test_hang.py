"""Who keeps a job from going on: the judge, with what was recorded of a real hang, changed as each test asks for."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import (
    Verdict,
    VerdictCode,
    judge,
    shows_life,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.evidence import (
    ALL_EVIDENCE,
    read_recorder,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.autopsy import (
    busy_lines,
    judged,
    write_bundle,
)

# Three ranks on n1; rank 1 matches a regular expression in C, and the others wait for it in their fourth collective.
LOOK = json.loads((Path(__file__).parent / "recorded/look.json").read_text())
RECORDED: list[Any] = list(ALL_EVIDENCE(LOOK["evidence"]))
WAITS, COMPUTES = RECORDED[0], RECORDED[1]
TORCH = "/usr/lib/python3.11/site-packages/torch/"


def frame(file: str, line: int, function: str) -> dict[str, Any]:
    return {"file": file, "line": line, "function": function}


def own(line: int, function: str = "train") -> dict[str, Any]:
    return frame("/home/me/train.py", line, function)


def in_call(function: str, line: int) -> list[dict[str, Any]]:
    return [frame(f"{TORCH}distributed/distributed_c10d.py", 1, function), own(line)]


def group(sequence: int, operation: str = "all_reduce", **changed: Any) -> dict[str, Any]:
    row = {"name": "0 default_pg", "sequence": sequence, "before": sequence, "operation": operation, "open": True}
    return {**row, "seconds": 90.0, "longest": 0.5, "recent": [], **changed}


def rank(*frames: dict[str, Any], groups: tuple[dict[str, Any], ...] = (), **changed: Any) -> dict[str, Any]:
    """Return what is known of a rank that sleeps in these frames, innermost first."""
    threads = [list(frames)] if frames else []
    return {**copy.deepcopy(WAITS), "threads": threads, "groups": list(groups), "cpu": 0.0, **changed}


def waiting(call: str = "all_reduce", line: int = 31, sequence: int = 17, **changed: Any) -> dict[str, Any]:
    return rank(*in_call(call, line), groups=(group(sequence, call, **changed),))


def verdict(*ranks: dict[str, Any] | None, missing: int = 0) -> Verdict:
    """Return the verdict on ranks 0, 1, ... on n1; None: nothing came of it."""
    rows = [{**row, "rank": number} for number, row in enumerate(ranks) if row]
    return judge(ALL_EVIDENCE(rows), dict.fromkeys(range(len(ranks) + missing), "n1"))


def test_a_recorded_hang() -> None:
    found = verdict(*RECORDED)
    assert found.code == VerdictCode.BLAMED and found.ranks == [1]
    assert found.sentence == (
        "rank 1 on n1 is computing at __init__.py:166 in match (hangs.py:34); "
        "ranks 0,2 wait for it in all_reduce #4 at hangs.py:98"
    )


ASLEEP = rank(own(40, "load"), own(12, "main"))
NO_STACK = rank(state="S")
OPAQUE = rank(python=False, command="sleep 600", kernel="hrtimer_nanosleep")


@pytest.mark.parametrize(
    ("culprit", "said"),
    [
        (ASLEEP, "is sleeping or waiting at train.py:40 in load"),
        (rank(frame("/usr/lib/python3.11/queue.py", 7, "get"), own(9)), "waiting at queue.py:7 in get (train.py:9)"),
        (rank(state="T"), "is stopped by a signal (state T)"),
        (rank(state="D", kernel="nfs_wait"), "is in disk wait (state D, in nfs_wait)"),
        (rank(status="ended", rc=0, python=False), "is finished with exit status 0"),
        (OPAQUE, "is running `sleep 600`, which has no Python stack to read, in hrtimer_nanosleep"),
        (rank(*in_call("all_reduce", 8)[:1], own(8), state="T"), "is stopped by a signal"),
    ],
    ids=["own code", "queue", "stopped", "disk", "ended", "no Python", "stopped in a collective"],
)
def test_who_does_not_wait_is_named_whatever_their_number(culprit: dict[str, Any], said: str) -> None:
    one, most = verdict(waiting(), culprit, waiting()), verdict(culprit, waiting(), culprit)
    assert (one.code, one.ranks, most.ranks) == (VerdictCode.BLAMED, [1], [0, 2])
    assert said in one.sentence
    assert one.sentence.endswith("; ranks 0,2 wait for it in all_reduce #17 at train.py:31")
    assert most.sentence.endswith("; rank 1 waits for them in all_reduce #17 at train.py:31")


def test_workers_of_a_data_loader_say_where_they_are() -> None:
    loader = rank(
        frame("/usr/lib/python3.11/multiprocessing/connection.py", 5, "poll"),
        frame(f"{TORCH}utils/data/dataloader.py", 9, "_next_data"),
        own(20),
        workers=[{"pid": 77, "state": "S", "command": "python", "frames": [own(14, "__getitem__")]}],
    )
    said = "rank 1 on n1 is waiting for its data loader, whose worker 77 is at train.py:14 (train.py:20)"
    assert verdict(waiting(), loader).sentence.startswith(said)


def in_library(file: str, function: str) -> dict[str, Any]:
    return frame(f"/usr/lib/python3.11/{file}", 5, function)


def worker(command: str, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"pid": 77, "state": "S", "command": command, "frames": list(frames)}


@pytest.mark.parametrize(
    ("frames", "workers", "said"),
    [
        (("subprocess.py", "_try_wait"), [worker("cc1plus x.cpp")], "a program that it started, `cc1plus x.cpp` (tra"),
        (("subprocess.py", "wait"), [worker("a"), worker("b")], "a program that it started (train.py:20)"),
        (("multiprocessing/pool.py", "wait"), [worker("python", own(9))], "another process, whose worker 77 is at tra"),
        (("multiprocessing/popen_fork.py", "poll"), [], "another process (train.py:20)"),
    ],
    ids=["a program", "two programs", "a pool", "a process"],
)
def test_what_a_rank_waits_for_is_told(frames: tuple[str, str], workers: list[Any], said: str) -> None:
    culprit = rank(in_library("threading.py", "wait"), in_library(*frames), own(20), workers=workers)
    assert verdict(waiting(), culprit).sentence.startswith(f"rank 1 on n1 is waiting for {said}")


def test_a_program_that_is_part_of_a_library_has_places_of_its_own() -> None:
    """As with `python -m accelerate.test_utils.scripts.test_script`."""
    place = "/usr/lib/python3.11/site-packages/accelerate/script.py"
    outer = [frame(place, 173, "test"), frame(place, 400, "<module>"), frame("<frozen runpy>", 88, "_run_code")]
    inner = [frame(f"{TORCH}nn/parallel/distributed.py", 9, "_pre_forward"), frame(f"{TORCH}nn/module.py", 8, "call")]
    assert (
        "at script.py:173; rank 1 on"
        in verdict(rank(*inner, *outer, groups=(group(5, "broadcast"),)), waiting()).sentence
    )
    by_itself = verdict(rank(*inner, groups=(group(5, "broadcast"),)), waiting()).sentence
    assert "in broadcast #5 at distributed.py:9; rank 1 on" in by_itself


OVER = rank(status="ended", rc=0, python=False)
IN_FINALIZE = rank(done=True, python=False)
LEAVING = rank(in_library("threading.py", "wait"))


def at_its_end(**changed: Any) -> dict[str, Any]:
    found = rank(in_library("threading.py", "_shutdown"), **changed)
    found["threads"].append([own(40, "uploads")])
    return found


def test_who_does_not_leave_when_all_others_are_done_is_named() -> None:
    found = verdict(OVER, at_its_end(), OVER)
    assert (found.code, found.ranks) == (VerdictCode.BLAMED, [1])
    assert found.sentence == (
        "rank 1 on n1 is waiting at exit for a thread at train.py:40 in uploads; "
        "ranks 0,2 on n1 are finished with exit status 0"
    )
    assert verdict(OVER, rank(state="T"), OVER).ranks == [1]


def test_who_does_not_leave_is_named_where_the_others_wait_for_it_after_their_programs() -> None:
    """As in MPI_Finalize: Python is gone and cannot be asked, but has noted that the program ended well."""
    found = verdict(at_its_end(), IN_FINALIZE, IN_FINALIZE)
    assert (found.code, found.ranks) == (VerdictCode.BLAMED, [0])
    assert found.sentence == (
        "rank 0 on n1 is waiting at exit for a thread at train.py:40 in uploads; "
        "ranks 1-2 on n1 are finished with exit status 0, while its libraries shut down"
    )
    said = verdict(OVER, at_its_end(), LEAVING).sentence
    assert said.endswith(
        "rank 0 on n1 is finished with exit status 0; rank 2 on n1 is about to leave, at threading.py:5 in wait"
    )
    assert verdict(OVER, at_its_end(), {**IN_FINALIZE, "done": False}).code == VerdictCode.NO_WAIT


def test_who_has_left_a_collective_out_is_named_also_after_its_program() -> None:
    found = verdict(waiting(), waiting(), IN_FINALIZE)
    assert (found.code, found.ranks) == (VerdictCode.BLAMED, [2])
    assert found.sentence.startswith("rank 2 on n1 is finished with exit status 0, while")


@pytest.mark.parametrize(
    "ranks",
    [
        [OVER, at_its_end(cpu=9.0)],
        [OVER, at_its_end(wrote=True)],
        [OVER, at_its_end(moved=True)],
        [{**OVER, "rc": 1}, at_its_end()],
        [OVER, at_its_end(), None],
        [at_its_end(), at_its_end()],
        [OVER, LEAVING],
        [LEAVING, {**at_its_end(), "done": True, "threads": []}],
        [OVER, at_its_end(), rank(in_library("threading.py", "wait"), moved=True)],
        [OVER, at_its_end(), rank(in_library("torch/a.py", "f"), in_library("site-packages/b.py", "<module>"))],
    ],
    ids=[
        *("computes", "writes", "goes on", "another failed", "one is not known", "nobody is over", "one is leaving"),
        *("all are done", "one goes on to leave", "one runs a module of a library"),
    ],
)
def test_who_is_still_at_work_at_the_end_is_not(ranks: list[Any]) -> None:
    found = verdict(*ranks)
    assert (found.code, found.ranks) == (VerdictCode.NO_WAIT, [])


def test_a_thread_of_a_backend_that_polls_does_not_compute() -> None:
    """oneCCL takes a CPU while it waits, in a thread; the main thread waits for that, or is in backward()."""
    thread = [in_library("site-packages/torchfleet_backends/_oneccl.py", "all_reduce")]
    engine = frame(f"{TORCH}autograd/graph.py", 1, "_engine_run_backward")
    for main in ([in_library("threading.py", "wait"), own(20)], [engine, own(20)]):
        polls = rank(*main, groups=(group(13),), cpu=9.0)
        polls["threads"].append(thread)
        found = verdict(polls, ASLEEP)
        assert found.ranks == [1] and found.sentence.endswith("rank 0 waits for it in all_reduce #13 at train.py:20")


def test_a_backend_that_ends_its_group_is_in_no_collective() -> None:
    leaves = rank(in_library("threading.py", "wait"), cpu=9.0)
    leaves["threads"].append([in_library("site-packages/torchfleet_backends/_oneccl.py", "destroy")])
    assert verdict(leaves, OVER, at_its_end()).code == VerdictCode.NO_WAIT


def test_the_call_of_the_user_is_told_and_not_a_function_in_it() -> None:
    helper, init = (frame(f"{TORCH}distributed/distributed_c10d.py", 1, name) for name in HELPERS)
    assert verdict(rank(helper, init, own(7)), ASLEEP).sentence.endswith(
        "waits for it in init_process_group at train.py:7"
    )


HELPERS = ("_new_process_group_helper", "init_process_group")


def test_groups_are_told_where_the_calls_are_the_same() -> None:
    found = verdict(waiting(), waiting(name="3 data"))
    assert found.code == VerdictCode.MISMATCH
    assert "rank 1 on n1 in all_reduce #17 at train.py:31 of group 3 data" in found.sentence
    assert "of group" not in verdict(waiting(), waiting("broadcast", name="3 data")).sentence


@pytest.mark.parametrize(
    ("ranks", "smaller", "said"),
    [
        (
            [waiting("barrier", 9), waiting("broadcast", 5)],
            [0],
            "rank 0 on n1 in barrier #17 at train.py:9; rank 1 on n1",
        ),
        (
            [waiting(), waiting("broadcast", 5), waiting()],
            [1],
            "rank 1 on n1 in broadcast #17 at train.py:5; ranks 0,2 on",
        ),
        (
            [waiting(), rank(*in_call("recv", 5)), waiting()],
            [1],
            "rank 1 on n1 in recv at train.py:5; ranks 0,2 on n1 in",
        ),
        (
            [waiting(), waiting(sequence=16)],
            [0],
            "rank 0 on n1 in all_reduce #17 at train.py:31; rank 1 on n1 in all_reduce #16",
        ),
    ],
    ids=["two equal sides", "one of three", "no sender", "another number"],
)
def test_different_calls_are_both_shown(ranks: list[dict[str, Any]], smaller: list[int], said: str) -> None:
    found = verdict(*ranks)
    assert (found.code, found.ranks) == (VerdictCode.MISMATCH, smaller)
    assert found.sentence.startswith(f"ranks wait for each other in different calls: {said}")


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([waiting(before=15), {**ASLEEP, "moved": True}], "ranks went from collective #15 to #17 in"),
        (
            [waiting(seconds=3.0, longest=4.0), ASLEEP],
            "ranks have waited for 3.0 s, and an earlier wait took 4.0 s",
        ),
        ([waiting(seconds=4.0, longest=0.0), {**ASLEEP, "wrote": True}], "the ranks that the others wait for are"),
        (
            [waiting(seconds=4.0, longest=1.0), {**ASLEEP, "moved": True, "cpu": 9.0}],
            "the ranks that the others wait for are at",
        ),
        (
            [waiting(seconds=25.0, longest=0.1), {**ASLEEP, "wrote": True}],
            "the ranks that the others wait for are at",
        ),
        ([rank(*in_call("all_reduce", 3), moved=True), ASLEEP], "ranks that wait for others go on"),
    ],
    ids=["progress", "usual pause", "output", "stack moves", "short steps before", "no recorder"],
)
def test_a_slow_job_has_no_culprit(ranks: list[dict[str, Any]], said: str) -> None:
    found = verdict(*ranks)
    assert (found.code, found.ranks) == (VerdictCode.SLOW, [])
    assert found.sentence.startswith(f"slow, not hung: {said}") and "rank 1" not in found.sentence


SUBPROCESS = frame("/usr/lib/python3.11/subprocess.py", 1, "_wait")


@pytest.mark.parametrize("changed", [{"cpu": 9.0}, {"cpu": 0.0}])
def test_who_waits_for_a_compiler_is_not_to_blame(changed: dict[str, Any]) -> None:
    """Reproduced before: a framework that builds its kernels for 100 s on rank 0 was said to hang there."""
    builder = rank(SUBPROCESS, own(9, "build"), **changed)
    found = verdict(waiting(seconds=90.0), {**builder, "busy": ["cc1plus", "ninja"]})
    assert (found.code, found.ranks) == (VerdictCode.SLOW, [])
    assert found.sentence == "slow, not hung: rank 1 on n1 builds a program: cc1plus of ninja is busy"
    assert verdict(waiting(seconds=90.0), {**builder, "busy": ["a of make"]}).ranks == [1]  # others may spin for ever
    assert verdict(waiting(seconds=90.0), {**builder, "busy": ["cc1plus"], "state": "T"}).ranks == [1]


def test_busy_programs_of_ranks_that_show_nothing_are_told() -> None:
    compiles = {**rank(own(9)), "busy": ["cc1plus", "ninja"]}
    rows = looked(compiles, rank(own(1)), compiles, {**compiles, "wrote": True}, {**compiles, "busy": ["tar"]})
    assert busy_lines(rows, 45.4) == [
        "ranks 0,2 on n1: 45 s without output: cc1plus of ninja is busy",
        "rank 4 on n1: 45 s without output: tar is busy",
    ]
    many = looked(*({**compiles, "busy": [f"p{number}"]} for number in range(9)))
    assert busy_lines(many, 1.0)[4:] == ["... and more"]


def test_who_is_stopped_or_gone_does_not_come_back_as_before() -> None:
    for row in (rank(state="T"), rank(status="ended", rc=0)):
        assert verdict(waiting(seconds=3.0, longest=4.0), row).ranks == [1]


def test_who_computes_for_ever_is_named_when_the_others_wait_too_long() -> None:
    spins = {**ASLEEP, "moved": True, "cpu": 9.0}
    assert verdict(waiting(seconds=90.0, longest=0.5), spins).ranks == [1]


@pytest.mark.parametrize(
    ("ranks", "missing", "said"),
    [
        ([waiting(), waiting(), None], 0, "ranks 0-1 wait in all_reduce #17 at train.py:31; rank 2 on n1 is unknown"),
        ([waiting(), NO_STACK], 0, "rank 1 on n1 is silent: no answer came (pid"),
        ([None, None], 0, "nothing is known of any rank"),
        ([], 2, "nothing is known of any rank"),
        ([rank(*in_call("all_reduce", 3)), rank(*in_call("all_reduce", 3))], 0, "whether in the same one is not known"),
    ],
    ids=["a node is missing", "no answer", "nothing", "no evidence at all", "no recorder"],
)
def test_nobody_is_named_for_what_is_not_known(ranks: list[Any], missing: int, said: str) -> None:
    found = verdict(*ranks, missing=missing)
    assert (found.code, found.ranks) == (VerdictCode.UNKNOWN, []) and said in found.sentence


def test_what_else_there_is() -> None:
    same = verdict(waiting(), waiting())
    assert (same.code, same.ranks) == (VerdictCode.ALL_WAIT, []) and "none is missing" in same.sentence
    alone = verdict(ASLEEP)
    assert (alone.code, alone.ranks) == (VerdictCode.NO_WAIT, [])
    assert alone.sentence == "no rank waits for another; rank 0 on n1 is sleeping or waiting at train.py:40 in load"
    both = verdict(waiting(), ASLEEP, None)
    assert both.ranks == [1] and both.sentence.endswith("; rank 2 on n1 is unknown: no evidence of it arrived")


def test_a_rank_that_waits_for_work_is_no_culprit() -> None:
    """work.wait() has no frame of PyTorch's; backward() has one that also computes."""
    work = rank(own(50), groups=(group(17),))
    assert verdict(work, rank(own(60), groups=(group(16, open=False),))).ranks == [1]
    backward = rank(frame(f"{TORCH}autograd/graph.py", 1, "_engine_run_backward"), own(70), groups=(group(17),))
    assert verdict(backward, ASLEEP).ranks == [1]
    assert verdict(waiting(), {**backward, "groups": [], "cpu": 9.0}).ranks == [1]
    threaded = rank(own(80))
    threaded["threads"].append(in_call("all_reduce", 81))
    assert verdict(threaded, ASLEEP).sentence.endswith("rank 0 waits for it in all_reduce at train.py:81")


def test_a_node_speaks_for_its_own_ranks_only() -> None:
    assert verdict(waiting(), {**ASLEEP, "host": "n2"}).code == VerdictCode.UNKNOWN


def test_many_ranks_are_judged_at_once() -> None:
    found = verdict(*[waiting() if number != 500 else ASLEEP for number in range(1000)])
    assert found.ranks == [500] and "ranks 0-499,501-999 wait for it in" in found.sentence


def looked(*ranks: dict[str, Any], missing: tuple[str, ...] = ()) -> Any:
    rows = [{**row, "rank": number} for number, row in enumerate(ranks)]
    places = [{"rank": number, "local_rank": number, "host": "n1"} for number in range(len(rows))]
    return {"placement": places, "evidence": rows, "missing": list(missing)}


def test_stacks_that_are_the_same_are_told_once(tmp_path: Path) -> None:
    main = own(12, "main")
    rows = [waiting(), rank(own(40, "load")), waiting(), rank(state="T")]
    for row in rows[:3]:
        row["threads"][0].append(main)
    rows[0]["nccl"] = ["Rank 3 -- UNRESPONSIVE"]
    autopsy = judged("run7", looked(*rows, missing=("n4: it does not answer",)))
    assert autopsy.lines == [
        "job run7: rank 3 on n1 is stopped by a signal (state T); "
        "ranks 0,2 wait for it in all_reduce #17 at train.py:31",
        "ranks 0-2: main train.py:12",
        "  ranks 0,2: train train.py:31 > all_reduce distributed_c10d.py:1 [all_reduce #17]",
        "  rank 1: load train.py:40",
        "rank 3 is stopped by a signal (state T)",
        "warning: nothing is known of the ranks of n4: it does not answer",
    ]
    place = write_bundle(tmp_path / "run7", autopsy)
    assert json.loads((place / "look.json").read_text())["evidence"] == autopsy.looked["evidence"]
    assert "stopped by a signal" in (place / "look.txt").read_text()
    assert (place / "look.txt").read_text().endswith("\nWhat NCCL itself tells (RAS):\nRank 3 -- UNRESPONSIVE\n")
    assert {path.name: path.stat().st_mode & 0o777 for path in place.iterdir()} == {
        "look.json": 0o600,
        "look.txt": 0o600,
    }


@pytest.mark.parametrize("link", ["run7", "run7/diagnosis"])
def test_evidence_is_not_written_where_others_may_have_laid_a_link(tmp_path: Path, link: str) -> None:
    """look.yml of a job of another controller: its run directory is not there, and runs_dir may be for all to write."""
    elsewhere, run_dir = tmp_path / "elsewhere", tmp_path / "runs" / "run7"
    elsewhere.mkdir()
    (run_dir.parent / link).parent.mkdir(parents=True)
    (run_dir.parent / link).symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="is no directory of yours"):
        write_bundle(run_dir, judged("run7", looked(waiting())))
    assert list(elsewhere.rglob("look*")) == []
    (run_dir.parent / link).unlink()
    assert write_bundle(run_dir, judged("run7", looked(waiting()))).is_dir()
    assert (run_dir / "diagnosis").stat().st_mode & 0o777 == 0o700


def test_evidence_is_not_written_into_a_directory_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run7").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(PermissionError):
        write_bundle(tmp_path / "run7", judged("run7", looked(waiting())))
    assert list((tmp_path / "run7").iterdir()) == []


def test_what_is_alive() -> None:
    busy, wrote = rank(own(1), cpu=9.0), rank(own(1), wrote=True)
    assert shows_life([busy, busy], 2) and shows_life([rank(own(1)), wrote], 2)
    assert not shows_life([busy, rank(own(1))], 2) and not shows_life([waiting(), waiting()], 2)
    assert not shows_life([busy], 2)


LIES: list[Any] = [
    {"rank": -1},
    {"rank": True},
    {"status": "happy"},
    {"cpu": float("inf")},
    {"cpu": None},
    {"threads": [[frame("/x", 1, "f")] * 1000]},
    {"threads": [[{"file": 3, "line": 1, "function": "f"}]]},
    {"threads": "none"},
    {"groups": [group(1 << 70)]},
    {"groups": [group(-1)]},
    {"groups": [group(1)] * 1000},
    {"workers": [{"pid": "x", "state": "", "command": "", "frames": []}]},
    {"wrote": "yes"},
]


@pytest.mark.parametrize("lie", LIES)
def test_what_is_no_evidence_is_refused_at_the_border(lie: dict[str, Any]) -> None:
    assert ALL_EVIDENCE([WAITS])
    with pytest.raises((ValueError, OverflowError)):
        ALL_EVIDENCE([{**WAITS, **lie}])


def test_hostile_texts_are_one_printable_line() -> None:
    mean = rank(own(1, "a\nrank 5 on n9 \x1b[31m\u202e" + "x" * 5000), command="\x1b]0;x\x07", kernel="\n")
    sentence = verdict(waiting(), mean).sentence
    assert sentence.isprintable() and len(sentence) < 2000
    assert verdict(waiting(), rank(python=False, command="\x1b[2J\n" + "y" * 9999)).sentence.isprintable()


def with_tensors(line: int, sequence: int, *tensors: str, operation: str = "all_reduce") -> dict[str, Any]:
    """Return a rank that waits in a collective, with what it gave to the last ones, this one too."""
    first = sequence - len(tensors) + 1
    recent = [{"sequence": first + at, "operation": operation, "tensor": tensor} for at, tensor in enumerate(tensors)]
    return waiting(operation, line, sequence, recent=recent)


@pytest.mark.parametrize("went_on", [with_tensors(9, 18, "8 Float", "8 Float"), with_tensors(9, 17, "8 Float")])
def test_tensors_of_different_sizes_in_one_collective(went_on: dict[str, Any]) -> None:
    """Also where the others were done with it, and wait in the next one, or work."""
    found = verdict(went_on, with_tensors(7, 17, "8 Float", "12 Float"), went_on)
    at = " at train.py:9" if went_on["groups"][0]["sequence"] == 17 else ""
    assert (found.code, found.ranks) == (VerdictCode.MISMATCH, [1])
    assert found.sentence == (
        "ranks have tensors of different sizes in all_reduce #17: "
        f"rank 1 on n1 has 12 Float at train.py:7; ranks 0,2 on n1 have 8 Float{at}"
    )
    works = rank(own(40), groups=(group(17, open=False, recent=went_on["groups"][0]["recent"][:1]),))
    alone = verdict(works, with_tensors(7, 17, "12 Float"), works)
    assert (alone.code, alone.ranks) == (VerdictCode.MISMATCH, [1]) and "ranks 0,2 on n1 have 8 Float" in alone.sentence


def all_reduces(line: int, size: int, **types: Any) -> dict[str, Any]:
    """Return a rank that waits in an all_reduce, with the row that backend mpi recorded of it."""
    row = {"process_group": ["0", "mpi"], "collective_seq_id": 17, "profiling_name": "mpi:all_reduce", "bytes": size}
    row |= {"time_created_ns": 100, "time_discovered_completed_ns": 0, "retired": False, "is_p2p": False, **types}
    return rank(
        *in_call("all_reduce", line), groups=tuple(read_recorder(json.dumps({"entries": [row]}).encode(), 90.0))
    )


FLOAT32 = all_reduces(9, 40, output_sizes=[[10]], output_dtypes=["Float"])
FLOAT64 = all_reduces(7, 80, output_sizes=[[10]], output_dtypes=["Double"])


def test_float32_against_float64_is_named_by_type() -> None:
    found = verdict(FLOAT32, FLOAT64, FLOAT32)
    assert (found.code, found.ranks) == (VerdictCode.MISMATCH, [1])
    assert found.sentence == (
        "ranks have tensors of different types in all_reduce #17: "
        "rank 1 on n1 has 10 Double at train.py:7; ranks 0,2 on n1 have 10 Float at train.py:9"
    )


def test_bytes_are_compared_with_bytes_alone() -> None:
    """An older version of our backends records no types: on one node of a job it tells nothing against the others."""
    assert verdict(FLOAT32, all_reduces(9, 40), FLOAT32).code == VerdictCode.ALL_WAIT
    assert "rank 1 on n1 has 48 bytes" in verdict(all_reduces(9, 40), all_reduces(9, 48), all_reduces(9, 40)).sentence


def test_where_sizes_may_differ_or_are_not_known_nobody_is_told_of_them() -> None:
    gathers = [with_tensors(9, 17, tensor, operation="gather") for tensor in ("8 Float", "12 Float")]
    unknown = [with_tensors(9, 17, tensor) for tensor in ("8 Float", "")]
    for ranks in (gathers, unknown):
        assert verdict(*ranks).code == VerdictCode.ALL_WAIT
    others = verdict(with_tensors(9, 17, "8 Float"), with_tensors(7, 17, "12 Float", operation="broadcast"))
    assert "in different calls" in others.sentence
