"""Facts of the machine: distribution, names, keys."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    machine,
)
from tests.unit.file_tree import tree


def test_a_distribution(tmp_path: Path) -> None:
    root = tree(
        tmp_path, **{"etc__os-release": 'NAME="x"\nID=rocky\nVERSION_ID="9.4"\nPRETTY_NAME="Rocky Linux 9.4"\n'}
    )
    about = machine.system(root)
    assert (about["os"], about["os_version"], about["os_name"]) == ("rocky", "9.4", "Rocky Linux 9.4")


def test_host_keys_are_told_as_ssh_keygen_does(tmp_path: Path) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl user@host\n"
    names = ("ed25519", "rsa")
    root = tree(
        tmp_path, **{f"etc__ssh__ssh_host_{name}_key.pub": text for name, text in zip(names, (key, "x"), strict=True)}
    )
    assert machine.host_keys(root) == ["SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"]


def test_what_tells_machines_apart_is_no_secret(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"etc__machine-id": "0123456789abcdef0123456789abcdef\n"})
    told = machine.host_facts(root)["machine_id"]
    assert len(told) == 16
    assert told not in "0123456789abcdef0123456789abcdef"
    assert machine.digest("") == ""


def test_a_name_that_nobody_knows_has_no_address() -> None:
    assert machine.resolve("no-such-host.invalid") in ([], None)
    assert machine.resolve("localhost")


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(machine, "RESOLVE_SECONDS", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_words, **_more: [over.wait(20.0)][:0])
    assert machine.resolve("n1") is None
    over.set()
