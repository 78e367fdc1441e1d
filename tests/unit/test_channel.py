"""Frames, bytes and files between two of our processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import BLOCK, Channel


def wire() -> tuple[Channel, Channel]:
    """Return both ends of a wire."""
    (here_in, there_out), (there_in, here_out) = os.pipe(), os.pipe()
    return Channel(here_in, here_out), Channel(there_in, there_out)


def test_frames_and_bytes_arrive_in_order() -> None:
    here, there = wire()
    here.send({"kind": "one", "text": "ä\n☃"})
    here.send({"kind": "two", "name": "x", "data": b"raw\n{}\0"})
    first, second = there.receive(1), there.receive(1)
    assert first is not None and first == {"kind": "one", "text": "ä\n☃"}
    assert second is not None and (second["kind"], second["data"]) == ("two", b"raw\n{}\0")
    assert there.receive(0) is None


def test_a_dead_peer_ends_receiving_and_is_noted_when_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = wire()
    os.close(there.incoming)
    os.close(there.outgoing)
    with pytest.raises(EOFError):
        here.receive(1)
    here.send({"kind": "nobody listens"})
    assert here.lost


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1])
def test_files_cross_the_wire(tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    here, there = wire()
    child = os.fork()
    if child == 0:
        here.send_file("name", str(source))
        os._exit(0)
    os.close(here.outgoing)
    received, firsts = b"", []
    while True:
        try:
            frame = there.receive(5)
        except EOFError:
            break
        assert frame is not None
        received += frame["data"]
        firsts.append(frame["first"])
    os.waitpid(child, 0)
    assert received == source.read_bytes()
    assert firsts == [True] + [False] * (len(firsts) - 1) and firsts
