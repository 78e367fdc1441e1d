"""Preflight of the inventory's names and addresses."""

from __future__ import annotations

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Target
from tests.unit.recorded_nodes import judged, only, two_nodes


@pytest.mark.parametrize(
    ("names", "addresses", "name"),
    [
        (("node.a", "node.b"), ("192.0.2.11", "192.0.2.12"), "TF-NAME-FIRST-LABEL"),
        (("n1", "n2"), ("localhost", "192.0.2.12"), "TF-ADDRESS-LOOPBACK"),
        (("n1", "n2"), ("192.0.2.11", "127.0.0.1"), "TF-ADDRESS-LOOPBACK"),
        (("n1", "n2"), ("192.0.2.11", "::1"), "TF-ADDRESS-LOOPBACK"),
        (("192.0.2.11", "192.0.2.12"), ("192.0.2.11", "192.0.2.12"), ""),
    ],
)
def test_names_and_addresses(names: tuple[str, str], addresses: tuple[str, str], name: str) -> None:
    targets = tuple(Target(*pair) for pair in zip(names, addresses, strict=True))
    answers = dict(zip(names, two_nodes().values(), strict=True))
    findings = judged(answers, targets=targets)
    if name:
        assert only(findings).id == name
    else:
        assert findings == []
