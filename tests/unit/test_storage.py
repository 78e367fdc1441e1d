"""Shared storage: who may mount, the files of NFS and systemd, and what is refused before anything starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._storage.shared import escaped, plan, refusal_of

NODES = ["n1", "n2", "n3"]
OPTIONS = {"server": "n1", "address": "", "directory": "/srv/torchfleet", "path": "/shared", "connections": 4}
FILES = {name: {"fabric.json": json.dumps({"address": f"10.0.0.{number}"})} for number, name in enumerate(NODES, 1)}
USERS = dict.fromkeys(NODES, "1000")


def planned(name: str = "n2", files: Any = FILES, users: Any = USERS, leaving: Any = (), **changed: Any) -> Any:
    return plan({**OPTIONS, **changed}, name, users, files, leaving)


def test_only_the_other_nodes_addresses_may_mount() -> None:
    lines = planned("n1")["exports"].splitlines()[1:]
    options = "(rw,sync,root_squash,no_subtree_check)"
    assert lines == [f"/srv/torchfleet 10.0.0.{number}{options}" for number in (2, 3)]
    assert planned("n1", leaving=["n3"])["exports"].splitlines()[1:] == lines[:1]


def test_nodes_mount_over_nfs_and_the_server_binds() -> None:
    mounted, served = planned()["mount"].splitlines(), planned("n1")["mount"].splitlines()
    assert "What=10.0.0.1:/srv/torchfleet" in mounted and "Type=nfs" in mounted
    (options,) = [line.partition("=")[2].split(",") for line in mounted if line.startswith("Options=")]
    assert {"vers=4.2", "hard", "nconnect=4", "noatime"} <= set(options)
    assert not {"soft", "proto=tcp", "noauto"} & set(options)
    assert {"What=/srv/torchfleet", "Type=none", "Options=bind"} <= set(served)


def test_a_server_outside_is_mounted_by_all_and_asked_for_nothing() -> None:
    outside = planned("n1", files={name: {} for name in NODES}, server="", address="fd00::5", directory="/var")
    assert (outside["serves"], outside["refusal"]) == (False, "")
    assert "What=[fd00::5]:/var" in outside["mount"]


def test_each_file_is_read_by_one_other_node() -> None:
    assert [planned(name)["reader_of"] for name in NODES] == ["n3", "n1", "n2"]


def test_units_are_named_as_systemd_names_them() -> None:
    """Of `systemd-escape --path`."""
    assert [escaped(path) for path in ("/shared", "/mnt/my-data", "/a.b/c_d")] == [
        "shared",
        r"mnt-my\x2ddata",
        "a.b-c_d",
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"server": "n9"}, "'n9', which is no node of the cluster; give one of n1, n2, n3"),
        ({"address": "nas"}, "are both set"),
        ({"server": "", "address": "nas:/x"}, "give an IP address or the name of a host"),
        ({"server": "", "address": "fe80::1%eth0\nOptions=x"}, "give an IP address or the name of a host"),
        ({"path": "shared"}, "storage_path: got 'shared'; give an absolute path"),
        ({"path": "/a/../etc"}, "give an absolute path"),
        ({"path": "/a b"}, "give an absolute path"),
        ({"path": "/"}, "give an absolute path"),
        ({"path": "/etc/x"}, "belongs to the system"),
        ({"path": "/home"}, "belongs to the system"),
        ({"directory": "srv"}, "storage_directory: got 'srv'"),
        ({"directory": "/shared/data"}, "neither may lie in the other"),
        ({"path": "/srv/torchfleet"}, "neither may lie in the other"),
        ({"connections": 17}, "from 1 to 16"),
        ({"connections": "many"}, "from 1 to 16"),
    ],
)
def test_options_that_cannot_be_used(changed: dict[str, Any], said: str) -> None:
    refusal = refusal_of({**OPTIONS, **changed}, NODES)
    assert said in refusal and "\n" not in refusal
    assert planned(**changed)["refusal"] == refusal


def test_nothing_is_wanted_and_nothing_is_refused() -> None:
    assert refusal_of({**OPTIONS, "server": "", "path": ""}, NODES) == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"files": {**FILES, "n3": {}}}, "no network was chosen on n3"),
        ({"files": {**FILES, "n3": {"fabric.json": '{"address": "0/0"}'}}}, "no network was chosen on n3"),
        # Python takes any text for the zone of an address; in exports(5) this one would let everybody in, root too.
        ({"files": {**FILES, "n3": {"fabric.json": '{"address": "fe80::1%z *(rw,no_root_squash)"}'}}}, "chosen on n3"),
        ({"users": {**USERS, "n2": "1001"}}, "has the number 1001, and that on n1 1000"),
        ({"users": dict.fromkeys(NODES, "0")}, "is root, who may write nothing"),
        ({"leaving": ["n1"]}, "n1 has the data and is being removed"),
    ],
)
def test_nodes_that_cannot_share(given: dict[str, Any], said: str) -> None:
    assert said in planned(**given)["refusal"]
