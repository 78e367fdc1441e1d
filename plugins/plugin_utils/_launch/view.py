# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The live view of a job: plain lines in a pipe, a bar on a terminal. It may drop lines; the ranks' files have all."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.queue_messages import Queued, Restarted
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import NoteCode
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import (
    Leftover,
    Metric,
    Result,
    ResultPlace,
    ResultRank,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Shown
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.checkpoint_interval import Interval, told
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.explanation import Cause, said
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .plan import LaunchPlan
from .usage_view import usage_lines

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_SECONDS = 2.0  # between two reports within an epoch where there is no bar
DRAW_SECONDS = 0.1  # between two states of the bar on a terminal
EPOCH_SECONDS = 0.25  # between two ends of epochs there
SHOWN_LEFTOVERS = 10
HUGE = 10**15  # from where on a number is shown by its power of ten
ETA_MOST = 1e8  # seconds: three years
MANY_RANKS = 16  # above this the table shows only ranks that did not succeed


def rendered(thing: object, width: int) -> str:
    """Return what rich would print, as text."""
    from rich.console import Console

    screen = io.StringIO()
    Console(file=screen, width=width, force_terminal=False, color_system=None).print(thing)
    return screen.getvalue().rstrip("\n")


def warm_up() -> None:
    """Import rich while the job starts, so that nobody waits for it at the end."""
    rendered(rank_table_head(), 40)


def figure(name: str, value: Metric) -> str:
    """Return "loss 0.0413", "5,120 samples/s"."""
    return f"{short(value)} samples/s" if name == "samples_per_s" else f"{name} {short(value)}"


def short(value: Metric) -> str:
    """Return a value as people read it: "0.0413", "5,120", "1e+308"; a text as it is."""
    if isinstance(value, int) and abs(value) >= HUGE:  # a whole number may have thousands of digits
        return f"{Decimal(value):.4g}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < HUGE else f"{value:.4g}"
    return str(value)


def describe(values: Mapping[str, Metric]) -> str:
    """Return a report as people read it: "epoch 3/12  step 10/23  loss 0.123  5,120 samples/s"."""
    parts = []
    for name, value in values.items():
        if name.endswith("s") and name[:-1] in values:
            continue
        total = values.get(name + "s")
        parts.append(f"{name} {short(value)}/{short(total)}" if total is not None else figure(name, value))
    return "  ".join(parts)


def fraction(values: Mapping[str, Metric]) -> float | None:
    """Return how much of the work a report says is done, 0 to 1; None if it does not say."""
    try:
        if not {"steps", "epochs"} & values.keys():
            return None
        steps = share(values["step"], values["steps"]) if "steps" in values else 1.0
        return share(number(values["epoch"]) - 1 + steps, values["epochs"]) if "epochs" in values else steps
    except (TypeError, ValueError, ArithmeticError, KeyError):
        return None


def share(done: Metric, total: Metric) -> float:
    """Return how much of a total is done, 0 to 1. TypeError, ValueError, ArithmeticError for what is no such pair."""
    part, whole = number(done), number(total)
    if not (math.isfinite(part) and math.isfinite(whole) and whole > 0):
        raise ValueError(f"{done} of {total} says nothing")
    return float(max(0.0, min(1.0, part / whole)))


def number(value: Metric) -> int | float:
    """Return a metric that is a number. TypeError for a text."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return value


def plain_pause(values: Mapping[str, Metric]) -> float:
    """Return how long ago the last line must be for this report to be one: the end of all, of an epoch, or neither."""
    if fraction(values) in (None, 1.0):
        return 0.0
    return EPOCH_SECONDS if values.get("step") == values.get("steps") else PLAIN_SECONDS


class View:
    """Shows frames of the supervisor. `write(text, newline, keep)` puts text on the screen; `keep`: in any case."""

    def __init__(
        self,
        write: Callable[[str, bool, bool], None],
        hosts: list[str],
        terminal: bool,
        width: int,
        news: Callable[[Queued | Restarted], str] = str,
    ) -> None:
        """`news` returns the line for a job that waits in the queue, or is started again."""
        self.write, self.hosts, self.terminal, self.news = write, hosts, terminal, news
        self.width = max(40, min(width, 120))
        self.gauge = ""
        self.first: tuple[float, float] | None = (
            None  # time and fraction of the first report: the pace counts from there
        )
        self.last_shown = 0.0
        self.last_drawn = 0.0

    def show(self, frame: Shown) -> None:
        """Show one frame of a running job."""
        if frame["kind"] == "started":
            warm_up()
        elif frame["kind"] == "line":
            if frame["skipped"]:
                self.line(frame["rank"], f"... {frame['skipped']} lines are only in the file")
            self.line(frame["rank"], frame["text"])
        elif frame["kind"] == "report":
            self.report(frame["rank"], frame["values"])
        elif frame["kind"] == "queued" or frame["kind"] == "restarted":
            self.say(self.news(frame))

    def line(self, rank: int, text: str) -> None:
        """Show one line of a rank with its prefix."""
        self.say(f"[{rank}@{self.hosts[rank]}] {text}", keep=False)

    def say(self, text: str, keep: bool = True) -> None:
        """Show a line, above the bar if there is one. Lines of our own are shown in any case."""
        if self.gauge:
            self.write("\r\x1b[K" + text, True, keep)
            self.write(self.gauge, False, False)
        else:
            self.write(text, True, keep)

    def report(self, rank: int, values: Mapping[str, Metric]) -> None:
        """Show progress: redraw the bar, or print a line when an epoch or some time has passed."""
        now = time.monotonic()
        if self.terminal and fraction(values) is not None:
            if now - self.last_drawn < DRAW_SECONDS and fraction(values) != 1.0:
                return
            self.last_drawn = now
            self.gauge = self.draw(values, now)
            self.write("\r\x1b[K" + self.gauge, False, False)
        elif now - self.last_shown >= plain_pause(values):
            self.last_shown = now
            self.line(rank, describe(values))

    def draw(self, values: Mapping[str, Metric], now: float) -> str:
        """Return the bar with what the report says and the time that is left."""
        done = fraction(values) or 0.0
        since, before = self.first = self.first or (now, done)
        seconds = (now - since) / (done - before) * (1 - done) if done > before else math.inf
        left = f"  ETA {seconds:.0f} s" if seconds < ETA_MOST else ""
        text = f" {done:4.0%}  {describe(values)}{left}"
        from rich.progress_bar import ProgressBar

        return (rendered(ProgressBar(total=1.0, completed=done, width=20), 20) + text)[: self.width - 1]

    def close(self) -> None:
        """Take the bar away."""
        if self.gauge:
            self.write("\r\x1b[K", False, True)
            self.gauge = ""


def opening(plan: LaunchPlan) -> str:
    """Return the first line of a job: its name is what `clean.yml -e job_id=` wants."""
    launcher = f"{plan.launcher} {plan.launcher_version}"
    return f"job {plan.job_id}: {ranks_of(plan.world_size)}, {plan.backend}, {launcher}; run: {plan.run_dir}"


def ranks_of(count: int) -> str:
    """Return "1 rank", "2 ranks"."""
    return f"{count} rank" + "s" * (count != 1)


def remarks(result: Result) -> list[str]:
    """Return the notes of a result, but not those that its first failure tells as well: who kept the others waiting."""
    codes = {note["code"] for note in result["notes"]}
    told = {NoteCode.KEPT_WAITING, *({NoteCode.HUNG} & codes if NoteCode.HANG_END in codes else ())}
    return [note["text"] for note in result["notes"] if note["code"] not in told]


def headline(result: Result) -> str:
    """Return one line that says how a job ended."""
    launcher = f"{result['launcher']['name']} {result['launcher']['version']}"
    ranks = ranks_of(result["world_size"])
    ended = f"job {result['job_id']} {result['state']} in {result['seconds']:.1f} s"
    notes = "".join(f"; BUT {text}" for text in remarks(result))
    return f"{ended}: {ranks}, {result['backend']}, {launcher}{notes}"


def summary(
    result: Result,
    missing: list[str],
    run_dir: str,
    width: int,
    query: str | None,
    collected: Sequence[str] = (),
    interval: Interval | None = None,
) -> list[str]:
    """Return the closing lines of a job: headline, table of ranks, metrics, leftovers, where the run lies, the answer.

    `missing`: the nodes whose files could not be brought home, each with the reason. `query`: what answer() is asked.
    `collected`: lines on what ranks wrote. `interval`: how often it should save.
    """
    lines = [headline(result), *rank_table(result["ranks"], width).splitlines()]
    if any(row["seen"]["host"] not in (None, row["host"]) for row in result["placement"]):
        lines += placement_table(result["placement"])
    metrics = {
        name: value for name, value in result["metrics"].items() if name not in ("epoch", "epochs", "step", "steps")
    }
    if metrics:
        lines.append("metrics: " + describe(metrics))
    lines += [told(interval)] if interval else []
    for row in result["ranks"]:
        if row["state"] == "succeeded" and row["rc"]:
            lines.append(
                f"rank {row['rank']} finished, then died of signal {row['signal']} at exit; it counts as succeeded"
            )
    lines += usage_lines(result["usage"])
    lines += leftover_lines(result["leftovers"])
    lines += [f"warning: the files of {text}; they wait there: ansible-playbook clean.yml" for text in missing]
    lines += collected
    return [*lines, f"run: {run_dir}", *([answer(query, result)] if query else [])]


def leftover_lines(leftovers: Mapping[str, list[Leftover]]) -> list[str]:
    """Return a line for each of the first leftovers that were ended, and one for the rest."""
    rows = [(host, row["pid"], row["command"]) for host, left in leftovers.items() for row in left]
    lines = [f"ended a leftover on {host}: pid {pid} {command}" for host, pid, command in rows[:SHOWN_LEFTOVERS]]
    more = fold_names(dict.fromkeys(host for host, _pid, _command in rows[SHOWN_LEFTOVERS:]))
    return [*lines, *([f"ended {len(rows) - len(lines)} more on {more}: result.json names them"] if more else [])]


def placement_table(rows: list[ResultPlace]) -> list[str]:
    """Return the planned place of each rank, and the place where it came up."""
    lines = ["planned -> came up (host/local rank)"]
    for row in rows:
        seen = row["seen"]
        came = f"{seen['host']}/{seen['local_rank']}" if seen["host"] else "never"
        lines.append(f"  rank {row['rank']:<4} {row['host']}/{row['local_rank']} -> {came}")
    return lines


def answer(query: str, result: Result) -> str:
    """Return the part of a result that a JMESPath expression names, as JSON, or why it cannot be told."""
    import jmespath

    try:
        return json.dumps(jmespath.search(query, dict(result)))
    except jmespath.exceptions.JMESPathError as error:  # it compiled, but does not fit the values
        return f"result_query: {str(error).splitlines()[0]}"


def rank_table(ranks: list[ResultRank], width: int) -> str:
    """Return the table of ranks; of many ranks only those that did not succeed."""
    shown = ranks if len(ranks) <= MANY_RANKS else [row for row in ranks if row["state"] != "succeeded"][:MANY_RANKS]
    if not shown:
        return f"all {len(ranks)} ranks succeeded"
    from rich.text import Text

    table = rank_table_head()
    room = width - 42 - max((len(row["host"]) for row in shown), default=0)
    for row in shown:
        cells = (row["rank"], row["host"], row["state"], row["rc"], row["seconds"])
        line = row["last_line"] if len(row["last_line"]) <= room else row["last_line"][: max(0, room - 3)] + "..."
        table.add_row(*("-" if cell is None else str(cell) for cell in cells), Text(line))  # brackets are no markup
    hidden = f"\n{len(ranks) - len(shown)} more ranks" if len(shown) < len(ranks) else ""
    return rendered(table, width) + hidden


def rank_table_head() -> Table:
    """Return the empty table of ranks."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("rank", "host", "state", "rc", "seconds"):
        table.add_column(name, justify="right" if name in ("rank", "rc", "seconds") else "left", no_wrap=True)
    table.add_column("last line", no_wrap=True)
    return table


def verdict(result: Result, run_dir: str, cause: Cause | None = None) -> str:
    """Return one line on a job that did not succeed: rank, host, how it ended, the log to open, cause and mend."""
    failure = result["first_failure"]
    if result["state"] == "saved":
        again = "it saved its work and asks to be run again (exit status 75): -e max_restarts=10 does so"
        return f"job {result['job_id']} saved: {again}; run: {run_dir}"
    if not failure:
        return f"job {result['job_id']} {result['state']}; run: {run_dir}"
    who = f"rank {failure['rank']} on {failure['host']}" if failure["rank"] is not None else failure["host"]
    message = f": {failure['message']}" if failure["message"] else ""
    why = said(cause, failure["rank"])
    return f"job {result['job_id']} {result['state']}: {who}: {failure['cause']}{message}; log: {failure['log']}{why}"
