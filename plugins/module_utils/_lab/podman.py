# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Podman and the other programs of this machine that a lab uses."""

from __future__ import annotations

import json
import subprocess
from typing import TypedDict

PODMAN = ("podman", "--runtime", "runc")  # crun starts nothing on machines with hybrid cgroups


class PodmanError(Exception):
    """A command failed; the message is one line: the command and the last thing it said."""


def run(*argv: str, stdin: str = "", check: bool = True) -> str:
    """Run a command and return its output, or nothing if it failed and `check` is off."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if not check:
        return ""
    said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["nothing"]
    raise PodmanError(f"`{' '.join(argv[:6])} ...` ended with status {done.returncode}: {said[-1].strip()}")


def podman(*argv: str, check: bool = True) -> str:
    """Run podman."""
    return run(*PODMAN, *argv, check=check)


class ContainerRow(TypedDict):
    """What podman says of a container, as far as it is read."""

    Labels: dict[str, str] | None
    Names: list[str]
    State: str
    Pid: int


class Subnet(TypedDict):
    subnet: str  # with the length of its prefix: 10.192.0.0/24


class NetworkRowLate(TypedDict, total=False):
    labels: dict[str, str] | None
    subnets: list[Subnet] | None


class NetworkRow(NetworkRowLate):
    """What podman says of a network, as far as it is read."""

    name: str


def all_containers() -> list[ContainerRow]:
    """Return the containers of this machine, those that do not run too."""
    return list(json.loads(podman("ps", "--all", "--format", "json") or "[]") or [])


def all_networks() -> list[NetworkRow]:
    """Return podman's networks on this machine."""
    return list(json.loads(podman("network", "ls", "--format", "json") or "[]") or [])


def inside(pid: int, namespace: str, *argv: str, stdin: str = "", check: bool = True) -> str:
    """Run a command in the network (`--net`) or among the files (`--mount`) of a process."""
    return run("nsenter", "--target", str(pid), namespace, *argv, stdin=stdin, check=check)
