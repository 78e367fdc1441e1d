"""A folder on its way to a node: what is sent, the job's own tree that is made of it, and what becomes of that."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    FETCHED_MARK,
    JobDir,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.leftovers import reap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores import file_store
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.file_store import Store
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.job_files import outputs, tree_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer import shipment as shipment_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.shipment import Shipment, relay
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import ConnectionLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import Folder, folder_of


def folder(root: Path) -> Path:
    """Make a folder as people have them; return its script."""
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("import pkg\n")
    (root / "pkg" / "__init__.py").write_text("A = 1\n")
    (root / "tool.sh").write_text("#!/bin/sh\n")
    (root / "tool.sh").chmod(0o755)
    for hidden in (".env", ".git/config", "__pycache__/x.pyc", "runs/old/result.json", "venv/bin/python"):
        (root / hidden).parent.mkdir(parents=True, exist_ok=True)
        (root / hidden).write_text("never")
    return root / "train.py"


def send(made: Folder, shipment: Shipment) -> list[str]:
    """Send what a node wants, as the wire would; return the paths."""
    paths = {digest: path for path, (digest, _executable) in made.files.items()}
    sent = sorted(paths[digest] for digest in shipment.wanted)
    for digest in sorted(shipment.wanted):
        data = Path(made.root, paths[digest]).read_bytes()
        shipment.take({"name": digest, "first": True, "data": data[:3]})
        shipment.take({"name": digest, "first": False, "data": data[3:]})
    return sent


def ship(script: Path, home: Path, job_id: str) -> tuple[list[str], Path]:
    """Ship a folder for a job; return what was sent, and where its tree is."""
    made = folder_of(str(script))
    shipment = Shipment(str(home), made.listing())
    sent = send(made, shipment)
    assert shipment.finish() == ""
    job = JobDir(str(home / "jobs" / job_id))
    job.create([])
    shipment.make_tree(job)
    return sent, Path(job.at("src"))


def over(home: Path, job_id: str) -> None:
    """Let a job be over and home."""
    (home / "jobs" / job_id / FETCHED_MARK).touch()


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


# --- what is shipped ----------------------------------------------------------------------------------------------


def test_a_folder_is_what_a_script_needs(tmp_path: Path) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    assert [row[0] for row in made.listing()] == ["pkg/__init__.py", "tool.sh", "train.py"]
    assert [row[2] for row in made.listing()] == [False, True, False]
    assert made.warnings == ()


def test_folders_that_are_not_for_shipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="would be shipped to the nodes: put the script into a folder of its own"):
        folder_of(str(script))
    monkeypatch.setenv("HOME", "/nonexistent")
    with open(tmp_path / "data.bin", "wb") as data:
        data.truncate(300 << 20)
    with pytest.raises(InputError, match="more than 10000 files or 256 MiB"):
        folder_of(str(script))


def test_what_is_left_out_is_said_in_one_line(tmp_path: Path) -> None:
    """Hidden files and caches are not spoken of: nobody expects them there."""
    script = folder(tmp_path / "project")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project" / "data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "project" / "checkpoints").mkdir()
    (tmp_path / "project" / "logs").mkdir()
    (tmp_path / "project" / "logs" / ".gitkeep").touch()
    (tmp_path / "project" / "gone.txt").symlink_to("nowhere")
    (tmp_path / "project" / "linked.txt").symlink_to(script)
    (tmp_path / "id_ed25519").write_text("a key of the user's")
    (tmp_path / "project" / "notes.txt").symlink_to(tmp_path / "id_ed25519")  # in a folder that came from somebody else
    made = folder_of(str(script))
    assert made.left_out == ("checkpoints", "data", "gone.txt", "logs", "notes.txt")
    assert "linked.txt" in made.files
    (line,) = made.warnings
    assert f"not shipped from {tmp_path}/project: 5 " in line and line.endswith("the first is 'checkpoints'")


def test_a_script_that_is_a_link_is_shipped(tmp_path: Path) -> None:
    script = folder(tmp_path / "project")
    script.rename(tmp_path / "elsewhere.py")
    script.symlink_to(tmp_path / "elsewhere.py")
    assert "train.py" in folder_of(str(script)).files


# --- the tree of a job --------------------------------------------------------------------------------------------


def test_a_running_job_keeps_its_code(tmp_path: Path) -> None:
    """Reproduced before: a job of the same folder gave the edited script to the one that ran."""
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    sent, first = ship(script, home, "first")
    assert sent == ["pkg/__init__.py", "tool.sh", "train.py"]
    assert (first / "tool.sh").stat().st_mode & 0o777 == 0o700
    assert (first / "train.py").stat().st_mode & 0o777 == 0o600
    script.write_text("import pkg, sys\n")
    (tmp_path / "project" / "tool.sh").unlink()
    sent, second = ship(script, home, "second")
    assert sent == ["train.py"]
    assert contents(first) == {"train.py": "import pkg\n", "pkg/__init__.py": "A = 1\n", "tool.sh": "#!/bin/sh\n"}
    assert contents(second) == {"train.py": "import pkg, sys\n", "pkg/__init__.py": "A = 1\n"}


def test_two_people_with_equal_paths_run_their_own_code(tmp_path: Path) -> None:
    """One account on the nodes, and both have /workspace/train.py, as two containers do."""
    home, trees = tmp_path / "home", []
    for person in ("alice", "bob"):
        script = tmp_path / "workspace" / "train.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"print('{person}')\n")
        trees.append(ship(script, home, f"job-of-{person}")[1])
    assert [contents(tree)["train.py"] for tree in trees] == ["print('alice')\n", "print('bob')\n"]


def test_what_one_job_writes_no_other_sees(tmp_path: Path) -> None:
    """In place too, and whatever the mode: a hard link would hand it on to the store and to every other job."""
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    first, second = (ship(script, home, name)[1] for name in ("first", "second"))
    for path in (first / "train.py", first / "pkg" / "__init__.py"):
        path.chmod(0o600)
        with path.open("r+") as file:
            file.write("# mine")
    assert contents(second)["train.py"] == "import pkg\n"
    sent, third = ship(script, home, "third")
    assert sent == [] and contents(third) == contents(second)


def test_equal_files_are_sent_once(tmp_path: Path) -> None:
    script = folder(tmp_path / "project")
    for name in ("a.txt", "b.txt", "pkg/c.txt"):
        (tmp_path / "project" / name).write_text("the same")
    sent, tree = ship(script, tmp_path / "home", "one")
    assert len(sent) == 4
    assert [contents(tree)[name] for name in ("a.txt", "b.txt", "pkg/c.txt")] == ["the same"] * 3


def test_a_folder_that_a_program_had_changed_is_shipped_again(tmp_path: Path) -> None:
    """(a) It removed a shipped file on the node, and the user removes it too: that was refused for ever."""
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    _sent, first = ship(script, home, "first")
    (first / "tool.sh").unlink()
    (tmp_path / "project" / "tool.sh").unlink()
    assert contents(ship(script, home, "second")[1]) == {"train.py": "import pkg\n", "pkg/__init__.py": "A = 1\n"}


def test_a_file_becomes_a_directory_and_back(tmp_path: Path) -> None:
    """(b) EEXIST and EISDIR every time, before."""
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    config = tmp_path / "project" / "config"
    config.write_text("a file")
    ship(script, home, "first")
    config.unlink()
    config.mkdir()
    (config / "model.yaml").write_text("in it")
    assert contents(ship(script, home, "second")[1])["config/model.yaml"] == "in it"
    (config / "model.yaml").unlink()
    config.rmdir()
    config.write_text("a file again")
    assert contents(ship(script, home, "third")[1])["config"] == "a file again"


def test_a_name_with_part_is_like_any_other(tmp_path: Path) -> None:
    """(c) Changing `model` ate `model.part` beside it."""
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    (tmp_path / "project" / "model").write_text("whole")
    (tmp_path / "project" / "model.part").write_text("a part")
    ship(script, home, "first")
    (tmp_path / "project" / "model").write_text("another")
    tree = contents(ship(script, home, "second")[1])
    assert (tree["model"], tree["model.part"]) == ("another", "a part")


# --- what arrives -------------------------------------------------------------------------------------------------


def test_what_is_not_what_was_announced_is_refused_by_name(tmp_path: Path) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    shipment = Shipment(str(tmp_path / "home"), made.listing())
    digest = made.files["pkg/__init__.py"][0]
    shipment.take({"name": digest, "first": True, "data": b"something else"})
    assert shipment.finish() == "pkg/__init__.py changed while it was shipped: try again"
    again = Shipment(str(tmp_path / "home"), made.listing())
    assert digest in again.wanted
    assert os.listdir(tmp_path / "home" / "store" / "arriving") == []


def test_what_does_not_arrive_is_named(tmp_path: Path) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    shipment = Shipment(str(tmp_path / "home"), made.listing())
    assert shipment.finish().endswith("did not arrive")


def test_nothing_arrives_that_was_not_asked_for(tmp_path: Path) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    stranger = hashlib.sha256(b"x").hexdigest()
    for frames in (
        [{"name": stranger, "first": True, "data": b"x"}],
        [{"name": stranger, "first": False, "data": b"x"}],
        [
            {
                "name": min(digest for digest, _executable in made.files.values()),
                "first": True,
                "data": b"x" * (257 << 20),
            }
        ],
    ):
        shipment = Shipment(str(tmp_path / "home"), made.listing())
        for frame in frames:
            shipment.take(frame)
        assert shipment.finish() != ""
        os.close(shipment.lock)
    assert not (tmp_path / "home" / "store" / stranger[:2] / stranger).exists()


def test_more_than_was_announced_is_refused_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    digest = min(digest for digest, _executable in made.files.values())
    monkeypatch.setattr(shipment_module, "MOST_BYTES", 10)
    shipment = Shipment(str(tmp_path / "home"), made.listing())
    for first in (True, False, False):
        shipment.take({"name": digest, "first": first, "data": b"x" * 6})
    (arriving,) = (tmp_path / "home" / "store" / "arriving").iterdir()
    assert arriving.stat().st_size == 6
    assert shipment.finish() == "more came than was announced"
    assert list((tmp_path / "home" / "store" / "arriving").iterdir()) == []


DIGEST = "0" * 64
BAD_LISTINGS = [
    *[[[path, DIGEST, False]] for path in ("/etc/passwd", "../x", "a/../b", "a//b", ".", "", "a\0b", "a/", "x" * 256)],
    *[[["/".join(["a"] * 101), DIGEST, False]], [["/".join(["a" * 200] * 11), DIGEST, False]]],
    *[[["a", DIGEST, False], ["a/b", DIGEST, False]], [["a/b", DIGEST, False], ["a", DIGEST, False]]],
    *[[["a", DIGEST, False], ["a", DIGEST, False]], [["a", DIGEST[1:], False]], [["a", "../" + DIGEST[3:], False]]],
    *[[["a", DIGEST, 0o4755]], [["a", DIGEST]], [[1, DIGEST, False]], {"a": 1}, None],
    [[f"{number}", DIGEST, False] for number in range(10_001)],
]


@pytest.mark.parametrize("listing", BAD_LISTINGS, ids=range(len(BAD_LISTINGS)))
def test_a_listing_that_no_honest_sender_sends(tmp_path: Path, listing: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|path|digest|twice|file and a directory"):
        tree_of(listing)
    shipment = Shipment(str(tmp_path / "home"), listing)
    assert shipment.finish() != "" and shipment.wanted == set()
    assert not (tmp_path / "home").exists()


def test_names_of_any_bytes_arrive(tmp_path: Path) -> None:
    script = folder(tmp_path / "project")
    names = ["ümlaut ☃", "line\nend", "-rf", "$(id)", os.fsdecode(b"not utf-8 \xff")]
    for name in names:
        (tmp_path / "project" / name).write_text(name.encode("utf-8", "replace").decode())
    tree = contents(ship(script, tmp_path / "home", "one")[1])
    assert set(names) < set(tree)


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    (tmp_path / "home").write_text("a file")
    assert "Not a directory" in Shipment(str(tmp_path / "home"), made.listing()).finish()


def test_what_is_damaged_in_the_store_never_runs(tmp_path: Path) -> None:
    """After a power cut a file may have its name and not its content: it is found out, and sent again."""
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    ship(script, home, "first")
    stored = Path(Store(str(home)).path(hashlib.sha256(b"import pkg\n").hexdigest()))
    assert stored.stat().st_mode & 0o777 == 0o400
    stored.chmod(0o600)
    stored.write_text("")
    made = folder_of(str(script))
    shipment = Shipment(str(home), made.listing())
    job = JobDir(str(home / "jobs" / "second"))
    job.create([])
    with pytest.raises(OSError, match=r"train\.py was damaged in .*: start the job again"):
        shipment.make_tree(job)
    assert ship(script, home, "third")[0] == ["train.py"]


# --- several nodes ------------------------------------------------------------------------------------------------


class FakePeer:
    """Another node's end, without the way there."""

    def __init__(self, name: str, wants: set[str] | str, said: str = "") -> None:
        self.name, self.wants, self.said = name, wants, said
        self.channel, self.came = self, list[str]()

    def ask_for_folder(self, _listing: object) -> set[str]:
        if isinstance(self.wants, str):
            raise ConnectionLost(self.wants)
        return self.wants

    def send(self, frame: dict[str, Any]) -> None:
        self.came += [frame["name"]] * frame["first"]

    def check_folder(self) -> str:
        return self.said


def controller(channel: Channel, made: Folder) -> tuple[list[str], str]:
    """Do the controller's part; return what was wanted, and how it went."""
    wanted = channel.receive(10)
    assert wanted is not None
    paths = {digest: path for path, (digest, _executable) in made.files.items()}
    for digest in wanted["wanted"]:
        channel.send_file(digest, str(Path(made.root, paths[digest])))
    channel.send({"kind": "files_sent"})
    laid = channel.receive(10)
    assert laid is not None
    return wanted["wanted"], laid["reason"]


def relayed(made: Folder, own: Shipment | None, host: str, *peers: FakePeer) -> tuple[list[str], str]:
    (here_in, there_out), (there_in, here_out) = os.pipe(), os.pipe()
    here, there = Channel(here_in, here_out), Channel(there_in, there_out)
    thread = threading.Thread(target=relay, args=[there, own, host, peers, made.listing()])
    thread.start()
    found = controller(here, made)
    thread.join()
    here.close()
    there.close()
    return found


def test_each_node_is_sent_what_it_lacks(tmp_path: Path) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    digests = sorted(digest for digest, _executable in made.files.values())
    peers = FakePeer("n2", {digests[0]}), FakePeer("n3", {digests[0], digests[1]}), FakePeer("n4", set())
    assert relayed(made, None, "", *peers) == (digests[:2], "")
    assert [peer.came for peer in peers] == [[digests[0]], digests[:2], []]
    assert relayed(made, Shipment(str(tmp_path / "home"), made.listing()), "n1", *peers) == (digests, "")


def test_a_node_that_cannot_take_a_folder_is_named(tmp_path: Path) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    (tmp_path / "home").write_text("a file")
    full = Shipment(str(tmp_path / "home"), made.listing())
    wanted, reason = relayed(made, full, "n1", FakePeer("n2", set(), "train.py changed"), FakePeer("n3", "gone"))
    assert wanted == []  # nothing is sent if it is known to be in vain
    assert "n1: " in reason and "Not a directory" in reason
    assert "n2: train.py changed" in reason and "n3: gone" in reason


# --- at once ------------------------------------------------------------------------------------------------------


def at_once(*work: Callable[[], object]) -> None:
    """Do several things at once; the first error is this function's."""
    errors: list[BaseException] = []

    def one(do: Callable[[], object]) -> None:
        try:
            do()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=[do]) for do in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_jobs_that_ship_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    for number in range(50):
        (tmp_path / "project" / f"{number}.txt").write_text(str(number))
    trees: list[Path] = []

    def one(job_id: str) -> None:
        trees.append(ship(script, home, job_id)[1])

    at_once(*[lambda job_id=f"job-{number}": one(job_id) for number in range(6)])
    assert len(trees) == 6 and all(len(contents(tree)) == 53 for tree in trees)
    assert all(contents(tree) == contents(trees[0]) for tree in trees)


def test_a_job_that_starts_while_the_store_is_cleaned_has_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    over_now = threading.Event()

    def clean() -> None:
        while not over_now.is_set():
            Store(str(home)).clear(days=-1)
            time.sleep(0.002)

    def start() -> None:
        try:
            for number in range(40):
                assert len(contents(ship(script, home, f"job-{number}")[1])) == 3
        finally:
            over_now.set()

    at_once(start, clean, clean)


def test_a_store_that_is_cleaned_for_ever_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "BUSY_SECONDS", 0.1)
    store = Store(str(tmp_path))
    os.close(store.use())
    held = store.lock(fcntl.LOCK_EX)
    assert held is not None
    with pytest.raises(TimeoutError, match="has been cleaned for 0 s"):
        store.use()
    os.close(held)


# --- clean.yml ----------------------------------------------------------------------------------------------------


def test_what_a_program_wrote_is_kept_and_told(tmp_path: Path) -> None:
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    trees = {name: ship(script, home, name)[1] for name in ("untouched", "wrote", "changed", "linked", "closed")}
    (trees["untouched"] / "pkg" / "__pycache__").mkdir()
    (trees["untouched"] / "pkg" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"made by Python")
    (trees["untouched"] / "tool.sh").unlink()
    os.mkfifo(trees["untouched"] / "pipe")
    (trees["wrote"] / "checkpoints").mkdir()
    (trees["wrote"] / "checkpoints" / "1.pt").write_text("weights")
    (trees["changed"] / "train.py").write_text("other")
    (trees["linked"] / "latest").symlink_to("/elsewhere")
    (trees["closed"] / "secret").mkdir()
    (trees["closed"] / "secret" / "file").write_text("x")
    (trees["closed"] / "secret").chmod(0)
    for name in trees:
        over(home, name)
    told = reap(str(home), dry_run=True)
    assert sorted(told["removed"]) == ["untouched"] and len(list((home / "jobs").iterdir())) == 5
    found = reap(str(home))
    assert found["removed"] == ["untouched"]
    rows = {row["job_id"]: (row["files"], row["bytes"]) for row in found["outputs"]}
    assert rows == {"wrote": (1, 7), "changed": (1, 5), "linked": (1, 0), "closed": (1, 1 if os.geteuid() == 0 else 0)}
    assert {row["path"] for row in found["outputs"]} == {str(trees[name]) for name in rows}
    assert reap(str(home), drop_outputs=True)["outputs"] == []
    assert list((home / "jobs").iterdir()) == []


def test_a_tree_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    _sent, tree = ship(script, home, "one")
    (tmp_path / "precious").mkdir(mode=0o750)
    (tmp_path / "precious" / "below").mkdir(mode=0o750)
    tree.rename(tmp_path / "moved")
    tree.symlink_to(tmp_path / "precious")
    over(home, "one")
    assert [row["files"] for row in reap(str(home))["outputs"]] == [1]
    reap(str(home), drop_outputs=True)
    assert not (home / "jobs" / "one").exists()
    assert (tmp_path / "precious" / "below").stat().st_mode & 0o777 == 0o750


def test_a_job_that_waits_or_runs_keeps_its_tree(tmp_path: Path) -> None:
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    waits, runs = (ship(script, home, name)[1] for name in ("waits", "runs"))
    lock = JobDir(str(runs.parent)).lock()
    found = reap(str(home), drop_outputs=True)
    assert (found["running"], found["waiting"], found["removed"]) == (["runs"], ["waits"], [])
    assert len(contents(waits)) == len(contents(runs)) == 3
    os.close(lock)


def test_what_no_job_asked_for_lately_leaves_the_store(tmp_path: Path) -> None:
    script, home = folder(tmp_path / "project"), tmp_path / "home"
    ship(script, home, "first")
    script.write_text("import pkg  # changed\n")
    ship(script, home, "second")
    store, long_ago = Store(str(home)), time.time() - 15 * 86400
    for digest in (hashlib.sha256(b"import pkg\n").hexdigest(), hashlib.sha256(b"A = 1\n").hexdigest()):
        os.utime(store.path(digest), (long_ago, long_ago))
    assert reap(str(home), dry_run=True)["store"] == {"files": 2, "bytes": 17}
    ship(script, home, "third")  # asks for the second of them
    assert reap(str(home))["store"] == {"files": 1, "bytes": 11}
    assert ship(script, home, "fourth")[0] == []
    assert outputs(JobDir(str(home / "jobs" / "fourth"))) == (0, 0)
