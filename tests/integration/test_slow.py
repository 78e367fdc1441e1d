"""A rank that is slow in each step is named, with what it costs; nobody is where the ranks are slow in turn."""

from __future__ import annotations

import gzip
import json

from tests.integration.fleet import Fleet

STEPS, SECONDS = 60, 0.05
SCRIPT = f"""
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
for step in range({STEPS}):
    if rank == (step % size if sys.argv[1] == "in_turn" else 1):
        time.sleep({SECONDS})
    model(torch.ones(8, 64)).sum().backward()
dist.destroy_process_group()
"""


def script(fleet: Fleet) -> str:
    """Return the path of the script, in a folder of its own: beside others it would import one for `secrets`."""
    path = fleet.root / "uneven" / "train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return str(path)


def test_a_slow_rank_is_named_and_profiled(fleet: Fleet) -> None:
    """A busy machine makes it slower, never faster. It sleeps in its own code; the other one waits."""
    played = fleet.play(workload=script(fleet), workload_args="rank_1", backend="gloo", profile="1s")
    assert played.rc == 0, played.stdout
    skew, profile = played.result["skew"], played.result["profile"]
    assert (skew["code"], skew["rank"], skew["host"]) == ("waited_for_rank", 1, "localhost")
    row = skew["ranks"][1]
    assert row["last"] > 0.8 * STEPS and row["cost"] > 0.8 * STEPS * SECONDS and row["late"] > 0.8 * SECONDS
    assert "the others waited for rank 1 on localhost: it came last in " in played.stdout
    assert "The others waited for rank 1 on localhost" in (played.run_dir / "report.html").read_text()
    assert (profile["traces"], profile["missing"]) == ([0, 1], [])
    for rank in (0, 1):
        with gzip.open(played.run_dir / "profile" / f"rank-{rank}.trace.json.gz") as file:
            names = {event.get("name") for event in json.load(file)["traceEvents"]}
        assert "gloo:all_reduce" in names and "aten::addmm" in names
    shares = {row["rank"]: row["shares"] for row in profile["budget"]}
    assert shares[1]["own_idle"] > shares[0]["own_idle"]
    assert "it is slow in its own code" in skew["sentence"]


def test_nobody_is_named_where_ranks_are_slow_in_turn(fleet: Fleet) -> None:
    """It ends before a profile of a minute does: that is told, and is no failure."""
    played = fleet.play(
        workload=script(fleet),
        workload_args="in_turn",
        backend="gloo",
        profile=60,
        profile_ranks=[1],
    )
    assert played.rc == 0, played.stdout
    skew = played.result["skew"]
    assert (skew["code"], skew["rank"], skew["sentence"]) == ("no_straggler", None, "")
    assert skew["collectives"] >= STEPS and all(row["cost"] > 0.3 * STEPS * SECONDS for row in skew["ranks"])
    assert "profile: none from rank 1: " in played.stdout and "the others waited" not in played.stdout
