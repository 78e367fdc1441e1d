"""The runs whose reports are looked at: real jobs on four lab nodes, which come to every kind of end.

They are kept in .cache/pictures/runs: after a change of the report only the pages are made anew.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.compare import comparison
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.page import report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.reading import read_run
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.writer import write_page, write_report
from tests.driver import REPO
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab

PLACE = REPO / ".cache" / "pictures"
RUNS, PROOF, COMPARED = PLACE / "runs", PLACE / "verify.json", PLACE / "compared.html"
TRAINS, BABBLES = (str(REPO / "tests" / "pictures" / name) for name in ("trains.py", "babbles.py"))
NODES = ("n1", "n2", "n3", "n4")
SLOTS, MANY_SLOTS = 2, 16  # of a node
SLOW = ("n4", "300mbit")  # the node whose links are slow when they are measured
CUT = "n3"
LONG_NAMES = {node: f"gpu-worker-{node[1:]:0>4}.rack-17b.training.eu-central.example.org" for node in NODES}
# By the name of a run: the state that it is to come to, and variables of train.yml.
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "success": ("succeeded", {"workload": TRAINS, "workload_args": "well"}),
    "straggler": ("succeeded", {"workload": TRAINS, "workload_args": "slow", "profile": "4s"}),
    "failure": ("failed", {"workload": TRAINS, "workload_args": "bad"}),
    "hang": ("timed_out", {"workload": TRAINS, "workload_args": "hang", "hang_look": 8, "job_timeout": 80}),
    "cut": ("lost", {"workload": TRAINS, "workload_args": "well", "lease": 8}),
    "hostile": ("failed", {"workload": BABBLES}),
}


def make_runs(name: str) -> None:
    """Make what is not there yet of the runs, and of the proof of the links, on a lab of this name."""
    missing = [job for job in JOBS if not (RUNS / job / "result.json").exists()]
    if PROOF.exists() and not missing:
        return
    PLACE.mkdir(parents=True, exist_ok=True)
    options = {"nodes": len(NODES), "nics": 2, "install": True, "image": "bare"}
    lab = Lab(name, PLACE / "inventory", **options, overrides={node: {"slots": SLOTS} for node in NODES})
    try:
        lab.up()
        cluster = Cluster(lab, PLACE)
        well(cluster, "setup.yml", "--skip-tags", "verify", fabric_subnet=cluster.second_network(), mpis=["openmpi"])
        if not PROOF.exists():
            prove(cluster)
        for job in missing:
            run(cluster, job)
    finally:
        lab.down()


def well(cluster: Cluster, playbook: str, *words: str, **given: Any) -> None:
    """Run a playbook, which must succeed."""
    done = cluster.play(playbook, *words, **given)
    assert done.process.returncode == 0, done.output


def prove(cluster: Cluster) -> None:
    """Measure the links, of which those of one node are slow: that is a warning."""
    kept = {name: str(PLACE / f"{name}.json") for name in ("verify_matrix", "verify_baseline")}
    cluster.lab.shape(*SLOW)
    well(cluster, "verify.yml", verify_report=str(PROOF), verify_launchers=["openmpi"], **kept)
    cluster.lab.heal(SLOW[0])


def run(cluster: Cluster, name: str) -> None:
    """Run one of the jobs, which must come to its end."""
    state, given = JOBS[name]
    if name == "hostile":
        cluster.inventory = long_named(cluster.lab.inventory)
        well(cluster, "setup.yml", "--tags", "ssh_mesh")
    job = cluster.start(job_id=name, **given)
    if name == "cut":
        job.wait_until(lambda: "epoch 3/" in job.log.read_text(), 200)
        cluster.lab.cut(CUT)
    job.process.wait(300)
    if name == "cut":
        cluster.lab.heal(CUT)
    assert job.result["state"] == state, job.output


def long_named(inventory: Path) -> Path:
    """Return an inventory of the same machines under long names, with many slots."""
    text = inventory.read_text().replace(f'"slots": {SLOTS}', f'"slots": {MANY_SLOTS}')
    for node, name in LONG_NAMES.items():
        text = text.replace(f"        {node}:", f"        {name}:")
    named = inventory.with_name("long.yml")
    named.write_text(text)
    return named


def make_pages() -> dict[str, Path]:
    """Make the report of each run, and the page that compares two that are alike; return where they are."""
    for name in JOBS:
        write_report(RUNS / name, PROOF)
    write_page(COMPARED, comparison([read_run(RUNS / name) for name in ("success", "straggler")]))
    return {name: RUNS / name / "report.html" for name in JOBS} | {"compared": COMPARED}


def page_of_docs() -> Path:
    """Make the page of docs/report.png: that of the failure, as if it lay in somebody's home; return where it is."""
    run = read_run(RUNS / "failure", PROOF)
    page = PLACE / "docs.html"
    write_page(page, report(dataclasses.replace(run, run_dir="/home/me/runs/run7", job_id="run7")))
    return page
