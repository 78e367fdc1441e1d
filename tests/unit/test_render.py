"""From plan to command line, host file, environment and the words that explain them."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import words_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain, pasteable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for, plan_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import Facts, facts_of_a_node, launcher

Planner = Callable[..., LaunchPlan]
WRAPPER = "/usr/bin/python3 -I -S /home/me/.torchfleet/lib/d/torchfleet.py rank /home/me/.torchfleet/jobs/job"
HOSTFILE = "/home/me/.torchfleet/jobs/job/hostfile"
MPIRUN = f"/opt/ompi/bin/mpirun --np 2 --hostfile {HOSTFILE} --map-by slot --bind-to none"


def openmpi(version: str) -> Facts:
    return launcher("/opt/ompi/bin/mpirun", version)


def test_a_home_that_openmpi_would_tear_apart_is_refused(plan_two: Planner) -> None:
    made = plan_two(launcher_facts=openmpi("4.1.4"))
    bad = dataclasses.replace(made, head=dataclasses.replace(made.head, job_dir="/my home/$(id)/jobs/job"))
    with pytest.raises(InputError, match="torchfleet_home"):
        render(bad)


def test_torchrun_on_two_nodes(plan_two: Planner) -> None:
    python = launcher("/v/bin/python", "2.13.0+cpu")
    other = {**python, "path": "/other/python"}
    command = render(plan_two(launcher_facts=python, n2={"launcher": other, "home": "/tf"}, launcher="torchrun"))
    first, second = (shlex.join(words_of(command.on[name])) for name in ("n1", "n2"))
    assert "--nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr 10.1.0.11" in first
    assert second.startswith("/other/python -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank 1")
    assert second.endswith("--no-python /usr/bin/python3 -I -S /tf/lib/d/torchfleet.py rank /tf/jobs/job")
    with pytest.raises(InputError, match=r"n1 2, n2 1.*-e launcher=openmpi"):
        render(plan_two(launcher_facts=python, launcher="torchrun", np=3))


def test_each_node_gets_its_own_nic_and_order(plan_two: Planner) -> None:
    made = plan_two(n2={"home": "/tf"})
    nics = [{item.name: item.value for item in node.environment} for node in made.nodes]
    assert [found["GLOO_SOCKET_IFNAME"] for found in nics] == ["eth0", "eth1"]
    order = order_for(made, render(made), "here")
    other = order["others"]["n2"]
    assert order["command"] and other["command"] == []  # mpirun asks for its daemon there when it wants it
    assert other["way"]["interpreter"] == "/usr/bin/python3.9"
    assert other["environment"]["GLOO_SOCKET_IFNAME"] == "eth1"
    assert other["launcher_search"] == ["/tf/jobs/job/bin", "/opt/ompi/bin"]


def test_an_unknown_version_is_refused(plan: Planner) -> None:
    with pytest.raises(InputError, match=r"openmpi 3\.1\.6.*is not 4\.x or 5\.x"):
        render(plan(facts=facts_of_a_node(launcher=openmpi("3.1.6"))))


def test_environment_of_the_ranks(plan: Planner) -> None:
    made = plan(job_env={"OMP_NUM_THREADS": "7", "MINE": "a b"})
    settings = {setting.name: setting for setting in made.head.environment}
    assert {name: setting.value for name, setting in settings.items()} == {
        "ACCELERATE_USE_CPU": "true",
        "GLOO_SOCKET_IFNAME": "lo",
        "MINE": "a b",
        "OMP_NUM_THREADS": "7",
        "PYTHONUNBUFFERED": "1",
        "TORCHFLEET_BACKEND": "gloo",
        "TORCHFLEET_JOB_ID": "job",
    }
    assert settings["OMP_NUM_THREADS"].source == "user"
    assert settings["GLOO_SOCKET_IFNAME"].source == "measured"


def test_accelerate_is_told_where_there_is_no_gpu(plan_two: Planner) -> None:
    """By what each node has, not by the backend: with GPUs and gloo it would move the work to the processor."""

    def told(**given: Any) -> list[tuple[str, str] | None]:
        made = plan_two(**given)
        found = [{item.name: item for item in node.environment} for node in made.nodes]
        settings = [values.get("ACCELERATE_USE_CPU") for values in found]
        return [(setting.value, setting.source) if setting else None for setting in settings]

    none, cpu = None, ("true", "measured")
    gpus = {"accelerators": {"nvidia": 2, "amd": 0}}
    assert told(backend="gloo", n2=gpus) == [cpu, none]
    assert told(backend="xccl", n1={"backends": ["xccl"]}, n2={"backends": ["xccl"]}) == [none, none]
    assert told(job_env={"ACCELERATE_USE_CPU": "false"}) == [("false", "user")] * 2
    own = {"n1": {"ACCELERATE_USE_CPU": "0"}}
    assert told(env=own) == [("0", "inventory"), cpu]


def test_nccl_gets_an_exact_interface(plan: Planner) -> None:
    gpu = {"accelerators": {"nvidia": 2, "amd": 0}, "torch": {"version": "2.13.0", "cuda": "13.0", "hip": ""}}
    made = plan(facts=facts_of_a_node(**gpu))
    settings = {item.name: item.value for item in made.head.environment}
    assert settings["NCCL_SOCKET_IFNAME"] == "=lo"  # a bare name would be a prefix (NCCL docs)
    assert "GLOO_SOCKET_IFNAME" not in settings


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


def test_secrets_stay_out_of_reports_but_reach_the_rank(plan: Planner) -> None:
    made = plan(job_env={"DB_PASSWORD": "hush", "PLAIN": "seen"})
    command = render(made)
    report = plan_report(made, command)
    shown = {row["name"]: row["value"] for row in json.loads(report)["environment"]["localhost"]}
    assert "hush" not in report and (shown["DB_PASSWORD"], shown["PLAIN"]) == ("(hidden)", "seen")
    assert "hush" not in repr(made)
    assert "hush" not in pasteable(made, command)
    order = order_for(made, command, "here")
    assert order.pop("secrets") == {"DB_PASSWORD": "hush"}
    assert "hush" not in json.dumps(order)


def test_the_pasteable_command_is_the_command(plan: Planner) -> None:
    made = plan(job_env={})
    command = render(made)
    comment, where, line = pasteable(made, command).splitlines()
    assert comment.startswith("#") and where == "# on localhost"
    assert shlex.split(line) == ["cd", "/home/me", "&&", *command.argv]
