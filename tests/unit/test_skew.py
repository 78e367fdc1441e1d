"""Who kept the others waiting: from what ranks noted, with clocks that differ, and from nonsense."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks import arrivals_note
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.clocks import (
    clocks_until_now,
    note_clocks,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow import arrivals
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow.arrivals import (
    clock_of,
    read_arrivals,
    read_clocks,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow.explanation import ToldSkew, measured, skew_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow.skew import (
    SkewCode,
    length,
    meetings,
    period_of,
)

REPO = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded" / "arrivals"  # of three ranks, the second 50 ms slower in each step
SCHEMA = json.loads((REPO / "docs/result.schema.json").read_text())
T = 1_795_000_000.0
STEP = 0.1
KIND = ["all_reduce", "[8]"]


RUN = {"group": "0", "size": 2, "first": 7, "at": 1}


def line(names: Any = None, **fields: Any) -> str:
    """Return what a rank notes of one collective."""
    run = {"group": "0", "size": 4, "first": 7, "at": 1, "gaps": [0], "kinds": [0], **fields}
    return json.dumps({"kinds": names or [KIND], "runs": [run]}) + "\n"


def write(run_dir: Path, rank: int, came: list[float], names: list[Any] | None = None, **fields: Any) -> None:
    """Write what a rank notes that came at these moments by its own clock."""
    place = run_dir / "ranks" / str(rank)
    place.mkdir(parents=True, exist_ok=True)
    micro = [round(at * 1e6) for at in came]
    gaps = [after - before for before, after in zip([micro[0], *micro], micro, strict=False)]
    (place / arrivals_note.FILE).write_text(
        line(names, **{"at": micro[0], "gaps": gaps, "kinds": [0] * len(gaps), **fields})
    )


def run_of(
    run_dir: Path,
    late: Mapping[int, float],
    ahead: float = 0.0,
    clocks: Mapping[str, Any] | None = None,
    steps: int = 100,
    two_nodes: bool = True,
) -> ToldSkew | None:
    """Return the verdict on four ranks; `late`: by how many seconds in each step. The clock of n2 is `ahead`."""
    hosts = ["n1", "n1", "n2", "n2"] if two_nodes else ["n1"] * 4
    for rank, host in enumerate(hosts):
        off = ahead if host == "n2" else 0.0
        worst = max(late.values(), default=0.0)
        write(run_dir, rank, [T + n * (STEP + worst) + late.get(rank, 0.0) + off + rank * 1e-5 for n in range(steps)])
    (run_dir / "plan.json").write_text(json.dumps({"head": {"name": "n1"}}))
    known = {"n2": [[T, ahead, 0.0002], [T + 60, ahead, 0.0003]]} if clocks is None else clocks
    (run_dir / "clocks.json").write_text(json.dumps(known))
    result: Any = {"ranks": [{"rank": rank, "host": host} for rank, host in enumerate(hosts)], "seconds": 20.0}
    return skew_of(result, run_dir)


def test_a_rank_that_comes_last_is_named_with_what_it_costs(tmp_path: Path) -> None:
    """The clock of its node is 100 s ahead: that is measured, and makes nobody late."""
    found = run_of(tmp_path, {2: 0.04}, ahead=100.0)
    assert found and (found["code"], found["rank"], found["host"]) == ("waited_for_rank", 2, "n2")
    assert found["sentence"] == (
        "the others waited for rank 2 on n2: it came last in 100 % of 100 collectives, most often all_reduce, by "
        "40 ms each; 4.0 s, 29 % of the time seen"
    )
    assert found["ranks"][2]["cost"] == pytest.approx(4.0, rel=0.01) and found["ranks"][2]["waited"] == 0
    assert found["ranks"][0]["waited"] == pytest.approx(4.0, rel=0.01) and found["ranks"][0]["last"] == 0
    jsonschema.validate(found, {**SCHEMA["properties"]["skew"], "$defs": SCHEMA["$defs"]})


def test_nobody_is_named_where_all_come_together(tmp_path: Path) -> None:
    found = run_of(tmp_path, {})
    assert found and (found["code"], found["rank"], found["sentence"]) == (SkewCode.NOBODY, None, "")


def test_a_node_is_named_whose_ranks_are_all_late(tmp_path: Path) -> None:
    found = run_of(tmp_path, {2: 0.04, 3: 0.04})
    assert found and (found["code"], found["rank"], found["host"]) == ("waited_for_node", None, "n2")
    assert found["sentence"].startswith("the others waited for the ranks on n2: they came last in 100 % of 100 ")


@pytest.mark.parametrize(
    "clocks",
    [
        {"n2": [[T, 0.0, 0.05], [T + 60, 0.0, 0.001]]},  # a slow connection
        {"n2": [[T, 0.0, 0.0001], [T + 60, 0.2, 0.0001]]},  # it went astray meanwhile
        {"n2": [[T, 0.0, 0.0001]]},  # measured once
        {"n2": [[T, "ahead", 0.1], [T, 0.1, float("nan")]]},
        {},
        ["nonsense"],
    ],
)
def test_nobody_is_named_by_clocks_that_are_not_known_well_enough(tmp_path: Path, clocks: Any) -> None:
    found = run_of(tmp_path, {2: 0.04, 3: 0.04}, clocks=clocks)
    assert found and found["code"] in (SkewCode.NOBODY, SkewCode.TOO_LITTLE) and not found["sentence"]


def test_on_one_node_no_clock_is_needed(tmp_path: Path) -> None:
    found = run_of(tmp_path, {2: 0.04}, clocks={}, two_nodes=False)
    assert found and (found["rank"], found["uncertainty"]) == (2, 0.0)


def test_a_rank_that_costs_next_to_nothing_is_not_named(tmp_path: Path) -> None:
    """It comes last each time, by 2 ms of a step of 100."""
    found = run_of(tmp_path, {2: 0.002}, clocks={}, two_nodes=False)
    assert found and (found["code"], found["sentence"]) == (SkewCode.NOBODY, "")


@pytest.mark.parametrize(
    ("late", "verdict"),
    [(0.0, (SkewCode.NOBODY, None)), (0.04, (SkewCode.RANK, 2))],
    ids=["nobody is slow", "a rank is slow"],
)
def test_a_few_long_delays_name_nobody_and_hide_nobody(
    tmp_path: Path, late: float, verdict: tuple[SkewCode, int | None]
) -> None:
    """Such as a checkpoint that rank 0 writes."""
    for rank in range(4):
        pause = [5.0 * ((n + (rank == 0)) // 50) for n in range(100)]  # rank 0 is 5 s late twice
        slow = late if rank == 2 else 0.0
        write(tmp_path, rank, [T + n * (STEP + late) + pause[n] + slow for n in range(100)])
    result: Any = {"ranks": [{"rank": rank, "host": "n1"} for rank in range(4)], "seconds": 20.0}
    found = skew_of(result, tmp_path)
    assert found and (found["code"], found["rank"]) == verdict


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing", None),
        ("empty", ""),
        ("text", "nonsense\n"),
        ("list", "[]\n"),
        ("no kinds", '{"runs": []}\n'),
        ("huge", line(at=1e400)),
        ("text in numbers", line(gaps=["0"])),
        ("fields are missing", line(at=None)),
        ("a kind that is none", line([["a", 1]])),
        ("deep", "[" * 100_000),
        ("another size", line(size=5)),
    ],
)
def test_nobody_is_named_where_a_rank_is_missing(tmp_path: Path, name: str, content: str | None) -> None:
    """It may be the one: of the others the slowest would be named."""
    run_of(tmp_path, {2: 0.04, 3: 0.08})
    path = tmp_path / "ranks" / "3" / arrivals_note.FILE
    path.unlink() if content is None else path.write_text(content)
    result: Any = {"ranks": [{"rank": r, "host": f"n{1 + r // 2}"} for r in range(4)], "seconds": 20.0}
    found = skew_of(result, tmp_path)
    assert found and (found["code"], found["sentence"]) == (SkewCode.TOO_LITTLE, ""), name


@pytest.mark.parametrize(
    "text",
    [
        "\n" * arrivals_note.FILE_BYTES,
        "[\n" * (arrivals_note.FILE_BYTES // 2),
        json.dumps({"kinds": [KIND], "runs": [RUN | {"gaps": [0] * 20_000, "kinds": [0] * 20_000}] * 30}),
        "".join(line(group=f"g{number}", size=2) for number in range(4000)),
    ],
    ids=["line ends", "no JSON", "a long line", "groups"],
)
def test_no_rank_can_have_the_controller_read_for_long(tmp_path: Path, text: str) -> None:
    """Reproduced before: 4 MiB took 22 s, one line had a million arrivals, each group was looked for in all."""
    (tmp_path / "ranks" / "0").mkdir(parents=True)
    (tmp_path / "ranks" / "0" / arrivals_note.FILE).write_text(text)
    (tmp_path / "ranks" / "1").mkdir()
    (tmp_path / "ranks" / "1" / arrivals_note.FILE).write_text(text)
    lines = arrivals.lines_of(tmp_path / "ranks" / "0" / arrivals_note.FILE)
    assert len(lines) <= arrivals.LINES_MOST
    found = read_arrivals(tmp_path, {0: arrivals.HEAD, 1: arrivals.HEAD})
    assert sum(len(row.came) for row in found.values()) <= 2 * arrivals.LINES_MOST
    assert len(list(meetings(found))) <= arrivals.LINES_MOST


def test_ranks_that_are_not_read_in_time_name_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "READ_SECONDS", 0.0)
    assert run_of(tmp_path, {1: 0.05}) is None


@pytest.mark.parametrize("seconds", [0, 0.0, -1.0, 1e308])
def test_the_outcome_is_told_whatever_a_head_says_of_its_time(tmp_path: Path, seconds: float) -> None:
    """Reproduced before: a job of 0 seconds ended in a traceback, or cost -1000 % of the run."""
    run_of(tmp_path, {1: 0.05})
    ranks = [{"rank": rank, "host": "n1" if rank < 2 else "n2"} for rank in range(4)]
    told: Any = {"ranks": ranks, "seconds": seconds}
    skew = measured(told, tmp_path)["skew"]
    assert skew and "of the time seen" in skew["sentence"]


def test_only_what_all_rings_have_is_compared(tmp_path: Path) -> None:
    """The ring of rank 3 begins later, and that of rank 0 ends sooner."""
    run_of(tmp_path, {2: 0.04})
    came = [T + n * (STEP + 0.04) for n in range(100)]
    write(tmp_path, 3, came[30:], first=37)
    write(tmp_path, 0, came[:80])
    result: Any = {"ranks": [{"rank": r, "host": f"n{1 + r // 2}"} for r in range(4)], "seconds": 20.0}
    found = skew_of(result, tmp_path)
    assert found and (found["rank"], found["collectives"]) == (2, 50)


def test_of_the_buckets_of_a_step_one_delay_counts(tmp_path: Path) -> None:
    """Four buckets of a step, 30 ms apart; rank 1 is 20 ms late in all of them, which costs 20 ms and not 80."""
    kinds = [["all_reduce", f"[{size}]"] for size in (1, 2, 3, 4)]
    for rank in range(4):
        came = [T + n * 0.2 + bucket * 0.03 + 0.02 * (rank == 1) for n in range(50) for bucket in range(4)]
        write(tmp_path, rank, came, kinds, kinds=[0, 1, 2, 3] * 50)
    result: Any = {"ranks": [{"rank": rank, "host": "n1"} for rank in range(4)], "seconds": 10.0}
    found = skew_of(result, tmp_path)
    assert found and found["rank"] == 1
    assert found["ranks"][1]["cost"] == pytest.approx(50 * 0.02, rel=0.01)


def test_what_ranks_really_noted_is_understood(tmp_path: Path) -> None:
    """Of PyTorch 2.13 on three ranks, of which the second sleeps 50 ms in each of 30 steps; the machine was busy."""
    shutil.copytree(RECORDED, tmp_path / "ranks")
    result: Any = {"ranks": [{"rank": rank, "host": "n1"} for rank in range(3)], "seconds": 9.0}
    found = skew_of(result, tmp_path)
    assert found and (found["rank"], found["collectives"]) == (1, 64)
    assert 30 * 0.045 < found["ranks"][1]["cost"] < 30 * 0.07
    assert 30 * 0.045 < found["ranks"][0]["waited"] < 30 * 0.08


def test_moments_count_once() -> None:
    assert length([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.5, 5.6)]) == 4.0
    assert period_of([1, 2, 3, 1, 2, 3, 1]) == 3 and period_of([1, 2]) == 1  # type: ignore[list-item]


class Peer:
    """What clocks.py needs of another node."""

    def __init__(self, name: str, *clock: float) -> None:
        self.name, self.clock = name, clock


def test_clocks_are_noted_before_and_after(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "job"))
    job.create([])
    note_clocks(job, [Peer("n2", 1.0, -0.5, 0.1), Peer("n3", 1.0, 0.2, 0.1)])  # type: ignore[list-item]
    text = clocks_until_now(job, [Peer("n2", 3.0, -0.7, 0.2), Peer("n3", 3.0, 0.2, 0.1)])  # type: ignore[list-item]
    (tmp_path / "clocks.json").write_bytes(text)
    clocks = read_clocks(tmp_path, {"n1", "n2", "n3"}, "n1")
    assert clocks["n1"].uncertainty == 0
    assert clocks["n2"].offset_at(2.0) == pytest.approx(-0.6) and clocks["n2"].uncertainty == pytest.approx(0.3)
    job.write("clocks.json", {"n2": [["x"], None]})  # a program of the job wrote there
    assert json.loads(clocks_until_now(job, [Peer("n2", 3.0, -0.7, 0.2)])) == {"n2": [[3.0, -0.7, 0.2]]}  # type: ignore[list-item]


# What PyTorch 2.13 wrote.
DUMPED = (
    '{"collective_seq_id":%d,"input_dtypes":["Float"],"input_sizes":[[8]],"is_p2p":%s,"op_id":2202,"output_dtypes":["Float"],'
    '"output_sizes":[[8]],"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],"profiling_name":"%s","record_id":9,'
    '"retired":true,"state":"scheduled","thread_id":"140498006641536","thread_name":"python","time_created_ns":%d,'
    '"time_discovered_completed_ns":0,"time_discovered_started_ns":0,"timeout_ms":1800000}'
)


def entry(sequence: int, at: float, name: str = "gloo:all_reduce", p2p: str = "false") -> str:
    """Return an entry of a flight recorder."""
    return DUMPED % (sequence, p2p, name, at * 1e9)


def test_a_read_adds_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ranks" / "0").mkdir(parents=True)
    note = arrivals_note.Arrivals(str(tmp_path / "ranks" / "0"))
    note.sizes["0"] = 2
    ring = [entry(n, T + n) for n in (1, 2, 4)] + [entry(5, T, "nccl:all_reduce"), entry(6, T, p2p="true")]

    def dump() -> bytes:
        return f'{{"entries":[{",".join(ring)}],"version":"2.10"}}'.encode()

    dumped = SimpleNamespace(_dump_fr_trace_json=dump)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", dumped)  # type: ignore[arg-type]
    note.note()
    ring.append(entry(5, T + 5))
    note.note()
    note.note()  # nothing is new
    clock = read_clocks(tmp_path, {"n1"}, "n1")["n1"]
    found = read_arrivals(tmp_path, {0: clock})[0]
    assert {key[1]: came.at for key, came in found.came.items()} == {n: T + n for n in (1, 2, 4, 5)}
    assert {came.kind for came in found.came.values()} == {("all_reduce", "[[8]]")}
    assert len((tmp_path / "ranks" / "0" / arrivals_note.FILE).read_text().splitlines()) == 2


# What backends mpi and ccl record: the collectives of a group "cpu:mpi,cuda:gloo", one of a group that is not filed.
OWN = (
    '{"version": "2.10", "entries": [{"process_group": ["0", "mpi"], "collective_seq_id": 1, "profiling_name": '
    '"mpi:all_gather", "bytes": 16, "time_created_ns": 1795724005381364953, "time_discovered_completed_ns": '
    '1795724005382294966, "retired": true, "is_p2p": false, "output_sizes": [[4]], "output_dtypes": ["Float"]},\n'
    '{"process_group": ["0", "mpi"], "collective_seq_id": 2, '
    '"profiling_name": "mpi:all_reduce", "bytes": 16640, "time_created_ns": 1795724005391364953, '
    '"time_discovered_completed_ns": 0, "retired": false, "is_p2p": false}]}\0{"version": "2.10", "entries": [{'
    '"process_group": ["7", "ccl"], "collective_seq_id": 1, "profiling_name": "ccl:barrier", "bytes": 4, '
    '"time_created_ns": 1795724005381364953, "time_discovered_completed_ns": 0, "retired": false, "is_p2p": false}]}'
)


def test_backends_of_ours_are_read_beside_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts its own collectives: the first of gloo is not the first of mpi."""
    (tmp_path / "ranks" / "0").mkdir(parents=True)
    note = arrivals_note.Arrivals(str(tmp_path / "ranks" / "0"))
    note.sizes["0"] = 2
    gloo = SimpleNamespace(_dump_fr_trace_json=lambda: entry(1, T).encode())
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", gloo)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torchfleet_backends", SimpleNamespace(recorded=OWN.encode))  # type: ignore[arg-type]
    note.note()
    clock = read_clocks(tmp_path, {"n1"}, "n1")["n1"]
    found = read_arrivals(tmp_path, {0: clock})[0]
    assert found.groups == {"0": 2, "0 mpi": 2}
    assert {key: came.kind for key, came in found.came.items()} == {
        ("0", 1): ("all_reduce", "[[8]]"),
        ("0 mpi", 1): ("all_gather", "16 bytes"),
        ("0 mpi", 2): ("all_reduce", "16640 bytes"),
    }
    assert found.came["0 mpi", 2].at - found.came["0 mpi", 1].at == pytest.approx(0.01, abs=1e-5)


def test_reads_become_rare_and_come_at_the_same_moment(tmp_path: Path) -> None:
    one, other = (arrivals_note.Arrivals(str(tmp_path)) for _rank in range(2))
    assert one.after(T) == other.after(T + 0.5) and one.after(T) % arrivals_note.FIRST_SECONDS == 0
    one.reads = other.reads = 1000
    assert one.after(T) - T > 3600 and one.after(T) == other.after(T + 0.5)
    one.reads, one.cost = 0, 2.0  # a read took 2 s
    other.reads, other.cost = 0, 0.0
    assert one.after(T) % 1920 == 0 and other.after(T) - T <= arrivals_note.FIRST_SECONDS  # 60 s doubled, to 500 x 2 s
    assert one.after(T) - T > arrivals_note.FIRST_SECONDS


def test_a_recorder_of_another_torch_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = arrivals_note.Arrivals(str(tmp_path))
    note.filed(object(), 2)
    note.sizes["0"] = 2
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace())  # type: ignore[arg-type]
    note.note()
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "1000000")  # it would take a second to read
    monkeypatch.setattr(arrivals_note, "entries", lambda: pytest.fail("it was read"))
    note.note()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [{}, {"TORCH_FR_BUFFER_SIZE": "0"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}])
def test_backends_record_unless_the_user_decides(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    arrivals_note.ask_for_record()
    assert os.environ == (given or {"TORCH_FR_BUFFER_SIZE": "2000"})


def test_a_clock_of_a_node_shows_a_time_that_can_be() -> None:
    sound = [[1e9, 0.5, 0.001], [1e9 + 60, 0.5, 0.002]]
    assert clock_of(sound) is not None
    for wrong in (1e12, -1e300, float("nan"), 10**9):
        assert clock_of([[wrong, 0.5, 0.001], sound[1]]) is None
