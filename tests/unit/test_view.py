"""What a job shows while it runs and in the end, as lines and on a terminal."""

from __future__ import annotations

import itertools
import math
import re
import time
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import (
    View,
    answer,
    describe,
    fraction,
    rank_table,
)


class Screen:
    def __init__(self, terminal: bool) -> None:
        self.text = ""
        self.view = View(self.write, ["n1", "n2"], terminal, 100)

    def write(self, text: str, newline: bool, _keep: bool) -> None:
        self.text += text + ("\n" if newline else "")

    def report(self, **values: Any) -> None:
        self.view.show({"kind": "report", "rank": 0, "values": values})


def test_plain_view_has_lines_only() -> None:
    screen = Screen(terminal=False)
    screen.view.show({"kind": "line", "rank": 1, "text": "hello", "skipped": 3})
    screen.report(epoch=1, epochs=2, step=1, steps=4, loss=0.5)
    screen.report(epoch=1, epochs=2, step=2, steps=4, loss=0.4)  # too soon after the first
    screen.report(epoch=2, epochs=2, step=4, steps=4, loss=0.1, samples_per_s=5123.4)
    screen.report(accuracy=0.98)
    assert screen.text.splitlines() == [
        "[1@n2] ... 3 lines are only in the file",
        "[1@n2] hello",
        "[0@n1] epoch 1/2  step 1/4  loss 0.5",
        "[0@n1] epoch 2/2  step 4/4  loss 0.1  5,123 samples/s",
        "[0@n1] accuracy 0.98",
    ]


def test_terminal_view_keeps_a_bar_below_the_lines() -> None:
    screen = Screen(terminal=True)
    screen.report(epoch=1, epochs=2, step=1, steps=4, loss=0.5)
    screen.view.last_drawn = 0.0  # as if some time had passed
    screen.report(epoch=1, epochs=2, step=2, steps=4, loss=0.5)
    drawn = screen.text
    screen.view.last_drawn = time.monotonic() + 60.0  # as if no time had passed
    screen.report(epoch=1, epochs=2, step=3, steps=4, loss=0.5)  # at once: not drawn
    assert screen.text == drawn
    assert "25%" in screen.text and "epoch 1/2" in screen.text and re.search(r"ETA \d+ s", screen.text)
    assert "\n" not in screen.text
    screen.view.show({"kind": "line", "rank": 0, "text": "hello", "skipped": 0})
    assert "\r\x1b[K[0@n1] hello\n" in screen.text
    screen.view.close()
    assert screen.text.endswith("\r\x1b[K")


def test_fraction_of_the_work() -> None:
    assert fraction({"epoch": 2, "epochs": 4, "step": 1, "steps": 2}) == 0.375
    assert fraction({"epoch": 4, "epochs": 4}) == 1.0
    assert fraction({"step": 1, "steps": 4}) == 0.25
    assert fraction({"loss": 1}) is None
    assert fraction({"step": "x", "steps": 4}) is None


ODD = [0, 1, -1, 1e-300, 1e308, -1e308, 1e16, math.inf, -math.inf, math.nan, 10**4000, True, "nan", "5/nan"]


@pytest.mark.parametrize("terminal", [True, False])
def test_odd_progress_is_shown_in_a_line(terminal: bool) -> None:
    """Reproduced before: step=1/1e-300 filled 300 columns with a percentage, and 1e308 with digits."""
    for values in itertools.product(ODD, repeat=4):
        for names in (("step", "steps"), ("epoch", "epochs"), ("epoch", "epochs", "step", "steps")):
            done = fraction(dict(zip(names, values, strict=False)))
            assert done is None or 0.0 <= done <= 1.0
    for step, steps in itertools.product(ODD, repeat=2):
        screen = Screen(terminal)
        for first in (0, step):
            screen.view.last_drawn = screen.view.last_shown = 0.0
            screen.report(step=first, steps=steps, loss=step, samples_per_s=steps)
        shown = screen.text.replace("\r\x1b[K", "\n").splitlines()
        assert all(len(line) < 100 for line in shown), shown
        assert not any(re.search(r"\d{4,}%|-\d+%|nan%|ETA (inf|nan|-)|\d{17}", line) for line in shown), shown
    assert (
        describe({"loss": 1e308, "seen": 10**4000, "samples_per_s": 1e15})
        == "loss 1e+308  seen 1.000e+4000  1e+15 samples/s"
    )


def test_describe() -> None:
    assert describe({"loss": 0.123456, "accuracy": 0.9722, "samples_per_s": 12345.6, "device": "cpu"}) == (
        "loss 0.1235  accuracy 0.9722  12,346 samples/s  device cpu"
    )


def test_a_query_that_does_not_fit_says_so() -> None:
    assert answer("state", {"state": "failed"}) == '"failed"'
    assert answer("length(rc)", {"rc": 0}).startswith("result_query: ")


def test_table_of_many_ranks_shows_what_went_wrong() -> None:
    rows = [
        {"rank": n, "host": "n", "state": "succeeded", "rc": 0, "seconds": 1.0, "last_line": "x"} for n in range(40)
    ]
    rows[17] = {**rows[17], "state": "failed", "rc": 1, "last_line": "[rank17]: ValueError: " + "long " * 50}
    text = rank_table(rows, 80)
    assert "[rank17]: ValueError" in text and "39 more ranks" in text
    assert max(len(line) for line in text.splitlines()) <= 80
