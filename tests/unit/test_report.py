"""Reports of runs: well-formed, small, without anything from elsewhere, and made of whatever lies in the directory."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.book import book
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report import files
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.charts import Scale, thinned, ticks_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.compare import comparison, differing, sentence
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.files import TAKEN_BYTES, Unreadable, read_json
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.lanes import ending
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.markup import Html, safe
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.page import fitting, report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.reading import read_run, spread
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.verdict import verdict_of
from tests.unit.report_pages import RECORDED, checked

REPO = Path(__file__).parents[2]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a copy of the run whose rank 1 failed."""
    return Path(shutil.copytree(RECORDED / "failure", tmp_path / "failure"))


def change(path: Path, how: Callable[[Any], Any]) -> None:
    """Change the JSON in a file."""
    found = json.loads(path.read_text())
    path.write_text(json.dumps(how(found) or found))


@pytest.mark.parametrize("name", ["failure", "two-nodes"])
def test_a_page_is_well_formed_and_loads_nothing(name: str) -> None:
    run = read_run(RECORDED / name)
    text = report(run)
    page = checked(text)
    assert text == report(read_run(RECORDED / name))
    for picture in page.all("svg"):
        assert picture.get("aria-hidden") == "true" or picture.get("aria-label") or "viewbox" in picture
    assert len(page.all("title")) > len([svg for svg in page.all("svg") if svg.get("role") == "img"])
    assert len(page.all("desc")) == len([svg for svg in page.all("svg") if svg.get("role") == "img"])
    assert "None" not in page.text and "nan" not in page.text


def test_the_verdict_is_first_and_names_the_rank_and_the_next_step(run_dir: Path) -> None:
    page = checked(report(read_run(run_dir)))
    order = ["failed first after", "loss is not a number", "tail -n 40", "Curves", "Timeline", "The end", "Ranks"]
    order += ["Versions", "Command"]
    places = [page.text.index(words) for words in order]
    assert places == sorted(places)
    assert "Rank 1 on localhost failed first after 3.24 s: exit status 1." in page.text
    assert f"tail -n 40 {run_dir}/ranks/1/stderr" in page.text
    assert "10 reported values were no number" not in page.text  # of the recorded reports not all are kept
    assert "reported values were no number" in page.text
    for words in ("samples/s", "step time", "2.13.0+cpu", "a rank bound to one core trains many times slower"):
        assert words in page.text
    assert "Links" not in page.text and "Attempts" not in page.text and "Not here" not in page.text


def test_nodes_with_the_same_environment_are_named_together() -> None:
    assert "Environment of the ranks on n1 n2environment" in checked(report(read_run(RECORDED / "two-nodes"))).text


def test_the_end_is_told_in_order(run_dir: Path) -> None:
    events = ending(read_run(run_dir))
    assert [event.first for event in events] == [True, False, False, False]
    assert events[0].who == "rank 1 on localhost" and events[0].what == "failed: exit status 1"
    assert {event.what for event in events[1:]} == {"ended with the job: died of SIGTERM"}
    assert [event.at for event in events] == sorted(event.at or 0 for event in events)


def test_the_last_look_at_a_job_is_shown_as_it_is_indented(run_dir: Path) -> None:
    (run_dir / "diagnosis").mkdir()
    (run_dir / "diagnosis" / "look.txt").write_text("job x: rank 1 sleeps\n\nranks 0-1: main\n  rank 1: <load>\n")
    page = checked(report(read_run(run_dir)))
    assert "The last lookjob x: rank 1 sleepsranks 0-1: main\n  rank 1: <load>Timeline" in page.text


def test_the_table_of_ranks_tells_who_waited_for_whom(run_dir: Path) -> None:
    ranks = [
        {"rank": 0, "host": "localhost", "last": 7, "late": 0.001, "late_p95": 0.002, "cost": 0.01, "waited": 5.0},
        {"rank": 1, "host": "localhost", "last": 93, "late": 0.041, "late_p95": 0.05, "cost": 4.5, "waited": 0.0},
        {"rank": "one", "last": -4, "late": "nan", "cost": None},
    ]
    skew = {"code": "waited_for_rank", "sentence": "the others <waited> for rank 1", "collectives": 100, "ranks": ranks}
    profile = {"budget": [{"rank": 0, "shares": {"own": 0.25, "data": 7, "x": 1}}, {"rank": 1, "shares": "none"}, 7]}
    change(run_dir / "result.json", lambda result: result.update(skew=skew, profile=profile))
    page = checked(report(read_run(run_dir)))
    for words in ("The others <waited> for rank 1.", "93 %, by 41 ms", "cost the others", "4.50 s", "25 %", "100 %"):
        assert words in page.text
    assert page.text.index("Ranks") < page.text.index("Sampled while") < page.text.index("Versions")
    for nonsense in ({"skew": 7, "profile": []}, {"skew": {"ranks": 1}, "profile": {"budget": {}}}):
        change(run_dir / "result.json", lambda result, nonsense=nonsense: result.update(nonsense))
        assert "cost the others" not in checked(report(read_run(run_dir))).text


def n2_is_ahead(plan: dict[str, Any]) -> None:
    """Note the offsets of the clocks in a plan."""
    for node in plan["nodes"]:
        node["clock_offset"] = 100.0 * (node["name"] == "n2")


def test_times_are_by_the_clock_of_the_head(tmp_path: Path) -> None:
    """The clock of n2 is 100 s ahead: without the offset of the plan its ranks would end last."""
    run_dir = Path(shutil.copytree(RECORDED / "two-nodes", tmp_path / "x"))
    right = {row.rank: row.ended for row in read_run(run_dir).ranks}
    assert "clocks of the nodes were not recorded" in report(read_run(run_dir))  # the run is of an older version
    for rank in (2, 3):
        change(run_dir / "ranks" / str(rank) / "record.json", lambda row: row.update(started=row["started"] + 100))
    change(run_dir / "plan.json", n2_is_ahead)
    found = read_run(run_dir)
    assert {row.rank: row.ended for row in found.ranks} == pytest.approx(right, rel=0, abs=0.001)
    assert "the largest correction is n2&#x27;s, 1 min 40 s ahead" in report(found)


STATES = {
    "succeeded": "The one rank succeeded",
    "timed_out": "The time limit",
    "cancelled": "It was ended from outside",
    "lost": "The job was lost",
    "saved": "The job saved its work",
    "on fire": "The result says 'on fire'",
}


@pytest.mark.parametrize("state", [*STATES, "failed", ""])
def test_what_a_verdict_tells_to_type_exists(run_dir: Path, state: str) -> None:
    change(run_dir / "result.json", lambda result: result.update(state=state))
    verdict = verdict_of(read_run(run_dir))
    for name in re.findall(r"[\w/]+\.yml|docs/[\w-]+\.md", " ".join([verdict.next_step, *verdict.commands])):
        assert (REPO / name).is_file(), name


@pytest.mark.parametrize("state", STATES)
def test_the_verdict_follows_the_code_of_the_state(run_dir: Path, state: str) -> None:
    change(run_dir / "result.json", lambda result: result.update(state=state, world_size=1))
    run = read_run(run_dir)
    assert verdict_of(run).sentence.startswith(STATES[state])
    checked(report(run))


def test_a_job_that_was_ended_because_it_hung_says_so(run_dir: Path) -> None:
    """Its state is `failed`: nobody is said to have failed first."""
    note = {"code": "hang_end", "text": "it hung, so hang_end ended it"}
    change(run_dir / "result.json", lambda result: result.update(state="failed", notes=[note]))
    run = read_run(run_dir)
    assert verdict_of(run).sentence.startswith("It hung, and was ended")
    checked(report(run))


@pytest.mark.parametrize("state", ["timed_out", "failed", "cancelled", "lost"])
def test_the_verdict_on_a_job_that_hung_begins_with_who_kept_the_others_waiting(run_dir: Path, state: str) -> None:
    over, who = state == "timed_out", "rank 1 on n2 is asleep; rank 0 waits for it"
    notes = [{"code": "kept_waiting", "text": who} if over else {"code": "hung", "text": f"it hung: {who}"}]
    notes += [{"code": "hang_end", "text": "hang_end ended it"}] if state == "failed" else []
    change(run_dir / "result.json", lambda result: result.update(state=state, notes=notes))
    cause = f"why: {who}"
    if state in ("timed_out", "failed"):
        change(run_dir / "result.json", lambda result: result["first_failure"].update(cause=cause))
    run = read_run(run_dir)
    assert verdict_of(run).sentence.startswith(f"{who.capitalize() if over else f'It hung: {who}'}.")
    page = checked(report(run))
    assert page.text[: page.text.index("Curves")].lower().count("rank 1 on n2 is asleep") == 1


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"signal": 9}, "for want of memory"),
        ({"signal": 11}, "crashed in compiled code"),
        ({"error_code": "misplaced"}, "elsewhere than planned"),
        ({"error_code": "disk_full"}, "Look for room"),
        ({"error_code": "out_of_memory", "signal": 9}, "too little memory for its ranks"),
        ({"error_code": "wrapper_died"}, "for want of memory"),
        ({}, "Read the end of its output"),
    ],
)
def test_the_next_step_follows_the_codes_of_the_rank(run_dir: Path, changed: dict[str, Any], advice: str) -> None:
    change(run_dir / "result.json", lambda result: result["ranks"][1].update({"signal": changed.get("signal")}))
    change(run_dir / "ranks" / "1" / "record.json", lambda record: record.update(changed))
    assert advice in verdict_of(read_run(run_dir)).next_step


def test_a_known_cause_is_told_in_the_words_of_the_book(run_dir: Path) -> None:
    """A head may have written a result, so only the id counts, and what it says is quoted."""
    cause = {"id": "module-missing", "rank": 0, "host": "n1", "line": "No 'x'", "cause": "EVIL", "mend": "EVIL"}
    change(run_dir / "result.json", lambda result: result.update(cause=cause))
    verdict = verdict_of(read_run(run_dir))
    (entry,) = [entry for entry in book() if entry.id == "module-missing"]
    said = f"{entry.cause} Fix: {entry.mend}. (cause module-missing of docs/causes.md)"
    assert verdict.next_step == f"Rank 0 on n1 says \"No 'x'\": {said}"
    assert "EVIL" not in report(read_run(run_dir))
    change(run_dir / "result.json", lambda result: result["cause"].update(rank=1))
    assert verdict_of(read_run(run_dir)).next_step == said
    change(run_dir / "result.json", lambda result: result["cause"].update(id="other"))
    assert "Read the end of its output" in verdict_of(read_run(run_dir)).next_step


def test_ranks_that_never_met_are_told_in_the_verdict(run_dir: Path) -> None:
    note = {"code": "ranks_never_met", "text": "each alone"}
    change(run_dir / "result.json", lambda result: result.update(state="succeeded", notes=[note]))
    assert "they never met" in verdict_of(read_run(run_dir)).sentence


HOSTILE = "</title></style></svg><script>alert(1)</script>\" onload='x' \x00\x1b[2J\u202e]]>-->"


def poisoned(value: Any) -> Any:
    """Return a value of JSON with every text and every name hostile, but for those that say what kind it is."""
    if isinstance(value, dict):
        return {
            name: found if name in ("state", "error_code", "time") else poisoned(found) for name, found in value.items()
        } | {HOSTILE: 1.0}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_text_in_markup_does_nothing() -> None:
    assert "<" not in safe(HOSTILE) and not re.search("[\x00\x1b\u202e]", safe(HOSTILE))


def test_whatever_a_node_says_is_text(run_dir: Path) -> None:
    for path in [*run_dir.glob("*.json"), *run_dir.glob("ranks/*/record.json")]:
        change(path, poisoned)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps({**row, HOSTILE: row["loss"]}) + "\n" for row in rows))
    page = checked(report(read_run(run_dir)))
    assert "alert(1)" in page.text and not re.search("[\x00\x1b\u202e]", page.text)
    checked(comparison([read_run(run_dir), read_run(RECORDED / "failure")]))


def test_a_command_of_the_next_step_is_safe_to_paste(run_dir: Path) -> None:
    """A head may name any log; and the directory of the run may have any name."""
    change(run_dir / "result.json", lambda result: result["first_failure"].update(log="/x/a; rm -rf ~"))
    odd = run_dir.rename(run_dir.with_name("my $(run)"))
    assert verdict_of(read_run(odd)).commands == (f"tail -n 40 '{odd}/result.json'",)
    change(odd / "result.json", lambda result: result["ranks"][1].update(host="n1; rm -rf ~", signal=9))
    assert verdict_of(read_run(odd)).commands == ("journalctl -k | grep -i -e oom -e killed",)


NONSENSE = {
    "nothing": b"",
    "a list": b"[]",
    "torn": b'{"job_id": "x", "ranks": [{"ra',
    "deep": b"[" * 100_000,
    "no text": b"\xff\xfe\x00",
    "endless numbers": b'{"rank": 1' + b"0" * 5000 + b"}",
    "other types": b'{"ranks": {"0": 1}, "placement": [1, null], "nodes": "n", "first_failure": [], "metrics": 7,'
    b' "leftovers": [], "notes": {"a": 1}, "command": 1, "environment": [], "seconds": 1e999, "state": {}}',
    "a NaN": b'{"seconds": NaN}',
}
FILES = ("plan.json", "result.json", "metrics.jsonl", "fetched.json", "ranks/1/record.json", "attempts.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_in_a_file_makes_a_report_without_it(run_dir: Path, name: str, nonsense: str) -> None:
    (run_dir / name).write_bytes(NONSENSE[nonsense])
    checked(report(read_run(run_dir)))


@pytest.mark.parametrize("name", FILES[:4])
@pytest.mark.parametrize("place", ["missing", "directory", "link", "fifo"])
def test_a_file_that_is_not_there_is_named(run_dir: Path, name: str, place: str) -> None:
    path = run_dir / name
    path.rename(run_dir / "aside")
    if place == "directory":
        path.mkdir()
    elif place == "link":
        path.symlink_to("aside")
    elif place == "fifo":
        os.mkfifo(path)
    run = read_run(run_dir)
    assert [text.partition(":")[0] for text in run.missing] == [name]
    assert "Not here" in checked(report(run)).text


def test_an_empty_directory_has_a_report(tmp_path: Path) -> None:
    run = read_run(tmp_path)
    assert len(run.missing) == 4
    assert "The result of this run is not here." in checked(report(run)).text


def many(count: int, names: int) -> dict[str, Any]:
    """Return the result of a large job, of which one rank failed."""
    rows = [
        {
            "rank": rank,
            "host": f"n{rank // 8}",
            "state": "ended",
            "rc": 143,
            "signal": 15,
            "seconds": 9.5,
            "last_line": "x" * 400,
        }
        for rank in range(count)
    ]
    rows[7].update(state="failed", rc=1, signal=None)
    failure = {"rank": 7, "host": "n0", "cause": "exit status 1", "message": "m", "log": "/runs/x/ranks/7/stderr"}
    metrics = {f"name{number}": number for number in range(names)}
    return {
        "job_id": "x",
        "state": "failed",
        "world_size": count,
        "ranks": rows,
        "first_failure": failure,
        "metrics": metrics,
        "seconds": 20.0,
    }


def test_a_large_job_has_a_small_page(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(many(512, 1000)))
    rows = [
        {"time": 100.0 + at / 10, "rank": rank, **{f"name{n}": (at * rank * 7919) % 101 for n in range(9)}}
        for at in range(0, 200, 20)
        for rank in range(512)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = read_run(tmp_path)
    page = checked(report(run))
    assert "median of 512 ranks" in page.text and "312 more ranks" in page.text
    events = ending(run)
    assert len(events) == 2 and events[0].first is True
    assert events[1].who.startswith("511 ranks on n0 n1-n63 (ranks 0-6, 8-511)")


def test_a_large_record_of_a_rank_is_none(run_dir: Path) -> None:
    """There may be thousands, and a page is waited for."""
    change(run_dir / "ranks" / "1" / "record.json", lambda record: record.update(more=[0] * 40_000))
    assert [row.began is None for row in read_run(run_dir).ranks] == [False, True, False, False]


def test_a_part_that_does_not_fit_is_left_out_and_the_next_is_not() -> None:
    kept = fitting([Html("x" * 60), Html("y" * 60), Html("z" * 30)], 100)
    assert (kept[0], kept[2]) == ("x" * 60, "z" * 30) and "too large for this page" in kept[1]


def test_of_a_large_file_of_reports_pieces_are_read_from_its_start_to_its_end(run_dir: Path) -> None:
    path = run_dir / "metrics.jsonl"
    first = json.loads(path.read_text().splitlines()[0])["time"]
    rows = (TAKEN_BYTES // 60) * 2
    with path.open("w") as file:
        for at in range(rows):
            file.write(f'{{"time": {first + at / 1000:.3f}, "rank": 0, "loss": {at}, "more": 1234567890}}\n')
    run = read_run(run_dir)
    points = run.series["loss"][0]
    assert run.sampled and points[0][1] == 0 and points[-1][1] == rows - 1
    assert len(points) < 100_000
    assert "evenly spread" in report(run)


def test_reports_that_came_at_once_are_spread() -> None:
    """They are read ten times a second and have the time of the reading; their order is that of the file."""
    points = spread([(1.0, 5.0), (1.001, 4.0), (1.1, 9.0), (1.1, 1.0), (1.1, 7.0), (1.1, 3.0)])
    assert [value for _at, value in points] == [5.0, 4.0, 9.0, 1.0, 7.0, 3.0]
    assert [round(at, 3) for at, _value in points[2:]] == [1.026, 1.05, 1.075, 1.1]


def test_thinned_curves_keep_their_peaks() -> None:
    points = tuple((at / 100, 1000.0 if at == 5555 else float(at % 10)) for at in range(10_000))
    found = thinned(points, Scale((0.0, 1000.0), 0.0, 100.0), 50)
    assert len(found) <= 102 and (55.55, 1000.0) in found and found == tuple(sorted(found))


@pytest.mark.parametrize(
    ("least", "most"),
    [
        (0, 1),
        (0.5, 0.5),
        (0, 0),
        (-1e299, 1e299),
        (1e-300, 2e-300),
        (1e15, 1e15 + 1),
        (5, 5 + 1e-15),
        (0, 5e-324),
        (0, 4e-323),
    ],
)
def test_a_scale_has_round_ticks_around_its_values(least: float, most: float) -> None:
    ticks = ticks_of(least, most)
    assert ticks[0] <= least and ticks[-1] >= most and ticks[0] < ticks[-1] and len(ticks) <= 8


def test_links_are_shown_of_the_same_nodes_and_network_only(tmp_path: Path) -> None:
    rows = [
        {"from": "n1", "to": "n2", "mbit": 9400.0, "rtt_us": 80.0},
        {"from": "n2", "to": "n1", "mbit": 940.0, "rtt_us": None},
    ]
    rows += [{"from": "n1", "to": "n33", "mbit": 1.0, "rtt_us": 1.0}]
    proof = tmp_path / "verify.json"
    proof.write_text(json.dumps({"at": "2026-11-25", "network": "10.201.128.0/24", "links": rows}))
    page = checked(report(read_run(RECORDED / "two-nodes", proof)))
    assert "9.4 Gbit/s" in page.text and "▼ 940 Mbit/s" in page.text and "n33" not in page.text
    proof.write_text(json.dumps({"at": "2026-11-25", "network": "10.9.0.0/24", "links": rows}))
    assert "Links" not in checked(report(read_run(RECORDED / "two-nodes", proof))).text


def other_torch(plan: dict[str, Any]) -> None:
    """Give all nodes another PyTorch."""
    for node in plan["nodes"]:
        node["torch"] = "2.15.0"


def test_runs_are_compared_by_what_was_planned(run_dir: Path) -> None:
    one = read_run(RECORDED / "failure")
    assert sentence([one, read_run(run_dir)]) == "2 runs, planned alike: same program, versions, nodes and network."
    change(run_dir / "plan.json", lambda plan: plan.update(code="0" * 16) or other_torch(plan))
    other = read_run(run_dir)
    assert differing([one, other]) == {"code": [one.code, "0" * 16], "PyTorch": ["2.13.0+cpu", "2.15.0"]}
    page = checked(comparison([one, other, read_run(RECORDED / "two-nodes")]))
    assert "2.15.0" in page.text and "3 runs, which differ in program, code," in page.text
    assert page.text.index("What differed") < page.text.index("Curves")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node wrote it."""
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"a": "x" * 50, "b": [[], [], []]}))
    assert read_json(path).text("a") == "x" * 50
    with pytest.raises(Unreadable, match="too large"):
        read_json(path, 50)
    monkeypatch.setattr(files, "VALUES_MOST", 5)
    with pytest.raises(Unreadable, match="too large"):
        read_json(path)
