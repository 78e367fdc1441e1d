# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Secrets on a node: kept in the supervisor's memory, handed to the ranks over a Unix socket, written to no file."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from typing import Callable, Iterable, Mapping

SOCKET = "secrets"  # in the job directory, which is 0700
TAKE_SECONDS = 5.0  # for a rank to take what it asked for
ANSWER_SECONDS = 30.0  # for a busy node's supervisor to hand them out
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


class Keeper:
    """Hands the secrets to each process of this user that asks, until it is closed."""

    def __init__(self, directory: str, secrets: Mapping[str, str]) -> None:
        """Open the socket. OSError."""
        self.path = os.path.join(directory, SOCKET)
        self.words = json.dumps(dict(secrets)).encode()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        through_directory(directory, self.listener.bind)
        self.listener.listen(1024)

    def start(self) -> None:
        """Serve from a thread of its own: a rank waits for no slow disk."""
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        """Answer one rank after the other."""
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:  # closed
                return
            try:
                with connection:
                    connection.settimeout(TAKE_SECONDS)
                    if user_of(connection) == os.getuid():
                        connection.sendall(self.words)
            except OSError:  # the rank was ended
                pass

    def close(self) -> None:
        """Hand out nothing more, and forget what there was."""
        self.words = b""
        try:
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread: close() alone does not
        except OSError:
            pass
        self.listener.close()
        try:
            os.unlink(self.path)
        except OSError:
            pass


def take(directory: str, names: Iterable[str]) -> dict[str, str]:
    """Return the secrets of a job by name, as its supervisor on this node hands them out. OSError if it does not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        through_directory(directory, connection.connect)
        if user_of(connection) != os.getuid():
            raise PermissionError("somebody else answers for the supervisor")
        with connection.makefile("rb") as answer:
            text = answer.read()
    try:
        return {name: json.loads(text)[name] for name in names}
    except (ValueError, KeyError):
        raise OSError("the supervisor did not hand out the secrets") from None


def through_directory(directory: str, use: Callable[[str], object]) -> None:
    """Bind or connect to the socket in a directory, however long its path is: an address takes 108 bytes (unix(7))."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        use(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)


def user_of(connection: socket.socket) -> int:
    """Return the user whose process is at the other end, as the kernel says."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(found)[1])
