# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.gather: bring home what waits on the head. Documentation: plugins/modules/gather.py."""

from __future__ import annotations

import socket
from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._border import (
    cluster_from_hostvars,
    ssh_words,
    to_plain,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._rundir import noted_run, why_not_home
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._session import HeadLost, Session

display = Display()
NO_LIMIT = 1 << 60


class ActionModule(Action):
    """One task for the head."""

    BYPASS_HOST_LOOP = True

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return changed and runs (job_id, run_dir, state of each that came home, or would)."""
        try:
            head = cluster_from_hostvars(to_plain(variables["groups"]), variables["hostvars"]).head
            ssh = ssh_words(self._connection, head)
            with Session(head, ssh) as session:
                runs = session.collect(socket.gethostname(), self._task.check_mode)
            problems = [problem for run in runs for problem in [self.bring(head, ssh, run)] if problem]
        except HeadLost as error:
            return {"failed": True, "msg": str(error)}
        if problems:
            return {"failed": True, "runs": runs, "msg": "; ".join(problems)}
        return {"changed": bool(runs), "runs": runs}

    def bring(self, head: Node, ssh: tuple[str, ...], run: dict[str, Any]) -> str:
        """Fetch one run unless in check mode, say so, and return what went wrong: one run must not hold up the next."""
        try:
            run_dir, placement = noted_run(run["job_id"], run["run_dir"])
        except InputError as error:
            return str(error)
        run["run_dir"] = str(run_dir)
        try:
            if not self._task.check_mode:
                run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                with Session(head, ssh) as session:
                    missing = session.fetch(run["job_id"], run_dir, placement, NO_LIMIT)
                if missing:
                    return f"{run['job_id']}: the files of {'; '.join(missing)}"
        except OSError as error:
            return why_not_home(error, run_dir, head.name)
        display.display(f"job {run['job_id']} {run['state']}; run: {run_dir}")
        return ""
