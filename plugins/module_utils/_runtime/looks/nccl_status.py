# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asks NCCL's RAS service what it knows of a job: which ranks it reaches, and whose counts of collectives differ.

A thread of NCCL answers in each process since 2.24, also while the job hangs (NCCL docs, "RAS"). Several processes may
listen on one port, those of other jobs too, and the kernel picks one of them. So it is asked only where all who listen
are ranks of this job. What comes back is evidence for people: no verdict is made from it.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from typing import Iterable, NamedTuple

from ..types.evidence import NCCL_LINES_MOST
from ..types.forms import short

PORT = 28028  # NCCL docs, NCCL_RAS_ADDR
ADDRESS = re.compile(r"NCCL_RAS_ADDR=.*:(\d{1,5})\Z")
PROTOCOL = b"CLIENT PROTOCOL 2\n"
WAIT = b"TIMEOUT 1\n"  # seconds that NCCL waits for other processes: a whole number
STATUS = b"VERBOSE STATUS\n"
BYTES_MOST = 64 << 10
TABLE_BYTES, ENVIRONMENT_BYTES, DESCRIPTORS_MOST = 4 << 20, 1 << 20, 4096
LISTENS = "0A"  # state in /proc/net/tcp


class Listener(NamedTuple):
    """A socket of this machine that waits for connections."""

    inode: str
    address: str
    port: int


class Question:
    """A question that is answered beside a look, which does not wait for it."""

    def __init__(self, pids: Iterable[int], seconds: float) -> None:
        self.lines: list[str] = []
        self.until = time.monotonic() + seconds
        asked = self.until - seconds / 10  # what has come by then is in time
        self.thread = threading.Thread(target=self.ask, args=(list(pids), asked), daemon=True)
        self.thread.start()

    def ask(self, pids: list[int], until: float) -> None:
        try:
            self.lines = status_lines(pids, until)
        except (OSError, ValueError):  # nobody listens, or not for long
            pass

    def answer(self) -> list[str]:
        """Return the lines, none where there is no NCCL or no answer in time."""
        self.thread.join(max(0.0, self.until - time.monotonic()))
        return self.lines


def status_lines(pids: list[int], until: float) -> list[str]:
    """Return what the ranks' own NCCL tells, until a moment of the monotonic clock. OSError if they do not listen."""
    port = next((found for found in map(port_of, pids) if found), PORT)
    listeners = [row for row in listening() if row.port == port]
    if not listeners or not {row.inode for row in listeners} <= sockets_of(pids):
        return []
    with socket.create_connection((local(listeners[0].address), port), left(until)) as connection:
        connection.sendall(PROTOCOL)
        if not read_line(connection, until).upper().startswith(b"SERVER PROTOCOL "):
            return []
        connection.sendall(WAIT)
        if read_line(connection, until).strip().upper() != b"OK":
            return []
        connection.sendall(STATUS)
        text = read_rest(connection, until)
    return [short(line) for line in text.decode(errors="replace").splitlines()[:NCCL_LINES_MOST]]


def left(until: float) -> float:
    """Return the seconds until then. TimeoutError if there are none: of a socket, 0 means another thing."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def read_line(connection: socket.socket, until: float) -> bytes:
    """Return a line of an answer, or what came until the end. OSError."""
    found = b""
    while not found.endswith(b"\n") and len(found) < 1024:
        connection.settimeout(left(until))
        part = connection.recv(1)
        if not part:
            break
        found += part
    return found


def read_rest(connection: socket.socket, until: float) -> bytes:
    """Return what comes until the end, or in time. No more than BYTES_MOST."""
    found = b""
    try:
        while len(found) < BYTES_MOST:
            connection.settimeout(left(until))
            part = connection.recv(BYTES_MOST - len(found))
            if not part:
                break
            found += part
    except OSError:  # it is late: what is there counts
        pass
    return found


def port_of(pid: int) -> int | None:
    """Return the port that NCCL_RAS_ADDR of a process names, if it does."""
    for entry in bounded(f"/proc/{pid}/environ", ENVIRONMENT_BYTES).split("\0"):
        match = ADDRESS.match(entry)
        if match:
            return int(match[1])
    return None


def listening() -> list[Listener]:
    """Return all sockets of this machine's network that listen (proc(5), /proc/net/tcp)."""
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in bounded(f"/proc/net/{name}", TABLE_BYTES).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == LISTENS:
                address, _colon, port = words[1].rpartition(":")
                found.append(Listener(words[9], readable(address, family), int(port, 16)))
    return found


def readable(address: str, family: int) -> str:
    """Return an address of /proc/net/tcp as people write it: words of 32 bits in the machine's byte order."""
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def local(address: str) -> str:
    """Return where to connect to who listens there: all addresses of a machine means its loopback as well."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def sockets_of(pids: list[int]) -> set[str]:
    """Return the inodes of the sockets that processes have open, as far as they may be read."""
    found = set()
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")[:DESCRIPTORS_MOST]
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found


def bounded(path: str, most: int) -> str:
    """Return the text of a file, cut; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
