"""Preflight: what nodes share but must not, and what none of a kind has."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer, Limits
from tests.unit.recorded_nodes import CLOCK, judged, only, two_nodes


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, ("n1", "n2")),
        ({"compiler": True}, ("n1", "n2")),
        ({"compiler": True, "python__headers": True}, ()),  # one of a kind builds for the others
        ({"backends": True}, ()),
        ({"compiler": True, "python__headers": True, "system__os_version": "13"}, ("n1",)),
    ],
)
def test_a_backend_that_nobody_of_a_kind_can_build(changed: dict[str, Any], names: tuple[str, ...]) -> None:
    answers = two_nodes(**{"user__sudo": "no", **changed})
    first = dict(answers["n1"].facts or {})
    answers["n1"] = Answer({**first, "user": {**first["user"], "sudo": "no"}}, CLOCK)
    findings = judged(answers, Limits(compiles=True))
    found = [finding for finding in findings if finding.id == "TF-NO-COMPILER"]
    assert tuple(name for finding in found for name in finding.nodes) == names
    if names:
        assert only(found).severity == "error" and "Python.h; installing it needs root" in only(found).seen
    assert not [finding for finding in judged(answers) if finding.id == "TF-NO-COMPILER"]


def test_a_compiler_that_setup_installs_is_told_before_and_can_be_switched_off() -> None:
    answers = two_nodes(user__sudo="yes")  # of the second: it builds for the first, which is of its kind
    told = only([each for each in judged(answers, Limits(compiles=True)) if each.id == "TF-NO-COMPILER"])
    assert (told.severity, told.nodes, told.seen) == ("info", ("n1", "n2"), "missing: g++ and Python.h")
    assert told.mend.startswith("setup.yml installs it as root") and "torch_backends_install_tools=false" in told.mend
    off = judged(answers, Limits(compiles=True, installs_tools=False))
    told = only([each for each in off if each.id == "TF-NO-COMPILER"])
    assert (told.severity, told.seen) == (
        "error",
        "missing: g++ and Python.h; torch_backends_install_tools=false leaves it",
    )


def test_a_home_that_nodes_share() -> None:
    answers = two_nodes()
    shared = {"source": "server:/home", "kind": "nfs4"}
    answers = {
        name: Answer({**dict(answer.facts or {}), "home": {**(answer.facts or {})["home"], **shared}})
        for name, answer in answers.items()
    }
    finding = only(judged(answers))
    assert (finding.id, finding.nodes) == ("TF-HOME-SHARED", ("n1", "n2"))
