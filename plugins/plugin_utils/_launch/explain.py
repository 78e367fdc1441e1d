# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What will happen, for people to read before it happens: placement, host file, environment, command, each with why."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import DAEMONS, LAUNCHERS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .command import LaunchCommand, Option, words_of
from .containers import ContainerPlan
from .environment import Setting
from .plan import LaunchPlan


def explain(plan: LaunchPlan, command: LaunchCommand) -> list[str]:
    """Return the lines that `train.yml --check` prints."""
    lines = [
        f"job {plan.job_id}: {plan.world_size} ranks, backend {plan.backend} ({plan.backend_reason})",
        *filter(None, [plan.shipped, plan.data]),
        "",
        "placement",
    ]
    lines += [f"  rank {place.rank}  {place.host}  local rank {place.local_rank}" for place in plan.placement]
    for name, text in command.files.items():
        lines += ["", f"file {plan.head.job_dir}/{name}", *indent(text.splitlines())]
    environments = {node.name: settings_table((*node.environment, *node.wrapper_environment)) for node in plan.nodes}
    lines += folded("environment of the ranks on", environments)
    if command.environment:
        lines += ["", "environment of the launcher", *settings_table(command.environment)]
    boxes = {node.name: node.container for node in plan.nodes if node.container}
    lines += folded("container on", {name: container_table(box) for name, box in boxes.items()})
    lines += folded("command on", {name: command_table(options) for name, options in command.on.items()})
    programs = {node.name: ["  " + shlex.join(node.argv), f"  in {node.cwd}"] for node in plan.nodes}
    lines += folded("program of each rank on", programs)
    lines += ["", "its packages", *plan.packages] if plan.packages else []
    return lines + [f"warning: {text}" for text in (*plan.warnings, *command.warnings)]


def folded(title: str, blocks: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the block of each node below a title that names it; one that several have alike is there once."""
    where: dict[tuple[str, ...], list[str]] = {}
    for name, block in blocks.items():
        where.setdefault(tuple(block), []).append(name)
    return [line for block, names in where.items() for line in ("", f"{title} {fold_names(names)}", *block)]


def command_table(options: Sequence[Option]) -> list[str]:
    """Return a command as a row per option."""
    return table([(shlex.join(option.words), option.reason, option.source) for option in options])


def container_table(box: ContainerPlan) -> list[str]:
    """Return a container as a row per option. What it starts is the command."""
    step = Option(box.step, "our step into the image: the environment, then the command", "default")
    return command_table([*(Option(*part) for part in box.parts), step])


def settings_table(settings: tuple[Setting, ...]) -> list[str]:
    """Return a row per variable: name=value, reason, source."""
    return table(
        [(f"{setting.name}={shlex.quote(setting.shown)}", setting.reason, setting.source) for setting in settings]
    )


def table(rows: list[tuple[str, str, str]]) -> list[str]:
    """Return aligned rows; a long first cell gets a line of its own."""
    width = max((len(first) for first, _reason, _source in rows if len(first) <= 50), default=0)
    lines = []
    for first, reason, source in rows:
        fits = len(first) <= width
        lines += [] if fits else [f"  {first}"]
        lines.append(f"  {first if fits else '':<{width}}  # {reason} [{source}]")
    return lines


def indent(lines: list[str]) -> list[str]:
    """Return the lines moved in by two."""
    return ["  " + line for line in lines]


def pasteable(plan: LaunchPlan, command: LaunchCommand) -> str:
    """Return command.txt: what a person can paste into shells on the nodes to run the job by hand."""
    settings = " ".join(f"{setting.name}={shlex.quote(setting.value)}" for setting in command.environment)
    lines = [f"# job {plan.job_id}: paste into a shell on the node named; works until clean.yml takes the job away"]
    lines += [f"# left out, because they are secret: {', '.join(plan.secrets)}"] if plan.secrets else []
    if plan.head.container and plan.other_nodes and LAUNCHERS[plan.launcher].started_by == DAEMONS:
        lines.append("# an image has no ssh: by hand this starts ranks on one node alone")
    for node in {node.name: node for node in (plan.head, *plan.nodes)}.values():
        words = words_of(command.on.get(node.name, ()))
        if words:
            if node.container:
                lines += [f"# on {node.name}", shlex.join([*node.container.before, *words])]
                continue
            search = f"PATH={shlex.quote(node.job_dir + '/bin')}:$PATH" if plan.other_nodes else ""
            prefix = " ".join(part for part in (search, settings) if part)
            environment = f"env {prefix} " if prefix else ""
            lines.append(f"# on {node.name}\ncd {shlex.quote(node.cwd)} && {environment}{shlex.join(words)}")
    return "\n".join(lines) + "\n"
