"""The command lines of Run:ai: words, each with its reason, and none that needs quotes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import PodJob
from tests.unit.test_pod_manifest import made

# The second command of document 003: 2 pods with 20 ranks each.
DOCUMENT = {
    "job_id": "my-first-distributed-app", "pods": 2, "ranks_per_node": 20, "pod_volumes": "mlo-scratch:/mloscratch",
    "pod_annotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/roce"}, "pod_resources": {"rdma/rdma": 1},
    "pod_project": "mlo",
}  # fmt: skip
# Options of `runai training pytorch submit` of version 3.0 and of `runai submit-dist pytorch` of version 2.13's
# documentation, of those that are rendered. What a release drops is to be taken out here.
KNOWN = {
    "training": {
        *("-i", "-g", "-p", "--workers", "--cpu-core-request", "--cpu-core-limit", "--cpu-memory-request", "--command"),
        *("--cpu-memory-limit", "--existing-pvc", "--extended-resource", "--annotation", "--label", "--large-shm"),
        *("--backoff-limit", "--configmap-map-volume", "--secret-volume"),
    },
    "submit-dist": {
        *("--name", "--image", "--workers", "--gpu", "--cpu", "--cpu-limit", "--memory", "--memory-limit", "--pvc"),
        *("--annotation", "--extended-resource", "--large-shm", "--backoff-limit", "-p", "--command"),
    },
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path / "train.py"


def job_for(script: Path, **given: Any) -> PodJob:
    return made(script, target="runai", **{**DOCUMENT, **given})


def test_the_line_of_version_1_is_that_of_document_003(script: Path) -> None:
    """The same options and values; the last part is ours, and neither line has a quote."""
    _new, old = job_for(script).submitted_by
    text = shlex.join(old.argv)
    assert text.startswith("runai submit-dist pytorch --name tf-my-first-distributed-app ")
    for words in (
        "--workers 1", "--pvc mlo-scratch:/mloscratch", "--annotation k8s.v1.cni.cncf.io/networks=kube-system/roce",
        "--extended-resource rdma/rdma=1", "--large-shm",
    ):  # fmt: skip
        assert f" {words} " in text
    assert text.endswith(" -- python3 -I -S /mloscratch/tf-my-first-distributed-app.pyz /tmp/torchfleet")
    assert not {"'", '"', "\\"} & set(text)


def test_the_line_of_versions_2_and_3(script: Path) -> None:
    new, _old = job_for(script, gpus_per_pod=4, ranks_per_node=4).submitted_by
    text = shlex.join(new.argv)
    assert text.startswith("runai training pytorch submit tf-my-first-distributed-app -i ")
    for words in (
        "--workers 1", "-g 4", "--existing-pvc claimname=mlo-scratch,path=/mloscratch", "-p mlo",
        "--configmap-map-volume name=tf-my-first-distributed-app,path=/etc/torchfleet",
    ):  # fmt: skip
        assert f" {words} " in text
    assert " --command -- python3 -I -S /etc/torchfleet/entry.py /etc/torchfleet /tmp/torchfleet " in text
    assert text.endswith(" plain") and not {"'", '"', "\\"} & set(text)


def test_no_option_is_made_up_and_each_has_a_reason(script: Path) -> None:
    given = {"gpus_per_pod": 4, "ranks_per_node": None, "pod_cpus": "500m", "pod_memory": "64Gi"}
    for line in [*job_for(script, **given).submitted_by, job_for(script, job_env={"TOKEN": "x"}).submitted_by[0]]:
        before = line.argv[: line.argv.index("--")]
        assert {word for word in before if word.startswith("-")} <= KNOWN[line.argv[1]]
        assert all(part.reason and part.source for part in line.parts)
        assert "500m" not in line.argv and ("0.5" in line.argv) == ("64Gi" in line.argv)


def test_check_prints_both_with_reasons(script: Path) -> None:
    job = job_for(script)
    shown = "\n".join(job.lines)
    for line in job.submitted_by:
        assert f"\n{shlex.join(line.argv)}" in shown
    assert "pods less one: Run:ai adds a master" in shown


def test_secrets_stand_on_no_command_line(script: Path) -> None:
    new, old = job_for(script, job_env={"WANDB_API_KEY": "hunter22"}).submitted_by
    assert "hunter22" not in " ".join(new.argv) and "--secret-volume" in new.argv
    assert not old.argv and "mounts no Secret" in old.lacking


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"pod_volumes": None}, "name a claim for our code"),
        ({"python": "/opt/my$venv/bin/python"}, "to a shell"),
    ],
)
def test_a_line_of_version_1_that_would_not_work_is_none(script: Path, given: dict[str, Any], why: str) -> None:
    _new, old = job_for(script, **given).submitted_by
    assert not old.argv and why in old.lacking


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"pods": 1}, "pods: got 1; .*a master and workers: -e pods=2"),
        ({"pod_volumes": "data:/data:ro"}, "pod_volumes: .*leave :ro out"),
        ({"pod_kind": "pytorchjob"}, "pod_kind: .*it is not for Run:ai: Run:ai makes its own"),
        ({"pod_queue": "training"}, "pod_queue: .*queues by project"),
        ({"pod_shm": "8G"}, "pod_shm: .*has no size"),
        ({"pod_gpu_resource": "amd.com/gpu"}, "pod_gpu_resource: .*gpus_per_pod"),
    ],
)
def test_what_runai_lacks_is_refused(script: Path, given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        job_for(script, **given)
    assert "\n" not in str(error.value)


def test_the_files_and_what_to_type(script: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    said = "\n".join(job_for(script, pod_manifest=str(path)).written())
    assert f"kubectl create --namespace=runai-mlo -f {path}" in said
    assert f"copy {tmp_path}/job.pyz to /mloscratch/tf-my-first-distributed-app.pyz on claim mlo-scratch" in said
    assert (tmp_path / "job.pyz").stat().st_mode & 0o777 == 0o600
