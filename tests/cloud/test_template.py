"""AWS's own rules for templates, offline: names, types and values of each property, by region."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cfnlint import lint
from cfnlint.config import ManualArgs

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.template import render
from tests.unit import clouds

BIG = {"head": {"type": "t3.micro"}, "workers": {"count": 2, "type": "p5.48xlarge"}}
ROW = {"cluster_nodes": {"workers": {"count": 2, "type": "g4dn.xlarge"}}}
PLANS: dict[str, dict[str, Any]] = {
    "two CPUs": {},
    "a head, NVIDIA, AMD, spot": {"cluster_nodes": clouds.SEED, "cluster_spot": True},
    "EFA on all cards": {"cluster_nodes": BIG, "cluster_address": "private"},
    "EFA and a public address": {"cluster_nodes": BIG},
}


def found(text: str) -> list[str]:
    """Return what cfn-lint finds in a template for a region that has all these types."""
    return [str(match) for match in lint(text, config=ManualArgs(regions=["us-east-1"]))]


@pytest.mark.parametrize("name", PLANS)
def test_the_template_is_right_by_aws_own_rules(name: str) -> None:
    assert found(json.dumps(render(clouds.plan(**PLANS[name])))) == []


@pytest.mark.parametrize(("right", "wrong"), [("HttpTokens", "HttpToken"), ('"cluster"', '"clustr"')])
def test_the_rules_find_a_mistake(right: str, wrong: str) -> None:
    text = json.dumps(render(clouds.plan(**ROW)))
    assert right in text and found(text.replace(right, wrong)) != []
