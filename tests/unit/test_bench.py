"""bench.yml: which cells there are, what is measured again, what figures are worth, and the page."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench import results, sweep
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.cells import (
    FAILED,
    IMPOSSIBLE,
    MEASURED,
    ONE_NODE,
    RDMA,
    TCP,
    Case,
    Cell,
    Figures,
    size_text,
    time_text,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.judge import (
    BETTER,
    NEW,
    SAME,
    WORSE,
    failure,
    judge,
    merged,
    sentence,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.page import bench_page
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.sweep import (
    World,
    cases_of,
    parse_sweep,
    worlds_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.tables import (
    csv_text,
    rdma_lines,
    table_lines,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.turns import Turns, cells_of_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import Program
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.choice import find_runs
from tests.unit.nodes import fabric, facts_of_a_node, planned
from tests.unit.report_pages import checked

GIB4 = 4 << 30
RAIL = {"device": "mlx5_0", "port": 1, "gid_index": 3, "netdev": "eth0", "address": None}
GPUS = {
    "accelerators": {"nvidia": 8, "amd": 0},
    "torch": {"version": "2.13.0", "cuda": "13.0", "hip": ""},
    "backends": [],
}
# A published table: ranks, then busbw in Gbit/s with RDMA and without; up to 8 ranks are on one node.
SEED = ((2, 1687.1, 0.0), (4, 1621.5, 0.0), (8, 1662.4, 0.0), (16, 122.3, 29.1), (32, 76.2, 30.1))

BAD = [
    ({"bench_sizes": "1X"}, 'bench_sizes: got "1X"; give bytes'),
    ({"bench_sizes": "4M..1M"}, 'bench_sizes: got "4M..1M"; give bytes'),
    ({"bench_sizes": "2"}, 'bench_sizes: got "2"; give bytes'),
    ({"bench_worlds": "1"}, 'bench_worlds: got "1"; give numbers of ranks of at least 2'),
    ({"bench_worlds": "two"}, 'bench_worlds: got "two"; give numbers of ranks'),
    ({"bench_worlds": ["2x0"]}, 'bench_worlds: got "2x0"; give numbers of ranks'),
    ({"bench_launchers": "prun"}, 'bench_launchers: got "prun"; choose from openmpi'),
    ({"bench_backends": "mpi,ib"}, 'bench_backends: got "ib"; choose from gloo'),
    ({"bench_rdma": "maybe"}, 'bench_rdma: got "maybe"; choose one of auto, on, off, both'),
    ({"bench_rounds": 0}, "bench_rounds: got 0; give a whole number from 1"),
    ({"bench_floor_gbps": "nan"}, 'bench_floor_gbps: got "nan"; give GB/s'),
    ({"bench_id": "../x"}, 'bench_id: got "../x"; use letters'),
]


@pytest.mark.parametrize(("given", "told"), BAD)
def test_what_is_wrong_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_sweep(given)
    assert str(refused.value).startswith(told) and "-e " in str(refused.value)


def test_what_is_asked_for() -> None:
    asked = parse_sweep({"bench_worlds": "2,4,2x4,2", "bench_sizes": "1K..64K,3M", "bench_rdma": True})
    assert asked.worlds == (World(2), World(4), World(8, 2, 4))
    assert [size_text(size) for size in asked.sizes] == ["1K", "4K", "16K", "64K", "3M"]
    assert (asked.rdma, asked.launchers, asked.backends) == ("on", ("openmpi",), (None,))
    assert parse_sweep({"bench_worlds": 2}).worlds == (World(2),)


def test_worlds_fit_the_slots() -> None:
    slots = {"n1": 4, "n2": 2}
    assert [world.ranks for world in worlds_of(parse_sweep({}), slots)] == [2, 4, 6]
    assert worlds_of(parse_sweep({"bench_worlds": "2x2,6"}), slots) == (World(4, 2, 2), World(6))
    for world in ("7", "2x3", "3x1"):
        with pytest.raises(InputError, match=f'bench_worlds: got "{world}"; there are 6 slots .n1 has 4, n2 has 2.'):
            worlds_of(parse_sweep({"bench_worlds": world}), slots)


class Nodes:
    """Two nodes with so many slots; `changed`: of their facts, `rails` of their RDMA."""

    def __init__(self, rails: bool = True, slots: int = 8, **changed: Any) -> None:
        self.slots = slots
        rdma = {"rdma": [RAIL]} if rails else {"rdma": [], "rdma_off": "n2 has none"}
        self.facts = {
            f"n{number}": facts_of_a_node(**changed, fabric={**fabric("eth0", f"10.1.0.1{number}"), **rdma})
            for number in (1, 2)
        }

    def plan(self, launcher: str, backend: str | None, world: World, rdma: bool) -> LaunchPlan:
        nodes = tuple(Node(name, f"192.0.2.{name[1]}", slots=self.slots, interpreter="python3") for name in self.facts)
        cluster = Cluster(nodes[0], nodes[: world.nodes] if world.nodes else nodes)
        options = {"np": world.ranks, "ranks_per_node": world.each, "rdma": rdma}
        given = {**options, "launcher": launcher, "backend": backend}
        return planned(cluster, self.facts, Program("/w/all_reduce_bench.py", (), shipped=True), given)

    def cases(self, **given: Any) -> list[Case]:
        asked = parse_sweep(given)
        return cases_of(asked, worlds_of(asked, dict.fromkeys(self.facts, self.slots)), self.plan)


def told(cases: list[Case]) -> list[tuple[str, str, str]]:
    return [(case.shape, case.way, case.code) for case in cases]


def test_a_bench_has_no_more_cells_than_anyone_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CELLS_MOST", 3)
    assert len(Nodes().cases(bench_worlds="8,16", bench_sizes="1M", bench_rdma="off")) == 2
    with pytest.raises(InputError, match=r"bench_sizes: got .?4 cells.?; at most 3 are allowed: ask for less"):
        Nodes().cases(bench_worlds="8,16", bench_sizes="1M,2M", bench_rdma="off")


def test_rdma_on_and_off_where_the_nodes_have_it() -> None:
    """Within a node there is one case: the network carries nothing of it."""
    cases = Nodes(**GPUS).cases(bench_worlds="8,16,2x8", bench_rdma="both")
    assert told(cases) == [("1x8", ONE_NODE, ""), ("2x8", RDMA, ""), ("2x8", TCP, "")]  # 16 and 2x8 are the same
    assert {case.backend for case in cases} == {"nccl"}
    assert told(Nodes(**GPUS).cases(bench_worlds="16")) == [("2x8", RDMA, "")]
    assert told(Nodes(**GPUS).cases(bench_worlds="16", bench_rdma="off")) == [("2x8", TCP, "")]


def test_rdma_that_is_not_there_is_a_cell_with_its_cause() -> None:
    cases = Nodes(**GPUS).cases(bench_worlds="16", bench_backends="gloo,nccl", bench_rdma="both")
    assert told(cases) == [("2x8", RDMA, "no_rdma_in_backend"), ("2x8", TCP, ""), ("2x8", RDMA, ""), ("2x8", TCP, "")]
    bare = Nodes(rails=False, **GPUS)
    assert told(bare.cases(bench_worlds="16", bench_rdma="both")) == [
        ("2x8", RDMA, "no_rdma_on_nodes"),
        ("2x8", TCP, ""),
    ]
    assert told(bare.cases(bench_worlds="16")) == [("2x8", TCP, "")]
    with pytest.raises(InputError, match=r"bench_rdma: .* no RDMA device is in use on n1, n2 \(n2 has none\)"):
        bare.cases(bench_worlds="16", bench_rdma="on")


def test_a_launcher_and_a_backend_that_do_not_go_together() -> None:
    nodes = Nodes(rails=False, backends=["mpi", "mpi:openmpi"])
    cases = nodes.cases(bench_worlds="4", bench_launchers="openmpi,torchrun", bench_backends="gloo,mpi")
    cannot = [case for case in cases if case.code]
    assert [(case.launcher, case.backend, case.code) for case in cannot] == [("torchrun", "mpi", "cannot_run")]
    assert "use -e bench_launchers=openmpi" in cannot[0].reason
    with pytest.raises(InputError, match=r'bench_backends: got "nccl"; no GPU on n1, n2; use -e bench_backends=gloo'):
        nodes.cases(bench_worlds="4", bench_backends="gloo,nccl")


def seed(jitter: float = 0.01, faster: float = 1.0) -> list[Cell]:
    """Return the cells of a published table."""
    cells = []
    for ranks, *rates in SEED:
        nodes = tuple(f"n{number}" for number in range(1, max(1, ranks // 8) + 1))
        counts = (ranks // len(nodes),) * len(nodes)
        for way, rate in zip((RDMA, TCP) if len(nodes) > 1 else (ONE_NODE,), rates, strict=False):
            case = Case("openmpi", "nccl", way, nodes, counts)
            middle = GIB4 * 2 * (ranks - 1) / ranks / (rate * faster / 8 * 1e9)
            figures = Figures(middle, middle * (1 - jitter), middle * (1 + jitter))
            cells.append(Cell(case, GIB4, MEASURED, figures, {RDMA: 400.0, TCP: 25.0, ONE_NODE: 0.0}[way]))
    return cells


def figures_of(cells: list[Cell]) -> dict[str, Figures]:
    return {cell.key: cell.figures for cell in cells if cell.figures}


def test_a_published_table() -> None:
    lines = rdma_lines(seed(), 200)
    assert lines[0] == "Gbit/s of an all-reduce of 4G:"
    assert [line.split() for line in lines[3:]] == [
        ["2", "(1x2)", "openmpi", "nccl", "1,687", "1,687", "1,687", "1,687"],
        ["4", "(1x4)", "openmpi", "nccl", "1,622", "1,081", "1,622", "1,081"],
        ["8", "(1x8)", "openmpi", "nccl", "1,662", "949.9", "1,662", "949.9"],
        ["16", "(2x8)", "openmpi", "nccl", "122.3", "65.23", "29.1", "15.52"],
        ["32", "(4x8)", "openmpi", "nccl", "76.2", "39.33", "30.1", "15.54"],
    ]


def test_share_of_the_line_rate_and_scaling() -> None:
    by_way = {(row.cell.case.ranks, row.cell.case.way): row for row in judge(seed(), {}, 0.0)}
    assert by_way[2, ONE_NODE].verdict.efficiency is None and by_way[8, ONE_NODE].verdict.efficiency == pytest.approx(
        1662.4 / 1687.1
    )
    assert by_way[32, RDMA].verdict.efficiency == pytest.approx(76.2 / 1687.1)
    assert by_way[16, TCP].cell.share == pytest.approx(29.1 / 25)
    assert by_way[16, RDMA].cell.share == pytest.approx(122.3 / 400)


@pytest.mark.parametrize(
    ("jitter", "faster", "code"),
    [(0.01, 1.2, BETTER), (0.01, 0.8, WORSE), (0.01, 1.04, SAME), (0.3, 0.8, SAME), (0.0, 1.0, SAME)],
)
def test_a_change_counts_beyond_the_noise_alone(jitter: float, faster: float, code: str) -> None:
    judged = judge(seed(jitter, faster), figures_of(seed(jitter)), 0.0)
    assert {row.verdict.code for row in judged} == {code}
    assert all(row.verdict.sentence for row in judged)


def test_processors_that_others_use_vary_more() -> None:
    now, before = (
        [replace(cell, case=replace(cell.case, backend="gloo")) for cell in seed(0.01, by)] for by in (0.8, 1)
    )
    assert {row.verdict.code for row in judge(now, figures_of(before), 0.0)} == {SAME}


def test_the_baseline_keeps_what_it_has_until_it_is_reset() -> None:
    first, now = figures_of(seed()), seed(faster=0.5)
    assert judge(now, {}, 0.0)[0].verdict.code == NEW
    assert merged(first, now, reset=False) == first
    assert merged(first, now, reset=True) == figures_of(now)


def test_the_floor_names_its_cells_and_spares_small_messages() -> None:
    small = [replace(cell, size=1024) for cell in seed()]  # as slow as the large ones: far below any floor
    judged = judge([*small, *seed()], {}, 10.0)
    why = failure(judged, 10.0)
    assert why.startswith("below bench_floor_gbps=10: 16 ranks (2x8), openmpi, nccl, no RDMA, 4G (3.64 GB/s); 32 ranks")
    assert "1K" not in why and "no RDMA, 4G (3.76 GB/s)" in why and "nccl, RDMA, 4G (9.53 GB/s)" in why
    assert sentence(judged).endswith("3 below the floor")
    assert failure(judge(seed(), {}, 3.0), 3.0) == ""


def written(directory: Path, cells: list[Cell]) -> dict[str, Cell]:
    for cell in cells:
        results.store(directory, cell)
    return results.stored(directory)


def test_a_bench_writes_into_no_directory_of_others(tmp_path: Path) -> None:
    place = results.directory_of(str(tmp_path), "b1")
    (tmp_path / "one").mkdir()
    with pytest.raises(InputError, match="exists, and no bench wrote it"):
        results.directory_of(str(tmp_path), "one")
    results.make_directory(place)
    assert results.directory_of(str(tmp_path), "b1") == place and place.stat().st_mode & 0o077 == 0


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    """But what failed is, and what was measured on other nodes, and a file that is no cell."""
    cells = seed()
    failed = replace(cells[1], state=FAILED, figures=None, code="job_failed", cause="no memory")
    known = written(tmp_path, [cells[0], failed, *cells[2:]])
    (tmp_path / "cells" / f"{cells[2].key}.json").write_text('{"size": "4G"}')
    assert (tmp_path / "cells" / f"{cells[0].key}.json").stat().st_mode & 0o777 == 0o600
    moved = replace(cells[3].case, nodes=("n1", "n5"))
    turns = Turns([*(cell.case for cell in cells[:3]), moved], [GIB4], results.stored(tmp_path))
    assert known[cells[0].key] == cells[0]
    assert [case.name for case, _sizes in turns.todo()] == [cells[1].case.name, cells[2].case.name, moved.name]
    assert turns.opening("b1") == ["bench b1: 4 cells, 1 done, 3 jobs to run"]
    (line,) = turns.take([cells[1]], 10.0)
    assert line.startswith("cell 2/4: 4 ranks (1x4), openmpi, nccl, 4G: 203 GB/s bus bandwidth in 31.8 ms")
    assert line.endswith("; about 20.0 s left")


def reported(tmp_path: Path, *rows: dict[str, Any]) -> results.Reported:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"rank": 0, **row}) + "\n" for row in rows))
    return results.Reported(tmp_path)


def test_sizes_that_were_measured_before_a_failure_stand(tmp_path: Path) -> None:
    times = {"seconds": 0.002, "seconds_min": 0.001, "seconds_max": 0.003}
    told = reported(
        tmp_path,
        {"bytes": 1024, **times, "wrong": 0},
        {"bytes": 2048, **times, "wrong": 1},
        {"bytes": 4096, "seconds": "NaN", "seconds_min": -1, "seconds_max": 1e300, "wrong": 0},
        {"rank": 1, "bytes": 8192, **times, "wrong": 0},
        {"nic_gbit": 25, "rdma_gbit": 400, "nic_sent_gb": 5, "rdma_sent_gb": 0},
    )
    case = seed()[3].case
    cells = cells_of_job(case, [1024, 2048, 4096, 8192], told, "rank 1: out of memory", "/r", "now")
    assert [(cell.state, cell.code) for cell in cells] == [
        (MEASURED, ""),
        (FAILED, "wrong_sum"),
        (FAILED, "job_failed"),
        (FAILED, "job_failed"),
    ]
    assert cells[0].line_gbit == 400 and "went over the NIC" in cells[0].note
    assert cells[3].cause == "rank 1: out of memory"
    nothing = cells_of_job(case, [1024], results.Reported(None), "", "/r", "now")
    assert (nothing[0].state, nothing[0].code) == (FAILED, "not_reported")


def test_a_baseline_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert results.read_baseline(str(path), "n1-n4") == {"n1-n4": {}}
    results.keep_baseline(str(path), {"n1-n4": figures_of(seed()), "n9": {}})
    assert results.read_baseline(str(path), "n1-n4") == {"n1-n4": figures_of(seed()), "n9": {}}
    path.write_text("[]")
    with pytest.raises(InputError, match=r"bench_baseline: .* remove the file"):
        results.read_baseline(str(path), "n1-n4")


def sweep_of_sizes() -> list[Cell]:
    """Return the cells of the seed at 12 sizes, with one that failed and one that cannot be measured."""
    cells = [
        replace(cell, size=1 << power, figures=Figures(*[1e-4 * (1 + number + power) * 2 ** max(0, power - 20)] * 3))
        for number, cell in enumerate(seed())
        for power in range(10, 33, 2)
    ]
    case = Case("torchrun", "mpi", ONE_NODE, (), (), code="cannot_run", reason="torchrun starts no MPI")
    cannot = Cell(case, GIB4, IMPOSSIBLE, code=case.code, cause=case.reason)
    return [
        *cells,
        replace(cells[-1], size=8 << 30, state=FAILED, figures=None, cause="<script>alert(1)</script>"),
        cannot,
    ]


def test_the_page_is_small_and_loads_nothing() -> None:
    judged = judge(sweep_of_sizes(), {}, 5.0)
    text = bench_page("b1", "n1-n4", "2026-11-26", judged, failure(judged, 5.0))
    page = checked(text)
    assert len([svg for svg in page.all("svg") if svg.get("role") == "img"]) == 3
    for words in (
        "Bus bandwidth over message size",
        "RDMA or not",
        "Not measured: 2",
        "torchrun starts no MPI",
        "All cells",
    ):
        assert words in page.text
    assert "alert(1)" in page.text and "None" not in page.text and "nan" not in page.text
    axis = page.text.index("1K", page.text.index("over message size"))
    assert axis < page.text.index("1G", axis)


def test_the_page_of_a_bench_that_was_stopped_at_once() -> None:
    assert "0 of 0 cells measured" in checked(bench_page("b1", "n1", "now", judge([], {}, 0.0), "")).text
    assert csv_text([]).count("\n") == 1


@pytest.mark.parametrize("seconds", [1e-310, 5e-324, 0.0])
def test_a_time_that_nothing_takes_is_no_figure(tmp_path: Path, seconds: float) -> None:
    """Reproduced before: the rate was infinite, and the page could not be drawn, in each later run of the bench too."""
    figures = dict.fromkeys(("seconds", "seconds_min", "seconds_max"), seconds)
    found = reported(tmp_path, {"bytes": 1024, "nic_gbit": 5e-324, **figures})
    assert found.figures == {} and found.line_gbit("tcp") == 0.0


def test_a_bench_is_no_run(tmp_path: Path) -> None:
    """Its report is not made anew by report.yml, which would take it for a run without files."""
    results.store(tmp_path / "bench-1", seed()[0])
    (tmp_path / "run-1").mkdir()
    assert [path.name for path in find_runs(str(tmp_path), ["*"])] == ["run-1"]


def test_the_page_of_many_cells_is_small_too() -> None:
    cells = [
        replace(cell, case=replace(cell.case, launcher=launcher, backend=backend))
        for launcher in ("openmpi", "mpich", "intelmpi", "torchrun")
        for backend in ("gloo", "mpi", "ccl", "nccl")
        for cell in sweep_of_sizes()
    ]
    page = checked(bench_page("b1", "n1-n4", "now", judge(cells, {}, 0.0), ""))
    assert "more are in bench.csv" in page.text or "too large for this page" in page.text


def test_tables_and_csv_say_the_same() -> None:
    cells = [*sweep_of_sizes(), replace(seed()[0], cause="=1+1")]
    judged = judge(cells, {}, 0.0)
    rows = list(csv.DictReader(io.StringIO(csv_text(judged))))
    assert len(rows) == len(cells) == len([line for line in table_lines(judged, 300) if line[1:2].isdigit()]) + 1
    assert float(rows[0]["busbw_gbit_per_s"]) == pytest.approx(8 * cells[0].busbw)
    assert rows[-1]["cause"] == "'=1+1" and rows[-3]["state"] == FAILED
    assert [time_text(seconds) for seconds in (1.23e-5, 0.0456, 1.5)] == ["12.3 us", "45.6 ms", "1.5 s"]
