"""bench.yml on this machine: a cell that fails, going on with a bench, a floor, and Ctrl-C."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path

from tests.driver import environment, pids
from tests.integration.fleet import Fleet
from tests.unit.report_pages import checked

# Ends ranks that torchrun starts, and no others.
BREAKS_TORCHRUN = "import os\nif os.environ.get('TORCHELASTIC_ERROR_FILE'):\n    os._exit(3)\n"


def rows(directory: Path) -> list[dict[str, str]]:
    with (directory / "bench.csv").open() as file:
        return list(csv.DictReader(file))


def alive(fleet: Fleet) -> list[int]:
    """Return the pids of all processes of jobs of this test."""
    mark = f"TORCHFLEET_JOB_DIR={fleet.home}/jobs/".encode()
    return [pid for pid in pids() if any(word.startswith(mark) for word in environment(pid))]


def test_a_bench_goes_on_where_it_was(fleet: Fleet) -> None:
    (fleet.root / "sitecustomize.py").write_text(BREAKS_TORCHRUN)
    asked = {"bench_id": "b", "bench_sizes": "64K", "bench_rounds": 3, "bench_launchers": "torchrun,openmpi"}
    asked["bench_baseline"] = str(fleet.root / "baseline.json")
    directory = fleet.runs / "b"
    broken = fleet.play("bench.yml", **asked, bench_iterations=9, job_env={"PYTHONPATH": str(fleet.root)})
    assert broken.rc == 2 and "cell 2/2: 2 ranks (1x2), openmpi, gloo, 64K: " in broken.stdout
    assert [(row["launcher"], row["state"]) for row in rows(directory)] == [
        ("torchrun", "failed"),
        ("openmpi", "measured"),
    ]
    assert "2 ranks (1x2), torchrun, gloo, 64K (rank " in broken.msg and "exit status 3" in rows(directory)[0]["cause"]
    first = rows(directory)[1]
    assert 0 < float(first["seconds_min"]) <= float(first["seconds"]) <= float(first["seconds_max"])

    again = fleet.play("bench.yml", **asked, bench_iterations=9, bench_floor_gbps=99999)
    assert again.rc == 2 and "bench b: 2 cells, 1 done, 1 job to run" in again.stdout
    assert "job 1/1: 2 ranks (1x2), torchrun, gloo: 64K" in again.stdout
    assert {**rows(directory)[1], "verdict": "", "below_floor": ""} == {**first, "verdict": "", "below_floor": ""}
    assert "below bench_floor_gbps=99999: 2 ranks (1x2), torchrun, gloo, 64K (" in again.msg
    assert again.msg.count("openmpi") == 1 and len(list((directory / "jobs").glob("2*"))) == 3
    assert "2 below the floor" in checked((directory / "report.html").read_text()).text
    (name, kept), *others = json.loads((fleet.root / "baseline.json").read_text())["clusters"].items()
    assert name.startswith("localhost of ") and not others
    assert sorted(kept) == ["1x2-openmpi-gloo-one_node-65536"]  # what is below the floor is no baseline

    asked["bench_sizes"] = "64K,1M"
    job = fleet.start(playbook="bench.yml", **asked, bench_iterations=10**6)
    job.wait_until(lambda: len(alive(fleet)) > 2)
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(60) != 0 and alive(fleet) == []
    assert [(row["bytes"], row["state"]) for row in rows(directory)] == [("65536", "measured")] * 2
