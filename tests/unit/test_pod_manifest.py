"""A job in pods: what was asked for, its plan, its objects with a reason for every field."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import PYTHON, filled
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import program_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import entry
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import folder_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import PodJob, job_in_pods
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_plan import NAME_CHARACTERS, name_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_request import (
    PodRequest,
    parse_pods,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.targets import parse_target

IMAGE = {"pod_image": "registry.example.org/torch:2.13"}


def pods_of(**given: Any) -> PodRequest:
    return parse_pods({**IMAGE, **given}, parse_request({**IMAGE, **given}))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path / "train.py"


def made(script: Path, job_id: str = "demo", **given: Any) -> PodJob:
    given = {**IMAGE, "workload": str(script), **given}
    request = parse_request(given)
    pods, program = parse_pods(given, request), program_of(request, str(script), shipped=True, local=False)
    job = Job(job_id, "/runs/demo", program, entry(), "abc")
    return job_in_pods(request, pods, job, folder_of(str(script)), "me")


def objects(job: PodJob) -> dict[str, dict[str, Any]]:
    return {f"{thing.kind} {thing.name}": dict(thing.manifest) for thing in job.things}


@pytest.mark.parametrize(
    ("given", "pods", "ranks"),
    [
        ({}, 1, 1),
        ({"pods": 2, "ranks_per_node": 20}, 2, 20),  # document 003: pi with 40 ranks
        ({"pods": 4, "gpus_per_pod": 8}, 4, 8),
        ({"np": 8, "ranks_per_node": 4}, 2, 4),
        ({"np": 8}, 1, 8),
        ({"np": 8, "pods": 4}, 4, 2),
        ({"np": "16", "gpus_per_pod": "8"}, 2, 8),
    ],
)
def test_how_many(given: dict[str, Any], pods: int, ranks: int) -> None:
    found = pods_of(**given)
    assert (found.pods, found.ranks) == (pods, ranks)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"pod_image": None}, "pod_image: got null; name an image"),
        ({"pod_image": "a b"}, "pod_image"),
        ({"pods": 0}, "pods: got 0"),
        ({"np": 7, "pods": 2}, "np: got 7; .*-e np=6"),
        ({"launcher": "openmpi"}, "launcher: got .openmpi.; torchrun starts the ranks in pods"),
        ({"nodes": "n1"}, "nodes: .*-e pods=4"),
        ({"queue": True}, "queue: .*pod_queue"),
        ({"max_restarts": 3}, "max_restarts: .*start train.yml again"),
        ({"requirements": "requirements.txt"}, "requirements: .*into the image"),
        ({"pod_kind": "rayjob"}, "pod_kind: got .rayjob.; choose one of indexed, jobs, pytorchjob, trainjob, mpijob"),
        ({"pod_manifest": "job.yaml"}, "pod_manifest: got .job.yaml.; give the file .* -e pod_manifest=job.json"),
        ({"pod_namespace": "A_b"}, "pod_namespace"),
        ({"pod_cpus": "many"}, "pod_cpus: got .many.; give a quantity"),
        ({"pod_resources": "rdma"}, "pod_resources: .*give a dict"),
        ({"pod_resources": {"rdma/rdma": "x"}}, "pod_resources: got .x.; give a quantity .*-e '{.pod_resources.: {"),
        ({"pod_resources": {"cpu": 3}}, "pod_resources: got .cpu.; the plan has to know it: -e pod_cpus=3"),
        ({"pod_volumes": "scratch"}, "pod_volumes: got .scratch.; give claim:/path"),
        ({"pod_volumes": "a:/x b:/x"}, "two claims are mounted at the same path"),
        ({"pod_volumes": "a:/../etc"}, "pod_volumes"),
        ({"python": "~/venv/bin/python"}, "python: .*whole path in the image"),
        ({"pod_security": "strict"}, "pod_security: got .strict.; choose one of hardened, restricted, none"),
        ({"pod_security": "restricted", "pod_user": 0}, "pod_user: got 0; .*-e pod_user=1000"),
        ({"pod_user": -1}, "pod_user: got -1; give a whole number"),
        ({"backend": "mpi"}, "backend: .*torchrun starts no MPI"),
        ({"backend": "nccl"}, "backend: .*no GPU"),
    ],
)
def test_refused_in_one_line(given: dict[str, Any], why: str, script: Path) -> None:
    with pytest.raises(InputError, match=why) as error:
        made(script, **given)
    assert "\n" not in str(error.value)


def test_options_of_pods_need_the_target() -> None:
    assert parse_target({}) == "nodes"
    with pytest.raises(InputError, match=r"pods: got 2; .*add -e target=kubernetes"):
        parse_target({"pods": 2})
    with pytest.raises(InputError, match=r"pod_project: got .mlo.; .*add -e target=runai"):
        parse_target({"target": "kubernetes", "pod_project": "mlo"})
    with pytest.raises(InputError, match=r"target: got .nomad.; choose one of nodes, kubernetes, pytorchjob,"):
        parse_target({"target": "nomad"})
    with pytest.raises(InputError, match=r"pod_project: got .mlo.; .*add -e target=runai"):
        parse_target({"target": "mpijob", "pod_project": "mlo"})


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "mpijob"])
def test_the_target_of_an_operator_is_its_kind(script: Path, kind: str) -> None:
    assert parse_target({"target": kind, "pods": 2}) == kind
    given = {"pods": 2, "pod_cpus": 4}
    assert objects(made(script, target=kind, **given)) == objects(made(script, pod_kind=kind, **given))
    assert pods_of(target=kind, pod_kind=kind).kind == kind
    with pytest.raises(InputError, match=rf"pod_kind: got .jobs.; target={kind} is pod_kind={kind}: ") as error:
        pods_of(target=kind, pod_kind="jobs")
    assert "\n" not in str(error.value)


def test_an_indexed_job_and_its_service(script: Path) -> None:
    found = objects(made(script, pods=2, ranks_per_node=4, job_timeout=100, grace=20))
    job, service = found["Job tf-demo"], found["Service tf-demo"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert spec["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] > 100 and pod["terminationGracePeriodSeconds"] > 20
    assert pod["subdomain"] == service["metadata"]["name"] == "tf-demo"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert pod["automountServiceAccountToken"] is False
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    (container,) = pod["containers"]
    assert container["command"][:3] == ["python3", "-I", "-S"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {row["name"] for row in pod["volumes"]}


def test_a_job_for_each_pod(script: Path) -> None:
    """For clusters without Indexed Jobs: each pod has its name and its number from its Job."""
    found = objects(made(script, pods=2, pod_kind="jobs"))
    jobs = [value for name, value in found.items() if name.startswith("Job ")]
    assert [job["metadata"]["name"] for job in jobs] == ["tf-demo-0", "tf-demo-1"]
    for number, job in enumerate(jobs):
        pod = job["spec"]["template"]["spec"]
        assert "completionMode" not in job["spec"]
        assert pod["hostname"] == f"tf-demo-{number}" and pod["subdomain"] == "tf-demo"
        assert {"name": "TORCHFLEET_POD", "value": str(number)} in pod["containers"][0]["env"]


def test_what_a_cluster_of_document_003_needs(script: Path) -> None:
    """--annotation, --extended-resource, --gpu, --pvc, --large-shm."""
    given = {
        "pods": 4, "gpus_per_pod": 4, "pod_cpus": 32, "pod_memory": "256Gi", "pod_resources": '{"rdma/rdma": 1}',
        "pod_annotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/roce"}, "pod_shm": "64G",
        "pod_volumes": "mlo-scratch:/mloscratch,data:/data:ro", "pod_queue": "training",
    }  # fmt: skip
    job = objects(made(script, **given))["Job tf-demo"]
    pod = job["spec"]["template"]["spec"]
    wanted = {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "4", "rdma/rdma": "1"}
    assert pod["containers"][0]["resources"] == {"requests": wanted, "limits": wanted}
    assert job["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "kube-system/roce"
    assert {"mountPath": "/mloscratch", "name": "claim-0"} in pod["containers"][0]["volumeMounts"]
    assert {"mountPath": "/data", "name": "claim-1", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(64 << 30)}} in pod["volumes"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training" and job["spec"]["suspend"] is True


POD_LIMITS = {"seccompProfile": {"type": "RuntimeDefault"}}
OWN_LIMITS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(
    ("given", "pod_has", "container_has"),
    [
        ({}, POD_LIMITS, OWN_LIMITS),
        ({"pod_user": 1000}, {**POD_LIMITS, "runAsNonRoot": True, "runAsUser": 1000}, OWN_LIMITS),
        ({"pod_user": 0}, {**POD_LIMITS, "runAsUser": 0}, OWN_LIMITS),
        ({"pod_security": "restricted"}, {**POD_LIMITS, "runAsNonRoot": True}, OWN_LIMITS),
        ({"pod_security": "none"}, None, None),
        ({"pod_security": "none", "pod_user": 7}, {"runAsNonRoot": True, "runAsUser": 7}, None),
    ],
)
def test_what_pods_may_do(script: Path, given: dict[str, Any], pod_has: object, container_has: object) -> None:
    job = made(script, **given)
    for kind, found in objects(job).items():
        pod = found["spec"]["template"]["spec"] if kind.startswith("Job") else None
        if pod:
            assert pod.get("securityContext") == pod_has
            assert pod["containers"][0].get("securityContext") == container_has
    text = json.dumps(objects(job))
    assert ("securityContext" in text) == bool(pod_has)


def test_secrets_are_in_the_secret_alone(script: Path) -> None:
    job = made(script, job_env={"WANDB_API_KEY": "hunter22", "NCCL_DEBUG": "INFO"})
    found = objects(job)
    assert base64.b64decode(found["Secret tf-demo"]["data"]["WANDB_API_KEY"]) == b"hunter22"
    others = json.dumps([value for name, value in found.items() if not name.startswith("Secret")])
    packed = base64.b64decode(found["ConfigMap tf-demo"]["binaryData"]["order.json"]).decode()
    hidden = base64.b64encode(b"hunter22").decode()
    for text in (others, packed, "\n".join(job.lines)):
        assert "hunter22" not in text and hidden not in text
    assert "INFO" in packed


def test_every_field_has_a_reason_and_check_prints_it(script: Path) -> None:
    job = made(script, pods=2, pod_cpus=2, job_env={"TOKEN": "x"}, pod_volumes="a:/a")
    for thing in job.things:
        for field in thing.fields:
            assert field.reason and field.source, f"{thing.kind}: {field.path}"
    text = "\n".join(job.lines)
    assert "spec.backoffLimit: 0" in text and "one failed pod ends the job" in text
    assert "(hidden)" in text


def test_a_pod_fills_in_its_nic_and_its_interpreter(script: Path) -> None:
    job = made(script, pods=2)
    order = job.order["nodes"]["tf-demo-1"]
    assert order["environment"]["GLOO_SOCKET_IFNAME"] == "@nic@"
    assert not [name for name in order["environment"] if name.startswith(("OMPI", "PRTE", "HYDRA", "I_MPI"))]
    assert job.plan.master_addr == "tf-demo-0.tf-demo"
    words = filled(order["command"], {PYTHON: "/opt/venv/bin/python"})
    assert isinstance(words, list) and words[0] == "/opt/venv/bin/python" and "@python@" not in json.dumps(words)
    assert not [text for text in job.plan.warnings if "NIC" in text]


def test_a_folder_that_a_configmap_does_not_take_is_refused(script: Path) -> None:
    (script.parent / "data.bin").write_bytes(os.urandom(1_100_000))
    with pytest.raises(InputError, match=r"workload: .*a ConfigMap takes 1,000,000 bytes"):
        made(script)


@pytest.mark.parametrize("job_id", ["demo", "20261120-101500-mnist-3f9a2c", "My_Run.7", "x" * 100, "-", "a--b"])
def test_names_are_names_of_dns(job_id: str) -> None:
    name = name_of(job_id)
    assert name[0].isalpha() and name.replace("-", "a").isalnum() and name == name.lower()
    assert len(name) <= NAME_CHARACTERS + 3 and not name.endswith("-")


def test_names_of_different_jobs_differ() -> None:
    assert len({name_of(name) for name in ("My.Run", "my-run", "My_Run", "y" * 99, "y" * 98)}) == 5


def test_pods_wait_for_each_other_as_long_as_we_wait_for_them(script: Path) -> None:
    """In our code for the name of the first, in torchrun's agents for the others, which have 600 s of their own."""
    job = made(script, pods=2, pod_start_timeout=3600)
    assert json.loads(job.files["order.json"])["start_timeout"] == 3600
    for options in job.command.on.values():
        words = [word for option in options for word in option.words]
        assert words[words.index("--rdzv-conf") + 1] == "timeout=3600"
        assert words.index("--rdzv-conf") < words.index("--no-python")
    assert "--rdzv-conf" not in made(script, pods=1).command.argv
