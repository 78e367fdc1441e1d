# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Input and output of preflight: the arguments of its action, the hosts, and the report. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_flag, parse_text

from . import findings as findings_module
from .clock import Clock
from .drift import Drift, drift_report
from .facts_types import Facts
from .preflight_types import Answer, Limits, Target
from .prerequisites import parse_switches

VERSION = 1  # of the report
# The variables of a host that say how it is reached.
HOST_VARIABLES = (
    *("ansible_host", "ansible_port", "ansible_user", "slots"),
    *("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
)


class Registered(TypedDict, total=False):
    """What Ansible registered for a node: what action node_facts took of its answer, or why there is none."""

    facts: Facts | None
    clock: Mapping[str, float] | None  # as clock_of() has it
    problem: str
    failure: str
    msg: str  # the task itself failed
    timedout: object  # Ansible's, with `timeout` of the task


class Given(TypedDict, total=False):
    """The arguments of the action. Those that are only checked here may be anything."""

    answers: Mapping[str, Registered | None] | None
    min_disk_gb: object
    min_tmp_mb: object
    min_shm_mb: object
    max_clock_offset: object
    python_min: object
    python_max: object
    supported_os: Sequence[object]
    needs_root: object
    compiles: object
    installs_tools: object
    prerequisites: Mapping[str, object] | None
    ignore: Sequence[str] | None
    report: object


@dataclass(frozen=True)
class Options:
    """The arguments of the action, checked."""

    answers: Mapping[str, Answer]
    limits: Limits
    ignore: frozenset[str]
    report: str


def parse_options(given: Given, known_ids: Collection[str]) -> Options:
    """Return the checked arguments of the action. An InputError names the variable of the role."""
    limits, switches = Limits(), given.get("prerequisites")
    return Options(
        answers={name: answer_of(answer) for name, answer in dict(given.get("answers") or {}).items()},
        limits=Limits(
            min_disk_gb=parse_least("preflight_min_disk_gb", given.get("min_disk_gb", limits.min_disk_gb)),
            min_tmp_mb=parse_least("preflight_min_tmp_mb", given.get("min_tmp_mb", limits.min_tmp_mb)),
            min_shm_mb=parse_least("preflight_min_shm_mb", given.get("min_shm_mb", limits.min_shm_mb)),
            max_clock_offset=parse_least(
                "preflight_max_clock_offset", given.get("max_clock_offset", limits.max_clock_offset)
            ),
            python_min=parse_version("preflight_python_min", given.get("python_min", limits.python_min)),
            python_max=parse_version("preflight_python_max", given.get("python_max", limits.python_max)),
            supported_os=tuple(str(name).lower() for name in given.get("supported_os", limits.supported_os)),
            needs_root=parse_flag("preflight_needs_root", given.get("needs_root", False)),
            compiles=parse_flag("preflight_compiles", given.get("compiles", False)),
            installs_tools=parse_flag("preflight_installs_tools", given.get("installs_tools", True)),
            prerequisites=parse_switches(switches) if switches else {},
        ),
        ignore=findings_module.check_ids("preflight_ignore", list(given.get("ignore") or ()), known_ids),
        report=parse_text("preflight_report", given.get("report", "reports/preflight.json")),
    )


def parse_least(name: str, value: object) -> float:
    """Return a number that is at least 0."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1.0
    except (OverflowError, ValueError):
        number = -1.0
    if not 0 <= number < 1e12:  # also refuses nan and inf
        raise InputError(name, value, f"give a number of at least 0: {name}: 1")
    return number


def parse_version(name: str, value: object) -> str:
    """Return a version such as 3.11."""
    if not isinstance(value, str) or not re.fullmatch(r"\d+\.\d+", value):
        raise InputError(name, value, f'give a version in quotes: {name}: "3.11"')
    return value


def answer_of(registered: Registered | None) -> Answer:
    """Return the answer of torchfleet.cluster.node_facts for a node. No answer means that the node was not asked."""
    answer = registered or Registered()
    clock, timeout = answer.get("clock"), answer.get("timedout")
    return Answer(
        facts=answer.get("facts"),
        clock=Clock(clock["offset"], clock["uncertainty"]) if clock else None,
        problem=answer.get("problem") or ("" if answer else "the node was not asked"),
        failure=answer.get("failure") or answer.get("msg") or "",
        timed_out=int(timeout.get("period") or 0) if isinstance(timeout, Mapping) else 0,
    )


def target_of(name: str, variables: Mapping[str, object], groups: Mapping[str, Sequence[str]]) -> Target:
    """Return a host of the inventory, from its variables (see HOST_VARIABLES)."""

    def text(key: str) -> str:
        return str(variables.get(key) or "")

    slots = text("slots")
    return Target(
        name=name,
        address=text("ansible_host") or name,
        port=text("ansible_port"),
        user=text("ansible_user"),
        head=name in groups.get("head", ()),
        worker=name in groups.get("workers", ()),
        slots=int(slots) if slots.isdecimal() else None,
        may_ask_password=any(variables.get(key) for key in HOST_VARIABLES if "pass" in key),
    )


def report_of(
    findings: Sequence[findings_module.Finding], answers: Mapping[str, Answer], drift: Drift, at: str
) -> dict[str, object]:
    """Return the report as plain values for JSON."""
    clocks = {name: dataclasses.asdict(answer.clock) for name, answer in answers.items() if answer.clock}
    return {
        "version": VERSION,
        "at": at,
        "ok": not findings_module.errors(findings),
        "findings": findings_module.report(findings),
        "clocks": clocks,
        "drift": drift_report(drift),
        "nodes": {name: answer.facts for name, answer in answers.items()},
    }
