# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Findings of preflight and verify: what was seen on which nodes, why it matters, and how to fix it. Pure."""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

SEVERITIES = ("error", "warning", "info")  # only an error stops the run
WIDTH = 100  # columns of the output


@dataclass(frozen=True)
class Rule:
    """The fixed part of a kind of finding. `mend` may contain {words}, which each finding fills in."""

    severity: str
    title: str
    why: str
    source: str
    mend: str


@dataclass(frozen=True)
class Finding:
    """One problem. Ignored findings are shown, but do not stop the run."""

    id: str
    severity: str
    nodes: tuple[str, ...]
    seen: str
    title: str
    why: str
    source: str
    mend: str
    ignored: bool = False


def found(rules: Mapping[str, Rule], name: str, nodes: Sequence[str], seen: str, /, **words: object) -> Finding:
    """Return a finding of the rule called `name`."""
    rule = rules[name]
    mend = line(rule.mend.format(**words))
    return Finding(name, rule.severity, tuple(nodes), line(seen), rule.title, rule.why, rule.source, mend)


def sort_out(findings: Iterable[Finding], ignore: Collection[str] = ()) -> tuple[Finding, ...]:
    """Return the findings, the worst first. Equal findings of several nodes are merged; the nodes keep their order."""
    merged: dict[Finding, list[str]] = {}
    for finding in findings:
        key = dataclasses.replace(finding, nodes=(), ignored=finding.id in ignore)
        merged[key] = list(dict.fromkeys([*merged.get(key, []), *finding.nodes]))
    rows = [dataclasses.replace(finding, nodes=tuple(nodes)) for finding, nodes in merged.items()]
    return tuple(sorted(rows, key=lambda row: (row.ignored, SEVERITIES.index(row.severity), row.id)))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that stop the run."""
    return [finding for finding in findings if finding.severity == "error" and not finding.ignored]


def check_ids(name: str, given: Sequence[str], rules: Collection[str]) -> frozenset[str]:
    """Return the given ids. Raise InputError for an unknown id, which would ignore nothing."""
    for word in given:
        if word not in rules:
            near = difflib.get_close_matches(str(word).upper(), list(rules), 1, 0.4) or [min(rules)]
            raise InputError(name, word, f"give ids of findings from docs/preflight.md: {name}: [{near[0]}]")
    return frozenset(given)


# --- for people ----------------------------------------------------------------------------------------------------


def wrapped(label: str, text: str, width: int = WIDTH, indent: int = 8) -> list[str]:
    """Return the lines of a text after its label, the text aligned; words (paths, options) are never split."""
    first = f"  {label:<{indent - 2}}"
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def steps(mend: str, width: int = WIDTH) -> list[str]:
    """Return the steps of the fix, each on a line of its own, so that a command can be copied."""
    parts = mend.split("; ")
    return [line for at, part in enumerate(parts) for line in wrapped("" if at else "fix", part, width)]


def block(findings: Sequence[Finding], width: int = WIDTH) -> list[str]:
    """Return the lines of findings with the same id and severity. Reason and fix are shown once if they are equal."""
    first = findings[0]
    lines = [f"{'ignored' if first.ignored else first.severity.upper()} {first.id}: {first.title}"]
    mends = list(dict.fromkeys(finding.mend for finding in findings))
    for finding in findings:
        names = fold_names(finding.nodes)
        lines += wrapped("seen", f"{names}: {finding.seen}" if names else finding.seen, width)
        lines += steps(finding.mend, width) if len(mends) > 1 else []
    lines += wrapped("why", f"{first.why} [{first.source}]", width)
    return lines + (steps(mends[0], width) if len(mends) == 1 else [])


def render(findings: Sequence[Finding], width: int = WIDTH) -> list[str]:
    """Return the lines of all findings, a block for each id."""
    groups: dict[tuple[str, str, bool], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.id, finding.severity, finding.ignored), []).append(finding)
    return [line for group in groups.values() for line in [*block(group, width), ""]][:-1]


def count(findings: Sequence[Finding]) -> str:
    """Return "1 error, 2 warnings", "nothing found"."""
    words = ["ignored" if finding.ignored else finding.severity for finding in findings]
    parts = [
        f"{words.count(word)} {word}{'s' * (words.count(word) != 1 and word in ('error', 'warning'))}"
        for word in (*SEVERITIES, "ignored")
        if word in words
    ]
    return ", ".join(parts) or "nothing found"


def verdict(findings: Sequence[Finding]) -> str:
    """Return the errors in one line: "2 errors: TF-DISK-HOME on n2; TF-NO-PYTHON on n3"."""
    stops = errors(findings)
    nodes: dict[str, list[str]] = {}
    for finding in stops:
        nodes.setdefault(finding.id, []).extend(finding.nodes)
    each = [f"{name} on {fold_names(dict.fromkeys(on))}" if on else name for name, on in nodes.items()]
    return f"{len(stops)} error{'s' * (len(stops) != 1)}: {'; '.join(each)}"


def report(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """Return the findings as plain values for JSON."""
    return [{**dataclasses.asdict(finding), "nodes": list(finding.nodes)} for finding in findings]


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Return a table with a line under its header. The widest columns are wrapped until the table fits."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [
        max(len(line) for row in cells for line in row[column].splitlines() or [""]) for column in range(len(head))
    ]
    while sum(widths) + 2 * len(widths) - 1 > width and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = [line for row in cells for line in table_row(row, widths)]
    tall = len(table_row(cells[0], widths))
    return [*lines[:tall], " " + "  ".join("─" * size for size in widths), *lines[tall:]]


def table_row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row of a table."""
    columns = [
        [part for line in cell.splitlines() or [""] for part in textwrap.wrap(line, size) or [""]]
        for cell, size in zip(row, widths, strict=True)
    ]
    tall = max(len(column) for column in columns)
    padded = [[*column, *[""] * (tall - len(column))] for column in columns]
    texts = (
        "  ".join(f"{part:<{size}}" for part, size in zip(line, widths, strict=True))
        for line in zip(*padded, strict=True)
    )
    return [f" {text}".rstrip() for text in texts]
