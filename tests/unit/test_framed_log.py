"""Messages in the log of a pod: whole frames come out, and nothing that no pod of ours says."""

from __future__ import annotations

import json

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import (
    FRAME_CHARACTERS,
    PART_CHARACTERS,
    LogReader,
    lines_of,
)

LINE = {"kind": "line", "rank": 3, "stream": "stdout", "text": "loss 0.1", "skipped": 0}
LONG = {"kind": "output", "name": "ranks/3/stdout", "first": True, "content": "x" * (3 * PART_CHARACTERS), "cut": 0}


def log_of(*frames: dict[str, object]) -> bytes:
    lines: list[str] = []
    for frame in frames:
        lines += lines_of(frame, len(lines))
    return "".join(line + "\n" for line in lines).encode()


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_frames_come_out_whole_however_the_log_comes(size: int) -> None:
    data, reader = log_of(LINE, LONG, {"kind": "placed"}), LogReader()
    found = [frame for start in range(0, len(data), size) for frame in reader.take(data[start : start + size])]
    assert found == [LINE, LONG, {"kind": "placed"}]
    assert max(map(len, data.splitlines())) < PART_CHARACTERS + 40


def test_what_others_say_is_kept_apart() -> None:
    reader = LogReader()
    data = b"python3: can't open file\n" + log_of(LINE) + b"\x1b[31mKilled\n"
    assert list(reader.take(data)) == [LINE]
    assert reader.said == ["python3: can't open file", "[31mKilled"]


def test_a_log_that_is_followed_again_tells_only_what_is_new() -> None:
    """kubectl's connection ended in the middle of a frame."""
    data, reader = log_of(LINE, LONG, LINE), LogReader()
    cut = len(log_of(LINE)) + PART_CHARACTERS + 100
    assert list(reader.take(data[:cut])) == [LINE]
    reader.again()
    assert list(reader.take(data)) == [LONG, LINE]


@pytest.mark.parametrize("gone", range(1, 7))
@pytest.mark.parametrize("seen", range(7))
def test_lines_that_the_kubelet_rotated_away_are_counted_and_reading_goes_on(seen: int, gone: int) -> None:
    """A log has 10 MiB there: what is followed again after that begins in the middle of a frame."""
    lines = log_of(LINE, LONG, LINE, {"kind": "placed"}).splitlines(keepends=True)  # 1, 4, 1 and 1
    reader, starts = LogReader(), {0: LINE, 1: LONG, 5: LINE, 6: {"kind": "placed"}}
    ends = {0: 0, 1: 4, 5: 5, 6: 6}
    expected = [starts[first] for first, last in ends.items() if last < seen or first >= gone]
    found = list(reader.take(b"".join(lines[:seen])))
    reader.again()
    found += reader.take(b"".join(lines[gone:]))
    if gone <= seen and 1 < seen < 5 and gone > 1:  # its start was seen, and is not sent again
        expected = [LINE, LINE, {"kind": "placed"}]
    elif gone <= seen:
        expected = [LINE, LONG, LINE, {"kind": "placed"}]
    assert found == expected
    assert (reader.missing > 0) == (len(found) < 4)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"@torchfleet 0 : {}\n", "invalid message"),
        (b"@torchfleet 1 : {}\n", "invalid message"),
        (b"@torchfleet 0 ) {}\n", "within another"),
        (b"@torchfleet 0 + {}\n", "within another"),
        (b"@torchfleet 0 ( {\n@torchfleet 1 : {}\n", "within another"),
        (b'@torchfleet 0 : {"kind": "stage"}\n', "unexpected frame of kind"),
        (b'@torchfleet 0 : {"kind": "line", "rank": -1, "stream": "stdout", "text": "", "skipped": 0}\n', "not what"),
        (b"@torchfleet 0 : " + b"[" * 100_000 + b"\n", "too long"),
        (b"@torchfleet 0 ( " + b"x" * 20_000, "no end"),
        (json.dumps({"kind": "over"}).join(["@torchfleet 0 : ", "\n"]).encode(), "not what"),
        (b'@torchfleet 0 : {"kind": "output", "name": "x", "first": true, "content": "*", "cut": 0}\n', "not what"),
    ],
)
def test_a_hostile_log_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        list(LogReader().take(line))


def test_a_frame_without_an_end_is_refused() -> None:
    part, reader = b"x" * PART_CHARACTERS, LogReader()
    with pytest.raises(BadFrame, match="without an end"):
        for number in range(FRAME_CHARACTERS // PART_CHARACTERS + 2):
            list(reader.take(b"@torchfleet %d %s %s\n" % (number, b"+" if number else b"(", part)))


def test_lines_of_others_take_no_memory() -> None:
    reader = LogReader()
    for _each in range(1000):
        assert list(reader.take(b"y" * 100_000)) == []
    assert len(reader.line) < 10_000
    assert list(reader.take(b"\n" * 100_000)) == []
    assert len(reader.said) <= 20
