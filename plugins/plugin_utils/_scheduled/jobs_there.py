# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Jobs that are in a cluster, for clean.yml: which, of which kind, and whether they still run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .kubectl import Kubectl, rows_in, text_in
from .manifest import JOB_ID, KIND, OWNER, PROJECT
from .pod_job import selector_of
from .pod_kinds import KINDS
from .pod_plan import name_of
from .pod_request import LABEL

FOUND_BY = "jobs.batch,configmaps"  # of each job there is at least one, and every cluster has these kinds
OVER = ("Complete", "Succeeded", "Failed")  # conditions of a job (Kubernetes, JobSet, Kubeflow's operators)


class Jobs(NamedTuple):
    """Jobs in a cluster by id. `taken`: those to take away, of each the kinds of its operator; `going`: others."""

    taken: dict[str, tuple[str, ...]]
    going: list[str]  # of this user
    projects: dict[str, str]  # of Run:ai, by id of jobs that we submitted there


def jobs_there(kubectl: Kubectl, job_id: str) -> Jobs:
    """Return the jobs in the cluster. The wanted one is to be taken away, else all of this user's that are over.

    KubeError. InputError if the wanted one is not there.
    """
    rows = kubectl.rows(FOUND_BY, selector_of(job_id))
    projects = {id_in(row): project for row in rows if (project := project_in(row))}
    found = {id_in(row): "" for row in rows} | {id_in(row): kind for row in rows if (kind := kind_in(row))}
    found |= dict.fromkeys(projects, "runai")  # whatever other objects with this id say
    going: list[str] = []
    if not job_id:
        own, busy = {id_in(row) for row in rows if is_own(row)}, {id_in(row) for row in rows if is_busy(row)}
        busy |= {each for each, kind in found.items() if each in own - busy and runs(kubectl, each, kind)}
        going = sorted((own & busy) - {""})
        # By name: what is deleted is found by that, and a strange id can have the name of another job.
        kept = {name_of(id_in(row)) for row in rows if not is_own(row)} | {name_of(each) for each in busy}
        found = {each: kind for each, kind in found.items() if name_of(each) not in kept}
    else:  # the ids are annotations, which whoever may create an object there chooses
        found = {each: kind for each, kind in found.items() if name_of(each) == name_of(job_id)}
    found.pop("", None)
    if job_id and not found:
        if not kubectl.left(selector_of(job_id)):
            raise InputError("job_id", job_id, "the cluster has no such job in this namespace: -e pod_namespace=NAME")
        found = {job_id: ""}
    return Jobs({each: KINDS[kind].resources if kind else () for each, kind in sorted(found.items())}, going, projects)


def is_busy(row: Mapping[str, object]) -> bool:
    """Whether an object is a Job that is not over."""
    return text_in(row, "kind") == "Job" and not is_over(row)


def runs(kubectl: Kubectl, job_id: str, kind: str) -> bool:
    """Whether an operator's job is not over. KubeError. One of Run:ai counts as such: only its own program knows."""
    row = KINDS.get(kind)
    if row is None or not row.resources:
        return row is not None and row.target == "runai"
    return not all(map(is_over, kubectl.rows(row.resources[0], selector_of(job_id))))


def is_over(row: Mapping[str, object]) -> bool:
    """Whether a job has ended. One without pods may wait for Kueue or for a quota (Kubernetes API, JobCondition)."""
    conditions = rows_in(row, "status", "conditions")
    return any(text_in(each, "type") in OVER and text_in(each, "status") == "True" for each in conditions)


def is_own(row: object) -> bool:
    """Whether this user started a job from this controller. For order in a shared namespace; it proves nothing."""
    return text_in(row, "metadata", "annotations", OWNER) == owner()


def id_in(row: object) -> str:
    """Return the id of the job that an object belongs to."""
    return text_in(row, "metadata", "annotations", JOB_ID)


def kind_in(row: object) -> str:
    """Return the kind of the job that an object belongs to; empty if it does not say one of ours."""
    kind = text_in(row, "metadata", "annotations", KIND)
    return kind if kind in KINDS else ""


def project_in(row: object) -> str:
    """Return the project of Run:ai that a job was submitted to; empty for others. It becomes a word of a command."""
    project = text_in(row, "metadata", "annotations", PROJECT)
    return project if kind_in(row) == "runai" and LABEL.match(project) else ""
