"""What each launcher has to be told, or else it hangs, escapes the guard, or does something behind the user's back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from nodes import facts_of_a_node, launcher

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import words_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render

Planner = Callable[..., LaunchPlan]
FIVE, FOUR = launcher("/opt/ompi/bin/mpirun", "5.0.11"), launcher("/opt/ompi/bin/mpirun", "4.1.8")
INTEL = launcher("/opt/impi/bin/mpiexec.hydra", "2021.18")
AGENT = "/home/me/.torchfleet/jobs/job/bin/torchfleet-agent"


def has(words: Sequence[str], *run: str) -> bool:
    """Whether words stand in a command one after the other."""
    return any(tuple(words[start : start + len(run)]) == run for start in range(len(words)))


@pytest.mark.parametrize("version", [FIVE, FOUR])
def test_daemons_of_open_mpi_start_below_a_guard_and_find_their_own_programs(
    plan_two: Planner, version: dict[str, str]
) -> None:
    words = render(plan_two(launcher_facts=version)).argv
    kind, name = ("--prtemca", "plm_ssh") if version is FIVE else ("--mca", "plm_rsh")
    assert has(words, kind, f"{name}_agent", AGENT)
    assert has(words, kind, f"{name}_no_tree_spawn", "1")  # a daemon that another one starts has no guard
    assert "--leave-session-attached" in words
    assert "--noprefix" in words  # nodes may have it in different places


@pytest.mark.parametrize("version", [FIVE, FOUR])
def test_open_mpi_alone_on_one_machine_looks_for_no_ssh(plan: Planner, version: dict[str, str]) -> None:
    words = render(plan(facts=facts_of_a_node(launcher=version))).argv
    told = ("--prtemca", "plm_ssh_agent", "false") if version is FIVE else ("--mca", "plm", "isolated")
    assert has(words, *told)


@pytest.mark.parametrize(("uid", "told"), [(0, True), (1000, False)])
def test_open_mpi_is_told_that_root_is_meant(plan: Planner, uid: int, told: bool) -> None:
    words = render(plan(facts=facts_of_a_node(launcher=FIVE, uid=uid))).argv
    assert ("--allow-run-as-root" in words) is told


@pytest.mark.parametrize(("version", "word"), [(FIVE, "package"), (FOUR, "socket")])
def test_a_socket_has_the_name_that_the_version_knows(plan: Planner, version: dict[str, str], word: str) -> None:
    words = render(plan(facts=facts_of_a_node(launcher=version), bind_to="socket")).argv
    assert has(words, "--bind-to", word)


def test_proxies_of_intel_mpi_are_all_started_from_the_head(plan_two: Planner) -> None:
    """A proxy that another one starts comes by an ssh of its own, which no guard sees."""
    words = render(plan_two(launcher_facts=INTEL, launcher="intelmpi")).argv
    assert has(words, "-branch-count", "2") and has(words, "-launcher-exec", AGENT)


def test_torchrun_does_not_start_a_failed_rank_again(plan: Planner) -> None:
    """The ranks would come up without what the first attempt had, and the result would not say so."""
    words = render(plan(facts=facts_of_a_node(launcher=launcher("/v/bin/python", "2.13.0")), launcher="torchrun")).on
    assert all(has(words_of(options), "--max-restarts", "0") for options in words.values())
