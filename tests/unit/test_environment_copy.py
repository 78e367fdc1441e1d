"""Sending an environment to machines of its kind, and receiving it there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import environment, environment_copy
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_copy import Transfer
from tests.unit.test_environment import lay_out
from tests.wheels import request_for

HOSTS = [f"n{number}" for number in range(31)]
EVERYONE = Transfer(path="/x", python="python3", packages=[], mesh="/ssh/config", to=HOSTS, senders=HOSTS)


class Mesh:
    """Senders that log (from, to) of every sending; "" is this machine. Nobody is reached really (tests/lab does)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, str]] = []
        self.down: list[str] = []
        self.sender = [""]
        monkeypatch.setattr(environment_copy, "SENT_AT_A_TIME", 4)
        monkeypatch.setattr(environment_copy, "send_to", self.send_to)
        monkeypatch.setattr(environment_copy, "send_on", self.send_on)
        monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor", OneByOne)

    def send_to(self, transfer: Transfer, host: str) -> str:
        self.log.append((self.sender[-1], host))
        return "down" if host in self.down else ""

    def send_on(self, transfer: Transfer, host: str, others: list[str]) -> dict[str, str]:
        self.sender.append(host)
        answer = environment_copy.send(replace(transfer, to=others))
        self.sender.pop()
        return answer


class OneByOne:
    """A pool of threads that has only one, so that the log says who sends."""

    def __init__(self, _threads: int) -> None:
        self.map = map

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_error: object) -> None: ...


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Mesh:
    return Mesh(monkeypatch)


def test_texts_are_read_before_the_threads_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads in inspect.getsource of modules in a zip file fail each other: "could not get source code"."""
    readers: list[str] = []
    monkeypatch.setattr(environment_copy, "SENT_FILES", [])
    monkeypatch.setattr("inspect.getsource", lambda _module: readers.append(threading.current_thread().name) or "")
    monkeypatch.setattr(environment_copy, "send_to", lambda transfer, _host: str(environment_copy.order("x", transfer)))
    environment_copy.send(replace(EVERYONE, senders=[]))
    assert set(readers) == {threading.main_thread().name}


def test_those_who_have_it_send_it_on(mesh: Mesh) -> None:
    assert environment_copy.send(EVERYONE) == dict.fromkeys(HOSTS, "")
    assert sorted(host for _sender, host in mesh.log) == sorted(HOSTS)
    busiest = max(sum(sender == other for other, _host in mesh.log) for sender, _host in mesh.log)
    assert busiest == environment_copy.SENT_AT_A_TIME
    received = [""]
    for sender, host in mesh.log:  # nobody sends what he has not got
        assert sender in received
        received.append(host)


def test_without_any_to_any_one_sends_to_all(mesh: Mesh) -> None:
    mesh.down = ["n4"]
    assert environment_copy.send(replace(EVERYONE, senders=[])) == {**dict.fromkeys(HOSTS, ""), "n4": "down"}
    assert sorted(mesh.log) == sorted(("", host) for host in HOSTS)


def test_a_dead_sender_takes_nobody_with_him(mesh: Mesh) -> None:
    mesh.down = ["n0"]
    assert environment_copy.send(EVERYONE) == {**dict.fromkeys(HOSTS, ""), "n0": "down"}
    assert ("", "n4") in mesh.log


def test_what_is_not_finished_is_not_sent(mesh: Mesh, tmp_path: Path) -> None:
    wanted = request_for(tmp_path)
    transfer = replace(EVERYONE, path=wanted.path)
    unfinished = dict.fromkeys(HOSTS, "the machine that has it has not finished it")
    assert environment_copy.send_what_is_wanted(transfer, wanted.made_from) == unfinished
    lay_out(wanted)
    other = replace(wanted, packages=["tiny==2.0"]).made_from
    assert environment_copy.send_what_is_wanted(transfer, other) == unfinished
    assert mesh.log == []
    assert environment_copy.send_what_is_wanted(transfer, wanted.made_from) == dict.fromkeys(HOSTS, "")


def receive(transfer: Transfer, stream: bytes) -> list[str]:
    """Start the receiver as a sender does, where nothing of ours is. Return the lines it prints."""
    argv = [sys.executable, "-I", "-c", environment_copy.START]
    done = subprocess.run(
        argv, input=environment_copy.order("receive", transfer) + stream, capture_output=True, check=True
    )
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


def test_it_arrives_whole_or_not_at_all(tmp_path: Path) -> None:
    wanted = request_for(tmp_path)
    path, receipt_file = wanted.place, wanted.place / environment.RECEIPT
    (lay_out(wanted) / "large.bin").write_bytes(os.urandom(1 << 20))
    (path / environment.PROOF).write_text("of this machine\n")
    receipt = environment.read_receipt(path)
    transfer = replace(EVERYONE, path=wanted.path, packages=wanted.packages, receipt=receipt)
    tar = subprocess.run(environment_copy.tar_of(transfer), stdout=subprocess.PIPE, check=True).stdout
    assert receive(transfer, b"") == ['{"error": ""}']  # it is there, as on a home that machines share
    receipt_file.unlink()
    first, error = receive(transfer, tar[: len(tar) // 2])
    assert first == "send" and "it arrived in part: tar: Unexpected EOF" in error
    assert (path / environment.PROOF).exists()  # what was there before
    assert receive(transfer, tar) == ["send", '{"error": ""}']
    assert environment.look(wanted)["receipt"] == receipt
    assert not (path / environment.PROOF).exists()
    assert sorted(os.listdir(path.parent)) == ["venv", "venv.lock"]


def test_a_receiver_sends_on_with_the_files_that_it_was_sent(tmp_path: Path) -> None:
    """It has none of ours on its disk: what it was sent is all that it has."""
    log, shim = tmp_path / "log", tmp_path / "ssh"
    shim.write_text(f"#!{sys.executable}\nimport sys\nopen({str(log)!r}, 'wb').write(sys.stdin.buffer.readline())\n")
    shim.chmod(0o755)
    transfer = replace(EVERYONE, to=["n1"], senders=[], receipt={})
    done = subprocess.run(
        [sys.executable, "-I", "-c", environment_copy.START],
        input=environment_copy.order("send", transfer),
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"n1": "ssh ended with status 0"}
    sent: dict[str, Any] = json.loads(log.read_bytes())
    assert (sent["verb"], sent["transfer"]["to"]) == ("receive", ["n1"])
    assert [tuple(file) for file in sent["files"]] == environment_copy.files()


@pytest.mark.parametrize("said", [b"", b"[]", b"7", b'"x"', b"\xff", b"{}", b"null"])
def test_an_answer_that_is_none_is_an_error(said: bytes) -> None:
    assert environment_copy.error_in(said, "odd") == "odd"


# --- hosts that do not behave -----------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give the program that runs in place of ssh, for each host."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def behaves(program: str) -> None:
        (tmp_path / "ssh").write_text(f"#!{sys.executable}\nimport sys, time\n{program}\n")
        (tmp_path / "ssh").chmod(0o755)

    return behaves


TALKS = "while True: sys.{}.write('x' * 65536)"
SENDS = "sys.stdin.readline(); print('send', flush=True); "
MISBEHAVES = {
    "talks without a line": (TALKS.format("stdout"), "it answered with more than 1 MB"),
    "talks in place of an answer": (SENDS + "sys.stdin.buffer.read()\n" + TALKS.format("stdout"), "more than 1 MB"),
    "talks on stderr": (TALKS.format("stderr"), "more than 16 MB of messages"),
    "does not read": ("time.sleep(600)", "it did not end within 1 s"),
    "does not read what it asked for": (SENDS + "time.sleep(600)", "it did not end within 1 s"),
    "does not end": ("sys.stdin.close(); sys.stdout.close(); time.sleep(600)", "it did not end within 1 s"),
    "has a long error": ("sys.exit('x' * 5000)", "^x{300}$"),
}


@pytest.mark.parametrize("case", MISBEHAVES)
def test_a_receiver_cannot_hold_the_sender_up(
    case: str, host: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, says = MISBEHAVES[case]
    limited = "did not end" in says
    monkeypatch.setattr(environment_copy, "SEND_SECONDS", 1.0 if limited else 600.0)
    host(program)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/large").write_bytes(bytes(1 << 20))  # more than a pipe holds
    transfer = replace(EVERYONE, path=str(tmp_path / "venv"), receipt={})
    assert re.search(says, environment_copy.send_to(transfer, "n1"))


def test_what_the_sender_could_not_read_whole_is_not_left_as_finished(
    host: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "asked"
    host(
        f"with open({str(log)!r}, 'a') as log: print(*sys.argv[1:], file=log)\n"
        "if 'rm' in sys.argv[-1].split(): sys.exit()\n"
        f'{SENDS}sys.stdin.buffer.read(); print(\'{{"error": ""}}\')'
    )
    monkeypatch.setattr(environment_copy, "tar_of", lambda _transfer: ["sh", "-c", "echo a part; exit 2"])
    assert "tar ended with status 2" in environment_copy.send_to(replace(EVERYONE, receipt={}), "n1")
    assert log.read_text().splitlines()[-1].endswith(f"n1 rm --force /x/{environment.RECEIPT}")


@pytest.mark.parametrize("program", [TALKS.format("stdout"), TALKS.format("stderr"), "time.sleep(600)"])
def test_nor_can_a_host_that_is_to_send_it_on(
    program: str, host: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_copy, "SEND_SECONDS", 0.2 if "sleep" in program else 600.0)
    host(program)
    (why,) = set(environment_copy.send_on(replace(EVERYONE, receipt={}), "n1", ["n2", "n3"]).values())
    assert re.match(
        "n1, which was to send it on, failed: it (answered with|wrote) more than|.* did not end within", why
    )


def test_nor_can_the_source_with_its_receipt(host: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_copy, "QUESTION_SECONDS", 1.0)
    for program in (TALKS.format("stdout"), "time.sleep(600)"):
        host(program)
        assert environment_copy.receipt_at_source(replace(EVERYONE, source="n1")) is None
