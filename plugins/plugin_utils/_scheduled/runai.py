# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command lines of Run:ai for a job: that of versions 2 and 3, and that of version 1. Words, each with its reason.

Sources: `runai training pytorch submit` (docs.nvidia.com/run-ai, 2.18 to 3.0), `runai submit-dist pytorch`
(docs.run.ai, 2.10 and newer). Run:ai makes a PyTorchJob, whose master is one pod more than `--workers`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import table
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan

from .manifest import LABEL, command_of, lease_of
from .pod_plan import name_of
from .pod_request import FILES, LEASE, SECRETS, PodRequest

NEW, OLD = "runai of versions 2 and 3", "runai of version 1"
WORKERS = "pods less one: Run:ai adds a master"


class Words(NamedTuple):
    """Some words of a command line, why they are there, and where that comes from."""

    words: tuple[str, ...]
    reason: str
    source: str = "default"


class CommandLine(NamedTuple):
    """A command line; or why there is none."""

    title: str
    parts: tuple[Words, ...] = ()
    lacking: str = ""

    @property
    def argv(self) -> list[str]:
        """Return its words."""
        return [word for part in self.parts for word in part.words]

    @property
    def lines(self) -> list[str]:
        """Return what `train.yml --check` prints of it."""
        rows = [(shlex.join(part.words), part.reason, part.source) for part in self.parts]
        return [
            "",
            self.title,
            *(table(rows) if rows else [f"  {self.lacking}"]),
            *filter(None, [shlex.join(self.argv)]),
        ]


def cores(pods: PodRequest) -> str:
    """Return the cores of a pod as Run:ai writes them: it does not know 500m."""
    return str(int(pods.cpus[:-1]) / 1000) if pods.cpus.endswith("m") else pods.cpus


def amounts(pods: PodRequest, names: Sequence[str]) -> list[Words]:
    """Return what each pod gets. `names`: the options for GPUs, cores and their limit, memory and its limit."""
    gpus, cpu, cpu_limit, memory, memory_limit = names
    found = [Words((gpus, str(pods.gpus)), "gpus_per_pod", "user")] if pods.gpus else []
    if pods.cpus:
        found.append(Words((cpu, cores(pods), cpu_limit, cores(pods)), "pod_cpus, as request and limit", "user"))
    if pods.memory:
        found.append(Words((memory, pods.memory, memory_limit, pods.memory), "pod_memory, the same", "user"))
    return found


def common(pods: PodRequest) -> list[Words]:
    """Return the options that are the same in all versions."""
    found = [
        Words(("--extended-resource", f"{name}={each}"), "pod_resources", "user")
        for name, each in pods.resources.items()
    ]
    found += [
        Words(("--annotation", f"{name}={each}"), "pod_annotations", "user") for name, each in pods.annotations.items()
    ]
    found.append(Words(("--large-shm",), "the default of 64 MiB for /dev/shm is too small for NCCL and data loaders"))
    found.append(Words(("--backoff-limit", "0"), "a pod that starts again alone waits for the others for ever"))
    return [*found, *([Words(("-p", pods.project), "pod_project", "user")] if pods.project else [])]


def new_line(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> CommandLine:
    """Return the command line of versions 2 and 3, which mounts our ConfigMap."""
    name = name_of(plan.job_id)
    guard = "our guard in place of the image's program: torchrun's agent, and below it the ranks"
    mounts = [Words(("--configmap-map-volume", f"name={name},path={FILES}"), "our code, the script and the order")]
    if pods.followed:
        lease = f"name={lease_of(name)},path={LEASE}"
        mounts.append(Words(("--configmap-map-volume", lease), "a pod ends its ranks when this file no longer changes"))
    if secrets:
        mounts.append(Words(("--secret-volume", f"path={SECRETS},name={name}"), "no secret is on a command line"))
    claims = [(f"claimname={each.claim},path={each.path}") for each in pods.volumes]
    parts = [
        Words(("runai", "training", "pytorch", "submit", name), "of the job id, as DNS takes names"),
        Words(("-i", pods.image), "pod_image", "user"),
        Words(("--workers", str(pods.pods - 1)), WORKERS, "user"),
        *amounts(
            pods,
            ("-g", "--cpu-core-request", "--cpu-core-limit", "--cpu-memory-request", "--cpu-memory-limit"),
        ),
        *(Words(("--existing-pvc", claim), "pod_volumes", "user") for claim in claims),
        *common(pods),
        Words(("--label", f"{LABEL}={name}"), "kubectl finds the pods by it"),
        *mounts,
        Words(("--command", "--", *command_of(pods)), guard),
    ]
    return CommandLine(NEW, tuple(parts))


def old_line(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> CommandLine:
    """Return the command line of version 1. It mounts no ConfigMap, and one word takes 128 KiB: a claim has our code.

    None of its words needs quotes, for this version passes what follows `--` to a shell again.
    """
    if secrets:
        return CommandLine(OLD, lacking="none: it mounts no Secret, and job_env has secret values")
    if not pods.volumes:
        return CommandLine(
            OLD, lacking="none: it mounts no ConfigMap; name a claim for our code: -e pod_volumes=scratch:/scratch"
        )
    name, claim = name_of(plan.job_id), pods.volumes[0]
    words = (pods.python, "-I", "-S", f"{claim.path.rstrip('/')}/{name}.pyz", pods.row.home)
    changed = next((word for word in words if shlex.quote(word) != word), "")
    if changed:
        return CommandLine(OLD, lacking=f"none: this version passes {changed} to a shell, which would change it")
    parts = [
        Words(("runai", "submit-dist", "pytorch", "--name", name), "of the job id, as DNS takes names"),
        Words(("--image", pods.image), "pod_image", "user"),
        Words(("--workers", str(pods.pods - 1)), WORKERS, "user"),
        *amounts(pods, ("--gpu", "--cpu", "--cpu-limit", "--memory", "--memory-limit")),
        *(Words(("--pvc", f"{each.claim}:{each.path}"), "pod_volumes", "user") for each in pods.volumes),
        *common(pods),
        Words(
            ("--command", "--", *words), f"our code, the script and the order, on claim {claim.claim}: copy it there"
        ),
    ]
    return CommandLine(OLD, tuple(parts))


def command_lines(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> list[CommandLine]:
    """Return the command lines for a job, the newer first; none for another target. One that is submitted: that."""
    lines = [new_line(plan, pods, secrets), old_line(plan, pods, secrets)] if pods.kind == "runai" else []
    return lines[:1] if pods.submits else lines


def namespace_of(pods: PodRequest) -> str:
    """Return the namespace of a job's project; empty: that of the context."""
    return pods.namespace or namespace_of_project(pods.project)


def namespace_of_project(project: str) -> str:
    """Return the namespace of a project (docs.run.ai: `runai-<project>` by default); empty for none."""
    return f"runai-{project}" if project else ""


def steps_for(pods: PodRequest, lines: Sequence[CommandLine], manifest: Path, program: Path) -> list[str]:
    """Return what to type for Run:ai. `manifest`, `program`: the files that were written."""
    new, old = lines
    namespace = namespace_of(pods)
    words = ["kubectl", "create", *([f"--namespace={namespace}"] if namespace else []), "-f", str(manifest)]
    told = [f"{new.title}:", f"  {shlex.join(words)}", f"  {shlex.join(new.argv)}", f"{old.title}:"]
    if not old.parts:
        return [*told, f"  {old.lacking}"]
    there = next(word for word in old.parts[-1].words if word.endswith(".pyz"))
    return [*told, f"  copy {program} to {there} on claim {pods.volumes[0].claim}", f"  {shlex.join(old.argv)}"]
