"""Placement, choices and refusals of the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node, check_cluster
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.allocation import Place, place_ranks
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.requirements import (
    check_addresses,
    check_fabric,
)
from tests.unit.nodes import fabric, facts_of_a_node, launcher

Planner = Callable[..., LaunchPlan]


def test_ranks_fill_each_node_before_the_next() -> None:
    assert place_ranks({"a": 2, "b": 3}, 4) == (Place(0, 0, "a"), Place(1, 1, "a"), Place(2, 0, "b"), Place(3, 1, "b"))
    assert place_ranks({"a": 2, "b": 3}, 1) == (Place(0, 0, "a"),)


def test_ranks_take_the_nodes_in_turn() -> None:
    hosts = [(place.host, place.local_rank) for place in place_ranks({"a": 1, "b": 3, "c": 2}, 5, "node")]
    assert hosts == [("a", 0), ("b", 0), ("c", 0), ("b", 1), ("c", 1)]


def test_defaults(plan: Planner) -> None:
    made = plan()
    assert (made.world_size, made.np_reason) == (2, "all slots of the workers")
    assert (made.backend, made.master_addr, made.master_port) == ("gloo", "127.0.0.1", 23456)
    assert made.head.argv == ("/home/me/.torchfleet/pytorch/bin/python", "/w/mnist.py")
    assert (made.head.cwd, made.head.threads, made.other_nodes) == ("/home/me", 2, ())
    home = "/home/me/.torchfleet"
    assert made.head.wrapper[-3:] == (f"{home}/lib/d/torchfleet.py", "rank", f"{home}/jobs/job")


def test_two_nodes(plan_two: Planner) -> None:
    made = plan_two(n2={"home": "/data/tf", "python": "/opt/python", "cores": 16})
    first, second = made.nodes
    assert (made.head, made.other_nodes) == (first, (second,))
    assert (made.master_addr, first.address, second.address) == ("10.1.0.11", "10.1.0.11", "10.1.0.12")
    assert second.argv == ("/opt/python", "/data/tf/jobs/job/src/mnist.py")
    assert (second.cwd, second.job_dir) == ("/data/tf/jobs/job/src", "/data/tf/jobs/job")
    assert (first.threads, second.threads) == (2, 8)


def test_ranks_per_node(plan_two: Planner) -> None:
    assert [place.host for place in plan_two(ranks_per_node=1).placement] == ["n1", "n2"]
    assert len(plan_two(ranks_per_node=9).placement) == 4


def test_one_node_of_two_meets_on_loopback(plan_two: Planner) -> None:
    made = plan_two(np=1)
    assert (made.master_addr, [node.name for node in made.nodes]) == ("127.0.0.1", ["n1"])


def test_nodes_that_cannot_be_reached_are_named(plan_two: Planner) -> None:
    with pytest.raises(InputError, match=r"n2.*not reached from n1 \(n2: no route\).*setup.yml --tags ssh_mesh"):
        plan_two(n2={"unreachable": "no route"})


def test_versions_and_networks_must_be_equal(plan_two: Planner) -> None:
    other = launcher("/o/mpirun", "4.1.4")
    with pytest.raises(InputError, match=r"n1 5\.0\.11, n2 4\.1\.4"):
        plan_two(n2={"launcher": other})
    with pytest.raises(InputError, match=r"n1 10\.1\.0\.0/24, n2 10\.2\.0\.0/24.*setup"):
        plan_two(n2={"fabric": {**fabric("eth1", "10.2.0.12"), "network": "10.2.0.0/24"}})


def test_without_a_fabric_the_addresses_of_the_inventory_are_used(plan_two: Planner) -> None:
    made = plan_two(n2={"fabric": None})
    assert made.nodes[1].address == "192.0.2.2"
    assert any("no NIC was chosen for n2" in warning for warning in made.warnings)


def test_fewer_ranks_get_more_threads(plan: Planner) -> None:
    assert plan(np=1).head.threads == 4
    assert plan(facts=facts_of_a_node(cores=1)).head.threads == 1


def test_slots_default_to_gpus_then_cores(plan: Planner, node: Node) -> None:
    import dataclasses

    bare = dataclasses.replace(node, slots=None)
    from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import slots_of

    assert slots_of([bare], {"localhost": facts_of_a_node()}) == {"localhost": 4}
    assert slots_of([bare], {"localhost": facts_of_a_node(accelerators={"nvidia": 8, "amd": 0})}) == {"localhost": 8}


CUDA = {"version": "2.13.0+cu130", "cuda": "13.0", "hip": ""}
BACKENDS = [
    ({}, None, "gloo"),
    ({"accelerators": {"nvidia": 2, "amd": 0}, "torch": CUDA}, None, "nccl"),
    ({"accelerators": {"nvidia": 2, "amd": 0}}, None, "gloo"),  # GPUs, but a torch without CUDA
    ({"accelerators": {"nvidia": 2, "amd": 0}, "torch": CUDA}, "gloo", "gloo"),
    ({"accelerators": {"nvidia": 0, "amd": 4}, "torch": {**CUDA, "cuda": "", "hip": "7.2"}}, None, "nccl"),
]


@pytest.mark.parametrize(("changed", "asked", "chosen"), BACKENDS)
def test_backend(plan: Planner, changed: dict[str, Any], asked: str | None, chosen: str) -> None:
    assert plan(facts=facts_of_a_node(**changed), backend=asked).backend == chosen


def test_ranks_that_cannot_share_a_gpu_have_one_each(plan: Planner) -> None:
    """Two slots of the inventory, one GPU: what the inventory of this project says on a machine with one."""
    one = facts_of_a_node(accelerators={"nvidia": 1, "amd": 0}, torch=CUDA)
    made = plan(facts=one)
    assert (made.world_size, made.np_reason) == (1, "a rank for each GPU, which nccl needs")
    assert plan(facts=one, backend="gloo").world_size == 2
    assert plan(facts=facts_of_a_node(accelerators={"nvidia": 4, "amd": 0}, torch=CUDA)).world_size == 2
    with pytest.raises(InputError, match=r"np: got 2; nccl needs a GPU for each rank .localhost has 1.: use -e np=1"):
        plan(facts=one, np=2)


REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"np": 3}, "np: got 3; there are 2 slots .localhost has 2.: use -e np=2"),
    ({}, {"show_ranks": [0, 2]}, "show_ranks: got 2; the ranks are 0 to 1"),
    ({}, {"backend": "nccl"}, "no GPU on localhost; use -e backend=gloo"),
    ({"accelerators": {"nvidia": 1, "amd": 0}}, {"backend": "nccl"}, "torch on localhost has no GPU support"),
    ({"accelerators": {"nvidia": 1, "amd": 1}, "torch": CUDA}, {"backend": "nccl"}, "cannot be mixed"),
    ({"torch": None}, {}, "no torch; install it with: ansible-playbook setup.yml"),
    ({"torch": None}, {"python": "/opt/mine"}, "no torch; install it there, or leave out python"),
    ({"python": ""}, {}, "not on localhost; install it with: ansible-playbook setup.yml"),
    (
        {"launcher": launcher("", "")},
        {},
        "/x/mpirun is not there on localhost",
    ),
    (
        {"launcher": launcher("/x", "", "(no HOME)")},
        {},
        "/x --version printed no version .no HOME.",
    ),
    ({"free_bytes": 63 << 20}, {}, "63 MiB free in /home/me/.torchfleet on localhost"),
    ({"jobs": ["again"]}, {"job_id": "again"}, "this id was used on localhost"),
]


@pytest.mark.parametrize(("changed", "options", "text"), REFUSALS)
def test_refusals(plan: Planner, changed: dict[str, Any], options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        plan(facts=facts_of_a_node(**changed), **options)


def test_a_program_without_python_needs_no_torch(plan: Planner) -> None:
    """One in a container has a Python, a torch and backends of its own."""
    bare = facts_of_a_node(torch=None, python="", accelerators={"nvidia": 2, "amd": 0})
    made = plan(facts=bare, script="/bin/true")
    assert (made.head.argv, made.head.path_first, made.backend) == (("/bin/true",), "", "gloo")
    for backend in ("nccl", "ucc", "mpi"):
        assert plan(facts=bare, script="/bin/true", backend=backend).backend == backend
    with pytest.raises(InputError, match="no GPU on localhost"):
        plan(facts=facts_of_a_node(torch=None, python=""), script="/bin/true", backend="nccl")
    with pytest.raises(InputError, match="not on localhost; install it with"):
        plan(facts=bare)


def test_warnings(plan: Planner) -> None:
    left = [{"pid": 1, "job_id": "old", "command": "x"}]
    warnings = " ".join(plan(facts=facts_of_a_node(leftovers=left, uid=0), master_port=29500).warnings)
    for text in ("29500 is taken", "using 23456", "1 leftover processes of old", "run as root"):
        assert text in warnings
    assert plan().warnings == ()


BAD_CLUSTERS = [
    ((Node("a b", "a"),), "a host name consists of"),
    ((Node("a\nb", "a"),), "a host name consists of"),
    ((Node("$(id)", "a"),), "a host name consists of"),
    ((Node("-oProxyCommand=x", "a"),), "a host name consists of"),
    ((Node("a", ""),), "ansible_host of a"),
    ((Node("a", "root@b"),), "ansible_host of a"),
    ((Node("a", "10.0.0.1"), Node("b", "10.0.0.1")), "a and b both have 10.0.0.1"),
]


@pytest.mark.parametrize(("workers", "text"), BAD_CLUSTERS)
def test_bad_clusters(workers: tuple[Node, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        check_cluster(Cluster(Node("head", "10.0.0.9"), workers))


def test_ports_of_which_none_is_free_are_refused(plan_two: Planner) -> None:
    with pytest.raises(InputError, match='ports: got "24000-24001"; none of them is free on n1'):
        plan_two(n1={"port": None}, ports="24000-24001")
    assert plan_two(n2={"port": None}, ports="24000-24001").master_port == 23456  # of rank 0's node


RUNS = {"running": [{"job_id": "first", "owner": "alice", "own_home": False}]}


def test_another_job_on_the_nodes_is_a_warning(plan_two: Planner) -> None:
    told = "job first of alice also runs on n1 n2: both jobs share cores and GPUs; -e exclusive=true refuses that"
    assert told in plan_two(n1=RUNS, n2=RUNS).warnings
    assert not [text for text in plan_two(n2=RUNS, np=2).warnings if "alice" in text]  # n2 is not used


def test_a_job_in_the_queue_is_not_told_of_those_that_it_waits_for(plan_two: Planner) -> None:
    """Jobs of other homes are in no queue that it knows: nobody waits for them."""
    ours = {"running": [{**RUNS["running"][0], "own_home": True}]}
    named = {**RUNS, "jobs": ["first"]}  # another one of that name is here, or waits
    assert [text for text in plan_two(n2=ours).warnings if text.endswith(", -e queue=true waits for its end")]
    assert not [text for text in plan_two(n2=ours, queue=True, exclusive=True).warnings if "alice" in text]
    assert [text for text in plan_two(n2=named, queue=True).warnings if text.endswith("exclusive=true refuses that")]
    with pytest.raises(InputError, match="job first of alice runs on n2"):
        plan_two(n2=RUNS, queue=True, exclusive=True)


def test_a_job_that_is_to_be_alone_is_refused_beside_another(plan_two: Planner) -> None:
    assert plan_two(exclusive=True).world_size == 4
    assert plan_two(n2=RUNS, np=2, exclusive=True).world_size == 2
    with pytest.raises(InputError, match=r"job first of alice runs on n2: wait for its end, or take -e nodes=n1$"):
        plan_two(n2=RUNS, exclusive=True)
    end = "runs on n1, n2: wait for its end, or end it: ansible-playbook clean.yml -e job_id=first$"
    with pytest.raises(InputError, match=end):
        plan_two(n1=RUNS, n2=RUNS, exclusive=True)


def test_processors_of_two_architectures_are_refused_and_those_of_one_run(plan_two: Planner) -> None:
    """One program is sent to all nodes. torchrun starts nothing on the head."""
    arm: Any = {"machine": "aarch64"}
    with pytest.raises(InputError, match=r'nodes: got "n1 x86_64, n2 aarch64"; .*: use one kind: -e nodes=n1$'):
        plan_two(n2=arm)
    assert plan_two(n2=arm, np=2).world_size == 2  # all on n1
    assert plan_two(n1=arm, n2=arm).world_size == 4
    with pytest.raises(InputError, match=r'"n1 x86_64, n2 unknown"'):
        plan_two(n2={"machine": ""})


def test_two_nodes_with_one_address_are_both_named() -> None:
    """One of them may say that it is the other: ranks and rendezvous would go where it points."""
    facts = {name: {"fabric": {"network": "10.0.0.0/24", "address": "10.0.0.3"}} for name in ("n2", "n3")}
    with pytest.raises(InputError, match=r'fabric: got "10\.0\.0\.3"; n2 and n3 both report this address'):
        check_fabric(["n1", "n2", "n3"], {"n1": {"fabric": None}, **facts})


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_an_address_that_a_node_no_longer_has_is_refused(name: str) -> None:
    facts: Any = {node: {"lost_address": "10.0.0.3" if node == name else ""} for node in ("n1", "n2")}
    with pytest.raises(InputError, match=rf'fabric: got "10\.0\.0\.3 of {name}"; .* --tags ssh_mesh,fabric,hostfile'):
        check_addresses(["n1", "n2"], facts)
