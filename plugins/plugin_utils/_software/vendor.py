# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What root does on a node for packages of a vendor: made out on the controller, for a node's user must not choose it.

The node says which system it is, and what is installed. Files, addresses and keys are this controller's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.forms import (
    Check,
    flag,
    like,
    listed,
    mapped,
    one_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import FILE, exact, short, take

Repository = dict[str, Any]
SOURCES, PREFERENCES, KEYRINGS = "/etc/apt/sources.list.d", "/etc/apt/preferences.d", "/etc/apt/keyrings"
VERSION = like(re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_^-]{0,127}\Z"), "the version of a package")
HEADERS = like(
    re.compile(r"(linux-headers|linux-modules-extra|kernel-devel)-[A-Za-z0-9.+~_-]{1,128}\Z"),
    "a package of the running kernel",
)


def repositories_for(
    repositories: Sequence[Mapping[str, Any]], role: str, systems: Sequence[str], machines: Mapping[str, str]
) -> dict[str, list[Repository]]:
    """Return the repositories as they are on each system and machine that there are packages for: "debian12 x86_64"."""
    return {
        f"{system} {machine}": [repository_for(each, role, system, theirs) for each in repositories]
        for system in systems
        for machine, theirs in machines.items()
    }


def family_of(system: str) -> str:
    """Return what a system's packages are."""
    return "rpm" if system.startswith("rhel") else "deb"


def repository_for(entry: Mapping[str, Any], role: str, system: str, machine: str) -> Repository:
    """Return a repository on a system: name, address, suite, components, key, fingerprints, keyring and files."""
    filled = {"system": system, "machine": machine, "version": str(entry.get("version", ""))}
    key = pick(entry["keys"], system) or {}
    made: Repository = {name: pick(entry.get(name, ""), system) for name in ("address", "suite", "components", "pin")}
    made = {name: str(text or "").format(**filled) for name, text in made.items()}
    filled["address"] = made["address"].rstrip("/")
    made |= {
        "name": entry["name"],
        "key": key.get("url", "").format(**filled),
        "keyring": f"{KEYRINGS}/{entry['name']}.gpg",
    }
    made["fingerprints"] = key.get("fingerprint", "").split()
    made["files"] = {f"{SOURCES}/{made['name']}.sources": sources(made, role)}
    if made["pin"]:
        made["files"][f"{PREFERENCES}/{made['name']}"] = made["pin"].strip() + "\n"
    return made


def pick(entry: Any, system: str) -> Any:
    """Return the value for a system, else for its family, else for `any`. None if there is none."""
    if not isinstance(entry, Mapping):
        return entry
    return entry.get(system, entry.get(family_of(system), entry.get("any")))


def sources(made: Repository, role: str) -> str:
    """Return the text of a .sources file. Another key makes another text, and so is fetched."""
    lines = [f"# torchfleet.cluster.{role}, key {' '.join(made['fingerprints'])}", "Types: deb"]
    lines += [f"URIs: {made['address']}", f"Suites: {made['suite']}"]
    lines += [f"Components: {made['components']}"] if made["components"] else []
    return "\n".join([*lines, f"Signed-By: {made['keyring']}", ""])


# --- what a node answers -------------------------------------------------------------------------------------------


def form_of(request: Mapping[str, Any]) -> Check:
    """Return the check of an answer to a request: only packages that were asked for are named in it."""
    wanted = [*request["first"], *request["names"], *request["alike"]]
    named = one_of(*wanted, *request["alike"].values())
    exactly = re.compile("(?:" + "|".join(map(re.escape, request["alike"])) + r")=[A-Za-z0-9.+:~*_^-]{1,128}\Z")
    return exact(
        {
            "refusals": listed(short(2000), 32),
            "system": like(re.compile(r"[A-Za-z0-9._-]{1,64}\Z"), "a distribution with its version"),
            "machine": like(re.compile(r"[A-Za-z0-9_]{1,32}\Z"), "an architecture"),
            "family": one_of("deb", "rpm", ""),
            "headers": listed(HEADERS, 4),
            "versions": mapped(named, VERSION, 100),
            "missing": listed(named, 100),
            "moves": flag,
            "unlike": listed(like(exactly, "a package in the version of another one"), 100),
            "unheld": listed(named, 100),
            "interrupted": flag,
            "ready": flag,
        }
    )


def answer_of(node: str, request: Mapping[str, Any], text: Any) -> dict[str, Any]:
    """Return what packages.py answered to `look` on a node, checked, with this controller's own `repositories`.

    InputError, which names the node, for what it cannot be.
    """
    try:
        value = json.loads(text) if isinstance(text, str) and len(text) <= FILE else text
    except (ValueError, RecursionError):
        value = None
    found = dict(take(node, "packages", form_of(request), value))
    return {**found, "repositories": request["repositories"].get(f"{found['system']} {found['machine']}", [])}
