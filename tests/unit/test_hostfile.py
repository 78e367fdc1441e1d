"""Host files: the same nodes, addresses and slots for every launcher, and nothing that one of them would misread."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import hostfile as hostfile_action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostfile import (
    entries_of,
    hostfile_lines,
    hostfiles,
)
from tests.unit.nodes import facts_of_a_node

NODES = (Node("n1", "10.1.0.11", slots=2), Node("n2", "host.example.org", slots=3))
TWO = Cluster(NODES[0], NODES)
FACTS = {"n1": facts_of_a_node(), "n2": facts_of_a_node()}


def test_every_launcher_reads_its_own_spelling() -> None:
    entries = [("10.1.0.11", 2), ("host.example.org", 3)]
    assert hostfile_lines("openmpi", entries) == ("10.1.0.11 slots=2", "host.example.org slots=3")
    assert hostfile_lines("hydra", entries) == ("10.1.0.11:2", "host.example.org:3")
    assert hostfile_lines("openmpi", [("fd00::11", 1)]) == ("fd00::11 slots=1",)


@pytest.mark.parametrize(
    ("kind", "entries", "says"),
    [
        ("openmpi", [("10.1.0.11", 1), ("10.1.0.11", 2)], 'got "10.1.0.11"; two nodes have this address'),
        ("openmpi", [("me@n1", 1)], 'got "me@n1"; give a host name or an address'),
        ("openmpi", [("n1\r", 1)], "give a host name or an address"),
        ("openmpi", [("\ufeffn1", 1)], "give a host name or an address"),
        ("openmpi", [("n1 slots=9", 1)], "give a host name or an address"),
        ("openmpi", [("", 1)], 'got ""; give a host name or an address'),
        ("hydra", [("fd00::11", 1)], "MPICH and Intel MPI accept no IPv6 address"),
        ("hydra", [("n1:5", 1)], "MPICH and Intel MPI accept no IPv6 address"),
        ("hydra", [("n1", 0)], "slots: got 0; give a whole number of at least 1 for n1"),
        ("hydra", [("n1", True)], "slots: got true; give a whole number"),
    ],
)
def test_what_a_launcher_would_misread_is_refused(kind: str, entries: list[tuple[str, Any]], says: str) -> None:
    with pytest.raises(InputError) as error:
        hostfile_lines(kind, entries)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_proven_network_comes_before_the_way_ansible_takes() -> None:
    facts = {**FACTS, "n2": facts_of_a_node(fabric={"address": "10.2.0.12"})}
    assert entries_of(TWO, facts) == [("10.1.0.11", 2), ("10.2.0.12", 3)]


def test_slots_are_those_of_a_job() -> None:
    nodes = (Node("n1", "a"), Node("n2", "b"))
    facts = {"n1": facts_of_a_node(cores=7), "n2": facts_of_a_node(accelerators={"nvidia": 4, "amd": 0})}
    assert entries_of(Cluster(nodes[0], nodes), facts) == [("a", 7), ("b", 4)]


def test_a_head_that_runs_no_ranks_is_not_in_the_file() -> None:
    head = Node("n0", "10.1.0.10")
    files = hostfiles(Cluster(head, NODES), {**FACTS, "n0": facts_of_a_node(home="/srv/tf")})
    assert "10.1.0.10" not in "".join(files.values())
    assert "--hostfile /srv/tf/hostfiles/openmpi --np 5 " in files["openmpi"]
    assert "-f /srv/tf/hostfiles/hydra -n 5 " in files["hydra"]


@pytest.mark.parametrize("kind", ["openmpi", "hydra"])
def test_a_file_is_plain_lines_with_the_nodes_last(kind: str) -> None:
    text = hostfiles(TWO, FACTS)[kind]
    assert text.isascii() and "\r" not in text and text.endswith("\n")
    lines = text.splitlines()
    assert tuple(line for line in lines if not line.startswith("#")) == tuple(lines[-2:])
    assert tuple(lines[-2:]) == hostfile_lines(kind, entries_of(TWO, FACTS))
    assert "/home/me/.torchfleet/ssh/config" in text


def test_one_machine_needs_no_way_to_others() -> None:
    node = Node("localhost", "localhost", local=True, slots=2)
    files = hostfiles(Cluster(node, (node,)), {"localhost": facts_of_a_node()})
    assert files["openmpi"].endswith("localhost slots=2\n")
    assert "ssh" not in "".join(files.values())


# --- the action, on the head ----------------------------------------------------------------------------------------


def written(hostvars: dict[str, Any], leaving: list[str] | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what the action returns on head n1 of two workers, and what it had the node write."""
    asked: list[dict[str, Any]] = []

    def execute(**given: Any) -> dict[str, Any]:
        asked.append({"module": given["module_name"], **given["module_args"]})
        return {"changed": True, "files": list(given["module_args"]["files"]), "ansible_facts": {"evil": 1}}

    action = object.__new__(hostfile_action.ActionModule)
    action._execute_module = execute
    groups = {"head": ["n1"], "workers": ["n1", "n2"]}
    variables = {"inventory_hostname": "n1", "hostvars": hostvars, "groups": groups}
    given = {"seats": "__found", "leaving": leaving or []}
    return action.act(given, {**variables, "ansible_play_hosts": list(hostvars)}), asked


def test_the_head_writes_what_all_nodes_told() -> None:
    seat = {"facts": facts_of_a_node(home="/srv/tf")}
    done, asked = written({"n1": {"__found": seat}, "n2": {"ansible_host": "10.1.0.12", "__found": seat}})
    assert done == {"changed": True, "files": ["openmpi", "hydra"]}
    (only,) = asked
    assert (only["module"], only["directory"]) == ("torchfleet.cluster.publish", "/srv/tf/hostfiles")
    assert only["files"]["openmpi"].endswith("\nn1 slots=4\n10.1.0.12 slots=4\n")


@pytest.mark.parametrize(("away", "leaving"), [("n2", []), ("", ["n2"])])
def test_a_worker_that_is_away_or_leaves_is_in_no_host_file(away: str, leaving: list[str]) -> None:
    done, asked = written({"n1": {"__found": {"facts": facts_of_a_node()}, "away": away}, "n2": {}}, leaving)
    assert done["changed"] is True
    assert "\nn1 slots=4\n" in asked[0]["files"]["openmpi"] and "n2" not in asked[0]["files"]["openmpi"]


@pytest.mark.parametrize("told", [{}, {"__found": {}}, {"__found": {"skipped": True}}, {"__found": {"failed": True}}])
def test_no_host_file_is_written_without_a_worker(told: dict[str, Any]) -> None:
    done, asked = written({"n1": {"__found": {"facts": facts_of_a_node()}}, "n2": told})
    assert done["failed"] is True and asked == []
    assert done["msg"] == (
        "hostfile: slots and address of n2 are unknown (failed before, or excluded by --limit): "
        "fix that, or do without: -e away=n2"
    )


def test_a_node_that_lies_about_itself_is_refused() -> None:
    lie = facts_of_a_node(cores="many")
    with pytest.raises(InputError, match="n2"):
        written({"n1": {"__found": {"facts": facts_of_a_node()}}, "n2": {"__found": {"facts": lie}}})
