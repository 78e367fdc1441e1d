# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What goes out of a plan: the order for the head, and plan.json for people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._environment import HIDDEN, SECRET, rank_environment
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._explain import pasteable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers import LaunchCommand
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import LaunchPlan, Node


def order_for(
    plan: LaunchPlan, command: LaunchCommand, head: Node, home: str, controller: str, tmpdir: str
) -> dict[str, Any]:
    """Return all that the head needs to run the job by itself, as JSON values. Secrets are in it: it is kept 0600."""
    settings = rank_environment(plan, head.name)
    files = {"command.txt": pasteable(plan, command)}
    if command.hostfile:
        files["hostfile"] = command.hostfile
    return {
        "job_id": plan.job_id,
        "controller": controller,
        "run_dir": plan.run_dir,
        "home": home,
        "host": head.name,
        "world_size": plan.world_size,
        "placement": [dataclasses.asdict(place) for place in plan.placement],
        "backend": plan.backend,
        "launcher": {"name": plan.launcher, "version": plan.launcher_version, "path": plan.launcher_path},
        "launcher_environment": {setting.name: setting.value for setting in command.environment},
        "command": list(command.argv),
        "argv": list(plan.app.argv),
        "cwd": plan.app.cwd,
        "environment": {setting.name: setting.value for setting in settings},
        "tmpdir": tmpdir,
        "path_first": plan.path_first,
        "master_addr": plan.master_addr,
        "master_port": plan.master_port,
        "job_timeout": plan.job_timeout,
        "grace": plan.grace,
        "show_ranks": list(plan.show_ranks),
        "files": files,
    }


def plan_report(plan: LaunchPlan, command: LaunchCommand) -> str:
    """Return plan.json: the plan, the environment per node and the command with every reason; secrets hidden."""
    report = dataclasses.asdict(plan)
    report["app"]["env"] = hide_secrets(plan.app.env)
    report["environment"] = {
        node.name: [
            {**dataclasses.asdict(setting), "value": setting.shown} for setting in rank_environment(plan, node.name)
        ]
        for node in plan.nodes
    }
    report["command"] = [dataclasses.asdict(option) for option in command.options]
    report["hostfile"] = command.hostfile
    return json.dumps(report, indent=2) + "\n"


def hide_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values with those hidden whose name says that they are secret."""
    return {name: HIDDEN if SECRET.search(name) else value for name, value in values.items()}
