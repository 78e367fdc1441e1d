# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kinds of objects that make the pods of a job: one row for each. Their fields are made in `objects.py`.

Operators give pods names of their own. A row says which, so that the plan has the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HOME = "/torchfleet"  # in pods that have a volume of ours
HOME_WITHOUT_VOLUME = "/tmp/torchfleet"


class PodKind(NamedTuple):
    """What is known of a kind. In patterns {name} is the job's, {number} the pod's in the plan, {before} one less."""

    title: str
    first: str = "{name}-{number}"  # the first pod, as its host name or its own name says it
    others: str = "{name}-{number}"
    address: str = "{host}.{name}"  # of a pod in DNS
    service: bool = True  # whether the names in DNS need a service of ours
    container: str = "ranks"  # the name that the operator looks for
    resources: tuple[str, ...] = ()  # of operators, as kubectl calls them, in the order in which they are deleted
    unfollowed: bool = False  # it is rendered only, unless a program that submits it is there
    target: str = "kubernetes"
    home: str = HOME

    def host(self, name: str, number: int) -> str:
        """Return the name of a pod in the plan."""
        return (self.others if number else self.first).format(name=name, number=number, before=number - 1)

    def address_of(self, name: str, host: str) -> str:
        """Return the address of a pod in the cluster's DNS."""
        return self.address.format(host=host, name=name)


KINDS: Mapping[str, PodKind] = {
    "indexed": PodKind("one Indexed Job: Kubernetes 1.24 and newer number its pods"),
    "jobs": PodKind("one Job for each pod: for clusters without Indexed Jobs"),
    # kubeflow/training-operator 1: a service for each pod, and a container of this name or the job is refused
    "pytorchjob": PodKind(
        "PyTorchJob of Kubeflow's training operator",
        first="{name}-master-0",
        others="{name}-worker-{before}",
        address="{host}",
        service=False,
        container="pytorch",
        resources=("pytorchjobs.kubeflow.org",),
    ),
    # kubeflow/trainer 2: a JobSet of one Indexed Job `node`, and the JobSet's service
    "trainjob": PodKind(
        "TrainJob of Kubeflow's trainer, with a TrainingRuntime of its own",
        first="{name}-node-0-{number}",
        others="{name}-node-0-{number}",
        service=False,
        container="node",
        resources=("trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org"),
    ),
    # kubeflow/mpi-operator 0.5 and newer: one service for the launcher's pod and the workers', whose commands stand
    "mpijob": PodKind(
        "MPIJob of Kubeflow's MPI operator",
        first="{name}-launcher",
        others="{name}-worker-{before}",
        service=False,
        resources=("mpijobs.kubeflow.org",),
    ),
    # Run:ai makes a PyTorchJob
    "runai": PodKind(
        "a PyTorch workload of Run:ai",
        first="{name}-master-0",
        others="{name}-worker-{before}",
        address="{host}",
        service=False,
        container="pytorch",
        unfollowed=True,
        target="runai",
        home=HOME_WITHOUT_VOLUME,
    ),
}
CHOICES = tuple(name for name, kind in KINDS.items() if kind.target == "kubernetes")  # of pod_kind
OPERATORS = tuple(name for name in CHOICES if KINDS[name].resources)  # values of `target` too
