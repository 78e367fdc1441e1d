# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""This machine: its distribution, its names and addresses, and what distinguishes it from other machines.

Functions that read below /proc, /sys, /etc and /usr take another `root`, so that tests can give them a tree.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import os
import re
import socket
import threading

from .reading import names_in, text_of

RESOLVE_SECONDS = 3.0  # a name server that is gone keeps getaddrinfo() busy for much longer


def system(root: str = "/") -> dict[str, str]:
    """Return kernel, arch, libc, and the distribution of os-release(5)."""
    about = dict(re.findall(r'^(\w+)=["\']?(.*?)["\']?$', text_of(os.path.join(root, "etc/os-release")), re.MULTILINE))
    return {
        "kernel": os.uname().sysname,
        "arch": os.uname().machine,
        "os": about.get("ID", ""),
        "os_version": about.get("VERSION_ID", ""),
        "os_name": about.get("PRETTY_NAME", ""),
        "libc": libc(),
    }


def libc() -> str:
    """Return "glibc 2.36"; an empty string where this is no glibc (musl has no such name in confstr(3))."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def host_facts(root: str = "/") -> dict[str, object]:
    """Return what distinguishes this machine from others. The machine id is confidential (machine-id(5)): a digest."""
    name = socket.gethostname()
    nics = os.path.join(root, "sys/class/net")
    hardware = [text_of(os.path.join(nics, nic, "address")).strip() for nic in names_in(nics) if nic != "lo"]
    boot = text_of(os.path.join(root, "proc/sys/kernel/random/boot_id")).strip()
    return {
        "name": name,
        "addresses": resolve(name),
        "machine_id": digest(text_of(os.path.join(root, "etc/machine-id")).strip()),
        # Containers of one machine share its boot; machines may share the number of the namespace.
        "network": digest(" ".join([boot, network_namespace(), *sorted(hardware)])),
        "host_keys": host_keys(root),
    }


def digest(text: str) -> str:
    """Return a short digest, or an empty string for an empty text."""
    return hashlib.sha256(b"torchfleet " + text.encode()).hexdigest()[:16] if text else ""


def network_namespace() -> str:
    """Return the network namespace as the kernel names it: net:[4026531840]."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def host_keys(root: str = "/") -> list[str]:
    """Return the fingerprints of sshd's public host keys as ssh-keygen shows them: SHA256:..."""
    found = []
    for path in sorted(glob.glob(os.path.join(root, "etc/ssh/ssh_host_*_key.pub"))):
        words = text_of(path).split()
        try:
            key = base64.b64decode(words[1])
        except (IndexError, ValueError):
            continue
        found.append("SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("="))
    return found


def resolve(name: str) -> list[str] | None:
    """Return the addresses of a name, none if it has none, None if nobody answered in time."""
    answers: list[list[str]] = []

    def ask() -> None:
        try:
            rows = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
        except OSError:
            rows = []
        answers.append(sorted({str(row[4][0]) for row in rows}))

    asking = threading.Thread(target=ask, daemon=True)  # ends with the process if the name server never answers
    asking.start()
    asking.join(RESOLVE_SECONDS)
    return answers[0] if answers else None
