"""Preflight as a whole: from recorded facts of real nodes to no finding, or to those of every node."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer, Target
from tests.unit.recorded_nodes import CLOCK, RECORDED, judged, two_nodes


def test_two_good_nodes_have_no_findings() -> None:
    assert judged(two_nodes()) == []


def test_one_machine_alone_has_no_findings() -> None:
    target = Target("localhost", "localhost", head=True, slots=2)
    assert judged({"localhost": Answer(RECORDED["localhost"], CLOCK)}, targets=(target,)) == []


def test_a_silent_node_does_not_hide_the_others() -> None:
    answers = {**two_nodes(home__free=0), "n1": Answer(problem="Connection refused")}
    assert {finding.id for finding in judged(answers)} == {"TF-SSH-PORT", "TF-DISK-HOME"}
