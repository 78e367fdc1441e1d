"""The name of a cluster whose inventory gives it none: kept when that moves, and never that of another cluster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import cluster_name as naming

GROUPS = {"head": ["n1"], "workers": ["n1", "n2"]}
NODES = {"n1": "192.0.2.1", "n2": "192.0.2.2"}


class Controller:
    """A home with clusters, and inventories beside it."""

    def __init__(self, place: Path) -> None:
        self.place, self.authorities = place, place / "ca"

    def inventory(self, name: str) -> Path:
        made = self.place / name / "cluster"
        made.mkdir(parents=True)
        return made

    def set_up(self, name: str, inventory: Path | str | None, nodes: dict[str, str] | None = None) -> None:
        """Write what role ssh_mesh notes."""
        there = {"cluster": name, "nodes": {host: {"address": at} for host, at in (nodes or NODES).items()}}
        there |= {"inventory": str(inventory)} if inventory is not None else {}
        (self.authorities / name).mkdir(parents=True, exist_ok=True)
        (self.authorities / name / "nodes.json").write_text(json.dumps(there))

    def name(self, inventory: Path, nodes: dict[str, str] | None = None, **of_head: Any) -> str:
        """Return the name of the cluster of an inventory."""
        hosts: dict[str, dict[str, Any]] = {
            host: {"ansible_host": at, "inventory_dir": str(inventory)} for host, at in (nodes or NODES).items()
        }
        first = next(iter(hosts))
        hosts[first].update(of_head)
        return naming.cluster_name({"head": [first], "workers": list(hosts)}, hosts)


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    made = Controller(tmp_path)
    monkeypatch.setattr(naming, "AUTHORITIES", str(made.authorities))
    return made


def test_clusters_with_nodes_of_the_same_names_are_told_apart(controller: Controller) -> None:
    """Reproduced before: two inventories with n1 and n2 had one baseline of bench.yml."""
    first, second = (controller.name(controller.inventory(name)) for name in ("a", "b"))
    assert first != second and first.startswith("cluster-")
    assert controller.name(Path("/a"), torchfleet_cluster="mine") == "mine"


@pytest.mark.parametrize("noted", [True, False])
def test_an_inventory_that_moved_is_known_by_its_nodes(controller: Controller, noted: bool) -> None:
    """`noted`: by this version; an older one did not note where the inventory was."""
    old, new = controller.inventory("a"), controller.place / "b"
    name = controller.name(old)
    controller.set_up(name, old if noted else None)
    old.rename(new)
    assert controller.name(new) == name
    more = {**NODES, "n3": "192.0.2.3"}
    assert controller.name(new, more) == name
    assert (controller.name(new, {"n1": NODES["n1"]}) == name) is noted  # else those of n2 would be shut out
    assert controller.name(new, ansible_host=None, ansible_connection="local") == name
    controller.set_up(name, new)  # from now on it is this inventory's, whatever becomes of the nodes
    assert controller.name(new, {"n2": "192.0.2.9", "n9": "192.0.2.8"}) == name
    assert controller.name(new, {"n9": NODES["n1"]}) == name


def test_two_inventories_in_one_directory_with_nodes_of_their_own_are_two_clusters(controller: Controller) -> None:
    """As prod.yml and test.yml. One name for both had each setup shut out the nodes of the other."""
    place, others = controller.inventory("a"), {"t1": "192.0.2.11", "t2": ""}
    prod = controller.name(place)
    controller.set_up(prod, place)
    test = controller.name(place, others)
    assert test != prod and controller.name(place) == prod
    controller.set_up(test, place, others)
    assert (controller.name(place), controller.name(place, others)) == (prod, test)
    assert controller.name(place, {"t2": "192.0.2.99"}) == test
    own = str(controller.authorities / prod)
    assert controller.name(place, {"t9": "192.0.2.99"}, ssh_mesh_directory=own) == prod


@pytest.mark.parametrize(
    "nodes", [{**NODES, "n2": "192.0.2.9"}, {"n1": NODES["n1"], "n3": "192.0.2.3"}, {"m1": "192.0.2.1"}]
)
def test_other_nodes_are_another_cluster(controller: Controller, nodes: dict[str, str]) -> None:
    old = controller.inventory("a")
    name = controller.name(old)
    controller.set_up(name, old)
    old.rmdir()
    assert controller.name(controller.inventory("b"), nodes) != name


def test_a_copy_of_an_inventory_that_is_still_there_is_another_cluster(controller: Controller) -> None:
    """So is a new inventory at the place that the first one left, and one beside a cluster with a name of its own."""
    old, copy = controller.inventory("a"), controller.inventory("b")
    name = controller.name(old)
    controller.set_up(name, old)
    assert controller.name(copy) != name
    shutil.rmtree(copy)
    old.rename(copy)
    controller.set_up(name, copy)
    old.mkdir()
    assert controller.name(old) != name and controller.name(old).startswith("cluster-")
    for noted, named in (("", "prod-20261126"), (None, "prod")):  # by people, though the first looks like ours
        controller.set_up(named, noted)
        assert controller.name(controller.inventory(f"c{named}")) != named


def test_a_copy_of_a_directory_of_authorities_is_no_second_cluster(controller: Controller) -> None:
    """We tell people to back it up."""
    controller.set_up("a-00000000", "/gone")
    shutil.copytree(controller.authorities / "a-00000000", controller.authorities / "a.bak")
    assert controller.name(controller.inventory("b")) == "a-00000000"


def test_which_of_two_is_asked(controller: Controller) -> None:
    for name in ("a-00000000", "b-11111111"):
        controller.set_up(name, "/gone")
    with pytest.raises(InputError) as caught:
        controller.name(controller.inventory("c"))
    says = 'torchfleet_cluster: got ""; these nodes are those of a-00000000 and b-11111111'
    assert str(caught.value).startswith(says)


def test_a_directory_of_authorities_beside_the_inventory_moves_with_it(controller: Controller) -> None:
    """As labs have theirs. A damaged one is no cluster here: setup tells of it."""
    old, new = controller.inventory("a"), controller.place / "b"
    name = controller.name(old)
    controller.set_up(name, old)
    shutil.move(controller.authorities / name, old / "mesh")
    old.rename(new)
    assert controller.name(new) != name
    assert controller.name(new, ssh_mesh_directory=str(new / "mesh")) == name
    (new / "mesh" / "nodes.json").write_text("[]")
    assert controller.name(new, ssh_mesh_directory=str(new / "mesh")) != name
