"""A plan as people read it: every option with its reason, and a command to paste."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain, pasteable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render

Planner = Callable[..., LaunchPlan]


def test_every_option_and_variable_is_explained(plan: Planner) -> None:
    made = plan(job_env={"HF_TOKEN": "hush"})
    command = render(made)
    text = "\n".join(explain(made, command))
    for option in command.options:
        assert shlex.join(option.words) in text
        assert f"# {option.reason} [{option.source}]" in text
        assert option.source in ("default", "inventory", "measured", "user")
    for setting in made.head.environment:
        assert f"{setting.name}=" in text
    for name in ("PATH=", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=23456", "WORLD_SIZE=", "OMPI_COMM_WORLD_"):
        assert name in text
    assert "hush" not in text


def test_a_variable_that_a_node_sets_itself_is_shown_once(plan_two: Planner) -> None:
    made = plan_two(env={"n2": {"PATH": "/mine"}})
    shown = [line.split()[0] for line in explain(made, render(made)) if line.startswith("  PATH=")]
    assert shown == ["PATH=/home/me/.torchfleet/pytorch/bin:...", "PATH=/mine"]  # of n1, of n2


def test_the_pasteable_command_is_the_command(plan: Planner) -> None:
    made = plan(job_env={})
    command = render(made)
    comment, where, line = pasteable(made, command).splitlines()
    assert comment.startswith("#") and where == "# on localhost"
    assert shlex.split(line) == ["cd", "/home/me", "&&", *command.argv]
