# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""SSH keys and certificates: making keys with ssh-keygen, reading what is in public keys and certificates."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import struct
import subprocess
from typing import Iterator, NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution

NEXT = ".next"  # a new key that is not in use yet: ssh_mesh_apply activates it
CERTIFICATE = "-cert-v01@openssh.com"
LONGEST_KEY = 8192  # characters: RSA of 16384 bits has 2800
# How many fields the public key itself has within a certificate (OpenSSH, PROTOCOL.certkeys).
KEY_FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2, **{f"ecdsa-sha2-nistp{bits}": 2 for bits in (256, 384, 521)}}


class KeyFailed(Exception):
    """A key could not be created or read; the text is for the user."""


class Certificate(NamedTuple):
    """The fields of an OpenSSH certificate. Times are seconds since 1970."""

    key: str  # the public key that it certifies, as "type base64"
    authority: str  # the public key that signed it
    is_host: bool
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    options: dict[str, str]
    extensions: dict[str, str]


def plain_key(text: str) -> str:
    """Return "type base64" of a public key, without its comment. Raise KeyFailed for anything else."""
    words = text.split()
    try:
        if _Reader(base64.b64decode(words[1], validate=True)).text() == words[0]:
            return " ".join(words[:2])
    except (IndexError, ValueError, struct.error):
        pass
    raise KeyFailed(f"this is not a public SSH key: {text[:60]!r}")


def strict_key(text: object) -> str:
    """Return "type base64" of a public key that may stand in ssh's files, from just that. KeyFailed for all else.

    Its type is one of KEY_FIELDS, and its data are the fields of that type and no more.
    """
    if isinstance(text, str) and len(text) <= LONGEST_KEY and text.count(" ") == 1:
        kind, data = text.split(" ")
        try:
            reader = _Reader(base64.b64decode(data, validate=True))
            fields = [reader.string() for _field in range(1 + KEY_FIELDS[kind])]
            if not reader.data and fields[0] == kind.encode() and f"{kind} {_encode(fields)}" == text:
                return text
        except (KeyError, ValueError, struct.error):
            pass
    raise KeyFailed(f"this is not a public SSH key: {str(text)[:60]!r}")


def fingerprint(key: str) -> str:
    """Return the fingerprint of a public key as ssh shows it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class _Reader:
    """Takes the fields of SSH's binary form (RFC 4251, section 5) one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        if count > len(self.data):
            raise ValueError("it ends too early")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, layout: str) -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def string(self) -> bytes:
        return self.take(self.number(">I"))

    def text(self) -> str:
        return self.string().decode()

    def pairs(self) -> dict[str, str]:
        """Return a nested list of options; the value of an option is a string within a string."""
        inner, found = _Reader(self.string()), {}
        while inner.data:
            name, value = inner.text(), _Reader(inner.string())
            found[name] = value.text() if value.data else ""
        return found

    def texts(self) -> tuple[str, ...]:
        inner, found = _Reader(self.string()), []
        while inner.data:
            found.append(inner.text())
        return tuple(found)


def read_certificate(text: str) -> Certificate:
    """Return what a certificate says (OpenSSH, PROTOCOL.certkeys). KeyFailed if it is none."""
    try:
        blob = base64.b64decode(text.split()[1], validate=True)
        reader = _Reader(blob)
        kind = reader.text()
        bare = kind[: -len(CERTIFICATE)]
        reader.string()  # nonce
        key = [reader.string() for _field in range(KEY_FIELDS[bare])]
        reader.number(">Q")  # serial
        is_host = reader.number(">I") == 2
        reader.text()  # key id
        principals, after, before = reader.texts(), reader.number(">Q"), reader.number(">Q")
        options, extensions = reader.pairs(), reader.pairs()
        reader.string()  # reserved
        authority = reader.string()
    except (IndexError, KeyError, ValueError, struct.error):
        raise KeyFailed("this is not an SSH certificate") from None
    return Certificate(
        f"{bare} {_encode([bare.encode(), *key])}",
        f"{_Reader(authority).text()} {base64.b64encode(authority).decode()}",
        is_host,
        principals,
        after,
        before,
        options,
        extensions,
    )


def _encode(fields: list[bytes]) -> str:
    return base64.b64encode(b"".join(struct.pack(">I", len(field)) + field for field in fields)).decode()


@contextlib.contextmanager
def locked(directory: str) -> Iterator[None]:
    """Hold a directory's lock: nodes may share a home, and two playbooks may run at once."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def ssh_keygen(arguments: list[str], directory: str | None = None) -> str:
    """Run ssh-keygen and return what it printed. KeyFailed with its last words."""
    try:
        done = subprocess.run(
            ["ssh-keygen", *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except FileNotFoundError:
        raise KeyFailed(
            f"ssh-keygen is missing; as root: {distribution.install('ssh_client', distribution.here())}"
        ) from None
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        raise KeyFailed("; ".join(text.split("\n")).strip("; ") or f"ssh-keygen ended with {done.returncode}")
    return text


def make_key(path: str, comment: str) -> None:
    """Make an ed25519 key pair without a passphrase. It is whole or not there."""
    unfinished = f"{path}.{os.getpid()}"
    ssh_keygen(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", unfinished])
    os.replace(f"{unfinished}.pub", f"{path}.pub")
    os.replace(unfinished, path)


def current_key(path: str, comment: str, fresh: bool, make: bool) -> tuple[str, bool]:
    """Return the public key that `path` will have, and whether it had to be made.

    A new key has another name until ssh_mesh_apply activates it, so that a refused or interrupted run does not break
    a working mesh. `fresh` creates a new key even if one is in use. With `make` false nothing is created, and the key
    may be "".
    """
    made = False
    if (fresh or not os.path.exists(path)) and not os.path.exists(path + NEXT) and make:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        make_key(path + NEXT, comment)
        made = True
    for candidate in (path + NEXT, path):
        if os.path.exists(candidate):
            # From the private key, because the public file may be missing or wrong.
            return plain_key(ssh_keygen(["-y", "-P", "", "-f", candidate])), made
    return "", made
