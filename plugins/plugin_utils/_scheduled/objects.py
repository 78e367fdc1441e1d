# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The objects of a job for each kind of `pod_kinds.py`: Jobs of Kubernetes, and jobs of Kubeflow's operators. Pure.

In all of them the pods run the same first program and the same guard. Of what an operator adds, the names of pods are
used, and their numbers; the variables of its rendezvous are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan

from .manifest import (
    Field,
    Thing,
    below,
    config_of,
    deadline,
    job_of,
    kind_of,
    lease_config_of,
    limits,
    metadata,
    numbered,
    once,
    queue,
    secret_of,
    service_of,
    template,
)
from .pod_plan import name_of
from .pod_request import PodRequest

Fields = list[Field]
RESTART = "a pod that starts again alone waits for the others for ever"
LOGS = "logs stay until the job is taken away"


def indexed(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> list[Thing]:
    """Return one Indexed Job."""
    return [job_of(plan, pods, name_of(plan.job_id), None, secrets)]


def jobs(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> list[Thing]:
    """Return a Job for each pod."""
    name = name_of(plan.job_id)
    return [job_of(plan, pods, f"{name}-{number}", number, secrets) for number in range(pods.pods)]


def replica(role: str, count: int, reason: str, pod: Fields) -> Fields:
    """Return the pods of one role, as Kubeflow's older operators have them. Their restart policy is set here."""
    own = [field for field in pod if field.path != ("spec", "restartPolicy")]
    fields = [
        Field(("replicas",), count, reason, "user"),
        Field(("restartPolicy",), "Never", RESTART),
        *below(("template",), own),
    ]
    return below((role,), fields)


def pytorchjob(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> list[Thing]:
    """Return a PyTorchJob (kubeflow.org/v1). Its `RANK` numbers the pods: 0 is the master's."""
    name, pod = name_of(plan.job_id), template(plan, pods, None, secrets)
    operator = "the training operator makes the pods, with a name in DNS for each"
    run = [Field(("cleanPodPolicy",), "None", LOGS), once(), *limits(plan, pods)]
    roles = replica("Master", 1, "the first pod", pod)
    if pods.pods > 1:
        roles += replica("Worker", pods.pods - 1, f"pods, less the master; {plan.np_reason}", pod)
    fields = [
        *kind_of("kubeflow.org/v1", "PyTorchJob", operator),
        *metadata(plan, name),
        *queue(pods, ("spec", "runPolicy", "suspend")),
        *below(("spec", "runPolicy"), run),
        *below(("spec", "pytorchReplicaSpecs"), roles),
    ]
    return [Thing("PyTorchJob", name, tuple(fields))]


def trainjob(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> list[Thing]:
    """Return a TrainJob (trainer.kubeflow.org/v1alpha1), and before it the runtime that says what its pods are.

    A runtime of the cluster, such as torch-distributed, starts failed pods again: no field of a TrainJob changes that.
    """
    name, version = name_of(plan.job_id), "trainer.kubeflow.org/v1alpha1"
    node: tuple[str | int, ...] = ("spec", "template", "spec", "replicatedJobs", 0)
    step = ("metadata", "labels", "trainer.kubeflow.org/trainjob-ancestor-step")
    spec = [*numbered(plan, pods), once(), *deadline(plan, pods)]
    spec += below(("template",), template(plan, pods, None, secrets))
    runtime = [
        *kind_of(version, "TrainingRuntime", "what the pods of this TrainJob are"),
        *metadata(plan, name),
        Field(
            ("spec", "mlPolicy", "numNodes"), pods.pods, "pods; without a policy for torch, which sets up ranks", "user"
        ),
        Field((*node, "name"), "node", "the trainer's name for what trains"),
        Field((*node, "template", *step), "trainer", "the trainer finds its step by it"),
        *below((*node, "template", "spec"), spec),
    ]
    wanted = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name}
    job = [
        *kind_of(version, "TrainJob", "the trainer makes a JobSet of it"),
        *metadata(plan, name),
        *queue(pods, ("spec", "suspend")),
        *below(("spec", "runtimeRef"), [Field((key,), value, "the runtime above") for key, value in wanted.items()]),
        Field(("spec", "trainer", "numNodes"), pods.pods, f"pods: {plan.np_reason}", "user"),
    ]
    return [Thing("TrainingRuntime", name, tuple(runtime), owns=False), Thing("TrainJob", name, tuple(job))]


def mpijob(plan: LaunchPlan, pods: PodRequest, secrets: bool) -> list[Thing]:
    """Return an MPIJob (kubeflow.org/v2beta1). Its launcher is the first pod: it and the workers run our guard.

    The operator keeps the command of a worker, and starts sshd only in workers without one (its newWorker). Its host
    file, its keys and mpirun are not used: torchrun's agents find each other.
    """
    name, pod = name_of(plan.job_id), template(plan, pods, None, secrets)
    keep = "the operator looks at the launcher alone: the other pods still tell then what their ranks did"
    policy = [Field(("cleanPodPolicy",), "None", keep), once(), *limits(plan, pods)]
    roles = replica("Launcher", 1, "the first pod", pod)
    if pods.pods > 1:
        roles += replica("Worker", pods.pods - 1, f"pods, less the launcher; {plan.np_reason}", pod)
    as_worker, at_once = "it has ranks too: else the operator hides its GPUs", "pods wait for each other"
    fields = [
        *kind_of("kubeflow.org/v2beta1", "MPIJob", "the MPI operator makes the pods, with names in DNS"),
        *metadata(plan, name),
        *queue(pods, ("spec", "runPolicy", "suspend")),
        Field(("spec", "runLauncherAsWorker"), True, as_worker),
        Field(("spec", "launcherCreationPolicy"), "AtStartup", at_once),
        *below(("spec", "runPolicy"), policy),
        *below(("spec", "mpiReplicaSpecs"), roles),
    ]
    return [Thing("MPIJob", name, tuple(fields))]


def runai(_plan: LaunchPlan, _pods: PodRequest, _secrets: bool) -> list[Thing]:
    """Return nothing: Run:ai's own program makes the workload."""
    return []


WORKLOADS: Mapping[str, Callable[[LaunchPlan, PodRequest, bool], list[Thing]]] = {
    "indexed": indexed,
    "jobs": jobs,
    "pytorchjob": pytorchjob,
    "trainjob": trainjob,
    "mpijob": mpijob,
    "runai": runai,
}


def objects_of(
    plan: LaunchPlan, pods: PodRequest, files: Mapping[str, bytes], secrets: Mapping[str, str]
) -> list[Thing]:
    """Return the objects of a job, in the order in which they are created."""
    made = WORKLOADS[pods.kind](plan, pods, bool(secrets))
    service = [service_of(plan)] if pods.row.service else []
    lease = [lease_config_of(plan)] if pods.followed else []
    return [*made, *service, config_of(plan, pods, files), *lease, *([secret_of(plan, secrets)] if secrets else [])]
