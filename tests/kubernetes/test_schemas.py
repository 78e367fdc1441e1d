"""What is made in a cluster is what newer versions of Kubernetes take: by their schemas, for none of them runs here.

Jobs of Kubeflow's operators are checked with the classes of their packages, an MPIJob by a table of ours: there is no
package with its schema. Pods within them are checked as those of Kubernetes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.driver import REPO
from tests.kubernetes.operators import MPIJOB
from tests.unit.test_pod_kinds import ALL
from tests.unit.test_pod_manifest import made

# 140 MB with the schemas of many versions: no part of requirements-dev.txt.
VALIDATORS = ("kubernetes-validate==1.37.0", "kubeflow-trainer-api==2.3.0", "kubeflow-training==1.9.4")
VERSIONS = ("1.32", "1.34", "1.37")
CHECK = """import json, sys
import kubernetes_validate
for thing in json.load(sys.stdin):
    kubernetes_validate.validate(thing, sys.argv[1], strict=True)
"""
# The classes drop a field that they do not know: what comes out differs then.
CHECK_TRAINER = """import json, sys
from kubeflow_trainer_api import models
for thing in json.load(sys.stdin):
    read = getattr(models, "TrainerV1alpha1" + thing["kind"]).from_dict(thing).to_dict()
    told = json.loads(json.dumps(read, default=str))
    if told != thing:
        sys.exit("not as it came: " + json.dumps(told) + " is not " + json.dumps(thing))
"""
# These classes have tables of their fields. Pods are checked elsewhere.
CHECK_TRAINING = """import json, sys
from kubeflow.training import models
PLAIN = {"str": str, "int": int, "bool": bool}
def check(value, kind, path):
    inner = kind.partition("(")[2].rstrip(")").rpartition(", ")[2] or kind.partition("[")[2].rstrip("]")
    own = getattr(models, kind, None)
    if kind.startswith("dict("):
        [check(each, inner, path + [name]) for name, each in value.items()]
    elif kind.startswith("list["):
        [check(each, inner, path) for each in value]
    elif kind in PLAIN:
        isinstance(value, PLAIN[kind]) or sys.exit(f"{path}: {value} is no {kind}")
    elif own and kind.startswith("KubeflowOrg"):
        types = {own.attribute_map[name]: each for name, each in own.openapi_types.items()}
        for name, each in value.items():
            name in types or sys.exit(f"{path}: {kind} has no {name}")
            check(each, types[name], path + [name])
for thing in json.load(sys.stdin):
    check(thing, "KubeflowOrgV1" + thing["kind"], [])
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the interpreter of an environment with the validators, made unless it is there."""
    place = REPO / ".cache" / "kubernetes-validate"
    mark = place / "of.txt"
    if not (mark.exists() and mark.read_text().split() == list(VALIDATORS)):
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([place / "bin" / "pip", "install", "--quiet", *VALIDATORS], check=True)
        mark.write_text("\n".join(VALIDATORS))
    return place / "bin" / "python"


def checked(python: Path, things: list[Any], version: str, check: str = CHECK) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", check, version], input=json.dumps(things), capture_output=True, text=True, check=False
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path / "train.py"


@pytest.fixture
def things(script: Path) -> list[Any]:
    """Return the objects of jobs with every option."""
    given = {
        "pods": 2, "gpus_per_pod": 4, "pod_cpus": 8, "pod_memory": "64Gi", "pod_queue": "training", "job_timeout": 60,
        "pod_volumes": "a:/a,b:/b:ro", "pod_resources": {"rdma/rdma": 1}, "job_env": {"TOKEN": "x"}, "pod_shm": "8G",
        "pod_security": "restricted", "pod_user": 1000,
        "pod_annotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/roce"},
    }  # fmt: skip
    kinds = ("indexed", "jobs")
    return [thing.manifest for kind in kinds for thing in made(script, pod_kind=kind, **given).things]


def of_operator(script: Path, kind: str) -> tuple[list[Any], list[Any]]:
    """Return the objects of an operator, and all others: those of Kubernetes, and the templates of pods."""
    manifests: list[Any] = [
        json.loads(json.dumps(thing.manifest)) for thing in made(script, pod_kind=kind, **ALL).things
    ]
    own = [each for each in manifests if "kubeflow.org" in each["apiVersion"]]
    templates = [template for each in own for template in templates_in(each)]
    pods = [{"apiVersion": "v1", "kind": "PodTemplate", "metadata": {}, "template": each} for each in templates]
    return own, [*(each for each in manifests if each not in own), *pods]


def templates_in(value: Any) -> list[Any]:
    """Return the templates of pods in an object."""
    if not isinstance(value, dict):
        return [found for each in value for found in templates_in(each)] if isinstance(value, list) else []
    own = [value] if "containers" in value.get("spec", {}) else []
    return own + [found for each in value.values() for found in templates_in(each)]


def flaws(value: Any, rule: Any, path: str = "spec") -> list[str]:
    """Return what an object has that a table of fields does not."""
    if isinstance(rule, dict):
        known = [
            each for name, row in rule.items() if name in value for each in flaws(value[name], row, f"{path}.{name}")
        ]
        return known + [f"{path}.{name}" for name in value if name not in rule]
    right = value in rule if isinstance(rule, tuple) else isinstance(value, rule)
    return [] if right else [f"{path}: {value}"]


@pytest.mark.parametrize("version", VERSIONS)
def test_valid(python: Path, things: list[Any], version: str) -> None:
    done = checked(python, things, version)
    assert done.returncode == 0, done.stderr


def test_a_slip_is_found(python: Path, things: list[Any]) -> None:
    """Else the test above would prove nothing."""
    job = json.loads(json.dumps(things[0]))
    job["spec"]["completionmode"] = job["spec"].pop("completionMode")
    done = checked(python, [job], VERSIONS[0])
    assert done.returncode != 0 and "completionmode" in done.stderr


@pytest.mark.parametrize(("kind", "check"), [("pytorchjob", CHECK_TRAINING), ("trainjob", CHECK_TRAINER)])
def test_a_job_of_an_operator_is_what_its_package_takes(python: Path, script: Path, kind: str, check: str) -> None:
    own, others = of_operator(script, kind)
    assert own and others
    for things, how in ((own, check), (others, CHECK)):
        done = checked(python, things, VERSIONS[-1], how)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "check", "path", "slip"),
    [
        ("pytorchjob", CHECK_TRAINING, ("spec", "runPolicy"), "cleanPodPolicies"),
        ("pytorchjob", CHECK_TRAINING, ("spec", "pytorchReplicaSpecs", "Master"), "replica"),
        ("trainjob", CHECK_TRAINER, ("spec", "mlPolicy"), "numNode"),
        ("trainjob", CHECK_TRAINER, ("spec", "template", "spec"), "replicatedJob"),
    ],
)
def test_a_slip_in_a_job_of_an_operator_is_found(
    python: Path, script: Path, kind: str, check: str, path: tuple[str, ...], slip: str
) -> None:
    own, _others = of_operator(script, kind)
    place = own[0]
    for name in path:
        place = place[name]
    place[slip] = 1
    done = checked(python, own, VERSIONS[-1], check)
    assert done.returncode != 0 and slip in done.stderr


def test_an_mpijob_has_only_fields_of_its_own(python: Path, script: Path) -> None:
    (job,), others = of_operator(script, "mpijob")
    assert flaws(job["spec"], MPIJOB) == []
    done = checked(python, others, VERSIONS[-1])
    assert done.returncode == 0, done.stderr
    job["spec"].update(slotsPerWorkers=1, mpiImplementation="intelmpi")
    assert flaws(job["spec"], MPIJOB) == ["spec.mpiImplementation: intelmpi", "spec.slotsPerWorkers"]
