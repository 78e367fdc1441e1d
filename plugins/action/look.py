# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.look: tell why a job does not go on. Documentation: plugins/modules/look.py."""

from __future__ import annotations

from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import identity
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped, StopWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    ssh_words,
    to_plain,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.autopsy import judged, write_bundle
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.job_list import RUNNING
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_job_id
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import run_dir_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session

Result = dict[str, Any]
display = Display()


class ActionModule(Action):
    """One task for the head."""

    BYPASS_HOST_LOOP = True
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return job_id, verdict, ranks, sentence and diagnosis."""
        job_id = parse_job_id(given["job_id"] or None)
        head = cluster_from_hostvars(to_plain(variables["groups"]), variables["hostvars"]).head
        try:
            with StopWatch(), Session(head, ssh_words(self._connection, head)) as session:
                job_id = job_id or only_job(session)
                looked = session.look(job_id)
        except Stopped:
            return {"changed": False, "failed": True, "msg": "stopped: nothing was changed"}
        except HeadLost as error:
            return {"failed": True, "msg": str(error)}
        autopsy = judged(job_id, looked)
        for line in autopsy.lines:
            display.display(line)
        run_dir = run_dir_of(job_id, given["runs_dir"])
        try:
            place = write_bundle(run_dir, autopsy)
        except OSError as error:
            raise InputError(
                "runs_dir", given["runs_dir"], f"{run_dir} cannot be written to: {error.strerror}"
            ) from None
        display.display(f"evidence: {place}")
        code, ranks, sentence = autopsy.verdict
        told: Result = {"changed": False, "job_id": job_id, "verdict": code.value, "ranks": ranks, "sentence": sentence}
        return {**told, "diagnosis": str(place)}


def only_job(session: Session) -> str:
    """Return the job that runs. InputError if there is none, or more than one."""
    running = [row["job_id"] for row in session.jobs(identity()) if row["state"] == RUNNING]
    if len(running) != 1:
        which = f"name one of {', '.join(running)}: -e job_id=..." if running else "no job runs"
        raise InputError("job_id", None, which)
    return running[0]
