"""What a node answers while it is set up is not believed: no other node's files and no terminal have a byte of it."""

from __future__ import annotations

import functools
import json
import os
import random
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import pytest

from ansible_collections.torchfleet.cluster.plugins.action.node_facts import checked
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.node import node_facts
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame, one_of
from ansible_collections.torchfleet.cluster.plugins.modules.node_facts import usual
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import answers as fabric_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import next_step
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import answers as health_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import preflight, verify, verify_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import trial as trial_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.clock import clock_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare, drift_table
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift_values import versions_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.facts_types import Facts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import render, sort_out, verdict
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer, Limits, Target
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input import node_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostfile import hostfiles
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import answers as software_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.sharing import share_out
from tests.unit.hostile import MARK, hostile_answer, hostile_value, tried

NAMES = ["n1", "n2", "n3"]
GPU = {
    "address": "0000:3b:00.0",
    "vendor": "nvidia",
    "id": "10de:2330",
    "model": "NVIDIA H100 80GB HBM3",
    "target": "",
    "open_modules": True,
    "numa_node": 0,
    "driver": "nvidia",
}
A, B = "10.91.0.0/24", "10.92.0.0/24"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What this machine tells of itself, which is as honest as can be."""
    home = str(tmp_path_factory.mktemp("home"))
    return node_facts(
        {
            "home": home,
            "python": "",
            "base_python": "",
            "mpirun": "",
            "sudo": False,
            "container_image": "",
            "engines": [],
        }
    )


def printed(texts: list[str]) -> None:
    """Whatever is shown is for people."""
    for text in texts:
        assert text.isprintable(), repr(text)
        assert len(text) < 3000


def refused(call: Callable[[], Any]) -> Any:
    """Return what comes of a hostile answer; None if it was refused, in one line that names the node."""
    try:
        return call()
    except InputError as error:
        printed([str(error)])
        assert "n2" in str(error)
        return None


def worse(dice: random.Random, honest: Any) -> Any:
    """Return a hostile answer: mostly an honest one with something in it that is not."""
    return hostile_answer(dice, honest) if dice.random() < 0.9 else hostile_value(dice)


# --- facts ------------------------------------------------------------------------------------------------------------


def test_an_honest_node_is_believed(machine: dict[str, Any]) -> None:
    assert health_answers.facts_of("n1", machine) == machine
    found = {"facts": machine, "ansible_facts": usual(machine), "_ansible_x": 1, "add_host": {"host_name": "evil"}}
    assert checked({"inventory_hostname": "n1"}, found).keys() == {"changed", "facts", "ansible_facts"}


def undeclared(shape: Any, value: Any, where: str = "facts") -> list[str]:
    """Return where a value has other fields than its type."""
    if isinstance(value, dict) and is_typeddict(shape):
        fields = get_type_hints(shape)
        wrong = [where] if not shape.__required_keys__ <= value.keys() <= fields.keys() else []
        inner = [undeclared(fields[name], each, f"{where}.{name}") for name, each in value.items() if name in fields]
        return [*wrong, *chain.from_iterable(inner)]
    parts = value if isinstance(value, list) else [value]
    kinds = get_args(shape)
    return [each for kind in kinds for part in parts for each in undeclared(kind, part, where)]


def test_the_type_of_the_facts_is_what_the_check_returns(machine: dict[str, Any]) -> None:
    """mypy cannot see it: the checks of the fields are in a table."""
    health = {"address": GPU["address"], "vbios": "96.00", "ecc_errors": 0, "fabric": ""}
    xid = {"address": GPU["address"], "number": 79}
    full = {
        **machine,
        "accelerators": {**machine["accelerators"], "gpus": [GPU]},
        "gpu_health": {**machine["gpu_health"], "nvidia": [health], "xids": [xid]},
        "home": {**machine["home"], "loose": [{"path": "/h", "why": "owner"}]},
    }
    assert undeclared(Facts, health_answers.facts_of("n1", full)) == []
    assert undeclared(Facts, {**full, "sshd": {"max_startups": ""}, "more": 1}) == ["facts", "facts.sshd"]


def test_no_variable_of_a_host_is_made_by_it(machine: dict[str, Any]) -> None:
    told = {**usual(machine), "torchfleet_home": "/evil", "slots": 9}
    found = checked({"inventory_hostname": "n1"}, {"facts": machine, "ansible_facts": told})
    assert (found["ansible_facts"]["system"], found["ansible_facts"]["machine"]) == ("Linux", os.uname().machine)
    assert found["ansible_facts"].keys() == {"system", "machine", "env", "python"}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"user": {"name": "me", "uid": -1, "sudo": "yes"}}, "facts, user.uid"),
        ({"user": {"name": "me", "uid": 0, "sudo": "perhaps"}}, "facts, user.sudo"),
        ({"host": 5}, "facts, host"),
        ({"ports": {"local_range": [1], "listening": []}}, "facts, ports.local_range"),
        ({"limits": {"nofile": "many"}}, "facts, limits.memlock"),
    ],
)
def test_the_refusal_names_the_node_and_the_field(machine: dict[str, Any], change: dict[str, Any], where: str) -> None:
    if "limits" in change:
        where = "facts, limits.nofile"
    with pytest.raises(InputError) as refusal:
        health_answers.facts_of("n2", {**machine, **change})
    assert str(refusal.value).startswith(f'answer of n2: got "{where}"')
    printed([str(refusal.value)])


@pytest.mark.parametrize("release", ["6.1; reboot", "6.1$(id)", "6.1 x", "6.1\n", "6" * 129])
def test_a_kernel_that_stands_in_a_command_is_a_word(machine: dict[str, Any], release: str) -> None:
    health = {**machine["gpu_health"], "next_kernel": {"release": release, "modules": []}}
    with pytest.raises(InputError, match=r"next_kernel.release\W+the release of a kernel was expected"):
        health_answers.facts_of("n2", {**machine, "gpu_health": health})


def test_a_path_of_a_node_leads_nowhere_else(machine: dict[str, Any]) -> None:
    for path in ("/home/me/../../etc", "/..", "/home/me/$(id)", "/home/'me'", "home/me"):
        with pytest.raises(InputError, match=r"facts, home\.path"):
            health_answers.facts_of("n2", {**machine, "home": {**machine["home"], "path": path}})


@tried(300)
def test_whatever_a_node_says_of_itself_a_terminal_shows_text(seed: int, machine: dict[str, Any]) -> None:
    dice = random.Random(seed)
    answer = worse(dice, {**machine, "accelerators": {**machine["accelerators"], "gpus": [GPU]}})
    facts = refused(lambda: health_answers.facts_of("n2", answer))
    failure = f"the module said {dice.choice(('', hostile_value(dice)))}"
    second = Answer(facts=facts) if facts else Answer(failure=failure)
    answers = {"n1": Answer(facts=machine), "n2": second}
    versions = {name: versions_of(each.facts, "x" * 16) for name, each in answers.items() if each.facts}
    targets = [Target(name, f"192.0.2.{number}") for number, name in enumerate(answers, 1)]
    drift = compare(versions, list(answers))
    found = sort_out(preflight.judge(targets, answers, Limits(), drift))
    printed([*render(found), *drift_table(drift), verdict(found)])


@pytest.mark.parametrize("said", ["9" * 400, f"1{'0' * 20}.5", "NaN", "inf", "-5", ""])
def test_a_clock_tells_a_time_or_nothing(said: str) -> None:
    assert clock_of(said, 1000.0, 1000.5) is None


@tried(100)
def test_gpus_are_told_in_their_form(seed: int, machine: dict[str, Any]) -> None:
    dice = random.Random(seed)
    answer = worse(dice, {**machine["accelerators"], "gpus": [GPU], "modules": {"nvidia": "580.95.05"}})
    found = refused(lambda: health_answers.accelerators_of("n2", answer))
    if found:
        printed([json.dumps(found, ensure_ascii=False)])
        assert not re.search(r"[\n'\"$`\\]", " ".join(found["libraries"].values()))


# --- networks ---------------------------------------------------------------------------------------------------------


def network_facts(host: int) -> dict[str, Any]:
    nics = [
        {
            "name": name,
            "kind": "physical",
            "mtu": 1500,
            "speed_mbit": 10000,
            "up": True,
            "carrier": True,
            "operstate": "up",
            "port_of": "",
            "addresses": [{"address": ip, "prefix": 24, "peer": "", "stable": True, "route": name}],
        }
        for name, ip in (("eth0", f"10.91.0.{host}"), ("eth1", f"10.92.0.{host}"))
    ]
    gid = {"index": 3, "gid": f"::ffff:10.91.0.{host}", "type": "RoCE v2", "netdev": "eth0"}
    port = {"device": "mlx5_0", "port": 1, "active": True, "link_layer": "Ethernet", "rate_gbit": 100.0}
    return {
        "host_name": f"n{host}",
        "host_name_addresses": [],
        "arrival": f"10.91.0.{host}",
        "default_nic": "eth0",
        "nics": nics,
        "rdma": [{**port, "netdevs": ["eth0"], "gids": [gid]}],
        "files": {"fabric.json": "", "fabric.env": ""},
    }


def listening(host: int) -> dict[str, Any]:
    agent = {"port": 4000 + host, "token": f"t{host}", "pid": 1}
    return {"facts": network_facts(host), "agent": agent, "constraints": {"nic": "", "address": ""}}


def reaching(host: int) -> list[dict[str, Any]]:
    return [
        {"node": f"n{other}", "network": network, "reason": "", "mtu": 1500}
        for network in (A, B)
        for other in (1, 2, 3)
        if other != host
    ]


def measuring(host: int) -> list[dict[str, Any]]:
    rate = {"error": "", "rtt_us": 50.0, "mbit_in": 9000.0, "mbit_out": 9000.0}
    return [{**rate, "node": row["node"], "network": row["network"]} for row in reaching(host)]


def test_a_nic_that_no_library_could_be_told_is_left_out_and_the_others_are_kept() -> None:
    facts = network_facts(1)
    odd = [{**facts["nics"][0], "name": name} for name in ("eth0 up", "a/b", "x" * 16, "$(id)", "")]
    found = fabric_answers.networks_of("n1", {**facts, "nics": [*odd, *facts["nics"]]})
    assert [nic["name"] for nic in found["nics"]] == ["eth0", "eth1"]


def test_an_address_of_a_nic_has_no_scope() -> None:
    """Python takes whatever follows % for one, quotes and line ends too."""
    facts = network_facts(1)
    for evil in ("fe80::1%eth0", "fe80::1%$(id)\n", "::" + "0" * 60):
        lie = {**facts["nics"][0]["addresses"][0], "address": evil}
        with pytest.raises(InputError, match="answer of n1"):
            fabric_answers.networks_of("n1", {**facts, "nics": [{**facts["nics"][0], "addresses": [lie]}]})


@pytest.mark.parametrize("change", [{"from": "n9"}, {"to": "n9"}, {"to": "n2\nn3"}, {"why": 7}])
def test_logins_that_failed_are_between_nodes_of_the_cluster(change: dict[str, Any]) -> None:
    honest = {"from": "n1", "to": "n2", "why": "refused"}
    assert health_answers.failures_of("n1", [honest], NAMES) == [honest]
    with pytest.raises(InputError, match="answer of n1"):
        health_answers.failures_of("n1", [{**honest, **change}], NAMES)


@pytest.mark.parametrize("field", ["rtt_us", "mbit_in", "mbit_out"])
def test_a_measurement_is_no_negative_or_impossible_number(field: str) -> None:
    honest = measuring(1)[:1]
    assert fabric_answers.measured_of("n1", honest, NAMES) == honest
    for value in (-1.0, 1e12, float("nan"), "fast"):
        with pytest.raises(InputError, match=f"answer of n1.*{field}"):
            fabric_answers.measured_of("n1", [{**honest[0], field: value}], NAMES)


def carried_through(second: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return the last step of role fabric. `second` makes what n2 says of what it should say."""

    def told(what: str, of: Callable[[int], Any]) -> dict[str, Any]:
        return {name: second(what, of(2)) if name == "n2" else of(number) for number, name in enumerate(NAMES, 1)}

    listened = told("listened", listening)
    step = next_step(NAMES, listened, {}, {}, {})
    reached = told("reached", lambda host: {"reached": reaching(host)})
    step = next_step(NAMES, listened, reached, {}, {})
    while step["state"] == "measure":
        again = told("listened again", listening)
        plan = next_step(NAMES, listened, reached, again, {})
        for name in ("n1", "n3"):
            printed([json.dumps(plan["steps"][name], ensure_ascii=False)])
        measured = told("measured", lambda host: {"measured": measuring(host)})
        step = next_step(NAMES, listened, reached, {}, measured, earlier=step["batches"])
    return step


@functools.cache
def honestly() -> dict[str, Any]:
    """Return the last step where all nodes are honest."""
    return carried_through(lambda _what, said: said)


def test_honest_nodes_get_a_fabric() -> None:
    step = honestly()
    assert step["fabric"]["n3"]["network"] == A
    assert "NCCL_IB_HCA==mlx5_0:1\n" in step["files"]["n3"]["fabric.env"]


@pytest.mark.parametrize("lie", ["listened", "reached", "listened again", "measured"])
@tried(100)
def test_no_line_of_another_nodes_fabric_is_of_a_nodes_making(lie: str, seed: int) -> None:
    dice = random.Random(f"{lie}{seed}")

    def second(what: str, said: Any) -> Any:
        if what != lie:
            return said
        name = dice.choice(list(said))
        inner = said[name]
        if isinstance(inner, list):
            return {**said, name: [*inner[1:], worse(dice, inner[0])]}
        return {**said, name: worse(dice, inner)} if inner else said

    step = refused(lambda: carried_through(second))
    if not step or step["state"] != "done":
        return
    printed([step["msg"]])
    for name in ("n1", "n3"):
        environment = step["files"][name]["fabric.env"]
        assert MARK not in environment
        assert [line.partition("=")[0] for line in environment.splitlines()] == sorted(
            {line.partition("=")[0] for line in environment.splitlines()}, key=lambda word: (word[0] != "#", word)
        )
        fabric = dict(step["fabric"][name])
        printed([row["reason"] for row in fabric.pop("rejected")] + [fabric.pop("why"), fabric.pop("rdma_off")])
        assert MARK not in json.dumps(fabric)


@tried(100)
def test_a_published_fabric_is_read_in_its_form(seed: int) -> None:
    dice = random.Random(seed)
    honest = honestly()["fabric"]["n1"]
    assert fabric_answers.published(json.dumps(honest)) == honest
    found = fabric_answers.published(json.dumps(worse(dice, honest)))
    assert not found or (found["nic"] and found["address"].startswith("10.91.0."))


@pytest.mark.parametrize("change", [{"address": "192.0.2.9"}, {"network": "10.99.0.0/24"}, {"address": "::1"}])
def test_a_published_address_that_is_not_in_its_network_counts_for_nothing(change: dict[str, str]) -> None:
    honest = honestly()["fabric"]["n1"]
    assert fabric_answers.published(json.dumps({**honest, **change})) == {}


# --- host files and environments --------------------------------------------------------------------------------------


@tried(200)
def test_no_line_of_a_host_file_is_of_a_nodes_making(seed: int) -> None:
    dice = random.Random(seed)
    fabric = {"nic": "eth0", "address": "10.91.0.2", "network": A}
    honest = {"home": "/home/me/.torchfleet", "cores": 4, "accelerators": {"nvidia": 0, "amd": 0}, "fabric": fabric}
    nodes = tuple(Node(name, f"192.0.2.{number}") for number, name in enumerate(NAMES, 1))
    seat = refused(lambda: health_answers.seat_of("n2", worse(dice, honest)))
    if not seat:
        return
    other = {**honest, "fabric": None}
    files = hostfiles(Cluster(nodes[0], nodes), {"n1": other, "n2": seat, "n3": other})
    for text in files.values():
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert len(lines) == 3
        assert (lines[0].split()[0].partition(":")[0], lines[2].split()[0].partition(":")[0]) == (
            "192.0.2.1",
            "192.0.2.3",
        )
        assert all(re.fullmatch(r"[0-9a-f.:]+( slots=|:)[0-9]+", line) for line in lines)


@pytest.mark.parametrize(
    ("take", "row"),
    [
        (fabric_answers.reached_of, {"network": "10.0.0.0/24", "reason": "no route", "mtu": None}),
        (fabric_answers.measured_of, {"network": "10.0.0.0/24", "error": "no route"}),
        (
            fabric_answers.rails_measured_of,
            {"rail": "mlx5_0:1", "peer": "mlx5_0:1", "by": "rdma", "error": "lost", "code": "rdma-lost"},
        ),
    ],
)
def test_a_node_reports_on_nodes_of_the_cluster_alone(take: Any, row: dict[str, Any]) -> None:
    """It is blamed by name whom a report is about."""
    assert take("n1", [{**row, "node": "n2"}], NAMES)[0]["node"] == "n2"
    with pytest.raises(InputError, match=r"node\W+one of n1, n2, n3 was expected"):
        take("n1", [{**row, "node": "n9; rm -rf /"}], NAMES)


LOOK = {
    "refusals": [],
    "ready": False,
    "receipt": None,
    "proven": False,
    "kind": "0123456789abcdef",
    "place": "/home/me/.torchfleet/versions/pytorch/2.13.0-0123456789ab",
    "version": "2.13.0-0123456789ab",
    "used": "",
    "adopts": False,
    "mesh": True,
    "python": "3.11",
    "libc": "2.36",
    "machine": "x86_64",
    "os": "debian",
    "missing_tools": [],
    "needs_pip": False,
}


def test_a_look_adds_nothing_to_what_the_controller_packs() -> None:
    """What a machine saw is laid over the request by which wheels are packed on the controller."""
    told = {**LOOK, "wheelhouse": "/etc", "packages": ["--index-url=http://evil", "x"], "into": "/root"}
    assert software_answers.look_of("n2", told) == LOOK


@tried(200)
def test_what_a_machine_says_of_its_environment_is_in_its_form(seed: int) -> None:
    dice = random.Random(seed)
    look, sent = worse(dice, LOOK), worse(dice, {"n1": "", "n3": "Connection refused"})
    refused(lambda: software_answers.unsent_of("n2", sent))
    found = refused(lambda: software_answers.look_of("n2", look))
    if found:
        printed(found["refusals"])
        assert re.fullmatch(r"\d+\.\d+ [\w.+-]* [\w.+-]*", f"{found['python']} {found['libc']} {found['machine']}")
        decided = share_out({"n1": LOOK, "n2": found, "n3": LOOK}, "n1", True)
        assert {name for share in decided.values() for name in share.to} <= set(NAMES)


@pytest.mark.parametrize("libc", ["2.abc", "2.1000000", "2.9999999999", "2." + "9" * 60, "x"])
def test_a_version_of_the_c_library_is_one(libc: str) -> None:
    """Reproduced before: the controller made an option of pip for each version below it, until its memory was full."""
    with pytest.raises(InputError, match=r"libc\W+the version of glibc was expected"):
        software_answers.look_of("n2", {**LOOK, "libc": libc})


@pytest.mark.parametrize("tool", ["g++\x1b[2J", "g++ and more", "", "x" * 65])
def test_a_program_that_is_missing_has_the_name_of_one(tool: str) -> None:
    """It stands in what people are told to type as root."""
    assert software_answers.look_of("n2", {**LOOK, "missing_tools": ["g++", "Python.h"]})["missing_tools"]
    with pytest.raises(InputError, match=r"missing_tools\W+the name of a program was expected"):
        software_answers.look_of("n2", {**LOOK, "missing_tools": [tool]})


# --- verify -----------------------------------------------------------------------------------------------------------


@tried(200)
def test_a_node_that_lies_to_verify_fails_alone(seed: int, machine: dict[str, Any]) -> None:
    dice = random.Random(seed)
    fabrics = honestly()["files"]
    heard = {name: listening(number) for number, name in enumerate(NAMES, 1)}
    for name, told in heard.items():
        told["facts"]["files"] = fabrics[name]
    measured = {name: measuring(number) for number, name in enumerate(NAMES, 1)}
    if dice.random() < 0.5:
        heard["n2"] = worse(dice, heard["n2"]) if dice.random() < 0.5 else {**heard["n2"], "facts": hostile_value(dice)}
    else:
        measured["n2"] = [worse(dice, measured["n2"][0]), *measured["n2"][1:]]
    asked = {name: Answer(facts=machine) for name in NAMES}
    told = verify.take(asked, heard if isinstance(heard["n2"], dict) else {**heard, "n2": {}}, measured)
    assert told.answers["n1"].facts and told.answers["n3"].facts
    trial = trial_module.plan_trial(told.answers, told.listened, "n1", NAMES)
    drift = compare({name: versions_of(machine, "x" * 16) for name in NAMES}, NAMES)
    outcome = verify.Outcome(told.answers, told.listened, [], told.measured, [], trial, drift)
    findings = sort_out(verify.judge(outcome))
    printed(verify_report.show(outcome, findings))
    json.dumps(verify_report.report(outcome, findings, "now"), allow_nan=False)


def test_no_module_of_ours_hands_ansible_what_it_would_obey_or_a_terminal_would() -> None:
    obeyed = {"ansible_facts": {"verify_report": "/home/me/.bashrc"}, "add_host": {"host_name": "n3"}, "_ansible_x": 1}
    shown = {"warnings": ["\x1b[2J"], "deprecations": [{"msg": "\x1b"}], "exception": "\x1b", "invocation": {}}
    files = {"fabric.json": "{\n}\n", "more": ["\x1b[2Ja\u202e\nb"]}
    found = node_answers.module_answer(
        "n2", {**obeyed, **shown, "msg": "a\r\nfatal: [n3]\x9b", "files": files, "rc": 1}
    )
    assert found == {"msg": "a fatal: [n3]", "files": {"fabric.json": "{\n}\n", "more": ["[2Ja\nb"]}, "rc": 1}
    for bomb in (
        {"a": "x" * (2 << 20)},
        {"a": [[[]]] * 300_000},
        {"a": float("inf")},
        {"a": json.loads("[" * 99 + "]" * 99)},
    ):
        with pytest.raises(InputError, match="answer of n2"):
            node_answers.module_answer("n2", bomb)


def test_every_module_that_runs_on_a_node_is_answered_for_here() -> None:
    """A module without an action of ours would hand its answer to Ansible as the node gave it."""
    plugins = Path(node_answers.__file__).parents[2]
    actions = {path.stem for path in (plugins / "action").glob("[a-z]*.py")}
    modules = {path.stem for path in (plugins / "modules").glob("[a-z]*.py")}
    assert modules - actions == {"lab"}  # it runs on the controller


def test_a_list_whose_odd_items_are_left_out_has_an_end_too() -> None:
    assert node_answers.those(one_of("a"), 2)(["a", "b"]) == ["a"]
    with pytest.raises(BadFrame):
        node_answers.those(one_of("a"), 2)(["a", "b", "b"])
