# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job in pods from its plan to its last object in the cluster: created, followed, ended and taken away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.orders import RunOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.records import Result
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import StopWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job, LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import View
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import Folder
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render

from .following import Following
from .kubectl import Kubectl, KubeError, rows_in, table_in, text_in
from .manifest import JOB_ID, LABEL, OURS, OWNER, Thing, explained, objects_of
from .outcome import keep, result_of
from .pod_files import files_of
from .pod_plan import command_in_pods, name_of, plan_pods
from .pod_request import PodRequest

ENDS = ("Complete", "Failed")  # conditions of a Job
AGAIN = "ansible-playbook clean.yml -e target=kubernetes -e job_id="


@dataclass(frozen=True)
class PodJob:
    """All that is decided about a job in pods."""

    plan: LaunchPlan
    command: LaunchCommand
    order: RunOrder
    things: Sequence[Thing]

    @property
    def name(self) -> str:
        """Return the name of its objects."""
        return name_of(self.plan.job_id)

    @property
    def lines(self) -> list[str]:
        """Return what `train.yml --check` prints."""
        return [*explain(self.plan, self.command), *explained(self.things)]


def job_in_pods(request: Request, pods: PodRequest, job: Job, folder: Folder | None, who: str) -> PodJob:
    """Return a job in pods. InputError for what cannot work."""
    plan = plan_pods(request, pods, job)
    command = command_in_pods(render(plan))
    order = order_for(plan, command, who)
    secrets = next(iter(order["secrets"].values()))  # the same in all pods
    things = objects_of(plan, pods, files_of(order, folder, pods.output), secrets)
    return PodJob(plan, command, order, tuple(things))


def submit(kubectl: Kubectl, things: Sequence[Thing], selector: str) -> None:
    """Create the objects. The first Job owns the others: they go with it. KubeError: nothing is left.

    InputError if somebody's job has that name: what fails later would end it, for both are found by the same label.
    """
    there = kubectl.left(selector)
    if there:
        advice = f"give another one, or end that job: {AGAIN}..."
        raise InputError(
            "job_id", selector.partition("=")[2], f"the cluster has a job of that name ({there[0]}): {advice}"
        )
    first: dict[str, object] = {}
    try:
        for thing in things:
            manifest: dict[str, object] = dict(thing.manifest)
            if first:
                manifest["metadata"] = {**table_in(manifest, "metadata"), "ownerReferences": [first]}
            made = kubectl.create(manifest)
            if not first:
                first = {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": thing.name,
                    "uid": text_in(made, "metadata", "uid"),
                    "blockOwnerDeletion": False,
                }
    except BaseException:
        if first:
            kubectl.delete(selector, wait=True)
        raise


def run(
    made: PodJob,
    kubectl: Kubectl,
    start_timeout: float,
    view: View,
    stop: StopWatch,
) -> tuple[Result, list[str]]:
    """Follow a job that was submitted; return its result and lines on what is left in the cluster. KubeError, OSError.

    Nothing is left there whatever happens, unless the API does not answer.
    """
    job, run_dir = made.order["job"], Path(made.plan.run_dir)
    following = Following(kubectl, made.name, job, run_dir, start_timeout, view.show, view.say)
    try:
        following.run(stop.reason, stop.insisted)
    finally:
        view.close()
        left = take_away(kubectl, selector_of(made.plan.job_id))
    outcome = result_of(job, following.reports, following.end, following.started)
    keep(run_dir, outcome, following.reports)
    return outcome, left


def take_away(kubectl: Kubectl, selector: str) -> list[str]:
    """Delete all objects of a job, and return what is left, each with what to do: nothing if all is well."""
    try:
        kubectl.delete(selector, wait=True)
        left = kubectl.left(selector)
    except KubeError as error:
        return [f"what is left in the cluster is not known: {error}"]
    return [f"{name} is left in the cluster: its machine does not answer" for name in left]


def selector_of(job_id: str) -> str:
    """Return what finds the objects of a job; of all jobs for an empty text."""
    return f"{LABEL}={name_of(job_id)}" if job_id else f"{OURS}=torchfleet"


def id_in(row: object) -> str:
    """Return the id of the job that an object belongs to."""
    return text_in(row, "metadata", "annotations", JOB_ID)


def jobs_there(kubectl: Kubectl, job_id: str) -> list[str]:
    """Return the ids of jobs in the cluster: the wanted one, else all of this user's that are over.

    KubeError. InputError if the wanted one is not there.
    """
    rows = kubectl.jobs(selector_of(job_id))
    going_on = set[str]() if job_id else {id_in(row) for row in rows if not (is_over(row) and is_own(row))}
    found = sorted({id_in(row) for row in rows} - {"", *going_on})
    if job_id and not found and not kubectl.left(selector_of(job_id)):
        raise InputError("job_id", job_id, "the cluster has no such job in this namespace: -e pod_namespace=NAME")
    return found or ([job_id] if job_id else [])


def is_over(row: object) -> bool:
    """Whether a Job has ended. One without pods may wait for Kueue or for a quota (Kubernetes API, JobCondition)."""
    conditions = rows_in(row, "status", "conditions")
    return any(text_in(each, "type") in ENDS and text_in(each, "status") == "True" for each in conditions)


def is_own(row: object) -> bool:
    """Whether this user started a job from this controller. That is for those who share a namespace, and no proof."""
    return text_in(row, "metadata", "annotations", OWNER) == owner()
