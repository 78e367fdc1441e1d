# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of ssh_mesh_keys about a node: its keys, addresses, user and the settings of its sshd."""

from __future__ import annotations

import glob
import ipaddress
import json
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import time
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution

from .keys import (
    NEXT,
    KeyFailed,
    current_key,
    locked,
    plain_key,
    strict_key,
)
from .shared import FORMER_DROP_IN, part_of

SSHD_CONFIG = "/etc/ssh/sshd_config"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
MOST_FILES = 8
MOST_ADDRESSES = 128  # reported addresses of a node; a node of Kubernetes may have thousands


class Request(TypedDict):
    """What is asked of a node."""

    name: str
    cluster: str
    home: str
    client: bool  # it logs in to others
    sshd: str  # system or own
    fresh: bool  # its keys are replaced


def survey(request: Request, make: bool) -> dict[str, object]:
    """Return the facts about this node; with `make` true, missing keys are created.

    Raise KeyFailed if the node cannot take part; the text says why.
    """
    user = pwd.getpwuid(os.getuid())
    directory = os.path.join(os.path.abspath(os.path.expanduser(request["home"])), "ssh")
    if make:
        make_private_directory(directory)
    own = os.path.join(directory, f"sshd-{request['name']}")
    settings = sshd_settings(SSHD_CONFIG)
    key, made = keep_key(os.path.join(directory, "id_ed25519"), request, make) if request["client"] else ("", False)
    own_key, host_made = os.path.join(own, "ssh_host_ed25519_key"), False
    if request["sshd"] == "own":
        host_key, host_made = keep_key(own_key, request, make)
        host_keys = [host_key] if host_key else []
    else:
        host_keys = system_host_keys(settings)
    return {
        "made": made or host_made,
        "user": user.pw_name,
        "directory": directory,
        "key": key,
        "host_keys": host_keys,
        "staged": request["sshd"] == "own" and os.path.exists(own_key + NEXT),
        "addresses": own_addresses(),
        "primary": primary_address(),
        "clock": time.time(),
        "version": ssh_version(),
        "sshd_path": shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SBIN}") or "",
        "limits": {name: (settings.get(name) or [""])[0] for name in ("maxstartups", "maxsessions")},
        "authorized_keys": authorized_keys_path(settings, user),
        "loose": loose_path(user.pw_dir),
        "service": service_kind(user.pw_name),
        "root_files": [path for path in root_files(request["cluster"]) if os.path.exists(path)],
        "tenant": other_tenant(directory, request["cluster"]),
        "others": other_clusters(request["cluster"])[:MOST_FILES],
    }


def keep_key(path: str, request: Request, make: bool) -> tuple[str, bool]:
    """Return the public key at `path` and whether it was created now. Nodes may share the directory, hence the lock."""
    comment = f"torchfleet {request['cluster']} {request['name']}"
    if not make:
        return current_key(path, comment, request["fresh"], make=False)
    make_private_directory(os.path.dirname(path))
    with locked(os.path.dirname(path)):
        return current_key(path, comment, request["fresh"], make=True)


def make_private_directory(path: str) -> None:
    """Create a directory with access for this user only. Raise KeyFailed if that fails."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            os.chmod(path, 0o700)
    except OSError as error:
        raise KeyFailed(f"{path}: {error.strerror}: it must be a directory that you may write to") from None


def root_files(cluster: str) -> list[str]:
    """Return the files that the role writes as root."""
    return [
        part_of(cluster),
        FORMER_DROP_IN.format(cluster),
        f"/etc/ssh/torchfleet-{cluster}",
        f"/etc/systemd/system/torchfleet-sshd-{cluster}.service",
    ]


def other_clusters(cluster: str) -> list[str]:
    """Return the drop-ins of other clusters that an older version wrote, which would hide ours."""
    return sorted(set(glob.glob(FORMER_DROP_IN.format("*"))) - {FORMER_DROP_IN.format(cluster)})


def other_tenant(directory: str, cluster: str) -> str:
    """Return the name of another cluster whose keys and files are in this directory; "" if there is none."""
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), "applied-*.json"))):
        try:
            with open(path) as file:
                name = json.load(file)["cluster"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if name != cluster:
            return str(name)
    return ""


def service_kind(user: str) -> str:
    """Return which systemd can keep an sshd of the user's own alive: "user" (it lingers), "system" (root's) or ""."""
    if not os.path.isdir("/run/systemd/system"):
        return ""
    lingers = os.path.exists(f"/var/lib/systemd/linger/{user}")
    return "user" if lingers and os.path.exists(f"/run/user/{os.getuid()}/systemd/private") else "system"


def ssh_version() -> list[int]:
    """Return OpenSSH's version as [major, minor]. KeyFailed without OpenSSH."""
    try:
        done = subprocess.run(["ssh", "-V"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except FileNotFoundError:
        raise KeyFailed(f"ssh is missing; as root: {distribution.install('ssh_client', distribution.here())}") from None
    found = re.search(rb"OpenSSH_(\d+)\.(\d+)", done.stdout)
    return [int(part) for part in found.groups()] if found else [0, 0]


# --- sshd's configuration -------------------------------------------------------------------------------------------


def sshd_settings(path: str) -> dict[str, list[str]]:
    """Return sshd's settings outside Match blocks by lower-case keyword, each with its values in order.

    The first value counts, and several HostKey lines add up (sshd_config(5)). `sshd -T` would tell the same, to root.
    What cannot be read is left out.
    """
    found: dict[str, list[str]] = {}
    try:
        with open(path, errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        words = line.split("#", 1)[0].replace("=", " ", 1).split(None, 1)
        if len(words) != 2:
            continue
        keyword, value = words[0].lower(), words[1].strip()
        if keyword == "match":
            break
        if keyword == "include":
            found.setdefault("include", []).append(value)
            for pattern in value.split():
                for inner in sorted(glob.glob(os.path.join(os.path.dirname(SSHD_CONFIG), pattern))):
                    for name, values in sshd_settings(inner).items():
                        found.setdefault(name, []).extend(values)
        else:
            found.setdefault(keyword, []).append(value)
    return found


def system_host_keys(settings: dict[str, list[str]]) -> list[str]:
    """Return the public host keys of the system's sshd, best first. KeyFailed if there is none to be read."""
    paths = settings.get("hostkey") or sorted(glob.glob("/etc/ssh/ssh_host_*_key"))
    found = []
    for path in paths:
        try:
            with open(path.strip('"') + ".pub") as file:
                found.append(strict_key(plain_key(file.read())))
        except (OSError, KeyFailed):
            continue
    if not found:
        looked = ", ".join(paths) or "/etc/ssh/ssh_host_*_key"
        server = distribution.install("ssh_server", distribution.here())
        raise KeyFailed(f"no public host key is readable ({looked}); as root: {server}; or ssh_mesh_sshd: own")
    return sorted(set(found), key=lambda key: (not key.startswith("ssh-ed25519 "), key))


def authorized_keys_path(settings: dict[str, list[str]], user: pwd.struct_passwd) -> str:
    """Return the file in which sshd looks for this user's keys. KeyFailed if it looks in none."""
    first = settings.get("authorizedkeysfile", [".ssh/authorized_keys"])[0].split()[0].strip('"')
    if first == "none":
        return ""
    for token, value in (("%%", "%"), ("%h", user.pw_dir), ("%u", user.pw_name), ("%U", str(user.pw_uid))):
        first = first.replace(token, value)
    return os.path.join(user.pw_dir, first)


def loose_path(home: str) -> str:
    """Return a directory that other users can write to, for which sshd (StrictModes) refuses all keys, or ""."""
    for path in (home, os.path.join(home, ".ssh")):
        try:
            if stat.S_IMODE(os.stat(path).st_mode) & 0o022:
                return path
        except OSError:
            continue
    return ""


# --- addresses ------------------------------------------------------------------------------------------------------


def own_addresses() -> list[str]:
    """Return the addresses of this node's network interfaces, without loopback and link-local ones."""
    found = [ipaddress.ip_address(text) for text in [*addresses_4(), *addresses_6()]]
    kept = {address for address in found if not (address.is_loopback or address.is_link_local)}
    return [str(address) for address in sorted(kept, key=lambda one: (one.version, one))][:MOST_ADDRESSES]


def addresses_4() -> list[str]:
    """Return all local IPv4 addresses, from the kernel's routing trie, which needs no program."""
    try:
        with open("/proc/net/fib_trie") as file:
            return re.findall(r"\|-- (\S+)\s+/32 host LOCAL", file.read())
    except OSError:
        return []


def addresses_6() -> list[str]:
    """Return all local IPv6 addresses."""
    try:
        with open("/proc/net/if_inet6") as file:
            return [str(ipaddress.IPv6Address(int(line.split()[0], 16))) for line in file]
    except OSError:
        return []


def primary_address() -> str:
    """Return the address that packets to elsewhere leave from. Connecting a datagram socket sends nothing."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""
