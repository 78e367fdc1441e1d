"""From bare machines to training and back: Debian 12 and 13, and Debian 11, whose Python is too old for PyTorch.

Each is behind a firewall that drops all but logins by SSH. The tests run in this order: each leaves the nodes for the
next.

The archive of python-build-standalone cannot be had in tests: a CPython that is built from Debian's source, in the same
layout, stands in for it. Building takes minutes, so it is kept in .cache, by what it is built from.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.host import limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.driver import REPO
from tests.lab.cluster import Cluster, Job
from tests.lab.lab import Lab
from tests.lab.listing import listing

SCRIPT = Path(__file__).parent / "standalone_python.sh"
VERSION = "3.11.2"
NAME = "python.tar.gz"
NODES = ("n1", "n2", "n3")
FIREWALL = """flush ruleset
table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		iif "lo" accept
		ct state established,related accept
		tcp dport 22 accept
	}
}
"""
OPEN = {"firewall_open": True}
OURS = f"/home/fleet/.torchfleet/python-{VERSION}"


def archive(directory: Path) -> Path:
    """Return the directory with the archive, which is built unless it is there."""
    there = directory / f"standalone-python-{hashlib.sha256(SCRIPT.read_bytes()).hexdigest()[:16]}"
    if not (there / NAME).exists():
        there.mkdir(parents=True, exist_ok=True)
        base = image.bootstrap("bullseye", "")
        mounts = ["--volume", f"{SCRIPT}:/build.sh:ro", "--volume", f"{there}:/out"]
        podman("run", "--rm", "--network", "host", *limits(), *mounts, base, "sh", "/build.sh", "/out")
    return there


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Debian 12, 11 and 13, with Python, an SSH server and a firewall; the first is the head too."""
    root = tmp_path_factory.mktemp("old")
    options = {"overrides": {"n2": {"release": "bullseye"}, "n3": {"release": "trixie"}}, "packages": ["nftables"]}
    lab = Lab(f"o{os.getpid()}", root / "inventory", nodes=3, slots=1, install=True, image="bare", **options)
    try:
        lab.up()
        for node in NODES:
            script = f"printf %s '{FIREWALL}' >/etc/nftables.conf && systemctl enable --now nftables"
            lab.root(node, "sh", "-c", script)
        yield Cluster(lab, root)
    finally:
        lab.down()


@pytest.fixture(scope="module")
def before(old: Cluster) -> dict[str, set[str]]:
    """What can be told of each node before anything is done there."""
    return {node: listing(old.lab, node) for node in NODES}


def stand_in(root: Path) -> dict[str, object]:
    """Put the stand-in for the real archive into the directory `wheelhouse`; return what a lockfile says of it."""
    there = archive(REPO / ".cache")
    (root / "wheelhouse").mkdir()
    shutil.copyfile(there / NAME, root / "wheelhouse" / f"cpython-{NAME}")
    digest = hashlib.sha256((there / NAME).read_bytes()).hexdigest()
    source = {"url": f"x/cpython-{NAME}", "sha256": {VERSION: digest}}
    return {"cpython": {"x86_64": {"version": VERSION, "source": source}}}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is given to setup.yml: the stand-in, in place of the real archive."""
    root = tmp_path_factory.mktemp("versions")
    versions = root / "versions.yml"
    versions.write_text(json.dumps(stand_in(root)))
    wheelhouse = str(root / "wheelhouse")
    return json.dumps({"torchfleet_versions": str(versions), "prerequisites_wheelhouse": wheelhouse, **OPEN})


def works(old: Cluster, *words: str) -> Job:
    job = old.play(*words)
    assert job.process.returncode == 0, job.log.read_text()
    return job


def proven(said: str) -> bool:
    """Whether a playbook ended with the proof of the cluster."""
    return "all-reduce correct" in said and "verify of 3 nodes: " in said


def test_without_an_archive_one_line_says_what_to_do(old: Cluster, before: dict[str, set[str]], tmp_path: Path) -> None:
    job = old.play("setup.yml", "-e", json.dumps({"prerequisites_wheelhouse": str(tmp_path)}))
    assert job.process.returncode == 2
    assert "TF-PYTHON-TORCH: PyTorch has no wheel for this Python" in job.output
    assert f"prerequisites: {tmp_path} has no cpython-3" in job.output
    refused = old.play("setup.yml", "-e", "prerequisites_python=false")
    assert refused.process.returncode == 2
    assert "1 error: TF-PYTHON-TORCH on n2" in refused.output
    assert [sorted(listing(old.lab, node) ^ before[node]) for node in NODES] == [[], [], []]  # as bare as at first


@pytest.mark.usefixtures("before")
def test_setup_of_bare_nodes_ends_with_its_proof_and_the_cluster_trains(old: Cluster, options: str) -> None:
    """One command, with what it needs to know: where the archive is, and that firewalls may be opened."""
    versions = [old.lab.ssh(node, "python3", "--version").stdout.split()[1] for node in NODES]
    assert [version.rpartition(".")[0] for version in versions] == ["3.11", "3.9", "3.13"]
    assert proven(works(old, "setup.yml", "-e", options).output)
    for node in NODES:
        found = old.lab.ssh(node, "readlink", "--canonicalize", "/home/fleet/.torchfleet/pytorch/bin/python").stdout
        assert found.strip() == f"{OURS}/bin/python3.11", node
        names = old.lab.ssh(node, "ls", "/home/fleet/.torchfleet").stdout.split()
        assert [name for name in names if name.startswith("python-")] == [f"python-{VERSION}", f"python-{VERSION}.lock"]
    alone = {"OMP_NUM_THREADS": "1"}  # a second thread of a rank spins while it waits: all nodes share two cores
    short = json.dumps({"workload_args": "--epochs 1 --target-accuracy 0.5", "job_env": alone})
    job = works(old, "train.yml", "-e", "workload=mnist", "-e", short)
    assert (job.result["state"], [row["host"] for row in job.result["ranks"]]) == ("succeeded", list(NODES))


def test_a_second_run_changes_nothing(old: Cluster, options: str) -> None:
    said = works(old, "setup.yml", "-e", options, "--skip-tags", "verify").output  # which the first run had
    assert "changed=0" in said and "changed=1" not in said


def test_after_removal_the_nodes_and_their_firewalls_are_as_they_were(
    old: Cluster, before: dict[str, set[str]]
) -> None:
    assert all(len(listing(old.lab, node, contents=False) - before[node]) > 1000 for node in NODES)
    works(old, "remove.yml")
    for node in NODES:
        assert listing(old.lab, node) == before[node], node
