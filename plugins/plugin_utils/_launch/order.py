# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What goes out of a plan: the order for the head, and plan.json for people."""

from __future__ import annotations

import dataclasses
import json

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    AGENT_PROGRAM,
    RANK_PROGRAM,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import (
    JobOrder,
    JobRoute,
    NodeOrder,
    RunOrder,
)

from .command import LaunchCommand, words_of
from .explain import pasteable
from .plan import LaunchPlan, NodePlan


def order_for(plan: LaunchPlan, command: LaunchCommand, controller: str) -> RunOrder:
    """Return all that the head needs to run the job by itself.

    Secrets are in it apart from the nodes' orders: nodes keep these in files, and secrets in none.
    """
    nodes = (plan.head, *plan.other_nodes)
    return {
        "job": job_order(plan, command, controller),
        "nodes": {node.name: node_order(plan, command, node) for node in nodes},
        "routes": [route_to(node) for node in plan.other_nodes],
        "secrets": {
            node.name: {setting.name: setting.value for setting in node.environment if setting.secret} for node in nodes
        },
        "files": {"command.txt": pasteable(plan, command), **command.files},
    }


def job_order(plan: LaunchPlan, command: LaunchCommand, controller: str) -> JobOrder:
    """Return the part of the order that is the same on all nodes."""
    return {
        "job_id": plan.job_id,
        "controller": controller,
        "owner": plan.owner,
        "run_dir": plan.run_dir,
        "head": plan.head.name,
        "world_size": plan.world_size,
        "placement": [
            {"rank": place.rank, "local_rank": place.local_rank, "host": place.host} for place in plan.placement
        ],
        "backend": plan.backend,
        "launcher": {"name": plan.launcher, "version": plan.launcher_version, "path": plan.launcher_path},
        "launcher_environment": {setting.name: setting.value for setting in command.environment},
        "shown_command": list(command.argv),
        "queue": [list(words) for words in command.cancel],
        "master_addr": plan.master_addr,
        "master_port": plan.master_port,
        "job_timeout": plan.job_timeout,
        "notice": plan.notice,
        "restarts": plan.restarts,
        "rounds": plan.options.rounds,
        "grace": plan.grace,
        "lease": plan.lease,
        "exclusive": plan.exclusive,
        "show_ranks": list(plan.show_ranks),
        "hang_look": plan.hang_look,
        "hang_end": plan.hang_end,
        "sample": plan.sample,
        "collect": list(plan.collect),
    }


def node_order(plan: LaunchPlan, command: LaunchCommand, node: NodePlan) -> NodeOrder:
    """Return the part of the order that is one node's own."""
    return {
        "host": node.name,
        "ranks": [place.rank for place in plan.placement if place.host == node.name],
        "address": node.address,
        "home": node.home,
        "command": list(words_of(command.on.get(node.name, ()))),
        "launcher_search": list(node.launcher_search),
        "launcher_prefix": node.launcher_prefix,
        "nic": node.nic,
        "argv": list(node.argv),
        "cwd": node.cwd,
        "tmpdir": node.tmpdir,
        "path_first": node.path_first,
        "environment": {setting.name: setting.value for setting in node.environment if not setting.secret},
        "checkpoint_dir": node.checkpoint_dir,
        "data": node.data,
        "secret_names": [setting.name for setting in node.environment if setting.secret],
        "known_jobs": list(node.known_jobs),
        "programs": {RANK_PROGRAM: list(node.wrapper), AGENT_PROGRAM: [*node.runtime, "shell", node.job_dir]},
        "container": node.container.order if node.container else None,
    }


def route_to(node: NodePlan) -> JobRoute:
    """Return what the head must know to reach a node, also after the job."""
    return {
        "host": node.name,
        "home": node.home,
        "interpreter": node.interpreter,
        "address": node.address,
        "launcher_search": list(node.launcher_search),
        "launcher_prefix": node.launcher_prefix,
        "nic": node.nic,
    }


def plan_report(plan: LaunchPlan, command: LaunchCommand) -> str:
    """Return plan.json: the plan, the environment per node and the command with every reason; secrets hidden."""
    report = dataclasses.asdict(plan)
    for node in (report["head"], *report["nodes"]):
        del node["environment"], node["wrapper_environment"]
    report["environment"] = {node.name: [setting.report for setting in node.environment] for node in plan.nodes}
    report["command"] = [dataclasses.asdict(option) for option in command.options]
    report["files"] = dict(command.files)
    return json.dumps(report, indent=2) + "\n"
