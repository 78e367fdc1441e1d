# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.pods_clean: end jobs in a cluster. Documentation: plugins/modules/pods_clean.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_job_id
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.jobs_there import Jobs, jobs_there
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.kubectl import Kubectl
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import selector_of, take_away
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_plan import name_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_request import parse_label
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.runai import namespace_of_project
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.runai_cluster import RunaiCluster
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.targets import ONLY_RUNAI, with_going

Result = dict[str, Any]


class ActionModule(Action):
    """Runs once, on the controller."""

    BYPASS_HOST_LOOP = True
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed and jobs; failed and msg if something is left."""
        job_id = parse_job_id(given["job_id"]) or ""
        target = given["target"]
        refuse_project(target, given)
        named = {name: parse_label(name, given[name]) for name in ("pod_namespace", "pod_project") if given[name]}
        namespace = named.get("pod_namespace") or namespace_of_project(named.get("pod_project", ""))
        where = (given["pod_context"] or "", namespace)
        found = jobs_there(Kubectl(*where, target=target), job_id)
        jobs = list(found.taken)
        refuse_other_projects(found, named.get("pod_project"))
        if self._task.check_mode:
            message = told("would be ended and taken away", jobs, found.going)
            return {"changed": bool(jobs), "jobs": jobs, "msg": message}
        left = []
        for job, resources in found.taken.items():
            own = Kubectl(*where, resources=resources, target=target)
            if job in found.projects:
                own = RunaiCluster(where, found.projects[job], name_of(job))
            left += take_away(own, selector_of(job))
        if left:
            raise InputError("target", target, f"{left[0]}; {len(left)} in all")
        return {"changed": bool(jobs), "jobs": jobs, "msg": told("ended and taken away", jobs, found.going)}


def refuse_project(target: str, given: Mapping[str, object]) -> None:
    """InputError if Run:ai's project is not named, or is named for another target."""
    project = given["pod_project"]
    if target == "runai" and not (project or given["pod_namespace"]):
        raise InputError("pod_project", None, "name the project, whose namespace has the job: -e pod_project=NAME")
    if target != "runai" and project:
        raise InputError("pod_project", project, ONLY_RUNAI)


def refuse_other_projects(found: Jobs, given: str | None) -> None:
    """InputError for a job of another project than the user named.

    Its name is in a ConfigMap, and whoever may create one there could have a workload of any project deleted.
    """
    for job, project in found.projects.items():
        if job in found.taken and project != given:
            advice = f"the objects of {job} name project {project}: -e target=runai -e pod_project={project}"
            raise InputError("pod_project", given, advice)


def told(what: str, jobs: list[str], going: list[str]) -> str:
    """Return one line on jobs. `going`: those that are left, for nobody named them."""
    line = f"{what}: {', '.join(jobs)}" if jobs else "no job of yours is over in this namespace"
    return with_going(line, going)
