"""The plan of nodes that are not there yet: pods, and nodes that Slurm chooses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import Program
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled import pod_plan, slurm_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.nodes_plan import (
    Asked,
    plan_nodes,
    with_reasons,
)


def shown(reasons: Mapping[str, str], **options: object) -> dict[str, tuple[str, str]]:
    """Return reason and source of every variable and option of the second node, by name."""
    hosts = (("node0", "address0"), ("node1", "address1"))
    asked = Asked(hosts=hosts, ranks=2, cores=4, home="/tmp/home", port=29500, reasons=reasons)
    plan = plan_nodes(parse_request(options), asked, Job("job", "/runs/job", Program("train.py", ()), "code", "token"))
    command = with_reasons(render(plan), asked).on["node1"]
    settings = (*plan.nodes[1].environment, *plan.nodes[1].wrapper_environment)
    found = {setting.name: (setting.reason, setting.source) for setting in settings}
    return found | {option.words[0]: (option.reason, option.source) for option in command}


@pytest.mark.parametrize("reasons", [pod_plan.REASONS, slurm_job.REASONS], ids=["pods", "slurm"])
def test_what_nobody_has_measured_has_another_reason(reasons: Mapping[str, str]) -> None:
    found = shown(reasons)
    assert {name: found[name] for name in reasons} == {name: (why, "default") for name, why in reasons.items()}
    assert "measured" not in {source for _reason, source in found.values()}


def test_what_the_user_says_has_the_user_s_reason() -> None:
    said = shown(pod_plan.REASONS, job_env={"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"]
    assert said[1] == "user" and said[0] != pod_plan.REASONS["OMP_NUM_THREADS"]
