"""What NCCL's RAS service tells: asked only where nobody but the job's own ranks can answer, and bounded.

A program here speaks the protocol (NCCL, src/ras/client.cc), for a real NCCL wants a GPU.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.nccl_status import (
    BYTES_MOST,
    Question,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.evidence import (
    EVIDENCE,
    NCCL_LINES_MOST,
)

# argv: family, address, port, what it does. Its first line is the port.
SERVICE = r"""
import socket, sys, time
family, address, port, does = sys.argv[1:]
server = socket.socket(getattr(socket, family))
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind((address, int(port)))
server.listen(8)
print(server.getsockname()[1], flush=True)
connection, _peer = server.accept()
lines = connection.makefile("rb")
assert lines.readline() == b"CLIENT PROTOCOL 2\n"
if does == "silent":
    time.sleep(60)
connection.sendall(b"HTTP/1.1 400\n" if does == "foreign" else b"SERVER PROTOCOL 2\n")
assert lines.readline() == b"TIMEOUT 1\n"
connection.sendall(b"OK\n")
assert lines.readline() == b"VERBOSE STATUS\n"
connection.sendall(b"NCCL version 2.28.9\nRank 5 -- \x1b[31mMISMATCH\xff\n")
while does == "endless":
    connection.sendall(b"more\n" * 10_000)
if does == "late":
    time.sleep(60)
"""


@contextmanager
def service(
    does: str = "answers", family: str = "AF_INET", address: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[int, int]]:
    """Have a process that answers as NCCL does; yield its pid and port."""
    port = port or free_port()
    argv = [sys.executable, "-c", SERVICE, family, address, str(port), does]
    env = {**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}"}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == f"{port}\n"
            yield process.pid, port
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("where", [("AF_INET", "127.0.0.1"), ("AF_INET", "0.0.0.0"), ("AF_INET6", "::1")])
def test_what_it_tells_comes_made_printable(where: tuple[str, str]) -> None:
    with service("answers", *where) as (pid, _port):
        first, second = Question([pid], 20.0).answer()
    assert first == "NCCL version 2.28.9"
    assert second.startswith("Rank 5 -- ") and second.isprintable() and second.endswith("MISMATCH\ufffd")


@pytest.mark.parametrize(("does", "lines"), [("silent", 0), ("foreign", 0), ("late", 2)])
def test_who_does_not_answer_is_not_waited_for(does: str, lines: int) -> None:
    with service(does) as (pid, _port):
        question = Question([pid], 2.0)
        assert len(question.answer()) == lines
        question.thread.join(20)
        assert not question.thread.is_alive()


def test_who_does_not_end_is_cut_off() -> None:
    with service("endless") as (pid, _port):
        found = Question([pid], 20.0).answer()
    assert len(found) == NCCL_LINES_MOST and sum(map(len, found)) < BYTES_MOST


def test_only_ranks_of_the_job_are_asked() -> None:
    with service() as (pid, port), service(port=port) as (other, _port):
        assert Question([pid], 20.0).answer() == []  # the kernel may give the connection to the other job
        assert len(Question([pid, other], 20.0).answer()) == 2
    with service() as (pid, _port):
        assert Question([os.getpid()], 20.0).answer() == []


def test_nobody_listens() -> None:
    began = time.monotonic()
    assert Question([os.getpid(), 1 << 30], 60.0).answer() == []
    assert time.monotonic() - began < 30.0


def test_lines_from_a_node_are_bounded() -> None:
    check = EVIDENCE.fields["nccl"]
    assert check(None) == [] and check(["a"]) == ["a"]
    with pytest.raises(ValueError, match="a list of at most"):
        check([""] * (NCCL_LINES_MOST + 1))
