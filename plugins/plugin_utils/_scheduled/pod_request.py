# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the user asked for of a job in pods: options `pod_...` of `torchfleet.cluster.launch`, checked one by one."""

from __future__ import annotations

import dataclasses
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import RESOURCES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import (
    parse_bytes,
    parse_choice,
    parse_seconds,
    parse_text,
    parse_whole,
    parse_words,
    plain_text,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request

from .nodes_request import NODES_MOST, NOTHING, size_of
from .pod_kinds import CHOICES, HOME, HOME_WITHOUT_VOLUME, KINDS, OPERATORS, PodKind

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")  # of DNS (RFC 1123): names of namespaces and claims
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?\Z")  # of a resource (Kubernetes API)
OPTIONS_OF = {"cpu": "pod_cpus", "memory": "pod_memory"}  # by resource: the option that is for it
RESOURCE = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,500}\Z")
UID_MOST = (1 << 31) - 1  # of runAsUser (Kubernetes API)
HARDENED, RESTRICTED, NO_LIMITS = LEVELS = ("hardened", "restricted", "none")  # of pod_security
FILES, SHM = "/etc/torchfleet", "/dev/shm"  # in the pods
SECRETS, LEASE = f"{FILES}-secret", f"{FILES}-lease"
OWN_PATHS = (HOME, HOME_WITHOUT_VOLUME, FILES, SECRETS, LEASE, SHM)
# What has no meaning for pods, and what to do instead. Whoever gives it expects something that would not happen.
NOT_FOR_PODS: Mapping[str, str] = {
    "nodes": "give the number of pods: -e pods=4",
    "launcher_args": "torchrun's agents are started by our code in each pod",
    "map_by": "ranks fill one pod after the other",
    "bind_to": "a pod has the cores that pod_cpus asks for",
    "ports": "pods reach each other by any port",
    "rendezvous": "the plan numbers the pods",
    "detach": "-e pod_manifest=job.json writes the objects, and kubectl create -f starts them: nobody has to stay",
    "hang_end": "nobody looks at ranks in pods while they run: -e job_timeout=3600 ends them",
    "queue": "the scheduler of the cluster has one; of Kueue: -e pod_queue=NAME",
    "queue_timeout": "give the seconds that pods may wait: -e pod_start_timeout=600",
    "exclusive": "give requests, such as pod_cpus and gpus_per_pod",
    "data": "mount a claim: -e pod_volumes=data:/data",
    "data_keep": "mount a claim: -e pod_volumes=data:/data",
    "collect": "write to a claim: -e pod_volumes=results:/results",
    "collect_every": "write to a claim: -e pod_volumes=results:/results",
    "max_restarts": "start train.yml again: with checkpoint_dir on a claim it goes on",
    "min_nodes": "start train.yml again: with checkpoint_dir on a claim it goes on",
    "requirements": "put the packages into the image",
    "container_image": "name the image of the pods: -e pod_image=NAME",
    "container_engine": "the cluster starts the containers",
    "container_args": "give pod_resources, pod_annotations and pod_volumes",
    "container_mounts": "mount a claim: -e pod_volumes=data:/data",
    "program_index_url": "put the packages into the image",
    "profile": "write the profile to a claim: -e pod_volumes=results:/results",
    "ship": "the folder of the script goes into a ConfigMap",
}
NOT_FOR_RUNAI: Mapping[str, str] = {
    "pod_kind": "Run:ai makes its own",
    "pod_context": "the command line names a project: -e pod_project=NAME",
    "pod_queue": "Run:ai starts all pods or none, and queues by project: -e pod_project=NAME",
    "pod_gpu_resource": "Run:ai counts GPUs itself: -e gpus_per_pod=4",
    "pod_shm": "--large-shm has no size",
    "pod_security": "policies of Run:ai set it",
    "pod_user": "policies of Run:ai set it",
}


@dataclass(frozen=True)
class Volume:
    """A claim that is mounted into all pods."""

    claim: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class PodRequest:
    """The options of a job in pods. `pods`: how many, `ranks`: in each. Empty texts: the cluster's own choice."""

    image: str
    pods: int
    ranks: int
    target: str = "kubernetes"  # as the user said it
    kind: str = "indexed"
    any_kind: bool = False  # no kind was asked for: it may become what the cluster has
    kind_reason: str = ""  # what is to be said of the choice
    namespace: str = ""
    context: str = ""
    cpus: str = ""
    memory: str = ""
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    resources: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    shm: int | None = None  # bytes; None: as much as the pod's memory
    queue: str = ""
    start_timeout: float = 600.0
    output: int = 4 << 20  # bytes of output of each pod that come home
    python: str = "python3"  # in the image: a path, or a name on its PATH
    project: str = ""  # of Run:ai
    security: str = ""  # one of LEVELS; empty: the default
    user: int | None = None  # the uid of all processes; None: the image's
    submits: bool = False  # to Run:ai: its program is here
    manifest: str = ""  # the file that the objects are written into, for others to submit

    @property
    def row(self) -> PodKind:
        """Return what is known of the kind."""
        return KINDS[self.kind]

    @property
    def level(self) -> str:
        """Return what the pods may do: one of LEVELS."""
        return self.security or HARDENED

    @property
    def followed(self) -> bool:
        """Whether our controller reads the logs of the pods."""
        return self.submits or not (self.manifest or self.row.unfollowed)


def parse_label(name: str, value: object) -> str:
    """Return a name as DNS has it."""
    if not isinstance(value, str) or not LABEL.match(value):
        raise InputError(name, value, f"use small letters, digits and '-': -e {name}=training")
    return value


def parse_image(name: str, value: object) -> str:
    """Return the name of an image."""
    if not isinstance(value, str) or not IMAGE.match(value):
        raise InputError(name, value, f"give the name of an image: -e {name}=registry.example.org/torch:2.13")
    return value


def parse_quantity(name: str, value: object, example: str = "") -> str:
    """Return a quantity of a resource. `example`: what to type, if it is not -e name=8."""
    text = plain_text(value)
    if not QUANTITY.match(text):
        typed = example or f"-e {name}=8"
        raise InputError(name, value, f"give a quantity of Kubernetes, such as 8, 500m or 64Gi: {typed}")
    return text


def parse_table(name: str, value: object) -> dict[str, str]:
    """Return a dict of texts; JSON text is read."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping) or any(isinstance(each, (list, tuple, Mapping)) for each in value.values()):
        raise InputError(name, str(value)[:100], f"""give a dict: -e '{{"{name}": {{"name": "value"}}}}'""")
    return {str(key): plain_text(each) for key, each in value.items()}


def parse_resources(name: str, value: object) -> dict[str, str]:
    """Return quantities by resource."""
    found, example = parse_table(name, value), f"""-e '{{"{name}": {{"rdma/rdma": 1}}}}'"""
    for key in found:
        if not RESOURCE.match(key):
            raise InputError(name, key, f"name a resource of the cluster: {example}")
        if key in OPTIONS_OF:
            raise InputError(name, key, f"the plan has to know it: -e {OPTIONS_OF[key]}={found[key]}")
    return {key: parse_quantity(name, each, example) for key, each in found.items()}


def parse_annotations(name: str, value: object) -> dict[str, str]:
    """Return annotations of the pods."""
    found = parse_table(name, value)
    for key in found:
        if not RESOURCE.match(key):
            raise InputError(name, key, "a name consists of letters, digits, '.', '_', '-' and one '/'")
    return found


def parse_volumes(name: str, value: object) -> tuple[Volume, ...]:
    """Return the claims that are mounted, each as claim:/path or claim:/path:ro."""
    found = []
    for word in parse_words(name, value.replace(",", " ") if isinstance(value, str) else value):
        claim, path, *more = [*word.split(":"), ""][:3]
        whole = LABEL.match(claim) and path.startswith("/") and ".." not in path.split("/") and path != "/"
        if not whole or more not in (["ro"], [""]) or word.count(":") > 2:
            raise InputError(name, word, f"give claim:/path, or claim:/path:ro: -e {name}=scratch:/scratch")
        path = "/" + posixpath.normpath(path).lstrip("/")
        taken = [own for own in OWN_PATHS if path in ("/", own) or path.startswith(f"{own}/")]
        if taken:
            raise InputError(name, word, f"{taken[0]} is torchfleet's own in the pods: -e {name}={claim}:/scratch")
        found.append(Volume(claim, path, more == ["ro"]))
    if len({volume.path for volume in found}) < len(found):
        raise InputError(name, str(value)[:100], "two claims are mounted at the same path: give each its own")
    return tuple(found)


def parse_manifest(name: str, value: object) -> str:
    """Return the path of a file that is to be written."""
    text = parse_text(name, value) or ""
    if not text.endswith(".json"):
        raise InputError(name, value, f"give the file that is to be written: -e {name}=job.json")
    return text


Parser = Callable[[str, object], object]
PARSERS: Mapping[str, tuple[str, Parser]] = {  # by option: the field of PodRequest, and what checks it
    "pod_image": ("image", parse_image),
    "pod_kind": ("kind", lambda name, value: parse_choice(name, value, CHOICES)),
    "pod_namespace": ("namespace", parse_label),
    "pod_context": ("context", parse_text),
    "pod_cpus": ("cpus", parse_quantity),
    "pod_memory": ("memory", parse_quantity),
    "gpus_per_pod": ("gpus", lambda name, value: parse_whole(name, value, 0, 64)),
    "pod_gpu_resource": ("gpu_resource", lambda name, value: parse_choice(name, value, tuple(RESOURCES))),
    "pod_resources": ("resources", parse_resources),
    "pod_annotations": ("annotations", parse_annotations),
    "pod_volumes": ("volumes", parse_volumes),
    "pod_shm": ("shm", parse_bytes),
    "pod_queue": ("queue", parse_label),
    "pod_start_timeout": ("start_timeout", lambda name, value: parse_seconds(name, value, 600)),
    "pod_output": ("output", parse_bytes),
    "pod_project": ("project", parse_label),
    "pod_security": ("security", lambda name, value: parse_choice(name, value, LEVELS)),
    "pod_user": ("user", lambda name, value: parse_whole(name, value, 0, UID_MOST)),
    "pod_manifest": ("manifest", parse_manifest),
}


def refuse_what_pods_lack(given: Mapping[str, object], of_runai: bool) -> None:
    """InputError for an option that has no meaning for pods, or for Run:ai."""
    lacking = [(NOT_FOR_PODS, "pods"), *([(NOT_FOR_RUNAI, "Run:ai")] if of_runai else [])]
    for options, whom in lacking:
        for name, instead in options.items():
            if given.get(name) is not None and plain_text(given[name]) not in NOTHING:
                raise InputError(name, given[name], f"it is not for {whom}: {instead}")
    if given.get("launcher") not in (None, "torchrun"):
        raise InputError("launcher", given["launcher"], "torchrun starts the ranks in pods: leave it out")


def parse_pods(given: Mapping[str, object], request: Request) -> PodRequest:
    """Return the checked request for pods. InputError names an option that is wrong, or that pods do not have."""
    of_runai = given.get("target") == "runai"
    refuse_what_pods_lack(given, of_runai)
    if given.get("pod_image") is None:
        raise InputError("pod_image", None, "name an image with Python and PyTorch: -e pod_image=registry/torch:2.13")
    found = {part: parse(name, given[name]) for name, (part, parse) in PARSERS.items() if given.get(name) is not None}
    gpus = int(str(found.get("gpus", 0)))
    pods, ranks = size_of(parse_whole("pods", given.get("pods"), 1, NODES_MOST), request, gpus, "pods")
    if request.python.startswith("~"):
        raise InputError("python", request.python, "give its whole path in the image: -e python=/opt/venv/bin/python")
    kind = kind_of_target(given)
    any_kind = not kind and "kind" not in found and "manifest" not in found
    target = str(given.get("target") or "kubernetes")
    made = PodRequest("", pods, ranks, target, any_kind=any_kind, python=request.python or "python3")
    return checked_for_kind(dataclasses.replace(made, **{**found, **kind}))  # type: ignore[arg-type]


def kind_of_target(given: Mapping[str, object]) -> dict[str, str]:
    """Return the field of PodRequest that a target decides. InputError if pod_kind is another kind."""
    target, kind = given.get("target"), given.get("pod_kind")
    if target == "runai":
        return {"kind": "runai"}
    if target not in OPERATORS:
        return {}
    if kind not in (None, target):
        raise InputError("pod_kind", kind, f"target={target} is pod_kind={target}: leave one of them out")
    return {"kind": str(target)}


def checked_for_kind(pods: PodRequest) -> PodRequest:
    """Return a request. InputError for what its kind does not have."""
    if pods.kind == "runai" and pods.pods < 2:
        raise InputError("pods", pods.pods, "these workloads of Run:ai have a master and workers: -e pods=2")
    if pods.level == RESTRICTED and pods.user == 0:
        raise InputError("pod_user", 0, "pod_security=restricted has no root: give another number, -e pod_user=1000")
    lone = next((f"{volume.claim}:{volume.path}:ro" for volume in pods.volumes if volume.read_only), "")
    if pods.kind == "runai" and lone:
        raise InputError("pod_volumes", lone, "Run:ai's command line has no claim to read only: leave :ro out")
    return pods
