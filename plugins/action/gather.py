# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.gather: bring home what waits on the head. Documentation: plugins/modules/gather.py."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._border import cluster_from_hostvars, to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._session import HeadLost, Session

display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """One task for the head."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return changed and runs (job_id, run_dir, state of each that came home, or would)."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        try:
            head = cluster_from_hostvars(to_plain(variables["groups"]), variables["hostvars"]).head
            with Session(head) as session:
                runs = session.collect(socket.gethostname(), self._task.check_mode)
                for run in runs:
                    self.bring(session, run)
        except (InputError, HeadLost, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        return {**result, "changed": bool(runs), "runs": runs}

    def bring(self, session: Session, run: dict[str, Any]) -> None:
        """Fetch one run unless in check mode, and say so."""
        if not self._task.check_mode:
            Path(run["run_dir"]).mkdir(mode=0o700, parents=True, exist_ok=True)
            session.fetch(run["job_id"], Path(run["run_dir"]))
        display.display(f"job {run['job_id']} {run['state']}; run: {run['run_dir']}")
