# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job in pods from its plan to its last object in the cluster: created, followed, ended and taken away."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import RunOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Result
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

from .kubectl import NO_VERSION, KubeCode, Kubectl, KubeError, table_in, text_in
from .lease import Lease
from .manifest import LABEL, OURS, Thing, deadline_of, explained
from .objects import objects_of
from .outcome import keep, result_of
from .pod_files import files_of
from .pod_following import PodFollowing
from .pod_plan import command_in_pods, name_of, plan_pods
from .pod_request import PodRequest, parse_pods
from .runai import CommandLine, command_lines, namespace_of
from .runai_cluster import RunaiCluster, lacking
from .written import write

REFUSALS = (KubeCode.NOT_STARTED, KubeCode.FAILED)  # nothing was created; after a lost answer it may have been
INDEXED_SINCE = (1, 24)  # Kubernetes docs, Jobs: completion mode, stable
NO_PROJECT = "the project is not named, and the pods run in its namespace: -e pod_project=NAME"
NOT_KNOWN = "it is not known whether the cluster has Indexed Jobs"
CLEAN = "ansible-playbook clean.yml"
AGAIN = f"{CLEAN} -e target=kubernetes -e job_id="


@dataclass(frozen=True)
class PodJob:
    """All that is decided about a job in pods."""

    plan: LaunchPlan
    command: LaunchCommand
    order: RunOrder
    pods: PodRequest
    files: Mapping[str, bytes]  # of the ConfigMap
    things: Sequence[Thing]
    submitted_by: Sequence[CommandLine] = ()  # Run:ai's program

    @property
    def name(self) -> str:
        """Return the name of its objects."""
        return name_of(self.plan.job_id)

    @property
    def again(self) -> str:
        """Return what ends the job when its controller is gone."""
        pods = self.pods
        given = ["target=runai", f"pod_project={pods.project}"] if pods.submits else ["target=kubernetes"]
        given += [f"pod_namespace={pods.namespace}"] if pods.namespace else []
        given += [shlex.quote(json.dumps({"pod_context": pods.context}))] if pods.context else []
        return " ".join([CLEAN, *(f"-e {word}" for word in (*given, f"job_id={self.plan.job_id}"))])

    @property
    def lines(self) -> list[str]:
        """Return what `train.yml --check` prints."""
        others = [line for each in self.submitted_by for line in each.lines]
        kind = filter(None, [self.pods.kind_reason])
        return [*explain(self.plan, self.command), *explained(self.things), *others, *kind]

    @property
    def said(self) -> list[str]:
        """Return what people are told when the job starts."""
        return list(filter(None, [self.pods.kind_reason, self.plan.shipped]))

    def written(self) -> list[str]:
        """Write the job into files if somebody else is to submit it, and return what to type. InputError."""
        refuse_unfollowed(self.pods)
        return write(self.pods, self.things, self.files, self.submitted_by, self.again) if self.pods.manifest else []

    def start(self) -> Callable[[View, StopWatch], tuple[Result, list[str]]]:
        """Submit the job, and return what follows it to its end. KubeError: nothing is left, or it says so."""
        lease = lease_for(self)
        submit(lease.kubectl, self.things, selector_of(self.plan.job_id), lease, self.again)
        return functools.partial(run, self, lease)


def job_in_pods(request: Request, pods: PodRequest, job: Job, folder: Folder | None, who: str) -> PodJob:
    """Return a job in pods. InputError for what cannot work."""
    plan = plan_pods(request, pods, job)
    command = command_in_pods(render(plan), pods, plan.job_id)
    order = order_for(plan, command, who)
    secrets = next(iter(order["secrets"].values()))  # the same in all pods
    files = files_of(order, folder, pods)
    things = objects_of(plan, pods, files, secrets)
    return PodJob(plan, command, order, pods, files, tuple(things), command_lines(plan, pods, bool(secrets)))


def with_kind_of_cluster(pods: PodRequest, needed: bool) -> PodRequest:
    """Return a request with the kind that the cluster has. KubeError for one that does not answer, if it is needed."""
    if not pods.any_kind:
        return pods
    try:
        version = kubectl_for(pods).version()
    except KubeError as error:
        if needed:
            raise
        return replace(pods, kind_reason=f"{NOT_KNOWN}: {error.told}")
    if version == NO_VERSION:
        return replace(pods, kind_reason=f"{NOT_KNOWN}, for it does not say its version: if not, -e pod_kind=jobs")
    if version >= INDEXED_SINCE:
        return pods
    has, since = (".".join(map(str, each)) for each in (version, INDEXED_SINCE))
    reason = (
        f"one Job for each pod (pod_kind=jobs): the cluster has Kubernetes {has}, and Indexed Jobs came with {since}"
    )
    return replace(pods, kind="jobs", kind_reason=reason)


def in_pods(
    given: Mapping[str, object], request: Request, who: str, needed: bool
) -> Callable[[Job, Folder | None], PodJob]:
    """Return what makes the job that was asked for. InputError.

    `given`: the options; `who` starts it; `needed`: whether the cluster must answer.
    """
    pods = with_runai(with_kind_of_cluster(parse_pods(given, request), needed))
    return lambda job, folder: job_in_pods(replace(request, job_id=job.job_id), pods, job, folder, who)


def kubectl_for(pods: PodRequest) -> Kubectl:
    """Return kubectl for a job of that kind."""
    row = pods.row
    where = (pods.context, pods.namespace)
    return Kubectl(*where, resources=row.resources, container=row.container, target=pods.target)


def with_runai(pods: PodRequest) -> PodRequest:
    """Return a request that says whether it can be submitted to Run:ai, or why not."""
    if pods.kind != "runai" or pods.manifest:
        return pods
    why = lacking() or ("" if pods.project else NO_PROJECT)
    return replace(pods, kind_reason=f"nothing is submitted, for {why}") if why else replace(pods, submits=True)


def refuse_unfollowed(pods: PodRequest) -> None:
    """InputError for a job that cannot be followed, and that is not written for others to submit."""
    if not (pods.followed or pods.manifest):
        how = "--check shows it, and -e pod_manifest=job.json writes it with the command that submits it"
        raise InputError("target", pods.target, f"{pods.kind_reason}: {how}")


def lease_for(made: PodJob) -> Lease:
    """Return the lease of a job, which its controller is to renew."""
    jobs = [thing.name for thing in made.things if thing.kind == "Job"]
    return Lease(kubectl_of(made), made.name, made.plan.lease, jobs, deadline_of(made.plan, made.pods))


def kubectl_of(made: PodJob) -> Kubectl:
    """Return kubectl for a job, and what else starts and ends it."""
    pods = made.pods
    if not pods.submits:
        return kubectl_for(pods)
    return RunaiCluster(("", namespace_of(pods)), pods.project, made.name, made.submitted_by[0].argv)


def submit(
    kubectl: Kubectl, things: Sequence[Thing], selector: str, lease: Lease | None = None, again: str = f"{AGAIN}..."
) -> None:
    """Create the objects, and renew the lease once. KubeError: nothing is left, or it says so.

    `again`: what takes the job away. The first job owns what comes after it: that goes with it.

    InputError if somebody's job has that name: what fails later would end it, for both are found by the same label.
    """
    there = kubectl.left(selector)
    if there:
        advice = f"give another one, or end that job: {again}"
        raise InputError(
            "job_id", selector.partition("=")[2], f"the cluster has a job of that name ({there[0]}): {advice}"
        )
    kubectl.refuse_without_logs()
    owner: dict[str, object] = {}
    created = False
    try:
        for thing in things:
            manifest: dict[str, object] = dict(thing.manifest)
            if owner:
                manifest["metadata"] = {**table_in(manifest, "metadata"), "ownerReferences": [owner]}
            made, created = kubectl.create(manifest), True
            if thing.owns and not owner:
                owner = {
                    "apiVersion": manifest["apiVersion"],
                    "kind": thing.kind,
                    "name": thing.name,
                    "uid": text_in(made, "metadata", "uid"),
                    "blockOwnerDeletion": False,
                }
        if lease:
            lease.renew()
        kubectl.begin()
    except KubeError as error:
        if created or error.code not in REFUSALS:
            undo(kubectl, selector, error, again)
        raise
    except BaseException:
        take_away(kubectl, selector)
        raise


def undo(kubectl: Kubectl, selector: str, why: KubeError, again: str) -> None:
    """Take away what is there after an error. KubeError with both if that fails too."""
    left = take_away(kubectl, selector)
    if left:
        raise KubeError(KubeCode(why.code), f"{why.told}; {left[0]}: {again}", why.target) from None


def run(made: PodJob, lease: Lease, view: View, stop: StopWatch) -> tuple[Result, list[str]]:
    """Follow a job that was submitted; return its result and lines on what is left in the cluster. KubeError, OSError.

    Nothing is left there whatever happens, unless the API does not answer.
    """
    job, run_dir = made.order["job"], Path(made.plan.run_dir)
    kubectl, start_timeout = lease.kubectl, made.pods.start_timeout
    following = PodFollowing(kubectl, made.name, job, run_dir, start_timeout, view.show, view.say, lease)
    selector = selector_of(made.plan.job_id)
    try:
        following.run(stop.reason, stop.insisted)
    except KubeError as error:
        view.close()
        undo(kubectl, selector, error, made.again)
        raise
    except BaseException:
        view.close()
        take_away(kubectl, selector)
        raise
    view.close()
    left = take_away(kubectl, selector)
    outcome = result_of(job, following.reports, following.end, following.started, following.out_of_memory)
    keep(run_dir, outcome, following.reports)
    return outcome, [*left, *([f"later: {made.again}"] if left else [])]


def take_away(kubectl: Kubectl, selector: str) -> list[str]:
    """Delete all objects of a job, and return what is left, each with why: nothing if all is well.

    Twice if a pod was made late, of a job that the cluster did not know to be deleted yet; or if all pods have ended
    and stay: kubelets before 1.22 look at such a pod once a minute (kubelet's syncFrequency).
    """
    try:
        known, left, why = delete(kubectl, selector)
    except KubeError as error:
        return [f"what is left in the cluster is not known: {error}"]
    with contextlib.suppress(KubeError):  # what was seen before is told then
        if left and (set(left) - set(known) or kubectl.have_ended(selector)):
            _, left, why = delete(kubectl, selector)
    return [f"{name} is left in the cluster: {why}" for name in left]


def delete(kubectl: Kubectl, selector: str) -> tuple[list[str], list[str], str]:
    """Delete what a selector finds, and wait. Return what was there, what is left and why. KubeError: no answer."""
    try:
        known, why = kubectl.delete(selector, wait=True), "its machine does not answer"
    except KubeError as error:
        if error.code != KubeCode.FAILED:
            raise
        known, why = [], error.told  # kubectl waited for so long, or may not delete
    left = kubectl.left(selector)
    return known or left, left, why


def selector_of(job_id: str) -> str:
    """Return what finds the objects of a job; of all jobs for an empty text."""
    return f"{LABEL}={name_of(job_id)}" if job_id else f"{OURS}=torchfleet"
