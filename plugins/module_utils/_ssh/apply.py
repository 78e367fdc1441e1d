# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sets up a node's part of the SSH mesh, in steps: some as the user, some as root."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
from functools import partial
from typing import Callable

from . import shared
from .files import (
    MeshFailed,
    promote,
    put,
    set_block,
    take_away,
)
from .sshd import (
    UNITS,
    OwnSshd,
    drop_in_refusal,
    refusal,
    reload_system,
    require_include,
    require_no_authority,
)
from .work import RootStep, UserStep, Work


def apply(cluster: str, work: Work, dry_run: bool) -> list[str]:
    """Do the work from node_work() of plugin_utils/_ssh/files.py, and return the changes as texts.

    Raise MeshFailed if it fails.
    """
    changes: list[str] = []
    for step in work["steps"]:
        if step["by"] == "root":
            changes += in_words(partial(apply_roots, step, dry_run))
        else:
            changes += as_user(work["user"], partial(in_words, partial(apply_mine, cluster, step, dry_run)))
    if work["record"] and not dry_run:
        as_user(work["user"], partial(in_words, partial(remember, cluster, work)))
    return changes


def remember(cluster: str, work: Work) -> list[str]:
    """Store the digest of the work for applied(). This does not count as a change."""
    put(work["record"], json.dumps({"cluster": cluster, "work": work}), 0o600, dry_run=False)
    return []


def applied(record: str) -> str:
    """Return the digest of the last work on this node, if all of it is still in place."""
    try:
        with open(record) as file:
            there = json.load(file)
        return "" if apply(there["cluster"], there["work"], dry_run=True) else digest(there["work"])
    except (OSError, ValueError, LookupError, TypeError, MeshFailed):  # the work is done again, and reports the error
        return ""


def digest(work: Work) -> str:
    """Return the digest of a node's work."""
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


def in_words(action: Callable[[], list[str]]) -> list[str]:
    """Call a function and turn an OSError into MeshFailed."""
    try:
        return action()
    except OSError as error:
        # The name of the temporary file would confuse users.
        path = re.sub(r"\.\d+\.new$", "", str(error.filename or "a file"))
        raise MeshFailed(f"{path} cannot be written: {error.strerror}") from None


def as_user(name: str, action: Callable[[], list[str]]) -> list[str]:
    """Call a function as another user than this process's: root (Ansible's become) then uses a child process.

    So root never opens a file in a user's home.
    """
    user = pwd.getpwnam(name)
    if os.geteuid() == user.pw_uid:
        return action()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        told: dict[str, object] = {}
        try:
            os.initgroups(name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            os.environ.update(HOME=user.pw_dir, USER=name, LOGNAME=name)
            told = {"told": action()}
        except BaseException as error:  # any error: a child that returned would repeat the parent's work
            told = {"failed": str(error) if isinstance(error, MeshFailed) else repr(error)}
        os.write(send, json.dumps(told).encode())
        os._exit(0)
    os.close(send)
    with open(receive) as file:
        text = file.read()
    os.waitpid(child, 0)
    answer = json.loads(text or "{}")
    if "told" not in answer:
        raise MeshFailed(answer.get("failed", f"the part that runs as {name} ended early"))
    return list(answer["told"])


def apply_mine(cluster: str, work: UserStep, dry_run: bool) -> list[str]:
    """Write the user's files and keep an sshd of the user's own."""
    changes = [f"{key} activated" for key in work["promote"] if promote(key, dry_run)]
    for path, text in work["files"].items():
        check = refusal if path.endswith("/sshd_config") else None
        if put(path, text, 0o600, dry_run, check):
            changes.append(f"{path} written")
    block = work["authorized_keys"]
    if block["path"] and set_block(block["path"], cluster, block["lines"], dry_run):
        changes.append(f"{block['path']} changed")
    changes += OwnSshd(work["sshd"], dry_run).keep()
    return [*changes, *(f"{path} removed" for path in work["absent"] if take_away(path, dry_run))]


def apply_roots(work: RootStep, dry_run: bool) -> list[str]:
    """Write root's files: the cluster's part of the system's sshd, or the unit of the user's own."""
    is_shared = any(path.startswith(shared.PLACE) for path in work["files"])
    if is_shared:
        require_include(shared.DROP_IN, "ssh_mesh_become")
        if any(json.loads(text)["user_ca"] for path, text in work["files"].items() if path.endswith(".json")):
            require_no_authority("ssh_mesh_become")
        if not dry_run:
            shared.make_directories()
    with shared.alone(dry_run):
        return write_roots(work, dry_run)


def write_roots(work: RootStep, dry_run: bool) -> list[str]:
    """Write root's files, and make the programs that read them do so. Other clusters' runs wait meanwhile."""
    changes = [f"{path} written" for path, text in work["files"].items() if put(path, text, 0o644, dry_run)]
    changes += shared.compose(work["absent"], dry_run, drop_in_refusal)
    unit = os.path.join(UNITS, work["sshd"]["unit"])
    if unit in work["absent"] and os.path.exists(unit):
        service = OwnSshd(work["sshd"], dry_run)
        service.drop_unit(["systemctl"], unit)
        changes += service.changes
    gone = [path for path in work["absent"] if path != unit and take_away(path, dry_run)]
    changes += [f"{path} removed" for path in gone]
    shared.tidy_up(dry_run)
    if work["sshd"]["kind"] == "system":
        service = OwnSshd(work["sshd"], dry_run)
        service.run_unit(["systemctl"], f"{unit} written" in changes)
        changes += service.changes
    read_by_system = [shared.DROP_IN, *(path for path in work["files"] if path.startswith(shared.PLACE))]
    return changes + reload_system(read_by_system, any(path.startswith("/etc/ssh/") for path in gone), dry_run)
