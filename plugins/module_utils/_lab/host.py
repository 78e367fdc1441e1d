# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lab's use of this machine: its package sources, limits and tools."""

from __future__ import annotations

import ast
import os
import re
import resource
import shutil
import sys
from typing import Iterable, Mapping

from .podman import run

CA_BUNDLE = "/usr/local/share/lab-ca.crt"  # on the nodes
PIP_OPTIONS = ("index-url", "extra-index-url", "find-links", "trusted-host", "no-index", "timeout")
LIMITS = {"nofile": 20000, "nproc": 32768}
# The program that is looked for, and the Debian package it comes from.
TOOLS = {
    "podman": "podman",
    "runc": "runc",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "nft": "nftables",
    "ssh": "openssh-client",
}
INOTIFY = "fs.inotify.max_user_instances"
NEIGHBOURS = "net.ipv4.neigh.default.gc_thresh3"


def missing_packages() -> list[str]:
    """Return the Debian packages that a lab needs and that are missing here."""
    return [package for program, package in TOOLS.items() if not shutil.which(program)]


def refuse_without_root() -> None:
    """Raise ValueError for a plain user: programs of this machine cannot reach rootless networks."""
    if os.geteuid() != 0:
        raise ValueError("a lab needs root on this machine: ansible-playbook -b (with -K if sudo asks a password)")


def require_files(mounts: Iterable[tuple[str, str]], ca_bundle: str) -> None:
    """Raise ValueError for files and directories that nodes should read and that do not exist here."""
    for path, _there in mounts:
        if not os.path.exists(path):
            raise ValueError(f"lab_mounts: there is no {path} on this machine")
    if ca_bundle and not os.path.isfile(ca_bundle):
        raise ValueError(f"lab_ca_bundle: there is no file {ca_bundle}; give one, or '' for Debian's own")


def needs(nodes: int, nics: int) -> dict[str, tuple[int, int]]:
    """Return which limits of the kernel nodes share: what so many of them need at least, and a good value to raise to.

    Measured: 25 systemd use up Debian's 128 inotify instances; of the 1024 neighbours that all network namespaces have
    together, 32 nodes that talk with each other and with their gateway need 1056, and the last 32 get no answer.
    """
    neighbours = 64 + nics * nodes * (nodes + 1)
    return {INOTIFY: (64 + 8 * nodes, 1024), NEIGHBOURS: (neighbours, 4096)}


def raise_limits(nodes: int, nics: int, check: bool) -> list[str]:
    """Raise the limits for this number of nodes. Return the changes. Raise ValueError if they are not permitted."""
    return [
        raise_limit(name, least, good, check, nodes)
        for name, (least, good) in needs(nodes, nics).items()
        if os.path.exists(path_of(name)) and limit(name) < least
    ]


def limit(name: str) -> int:
    """Return the value of a sysctl that is one number."""
    with open(path_of(name)) as file:
        return int(file.read())


def path_of(name: str) -> str:
    """Return the file of a sysctl."""
    return "/proc/sys/" + name.replace(".", "/")


def raise_limit(name: str, least: int, good: int, check: bool, nodes: int) -> str:
    """Raise a limit, and say what it was."""
    now, wanted = limit(name), max(least, good)
    try:
        if not check:
            with open(path_of(name), "w") as file:
                file.write(str(wanted))
    except OSError:
        line = f"type sysctl -w {name}={wanted}"
        raise ValueError(f"lab_nodes: {nodes} nodes need {name} of {least}, here it is {now}; {line}") from None
    return f"{name} is {wanted} now, was {now}, until this machine boots again"


def limits() -> list[str]:
    """Return podman's options for limits that this process may give: podman's own are above what some roots may set."""
    argv = []
    for name, wanted in LIMITS.items():
        most = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))[1]
        value = wanted if most == resource.RLIM_INFINITY else min(most, wanted)
        argv += ["--ulimit", f"{name}={value}:{value}"]
    return argv


def surroundings(ca_bundle: str, with_pip: bool) -> list[str]:
    """Return podman's options that give nodes this machine's package sources and limits."""
    settings = parse_pip_config(run(sys.executable, "-m", "pip", "config", "list", check=False)) if with_pip else {}
    argv = limits()
    if ca_bundle:
        argv += ["--volume", f"{ca_bundle}:{CA_BUNDLE}:ro"]
        settings["cert"] = CA_BUNDLE
    for path in directories(settings):
        argv += ["--volume", f"{path}:{path}:ro"]
    text = "".join(f"{name} = {value}\n" for name, value in settings.items())
    return argv + (["--env", f"LAB_PIP=[global]\n{text}"] if text else [])


def parse_pip_config(text: str) -> dict[str, str]:
    """Return the settings by which pip finds packages, from the output of `pip config list`. The environment wins.

    Addresses with a password in them are left out: everybody on a node can read what it is given.
    """
    found = {}
    for group in ("global", ":env:"):
        for line in text.splitlines():
            name, _equals, value = line.partition("=")
            if name.rpartition(".")[0] == group and name.rpartition(".")[2] in PIP_OPTIONS:
                words = str(ast.literal_eval(value)).split()
                found[name.rpartition(".")[2]] = " ".join(word for word in words if not re.search("://[^/]*@", word))
    return {name: value for name, value in found.items() if value}


def directories(settings: Mapping[str, str]) -> list[str]:
    """Return the directories here that pip's settings name, so that nodes can see them too."""
    words = [word for name in PIP_OPTIONS for word in settings.get(name, "").split()]
    paths = [(word[len("file://") :] if word.startswith("file:///") else word).rstrip("/") for word in words]
    # A package index in a directory (PEP 503, `simple`) mostly links to files beside it.
    found = {os.path.dirname(path) if os.path.basename(path) == "simple" else path for path in paths}
    return sorted(path for path in found if path.startswith("/") and os.path.isdir(path))
