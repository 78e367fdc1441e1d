"""How train.yml reaches the head: as Ansible's own connection does, or it says in one line that it cannot."""

from __future__ import annotations

import ast
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import become_loader, connection_loader

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import bootstrap
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostvars
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session

N1 = Node("n1", "192.0.2.1", interpreter="python3")
HERE = Node("here", "here", local=True, interpreter=sys.executable)


def connection(kind: str = "ssh", become: str | None = None, **variables: Any) -> Any:
    """Return Ansible's connection to a host with these variables, as a task has it."""
    made = connection_loader.get(kind, PlayContext())
    made.set_options(var_options={f"ansible_{name}": value for name, value in variables.items()})
    if become:
        plugin = become_loader.get("sudo")
        plugin.set_options(var_options={"ansible_become_user": become})
        made.set_become_plugin(plugin)
    return made


def words(**variables: Any) -> str:
    return " ".join(hostvars.ssh_words(connection(**variables), N1))


def test_ssh_has_what_ansibles_connection_has() -> None:
    usual = words()
    assert "StrictHostKeyChecking" not in usual and "-I" not in usual
    assert "-o ConnectTimeout=10 " in usual and usual.endswith(
        "-o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=12 -- 192.0.2.1"
    )
    assert "-i /keys/one " in words(ssh_private_key_file="/keys/one")
    assert "-I /usr/lib/opensc.so " in words(ssh_pkcs11_provider="/usr/lib/opensc.so")
    assert "-o ConnectTimeout=33 " in words(ssh_timeout=33)
    assert "-p 2222 -l mpi " in words(port=2222, user="mpi")


@pytest.mark.parametrize(("lease", "count"), [(5.0, 1), (60.0, 12), (61.0, 13), (3600.0, 720)])
def test_ssh_gives_a_silent_head_up_when_the_lease_is_over(lease: float, count: int) -> None:
    """Sooner, and a job would end by an interruption that its lease allows."""
    given = hostvars.ssh_words(connection(), N1, lease)
    assert f"ServerAliveCountMax={count}" in given and "ServerAliveInterval=5" in given


def test_host_keys_are_checked_whatever_ansible_is_told() -> None:
    with pytest.raises(InputError, match=r"host_key_checking of n1: .*remove that setting"):
        words(host_key_checking=False)


def test_ssh_takes_its_words_in_ansibles_order() -> None:
    given = words(ssh_args="-o ConnectionAttempts=2", ssh_extra_args="-o ConnectTimeout=1")
    assert given.index("ConnectionAttempts=2") < given.index("ConnectTimeout=10")  # ssh takes the first of two
    assert given.index("ConnectTimeout=10") < given.index("ConnectTimeout=1 ")


@pytest.mark.parametrize("name", ["password", "private_key"])
def test_what_only_ansible_can_hand_to_ssh_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"ansible_{name} of n1: got .*hidden.*training needs") as caught:
        words(**{name: "s3cret"})
    assert "s3cret" not in str(caught.value) and "\n" not in str(caught.value)


def test_becoming_another_user_is_refused_not_ignored() -> None:
    with pytest.raises(InputError, match='become on n1: got "root"; jobs run as the user that logs in: remove -b'):
        hostvars.ssh_words(connection(become="root", user="mpi"), N1)
    with pytest.raises(InputError, match='become on here: got "nobody"'):
        hostvars.ssh_words(connection("local", become="nobody"), HERE)
    hostvars.ssh_words(connection(become="root", user="root"), N1)  # who is root already becomes nobody else


def test_nodes_that_are_chosen_are_in_the_inventory() -> None:
    groups, variables = {"head": ["n1"], "workers": ["n1", "n2"]}, {"n1": {}, "n2": {}}
    chosen = hostvars.cluster_from_hostvars(groups, variables, ["n2"])
    assert [node.name for node in chosen.workers] == ["n2"]
    with pytest.raises(InputError, match='nodes: got "n9"; there is no such node: give some of n1, n2'):
        hostvars.cluster_from_hostvars(groups, variables, ["n2", "n9"])


def test_becoming_another_user_on_a_worker_is_refused_too() -> None:
    for given in ({"ansible_become": True}, {"ansible_become": "yes", "ansible_user": "mpi"}):
        with pytest.raises(InputError, match="ansible_become of n1"):
            hostvars.refuse_become_of([N1], {"n1": given})
    for given in ({}, {"ansible_become": False}, {"ansible_become": True, "ansible_user": "root"}):
        hostvars.refuse_become_of([N1], {"n1": given})


@pytest.mark.parametrize(
    ("variables", "interpreter"),
    [
        ({}, "python3"),
        ({"ansible_python_interpreter": "auto_silent"}, "python3"),
        ({"ansible_facts": {"discovered_interpreter_python": "/usr/bin/python3.11"}}, "/usr/bin/python3.11"),
        ({"discovered_interpreter_python": "/usr/bin/python3.12"}, "/usr/bin/python3.12"),
        (
            {
                "ansible_python_interpreter": "/opt/python",
                "ansible_facts": {"discovered_interpreter_python": "/usr/bin/python3.11"},
            },
            "/opt/python",
        ),
    ],
)
def test_the_interpreter_is_the_one_that_ansible_has(variables: dict[str, Any], interpreter: str) -> None:
    assert hostvars.node_from_hostvars("n1", variables).interpreter == interpreter


def test_a_python_that_is_too_old_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "OLDEST", (99, 1))
    here = Node("here", "here", local=True, interpreter=sys.executable, home=str(tmp_path / "home"))
    with pytest.raises(InputError) as caught:
        Session(here, ())
    told = str(caught.value)
    assert told.startswith("ansible_python_interpreter of here: got ")
    assert f"is Python 3.{sys.version_info.minor}, and 99.1 or newer is needed: set ansible_python_interpreter" in told
    assert "\n" not in told and not (tmp_path / "home").exists()


def test_the_first_code_on_a_node_is_old_python_and_reads_nothing_beside_it(tmp_path: Path) -> None:
    command = bootstrap.bootstrap(sys.executable, str(tmp_path / "home"), "0" * 16)
    packed = command[command.index("-c") + 1].partition("b64decode('")[2].partition("'")[0]
    ast.parse(base64.b64decode(packed), feature_version=(3, 4))
    (tmp_path / "base64.py").write_text("raise SystemExit('a file of the user')")
    started = subprocess.run(command, cwd=tmp_path, input=b"", capture_output=True, check=False, timeout=30)
    assert b"a file of the user" not in started.stderr
    assert started.stdout.endswith(bootstrap.GREETING + b"wanted\n")
