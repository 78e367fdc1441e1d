# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.slurm_clean: end a job in Slurm. Documentation: plugins/modules/slurm_clean.py."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import groups_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    head_from_hostvars,
    ssh_words,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_job_id
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.slurm import Slurm
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.slurm_job import jobs_there, take_away
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.targets import with_going

Result = dict[str, object]


class ActionModule(Action):
    """Runs once, for the head."""

    BYPASS_HOST_LOOP = True
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed and jobs; failed and msg if something is left."""
        job_id = parse_job_id(given["job_id"]) or ""
        head = head_from_hostvars(groups_of(variables), variables["hostvars"])  # type: ignore[arg-type]
        slurm = Slurm(head.name, ssh_words(self._connection, head), head.launcher_paths["srun"])
        found = jobs_there(slurm, job_id)
        jobs = [row.job_id for row in found.taken]
        if self._task.check_mode:
            return {"changed": bool(jobs), "jobs": jobs, "msg": told("would be ended", jobs, found.going)}
        left = [line for row in found.taken for line in take_away(slurm, row.name)]
        if left:
            raise InputError("target", "slurm", f"{left[0]}; {len(left)} in all")
        return {"changed": bool(jobs), "jobs": jobs, "msg": told("ended", jobs, found.going)}


def told(what: str, jobs: list[str], going: list[str]) -> str:
    """Return one line on jobs. `going`: those that are left, for nobody named them."""
    line = f"{what}: {', '.join(jobs)}" if jobs else "nothing was ended: Slurm forgets what is over"
    return with_going(line, going)
