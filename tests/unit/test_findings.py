"""Findings: merged, sorted, ignored by id, and shown in 100 columns."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import findings
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import Finding, Rule
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

RULES = {
    "TF-B": Rule("error", "b is wrong", "it hurts", "man b", "on {name}: mend-b; or: leave-b"),
    "TF-A": Rule("warning", "a is odd", "it may hurt", "man a", "mend-a"),
    "TF-C": Rule("info", "c is so", "good to know", "man c", "nothing has to be done"),
}


def finding(name: str, node: str, seen: str = "so") -> Finding:
    return findings.found(RULES, name, [node], seen, name=node)


def test_the_same_on_several_nodes_is_one_finding_and_errors_come_first() -> None:
    rows = [finding("TF-C", "n1"), finding("TF-A", "n1"), finding("TF-B", "n2"), finding("TF-A", "n2")]
    merged = findings.sort_out(rows)
    assert [(row.id, row.nodes) for row in merged] == [("TF-B", ("n2",)), ("TF-A", ("n1", "n2")), ("TF-C", ("n1",))]
    assert findings.count(merged) == "1 error, 1 warning, 1 info"
    assert findings.count(()) == "nothing found"


def test_different_things_seen_stay_apart() -> None:
    assert len(findings.sort_out([finding("TF-A", "n1", "3"), finding("TF-A", "n2", "4")])) == 2


def test_what_is_ignored_is_shown_last_and_stops_nothing() -> None:
    rows = findings.sort_out([finding("TF-B", "n1"), finding("TF-A", "n1")], ["TF-B"])
    assert [(row.id, row.ignored) for row in rows] == [("TF-A", False), ("TF-B", True)]
    assert findings.errors(rows) == []
    assert "\nignored TF-B: b is wrong" in "\n".join(findings.render(rows))
    assert findings.count(rows) == "1 warning, 1 ignored"


@pytest.mark.parametrize("given", ["TF-D", "tf-a", "", 3])
def test_an_unknown_id_is_refused(given: object) -> None:
    with pytest.raises(InputError, match=r"preflight_ignore: got .*docs/preflight\.md") as refusal:
        findings.check_ids("preflight_ignore", [given], RULES)  # type: ignore[list-item]
    assert "\n" not in str(refusal.value)


def test_a_block_tells_everything_and_each_step_in_a_line() -> None:
    assert findings.render([finding("TF-B", "n1")]) == [
        "ERROR TF-B: b is wrong",
        "  seen  n1: so",
        "  why   it hurts [man b]",
        "  fix   on n1: mend-b",
        "        or: leave-b",
    ]


def test_what_mends_several_nodes_differently_stands_at_each() -> None:
    lines = findings.render(findings.sort_out([finding("TF-B", "n1"), finding("TF-B", "n2")]))
    assert [line for line in lines if "mend-b" in line] == ["  fix   on n1: mend-b", "  fix   on n2: mend-b"]
    assert len([line for line in lines if "why" in line]) == 1


def test_everything_fits_100_columns() -> None:
    long = dataclasses.replace(finding("TF-A", "n1"), seen="word " * 90, why="word " * 90, mend="word " * 90)
    lines = findings.render([long])
    assert max(len(line) for line in lines) <= 100
    assert len(lines) > 12
    table = findings.text_table(("a", "much text"), [("x" * 30, "word " * 60), ("y", "1\n2")])
    assert max(len(line) for line in table) <= 100


def test_the_verdict_is_one_line_that_names_ids_and_nodes() -> None:
    rows = findings.sort_out([finding("TF-B", f"n{number}", str(number % 2)) for number in range(1, 5)])
    assert findings.verdict(rows) == "4 errors: TF-B on n1-n4"
    assert findings.verdict([*rows[:1], finding("TF-A", "n9")]) == "1 error: TF-B on n1"


def test_the_report_is_plain() -> None:
    (row,) = json.loads(json.dumps(findings.report([finding("TF-A", "n1")])))
    assert (row["id"], row["severity"], row["nodes"], row["ignored"]) == ("TF-A", "warning", ["n1"], False)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], ""),
        (["n2", "n1"], "n1 n2"),
        (["n3", "n1", "n2"], "n1-n3"),
        ([f"n{number}" for number in (1, 2, 3, 4, 9, 10, 11)], "n1-n4 n9-n11"),
        (["gpu01", "gpu02", "gpu03", "db"], "db gpu01-gpu03"),
        (["node1.site", "node2.site", "node3.site"], "node1.site-node3.site"),
        (["10.0.0.1", "10.0.0.2", "10.0.0.3"], "10.0.0.1 10.0.0.2 10.0.0.3"),
        (["n1", "n10", "n2"], "n1 n2 n10"),
        (["localhost"], "localhost"),
    ],
)
def test_names_are_folded(names: list[str], short: str) -> None:
    assert fold_names(names) == short


def test_what_only_looks_like_a_number_is_none() -> None:
    assert fold_names(["²", "n1", "n2", "n3"]) == "n1-n3 ²"


def test_folding_long_names_takes_no_square_of_their_length() -> None:
    """It would take minutes."""
    assert len(fold_names("1" * 4000 + f"a{number}b1" for number in range(500)).split()) == 500


def test_a_table() -> None:
    assert findings.text_table(("name", "value"), [("a", "1"), ("long", "2\n3"), ("", "")]) == [
        " name  value",
        " ────  ─────",
        " a     1",
        " long  2",
        "       3",
        "",
    ]
