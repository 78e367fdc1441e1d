"""What is written below an action that it does not have, or leaves out what it needs, is refused in one line."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import (
    Action,
    check_names,
    documented,
    misspelled,
    on_node,
    values_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

PLUGINS = Path(__file__).parents[2] / "plugins"
NAMES = sorted(path.stem for path in (PLUGINS / "action").glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_every_action_has_the_options_that_are_documented(name: str) -> None:
    action = importlib.import_module(f"ansible_collections.torchfleet.cluster.plugins.action.{name}")
    assert issubclass(action.ActionModule, Action)
    with pytest.raises(InputError) as caught:
        check_names(name, {"bogus": 1}, documented(name))
    assert str(caught.value).startswith(f'{name}: got "bogus"; it has ')
    assert all(option in str(caught.value) for option in documented(name))
    assert "\n" not in str(caught.value)


def test_a_misspelled_option_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(InputError, match='launch: got "lanucher"; did you mean launcher'):
        check_names("launch", {"lanucher": "torchrun", "np": 7}, documented("launch"))


def test_a_misspelled_variable_is_told_and_others_are_not() -> None:
    """Reproduced before: -e job_timout=3600 was dropped by Ansible, and the job had no limit."""
    typed = ["lanucher", "job_timout", "launcher", "my_own", "ansible_user", "torchfleet_home", "daat", "quene", "date"]
    assert misspelled(typed, documented("launch")) == [
        "-e lanucher: there is no option of that name; did you mean launcher?",
        "-e job_timout: there is no option of that name; did you mean job_timeout?",
        "-e daat: there is no option of that name; did you mean data?",
        "-e quene: there is no option of that name; did you mean queue?",
    ]
    assert misspelled(["drop_ouputs", "drop_run", "drop_after", "runs_dir"], documented("reap")) == [
        "-e drop_ouputs: there is no option of that name; did you mean drop_outputs?"
    ]


def test_what_a_module_of_ours_answers_is_checked_before_ansible_has_it() -> None:
    """By itself Ansible would take a node's word for variables of the host, and shows whatever it says."""

    class Lying(OnNode):
        def _execute_module(self, **_given: Any) -> dict[str, Any]:
            evil = {"ansible_facts": {"ansible_host": "203.0.113.9"}, "warnings": ["\x1b[2Jx"]}
            return {**evil, "changed": False, "msg": "a\x1b]0;owned\x07b", "files": ["/etc/passwd"]}

    action = object.__new__(Lying)
    action._task = SimpleNamespace(delegate_to=None, args={})
    found = action.act({}, {"inventory_hostname": "n1"})
    assert found == {"changed": False, "msg": "a]0;ownedb", "files": ["/etc/passwd"]}
    action._execute_module = lambda **_given: {"changed": float("nan")}  # type: ignore[method-assign]
    with pytest.raises(InputError, match="answer of n1"):
        action.act({}, {"inventory_hostname": "n1"})
    action._task.delegate_to = "n2"
    with pytest.raises(InputError, match="answer of n2"):
        action.act({}, {"inventory_hostname": "n1"})


@pytest.mark.parametrize("name", ["reap", "ssh_mesh_keys", "standalone_python", "uninstall"])
def test_the_tilde_of_a_node_is_not_the_home_of_this_machine(name: str) -> None:
    """Reproduced before: root's `setup.yml --tags prerequisites` wrote to /root of nodes where another user logs in."""
    module = importlib.import_module(f"ansible_collections.torchfleet.cluster.plugins.action.{name}")
    action = object.__new__(module.ActionModule)
    empty: dict[str, Any] = {"list": [], "dict": {}, "bool": False}
    required = {key: option for key, option in documented(name).items() if option.get("required")}
    given = {key: option.get("choices", [empty.get(option.get("type"), "x")])[0] for key, option in required.items()}
    action._task = SimpleNamespace(args={**given, "home": "~/.torchfleet"})
    action._loader = None
    assert action.options()["home"] == "~/.torchfleet"
    assert on_node({"roots": {"type": "list", "elements": "path"}}) == {"roots": {"type": "list", "elements": "str"}}


def test_what_is_needed_is_asked_for() -> None:
    with pytest.raises(InputError, match="nodes of fabric_choose: got null; it is required: give a value of type list"):
        check_names("fabric_choose", {}, documented("fabric_choose"))
    with pytest.raises(InputError, match="answers of verify"):
        check_names("verify", {"state": "plan", "answers": None, "listened": {}}, documented("verify"))


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("verify", {"state": "nonsense"}, 'state of verify: got "nonsense"; choose one of plan, judge'),
        ("verify", {"answers": 7}, "answers of verify: got 7; give a value of type dict"),
        ("gather", {"drop_run": "maybe"}, 'drop_run of gather: got "maybe"; give true or false'),
        ("gather", {"drop_after": "abc"}, 'drop_after of gather: got "abc"; give a number'),
        ("fabric_choose", {"earlier": [7]}, "earlier of fabric_choose: got [7]; give a value of type list of dict"),
        ("fabric_choose", {"nccl_gid": True}, "nccl_gid of fabric_choose: got true; choose one of auto, always, never"),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        values_of(name, given, documented(name))
    assert str(caught.value) == told


def test_the_parts_of_an_option_are_checked_too() -> None:
    """A program without a checksum was a KeyError on the controller."""
    program = {"name": "some", "url": "https://x/some.tar", "file": "some.tar", "configure": ["./configure"]}
    for given, told in (
        (program, "missing required arguments: sha256 found in programs"),
        ({**program, "sha256": "0", "sha265": "1"}, "programs.sha265. Supported parameters include: configure, file"),
    ):
        with pytest.raises(InputError) as caught:
            values_of("python_environment", {"programs": [given]}, documented("python_environment"))
        assert str(caught.value).startswith("programs of python_environment: got ")
        assert told in str(caught.value) and "\n" not in str(caught.value)


def test_defaults_are_those_of_the_documentation() -> None:
    found = values_of("verify", {"state": "plan", "answers": {}, "listened": {}, "runs": None}, documented("verify"))
    assert (found["report"], found["ignore"], found["runs"]) == ("reports/verify.json", [], [])
