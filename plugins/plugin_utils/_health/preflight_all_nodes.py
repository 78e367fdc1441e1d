# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight of all nodes together: what nodes share but must not, and what none of a kind has. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.prerequisites import MANAGERS

from .facts_types import Facts
from .findings import Finding, found
from .preflight_rules import RULES
from .preflight_types import Case, commands_for

SHARED_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.sshfs", "9p")
COMPILER_MENDED = (
    "setup.yml installs it as root on the machine that builds (role torch_backends); "
    "-e torch_backends_install_tools=false leaves it"
)


def shared_identities(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Yield what several nodes share but must not: the machine itself, its keys, ids, names and home."""
    known = set(shared_by(facts, lambda fact: [fact["host"]["network"]]).values())
    for names in known:
        yield found(RULES, "TF-SAME-MACHINE", names, "the same boot, network namespace and interfaces")
    for name, value_of, seen in (
        ("TF-SAME-HOST-KEY", lambda fact: fact["host"]["host_keys"], "the same host key of sshd, {}"),
        ("TF-SAME-MACHINE-ID", lambda fact: [fact["host"]["machine_id"]], "the same /etc/machine-id"),
        ("TF-SAME-HOSTNAME", lambda fact: [fact["host"]["name"]], "the same host name, {}"),
        ("TF-HOME-SHARED", shared_home, "the same home on a shared file system, {}"),
    ):
        by_names = {names: value for value, names in shared_by(facts, value_of).items() if names not in known}
        for names, value in by_names.items():
            yield found(RULES, name, names, seen.format(value), **commands_for([facts[each] for each in names]))


def without_compiler(cases: Sequence[Case]) -> Iterator[Finding]:
    """Yield each kind of machine of which none can build a backend: one of each kind builds it for the others."""
    kinds = defaultdict(list)
    for case in cases:
        if case.target.worker and case.limits.compiles:
            system, version = case.facts["system"], case.facts["python"]["version"]
            kinds[system["os"], system["os_version"], system["arch"], version].append(case)
    for kind in kinds.values():
        if not any(can_build(case) for case in kind):
            missing = ["g++"] * (not kind[0].facts["compiler"]) + ["Python.h"] * (
                not kind[0].facts["python"]["headers"]
            )
            names = [case.target.name for case in kind]
            words = {"name": names[0], **commands_for([kind[0].facts])}
            mended = any(can_install(case) for case in kind)
            seen = f"missing: {' and '.join(missing)}; {why_not_installed(kind[0], mended)}".rstrip("; ")
            finding = found(RULES, "TF-NO-COMPILER", names, seen, **words)
            yield replace(finding, severity="info", mend=COMPILER_MENDED) if mended else finding


def can_build(case: Case) -> bool:
    """Whether a machine has a built backend, or what is needed to build one."""
    return bool(case.facts["backends"] or (case.facts["compiler"] and case.facts["python"]["headers"]))


def can_install(case: Case) -> bool:
    """Whether role torch_backends installs on a machine what is needed to build."""
    root = case.facts["user"]["sudo"] in ("root", "yes") or case.target.may_ask_password
    return root and not why_not_installed(case, root)


def why_not_installed(case: Case, root: bool) -> str:
    """Return why role torch_backends does not install it; empty if it does. `root`: whether it can become root."""
    if not case.limits.installs_tools:
        return "torch_backends_install_tools=false leaves it"
    if distribution.family(case.facts["system"]["os"]) not in MANAGERS.values():
        return f"torchfleet installs it only with {' and '.join(sorted(MANAGERS))}"
    return "" if root else "installing it needs root"


def shared_by(facts: Mapping[str, Facts], values_of: Callable[[Facts], Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return each value that several nodes share, with these nodes."""
    nodes = defaultdict(list)
    for name, fact in facts.items():
        for value in values_of(fact):
            nodes[value].append(name)
    return {value: tuple(names) for value, names in nodes.items() if value and len(names) > 1}


def shared_home(fact: Facts) -> list[str]:
    """Return source and path of a home on a file system that other machines may mount too, else nothing."""
    place = fact["home"]
    return [f"{place['source']} at {place['path']}"] if place["kind"] in SHARED_FILE_SYSTEMS else []
