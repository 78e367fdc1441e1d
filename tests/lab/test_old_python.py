"""Nodes of Debian 11, whose Python is too old for PyTorch: setup.yml brings them another one, and they train.

The archive of python-build-standalone cannot be had in tests: a CPython that is built from Debian's source, in the same
layout, stands in for it. Building takes minutes, so it is kept in .cache, by what it is built from.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.host import limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.driver import REPO
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab

SCRIPT = Path(__file__).parent / "standalone_python.sh"
VERSION = "3.11.2"
NAME = "python.tar.gz"
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
    """The head and a worker of Debian 12, and a worker of Debian 11."""
    root = tmp_path_factory.mktemp("old")
    overrides = {"n2": {"release": "bullseye"}}
    lab = Lab(f"o{hashlib.sha256(str(root).encode()).hexdigest()[:6]}", root / "inventory", nodes=2, install=True)
    try:
        lab.up(image="bare", overrides=overrides)
        yield Cluster(lab, root)
    finally:
        lab.down()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is given to setup.yml: the stand-in, in place of the real archive."""
    there = archive(REPO / ".cache")
    digest = hashlib.sha256((there / NAME).read_bytes()).hexdigest()
    source = {"url": f"x/cpython-{NAME}", "sha256": {VERSION: digest}}
    versions = tmp_path_factory.mktemp("versions") / "versions.yml"
    versions.write_text(json.dumps({"cpython": {"x86_64": {"version": VERSION, "source": source}}}))
    wheelhouse = versions.parent / "wheelhouse"
    wheelhouse.mkdir()
    shutil.copyfile(there / NAME, wheelhouse / f"cpython-{NAME}")
    return json.dumps({"torchfleet_versions": str(versions), "prerequisites_wheelhouse": str(wheelhouse)})


def works(old: Cluster, *words: str) -> str:
    job = old.play(*words)
    assert job.process.returncode == 0, job.log.read_text()
    return job.output


def test_without_an_archive_one_line_says_what_to_do(old: Cluster, tmp_path: Path) -> None:
    job = old.play("setup.yml", "-e", json.dumps({"prerequisites_wheelhouse": str(tmp_path)}))
    assert job.process.returncode == 2
    assert "TF-PYTHON-TORCH: PyTorch has no wheel for this Python" in job.output
    assert f"prerequisites: {tmp_path} has no cpython-3" in job.output
    refused = old.play("setup.yml", "-e", "prerequisites_python=false")
    assert refused.process.returncode == 2
    assert "1 error: TF-PYTHON-TORCH on n2" in refused.output


def test_setup_brings_a_python_and_the_cluster_trains(old: Cluster, options: str) -> None:
    assert old.lab.ssh("n2", "python3", "--version").stdout.strip() == "Python 3.9.2"
    works(old, "setup.yml", "-e", options)
    for node in ("n1", "n2"):
        found = old.lab.ssh(node, "readlink", "--canonicalize", "/home/fleet/.torchfleet/pytorch/bin/python").stdout
        assert found.strip() == f"{OURS}/bin/python3.11", node
    short = json.dumps({"workload_args": "--epochs 1 --target-accuracy 0.5"})
    job = old.play("train.yml", "-e", "workload=mnist", "-e", short)
    assert job.process.returncode == 0, job.log.read_text()
    assert (job.result["state"], [row["host"] for row in job.result["ranks"]]) == (
        "succeeded",
        ["n1", "n1", "n2", "n2"],
    )


def test_a_second_run_changes_nothing(old: Cluster, options: str) -> None:
    said = works(old, "setup.yml", "-e", options)
    assert "changed=0" in said and "changed=1" not in said


def test_nothing_of_the_archive_is_left_but_the_python(old: Cluster) -> None:
    for node in ("n1", "n2"):
        names = subprocess.check_output(old.lab.ssh_argv(node, "ls", "/home/fleet/.torchfleet"), text=True).split()
        assert [name for name in names if name.startswith("python-")] == [f"python-{VERSION}", f"python-{VERSION}.lock"]
