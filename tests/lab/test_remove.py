"""Everything that setup.yml puts on a node goes with remove.yml, and what was there before stays.

One pair of nodes that have Python and an SSH server, and nothing else. The tests run in this order: each leaves the
nodes for the next.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.cluster import Cluster, Job
from tests.lab.lab import Lab, ansible
from tests.lab.listing import listing

NODES = ("n1", "n2")
SETUP = {"mpis": ["openmpi", "mpich", "intelmpi"], "backends": ["mpi"], "libraries": ["ucx"], "ssh_mesh_become": True}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("remove")
    lab = Lab(f"r{os.getpid()}", root / "inventory", nodes=2, install=True, image="bare")
    try:
        lab.up()
        yield Cluster(lab, root)
    finally:
        lab.down()


def works(bare: Cluster, *words: str) -> Job:
    job = bare.play(*words)
    assert job.process.returncode == 0, job.log.read_text()
    return job


def test_after_removal_the_nodes_are_as_they_were(bare: Cluster) -> None:
    before = {node: listing(bare.lab, node) for node in NODES}
    bare.lab.ssh("n1", "sh", "-c", "'echo mine >mine.txt'")
    works(bare, "setup.yml", "--skip-tags", "verify", "-e", json.dumps(SETUP))
    there = {node: listing(bare.lab, node, contents=False) for node in NODES}
    assert all(len(there[node] - before[node]) > 1000 for node in NODES)
    assert bare.lab.root("n1", "cat", "/var/lib/torchfleet/installed.json")

    told = works(bare, "remove.yml", "--check").output
    parts = ("/home/fleet/.torchfleet/pytorch", "package g++", "/home/fleet/.torchfleet/fabric.json")
    for what in (*parts, "/home/fleet/.torchfleet/ucx"):
        assert f"would remove: {what}" in told or f", {what}" in told
    assert {node: listing(bare.lab, node, contents=False) for node in NODES} == there

    works(bare, "remove.yml")
    mine = {line for line in listing(bare.lab, "n1") if line.endswith("/home/fleet/mine.txt") or "/mine.txt " in line}
    assert len(mine) == 2
    assert listing(bare.lab, "n1") - mine == before["n1"]
    assert listing(bare.lab, "n2") == before["n2"]
    assert not Path(bare.lab.directory, "ssh_mesh").exists()  # the authorities of the cluster, on the controller
    assert "changed=0" in works(bare, "remove.yml").output


def test_nothing_is_removed_under_a_running_job(bare: Cluster) -> None:
    works(bare, "setup.yml", "--skip-tags", "verify")
    job = bare.start(workload="tests/integration/scripts/sleeper.py")
    job.wait_for_programs("sleeper.py", n1=2, n2=2)
    refused = bare.play("remove.yml", "-e", "nodes=n2", job_id="")
    assert refused.process.returncode == 2
    assert f"job {job.job_id} of fleet runs here: wait for its end, or end it" in refused.output
    assert "removed:" not in refused.output
    assert len(job.programs("n2", "sleeper.py")) == 2
    works(bare, "clean.yml", "-e", f"job_id={job.job_id}")
    job.process.wait(120)


def test_another_machine_takes_a_node_s_name_and_a_third_one_is_added(bare: Cluster) -> None:
    """Both are new containers with nothing on them. Setup refuses the changed host key, and says what to type."""
    lab, known = bare.lab, bare.lab.directory / "known_hosts"
    old, gone = lab.address("n2"), [line for line in known.read_text().splitlines() if lab.address("n2") in line]
    subprocess.run(["podman", "rm", "--force", "--time", "0", f"{lab.name}-n2"], check=True, capture_output=True)
    lab.up(nodes=3)
    assert lab.address("n2") == old and gone
    news = [line for line in known.read_text().splitlines() if old not in line]
    known.write_text("\n".join([*news, *gone]) + "\n")  # as who types has it: that of the machine that is gone

    refused = bare.play("setup.yml", job_id="")
    assert refused.process.returncode == 2 and "ERROR TF-HOST-KEY-CHANGED" in refused.output
    assert "playbooks/host_keys.yml -e replace=n2" in refused.output
    assert all("/.torchfleet" not in lab.root(node, "find", "/home/fleet") for node in ("n2", "n3"))
    shown = bare.play("playbooks/host_keys.yml", "-e", "replace=n2", job_id="")
    (digest,) = set(re.findall(r"-e accept=([0-9a-f]{32})", shown.output))
    works(bare, "playbooks/host_keys.yml", "-e", "replace=n2", "-e", f"accept={digest}")
    works(bare, "setup.yml", "-e", "replace=n2", "--skip-tags", "verify")
    trained = bare.train(workload="message_passing")
    assert {row["host"] for row in trained.result["ranks"]} == {"n1", "n2", "n3"}


def test_a_cluster_is_the_same_after_its_inventory_moved(bare: Cluster) -> None:
    """With its authorities, which a lab has there. Under another name its nodes would be refused."""
    place, known = bare.lab.directory, "ssh_mesh/nodes.json"
    moved = place.rename(place.with_name("moved"))
    try:
        name = json.loads((moved / known).read_text())["cluster"]
        words = ["ansible-playbook", "-i", str(moved / "hosts.yml"), "setup.yml", "--tags", "ssh_mesh"]
        done = ansible(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(re.findall(r"^n[123] .*changed=0", done.stdout, re.MULTILINE)) == 2, done.stdout  # n1 plans for all
        there = json.loads((moved / known).read_text())
        assert (there["cluster"], there["inventory"]) == (name, str(moved))
    finally:
        moved.rename(place)


def test_a_node_that_does_not_answer_is_forgotten_by_the_others(bare: Cluster) -> None:
    bare.play("clean.yml", job_id="")
    known = bare.lab.directory / "ssh_mesh" / "nodes.json"
    bare.lab.kill("n2")
    try:
        done = works(bare, "remove.yml", "-e", "nodes=n2")
        assert "n2 did not answer, and still has all that setup.yml put there" in done.output
        assert sorted(json.loads(known.read_text())["nodes"]) == ["n1", "n3"]
        config = bare.lab.root("n1", "cat", "/home/fleet/.torchfleet/ssh/config")
        assert "Host n1" in config and "Host n3" in config and "n2" not in config
        trained = bare.train(workload="message_passing", away="n2")
        assert {row["host"] for row in trained.result["ranks"]} == {"n1", "n3"}
    finally:
        bare.lab.restart("n2")
