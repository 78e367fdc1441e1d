"""A node that is added is tested with the others, not they with each other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import trial as trial_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import verify, verify_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import sort_out
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.proven_links import (
    Proven,
    digest_of_node,
    joined,
    next_proven,
    read_proven,
    rows_of,
    spare,
)
from tests.unit.test_verify import ALL, HEARD, NODES, answer, links, listened, outcome

NOW = {name: f"as {name} is" for name in NODES}
WITH_N4 = {**NOW, "n4": "as n4 is"}
AT = "2026-11-25T10:00:00+0000"


def proven(proof: verify.Outcome, before: Proven | None = None, now: dict[str, str] | None = None) -> Proven:
    findings = sort_out(verify.judge(proof))
    return next_proven(before or Proven(), now or NOW, proof.measured, proof.rails, findings, AT)


def planned(*nodes: str) -> trial_module.Trial:
    heard = {name: {**HEARD, "n4": listened("10.1.0.14")}[name] for name in nodes}
    return trial_module.plan_trial({name: answer() for name in nodes}, heard, "n1", nodes)


def pairs_in(trial: trial_module.Trial) -> set[tuple[str, str]]:
    return {(name, step["node"]) for name, steps in trial.steps.items() for step in steps if step["role"] == "client"}


def test_a_new_node_is_tested_with_each_of_the_others() -> None:
    trial = spare(planned(*NODES, "n4"), proven(outcome()), WITH_N4)
    assert {frozenset(pair) for pair in pairs_in(trial)} == {frozenset(("n4", name)) for name in NODES}
    assert {name: len(steps) for name, steps in trial.steps.items()} == {"n1": 1, "n2": 1, "n3": 1, "n4": 3}
    assert trial.kept == (("n1", "n2"), ("n1", "n3"), ("n2", "n3")) and trial.kept_at == AT


def test_all_are_tested_where_nothing_is_new_or_nothing_is_known() -> None:
    whole = planned(*NODES)
    assert spare(whole, proven(outcome()), NOW) == whole == spare(whole, Proven(), NOW)


def test_a_node_that_changed_is_tested_with_all() -> None:
    trial = spare(planned(*NODES), proven(outcome()), {**NOW, "n2": "other"})
    assert {frozenset(pair) for pair in pairs_in(trial)} == {frozenset(("n2", "n1")), frozenset(("n2", "n3"))}
    assert trial.kept == (("n1", "n3"),)


@pytest.mark.parametrize(
    "change",
    [
        {"facts": {"host": {"machine_id": "other", "host_keys": []}}},
        {"facts": {"host": {"machine_id": "m", "host_keys": ["another machine of this name"]}}},
        {"versions": {"openmpi": "5.0.12"}},
        {"told": {"fabric": {"nic": "eth1", "address": "10.1.0.11", "network": "10.1.0.0/24"}}},
        {"told": {"fabric": {"nic": "eth0", "address": "10.1.0.99", "network": "10.1.0.0/24"}}},
        {"told": {"fabric": {"nic": "eth0", "address": "10.1.0.11", "network": "10.1.0.0/24", "mtu": 9000}}},
    ],
)
def test_what_the_links_of_a_node_depend_on(change: dict[str, Any]) -> None:
    host = {"machine_id": "m", "host_keys": ["k"]}
    given: dict[str, Any] = {"facts": {"host": host}, "versions": {"openmpi": "5.0.11"}, "told": HEARD["n1"]}
    digest = digest_of_node(**given)
    assert digest_of_node(**{**given, **change}) != digest
    of_others = {"digest": "of all nodes", "why": "x", "usable": [], "rejected": []}
    image = {"versions": {**given["versions"], "image": "1721a9ca67e5e983"}}  # in which no link is tested
    assert digest_of_node(**{**given, **image}) == digest
    assert digest_of_node(**{**given, "told": {"fabric": {**HEARD["n1"]["fabric"], **of_others}}}) == digest


def test_links_with_a_fault_are_tested_again() -> None:
    failed = links()
    failed["n1"][0] = {"node": "n2", "network": "10.1.0.0/24", "error": "silent", "code": "dropped"}
    assert proven(outcome(measured=failed)).measured.keys() == {"n2"}  # the finding names n1 alone
    slow = proven(outcome(measured=links(n1_n2=10.0)))
    assert [(name, row["node"]) for name, own in slow.measured.items() for row in own] == [("n1", "n3"), ("n2", "n3")]
    rail = {"node": "n3", "rail": "mlx5_0:1", "peer": "mlx5_0:1", "by": "rdma", "error": "no", "code": "no-path"}
    faulty = proven(outcome(rails={"n1": [], "n2": [rail], "n3": []}))
    assert [(name, row["node"]) for name, own in faulty.measured.items() for row in own] == [("n1", "n2"), ("n1", "n3")]

    for rows, rails in ((failed, {}), (links(), {"n2": [rail]})):  # whatever the findings are
        stored = next_proven(Proven(), NOW, rows, rails, [], AT)
        assert sum(map(len, stored.measured.values())) == 2 and not stored.rails.get("n2")


def test_what_is_kept_is_shown_and_judged_with_the_rest() -> None:
    known = proven(outcome(measured=links(n2_n3=700.0)))
    changed = {**NOW, "n1": "other"}
    trial = spare(planned(*NODES), known, changed)
    new = {**links(), "n2": []}
    proof = dataclasses.replace(
        outcome(), trial=trial, measured=joined(new, rows_of(known.measured, trial.kept)), rails={}
    )
    assert [finding.id for finding in sort_out(verify.judge(proof))] == []
    shown = "\n".join(verify_report.show(proof, []))
    assert "6 links" in shown and "2 of them were not tested again, for their nodes have not changed: n2 n3" in shown
    assert "700 / 50" in shown and f"all were on {AT}. -e verify_all=true tests all" in shown
    told = verify_report.report(proof, [], "now")
    assert (len(told["links"]), told["links_kept"]) == (6, {"at": AT, "pairs": [["n2", "n3"]]})
    assert spare(planned(*NODES), proven(proof, known, changed), changed).kept == ()  # all are proven now
    assert verify_report.report(outcome(), [], "now")["links_kept"]["pairs"] == []


def test_a_node_that_takes_no_part_is_not_forgotten_unless_the_other_changed() -> None:
    known, here = proven(outcome()), ("n1", "n2")
    alone = {**links(), "n1": links()["n1"][:1], "n2": []}
    for changed, kept in (({}, 3), ({"n2": "other"}, 2)):
        now = {**{name: NOW[name] for name in here}, **changed}
        given = {"answers": ALL, "listened": HEARD, "measured": alone}
        proof = outcome(**{what: {name: rows[name] for name in here} for what, rows in given.items()})
        after = proven(proof, known, now)
        assert sum(len(own) for own in after.measured.values()) == kept
        assert after.nodes == {**NOW, **changed}


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    assert read_proven("verify_matrix", str(path)) == Proven()
    path.write_text(json.dumps(dataclasses.asdict(proven(outcome()))))
    assert spare(planned(*NODES, "n4"), read_proven("verify_matrix", str(path)), WITH_N4).kept
    for text in ("", "[]", '{"nodes": {}}', '{"at": "", "nodes": {"n1": "x"}, "measured": {"n1": [1]}, "rails": {}}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"verify_matrix: got .*: remove the file, or give the path of another"):
            read_proven("verify_matrix", str(path))
