"""Jobs of operators: the same pods in other objects, with the names that the operators give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.place import number_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.plain import lines_for_people
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.jobs_there import jobs_there
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.kubectl import (
    Kubectl,
    KubeError,
    pod_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.objects import WORKLOADS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_archive import archive_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import (
    refuse_unfollowed,
    submit,
    take_away,
    with_kind_of_cluster,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_kinds import CHOICES, KINDS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.targets import TARGETS
from tests.unit.test_pod_manifest import made, objects, pods_of

OPERATORS = ("pytorchjob", "trainjob", "mpijob")
ALL = {
    "pods": 3, "gpus_per_pod": 4, "pod_cpus": 8, "pod_queue": "training", "job_timeout": 60, "grace": 5,
    "pod_volumes": "a:/a", "job_env": {"TOKEN": "x"}, "pod_annotations": {"k8s.v1.cni.cncf.io/networks": "roce"},
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path / "train.py"


def test_a_kind_has_a_row_a_renderer_and_its_documentation() -> None:
    assert list(WORKLOADS) == list(KINDS)
    assert documented("launch")["pod_kind"]["choices"] == list(CHOICES)
    assert documented("launch")["target"]["choices"] == list(TARGETS)


def pods_in(manifest: Any) -> list[dict[str, Any]]:
    """Return the templates of pods in an object."""
    if isinstance(manifest, dict):
        own = [manifest] if "containers" in manifest.get("spec", {}) else []
        return own + [found for value in manifest.values() for found in pods_in(value)]
    return [found for value in manifest for found in pods_in(value)] if isinstance(manifest, list) else []


@pytest.mark.parametrize("kind", ["indexed", *OPERATORS])
def test_all_kinds_run_the_same_pods(script: Path, kind: str) -> None:
    """Files, claims, resources, labels, annotations and time to save; and nobody starts a pod again."""
    job = made(script, pod_kind=kind, **ALL)
    text, templates = json.dumps([thing.manifest for thing in job.things]), pods_in([t.manifest for t in job.things])
    ranks = [pod for pod in templates if "volumes" in pod["spec"]]
    assert ranks and all(pod["metadata"]["labels"]["torchfleet.dev/job"] == "tf-demo" for pod in templates)
    for pod in ranks:
        (container,) = pod["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {row["name"] for row in pod["spec"]["volumes"]}
        assert container["resources"]["limits"] == {"cpu": "8", "nvidia.com/gpu": "4"}
        assert pod["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "roce"}
        assert pod["spec"]["terminationGracePeriodSeconds"] == 35
    assert "/etc/torchfleet/entry.py" in text and '"backoffLimit": 0' in text and "activeDeadlineSeconds" in text
    assert '"restartPolicy": "Never"' in text and '"restartPolicy": "OnFailure"' not in text
    assert '"kueue.x-k8s.io/queue-name": "training"' in text and '"suspend": true' in text


@pytest.mark.parametrize("kind", OPERATORS)
def test_every_field_has_a_reason_and_check_prints_it(script: Path, kind: str) -> None:
    job = made(script, pod_kind=kind, **ALL)
    for thing in job.things:
        for field in thing.fields:
            assert field.reason and field.source, f"{thing.kind}: {field.path}"
    shown = "\n".join(job.lines)
    assert {"pytorchjob": "PyTorchJob tf-demo", "trainjob": "TrainJob tf-demo", "mpijob": "MPIJob tf-demo"}[
        kind
    ] in shown


# What each operator says of a pod: its host name or name, and the variables that number it.
SEATS = [
    ("indexed", "tf-demo-2", "tf-demo-2-abcde", {"JOB_COMPLETION_INDEX": "2"}, 2),
    ("pytorchjob", "tf-demo-master-0", "tf-demo-master-0", {"RANK": "0"}, 0),
    ("pytorchjob", "tf-demo-worker-1", "tf-demo-worker-1", {"RANK": "2"}, 2),
    ("trainjob", "tf-demo-node-0-2", "tf-demo-node-0-2-abcde", {"JOB_COMPLETION_INDEX": "2"}, 2),
    ("mpijob", "tf-demo-launcher", "tf-demo-launcher-abcde", {}, 0),
    ("mpijob", "tf-demo-worker-1", "tf-demo-worker-1", {}, 2),  # not the number at the end of its name
]


@pytest.mark.parametrize(("kind", "host_name", "pod_name", "environment", "number"), SEATS)
def test_the_plan_has_the_names_and_numbers_of_the_operator(
    script: Path, kind: str, host_name: str, pod_name: str, environment: dict[str, str], number: int
) -> None:
    """What the pod finds of its number, and what kubectl says of it, lead to one node of the plan."""
    job = made(script, pod_kind=kind, pods=3)
    hosts = list(job.order["nodes"])
    assert number_of(environment, host_name, hosts).number == number
    found = pod_of({"metadata": {"name": pod_name}, "spec": {"hostname": host_name}}, hosts)
    assert found and found.host == hosts[number]


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        ("indexed", "tf-demo-0.tf-demo"),
        ("pytorchjob", "tf-demo-master-0"),  # the operator's service of that pod
        ("trainjob", "tf-demo-node-0-0.tf-demo"),  # the service of the JobSet
        ("mpijob", "tf-demo-launcher.tf-demo"),  # the service of the MPIJob
    ],
)
def test_ranks_meet_at_a_name_that_somebody_makes(script: Path, kind: str, address: str) -> None:
    job = made(script, pod_kind=kind, pods=2)
    assert job.plan.master_addr == address
    assert ("Service tf-demo" in objects(job)) == (kind == "indexed")


def test_a_pytorchjob_has_a_master_and_the_other_pods(script: Path) -> None:
    spec = objects(made(script, pod_kind="pytorchjob", pods=3))["PyTorchJob tf-demo"]["spec"]
    roles = spec["pytorchReplicaSpecs"]
    assert (roles["Master"]["replicas"], roles["Worker"]["replicas"]) == (1, 2)
    for role in roles.values():
        (container,) = role["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"  # else the operator refuses it
        assert "restartPolicy" not in role["template"]["spec"] and role["restartPolicy"] == "Never"
    alone = objects(made(script, pod_kind="pytorchjob", pods=1))["PyTorchJob tf-demo"]["spec"]
    assert list(alone["pytorchReplicaSpecs"]) == ["Master"]


def test_a_trainjob_has_a_runtime_of_its_own(script: Path) -> None:
    job = made(script, pod_kind="trainjob", pods=3)
    assert [thing.kind for thing in job.things][:2] == ["TrainingRuntime", "TrainJob"]  # it must be there before
    found = objects(job)
    assert found["TrainJob tf-demo"]["spec"]["runtimeRef"]["name"] == "tf-demo"
    (node,) = found["TrainingRuntime tf-demo"]["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    assert (node["name"], container["name"]) == ("node", "node")
    assert (node["template"]["spec"]["completionMode"], node["template"]["spec"]["completions"]) == ("Indexed", 3)


def test_the_launcher_of_an_mpijob_is_the_first_pod(script: Path) -> None:
    """All pods run our guard. The operator starts sshd in a worker without a command, and hides a launcher's GPUs."""
    spec = objects(made(script, pod_kind="mpijob", pods=3, ranks_per_node=8))["MPIJob tf-demo"]["spec"]
    roles = spec["mpiReplicaSpecs"]
    assert spec["runLauncherAsWorker"] is True and spec["runPolicy"]["cleanPodPolicy"] == "None"
    assert (roles["Launcher"]["replicas"], roles["Worker"]["replicas"]) == (1, 2)
    commands = [role["template"]["spec"]["containers"][0]["command"] for role in roles.values()]
    assert commands[0] == commands[1] and commands[0][3] == "/etc/torchfleet/entry.py"
    alone = objects(made(script, pod_kind="mpijob", pods=1))["MPIJob tf-demo"]["spec"]
    assert list(alone["mpiReplicaSpecs"]) == ["Launcher"]


def test_only_what_can_be_followed_is_submitted(script: Path) -> None:
    for kind in CHOICES:
        refuse_unfollowed(made(script, pod_kind=kind).pods)
    with pytest.raises(InputError, match=r"-e pod_manifest=job.json writes it"):
        refuse_unfollowed(made(script, target="runai", pods=2).pods)


class Cluster:
    """A kubectl that notes its words and what it reads, and answers what it is told to."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.program = place / "kubectl"
        self.program.write_text(
            f'#!/bin/sh\necho "$*" >>{place}/words\n[ "$1" = create ] && cat >>{place}/read && echo >>{place}/read\n'
            'case "$*" in get*--output=name*) exit 0 ;; esac\n'
            f'for word in "$@"; do case "$word" in pytorchjobs*) [ "$1" = get ] && [ -e {place}/pytorch ]'
            f" && exec cat {place}/pytorch;; esac; done\ncat {place}/answer\n"
        )
        self.program.chmod(0o700)
        self.answer({"metadata": {"uid": "u-1"}})

    def answer(self, said: object, of: str = "answer") -> None:
        (self.place / of).write_text(json.dumps(said))

    def kubectl(self, *resources: str) -> Kubectl:
        return Kubectl(program=str(self.program), resources=resources)

    @property
    def words(self) -> list[str]:
        return (self.place / "words").read_text().splitlines()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "bin").mkdir()
    return Cluster(tmp_path / "bin")


@pytest.mark.parametrize(
    ("version", "given", "kind"),
    [
        ({"major": "1", "minor": "24"}, {}, "indexed"),
        ({"major": "1", "minor": "31+"}, {}, "indexed"),
        ({"major": "1", "minor": "20"}, {}, "jobs"),
        ({"major": "1", "minor": "23+"}, {}, "jobs"),
        ({"major": "1", "minor": "20"}, {"pod_kind": "indexed"}, "indexed"),
        ({"major": "1", "minor": "20"}, {"pod_manifest": "/tmp/job.json"}, "indexed"),
        ({"major": "1", "minor": "20"}, {"target": "runai", "pods": 2}, "runai"),
    ],
)
def test_the_kind_is_what_the_cluster_has_unless_one_is_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, version: object, given: dict[str, object], kind: str
) -> None:
    monkeypatch.setenv("PATH", f"{cluster.place}:{os.environ['PATH']}")
    cluster.answer({"serverVersion": version})
    found = with_kind_of_cluster(pods_of(**given), needed=True)
    assert found.kind == kind
    said = "pod_kind=jobs): the cluster has Kubernetes 1.2" in found.kind_reason
    assert said == (kind == "jobs") == bool(found.kind_reason)


def test_a_cluster_that_says_no_version_gets_the_default(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{cluster.place}:{os.environ['PATH']}")
    cluster.answer({"serverVersion": None})
    found = with_kind_of_cluster(pods_of(), needed=True)
    assert found.kind == "indexed" and "does not say its version" in found.kind_reason


def test_without_a_cluster_only_check_goes_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{cluster.place}:{os.environ['PATH']}")
    cluster.program.write_text("#!/bin/sh\necho The connection was refused >&2; exit 1\n")
    with pytest.raises(KubeError, match="kubectl version: The connection was refused"):
        with_kind_of_cluster(pods_of(), needed=True)
    found = with_kind_of_cluster(pods_of(), needed=False)
    assert found.kind == "indexed" and "not known whether the cluster has Indexed Jobs: kubectl" in found.kind_reason


@pytest.mark.parametrize(
    ("kind", "owner", "version"),
    [
        ("indexed", "Job", "batch/v1"),
        ("pytorchjob", "PyTorchJob", "kubeflow.org/v1"),
        ("trainjob", "TrainJob", "trainer.kubeflow.org/v1alpha1"),
    ],
)
def test_all_that_comes_after_the_job_goes_with_it(
    script: Path, cluster: Cluster, kind: str, owner: str, version: str
) -> None:
    submit(cluster.kubectl(), made(script, pod_kind=kind).things, "x=y")
    read = [json.loads(line) for line in (cluster.place / "read").read_text().splitlines() if line]
    owners = {row["kind"]: row["metadata"].get("ownerReferences", [{}])[0] for row in read}
    assert owners["ConfigMap"]["kind"] == owner and owners["ConfigMap"]["apiVersion"] == version
    assert owners[owner] == {} and owners.get("TrainingRuntime", {}) == {}


def test_the_job_of_an_operator_is_deleted_before_its_pods(cluster: Cluster) -> None:
    """Else the operator makes new ones."""
    cluster.answer("")
    take_away(cluster.kubectl(*KINDS["pytorchjob"].resources), "x=y")
    assert cluster.words[0].startswith("delete pytorchjobs.kubeflow.org,jobs.batch,pods,")


def config(job_id: str, kind: str) -> dict[str, Any]:
    notes = {"torchfleet.dev/job-id": job_id, "torchfleet.dev/pod-kind": kind, "torchfleet.dev/owner": owner()}
    return {"kind": "ConfigMap", "metadata": {"name": "x", "annotations": notes}}


@pytest.mark.parametrize(
    ("condition", "found"), [("Running", {}), ("Succeeded", {"one": ("pytorchjobs.kubeflow.org",)})]
)
def test_clean_finds_jobs_of_operators_that_are_over(
    cluster: Cluster, condition: str, found: dict[str, tuple[str, ...]]
) -> None:
    """By the ConfigMap, for no other kind is in every cluster. One of Run:ai is taken away by its name only."""
    cluster.answer({"items": [config("one", "pytorchjob"), config("two", "runai"), config("", "none")]})
    status = {"conditions": [{"type": condition, "status": "True"}, {"type": "Failed", "status": "False"}]}
    cluster.answer({"items": [{"metadata": {}, "status": status}]}, "pytorch")
    there = jobs_there(cluster.kubectl(), "")
    assert (there.taken, there.going) == (found, ["two"] if found else ["one", "two"])
    assert set(jobs_there(cluster.kubectl(), "one").taken) == {"one"}


def test_a_kind_that_the_cluster_makes_up_is_none(cluster: Cluster) -> None:
    cluster.answer({"items": [config("one", "\x1b[2J; secrets")]})
    assert jobs_there(cluster.kubectl(), "one").taken == {"one": ()}


def test_the_manifest_is_written_once_and_privately(script: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    job = made(
        script, pod_kind="mpijob", pods=2, pod_manifest=str(path), pod_namespace="training", job_env={"TOKEN": "x"}
    )
    said = job.written()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item["kind"] for item in json.loads(path.read_text())["items"]] == ["MPIJob", "ConfigMap", "Secret"]
    assert any(f"kubectl --namespace=training create -f {path}" in line for line in said)
    with pytest.raises(InputError, match=r"pod_manifest: .*the file exists"):
        job.written()


def test_a_job_that_others_submit_tells_people(script: Path, tmp_path: Path) -> None:
    """And one that we follow tells frames."""

    def last(**given: Any) -> str:
        (pod,) = pods_in(objects(made(script, **given))["Job tf-demo"])
        return str(pod["spec"]["containers"][0]["command"][-1])

    assert last(pod_manifest=str(tmp_path / "x.json")) == "plain" != last()


def test_what_people_read() -> None:
    record = {"rc": 3}
    report = {
        "records": {"1": record, "0": {"rc": 0}},
        "lines": {"1": ("stderr", "ValueError: no"), "0": ("stdout", "x")},
    }
    frames = [
        {"kind": "here", "said": ["RANK=1: Run:ai sets it", "eth0: the way"], "nic": "eth0"},
        {"kind": "line", "rank": 1, "stream": "stdout", "text": "loss 0.1", "skipped": 0},
        {"kind": "beat"},
        {"kind": "report", "rank": 0, "values": {"loss": 0.5}},
        {"kind": "ending", "reason": "rank-failed", "detail": "rank 1 failed"},
        {"kind": "over", "report": report},
    ]
    assert [line for frame in frames for line in lines_for_people(frame, "tf-demo-0")] == [
        "torchfleet: tf-demo-0: RANK=1: Run:ai sets it",
        "torchfleet: tf-demo-0: eth0: the way",
        "rank 1: loss 0.1",
        "rank 0: loss 0.5",
        "torchfleet: tf-demo-0 ends the job: rank 1 failed",
        "torchfleet: tf-demo-0: rank 0: exit status 0",
        "torchfleet: tf-demo-0: rank 1: exit status 3: ValueError: no",
    ]


def test_the_file_for_a_claim_runs_by_itself(script: Path, tmp_path: Path) -> None:
    """From the file on the claim to the program in the pod, which finds a wrong number of its pod."""
    path = tmp_path / "tf-demo.pyz"
    path.write_bytes(archive_of(made(script, target="runai", pods=2).files))
    done = subprocess.run(
        [sys.executable, "-I", "-S", path, tmp_path / "home"],
        env={"RANK": "7"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 78
    assert (
        done.stderr == "torchfleet: RANK=7 (Run:ai and PyTorchJob set it, and count pods): the plan has pods 0 to 1\n"
    )
