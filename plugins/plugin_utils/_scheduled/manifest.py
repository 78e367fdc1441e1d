# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The objects of a job in the cluster, every field with its reason. Pure: what --check prints is what is submitted."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.place import NUMBER
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.plain import FORM
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.pod_lease import DELAY_SECONDS
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.pod_lease import NAME as RENEWED
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import table
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import digest
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.secrets import HIDDEN

from .following import GRACE_SECONDS
from .pod_files import encoded
from .pod_plan import name_of
from .pod_request import FILES, LEASE, SECRETS, SHM, PodRequest
from .pod_security import limits_of

Json = Union[str, int, bool, None, list["Json"], dict[str, "Json"]]  # noqa: UP007
Path = tuple[str | int, ...]
LABEL = "torchfleet.dev/job"
OURS = "torchfleet.dev/part-of"  # a label of all jobs' objects
JOB_ID, OWNER = "torchfleet.dev/job-id", "torchfleet.dev/owner"  # annotations
KIND, PROJECT = "torchfleet.dev/pod-kind", "torchfleet.dev/runai-project"
KEEP_SECONDS = 3600  # of a Job that is over and that nobody took away
START_SECONDS = 600  # beyond job_timeout: pods pull their image


@dataclass(frozen=True)
class Field:
    """One field of an object: where it is, what it is, why, and where that comes from."""

    path: Path
    value: Json
    reason: str
    source: str = "default"


@dataclass(frozen=True)
class Thing:
    """One object. `owns`: whether what is created after it goes with it."""

    kind: str
    name: str
    fields: tuple[Field, ...]
    owns: bool = True

    @property
    def manifest(self) -> dict[str, Json]:
        """Return the object as the API takes it."""
        root: dict[str, Json] = {}
        for field in self.fields:
            put(root, field.path, field.value)
        return root


def put(root: dict[str, Json], path: Path, value: Json) -> None:
    """Put a value at a place below a dict; numbers are places in lists."""
    here: Json = root
    for step, following in zip(path, [*path[1:], None], strict=True):
        new: Json = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(here, list) and isinstance(step, int):
            if len(here) == step:
                here.append(new)
            here = here[step]
        elif isinstance(here, dict) and isinstance(step, str):
            here = here.setdefault(step, new)


def below(path: Path, fields: Iterable[Field]) -> list[Field]:
    """Return fields with their paths below another one."""
    return [Field((*path, *field.path), field.value, field.reason, field.source) for field in fields]


def metadata(plan: LaunchPlan, name: str) -> list[Field]:
    """Return the name of an object, and what it is found by."""
    return [
        Field(("metadata", "name"), name, "of the job id, as DNS takes names"),
        Field(("metadata", "labels", LABEL), name_of(plan.job_id), "all objects of the job are found by it"),
        Field(("metadata", "labels", OURS), "torchfleet", "clean.yml finds jobs by it"),
        Field(("metadata", "annotations", JOB_ID), plan.job_id, "the name of the run"),
        Field(("metadata", "annotations", OWNER), plan.owner, "clean.yml leaves what others started"),
    ]


def kind_of(version: str, kind: str, reason: str) -> list[Field]:
    """Return what kind of object it is."""
    return [Field(("apiVersion",), version, reason), Field(("kind",), kind, reason)]


def job_of(plan: LaunchPlan, pods: PodRequest, name: str, number: int | None, secrets: bool) -> Thing:
    """Return the Job of all pods, or (`number`) of one."""
    fields = [*kind_of("batch/v1", "Job", "runs pods to their end, and needs no operator"), *metadata(plan, name)]
    fields += [*queue(pods, ("spec", "suspend")), *below(("spec",), numbered(plan, pods) if number is None else [])]
    fields += [
        *below(("spec",), [once(), *(starting(plan, pods) if pods.followed else limits(plan, pods))]),
        *below(("spec", "template"), template(plan, pods, number, secrets)),
    ]
    return Thing("Job", name, tuple(fields))


def queue(pods: PodRequest, suspend: Path) -> list[Field]:
    """Return in which queue of Kueue a job is. `suspend`: the field that holds its kind back."""
    if not pods.queue:
        return []
    reason = "pod_queue: Kueue starts all pods of the job or none"
    return [
        Field(("metadata", "labels", "kueue.x-k8s.io/queue-name"), pods.queue, reason, "user"),
        Field(suspend, True, "Kueue sets it to false when there is room"),
    ]


def numbered(plan: LaunchPlan, pods: PodRequest) -> list[Field]:
    """Return that a Job makes all pods, and numbers them."""
    indexed = "pods are numbered: the number is the node's place in the plan"
    return [
        Field(("completionMode",), "Indexed", indexed),
        Field(("completions",), pods.pods, f"pods: {plan.np_reason}", "user"),
        Field(("parallelism",), pods.pods, "all at once: ranks wait for each other"),
    ]


def once() -> Field:
    """Return that no pod is started again."""
    return Field(("backoffLimit",), 0, "one failed pod ends the job: no rank goes on without the others")


def limits(plan: LaunchPlan, pods: PodRequest) -> list[Field]:
    """Return how long a job and its objects may be there."""
    return [kept(), *deadline(plan, pods)]


def kept() -> Field:
    """Return how long a Job stays after its end."""
    return Field(("ttlSecondsAfterFinished",), KEEP_SECONDS, "the cluster removes what nobody took away")


def starting(plan: LaunchPlan, pods: PodRequest) -> list[Field]:
    """Return the limits of a Job until its ranks run: the controller changes the time then (lease.py).

    A pod that waits for its image, or for a claim, has no guard that would end it when the controller is gone.
    """
    making = pods.pods  # seconds: the first Job is there before the last one, and needs less than one of them each
    seconds = int(pods.start_timeout + plan.lease + DELAY_SECONDS + making)
    reason = "pods that do not start hold machines; when all ranks run the controller takes this away"
    if plan.job_timeout:
        reason = "pods that do not start hold machines; when all ranks run the controller writes job_timeout's here"
    return [kept(), Field(("activeDeadlineSeconds",), seconds, reason)]


def deadline(plan: LaunchPlan, pods: PodRequest) -> list[Field]:
    """Return when the cluster itself ends the job: later than our guard does, which can say who hung."""
    seconds = deadline_of(plan, pods)
    reason = "job_timeout, and the time to start: the guards in the pods end it before"
    return [] if seconds is None else [Field(("activeDeadlineSeconds",), seconds, reason, "user")]


def deadline_of(plan: LaunchPlan, pods: PodRequest) -> int | None:
    """Return the seconds of a job in which ranks run; None: it has no end."""
    return int(plan.job_timeout + pods.start_timeout + START_SECONDS) if plan.job_timeout else None


def template(plan: LaunchPlan, pods: PodRequest, number: int | None, secrets: bool) -> list[Field]:
    """Return the pods: each is one node of the plan."""
    grace, in_dns = int((plan.grace or 0) + GRACE_SECONDS), "pods have names in DNS: <pod>.<job>"
    fields = [
        Field(("metadata", "labels", LABEL), name_of(plan.job_id), "the service and the controller find the pods"),
        Field(("metadata", "labels", OURS), "torchfleet", "as the job"),
        *(
            Field(("metadata", "annotations", name), value, "pod_annotations", "user")
            for name, value in pods.annotations.items()
        ),
        Field(("spec", "restartPolicy"), "Never", "a rank that starts again alone waits for the others for ever"),
        *([Field(("spec", "subdomain"), name_of(plan.job_id), in_dns)] if pods.row.service else []),
        Field(("spec", "automountServiceAccountToken"), False, "no rank asks the API for anything"),
        Field(("spec", "enableServiceLinks"), False, "the environment of ranks is the plan's"),
        Field(("spec", "terminationGracePeriodSeconds"), grace, "time for programs to save, and for the pod's report"),
    ]
    if number is not None:
        fields.insert(2, Field(("spec", "hostname"), plan.nodes[number].name, "its name in DNS"))
    return [
        *fields,
        *below(("spec", "containers", 0), container(plan, pods, number, secrets)),
        *below(("spec",), [Field(each.path, each.value, each.reason, each.source) for each in limits_of(pods)]),
        *volumes(plan, pods, secrets),
    ]


def container(plan: LaunchPlan, pods: PodRequest, number: int | None, secrets: bool) -> list[Field]:
    """Return the container of a pod."""
    guard = "our guard: torchrun's agent, and below it the ranks"
    fields = [
        Field(("name",), pods.row.container, "all ranks of a node are in one container"),
        Field(("image",), pods.image, "pod_image", "user"),
        Field(("command",), list(command_of(pods)), guard),
        Field(("env", 0, "name"), "TORCHFLEET_NODE", "which machine it is, for people"),
        Field(("env", 0, "valueFrom", "fieldRef", "fieldPath"), "spec.nodeName", "the cluster fills it in"),
    ]
    if number is not None:
        fields.append(Field(("env", 1, "name"), NUMBER, "which pod of the job it is"))
        fields.append(Field(("env", 1, "value"), str(number), "its place in the plan"))
    for name, value, reason in resources(pods):
        for which in ("requests", "limits"):
            fields.append(Field(("resources", which, name), value, reason, "user"))
    return [*fields, *mounts(pods, secrets)]


def command_of(pods: PodRequest) -> list[str]:
    """Return what runs in each pod. A pod that we do not follow prints lines for people in place of frames."""
    words = [pods.python, "-I", "-S", f"{FILES}/entry.py", FILES, pods.row.home, digest()]
    return [*words, *([] if pods.followed else [FORM])]


def resources(pods: PodRequest) -> list[tuple[str, str, str]]:
    """Return name, quantity and reason of each resource. A request is also the limit: no pod loses its cores."""
    rows = [("cpu", pods.cpus, "pod_cpus"), ("memory", pods.memory, "pod_memory")]
    rows += [(pods.gpu_resource, str(pods.gpus), "gpus_per_pod: one rank for each GPU")] if pods.gpus else []
    rows += [(name, value, "pod_resources") for name, value in pods.resources.items()]
    return [row for row in rows if row[1]]


def mounts(pods: PodRequest, secrets: bool) -> list[Field]:
    """Return what is mounted where."""
    rows = [
        ("files", FILES, True, "our code, the script and the order"),
        ("home", pods.row.home, False, "the job's own files, gone with the pod"),
        ("shm", SHM, False, "the default of 64 MiB is too small for NCCL and data loaders"),
        *([("secrets", SECRETS, True, "values of job_env that are secret")] if secrets else []),
        *([("lease", LEASE, True, "a pod ends its ranks when this file no longer changes")] if pods.followed else []),
        *((f"claim-{number}", each.path, each.read_only, "pod_volumes") for number, each in enumerate(pods.volumes)),
    ]
    fields = []
    for number, (name, path, read_only, reason) in enumerate(rows):
        place = ("volumeMounts", number)
        fields += [Field((*place, "name"), name, reason), Field((*place, "mountPath"), path, reason)]
        fields += [Field((*place, "readOnly"), True, reason)] if read_only else []
    return fields


def volumes(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> list[Field]:
    """Return what the mounts are of."""
    name = name_of(plan.job_id)
    shm: dict[str, Json] = {"medium": "Memory", **({"sizeLimit": str(pods.shm)} if pods.shm else {})}
    rows: list[tuple[str, str, dict[str, Json], str]] = [
        ("files", "configMap", {"name": name}, "one ConfigMap for all pods"),
        ("home", "emptyDir", {}, "a directory of the pod's own"),
        ("shm", "emptyDir", shm, "memory; what it holds counts as the pod's (pod_shm limits it)"),
    ]
    if secrets:
        rows.append(("secrets", "secret", {"secretName": name}, "no secret stands in the Job"))
    if pods.followed:
        rows.append(("lease", "configMap", {"name": lease_of(name)}, "what the controller changes as long as it lives"))
    for number, each in enumerate(pods.volumes):
        rows.append((f"claim-{number}", "persistentVolumeClaim", {"claimName": each.claim}, "pod_volumes"))
    fields = []
    for number, (volume, kind, value, reason) in enumerate(rows):
        fields.append(Field(("spec", "volumes", number, "name"), volume, reason))
        fields.append(Field(("spec", "volumes", number, kind), value, reason))
    return fields


def service_of(plan: LaunchPlan) -> Thing:
    """Return the service that gives the pods names."""
    name = name_of(plan.job_id)
    fields = [
        *kind_of("v1", "Service", "pods find each other by name"),
        *metadata(plan, name),
        Field(("spec", "clusterIP"), "None", "headless: each pod has its own address"),
        Field(("spec", "selector", LABEL), name, "the pods of this job"),
        Field(("spec", "publishNotReadyAddresses"), True, "ranks meet before any pod counts as ready"),
        Field(("spec", "ports"), [{"name": "rendezvous", "port": plan.master_port}], "where rank 0 listens"),
    ]
    return Thing("Service", name, tuple(fields))


def config_of(plan: LaunchPlan, pods: PodRequest, files: Mapping[str, bytes]) -> Thing:
    """Return the ConfigMap. clean.yml reads the kind of the job in it."""
    name = name_of(plan.job_id)
    reasons = {
        "entry.py": "the first thing that runs", "runtime.zip": "guard, rank wrapper and result",
        "program.zip": "the folder of the script", "listing.json": "the list of its files",
        "order.json": "what each pod is to do",
    }  # fmt: skip
    data = encoded(files)
    fields = [*kind_of("v1", "ConfigMap", "the image needs nothing of ours"), *metadata(plan, name)]
    fields.append(Field(("metadata", "annotations", KIND), pods.kind, "clean.yml takes away what is of that kind"))
    if pods.submits:
        fields.append(Field(("metadata", "annotations", PROJECT), pods.project, "clean.yml ends the workload there"))
    fields += [Field(("binaryData", file), data[file], reasons.get(file, "")) for file in files]
    return Thing("ConfigMap", name, tuple(fields))


def lease_of(name: str) -> str:
    """Return the name of the ConfigMap that is the lease of a job. `name` of its objects."""
    return f"{name}-lease"


def lease_config_of(plan: LaunchPlan) -> Thing:
    """Return the ConfigMap of the lease: small, for each change of it goes to every machine with a pod of the job."""
    name = lease_of(name_of(plan.job_id))
    fields = [*kind_of("v1", "ConfigMap", "the pods end when their controller is gone"), *metadata(plan, name)]
    fields.append(Field(("data", RENEWED), "", f"the controller renews this time within every {plan.lease:g} s"))
    return Thing("ConfigMap", name, tuple(fields))


def secret_of(plan: LaunchPlan, secrets: Mapping[str, str]) -> Thing:
    """Return the Secret."""
    name = name_of(plan.job_id)
    fields = [
        *kind_of("v1", "Secret", "secret values are in no manifest of a Job, and in no log"),
        *metadata(plan, name),
    ]
    for key, value in secrets.items():
        encoded_value = base64.b64encode(value.encode()).decode()
        fields.append(Field(("data", key), encoded_value, "job_env", "user"))
    return Thing("Secret", name, tuple(fields))


def shown(thing: Thing, field: Field) -> str:
    """Return a field as people read it; secret values and archives are not shown."""
    if thing.kind == "Secret" and field.path[0] == "data":
        text = HIDDEN
    elif field.path[0] == "binaryData":
        text = f"({len(base64.b64decode(str(field.value))):,} bytes)"
    else:
        text = field.value if isinstance(field.value, str) else json.dumps(field.value)
    return f"{'.'.join(map(str, field.path))}: {text}"


def explained(things: Sequence[Thing]) -> list[str]:
    """Return the lines that `train.yml --check` prints of the objects."""
    lines = []
    for thing in things:
        lines += ["", f"{thing.kind} {thing.name}"]
        lines += table([(shown(thing, field), field.reason, field.source) for field in thing.fields])
    return lines
