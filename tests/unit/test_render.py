"""From plan to command line, host file, environment and the words that explain them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

import pytest
from nodes import facts_of_a_node

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._environment import rank_environment
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._explain import explain, pasteable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers import render
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._order import order_for, plan_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import LaunchPlan, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError

Planner = Callable[..., LaunchPlan]
WRAPPER = "/usr/bin/python3 -I -S /r/torchfleet.py rank /home/me/.torchfleet/jobs/job"
HOSTFILE = "/home/me/.torchfleet/jobs/job/hostfile"
MPIRUN = f"/opt/ompi/bin/mpirun --np 2 --hostfile {HOSTFILE} --map-by slot --bind-to none"


def openmpi(version: str) -> dict[str, str]:
    return {"path": "/opt/ompi/bin/mpirun", "version": version, "wanted": "", "said": ""}


@pytest.mark.parametrize(
    ("version", "uid", "line"),
    [
        ("5.0.11", 1000, f"{MPIRUN} --prtemca plm_ssh_agent false {WRAPPER}"),
        ("5.0.11", 0, f"{MPIRUN} --allow-run-as-root --prtemca plm_ssh_agent false {WRAPPER}"),
        ("4.1.4", 1000, f"{MPIRUN} --mca plm isolated {WRAPPER}"),
    ],
)
def test_openmpi(plan: Planner, version: str, uid: int, line: str) -> None:
    command = render(plan(facts=facts_of_a_node(launcher=openmpi(version), uid=uid)))
    assert shlex.join(command.argv) == line
    assert command.hostfile == "localhost slots=2\n"


def test_torchrun(plan: Planner) -> None:
    python = {"path": "/v/bin/python", "version": "2.13.0+cpu", "wanted": "", "said": ""}
    command = render(plan(facts=facts_of_a_node(launcher=python), launcher="torchrun"))
    assert shlex.join(command.argv) == (
        "/v/bin/python -m torch.distributed.run --nnodes 1 --nproc-per-node 2 --node-rank 0 "
        f"--master-addr 127.0.0.1 --master-port 23456 --max-restarts 0 --no-python {WRAPPER}"
    )
    assert command.hostfile == ""


def test_an_unknown_version_is_refused(plan: Planner) -> None:
    with pytest.raises(InputError, match=r"openmpi 3\.1\.6.*is not 4\.x or 5\.x"):
        render(plan(facts=facts_of_a_node(launcher=openmpi("3.1.6"))))


def test_environment_of_the_ranks(plan: Planner) -> None:
    made = plan(job_env={"OMP_NUM_THREADS": "7", "MINE": "a b"})
    settings = {setting.name: setting for setting in rank_environment(made, "localhost")}
    assert {name: setting.value for name, setting in settings.items()} == {
        "GLOO_SOCKET_IFNAME": "lo",
        "MINE": "a b",
        "OMP_NUM_THREADS": "7",
        "PYTHONUNBUFFERED": "1",
        "TORCHFLEET_BACKEND": "gloo",
        "TORCHFLEET_JOB_ID": "job",
    }
    assert settings["OMP_NUM_THREADS"].source == "user"
    assert settings["GLOO_SOCKET_IFNAME"].source == "measured"


def test_nccl_gets_an_exact_interface(plan: Planner) -> None:
    gpu = {"accelerators": {"nvidia": 2, "amd": 0}, "torch": {"version": "2.13.0", "cuda": "13.0", "hip": ""}}
    settings = {item.name: item.value for item in rank_environment(plan(facts=facts_of_a_node(**gpu)), "localhost")}
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
    for setting in rank_environment(made, "localhost"):
        assert f"{setting.name}=" in text
    for name in ("PATH=", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=23456", "WORLD_SIZE=", "OMPI_COMM_WORLD_"):
        assert name in text
    assert "hush" not in text


def test_secrets_stay_out_of_reports_but_reach_the_rank(plan: Planner, node: Node) -> None:
    made = plan(job_env={"DB_PASSWORD": "hush", "PLAIN": "seen"})
    command = render(made)
    report = plan_report(made, command)
    assert "hush" not in report and json.loads(report)["app"]["env"]["PLAIN"] == "seen"
    assert "hush" not in pasteable(made, command)
    order = order_for(made, command, node, "/home/me/.torchfleet", "here", "")
    assert order["environment"]["DB_PASSWORD"] == "hush"
    assert "hush" not in json.dumps(order["command"])


def test_the_pasteable_command_is_the_command(plan: Planner) -> None:
    made = plan(job_env={})
    command = render(made)
    comment, line = pasteable(made, command).splitlines()
    assert comment.startswith("#")
    assert shlex.split(line) == ["cd", "/home/me", "&&", *command.argv]
