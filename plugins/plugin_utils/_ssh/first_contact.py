# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Host keys that the controller's own ssh does not know yet: they are shown, and saved when the user says so.

ssh itself fetches each key, into a file of its own: so it goes the same way as Ansible's (jump hosts, ports, aliases),
and nothing is trusted. Sources: ssh(1), ssh_config(5), ssh-keygen(1); sshconnect.c of OpenSSH 9.2.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import (
    KEY_FIELDS,
    KeyFailed,
    fingerprint,
    strict_key,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.proof import HUNG_UP
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

AT_ONCE = 8  # fewer than an sshd or bastion accepts by default (MaxStartups 10)
ATTEMPTS = 5
PATIENCE = 60.0  # seconds for one login
# Before the user's options: ssh takes the first value of each.
LOOK_ONLY = (
    *("ControlMaster=no", "ControlPath=none", "BatchMode=yes", "PreferredAuthentications=none", "CheckHostIP=no"),
    *("StrictHostKeyChecking=accept-new", "GlobalKnownHostsFile=/dev/null", "HashKnownHosts=no", "UpdateHostKeys=no"),
)
ON_THE_CONSOLE = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"


@dataclass(frozen=True)
class Place:
    """Where ssh looks for the key of a host: under which name, in which files; the first file is the user's."""

    name: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A host key that is not known. `was`: those that it would replace."""

    node: str
    place: Place
    key: str
    was: tuple[str, ...] = ()


# --- what there is --------------------------------------------------------------------------------------------------


def settings_of(text: str) -> dict[str, str]:
    """Return ssh's settings from the output of `ssh -G`, by lower-case keyword."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name.lower(): value.strip() for name, _space, value in pairs}


def place_of(settings: Mapping[str, str]) -> Place | None:
    """Return where ssh looks for the host's key; None if it asks nobody, or another program."""
    if settings.get("stricthostkeychecking", "ask") not in ("yes", "true", "ask"):
        return None
    if settings.get("knownhostscommand", "none") != "none" or settings.get("verifyhostkeydns") in ("yes", "true"):
        return None
    name, port = settings.get("hostname", "").lower(), settings.get("port", "22")
    name = settings.get("hostkeyalias") or (name if port == "22" else f"[{name}]:{port}")
    files = f"{settings.get('userknownhostsfile', '')} {settings.get('globalknownhostsfile', '')}".split()
    return Place(name, tuple(os.path.expanduser(path) for path in files))


def known_keys(place: Place) -> list[str]:
    """Return the lines of known_hosts about a host, without its name."""
    found = []
    for path in place.files:
        if os.path.isfile(path):
            done = subprocess.run(["ssh-keygen", "-F", place.name, "-f", path], capture_output=True, check=False)
            lines = done.stdout.decode(errors="replace").splitlines()
            found += [" ".join(line.split()[1:3]) for line in lines if line.strip() and not line.startswith("#")]
    return found


def shown_key(words: Sequence[str], address: str, place: Place) -> str:
    """Return the key that the host shows; "" if it shows none. `words`: ssh with its options, as Ansible calls it."""
    with tempfile.TemporaryDirectory(prefix="torchfleet-") as directory:
        file = Path(directory, "known_hosts")
        options = [word for option in (*LOOK_ONLY, f'UserKnownHostsFile="{file}"') for word in ("-o", option)]
        argv = [words[0], *options, *words[1:], "--", address, "true"]
        for attempt in range(1, ATTEMPTS):
            errors = said(argv)
            if file.exists() or not HUNG_UP.search(errors):
                break
            time.sleep(attempt * random.uniform(0.5, 1.5))
        text = file.read_text() if file.exists() else ""
    for line in text.splitlines():
        name, _space, key = line.partition(" ")
        if name.lower() == place.name.lower():  # ssh writes small letters
            try:
                return strict_key(" ".join(key.split()[:2]))
            except KeyFailed:
                continue
    return ""


def said(argv: Sequence[str]) -> str:
    """Run ssh without a terminal, on which it would ask; return its errors."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stderr.decode(errors="replace")


def look(node: str, words: Sequence[str], address: str, replaced: bool) -> Row | None:
    """Return the unknown key of a node; None if its key is known, or nobody can tell (preflight says why)."""
    try:
        done = subprocess.run([*words, "-G", "--", address], capture_output=True, check=False)
        place = place_of(settings_of(done.stdout.decode(errors="replace")))
        known = known_keys(place) if place else []
        if done.returncode or place is None or (known and not replaced):
            return None
        key = shown_key(words, address, place)
    except OSError:  # no ssh here
        return None
    return Row(node, place, key, tuple(known)) if key and key not in known else None


def unknown(contacts: Mapping[str, tuple[Sequence[str], str]], replaced: Collection[str]) -> list[Row]:
    """Return the unknown host keys. `contacts`: by node, ssh with its options and the address."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda node: look(node, *contacts[node], node in replaced), contacts)
        return [row for row in found if row is not None]


# --- what is shown, and saved ---------------------------------------------------------------------------------------


def digest(rows: Sequence[Row]) -> str:
    """Return the digest of a table, which the user repeats: so what is saved is what was shown."""
    lines = sorted(f"{row.node} {row.place.name} {row.place.files[:1]} {row.key} {row.was}" for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def table(rows: Sequence[Row]) -> list[str]:
    """Return the unknown keys as lines with aligned columns."""
    cells = [("node", "known as", "type", "fingerprint")]
    for row in rows:
        old = [fingerprint(key) for key in row.was if key.partition(" ")[0] in KEY_FIELDS]
        ends = f"  replaces {', '.join(old)}" if row.was else ""
        cells.append((row.node, row.place.name, row.key.split()[0], f"{fingerprint(row.key)}{ends}"))
    widths = [max(len(cell[column]) for cell in cells) for column in range(3)]
    return ["  ".join([*map(str.ljust, cell[:3], widths), cell[3]]) for cell in cells]


def save(rows: Sequence[Row]) -> list[str]:
    """Save the keys in the user's known_hosts; return the files. Raise InputError for one that cannot be written."""
    for row in rows:
        path = (row.place.files or ("none",))[0]
        if not path.startswith("/") or path.startswith("/dev/") or "%" in path:
            by_hand = f"save the key of {row.node} by hand: {row.place.name} {row.key}"
            raise InputError("UserKnownHostsFile", path, by_hand)
    for row in rows:
        try:
            save_one(row, Path(row.place.files[0]))
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError("UserKnownHostsFile", row.place.files[0], f"it cannot be written: {error}") from None
    return list(dict.fromkeys(row.place.files[0] for row in rows))


def save_one(row: Row, file: Path) -> None:
    """Put a key into known_hosts, in place of those that it replaces."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if row.was and file.exists():
        subprocess.run(["ssh-keygen", "-R", row.place.name, "-f", str(file)], capture_output=True, check=True)
    ends = not file.exists() or file.read_bytes()[-1:] in (b"", b"\n")
    with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as stream:
        stream.write(f"{'' if ends else chr(10)}{row.place.name} {row.key}\n")
