"""What is made in a cluster is what newer versions of Kubernetes take: by their schemas, for none of them runs here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.driver import REPO
from tests.unit.test_pod_manifest import made

VALIDATOR = "kubernetes-validate==1.37.0"  # 140 MB with the schemas of many versions: no part of requirements-dev.txt
VERSIONS = ("1.32", "1.34", "1.37")
CHECK = """import json, sys
import kubernetes_validate
for thing in json.load(sys.stdin):
    kubernetes_validate.validate(thing, sys.argv[1], strict=True)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the interpreter of an environment with the validator, made unless it is there."""
    place = REPO / ".cache" / "kubernetes-validate"
    if not (place / "bin" / "kubernetes-validate").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([place / "bin" / "pip", "install", "--quiet", VALIDATOR], check=True)
    return place / "bin" / "python"


def checked(python: Path, things: list[object], version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", CHECK, version], input=json.dumps(things), capture_output=True, text=True, check=False
    )


@pytest.fixture
def things(tmp_path: Path) -> list[object]:
    """Return the objects of jobs with every option."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    given = {
        "pods": 2, "gpus_per_pod": 4, "pod_cpus": 8, "pod_memory": "64Gi", "pod_queue": "training", "job_timeout": 60,
        "pod_volumes": "a:/a,b:/b:ro", "pod_resources": {"rdma/rdma": 1}, "job_env": {"TOKEN": "x"}, "pod_shm": "8G",
        "pod_annotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/roce"},
    }  # fmt: skip
    kinds = ("indexed", "jobs")
    return [thing.manifest for kind in kinds for thing in made(tmp_path / "train.py", pod_kind=kind, **given).things]


@pytest.mark.parametrize("version", VERSIONS)
def test_valid(python: Path, things: list[object], version: str) -> None:
    done = checked(python, things, version)
    assert done.returncode == 0, done.stderr


def test_a_slip_is_found(python: Path, things: list[object]) -> None:
    """Else the test above would prove nothing."""
    job = json.loads(json.dumps(things[0]))
    job["spec"]["completionmode"] = job["spec"].pop("completionMode")
    done = checked(python, [job], VERSIONS[0])
    assert done.returncode != 0 and "completionmode" in done.stderr
