# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a task of python_environment asks for, made ready on the controller: the lock, checksums, directories."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line

from .package_locks import lock_of
from .wheelhouse import Machine, Order

SKIPPED = ("__pycache__", "bench", "build", "tests")
Given = Mapping[str, Any]


def files_of(directory: str) -> dict[str, str]:
    """Return the sha256 of each file that belongs to a source package, by its path below the directory. InputError."""
    root, found = Path(directory), {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.endswith(".egg-info")]
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    if "pyproject.toml" not in found:
        raise InputError("sources", directory, "it is not a Python package: pyproject.toml is missing")
    return dict(sorted(found.items()))


def prepared(given: Given) -> dict[str, object]:
    """Return what the machine is told besides the options. InputError for a lock or a source that is none."""
    lock = lock_of(given["packages"], given["lock"] if given["locked"] else "")
    wheelhouse = given["wheelhouse"]
    return {
        "wheelhouse": os.path.realpath(os.path.expanduser(wheelhouse)) if wheelhouse else "",
        "sources": {Path(directory).name: files_of(directory) for directory in given["sources"]},
        "lock": lock["digest"],
        "locked": {name: part for name, part in lock.items() if name != "digest"},
    }


def order_for(given: Given, ready: Mapping[str, Any], seen: Mapping[str, Any], into: Path) -> Order:
    """Return what is to be brought to a machine. `ready`: of prepared(); `seen`: the answer to a look."""
    return Order(
        role=given["role"],
        machine=Machine(seen["python"], seen["libc"], seen["machine"], seen["needs_pip"]),
        into=into,
        packages=given["packages"],
        wheelhouse=ready["wheelhouse"],
        fill=given["wheelhouse_fill"],
        index_url=given["index_url"],
        locked=ready["locked"],
        sources={directory: ready["sources"][Path(directory).name] for directory in given["sources"]},
        programs=given["programs"],
        kept=given["kept"],
        torch_packages=given["torch_packages"],
        torch_index_url=given["torch_index_url"],
    )


def transfer_of(share: Mapping[str, object], node: str) -> dict[str, object]:
    """Return what the sender of a node's environment is told: see Transfer in environment_copy."""
    source = "" if share["sender"] == node else node
    mesh = f"{share['home']}/ssh/config"
    return {"path": share["place"], "to": share["to"], "senders": share["senders"], "source": source, "mesh": mesh}


def missing_tools(given: Given, node: str, seen: Mapping[str, Any]) -> str:
    """Return the error for a machine that has to build something and has not the tools."""
    install = distribution.install("build", seen["os"])
    hint = given["tools_hint"] or f"as root: {install}; or set {given['role']}_install_tools=true (Debian, Ubuntu)"
    return f"building needs {', '.join(seen['missing_tools'])}, which {node} does not have; {hint}"


def why_not_sent(registered: Mapping[str, Any], node: str) -> str:
    """Return why a node was not sent the environment, by what the steps of the machine that has it returned."""
    results = registered.get("results") or [registered]
    said = [result["unsent"].get(node, "") for result in results if isinstance(result.get("unsent"), dict)]
    failed = [str(result.get("msg", "")) for result in results if result.get("failed")]
    return line(next(filter(None, [*said, *failed]), "it failed there first"))
