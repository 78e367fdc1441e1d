# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The sections of a report: one function each, from a run to markup. Empty: there is nothing to show.

A new section is a function here and a row in SECTIONS. Where nothing is recorded it returns an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage.usage_findings import size
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .charts import Line, charts, middle, restless
from .heat import heat_map, slow_links
from .lanes import SIGNS, Lane, ending, epochs_lane, events_list, job_lane, lanes_table, node_lane, rank_lane
from .markup import Html, brief, clock, code, count, folded, join, number, ranks_named, safe, span, table, tag
from .reading import PROGRESS
from .run import NodeRun, RankRun, Reason, Run
from .taken import taken
from .verdict import ICONS, WHO_HUNG, hang_of, is_hung, verdict_of

Section = Callable[[Run], Html]
CHARTS_MOST = 6
FIRST = ("loss", "samples_per_s", "accuracy", "step_ms", "step_time", "tokens_per_s", "busbw_gbps")  # of the curves
NAMES = {
    "samples_per_s": "samples/s",
    "step_ms": "step time",
    "tokens_per_s": "tokens/s",
    "busbw_gbps": "bus bandwidth",
}
UNITS = {"step_ms": "ms", "busbw_gbps": "GB/s", "algbw_gbps": "GB/s", "step_time": "s"}  # that a name does not say
LANES_MOST = 40  # ranks that have a lane of their own; of more, each node has one
NODES_MOST = 64  # lanes of nodes
UNIT = re.compile(r"(?<=\d) (?=(s|min|h|d)\b)")  # the space before one: no line ends there
WAITING = ("came last", "cost the others", "waited")
ROWS_MOST = 200  # of the table of ranks
TILES_MOST = 6
LINE_MOST = 200  # letters of the last line of a rank
SHARES = (0.05, 0.2, 0.5, 0.75)  # of a rank's time at which the ground of its cell changes


def head(run: Run) -> Html:
    """Return the verdict and the next step."""
    verdict = verdict_of(run)
    failure = run.failure
    ended = (run.state == "timed_out" or is_hung(run)) and not hang_of(run)  # else the sentence has the cause
    evidence = "" if failure is None else failure.cause if ended else failure.message
    commands = [tag("pre", code(command)) for command in verdict.commands]
    return tag(
        "header",
        tag("p", "torchfleet", tag("span", run.job_id), class_="job"),
        tag("h1", icon(verdict.mark), tag("span", Html(UNIT.sub("&nbsp;", safe(verdict.sentence))))),
        tag("blockquote", code(evidence)) if evidence else "",
        tag("div", tag("p", verdict.next_step), *commands, class_="next"),
        *(tag("p", f"! {text}", class_="warn") for text in remarks(run)),
        class_="verdict",
    )


def remarks(run: Run) -> list[str]:
    """Return what one should know besides the verdict: who kept the others waiting, slow links, notes of the result."""
    slow = f"{run.slow[:1].upper()}{run.slow[1:]}." if run.slow else ""
    notes = [note.text for note in run.notes if note.code not in WHO_HUNG]  # the verdict begins with those
    return [text for text in (slow, slow_links(run.links) if run.links else "", *notes) if text]


def icon(mark: str) -> Html:
    """Return the sign of a verdict as a picture; its sentence says the same."""
    drawing = tag("svg", tag("path", d=ICONS[mark]), viewBox="0 0 24 24", focusable="false")
    return tag("span", drawing, class_="mark", aria_hidden="true")


def figures(run: Run) -> Html:
    """Return the numbers of a run that one looks for first."""
    tiles = [("took", span(run.seconds))] if run.seconds is not None else []
    where = count(len(run.hosts), "node") if len(run.hosts) != 1 else f"on {run.hosts[0]}"
    tiles += [("ranks", f"{run.world_size}")] if run.world_size else []
    names = sorted(set(run.metrics) - set(PROGRESS), key=lambda name: (rank_of_name(name), name))
    tiles += [(label(name), f"{value_of(run, name)} {UNITS.get(name, '')}".strip()) for name in names[:TILES_MOST]]
    if not tiles:
        return Html("")
    cells = [tag("div", tag("dt", name), tag("dd", value)) for name, value in tiles]
    words = [
        f"{run.launcher} {run.launcher_version}".strip(),
        run.backend,
        where,
        clock(run.began) if run.began else "",
    ]
    facts = tag("p", " · ".join(filter(None, words)), class_="facts")
    return tag("section", tag("dl", *cells, class_="tiles"), facts, class_="whole")


def value_of(run: Run, name: str) -> str:
    """Return the last value of a metric; of one that jumps to and fro where its medians end; empty if there is none."""
    lines = lines_of(run, name)
    value = middle(lines) if restless(lines) else run.metrics.get(name, "")
    return number(value) if isinstance(value, float) else value


def rank_of_name(name: str) -> int:
    """Return where a metric comes among others."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


def label(name: str) -> str:
    """Return the name of a metric for people."""
    return NAMES.get(name, name.replace("_", " "))


def curves(run: Run) -> Html:
    """Return the curves of what ranks reported."""
    names = sorted(set(run.series) - set(PROGRESS), key=lambda name: (rank_of_name(name), name))
    found = [(name, lines) for name in names if (lines := lines_of(run, name)) and drawable(lines)]
    if not found:
        return Html("")
    figures_of_names = charts([(label(name), lines, UNITS.get(name, "")) for name, lines in found[:CHARTS_MOST]])
    more = len(found) - CHARTS_MOST
    left = f"{count(more, 'more metric')}: see metrics.jsonl. " if more > 0 else ""
    left += "Of very many reports some were read, evenly spread." if run.sampled else ""
    return section("Curves", figures_of_names, tag("p", left) if left else "", class_="whole")


def lines_of(run: Run, name: str) -> list[Line]:
    """Return the curves of one metric, one for each rank that reported it."""
    return [
        Line(f"rank {rank}", tuple((at - run.start, value) for at, value in points))
        for rank, points in run.series.get(name, {}).items()
    ]


def drawable(lines: Sequence[Line]) -> bool:
    """Whether there is more than one report of any rank, and a number in them."""
    return any(len(line.points) > 1 for line in lines) and any(line.drawn for line in lines)


def timeline(run: Run) -> Html:
    """Return when the job, its nodes and its ranks ran, by the head's clock."""
    if all(row.began is None for row in run.ranks):
        return Html("")
    facts = {node.name: facts_of(node, run.nodes) for node in run.nodes}
    lanes = [job_lane(run), *filter(None, [epochs_lane(run)])]
    hosts = by_host(run.ranks)
    shown = sorted(hosts, key=lambda host: all(row.state == "succeeded" for row in hosts[host]))[:NODES_MOST]
    for host in [host for host in hosts if host in shown]:
        alone = len(run.ranks) > LANES_MOST or len({row.state for row in hosts[host]}) < 2 < len(run.ranks)
        lanes.append(node_lane(host, hosts[host], run.end, facts.get(host, ""), alone))
        lanes += [] if alone else [rank_lane(row, run.end) for row in hosts[host]]
    left = len(hosts) - len(shown)
    return section(
        "Timeline",
        lanes_table(lanes, run.start, run.end - run.start, "when the job, its nodes and its ranks ran"),
        tag("p", f"{count(left, 'more node')}, on which all ranks succeeded") if left else "",
        tag("p", clocks(run.nodes), class_="facts"),
    )


def by_host(ranks: Sequence[RankRun]) -> dict[str, list[RankRun]]:
    """Return ranks by host, both in rank order."""
    found: dict[str, list[RankRun]] = {}
    for row in ranks:
        found.setdefault(row.host, []).append(row)
    return found


def facts_of(node: NodeRun, nodes: Sequence[NodeRun]) -> str:
    """Return what a node is, in a line: its address, and what is not the same on all nodes, which "Versions" tells."""
    of: tuple[Callable[[NodeRun], str], ...] = (
        lambda row: count(row.cores, "core") if row.cores else "",
        lambda row: ", ".join(count(amount, f"{vendor} GPU") for vendor, amount in row.gpus.items()),
        lambda row: row.nic,
    )
    words = [what(node) for what in of if len(set(map(what, nodes))) > 1]
    return " · ".join(filter(None, (*words, node.address)))


def clocks(nodes: Sequence[NodeRun]) -> str:
    """Return how the clocks of the nodes were brought together."""
    if len(nodes) < 2:
        return ""
    if any(node.clock_offset is None for node in nodes):
        return "The clocks of the nodes were not recorded: times of different nodes may not fit together."
    off = {node.name: node.clock_offset or 0.0 for node in nodes}
    worst = max(off, key=lambda name: abs(off[name]))
    side = "ahead" if off[worst] > 0 else "behind"
    most = f"; the largest correction is {worst}'s, {brief(abs(off[worst]))} {side}" if abs(off[worst]) >= 0.001 else ""
    return f"Times are by the head's clock{most}."


def how_it_ended(run: Run) -> Html:
    """Return what happened at the end of a job that did not just succeed, in order of time, with the picture of it."""
    if run.state in ("", "succeeded") and not run.leftovers:
        return Html("")
    ends = [row.ended for row in run.ranks if row.ended is not None]
    picture = Html("")
    if ends and run.end - min(ends) > 0 and len(run.ranks) <= LANES_MOST:
        room = (run.end - min(ends)) * 0.15
        start = max(run.start, min(ends) - room)
        lanes = [Lane(lane.who, lane.bars, lane.what) for lane in (rank_lane(row, run.end) for row in run.ranks)]
        picture = lanes_table(lanes, start, run.end - start, f"the last {span(run.end - start)} of the job", run.start)
        picture = tag("div", tag("p", f"The last {span(run.end - start)}:", class_="facts"), picture)
    return section("The end", events_list(ending(run), run.start), picture)


def diagnosis(run: Run) -> Html:
    """Return what the last look at the job found: who kept it from going on, and where all ranks were."""
    if not run.diagnosis:
        return Html("")
    first, *tree = run.diagnosis
    return section(
        "The last look",
        tag("p", first),
        tag("pre", join(map(code, filter(None, tree)), Html("\n"))) if any(tree) else "",
    )


def rank_table(run: Run) -> Html:
    """Return the table of ranks: those that did not succeed first."""
    if not run.ranks:
        return Html("")
    rows = sorted(run.ranks, key=lambda row: (row.state == "succeeded", row.rank))
    shown = sorted(rows[:ROWS_MOST], key=lambda row: row.rank)
    cpus = any(row.cpus for row in run.ranks)
    used = any(row.cpu_seconds is not None for row in run.ranks)
    waiting = any(row.waiting for row in run.ranks)
    late = [*(["CPUs"] if cpus else []), *(["CPU time", "memory"] if used else []), *(WAITING if waiting else ())]
    heads = ["rank", "node", "state", "exit", "took", *late, "last line"]
    cells = [
        [
            str(row.rank),
            row.host,
            tag("span", f"{SIGNS.get(row.state, '?')} {row.state or 'unknown'}", class_=f"state {row.state}"),
            exit_of(row),
            span(row.seconds) if row.seconds is not None else "",
            *([str(row.cpus or "")] if cpus else []),
            *([span(row.cpu_seconds) if row.cpu_seconds is not None else ""] if used else []),
            *([size(row.peak_bytes) if row.peak_bytes else ""] if used else []),
            *(waiting_cells(row, run) if waiting else ()),
            code(row.last_line[:LINE_MOST] + "…" * (len(row.last_line) > LINE_MOST)) if row.last_line else "",
        ]
        for row in shown
    ]
    left = len(rows) - len(shown)
    more = tag("p", f"{count(left, 'more rank')}: result.json has them all") if left else ""
    return section("Ranks", table(heads, cells, "the ranks of the job", "ranks"), more, class_="whole")


def waiting_cells(row: RankRun, run: Run) -> tuple[str, str, str]:
    """Return how often a rank came last to a collective, what that cost the others, and how long it waited itself.

    Where somebody kept the others waiting, what cost them most stands out.
    """
    found = row.waiting
    if found is None or not run.collectives:
        return "", "", ""
    often = f"{100 * found.last / run.collectives:.0f} %" + (f", by {brief(found.late)}" if found.last else "")
    cells = often, brief(found.cost), brief(found.waited)
    worst = run.slow and found.cost == max(other.waiting.cost for other in run.ranks if other.waiting)
    return (tag("b", cells[0], class_="warn"), tag("b", cells[1], class_="warn"), cells[2]) if worst else cells


def budget(run: Run) -> Html:
    """Return what profiled ranks spent their time on."""
    parts = [part for part in next(iter(run.budget.values()), {}) if any(row[part] for row in run.budget.values())]
    if not parts:
        return Html("")
    rows = list(run.budget.items())[:ROWS_MOST]
    hosts = {row.rank: row.host for row in run.ranks}
    cells = [[str(rank), hosts.get(rank, ""), *(share(shares[part]) for part in parts)] for rank, shares in rows]
    heads = ["rank", "node", *(part.replace("_", ", ") for part in parts)]
    said = "Sampled while PyTorch's profiler recorded; profile/ has its traces."
    shown = table(heads, cells, "what ranks spent their time on", "shares")
    return section("Time", shown, tag("p", said, class_="facts"))


def share(part: float) -> Html:
    """Return a share in percent, on a ground that is the stronger the larger it is; a dot for nothing."""
    step = sum(part >= least for least in SHARES)
    return tag("span", f"{100 * part:.0f} %" if part >= 0.005 else "·", class_=f"share s{step}")


def exit_of(row: RankRun) -> str:
    """Return the exit status of a rank, with its signal."""
    status = "" if row.rc is None else str(row.rc)
    return f"{status} (signal {row.signal})" if row.signal else status


def links(run: Run) -> Html:
    """Return how fast the links between the nodes were when verify.yml measured them."""
    if not run.links:
        return Html("")
    said = f"verify.yml measured them at {run.links.at}, over {run.links.network}."
    return section("Links", heat_map(run.links), tag("p", said, class_="facts"))


def versions(run: Run) -> Html:
    """Return the versions and digests that a run was made with."""
    rows = digest(run)
    pairs = [part for name, value in rows.items() for part in (tag("dt", name), tag("dd", value))]
    return section("Versions", tag("dl", *pairs, class_="pairs")) if pairs else Html("")


def digest(run: Run) -> dict[str, str]:
    """Return what two runs are compared by: what was planned, and the versions it was planned with."""
    nodes = run.nodes
    found = {
        "program": " ".join(run.program),
        "code": run.code,
        "ranks": str(run.world_size or ""),
        "placement": placed(run),
        "launcher": f"{run.launcher} {run.launcher_version}".strip(),
        "backend": run.backend,
        "PyTorch": per_node({node.name: node.torch for node in nodes}),
        "torchfleet": per_node({node.name: node.runtime for node in nodes}),
        "network": per_node({node.name: f"{node.nic} {node.network}".strip() for node in nodes}),
        "fabric": per_node({node.name: node.fabric for node in nodes}),
        "cores": per_node({node.name: str(node.cores or "") for node in nodes}),
        "GPUs": per_node({node.name: ", ".join(f"{n} {vendor}" for vendor, n in node.gpus.items()) for node in nodes}),
        "packages": "; ".join(run.packages),
        "data": run.data,
        "job_timeout": span(run.job_timeout) if run.job_timeout else "",
    }
    return {name: value for name, value in found.items() if value}


def placed(run: Run) -> str:
    """Return which ranks are on which node: "n1: 0-3; n2: 4-7"."""
    hosts = by_host(run.ranks)
    if len(hosts) > 16:
        return f"{len(hosts)} nodes: {fold_names(hosts)}"
    return "; ".join(f"{host}: {ranks_named([row.rank for row in rows])}" for host, rows in hosts.items())


def per_node(values: Mapping[str, str]) -> str:
    """Return a value that all nodes have, or which nodes have which."""
    which: dict[str, list[str]] = {}
    for name, value in values.items():
        which.setdefault(value, []).append(name)
    if len(which) < 2:
        return next(iter(which), "")
    return "; ".join(f"{value or 'none'} on {fold_names(names)}" for value, names in which.items())


def command(run: Run) -> Html:
    """Return the launcher's command and the environment of the ranks, each word with its reason."""
    if not run.command:
        return Html("")
    tables = [reasons_table(run.command, "the command")] if run.command[0].reason else [
        tag("pre", code(" ".join(word.words for word in run.command)))
    ]  # fmt: skip
    alike: dict[tuple[Reason, ...], list[str]] = {}
    for node, variables in run.variables.items():
        alike.setdefault(variables, []).append(node)
    for rows, nodes in list(alike.items())[:4]:
        where = fold_names(nodes)
        tables.append(folded(f"Environment of the ranks on {where}", reasons_table(rows, f"environment on {where}")))
    warnings = [tag("p", f"! {text}", class_="warn") for text in run.warnings]
    return section("Command", *tables, *warnings)


def reasons_table(rows: Iterable[Reason], caption: str) -> Html:
    """Return words with their reasons."""
    cells = [[code(row.words), row.reason, row.source] for row in rows]
    return table(["what", "why", "from"], cells, caption, "reasons")


def attempts(run: Run) -> Html:
    """Return the attempts of a job that was started again."""
    if len(run.attempts) < 2:
        return Html("")
    rows = [tag("li", code(job_id), f" {state}") for job_id, state in run.attempts]
    return section("Attempts", tag("ol", *rows))


def missing(run: Run) -> Html:
    """Return what of the run is not here or cannot be read."""
    if not run.missing:
        return Html("")
    return section("Not here", tag("ul", *(tag("li", code(text)) for text in run.missing)))


def section(title: str, *inside: str, class_: str | None = None) -> Html:
    """Return a part of the page with its title. `class_`: "whole" for one that takes the width of a wall."""
    return tag("section", tag("h2", title), *inside, class_=class_)


SECTIONS: tuple[Section, ...] = (
    figures, missing, attempts, curves, diagnosis, timeline, how_it_ended, taken, rank_table, budget, links, versions,
    command,
)  # fmt: skip
