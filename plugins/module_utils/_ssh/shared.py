# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The system's sshd, which several clusters and users may share. Each has a part, a file of root's; all together make:

40-torchfleet.conf, the drop-in: sshd takes the first value of a setting, so two drop-ins would hide each other.
users/<user>/user_ca.pub: the authorities of all clusters of this user. sshd takes one such file for a user.
users/<user>/principals: whose certificates are good for this user.

Sources: sshd_config(5), servconf.c and auth2-pubkey.c of OpenSSH 9.2.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
from typing import Iterator

from .files import Check, MeshFailed, put, take_away
from .work import Part

PLACE = "/etc/ssh/torchfleet"
LOCK = "/run/torchfleet-sshd.lock"
DROP_IN = "/etc/ssh/sshd_config.d/40-torchfleet.conf"
FORMER_DROP_IN = "/etc/ssh/sshd_config.d/40-torchfleet-{}.conf"  # until version 0.5, of one cluster
MANAGED = "# Written by Ansible (torchfleet.cluster.ssh_mesh), which also overwrites it."


def part_of(cluster: str) -> str:
    """Return the file with what a cluster needs."""
    return os.path.join(PLACE, "clusters", f"{cluster}.json")


def host_certificate_of(cluster: str) -> str:
    """Return the file with the certificate of this node's host key for a cluster."""
    return os.path.join(PLACE, "clusters", f"{cluster}-host-cert.pub")


def former_files(cluster: str) -> list[str]:
    """Return the files that older versions wrote for a cluster, each directory after its content."""
    place = f"/etc/ssh/torchfleet-{cluster}"
    return [FORMER_DROP_IN.format(cluster), f"{place}/user_ca.pub", f"{place}/host-cert.pub", place]


def startups(least: int) -> str:
    """Return sshd's MaxStartups that drops no login below this number at once."""
    return f"{least}:30:{2 * least}"


def parts_here(leaving: list[str]) -> list[Part]:
    """Return the parts of all clusters but those whose files leave. Raise MeshFailed for a damaged one."""
    found = []
    for path in sorted(glob.glob(os.path.join(PLACE, "clusters", "*.json"))):
        if path in leaving:
            continue
        try:
            with open(path) as file:
                found.append(json.load(file))
            composed(found)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise MeshFailed(f"{path} is damaged: remove it, and run setup.yml of that cluster again") from None
    return found


def composed(parts: list[Part]) -> dict[str, str]:
    """Return the files that all parts together make by path, the drop-in last. Pure."""
    if not parts:
        return {}
    users = sorted({part["user"] for part in parts if part["user_ca"]})
    files = {}
    for user in users:
        place = os.path.join(PLACE, "users", user)
        theirs = [part for part in parts if part["user"] == user and part["user_ca"]]
        files[f"{place}/user_ca.pub"] = "".join(f"{part['user_ca']}\n" for part in theirs)
        files[f"{place}/principals"] = "".join(f"{line}\n" for part in theirs for line in part["principals"])
    return {**files, DROP_IN: drop_in(parts, users)}


def drop_in(parts: list[Part], users: list[str]) -> str:
    """Return the drop-in. It removes no existing way to log in."""
    exempt = dict.fromkeys(source for part in parts for source in part["exempt"])
    lines = [MANAGED, f"MaxStartups {startups(sum(part['startups'] for part in parts))}"]
    lines.append(f"MaxSessions {sum(part['sessions'] for part in parts)}")
    if exempt:
        lines.append(f"PerSourcePenaltyExemptList {','.join(exempt)}")
    lines += [f"HostCertificate {part['host_certificate']}" for part in parts if part["host_certificate"]]
    for user in users:
        place = os.path.join(PLACE, "users", user)
        lines.append(f"Match User {user}")
        lines.append(f"    TrustedUserCAKeys {place}/user_ca.pub")
        lines.append(f"    AuthorizedPrincipalsFile {place}/principals")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def alone(dry_run: bool) -> Iterator[None]:
    """Lock out runs for other clusters. Only root may open the lock: another user would hold it for ever."""
    if dry_run:
        yield
        return
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def make_directories() -> None:
    """Create the directories, which sshd enters as each user."""
    for path in (PLACE, os.path.join(PLACE, "clusters"), os.path.join(PLACE, "users")):
        make_open(path)


def make_open(path: str) -> None:
    """Create a directory that everybody may enter, whatever the umask."""
    if not os.path.isdir(path):
        os.mkdir(path)
        os.chmod(path, 0o755)


def compose(leaving: list[str], dry_run: bool, check: Check) -> list[str]:
    """Write the files that all parts make, remove those that none makes any more, and return the changes.

    `leaving`: paths of parts that are removed next. `check`: as of put(), for the drop-in.
    """
    if not os.path.isdir(PLACE):
        return []
    changes, files = [], composed(parts_here(leaving))
    for path, text in files.items():
        if not dry_run and path != DROP_IN:
            make_open(os.path.dirname(path))
        if put(path, text, 0o644, dry_run, check if path == DROP_IN else None):
            changes.append(f"{path} written")
    there = [DROP_IN, *sorted(glob.glob(os.path.join(PLACE, "users", "*", "*")))]
    gone = [path for path in there if path not in files and take_away(path, dry_run)]
    return changes + [f"{path} removed" for path in gone]


def tidy_up(dry_run: bool) -> None:
    """Remove directories that became empty."""
    users = sorted(glob.glob(os.path.join(PLACE, "users", "*")))
    for path in (*users, os.path.join(PLACE, "users"), os.path.join(PLACE, "clusters"), PLACE):
        take_away(path, dry_run)
