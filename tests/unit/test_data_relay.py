"""A data set on its way to nodes, which are homes of this machine: real supervisors, and a program called ssh."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import supervisor
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores import data_store
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer import data_relay
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.data_relay import send_list
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import Route
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import progress
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.data_sending import believed_wants, lay
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.data_set import DataSet, data_set_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from tests.unit.laid_runtime import share_runtime

# ssh -F <home>/ssh/config -o <option> <host> <command>: notes who reached whom, and is refused where a file says so.
SSH = """#!/bin/sh
for command; do host=$previous; previous=$command; done
echo "$2 $host" >> {root}/logins
[ -e "$(dirname "$2")/no-$host" ] && echo "no way to $host" >&2 && exit 255
exec /bin/sh -c "$command"
"""
SIZES = {"a.bin": 3_000_000, "sub/b.bin": 10, "sub/c.bin": 0, "z.bin": 1}


class Fleet:
    """Nodes with homes below one directory; n1 is the head."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.names = root, [f"n{number}" for number in range(1, count + 1)]
        self.homes = {name: root / name for name in self.names}
        for name, home in self.homes.items():
            (home / "ssh").mkdir(parents=True)
            (home / "ssh" / "config").write_text(name)
        (root / "bin").mkdir()
        (root / "bin" / "ssh").write_text(SSH.format(root=root))
        (root / "bin" / "ssh").chmod(0o755)
        self.said: list[str] = []
        self.set = root / "set"
        for path, size in SIZES.items():
            (self.set / path).parent.mkdir(parents=True, exist_ok=True)
            (self.set / path).write_bytes(os.urandom(size))

    def node(self, name: str) -> Node:
        return Node(name, name, local=name == "n1", home=str(self.homes[name]), interpreter=sys.executable)

    def data(self) -> DataSet:
        found = data_set_for(Request("mnist", data=str(self.set)), Cluster(self.node("n2"), (self.node("n2"),)))
        assert found
        return found

    def lay(self, workers: list[str] | None = None, change: Callable[[], object] | None = None) -> int:
        """Lay the data set on the workers that do not have it; return how many bytes were sent."""
        workers = workers or self.names
        data, cluster = self.data(), Cluster(self.node("n1"), tuple(self.node(name) for name in workers))
        routes: dict[str, Route] = {
            name: {"host": name, "home": str(self.homes[name]), "interpreter": sys.executable} for name in workers
        }
        with Session(cluster.head, ()) as session:
            facts = session.survey(cluster, Request("mnist"), "", data.name)
            lacking = [name for name in workers if not facts[name]["data"]["whole"]]  # type: ignore[typeddict-item]
            if change:
                change()
            return lay(session, data, lacking, routes, 2, lambda: None, self.said.append)

    def root_of(self, name: str) -> Path:
        return Path(data_store.root_of(str(self.homes[name]), self.data().name))

    def has(self, name: str) -> bool:
        root = self.root_of(name)
        return all((root / path).read_bytes() == (self.set / path).read_bytes() for path in SIZES)

    def logins(self) -> set[tuple[str, str]]:
        """Return who reached whom."""
        rows = [line.split() for line in (self.root / "logins").read_text().splitlines()]
        return {(Path(config).parent.parent.name, host) for config, host in rows}


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_lib: Path) -> Fleet:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "controller"))
    fleet = Fleet(tmp_path, 4)
    share_runtime(runtime_lib, *fleet.homes.values())
    return fleet


TOTAL = sum(SIZES.values())


def test_each_byte_leaves_the_controller_once_and_goes_on_from_node_to_node(four: Fleet) -> None:
    assert four.lay() == TOTAL
    assert all(map(four.has, four.names))
    assert four.logins() == {*(("n1", name) for name in four.names[1:]), ("n2", "n4")}
    assert four.lay() == 0


def test_a_head_that_only_launches_keeps_nothing(four: Fleet) -> None:
    assert four.lay(workers=["n2", "n3", "n4"]) == TOTAL
    assert all(map(four.has, ["n2", "n3", "n4"])) and not (four.homes["n1"] / "data").exists()


def test_a_node_that_was_added_gets_it_from_its_neighbours(four: Fleet) -> None:
    four.lay(workers=["n1", "n2"])
    assert four.lay() == 0
    assert all(map(four.has, four.names))


def test_what_one_node_is_missing_is_sent_alone(four: Fleet) -> None:
    four.lay()
    damaged = four.root_of("n4") / "sub" / "b.bin"
    damaged.chmod(0o600)
    damaged.write_bytes(b"x" * 10)
    head = four.root_of("n1") / "z.bin"
    head.chmod(0o600)
    head.write_bytes(b"")
    assert four.lay() == 1  # the head's own; n4's comes from the head
    assert all(map(four.has, four.names))


def test_a_node_that_another_does_not_reach_is_sent_to_by_the_head(four: Fleet) -> None:
    (four.homes["n2"] / "ssh" / "no-n4").touch()
    assert four.lay() == TOTAL
    assert all(map(four.has, four.names)) and ("n2", "n4") in four.logins()


def test_a_node_that_cannot_take_it_is_named_before_anything_is_sent(four: Fleet) -> None:
    (four.homes["n4"] / "data").write_text("a file")
    with pytest.raises(InputError, match=r"cannot be copied to the nodes: n4: (File exists|Not a directory)"):
        four.lay()
    assert not any((four.root_of(name) / "a.bin").exists() for name in four.names)


def test_what_changes_after_it_was_read_is_refused(four: Fleet) -> None:
    with pytest.raises(InputError, match=r"'z\.bin' changed while it was read"):
        four.lay(change=lambda: (four.set / "z.bin").write_bytes(b"?"))
    assert not any(map(data_store.is_whole, [str(four.root_of(name).parent) for name in four.names]))


def test_an_interrupted_start_goes_on_where_it_ended(four: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller is gone after the first file. What came of it stays on every node."""
    usual = DataSet.blocks

    def ends(data: DataSet, pieces: list[int]) -> Iterator[tuple[int, bytes, bool]]:
        yield from usual(data, pieces[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(DataSet, "blocks", ends)
    with pytest.raises(KeyboardInterrupt):
        four.lay()
    monkeypatch.setattr(DataSet, "blocks", usual)
    assert four.lay() == TOTAL - SIZES["a.bin"]
    assert all(map(four.has, four.names))


def test_nodes_that_share_a_home_are_sent_it_once(four: Fleet) -> None:
    four.homes["n3"] = four.homes["n2"]
    assert four.lay(workers=["n2", "n3"]) == TOTAL
    assert four.has("n2") and len(list((four.homes["n2"] / "data").glob("*/files"))) == 1


def test_a_head_that_asks_for_what_is_not_there_is_not_believed(four: Fleet) -> None:
    data = four.data()
    for wanted in ([(0, 99)], [(1, 0)]):
        with pytest.raises(HeadLost, match="pieces were asked for that are not there"):
            believed_wants("n1", {"kind": "data_wanted", "wanted": wanted, "unreached": [], "reason": ""}, data)
    with pytest.raises(HeadLost):
        believed_wants("n1", {"kind": "beat"}, data)
    with pytest.raises(InputError, match="cannot be copied to the nodes: not reached from another node: n9"):
        believed_wants("n1", {"kind": "data_wanted", "wanted": [], "unreached": ["n9"], "reason": ""}, data)


# --- who says nothing, or takes nothing -------------------------------------------------------------------------------


def test_a_controller_that_sleeps_keeps_nobody_waiting(four: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stays open. What came stays, and the next start is not told of another one."""
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 0.1)
    data, home = four.data(), str(four.homes["n1"])
    (out, to_head), (from_head, back) = os.pipe(), os.pipe()
    head, controller = supervisor.Supervisor(Channel(out, back)), Channel(from_head, to_head)
    assert head.silence is None  # a node: its head may have nothing to send for hours
    head.asked = {"request": {}, "nodes": []}  # type: ignore[typeddict-item]
    closed: list[bool] = []
    head.peers["n2"] = SimpleNamespace(remote=SimpleNamespace(close=lambda: closed.append(True)))  # type: ignore[assignment]
    send_list(controller, data.text)
    offer = {"home": home, "name": data.name, "list_bytes": len(data.text), "token": "1", "keep": 2, "here": "n1"}
    controller.send({"kind": "file", "name": "0", "first": True, "data": b"a part of the first piece"})
    head.on_data_set({**offer, "nodes": []})  # type: ignore[typeddict-item]
    answer = controller.receive(0)
    assert answer and answer["kind"] == "data_wanted" and controller.receive(0) is None
    assert closed == [True] and not head.peers  # a node in the middle of it lets go of its lock, too
    assert four.lay(workers=["n1"]) == TOTAL and four.has("n1")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("time.sleep(600)", "n2: it took nothing for 60 s: its disk may hang"),
        ("os.write(2, b'it broke')\nos._exit(1)", "n2: it broke"),
    ],
)
def test_a_node_that_takes_nothing_is_not_waited_for_for_a_day(end: str, said: str) -> None:
    """It may send signs of life all the while: its disk hangs, not its supervisor."""
    beats = f"""import os, threading, time
def beat():
    while print('{{"kind": "beat"}}', flush=True) is None:
        time.sleep(0.1)
threading.Thread(target=beat, daemon=True).start()
{end}"""
    remote = RemoteProcess([sys.executable, "-c", beats], 0.2)
    while not remote.channel.lost:
        remote.channel.send({"kind": "file", "data": b"x" * 65536})
    if "_exit" in end:
        remote.process.wait(60)
    peer: Any = SimpleNamespace(name="n2", remote=remote, channel=remote.channel)
    assert data_relay.outcome_of(data_relay.Child(peer, ())).startswith(said)
    remote.close(0)


def test_who_has_just_died_is_not_said_to_take_nothing() -> None:
    """A program whose end was not seen yet: its pipe is closed already."""
    remote = RemoteProcess([sys.executable, "-c", "import os; os.write(2, b'the disk is full'); os.close(0)"], 60.0)
    while not remote.channel.lost:
        remote.channel.send({"kind": "file", "data": b"x" * 65536})
    remote.process.poll = lambda: None  # type: ignore[method-assign]
    peer: Any = SimpleNamespace(name="n2", remote=remote, channel=remote.channel)
    assert data_relay.lost_text(peer) == "the disk is full"
    remote.close(0)


def test_work_that_takes_long_says_how_far_it_is(four: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    four.lay(workers=["n1"])
    assert four.said == []
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    (four.set / "z.bin").write_bytes(b"another")
    four.lay(workers=["n1"])
    assert four.said[-1] == f"data {four.set}: {TOTAL + 6:,} of {TOTAL + 6:,} bytes are sent (100%)"
