"""What is secret, and how it gets from a supervisor to its ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks import secrets as secrets_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.secrets import SOCKET, Keeper, take
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_environment
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import vaulted_names
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain, pasteable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for, plan_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.secrets import USUAL
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import plan_here, plan_on_two

SECRET = """HF_TOKEN WANDB_API_KEY WANDB_KEY AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY DATABASE_URL REDIS_URI SENTRY_DSN
GITHUB_PAT DB_PASS DB_PASSWORD PGPASSWORD OLD_PWD SSH_PASSPHRASE SESSION_COOKIE HTTP_AUTHORIZATION BASIC_AUTH
GOOGLE_APPLICATION_CREDENTIALS MY_PRIVATE_THING JWT AZURE_STORAGE_CONNECTION_STRING api_key"""
PLAIN = """PATH PWD PYTHONPATH WANDB_MODE OMP_NUM_THREADS NCCL_DEBUG AUTHOR KEYBOARD CUDA_VISIBLE_DEVICES HF_HOME
PATIENCE TOKENIZERS_PARALLELISM LD_PRELOAD URLS"""


@pytest.mark.parametrize("name", SECRET.split())
def test_usual_names_of_secrets(name: str) -> None:
    assert USUAL.search(name)


@pytest.mark.parametrize("name", PLAIN.split())
def test_usual_names_of_others(name: str) -> None:
    assert not USUAL.search(name)


def test_secrets_are_in_the_order_alone_and_under_a_name_of_their_own() -> None:
    plan = plan_on_two(job_env={"HF_TOKEN": "hush1"}, secret_names=["NICK"], env={"n2": {"NICK": "hush2", "OPEN": "x"}})
    assert plan.secrets == ("HF_TOKEN", "NICK")
    command = render(plan)
    assert "hush" not in plan_report(plan, command) and "hush" not in "\n".join(explain(plan, command))
    order = order_for(plan, command, "here")
    n1, n2 = {"HF_TOKEN": "hush1"}, {"HF_TOKEN": "hush1", "NICK": "hush2"}
    assert order["secrets"] == {"n1": n1, "n2": n2}
    assert {name: node["secret_names"] for name, node in order["nodes"].items()} == {"n1": [*n1], "n2": [*n2]}
    assert "hush" not in str({**order, "secrets": {}})
    assert {item.name for item in plan.nodes[1].environment if item.secret} == {"HF_TOKEN", "NICK"}


def test_who_pastes_the_command_is_told_what_is_left_out_of_it() -> None:
    made = plan_here(job_env={"DB_PASSWORD": "hush", "PLAIN": "seen"})
    assert "# left out, because they are secret: DB_PASSWORD\n" in pasteable(made, render(made))


def test_a_name_that_hides_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r'secret_names: got "TOKN"; give names of variables .*: A, TOKEN'):
        plan_here(job_env={"TOKEN": "x", "A": "y"}, secret_names="TOKN")


def test_a_nic_is_no_secret() -> None:
    with pytest.raises(InputError, match=r"secret_names: .*GLOO_SOCKET_IFNAME.*no secret"):
        plan_here(job_env={"GLOO_SOCKET_IFNAME": "eth7"}, secret_names="GLOO_SOCKET_IFNAME")


def test_a_contradiction_is_told_without_the_value() -> None:
    plan = plan_on_two(env={"n1": {"UCX_NET_DEVICES": "hush"}}, secret_names="UCX_NET_DEVICES")
    assert any("UCX_NET_DEVICES=(hidden) contradicts" in text for text in plan.warnings), plan.warnings


@pytest.mark.parametrize("value", ["hush", ["hush"], {"A": ["hush"]}, {"A": {"hush": 1}}, {"A": "hush\0"}])
def test_a_wrong_value_is_not_told(value: object) -> None:
    with pytest.raises(InputError) as caught:
        parse_environment(value)
    assert "hush" not in str(caught.value)


def test_what_is_in_no_vault() -> None:
    assert vaulted_names({"A": "x", "B": 1}) == frozenset()
    assert vaulted_names('{"A": "x"}') == vaulted_names(None) == frozenset()


def long_directory(tmp_path: Path) -> str:
    """Return a directory whose path does not fit the address of a socket."""
    directory = tmp_path / ("x" * 120)
    directory.mkdir(mode=0o700)
    return str(directory)


@pytest.mark.parametrize("place", [str, long_directory])
def test_ranks_take_them_until_the_job_is_over(tmp_path: Path, place: Callable[[Path], str]) -> None:
    directory = place(tmp_path)
    secrets = {"A": "ä\n", "B": "x" * 200_000}
    keeper = Keeper(directory, secrets)
    keeper.start()
    assert [take(directory, secrets) for _again in range(3)] == [secrets] * 3
    keeper.close()
    assert not os.path.exists(os.path.join(directory, SOCKET))
    with pytest.raises(OSError):
        take(directory, secrets)


@pytest.mark.parametrize("stranger", ["asks", "answers"])
def test_secrets_go_from_one_user_to_the_same_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    keeper = Keeper(str(tmp_path), {"A": "s3cret"})
    keeper.start()
    monkeypatch.setattr(secrets_module, "user_of", lambda _connection: os.getuid() + 1)
    try:
        if stranger == "asks":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(30)
                connection.connect(str(tmp_path / SOCKET))
                assert connection.recv(100) == b""
        else:
            with pytest.raises(PermissionError, match="somebody else answers for the supervisor"):
                take(str(tmp_path), ["A"])
    finally:
        keeper.close()


def test_a_supervisor_that_has_not_all_is_not_enough(tmp_path: Path) -> None:
    keeper = Keeper(str(tmp_path), {"A": "1"})
    keeper.start()
    with pytest.raises(OSError, match="did not hand out"):
        take(str(tmp_path), ["A", "B"])
    keeper.close()
