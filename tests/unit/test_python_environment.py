"""Module and actions of python environments as Ansible runs them: who does what, what is brought, whose word counts."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.testing import patch_module_args

from ansible_collections.torchfleet.cluster.plugins.action import python_environment, python_environment_plan
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import (
    environment,
    environment_copy,
    environment_make,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_copy import Transfer
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.interpreter import Interpreter
from ansible_collections.torchfleet.cluster.plugins.modules import python_environment as module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented, values_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit.test_environment import lay_out
from tests.wheels import add_wheel, request_for

SEEN: dict[str, Any] = {
    **{"refusals": [], "ready": False, "receipt": None, "proven": False, "kind": "0123456789abcdef", "mesh": True},
    **{"python": "3.11", "libc": "2.36", "machine": "x86_64", "os": "debian", "missing_tools": [], "needs_pip": False},
    **{"place": "/x/venv", "version": "", "used": "", "adopts": False},
}
SENDS: dict[str, Any] = {
    **{"makes": True, "source": "", "to": ["n2"], "sender": "n1", "senders": [], "home": "/h", "proven": False},
    **{"place": "/x/venv", "adopts": False},
}
PLAN = {"nodes": {"n1": SENDS, "n2": {**SENDS, "makes": False, "source": "n1", "to": [], "sender": ""}}}


# --- the module -------------------------------------------------------------------------------------------------------


def run(
    capsys: pytest.CaptureFixture[str], state: str, place: Path, check: bool = False, **more: Any
) -> dict[str, Any]:
    """Run the module for the environment of tests.wheels. Return what it printed."""
    wanted = request_for(place)
    given = {"role": wanted.role, "setting": wanted.setting, "path": wanted.path, "python": wanted.python}
    given |= {"packages": wanted.packages, "disk_mb": 1, "home": str(place), "state": state, **more}
    with patch_module_args({**given, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        module.main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_look_has_the_fields_that_the_controller_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = run(capsys, "look", tmp_path)
    assert {name: found[name] for name in SEEN}.keys() == SEEN.keys() and found["changed"] is False
    assert found["refusals"] == [] and os.listdir(tmp_path) == []


def test_a_password_of_an_index_is_in_no_answer_and_in_no_receipt(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wanted = request_for(tmp_path, index_url="https://me:secret@mirror/simple")
    lay_out(wanted)
    assert "https://mirror/simple" in (wanted.place / environment.RECEIPT).read_text()
    assert "secret" not in (wanted.place / environment.RECEIPT).read_text()
    found = run(capsys, "look", tmp_path, index_url="https://me:another-secret@mirror/simple")
    assert found["ready"] is True and "secret" not in json.dumps(found)


def test_check_mode_makes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "make", tmp_path, check=True)["changed"] is True
    assert os.listdir(tmp_path) == []
    lay_out(request_for(tmp_path))
    assert run(capsys, "make", tmp_path, check=True)["changed"] is False


def test_an_environment_is_not_exchanged_under_a_running_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Another version than the receipt's is wanted. Reproduced before: the job's next import failed."""
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    held = job.lock()
    assert run(capsys, "look", tmp_path)["refusals"] == []  # it is not there yet: nothing is exchanged
    lay_out(request_for(tmp_path))
    assert run(capsys, "look", tmp_path)["refusals"] == []  # it is what is wanted
    newer = {"packages": ["tiny==2.0"]}
    assert run(capsys, "look", tmp_path, **newer)["refusals"] == [
        f"some: job one runs here, and {tmp_path}/home/venv, which it may use, would be replaced: "
        "wait for its end, or end it: ansible-playbook clean.yml -e job_id=one"
    ]
    os.close(held)
    assert run(capsys, "look", tmp_path, **newer)["refusals"] == []


def test_what_cannot_be_made_fails_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    failed = run(capsys, "make", tmp_path, python="/bin/false")
    assert failed["failed"] is True and "\n" not in failed["msg"]
    assert failed["msg"].startswith(f"some: {tmp_path}/home/venv could not be made")


def test_the_proof_runs_once_in_the_environment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lay_out(request_for(tmp_path))
    program = "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text(sys.argv[1] + sys.executable)"
    proof = {"proof": program, "proof_arguments": ["it "]}
    assert run(capsys, "prove", tmp_path, check=True, **proof)["changed"] is False
    assert run(capsys, "prove", tmp_path, **proof)["changed"] is True
    left = tmp_path / "home/venv" / environment.PROOF
    assert left.read_text() == f"it {tmp_path}/home/venv/bin/python"
    assert run(capsys, "prove", tmp_path, **proof)["changed"] is False


def test_bytecode_of_what_the_proof_imports_is_sent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is compiled where the environment is made; before, on each machine. That a proof fails there is told later."""
    there = "import sysconfig; open(sysconfig.get_path('purelib') + '/late.py', 'w').close(); import late\n"
    proof = {"proof": f"{there}import sys; open(sys.argv[1] + '.seen', 'w').close(); import large"}
    assert run(capsys, "make", tmp_path, packages=[], **proof)["changed"] is True
    place = tmp_path / "home/venv"
    (place / f"{environment.PROOF}.seen").rename(place / environment.PROOF)
    transfer = Transfer(path=str(place), python="", packages=[], mesh="", to=[], senders=[])
    sent = subprocess.run(environment_copy.tar_of(transfer), capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(sent)) as content:
        names = content.getnames()
    assert [name for name in names if "/late.cpython" in name] and f"./{environment.PROOF}" not in names
    (place / environment.PROOF).unlink()
    failed = run(capsys, "prove", tmp_path, packages=[], **proof)
    assert failed["msg"].endswith("is broken: ModuleNotFoundError: No module named 'large'")


def test_an_environment_that_does_not_work_is_broken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lay_out(request_for(tmp_path))
    failed = run(capsys, "prove", tmp_path, proof="import sys; sys.exit('one\\nit has no torch')")
    assert failed["failed"] is True and failed["msg"] == f"some: {tmp_path}/home/venv is broken: it has no torch"
    failed = run(capsys, "prove", tmp_path, proof="import os; os.kill(os.getpid(), 11)")
    assert failed["msg"] == f"some: {tmp_path}/home/venv is broken: killed by SIGSEGV"


def test_what_did_not_arrive_is_not_proven(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = run(capsys, "prove", tmp_path, proof="x", prepared={"is_sent": True})
    assert (found["changed"], found["arrived"]) == (False, False)


# --- the action -------------------------------------------------------------------------------------------------------

Asked = list[tuple[str, dict[str, Any]]]


class Node:
    """A node that answers the module of each state with what is laid down, and keeps what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked, self.copied = answers, [], []  # type: ignore[var-annotated]

    def execute(self, module_args: dict[str, Any], task_vars: Any, module_name: str = "") -> dict[str, Any]:
        state = module_name or module_args["state"]
        self.asked.append((state, module_args))
        return dict(self.answers.get(state, {}))

    def copy(self, local: str, remote: str, variables: Any) -> dict[str, Any]:
        with tarfile.open(local) as pack:
            self.copied.append((remote, pack.getnames()))
        return {**self.answers.get("copy", {})}


def act(node: Node, state: str, name: str = "n1", check: bool = False, **options: Any) -> dict[str, Any]:
    """Return what the action returns on a node."""
    action: Any = object.__new__(python_environment.ActionModule)
    action._task = SimpleNamespace(check_mode=check, delegate_to=None, args={})
    action._execute_module, action.copy = node.execute, node.copy
    given = {"role": "some", "setting": "some_venv", "path": "/x/venv", "python": sys.executable, **options}
    values = values_of("python_environment", {"state": state, **given}, documented("python_environment"))
    return dict(action.act(values, {"inventory_hostname": name, "hostvars": options.pop("hostvars", {})}))


def test_a_refusal_of_a_node_fails_the_look() -> None:
    failed = act(Node(look={**SEEN, "refusals": ["some: a", "some: b\x1b[2J"]}), "look")
    assert failed["failed"] is True and failed["msg"].startswith("some: a; some: b") and "\x1b" not in failed["msg"]


@pytest.mark.parametrize("field", ["kind", "python", "missing_tools", "receipt"])
def test_a_look_that_is_none_is_refused_and_names_the_node(field: str) -> None:
    failed = act(Node(look={**SEEN, field: {"../../etc": [1]} if field != "receipt" else 7}), "look")
    assert failed["failed"] is True and failed["msg"].startswith("some: answer of n1: got ")
    assert field in failed["msg"]


def test_a_look_adds_nothing_to_what_the_controller_keeps() -> None:
    answer = {**SEEN, "wheelhouse": "/etc", "packages": ["x"], "ansible_facts": {"a": 1}}
    assert act(Node(look=answer), "look") == {"changed": False, **SEEN}


def test_only_who_has_the_part_makes_it() -> None:
    node = Node(look=SEEN, make={"changed": True})
    assert act(node, "make", "n2", plan=PLAN) == {"changed": False} and node.asked == []
    for check in (True, False):
        made = act(node, "make", check=check, plan=PLAN, packages=["tiny==1.0", "other==2"])
        assert made["changed"] is True
        assert made["diff"][0]["after_header"] == SEEN["place"] and made["diff"][0]["after"] == "tiny==1.0\nother==2\n"
    assert [state for state, _args in node.asked] == ["look", "look", "make"]


def test_check_mode_looks_whether_there_is_anything_to_make() -> None:
    ready = Node(look={**SEEN, "ready": True})
    assert act(ready, "make", check=True)["changed"] is False
    assert [state for state, _args in ready.asked] == ["look"]


def test_the_hint_of_a_role_says_how_to_get_its_tools() -> None:
    node = Node(look={**SEEN, "missing_tools": ["g++", "Python.h"]})
    assert act(node, "make")["msg"].endswith("or set some_install_tools=true (Debian, Ubuntu)")
    hinted = act(node, "make", tools_hint="or do without a compiler")["msg"]
    assert hinted == "some: building needs g++, Python.h, which n1 does not have; or do without a compiler"


def test_wheels_that_cannot_be_copied_fail_in_the_name_of_the_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_environment.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    house = tmp_path / "house"
    house.mkdir()
    add_wheel(house, "tiny", "1.0")
    node = Node(look=SEEN, copy={"failed": True, "msg": "no space\x1b left"})
    failed = act(node, "make", packages=["tiny==1.0"], wheelhouse=str(house))
    assert failed["failed"] is True and failed["msg"].startswith("some: no space") and "\x1b" not in failed["msg"]


def test_a_machine_without_a_plan_makes_its_own() -> None:
    assert act(Node(look=SEEN, make={"changed": True}), "make")["changed"] is True


def test_wheels_are_brought_where_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_environment.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    house = tmp_path / "house"
    house.mkdir()
    wheel = add_wheel(house, "tiny", "1.0")
    node = Node(look=SEEN, make={"changed": True})
    assert act(node, "make", packages=["tiny==1.0"], wheelhouse=str(house))["changed"] is True
    assert node.copied == [("/x/venv.brought.tar", [wheel.name])]
    state, asked = node.asked[-1]
    assert (state, asked["prepared"]["brought"]) == ("make", "/x/venv.brought.tar")
    failed = act(node, "make", packages=["tiny==2.0"], wheelhouse=str(house))
    assert failed["msg"].startswith(f"some: {house} has no wheel of tiny==2.0 for Python 3.11 on x86_64: download it")
    bare = Node(look={**SEEN, "needs_pip": True}, make={"changed": True})
    act(bare, "make")
    assert bare.copied[0][1][0].startswith("pip-")


def test_tools_that_are_missing_are_asked_for_before_anything_is_brought() -> None:
    node = Node(look={**SEEN, "missing_tools": ["g++"]})
    failed = act(node, "make", tools=["g++"])
    assert failed["msg"].startswith("some: building needs g++, which n1 does not have; as root: apt-get install")
    assert "some_install_tools=true" in failed["msg"] and len(node.asked) == 1


def test_what_was_sent_is_known_by_host() -> None:
    node = Node(send={"unsent": {"n2": ""}})
    assert act(node, "send", plan=PLAN) == {"changed": False, "unsent": {"n2": ""}}
    transfer = node.asked[0][1]["prepared"]["transfer"]
    assert transfer == {"path": "/x/venv", "to": ["n2"], "senders": [], "source": "", "mesh": "/h/ssh/config"}
    relayed = {"nodes": {"n1": {**SENDS, "sender": "head"}}}
    act(node, "send", plan=relayed)
    assert node.asked[1][1]["prepared"]["transfer"]["source"] == "n1"
    failed = act(Node(send={"unsent": ["n2"]}), "send", plan=PLAN)
    assert failed["msg"].startswith("some: answer of n1: got ")


@pytest.mark.parametrize(
    ("registered", "why"),
    [
        ({"results": [{"changed": True}, {"unsent": {"n2": "ssh: connect to host n2"}}]}, "ssh: connect to host n2"),
        ({"results": [{"failed": True, "msg": "some: no space is left"}]}, "some: no space is left"),
        ({}, "it failed there first"),
    ],
)
def test_an_environment_that_did_not_arrive_is_told_with_the_reason(registered: dict[str, Any], why: str) -> None:
    node = Node(prove={"changed": False, "arrived": False})
    hostvars = {"n1": {"made": registered}}
    failed = act(node, "prove", "n2", plan=PLAN, sent="made", hostvars=hostvars)
    assert failed["msg"] == f"some: /x/venv did not come from n1: {why}"


def test_what_arrived_is_a_change_and_what_was_proven_is_not_asked_again() -> None:
    node = Node(prove={"changed": False, "arrived": True})
    assert act(node, "prove", "n2", plan=PLAN) == {"changed": True}
    assert node.asked[0][1]["prepared"]["is_sent"] is True
    proven = {"nodes": {"n1": {**SENDS, "makes": False, "proven": True}}}
    quiet = Node()
    assert act(quiet, "prove", plan=proven) == {"changed": False} and quiet.asked == []


# --- the plan ---------------------------------------------------------------------------------------------------------

Found = Callable[..., dict[str, Any]]


def planned(
    looks: dict[str, Any], head: str = "n1", delegate_to: str | None = None, found: Any = None
) -> dict[str, Any]:
    """Return the plan for machines with these looks."""
    action: Any = object.__new__(python_environment_plan.ActionModule)
    action._task = SimpleNamespace(delegate_to=delegate_to)

    def execute(**_given: Any) -> Any:
        if found is None:
            raise AnsibleConnectionFailure("down")
        return found

    action._execute_module = execute
    hostvars = {name: {"look": look, "torchfleet_home": f"/home/{name}"} for name, look in looks.items()}
    hostvars |= {head: {"torchfleet_home": "/head", **hostvars.get(head, {})}} if head else {}
    variables = {"hostvars": hostvars, "groups": {"head": [head] if head else []}, "ansible_play_hosts": list(looks)}
    return dict(action.act({"looks": "look"}, variables))


def test_one_machine_makes_it_and_sends_it() -> None:
    plan = planned(
        {
            "n1": {"changed": False, **SEEN, "missing_tools": ["cc"]},
            "n2": {**SEEN, "mesh": False, "missing_tools": ["cc"]},
        }
    )
    assert plan["steps"] == {
        "n1": [{"state": "make", "host": "n1"}, {"state": "send", "host": "n1"}],
        "n2": [{"state": "make", "host": "n2"}],
    }
    assert plan["nodes"]["n1"]["home"] == "/home/n1" and plan["nodes"]["n2"]["source"] == "n1"
    assert plan["missing_tools"] == {"n1": ["cc"]}


def test_nothing_is_left_to_prove_where_it_was_proven() -> None:
    has = {**SEEN, "ready": True, "proven": True, "receipt": {"python": "3.11"}}
    plan = planned({"n1": has, "n2": SEEN})
    assert [plan["nodes"][name]["proven"] for name in ("n1", "n2")] == [True, False]
    assert plan["missing_tools"] == {}


@pytest.mark.parametrize(
    ("delegate_to", "found", "reaches"),
    [
        ("head", {"stat": {"exists": True}}, True),
        ("head", {"stat": {"exists": False}}, False),
        ("head", {"stat": "yes"}, False),
        ("head", None, False),  # it is down
        (None, {"stat": {"exists": True}}, False),  # another machine was asked
    ],
)
def test_a_head_that_is_not_in_the_play_is_asked(delegate_to: str | None, found: Any, reaches: bool) -> None:
    looks = {name: {**SEEN, "mesh": False} for name in ("n1", "n2")}
    plan = planned(looks, "head", delegate_to, found)
    sender = {"state": "send", "host": "head"}
    assert (sender in plan["steps"]["n1"]) == reaches
    assert plan["nodes"]["n2"]["makes"] != reaches
    assert plan["nodes"]["n1"]["home"] == ("/head" if reaches else "")


def test_machines_that_did_not_look_are_left_out() -> None:
    assert list(planned({"n1": SEEN, "n2": {"skipped": True}, "n3": {}})["nodes"]) == ["n1"]


def test_a_look_that_was_tampered_with_is_refused() -> None:
    with pytest.raises(InputError, match="answer of n2"):
        planned({"n1": SEEN, "n2": {**SEEN, "kind": "../../etc"}})


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ([], None),
        (["--no-index"], "--no-index"),
        (["https://cpu.example"], "https://cpu.example"),
        (["--no-index", "https://cpu.example"], "--no-index"),  # who set the machine up knows best
    ],
)
def test_an_index_that_is_preferred_is_taken_if_it_can_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: list[str], taken: str | None
) -> None:
    asked: list[str] = []

    def way(call: environment_make.PipCall) -> str:
        return call.index_url or call.options[0]

    def has(_request: Any, where: environment_make.PipCall, _place: str) -> bool:
        asked.append(way(where))
        return way(where) in there

    monkeypatch.setattr(environment_make, "has_own_build", has)
    known = environment.Request("some", "some_venv", str(tmp_path), sys.executable, Interpreter("3.11"))
    preferring = dataclasses.replace(known, preferred_index="https://cpu.example")
    found = environment_make.own_build(preferring, str(tmp_path))
    assert (way(found) if found else None) == taken
    found = environment_make.own_build(known, str(tmp_path))
    assert found is None or way(found) == "--no-index"
    assert asked[-1] == "--no-index", "nobody is asked that was not named"
