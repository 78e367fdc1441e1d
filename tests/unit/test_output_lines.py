"""Reading rank output while it grows."""

from __future__ import annotations

import faulthandler
import re
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks import output_lines
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.output_lines import (
    Follower,
    Line,
    parse_report,
)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("torchfleet: loss=0.5", {"loss": 0.5}),
        ("torchfleet: epoch=3/12 step=10/23", {"epoch": 3, "epochs": 12, "step": 10, "steps": 23}),
        ("torchfleet: a=1 b=-2.5e-3 c=.5 d=+7", {"a": 1, "b": -0.0025, "c": 0.5, "d": 7}),
        ("torchfleet: device=cuda:0 path=/a/b rate=nan", {"device": "cuda:0", "path": "/a/b", "rate": "nan"}),
        ("torchfleet: loss=1e999", {"loss": "1e999"}),  # JSON has no infinity
        ("torchfleet: ", None),
        ("torchfleet: hello world", None),
        ("torchfleet: Loss=1", None),
        ("torchfleet: a=1 oops", None),
        ("torchfleet:a=1", None),
        (" torchfleet: a=1", None),
        ("loss=1", None),
        ("", None),
    ],
)
def test_reports(line: str, values: dict[str, object] | None) -> None:
    assert parse_report(line) == values


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\x1b[31mred\x1b[0m\x07", "[31mred[0m"),
        (b"10%\r20%\r30%", "30%"),
        (b"dos\r", "dos"),
        ("ä\t☃".encode(), "ä\t☃"),
    ],
)
def test_lines_are_safe_for_a_terminal(raw: bytes, text: str) -> None:
    assert output_lines.clean(raw) == text


class Seen:
    """A rank's stdout, a follower on it, and what it told."""

    def __init__(self, path: Path, show: bool = True) -> None:
        self.path = path / "stdout"
        self.path.write_bytes(b"")
        self.lines: list[Line] = []
        self.reports: list[dict[str, object]] = []
        self.follower = Follower(
            str(self.path),
            0,
            "stdout",
            show,
            self.lines.append,
            lambda _rank, values: self.reports.append(dict(values)),
        )

    def write(self, data: bytes, last: bool = False) -> list[str]:
        with self.path.open("ab") as file:
            file.write(data)
        before = len(self.lines)
        self.follower.look(last)
        return [line.text for line in self.lines[before:]]


def test_a_line_is_shown_once_it_is_whole(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    assert seen.write(b"one\ntw") == ["one"]
    assert seen.write(b"o\n\nthree") == ["two", ""]
    assert seen.write(b"", last=True) == ["three"]


def test_a_report_in_two_pieces_and_without_an_end(tmp_path: Path) -> None:
    seen = Seen(tmp_path, show=False)
    seen.write(b"noise\ntorchfl")
    seen.write(b"eet: loss=1\ntorchfleet: loss=2", last=True)
    assert seen.reports == [{"loss": 1}, {"loss": 2}]
    assert seen.lines == []


def test_a_flood_is_cut_but_told_and_its_last_line_is_seen(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.write(b"".join(b"%d\n" % number for number in range(10_000)))
    assert [line.text for line in seen.lines] == [str(number) for number in range(output_lines.SHOW_LIMIT)]
    assert seen.write(b"after\n") == ["after"]
    assert seen.lines[-1].skipped == 10_000 - output_lines.SHOW_LIMIT
    seen.write(b"".join(b"%d\n" % number for number in range(100)))
    assert seen.write(b"", last=True) == ["99"]
    assert seen.lines[-1].skipped == 59


def test_a_report_on_stderr_is_just_a_line(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.follower.stream = "stderr"
    assert seen.write(b"torchfleet: loss=1\n") == ["torchfleet: loss=1"]
    assert seen.reports == []


def test_reports_in_a_flood_are_kept(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    for number in range(30):
        seen.write(b"x\n" * 1000 + b"torchfleet: step=%d\n" % number + b"y\n" * 1000)
    assert [report["step"] for report in seen.reports] == list(range(30))


def test_of_a_flood_at_the_end_the_last_is_read(tmp_path: Path) -> None:
    """And the bytes that are passed over are told."""
    seen = Seen(tmp_path)
    lines = [f"torchfleet: step={number}\n" for number in range(100_000)]
    seen.path.write_text("".join(lines))
    passed = seen.follower.look(last=True, until=0.0)
    steps = [report["step"] for report in seen.reports]
    assert steps == list(range(100_000 - len(steps), 100_000))
    assert passed == sum(map(len, lines[: 100_000 - len(steps)])) > 0
    assert seen.follower.look(last=True) == 0


def test_a_line_without_end_does_not_fill_memory(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    for _ in range(8):
        seen.write(b"x" * (4 << 20))
        assert len(seen.follower.rest) <= output_lines.LINE_LIMIT
    assert seen.write(b"\nnext\n")[0].endswith("[cut]")
    assert seen.lines[-1].text == "next"


def test_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert output_lines.last_line(str(path)) == ""
    path.write_bytes(b"a\nb\n \n\n")
    assert output_lines.last_line(str(path)) == "b"
    path.write_bytes(b"x" * 100_000 + b"\nend")
    assert output_lines.last_line(str(path)) == "end"


def test_the_last_line_of_a_stack_is_the_innermost_frame(tmp_path: Path) -> None:
    """Reproduced before: a job that timed out was told with the `<module>` of its script, and its indent."""
    path, frame = tmp_path / "log", '  File "train.py", line %d in %s\n'
    worker = "Thread 0x00007f11aa0006c0 (most recent call first):\n" + frame % (3, "read") + "\n"
    stack = "Current thread 0x00007fef3f211b80 [python] (most recent call first):\n"
    frames = frame % (4, "wait_for_the_others") + frame % (9, "<module>")
    for text, last in {
        worker + stack + frames: 'File "train.py", line 4 in wait_for_the_others',
        stack + "  <no Python frame>\n": "<no Python frame>",
        stack + frames * 60 + "  ...\n": 'File "train.py", line 4 in wait_for_the_others',
        stack + frames + "\nsaved\n": "saved",
        "Traceback:\n" + frame % (4, "f") + "    raise\n": "raise",
        frames: 'File "train.py", line 9 in <module>',
    }.items():
        path.write_text(text)
        assert output_lines.last_line(str(path)) == last


def test_the_stack_that_this_python_writes_is_known(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    assert re.match(
        r"File .*, line \d+ in test_the_stack_that_this_python_writes_is_known", output_lines.last_line(str(path))
    )
