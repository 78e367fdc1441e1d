"""Recorded facts of real nodes, changed as a test asks for, and what preflight finds in them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import findings as findings_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import preflight
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.clock import Clock
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift_values import versions_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer, Limits, Target

RECORDED = json.loads((Path(__file__).parent / "recorded/node_facts.json").read_text())
TARGETS = (
    Target("n1", "192.0.2.11", user="fleet", head=True, slots=2),
    Target("n2", "192.0.2.12", user="fleet", slots=2),
)
CLOCK = Clock(0.004, 0.008)
LIMITS = Limits()


def two_nodes(**changed: Any) -> dict[str, Answer]:
    """Return what the two recorded nodes answered, with parts of the second changed: home__free=0."""
    facts = copy.deepcopy(RECORDED["n2"])
    for path, value in changed.items():
        *inner, last = path.split("__")
        place = facts
        for name in inner:
            place = place[name]
        assert last in place, path
        place[last] = value
    return {"n1": Answer(RECORDED["n1"], CLOCK), "n2": Answer(facts, CLOCK)}


def judged(
    answers: dict[str, Answer], limits: Limits = LIMITS, targets: tuple[Target, ...] = TARGETS
) -> list[findings_module.Finding]:
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
    drift = compare({name: versions_of(fact, "") for name, fact in facts.items()}, list(facts))
    return list(findings_module.sort_out(preflight.judge(targets, answers, limits, drift)))


def only(findings: list[findings_module.Finding]) -> findings_module.Finding:
    """Return the only finding. Whatever it is, it can be shown, and every word of its mend is filled in."""
    assert len(findings) == 1, findings
    (finding,) = findings
    assert not set("{}") & set(finding.mend)
    assert max(len(line) for line in findings_module.render(findings)) <= 100
    return finding
