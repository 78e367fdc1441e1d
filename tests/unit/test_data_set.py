"""The data set of a job on the controller: what belongs to it, what is known of it, who lacks it, what is refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.data_manifest import (
    name_of,
    read_manifest,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import data_reading
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.data_reading import find_files, read_files
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.data_set import DataSet, data_set_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request, parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import HERE, facts_of_a_node, plan_here, plan_on_two

TWO = Cluster(Node("n1", "192.0.2.1"), (Node("n1", "192.0.2.1"), Node("n2", "192.0.2.2")))
ONE = Cluster(HERE, (HERE,))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Return a data set as people have them."""
    root = tmp_path / "cifar"
    (root / "train").mkdir(parents=True)
    (root / "train" / "a.bin").write_bytes(b"a" * 1000)
    (root / "train" / ".hidden").write_bytes(b"h")
    (root / "labels.txt").write_text("cat\ndog\n")
    return root


def of(path: Path, cluster: Cluster = TWO) -> DataSet:
    found = data_set_for(parse_request({"data": str(path)}), cluster)
    assert found
    return found


def digests_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the files that are read from now on."""
    names: list[str] = []
    usual = data_reading.digests_of

    def counted(found: Any, name: str, path: str, progress: Any) -> list[str]:
        names.append(name)
        return usual(found, name, path, progress)

    monkeypatch.setattr(data_reading, "digests_of", counted)
    return names


# --- what belongs to it -----------------------------------------------------------------------------------------------


def test_a_folder_is_all_that_lies_in_it(cifar: Path) -> None:
    data = of(cifar)
    assert [(row.path, row.size) for row in data.manifest.rows] == [
        *(("labels.txt", 8), ("train/.hidden", 1), ("train/a.bin", 1000)),
    ]
    assert read_manifest(data.text).rows == data.manifest.rows and data.name == name_of(data.text)
    assert data.path_on("/h") == f"/h/data/{data.name}/files" and data.warnings == ()


def test_a_file_is_a_data_set_too(cifar: Path) -> None:
    data = of(cifar / "labels.txt")
    assert data.manifest.single and data.path_on("/h") == f"/h/data/{data.name}/files/labels.txt"


def test_its_name_is_its_content(cifar: Path, tmp_path: Path) -> None:
    one = of(cifar)
    cifar.rename(tmp_path / "moved")
    assert of(tmp_path / "moved").name == one.name
    (tmp_path / "moved" / "labels.txt").write_text("cat\ncow\n")
    assert of(tmp_path / "moved").name != one.name


def test_links_and_special_files_are_as_those_of_a_script(cifar: Path, tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("a key of the user's")
    (cifar / "key").symlink_to(tmp_path / "id_ed25519")
    (cifar / "gone").symlink_to("nowhere")
    (cifar / "round").symlink_to(".")
    (cifar / "inside").symlink_to("train/a.bin")
    (cifar / "empty").mkdir()
    os.mkfifo(cifar / "pipe")
    data = of(cifar)
    assert [row.path for row in data.manifest.rows if row.path not in ("labels.txt", "train/.hidden")] == [
        *("inside", "train/a.bin"),
    ]
    assert sorted(data.found.left_out) == ["empty", "gone", "key", "pipe", "round"]
    (line,) = data.warnings
    assert line.startswith(f"left out of the data set {cifar}: 5 (") and line.endswith("the first is 'empty'")


def test_names_of_any_bytes_are_read(cifar: Path) -> None:
    names = ["ümlaut ☃", "line\nend", "-rf", "$(id)", os.fsdecode(b"not utf-8 \xff")]
    for name in names:
        (cifar / name).write_text("x")
    assert set(names) < {row.path for row in of(cifar).manifest.rows}


# --- what is refused --------------------------------------------------------------------------------------------------


def nothing(_root: Path) -> None:
    """Make nothing."""


@pytest.mark.parametrize("cluster", [ONE, TWO], ids=["one machine", "two nodes"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (nothing, "cannot be read (No such file or directory)"),
        (lambda root: root.mkdir(), "there is nothing in it"),
        (lambda root: root.touch(), "there is nothing in it"),
        (lambda root: root.symlink_to("nowhere"), "cannot be read (No such file or directory)"),
    ],
    ids=["not there", "empty folder", "empty file", "link to nothing"],
)
def test_what_is_no_data_set_is_refused_in_one_line(
    tmp_path: Path, cluster: Cluster, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / "set")
    with pytest.raises(InputError) as refused:
        of(tmp_path / "set", cluster)
    text = str(refused.value)
    assert text.startswith(f'data: got "{tmp_path}/set"; ') and said in text and "\n" not in text


def test_what_cannot_be_read_is_refused(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root all can be read, so the file is one that not even root reads."""
    usual = os.open

    def refusing(path: Any, *words: Any, **named: Any) -> int:
        if str(path).endswith("a.bin"):
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path, *words, **named)

    monkeypatch.setattr(data_reading.os, "open", refusing)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied: .*/train/a\.bin\)"):
        of(cifar)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        of(cifar, ONE)


def test_a_home_is_no_data_set(home: Path) -> None:
    (home / "x").parent.mkdir()
    (home / "x").write_text("x")
    with pytest.raises(InputError, match="all of it would be sent to the nodes"):
        of(home)
    with pytest.raises(InputError, match="neither a folder nor a file"):
        of(Path("/dev/null"))


def test_too_many_files_are_refused_with_the_limit(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_reading, "MOST_FILES", 2)
    with pytest.raises(InputError, match="it has more than 2 files: pack small files into archives"):
        of(cifar)
    monkeypatch.setattr(data_reading, "MOST_PIECES", 0)
    with pytest.raises(InputError, match="it is larger than 0 TiB: send it in several folders"):
        of(cifar / "labels.txt")


def test_a_name_that_no_node_takes_is_refused(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = cifar.joinpath(*["d"] * 100)
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    with pytest.raises(InputError, match="is no path below a directory"):
        of(cifar)


def test_a_data_set_that_changes_while_it_is_read_is_refused(cifar: Path) -> None:
    found = find_files(str(cifar))
    (cifar / "train" / "a.bin").write_bytes(b"b" * 1000)
    with pytest.raises(InputError, match=r"'train/a\.bin' changed while it was read: wait until nobody writes there"):
        read_files(found, str(cifar))


def test_a_data_set_that_changes_while_it_is_sent_is_refused(cifar: Path) -> None:
    data = of(cifar)
    blocks = data.blocks([0, 1, 2])
    assert next(blocks) == (0, b"cat\ndog\n", True)
    (cifar / "train" / "a.bin").write_bytes(b"b" * 1000)
    with pytest.raises(InputError, match=r"'train/a\.bin' changed while it was read"):
        list(blocks)
    (cifar / "train" / "a.bin").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        list(data.blocks([2]))


# --- what is known from before ----------------------------------------------------------------------------------------


@pytest.fixture
def old(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data set that was written some time ago."""
    usual = time.time_ns
    monkeypatch.setattr(data_reading.time, "time_ns", lambda: usual() + 10**10)
    return cifar


def test_unchanged_files_are_not_read_again(old: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    first, names = of(old), digests_read(monkeypatch)
    assert (of(old).name, names) == (first.name, [])
    (kept,) = (home / ".torchfleet" / "data-lists").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    (old / "new.txt").write_text("new")
    (old / "labels.txt").unlink()
    of(old)
    assert names == ["new.txt"]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"b" * 1000),
        lambda path: path.write_bytes(b"a" * 1001),
        lambda path: os.utime(path, (1, 1)),
        lambda path: path.rename(path.with_name("x")) and path.write_bytes(b"a" * 1000),
    ],
    ids=["written", "longer", "touched", "exchanged"],
)
def test_a_changed_file_is_read_again(
    old: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    of(old)
    names = digests_read(monkeypatch)
    change(old / "train" / "a.bin")
    of(old)
    assert "train/a.bin" in names


def test_a_file_that_was_written_just_now_is_read_again(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be written once more without another time, where file systems keep coarse ones."""
    of(cifar)
    names = digests_read(monkeypatch)
    of(cifar)
    assert sorted(names) == ["labels.txt", "train/.hidden", "train/a.bin"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"labels.txt": 1}', '{"labels.txt": [8, 1, 1, 1, ["x"]]}'])
def test_what_is_kept_may_be_anything(old: Path, home: Path, text: str) -> None:
    name = of(old).name
    (kept,) = (home / ".torchfleet" / "data-lists").iterdir()
    kept.write_text(text)
    assert of(old).name == name


def test_a_list_that_was_changed_by_another_is_no_way_to_other_digests(old: Path, home: Path) -> None:
    """Only rows of the very same file count, so at worst a node notices that what came is something else."""
    of(old)
    (kept,) = (home / ".torchfleet" / "data-lists").iterdir()
    rows = json.loads(kept.read_text())
    rows["labels.txt"][4] = []
    kept.write_text(json.dumps(rows))
    assert of(old).manifest.rows[0].digests != []


def test_a_home_that_takes_no_file_is_no_reason_to_fail(old: Path, home: Path) -> None:
    home.write_text("a file")
    assert of(old).name == of(old).name


def test_lists_do_not_pile_up(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_reading, "KEPT_LISTS", 3)
    usual = time.time_ns
    monkeypatch.setattr(data_reading.time, "time_ns", lambda: usual() + 10**10)
    for number in range(5):
        (tmp_path / f"set{number}").write_text("x")
        of(tmp_path / f"set{number}")
    assert len(list((home / ".torchfleet" / "data-lists").iterdir())) == 3


# --- the plan ---------------------------------------------------------------------------------------------------------


def seen(**changed: Any) -> dict[str, Any]:
    return {"data": {"whole": False, "missing": -1, "free": 1 << 40, **changed}}


def test_ranks_find_it_by_a_variable(cifar: Path) -> None:
    data = of(cifar)
    plan = plan_on_two(n1=seen(whole=True, missing=0), n2={**seen(), "home": "/srv/t"}, data_set=data)
    values = {node.name: {row.name: row.value for row in node.environment} for node in plan.nodes}
    assert {name: each["TORCHFLEET_DATA"] for name, each in values.items()} == {
        "n1": f"/home/me/.torchfleet/data/{data.name}/files",
        "n2": f"/srv/t/data/{data.name}/files",
    }
    assert plan.lacking == ("n2",)
    assert plan.data == (
        f"data {cifar}: 3 files, 1,009 bytes, to be copied to n2: /home/me/.torchfleet/data/{data.name}/files on n1; "
        f"/srv/t/data/{data.name}/files on n2 (TORCHFLEET_DATA)"
    )
    assert plan.data in explain(plan, render(plan))
    assert {node["data"] for node in order_for(plan, render(plan), "c")["nodes"].values()} == {data.name}


def test_where_it_is_already_nothing_is_laid(cifar: Path) -> None:
    plan = plan_on_two(n1=seen(whole=True), n2=seen(whole=True), data_set=of(cifar))
    assert plan.lacking == () and "is there: " in plan.data


def test_on_one_machine_it_is_used_where_it_is(cifar: Path, home: Path) -> None:
    data = of(cifar, ONE)
    plan = plan_here(facts_of_a_node(), data_set=data)
    assert ("TORCHFLEET_DATA", str(cifar)) in [(row.name, row.value) for row in plan.nodes[0].environment]
    assert (plan.lacking, plan.nodes[0].data) == ((), "")
    assert plan.data == f"data {cifar}: used where it is (TORCHFLEET_DATA)"
    assert not home.exists()


def test_what_the_user_sets_wins(cifar: Path) -> None:
    plan = plan_on_two(n1=seen(), n2=seen(), data_set=of(cifar), job_env={"TORCHFLEET_DATA": "/mine"})
    assert {row.value for row in plan.nodes[0].environment if row.name == "TORCHFLEET_DATA"} == {"/mine"}


@pytest.mark.parametrize("missing", [-1, 900])
def test_a_node_without_room_is_named_with_what_is_needed_and_free(cifar: Path, missing: int) -> None:
    needed = f"{missing if missing > 0 else 1009:,}"
    said = f"n2 has 899 bytes free in /home/me/.torchfleet, and {needed} are needed: make room"
    with pytest.raises(InputError, match=said):
        plan_on_two(n1=seen(), n2=seen(free=899, missing=missing), data_set=of(cifar))
    assert plan_on_two(n1=seen(), n2=seen(free=900, missing=900), data_set=of(cifar)).lacking == ("n1", "n2")


def test_without_one_nothing_is_said() -> None:
    plan = plan_on_two()
    assert (plan.data, plan.lacking, data_set_for(Request("mnist"), TWO)) == ("", (), None)
    assert all(row.name != "TORCHFLEET_DATA" for node in plan.nodes for row in node.environment)


@pytest.mark.parametrize("given", [{"data": ""}, {"data": 1}, {"data": "a\0b"}, {"data_keep": -1}, {"data_keep": "x"}])
def test_odd_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(given))}: got"):
        parse_request(given)
