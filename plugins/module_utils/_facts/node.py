# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What one node is, read in one go without changing anything: for preflight, and for the drift table of verify.

Functions that read below /proc, /sys, /etc and /usr take another `root`, so that tests can give them a tree.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import importlib.util
import json
import os
import platform
import pwd
import re
import resource
import socket
import stat
import subprocess
import sys
import sysconfig
import threading
from typing import Any, Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.nics import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.launcher_programs import on_search_path
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.survey import PORTS, home_path, seat

from . import gpus
from .versions import (
    PROGRAM_SECONDS,
    said,
    text_of,
    versions,
    wrappers,
)

LINUX = sys.platform.startswith("linux")
RESOLVE_SECONDS = 3.0  # a name server that is gone keeps getaddrinfo() busy for much longer
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # not on the search path of a plain user
ABOUT_PYTHON = (
    "import importlib.util as u, json, sys, sysconfig; "
    "print(json.dumps({'version': '.'.join(map(str, sys.version_info[:3])), 'venv': bool(u.find_spec('venv')), "
    "'headers': sysconfig.get_path('include')}))"
)


def node_facts(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of this node; sizes are bytes.

    `request`: home, python (of the ranks), base_python (makes their environment), mpirun (each may be empty for the
    default), and sudo (bool): whether sudo may be tried.
    """
    home = home_path(request["home"])
    python = os.path.expanduser(request["python"] or os.path.join(home, "pytorch", "bin", "python"))
    sudo = sudo_state(request["sudo"])
    return {
        "system": system(),
        "user": {"name": user_name(), "uid": os.getuid(), "sudo": sudo},
        "python": python_facts(os.path.expanduser(request["base_python"])),
        "host": host_facts(),
        "home": {"path": home, "loose": loose(home), **place(home)},
        "tmp": place(os.environ.get("TMPDIR") or "/tmp"),
        "shm": place("/dev/shm"),
        "limits": limits(),
        "memory": memory(),
        "ports": {"local_range": local_port_range(), "listening": listening()},
        "sshd": sshd_max_startups(sudo),
        "ssh": on_search_path("ssh"),
        "compiler": on_search_path("g++"),
        "backends": os.path.exists(os.path.join(home, "backends", "torchfleet-receipt.json")),
        "firewall": firewall(sudo),
        "rdma": names_in("/sys/class/infiniband"),
        "accelerators": gpus.survey("/", home),
        "wrappers": wrappers(home),
        "versions": versions(home, python, os.path.expanduser(request["mpirun"])),
        "networks": survey(home) if LINUX else None,
        "seat": seat(home) if LINUX else None,
    }


# --- reading and asking --------------------------------------------------------------------------------------------


def names_in(path: str) -> list[str]:
    """Return the names in a directory, or none where it is not there."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def program(name: str) -> str:
    """Return the path of a program, also of one that only root has on the search path, or an empty string."""
    found = [path for path in (f"{directory}/{name}" for directory in SBIN) if os.access(path, os.X_OK)]
    return on_search_path(name) or (found[0] if found else "")


def said_as_root(name: str, words: list[str], sudo: str) -> str:
    """Return what a program says to root, asked directly or through a sudo that wants no password; else nothing."""
    path = program(name)
    prefix = [] if os.getuid() == 0 else ["sudo", "-n"]
    return said([*prefix, path, *words]) if path and (not prefix or sudo == "yes") else ""


# --- the machine ---------------------------------------------------------------------------------------------------


def system(root: str = "/") -> dict[str, str]:
    """Return kernel, arch, libc, and the distribution as os-release(5) tells it."""
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


def user_name() -> str:
    """Return the name of the user we are, or the number where it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def sudo_state(may_try: bool) -> str:
    """Return root, yes, no (it asks for a password, or forbids), missing, or not tried: a try is logged, and mailed."""
    if os.getuid() == 0:
        return "root"
    if not may_try:
        return "not tried"
    if not on_search_path("sudo"):
        return "missing"
    try:
        done = subprocess.run(["sudo", "-n", "true"], capture_output=True, timeout=PROGRAM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "no"
    return "yes" if done.returncode == 0 else "no"


def python_facts(path: str) -> dict[str, Any]:
    """Return what is known of the interpreter that torch is installed with.

    path, version, venv (can it make environments), headers (are its C headers there).
    """
    path = path or sys.executable
    if path == sys.executable:  # which need not be started to be asked
        venv, headers = bool(importlib.util.find_spec("venv")), sysconfig.get_path("include")
        return {"path": path, "version": platform.python_version(), "venv": venv, "headers": has_headers(headers)}
    try:
        about = json.loads(said([path, "-c", ABOUT_PYTHON]))
        return {"path": path, **about, "headers": has_headers(about["headers"])}
    except (ValueError, KeyError, TypeError):
        return {"path": path, "version": "", "venv": False, "headers": False}


def has_headers(directory: str) -> bool:
    """Whether a directory has the headers of an interpreter."""
    return os.path.exists(os.path.join(directory, "Python.h"))


def host_facts(root: str = "/") -> dict[str, Any]:
    """Return what tells this machine from others. The machine id itself is confidential (machine-id(5)): a digest."""
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


# --- room and limits -----------------------------------------------------------------------------------------------


def place(path: str) -> dict[str, Any]:
    """Return room and rights where `path` is or would be, and which file system that is."""
    near = os.path.realpath(path)
    while not os.path.isdir(near) and near != "/":
        near = os.path.dirname(near)
    status = os.statvfs(near)
    source, kind = mount_of(near, text_of("/proc/self/mounts"))
    return {
        "near": near,
        "free": status.f_bavail * status.f_frsize,
        "size": status.f_blocks * status.f_frsize,
        "free_inodes": status.f_favail if status.f_files else None,  # None: this file system does not count them
        "writable": os.access(near, os.W_OK | os.X_OK),
        "read_only": bool(status.f_flag & os.ST_RDONLY),
        "noexec": bool(status.f_flag & os.ST_NOEXEC),
        "source": source,
        "kind": kind,
    }


def loose(path: str) -> list[dict[str, str]]:
    """Return the directories, from the top down to a path, that others can exchange: path, and why.

    `owner`: it belongs to somebody else than us and root. `everybody`: anybody may rename what is in it.
    """
    trusted = {0, os.getuid(), os.stat("/").st_uid}  # in a container the top may be nobody's
    found = []
    for each in ways_to(path):
        try:
            status = os.lstat(each)
        except OSError:  # it is not there yet
            continue
        if status.st_uid not in ({os.getuid()} if each == path else trusted):
            found.append({"path": each, "why": "owner"})
        elif not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            found.append({"path": each, "why": "everybody"})
    return found


def ways_to(path: str) -> list[str]:
    """Return a path and all above it, as it is written and as its links lead."""
    found = []
    for each in (path, os.path.realpath(path)):
        parts = each.rstrip("/").split("/")
        found += ["/".join(parts[:count]) or "/" for count in range(1, len(parts) + 1)]
    return sorted(set(found), key=len)


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Return source and type of the file system that holds a path, from the text of /proc/self/mounts."""
    best, found = "", ("", "")
    for line in mounts.splitlines():
        # The kernel writes a space in a name as \040 (proc_pid_mounts(5)).
        words = [re.sub(r"\\([0-7]{3})", lambda part: chr(int(part.group(1), 8)), word) for word in line.split()[:3]]
        if len(words) == 3 and len(words[1]) >= len(best) and (path + "/").startswith(words[1].rstrip("/") + "/"):
            best, found = words[1], (words[0], words[2])
    return found


def limits() -> dict[str, int | None]:
    """Return the limits of this session, the soft ones; None means unlimited.

    Of files the hard one: a program may raise its own to that, and 1024 is the soft one nearly everywhere.
    """
    kinds = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    found = {name: resource.getrlimit(kind)[name == "nofile"] for name, kind in kinds.items()}
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def memory(root: str = "/") -> dict[str, int | None]:
    """Return total, available and swap of the machine, and the least limit of our control groups (None: no limit)."""
    rows = re.findall(r"^(\w+):\s+(\d+) kB", text_of(os.path.join(root, "proc/meminfo")), re.MULTILINE)
    sizes = {name: int(size) << 10 for name, size in rows}
    return {
        "total": sizes.get("MemTotal", 0),
        "available": sizes.get("MemAvailable", 0),
        "swap": sizes.get("SwapTotal", 0),
        "limit": memory_limit(root),
    }


def memory_limit(root: str = "/") -> int | None:
    """Return the least memory limit from our control group up to the top (v2: memory.max, v1: limit_in_bytes)."""
    found = []
    for line in text_of(os.path.join(root, "proc/self/cgroup")).splitlines():
        _number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        while path:
            text = text_of(os.path.join(root, "sys/fs/cgroup", top, path.strip("/"), name)).strip()
            found += [int(text)] if text.isdigit() and int(text) < 1 << 60 else []
            path = path.rpartition("/")[0] if path != "/" else ""
    return min(found, default=None)


# --- network -------------------------------------------------------------------------------------------------------


def local_port_range(root: str = "/") -> list[int]:
    """Return the first and last port that outgoing connections take."""
    return [int(word) for word in text_of(os.path.join(root, "proc/sys/net/ipv4/ip_local_port_range")).split()]


def listening(root: str = "/") -> list[int]:
    """Return the ports in the range of jobs on which somebody listens (state 0A of /proc/net/tcp)."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in text_of(os.path.join(root, "proc/net", name)).splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == "0A":
                found.add(int(words[1].rpartition(":")[2], 16))
    return sorted(found.intersection(PORTS))


def sshd_max_startups(sudo: str, root: str = "/") -> dict[str, str]:
    """Return MaxStartups of the system's sshd and where it was read; empty where nobody can tell."""
    match = re.search(r"^maxstartups (\S+)", said_as_root("sshd", ["-T"], sudo), re.MULTILINE)
    if match:
        return {"max_startups": match.group(1), "from": "sshd -T"}
    path = os.path.join(root, "etc/ssh/sshd_config")
    if not os.access(path, os.R_OK):
        return {"max_startups": "", "from": ""}
    value = sshd_setting("maxstartups", path)
    return {"max_startups": value or "10:30:100", "from": path if value else "the default of sshd"}


def sshd_setting(name: str, path: str, depth: int = 0) -> str:
    """Return a global setting of sshd from its files: the first one counts, Include is followed (sshd_config(5))."""
    for line in text_of(path).splitlines():
        words = line.replace("=", " ", 1).split("#")[0].split()
        word = words[0].lower() if words else ""
        if word == "match":
            return ""
        if word == name and len(words) > 1:
            return words[1]
        if word == "include" and depth < 16:
            for pattern in words[1:]:
                for inner in sorted(glob.glob(os.path.join(os.path.dirname(path), pattern))):
                    value = sshd_setting(name, inner, depth + 1)
                    if value:
                        return value
    return ""


def firewall(sudo: str, root: str = "/") -> list[str]:
    """Return what hints at a firewall that drops what it does not know, as far as this user can see."""
    hints = []
    if re.search(r"^ENABLED=yes", text_of(os.path.join(root, "etc/ufw/ufw.conf")), re.MULTILINE):
        hints.append("ufw is enabled")
    groups = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")
    if any(os.path.isdir(os.path.join(root, group, "firewalld.service")) for group in groups):
        hints.append("firewalld runs")
    rules = said_as_root("nft", ["list", "chains"], sudo) or said_as_root("iptables", ["-S", "INPUT"], sudo)
    return hints + drops_input(rules)


def drops_input(rules: str) -> list[str]:
    """Return a hint if the text of `nft list chains` or `iptables -S INPUT` says that input is dropped by default."""
    chains = re.findall(r"hook input [^}]*", rules)
    dropped = any("policy drop" in chain for chain in chains) or "-P INPUT DROP" in rules
    return ["input is dropped by default"] if dropped else []
