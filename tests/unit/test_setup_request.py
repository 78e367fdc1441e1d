"""What setup.yml refuses before anything starts: an inventory without a head or workers, and parts that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import inventory_check
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.setup_parts import PARTS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.setup_request import half_a_cluster, mistakes

GROUPS = {"all": ["n1", "n2"], "head": ["n1"], "workers": ["n1", "n2"]}


@pytest.mark.parametrize(
    "asked", [{}, {"mpis": None}, {"mpis": []}, {name: list(parts) for name, parts in PARTS.items()}]
)
def test_what_there_is_can_be_asked_for(asked: dict[str, Any]) -> None:
    assert mistakes(GROUPS, asked) == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"mpis": "mpich"},
            """mpis: got "mpich"; give a list of openmpi, mpich, intelmpi: -e '{"mpis": ["openmpi"]}'""",
        ),
        (
            {"accelerators": ["gpu"]},
            """accelerators: got ["gpu"]; give a list of cuda, rocm: -e '{"accelerators": ["cuda"]}'""",
        ),
        (
            {"libraries": ["ucx", "ofi"]},
            """libraries: got ["ucx", "ofi"]; give a list of ucx, ucc: -e '{"libraries": ["ucx"]}'""",
        ),
        ({"backends": 7}, """backends: got 7; give a list of mpi, shm, ccl: -e '{"backends": ["mpi"]}'"""),
        (
            {"backends": {"mpi": True}},
            """backends: got {"mpi": true}; give a list of mpi, shm, ccl: -e '{"backends": ["mpi"]}'""",
        ),
        (
            {"mpis": [["openmpi"]]},
            """mpis: got [["openmpi"]]; give a list of openmpi, mpich, intelmpi: -e '{"mpis": ["openmpi"]}'""",
        ),
    ],
)
def test_a_list_that_has_another_part_or_is_none_is_refused(asked: dict[str, Any], told: str) -> None:
    assert mistakes(GROUPS, asked) == [told]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("firewall_open", "maybe", ""),
        ("torchfleet_cluster", "../x", "use letters, digits, '.', '-' and '_', at most 64"),
        ("torchfleet_ports", "30000-2", "give first and last, from 1024 to 65535: -e torchfleet_ports=20000-20999"),
        ("torchfleet_ports", 29000, "give first and last, from 1024 to 65535: -e torchfleet_ports=20000-20999"),
        ("verify_floor_gbps", "fast", "give a number of at least 0: verify_floor_gbps: 1"),
        ("verify_floor_gbps", "nan", "give a number of at least 0: verify_floor_gbps: 1"),
    ],
)
def test_a_value_that_a_later_role_would_refuse_is_refused_at_once(name: str, value: object, told: str) -> None:
    (line,) = mistakes(GROUPS, {name: value})
    assert line.startswith(f"{name}: got {json.dumps(value)}; ") and line.endswith(told)


def test_values_that_can_be() -> None:
    given = {"firewall_open": "yes", "torchfleet_cluster": "prod", "torchfleet_ports": "20000-20999"}
    assert mistakes(GROUPS, {**given, "verify_floor_gbps": "12.5"}) == []
    assert mistakes(GROUPS, dict.fromkeys(given, "")) == []
    assert [
        value for value in (True, False, 1, "1", "on", "Off", "y") if mistakes(GROUPS, {"firewall_open": value})
    ] == []


@pytest.mark.parametrize(
    ("limit", "tags", "refused"),
    [
        ("", ["all"], False),
        ("n1", ["mpi", "pytorch"], False),
        ("n1", ["all"], True),
        ("n1", ["mpi", "fabric"], True),
        ("!n2", ["verify"], True),
        ("n1", [], True),
    ],
)
def test_a_part_of_the_nodes_goes_with_steps_that_need_no_others(limit: str, tags: list[str], refused: bool) -> None:
    told = half_a_cluster(limit, tags)
    assert bool(told) is refused and "\n" not in told
    assert not refused or "leave nodes out with -e away=n7" in told


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({}, "head has 0 and workers has 0"),
        ({"workers": ["n1"]}, "head has 0 and workers has 1"),
        ({"head": ["n1", "n2"], "workers": ["n1"]}, "head has 2 and workers has 1"),
        ({"head": ["n1"], "workers": []}, "head has 1 and workers has 0"),
    ],
)
def test_a_cluster_has_one_head_and_workers(groups: dict[str, list[str]], told: str) -> None:
    (line,) = mistakes(groups, {})
    assert line.startswith(
        "The inventory needs a group `head` with one host and a group `workers` with at least one, but "
    )
    assert f"but {told}; inventory/examples shows how" in line


def test_all_mistakes_are_named_at_once_in_one_line() -> None:
    action = object.__new__(inventory_check.ActionModule)
    refused = action.act({"mpis": "x", "accelerators": ["y"]}, {"groups": {}})
    assert refused["failed"] is True
    lines = mistakes({}, {"mpis": "x", "accelerators": ["y"]})
    assert refused["msg"] == "; ".join(lines) and len(lines) == 3 and "\n" not in refused["msg"]
    hosts: dict[str, dict[str, object]] = {"n1": {}, "n2": {"torchfleet_gpus": 8}}
    assert action.act({}, {"groups": GROUPS, "hostvars": hosts}) == {"changed": False}
    hosts["n2"]["torchfleet_gpus"] = -1
    told = action.act({}, {"groups": GROUPS, "hostvars": hosts})["msg"]
    assert told == "torchfleet_gpus of n2: got -1; give a whole number of at least 0: torchfleet_gpus: 8"
