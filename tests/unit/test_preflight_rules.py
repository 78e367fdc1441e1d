"""The texts of preflight's findings: complete, documented, and each tested."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import findings as findings_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_rules import RULES
from tests.unit.test_preflight_no_answer import SAID
from tests.unit.test_preflight_one_node import CHANGES

REPO = Path(__file__).parents[2]


def test_every_finding_is_tested() -> None:
    """Those of drift in test_drift.py, the refusals of the inventory in the lab."""
    in_tables = {row[0] for row in CHANGES} | {row[2] for row in SAID}
    by_name = {"TF-ARCH-UNSUPPORTED", "TF-NO-SSH", "TF-HOME-SHARED", "TF-NO-SUDO", "TF-CLOCK-SKEW", "TF-NO-COMPILER"}
    by_name |= {"TF-NAME-FIRST-LABEL", "TF-ADDRESS-LOOPBACK", "TF-INVENTORY", "TF-RDMA-LIBRARIES", "TF-SLOW"}
    by_name |= {"TF-FABRIC-ASKED"}
    assert {name for name in RULES if not name.startswith("TF-DRIFT-")} == in_tables | by_name


def test_everything_known_of_a_finding_is_said() -> None:
    for name, rule in RULES.items():
        assert rule.severity in findings_module.SEVERITIES, name
        assert all((rule.title, rule.why, rule.source, rule.mend)), name
        assert not rule.why.endswith("."), name


def test_the_page_lists_every_finding() -> None:
    page = (REPO / "docs/preflight.md").read_text()
    listed = re.findall(r"^\| `(TF-[A-Z0-9-]+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert listed == [(name, rule.severity, rule.title, rule.why) for name, rule in RULES.items()]
