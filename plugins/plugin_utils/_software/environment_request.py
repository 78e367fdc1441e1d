# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a task of python_environment asks for, made ready on the controller: the lock, checksums, directories."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line

from .answers import Look
from .package_locks import PackageLock, lock_of
from .wheelhouse import Machine, Order

SKIPPED = ("__pycache__", "bench", "build", "tests")


class Given(TypedDict):
    """The options of python_environment that the controller itself acts on."""

    role: str
    path: str
    packages: list[str]
    lock: str
    locked: bool
    wheelhouse: str
    wheelhouse_fill: bool
    index_url: str
    torch_packages: list[str]
    torch_index_url: str
    sources: list[str]
    programs: list[Mapping[str, str]]
    kept: list[str]
    tools_hint: str
    proof: str
    sent: str


class Prepared(TypedDict):
    """What the machine is told besides the options."""

    wheelhouse: str
    sources: dict[str, dict[str, str]]
    lock: str
    locked: PackageLock


class Sent(TypedDict, total=False):
    """What one step of a machine that sends returned."""

    unsent: dict[str, str]
    failed: bool
    msg: str


class Registered(Sent, total=False):
    """The same as Ansible registers it: of one step, or of several."""

    results: list[Sent]


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


def prepared(given: Given) -> Prepared:
    """Return what the machine is told besides the options. InputError for a lock or a source that is none."""
    lock = lock_of(given["packages"], given["lock"] if given["locked"] else "")
    wheelhouse = given["wheelhouse"]
    return {
        "wheelhouse": os.path.realpath(os.path.expanduser(wheelhouse)) if wheelhouse else "",
        "sources": {Path(directory).name: files_of(directory) for directory in given["sources"]},
        "lock": lock["digest"],
        "locked": {"lines": lock["lines"], "of_the_build": lock["of_the_build"], "more": lock["more"]},
    }


def order_for(given: Given, ready: Prepared, seen: Look, into: Path) -> Order:
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


def missing_tools(given: Given, node: str, seen: Look) -> str:
    """Return the error for a machine that has to build something and has not the tools."""
    install = distribution.install("build", seen["os"])
    hint = given["tools_hint"] or f"as root: {install}; or set {given['role']}_install_tools=true (Debian, Ubuntu)"
    return f"building needs {', '.join(seen['missing_tools'])}, which {node} does not have; {hint}"


def difference(packages: Sequence[str], seen: Look) -> list[dict[str, str]]:
    """Return what --diff shows of an environment that is made: the packages, and the directory that they get."""
    text = "".join(f"{package}\n" for package in packages)
    return [{"before_header": seen["place"], "after_header": seen["place"], "before": "", "after": text}]


def why_not_sent(registered: Registered, node: str) -> str:
    """Return why a node was not sent the environment, by what the steps of the machine that has it returned."""
    results = registered.get("results") or [registered]
    said = [result["unsent"].get(node, "") for result in results if isinstance(result.get("unsent"), dict)]
    failed = [str(result.get("msg", "")) for result in results if result.get("failed")]
    return line(next(filter(None, [*said, *failed]), "it failed there first"))
