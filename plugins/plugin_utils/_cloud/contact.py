# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The first contact with the instances of a cluster: nothing is trusted that was not pinned before.

Each instance got a one-time host key in its user data, which is pinned under the node's name before it exists. Over
that connection it offers a key that it made itself, which is pinned too; then it takes that, a new connection proves
it, and the one-time key is forgotten. A `known_hosts` with a one-time key in it says that this is not done yet.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._cloud import first_contact
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import KeyFailed, strict_key

from .errors import CloudError
from .user_data import USER

AT_ONCE = 8
BOOT_SECONDS = 600.0  # the largest instances boot in minutes
LOGIN_SECONDS = 300.0  # cloud-init waits for the network's package sources, which may be slow
RETRY_SECONDS = 2.0
MOST_BYTES = 65536  # of an answer
ONE_TIME = "one-time"  # comment of a key in known_hosts (sshd(8): whatever follows the key)


@dataclass(frozen=True)
class Pin:
    """A host key that is trusted for a node, at the addresses that the node was known to have."""

    node: str
    key: str
    one_time: bool
    addresses: tuple[str, ...] = field(default=(), compare=False)


def pins_in(text: str) -> list[Pin]:
    """Return what a known_hosts of ours has; the node is the first name of a line."""
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    found = [(row[0].split(","), " ".join(row[1:3]), ONE_TIME in row[3:]) for row in rows if len(row) > 2]
    return [Pin(names[0], key, one_time, tuple(names[1:])) for names, key, one_time in found]


def pins_text(pins: Iterable[Pin], addresses: Mapping[str, Sequence[str]]) -> str:
    """Return known_hosts: each key under the node's name and all its addresses. `addresses`: those that changed."""
    rows = [
        f"{','.join([pin.node, *addresses.get(pin.node, pin.addresses)])} {pin.key}{f' {ONE_TIME}' * pin.one_time}"
        for pin in pins
    ]
    return "".join(f"{row}\n" for row in rows)


def one_time_key() -> tuple[str, str]:
    """Return a new private and public host key. They are in no file when this is over."""
    with tempfile.TemporaryDirectory(prefix="torchfleet-") as place:
        path = Path(place, "key")
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        return path.read_text(), " ".join(path.with_suffix(".pub").read_text().split()[:2])


@dataclass(frozen=True)
class Answer:
    """What a node said: its key, or why it has none. `said` is false for one that let nobody in."""

    said: bool
    key: str = ""
    error: str = ""


@dataclass(frozen=True)
class Contact:
    """A node to be met: its address, and the directory with the private key."""

    node: str
    address: str
    directory: Path

    def ssh(self, trusted: Path, *words: str) -> list[str]:
        """Return ssh's words. It trusts the keys in this file and nothing else."""
        options = ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", f"HostKeyAlias={self.node}"]
        options += ["GlobalKnownHostsFile=/dev/null", "HostKeyAlgorithms=ssh-ed25519", "ConnectTimeout=5"]
        options += ["ServerAliveInterval=5", "ServerAliveCountMax=3", "UpdateHostKeys=no", "ControlPath=none"]
        options += [f'UserKnownHostsFile="{trusted}"']
        argv = ["ssh", "-F", "none", "-i", str(self.directory / "key"), "-l", USER]
        argv += [part for option in options for part in ("-o", option)]
        return [*argv, "--", self.address, "sudo", "-n", "python3", "-I", "-", *words]

    def ask(self, pins: Sequence[Pin], *words: str, program: str = first_contact.__file__) -> Answer:
        """Return what a program of ours says there, or ssh's last line if the node lets nobody in or has another key.

        `program`: its file here, whose text is sent to Python there with these words.
        """
        with tempfile.TemporaryDirectory(prefix="torchfleet-") as place:
            trusted, errors = Path(place, "known_hosts"), Path(place, "errors")
            trusted.write_text(pins_text([pin for pin in pins if pin.node == self.node], {}))
            argv = ["timeout", str(LOGIN_SECONDS), *self.ssh(trusted, *words)]
            with (
                open(program) as text,
                open(errors, "wb") as told,
                subprocess.Popen(argv, stdin=text, stdout=subprocess.PIPE, stderr=told) as process,
            ):
                said = process.stdout.read(MOST_BYTES) if process.stdout else b""
            if said:
                return answer_in(self.node, said)
            return Answer(False, error=last_line(errors.read_bytes()[-MOST_BYTES:]))


def last_line(said: bytes) -> str:
    """Return the last line of what a program said, without control characters."""
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return "".join(character for character in lines[-1] if character.isprintable())[:300] if lines else ""


def answer_in(node: str, said: bytes) -> Answer:
    """Return a checked answer. CloudError if it is not a line of our programs: the image may print more."""
    try:
        found = json.loads(said.decode())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise CloudError("Unreadable", f"{node} did not answer with a line of JSON but", last_line(said))
    return Answer(True, found.get("key", ""), found.get("error", ""))


def meet(contact: Contact, pins: Sequence[Pin], note: Callable[[Pin], None]) -> Pin:
    """Return the key that the node made itself, when a connection has proven it. `note` is told of it before that."""
    deadline = time.monotonic() + BOOT_SECONDS
    answer = patiently(contact, pins, "offer", deadline)
    try:
        new = Pin(contact.node, strict_key(answer.key), False)
    except KeyFailed as error:
        raise CloudError("FirstContact", contact.node, answer.error or str(error)) from None
    note(new)
    patiently(contact, [*pins, new], "take", deadline)
    patiently(contact, [new], "take", deadline)
    return new


def patiently(contact: Contact, pins: Sequence[Pin], word: str, deadline: float) -> Answer:
    """Return what a node says, when it has booted. CloudError if it has not said anything until the deadline."""
    while True:
        answer = contact.ask(pins, word)
        if answer.said:
            return answer
        if time.monotonic() > deadline:
            where = f"{contact.node} ({contact.address}) lets nobody in after {BOOT_SECONDS:.0f} s"
            advice = "is cluster_ssh_from this controller's address? Type the same to go on, or -e cluster_state=absent"
            raise CloudError("NoLogin", where, f"{answer.error}; {advice}")
        time.sleep(RETRY_SECONDS)


def meet_all(contacts: Sequence[Contact], pins: Sequence[Pin], save: Callable[[Sequence[Pin]], object]) -> None:
    """Have all nodes change their one-time keys. `save` has every pin whenever one changes, so that it can go on."""
    known, lock = list(pins), threading.Lock()

    def change(add: Pin | None, drop: Callable[[Pin], bool]) -> None:
        with lock:
            known[:] = [pin for pin in known if not drop(pin) and pin != add] + ([add] if add else [])
            save(tuple(known))

    def one(contact: Contact) -> None:
        mine = [pin for pin in pins if pin.node == contact.node]
        new = meet(contact, mine, lambda pin: change(pin, lambda _pin: False))
        change(new, lambda pin: pin.node == contact.node)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, contacts))
