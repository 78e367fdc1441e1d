"""Shared storage: who may mount, the files of NFS and systemd, and what is refused before anything starts."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.torchfleet.cluster.plugins.filter.storage_plan import storage_plan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._storage.shared import escaped, plan, refusal_of
from tests.driver import REPO

NODES = ["n1", "n2", "n3"]
OPTIONS = {"server": "n1", "address": "", "directory": "/srv/torchfleet", "path": "/shared", "connections": 4}


def fabric(address: str, network: str = "10.0.0.0/24") -> dict[str, str]:
    return {"fabric.json": json.dumps({"nic": "eth0", "address": address, "network": network})}


FILES = {name: fabric(f"10.0.0.{number}") for number, name in enumerate(NODES, 1)}
USERS = dict.fromkeys(NODES, "1000")


def planned(name: str = "n2", files: Any = FILES, users: Any = USERS, leaving: Any = (), **changed: Any) -> Any:
    return plan({**OPTIONS, **changed}, name, users, files, leaving)


def test_only_the_other_nodes_addresses_may_mount() -> None:
    lines = planned("n1")["exports"].splitlines()[1:]
    options = "(rw,sync,root_squash,no_subtree_check)"
    assert lines == [f"/srv/torchfleet 10.0.0.{number}{options}" for number in (2, 3)]
    assert planned("n1", leaving=["n3"])["exports"].splitlines()[1:] == lines[:1]
    assert storage_plan(OPTIONS, "n1", USERS, FILES, ["n3"]) == planned("n1", leaving=["n3"])


def test_nodes_mount_over_nfs_and_the_server_binds() -> None:
    mounted, served = planned()["mount"].splitlines(), planned("n1")["mount"].splitlines()
    assert "What=10.0.0.1:/srv/torchfleet" in mounted and "Type=nfs" in mounted
    (options,) = [line.partition("=")[2].split(",") for line in mounted if line.startswith("Options=")]
    assert {"vers=4.2", "hard", "nconnect=4", "noatime", "nosuid", "nodev"} <= set(options)
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
        ({"files": {**FILES, "n3": fabric("0/0")}}, "no network was chosen on n3"),
        ({"files": {**FILES, "n3": fabric("192.0.2.1")}}, "no network was chosen on n3"),
        # Python takes any text for the zone of an address; in exports(5) this one would let everybody in, root too.
        ({"files": {**FILES, "n3": fabric("fe80::1%z *(rw,no_root_squash)", "fe80::/64")}}, "chosen on n3"),
        ({"users": {**USERS, "n2": "1001"}}, "has the number 1001, and that on n1 1000"),
        ({"users": dict.fromkeys(NODES, "0")}, "is root, who may write nothing"),
        ({"leaving": ["n1"]}, "n1 has the data and is being removed"),
    ],
)
def test_nodes_that_cannot_share(given: dict[str, Any], said: str) -> None:
    assert said in planned(**given)["refusal"]


def tasks_in(name: str) -> Any:
    return yaml.safe_load((REPO / "roles/storage/tasks" / name).read_text())


def test_a_mount_that_is_in_use_is_refused_before_anything_is_removed() -> None:
    """Reproduced before: it was found after the MPIs and PyTorch were gone."""
    plays = {play["name"]: play for play in yaml.safe_load((REPO / "playbooks/remove.yml").read_text())}
    check, removal = plays["Check that nothing runs"], plays["Remove all parts"]
    assert list(plays.values()).index(check) < list(plays.values()).index(removal) and check["any_errors_fatal"]
    roles = [task.get("ansible.builtin.include_role") for task in check["tasks"]]
    assert roles[-1] == {"name": "torchfleet.cluster.storage", "tasks_from": "idle"}  # after the jobs
    assert "automount" not in (REPO / "roles/storage/tasks/stop.yml").read_text()
    assert any("__storage_staying" in str(task) for task in tasks_in("idle.yml"))  # the server of those that stay


def rendered(expression: str, **values: Any) -> Any:
    """Return the value of an expression of a task."""
    return Templar(loader=DataLoader(), variables=values).template(trust_as_template("{{ " + expression + " }}"))


@pytest.mark.parametrize(("directory", "goes"), [("/srv/a.b", True), ("/srv/aXb", False), ("/srv", False)])
def test_only_the_directory_that_was_exported_is_removed(directory: str, goes: bool) -> None:
    """As a pattern, /srv/a.b was also found in the exports of /srv/aXb, and /srv/a.b removed."""
    text = planned("n1", directory="/srv/a.b")["exports"]
    other = planned("n1", directory="/srv/aXb")["exports"]
    condition = tasks_in("unexport.yml")[-1]["when"]
    for found, wanted in ((text, goes), (other, directory == "/srv/aXb")):
        read = {"content": base64.b64encode(found.encode()).decode()}
        given = {"storage_directory": directory, "__storage_text": read}
        assert rendered(condition, storage_remove_data=True, **given) is wanted
        assert rendered(condition, storage_remove_data="false", **given) is False


def test_nodes_leave_by_their_whole_names() -> None:
    """As the text that it is on the command line, -e nodes=n10 took n1 out of the exports as well."""
    ours, mesh = (
        yaml.safe_load((REPO / "roles" / role / "vars/main.yml").read_text()) for role in ("storage", "ssh_mesh")
    )
    assert ours["__storage_asked"][-1] == "{{ __storage_leaving }}"
    assert ours["__storage_leaving"] == mesh["__ssh_mesh_leaving"]  # names, of a text with commas or a list


def test_a_removed_node_does_not_stay_in_the_exports_unnoticed() -> None:
    end, _check, look, refuse = tasks_in("present.yml")[:4]
    assert rendered(end["when"], storage_server="", storage_address="", __storage_leaving=["n3"]) is False
    assert rendered(end["when"], storage_server="", storage_address="", __storage_leaving=[]) is True
    assert rendered(look["when"], storage_server="", __storage_leaving=["n3"]) is True
    assert rendered(look["when"], storage_server="n1", __storage_leaving=["n3"]) is False
    assert rendered(look["when"], storage_server="", __storage_leaving=[]) is False
    seen = {"stat": {"exists": True}}
    assert rendered(refuse["when"], __storage_exporting=seen) is True
    assert rendered(refuse["when"], __storage_exporting={"skipped": True}) is False


@pytest.mark.parametrize("name", ["preflight.yml", "mount_point.yml", "idle.yml", "stop.yml"])
def test_what_one_node_cannot_do_is_done_on_none(name: str) -> None:
    """Else the others mounted what that node was to export, or lost it while that one still worked there."""
    tasks = [inner for task in tasks_in(name) for inner in (task, *task.get("rescue", ()))]
    refusals = [task for task in tasks if "ansible.builtin.fail" in task]
    assert refusals and all(task["any_errors_fatal"] for task in refusals)
