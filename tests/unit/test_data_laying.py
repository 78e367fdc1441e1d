"""A data set on a node: what is missing, what arrives, what is damaged, who shares it, and what goes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.survey import free_bytes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores import data_manifest, data_store
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.data_manifest import (
    Manifest,
    Row,
    name_of,
    numbers_in,
    pieces_in,
    ranges_of,
    read_manifest,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer import data_laying
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.data_laying import Laying
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import removal

NOBODY = 65534
CONTENT = {"a.bin": b"0123456789", "sub/b.bin": b"abcd", "sub/deep/c.bin": b"", "z.bin": b"zzzzz"}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pieces be of four bytes, so that small files have several."""
    monkeypatch.setattr(data_manifest, "PIECE", 4)


class Source:
    """A data set as its sender has it."""

    def __init__(self, content: dict[str, bytes] = CONTENT) -> None:
        self.content = content
        rows = [Row(path, len(data), [digest(part) for part in parts(data)]) for path, data in sorted(content.items())]
        self.manifest = Manifest(rows)
        self.text = self.manifest.text
        self.name = name_of(self.text)

    def begin(self, home: Path, token: str = "1", keep: int = 2) -> Laying:
        return Laying(str(home), self.name, self.text, token, keep)

    def send(self, laying: Laying, numbers: list[int] | None = None) -> int:
        """Send pieces, those that are missing unless they are given; return how many."""
        numbers = sorted(laying.wanted) if numbers is None else numbers
        for number in numbers:
            piece = self.manifest.piece(number)
            data = self.content[self.manifest.rows[piece.file].path][piece.offset : piece.offset + piece.size]
            for first, part in ((True, data[:1]), (False, data[1:])):
                if part:
                    laying.take({"name": str(number), "first": first, "data": part})
        return len(numbers)

    def lay(self, home: Path, **given: Any) -> int:
        """Lay all of it; return how many pieces were sent."""
        laying = self.begin(home, **given)
        sent = self.send(laying)
        assert laying.finish() == ""
        return sent

    def root(self, home: Path) -> Path:
        return Path(data_store.root_of(str(home), self.name))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parts(data: bytes) -> list[bytes]:
    return [data[at : at + 4] for at in range(0, len(data), 4)]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def facts(home: Path, source: Source) -> Any:
    return data_store.look(str(home), source.name)


def write(path: Path, data: bytes) -> None:
    """Write into a file as root or its owner could by accident, and give it its old time back."""
    state = path.stat()
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o444)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


# --- what arrives -----------------------------------------------------------------------------------------------------


def test_a_data_set_is_laid_once_and_closed_to_writing(tmp_path: Path) -> None:
    source = Source()
    told = facts(tmp_path, source)
    assert {**told, "free": 0} == {"whole": False, "missing": -1, "free": 0}
    assert abs(told["free"] - free_bytes(str(tmp_path))) < 1 << 30  # others write there meanwhile
    usual = os.umask(0)
    assert source.lay(tmp_path) == 6
    os.umask(usual)
    root = source.root(tmp_path)
    assert contents(root) == CONTENT
    assert {path.stat().st_mode & 0o777 for path in (root.parent, root.parent.parent)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()} == {0o444}
    assert {path.stat().st_mode & 0o777 for path in [root, *root.rglob("*")] if path.is_dir()} == {0o555}
    assert {**facts(tmp_path, source), "free": 0} == {"whole": True, "missing": 0, "free": 0}
    marks = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert source.lay(tmp_path, token="2") == 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == marks


@pytest.mark.parametrize("after", range(6))
def test_after_an_interruption_only_the_rest_is_sent(tmp_path: Path, after: int) -> None:
    source = Source()
    laying = source.begin(tmp_path)
    source.send(laying, sorted(laying.wanted)[:after])
    laying.take({"name": str(after), "first": True, "data": b"x"})  # a part of the next one
    laying.close()
    assert facts(tmp_path, source)["whole"] is False
    assert source.lay(tmp_path, token="2") == 6 - after
    assert contents(source.root(tmp_path)) == CONTENT


def test_what_still_has_to_come_is_counted_for_the_room_that_it_needs(tmp_path: Path) -> None:
    source = Source()
    laying = source.begin(tmp_path)
    source.send(laying, [0, 1, 3])
    laying.close()
    assert facts(tmp_path, source)["missing"] == 2 + 0 + 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: write(root / "a.bin", b"0123456x89"),
        lambda root: write(root / "a.bin", b"012345"),
        lambda root: write(root / "a.bin", b"0123456789and more"),
        lambda root: unlink(root / "a.bin"),
        lambda root: replace(root / "a.bin", lambda path: path.symlink_to("/etc/passwd")),
        lambda root: replace(root / "a.bin", lambda path: path.mkdir()),
        lambda root: replace(root / "a.bin", os.mkfifo),
        lambda root: replace(root / "sub", lambda path: path.symlink_to(root.parent.parent.parent)),
        lambda root: unlink(root / "sub" / "deep" / "c.bin"),
        lambda root: opened(root / "sub").joinpath("extra").write_text("from a program"),
    ],
    ids=["changed", "cut", "longer", "gone", "link", "directory", "pipe", "linked directory", "empty file", "more"],
)  # fmt: skip
def test_what_is_damaged_is_noticed_and_mended(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """Also where its times were set back. Nothing outside the data set is written."""
    source, home = Source(), tmp_path / "home"
    source.lay(home)
    (tmp_path / "b.bin").write_text("mine")
    (home / "deep").mkdir()
    damage(source.root(home))
    assert facts(home, source)["whole"] is False
    source.lay(home, token="2")
    assert contents(source.root(home)) == CONTENT and facts(home, source)["whole"] is True
    assert (tmp_path / "b.bin").read_text() == "mine" and list((home / "deep").iterdir()) == []


def opened(folder: Path) -> Path:
    folder.chmod(0o755)
    return folder


def unlink(path: Path) -> None:
    opened(path.parent)
    path.unlink()


def replace(path: Path, make: Callable[[Path], object]) -> None:
    opened(path.parent)
    path.rename(path.parent.parent.parent.parent / "moved")
    make(path)


def test_only_the_damaged_piece_of_a_file_is_sent_again(tmp_path: Path) -> None:
    source = Source()
    source.lay(tmp_path)
    write(source.root(tmp_path) / "a.bin", b"0123456x89")
    assert source.begin(tmp_path, token="2").wanted == {1}


def test_a_file_that_was_only_touched_is_read_and_not_sent(tmp_path: Path) -> None:
    source = Source()
    source.lay(tmp_path)
    os.utime(source.root(tmp_path) / "z.bin")
    assert facts(tmp_path, source)["whole"] is False
    assert source.lay(tmp_path, token="2") == 0
    assert facts(tmp_path, source)["whole"] is True


def test_a_file_that_has_another_name_elsewhere_is_not_written_into(tmp_path: Path) -> None:
    source = Source()
    source.lay(tmp_path)
    path = source.root(tmp_path) / "z.bin"
    os.link(path, tmp_path / "other")
    write(path, b"zzzzy")
    source.lay(tmp_path, token="2")
    assert path.read_bytes() == b"zzzzz" and (tmp_path / "other").read_bytes() == b"zzzzy"


def test_what_is_not_what_was_announced_is_never_used(tmp_path: Path) -> None:
    source = Source()
    laying = source.begin(tmp_path)
    source.send(laying, [0])
    laying.take({"name": "1", "first": True, "data": b"xxxx"})
    source.send(laying, [2, 3])
    assert laying.finish() == "'a.bin' changed while it was sent, or was damaged on the way: start again"
    assert facts(tmp_path, source)["whole"] is False
    assert source.lay(tmp_path, token="2") == 5


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([("9", True, b"x")], "not requested"),
        ([("0", False, b"x")], "not requested"),
        ([("0", True, b"0123"), ("0", True, b"0123")], "not requested"),
        ([("0", True, b"01234")], "more came than was announced"),
        ([("x", True, b"0")], "invalid literal"),
        ([], "'a.bin' did not arrive"),
    ],
)
def test_nothing_arrives_that_was_not_asked_for(
    tmp_path: Path, frames: list[tuple[str, bool, bytes]], said: str
) -> None:
    laying = Source().begin(tmp_path)
    for name, first, data in frames:
        laying.take({"name": name, "first": first, "data": data})
    assert said in laying.finish()


def test_a_full_disk_is_told_and_what_came_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    laying = source.begin(tmp_path)
    source.send(laying, [0, 1, 2])

    def full(_file: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(data_laying, "write_all", full)
    source.send(laying, [3])
    assert laying.finish() == "No space left on device"
    monkeypatch.undo()
    monkeypatch.setattr(data_manifest, "PIECE", 4)
    assert source.lay(tmp_path, token="2") == 3


# --- lists ------------------------------------------------------------------------------------------------------------

DIGEST = "0" * 64
BAD = [
    *[[False, [[path, 1, [DIGEST]]]] for path in ("/etc/passwd", "../x", "a/../b", "a//b", ".", "", "a\0b", "x" * 256)],
    *[[False, []], [False, None], [1, [["a", 1, [DIGEST]]]], [True, [["a", 1, [DIGEST]], ["b", 1, [DIGEST]]]]],
    *[[False, [["a", 1, [DIGEST]], ["a", 1, [DIGEST]]]], [False, [["b", 1, [DIGEST]], ["a", 1, [DIGEST]]]]],
    *[[False, [["a", 1, [DIGEST]], ["a/b", 1, [DIGEST]]]], [True, [["a/b", 1, [DIGEST]]]]],
    *[[False, [["a", -1, [DIGEST]]]], [False, [["a", True, [DIGEST]]]], [False, [["a", 5, [DIGEST]]]]],
    *[[False, [["a", 1, ["x"]]]], [False, [["a", 1, [1]]]], [False, [["a", 1]]], {}, "", 1, None],
]  # fmt: skip


@pytest.mark.parametrize("listing", BAD, ids=range(len(BAD)))
def test_a_list_that_no_honest_sender_sends(tmp_path: Path, listing: Any) -> None:
    text = json.dumps(listing).encode()
    with pytest.raises(ValueError, match=r"list|path|size|digests|expected|file and a directory|there|order"):
        read_manifest(text)
    laying = Laying(str(tmp_path / "home"), name_of(text), text, "1", 2)
    assert laying.finish() != "" and laying.wanted == set()
    assert not (tmp_path / "home").exists()


def test_a_list_is_what_its_name_says(tmp_path: Path) -> None:
    source = Source()
    laying = Laying(str(tmp_path), source.name, source.text + b" ", "1", 2)
    assert laying.finish() == "the list of files was damaged on the way: start again"


def test_names_of_any_bytes_are_laid(tmp_path: Path) -> None:
    names = ["ümlaut ☃", "line\nend", "-rf", "$(id)", os.fsdecode(b"not utf-8 \xff")]
    source = Source(dict.fromkeys(names, b"x"))
    source.lay(tmp_path)
    assert set(contents(source.root(tmp_path))) == set(names)


def test_pieces_are_numbered_through_all_files() -> None:
    manifest = Source().manifest
    found = [manifest.piece(number) for number in range(manifest.pieces)]
    assert [(piece.file, piece.offset, piece.size) for piece in found] == [
        *((0, 0, 4), (0, 4, 4), (0, 8, 2)),
        *((1, 0, 4), (3, 0, 4), (3, 4, 1)),
    ]
    assert [pieces_in(size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_ranges_are_what_they_were_made_of() -> None:
    for numbers in ([], [0], [0, 1, 2], [1, 3, 4, 9]):
        assert numbers_in(ranges_of(numbers), 10) == set(numbers)
    for ranges in ([(0, 10)], [(3, 2)], [(0, 3), (3, 4)], [(-1, 0)]):
        with pytest.raises(ValueError, match="not there"):
            numbers_in(ranges, 10)


# --- several nodes, and several data sets -----------------------------------------------------------------------------


def test_nodes_that_share_a_home_write_once(tmp_path: Path) -> None:
    source = Source()
    first, second = source.begin(tmp_path, "same"), source.begin(tmp_path, "same")
    assert (len(first.wanted), second.wanted, second.shared) == (6, set(), True)
    source.send(first)
    assert first.finish() == "" and second.finish() == ""


def test_a_node_that_shares_waits_for_the_one_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_laying, "SHARED_SECONDS", 0.0)
    source = Source()
    source.begin(tmp_path, "same")
    assert (
        "is on a file system that nodes share; another node's copy was not whole"
        in source.begin(tmp_path, "same").finish()
    )


def test_two_starts_do_not_write_the_same_data_set(tmp_path: Path) -> None:
    source = Source()
    first, second = source.begin(tmp_path, "1"), source.begin(tmp_path, "2")
    assert "another start is laying the same data set" in second.finish()
    source.send(first)
    assert first.finish() == ""
    assert source.lay(tmp_path, token="3") == 0
    assert [path.name for path in source.root(tmp_path).parent.glob("claim-*")] == ["claim-3"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[JobDir]:
    """Return a job that runs; its order is still to be written."""
    job = JobDir(str(tmp_path / "jobs" / "job"))
    job.create([])
    lock = job.lock()
    yield job
    os.close(lock)


def others(count: int) -> list[Source]:
    return [Source({"x": bytes([65 + number])}) for number in range(count)]


def names(home: Path) -> set[str]:
    return {path.name for path in (home / "data").iterdir() if path.is_dir()}


def test_the_newest_data_sets_stay(tmp_path: Path) -> None:
    sources = others(4)
    for number, source in enumerate(sources):
        source.lay(tmp_path, keep=3)
        os.utime(tmp_path / "data" / source.name, (number, number))
    assert names(tmp_path) == {source.name for source in sources[1:]}
    sources[1].lay(tmp_path, keep=1, token="2")
    assert names(tmp_path) == {sources[1].name}
    sources[2].lay(tmp_path, keep=0)
    assert names(tmp_path) == {sources[1].name, sources[2].name}
    left = {path.name for path in (tmp_path / "data").iterdir()}
    assert left == {"lock", *(f"{name}{end}" for name in names(tmp_path) for end in ("", ".lock"))}


def test_a_data_set_that_a_running_job_reads_stays(tmp_path: Path, running: JobDir) -> None:
    first, second, third = others(3)
    first.lay(tmp_path)
    running.write("order.json", {"home": str(tmp_path), "data": first.name, "host": "n1"})
    data_store.note_use(running.read("order.json"))
    second.lay(tmp_path, keep=1)
    third.lay(tmp_path, keep=1)
    assert names(tmp_path) == {first.name, third.name}


def test_a_data_set_that_is_being_laid_stays(tmp_path: Path) -> None:
    first, second = others(2)
    laying = first.begin(tmp_path)
    second.lay(tmp_path, keep=1)
    first.send(laying)
    assert laying.finish() == "" and first.name in names(tmp_path)


def test_a_job_whose_data_set_was_removed_is_refused(tmp_path: Path) -> None:
    """Another start laid its own between this one's survey and its staging."""
    source = Source()
    order = {"home": str(tmp_path), "data": source.name}
    for begin in (lambda: None, lambda: source.begin(tmp_path)):
        begin()
        with pytest.raises(OSError, match="was removed just now, or is written"):
            data_store.note_use(order)
    source.lay(tmp_path / "other")
    data_store.note_use({**order, "home": str(tmp_path / "other")})
    for nothing in ({}, {"data": ""}, {"data": 1}, None):
        data_store.note_use(nothing)


def test_the_lock_of_all_data_sets_keeps_jobs_and_removal_apart(tmp_path: Path) -> None:
    with (
        data_store.locked(str(tmp_path), fcntl.LOCK_SH),
        (tmp_path / "data" / "lock").open() as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_all_can_be_removed(tmp_path: Path) -> None:
    Source().lay(tmp_path)
    data_store.make_removable(str(tmp_path / "data"))
    modes = {path.stat().st_mode & 0o700 for path in (tmp_path / "data").rglob("*") if path.is_dir()}
    assert modes == {0o700}


def as_a_user(work: Callable[[Path], None]) -> None:
    """Do something as a user that is not root, with a home of its own: no mode stops root."""
    home = Path(tempfile.mkdtemp(prefix="torchfleet-test-"))
    try:
        if os.getuid() == 0:
            os.chown(home, NOBODY, NOBODY)
            child = os.fork()
            if not child:
                be_nobody(work, home)
            assert os.waitpid(child, 0)[1] == 0
        else:
            work(home)
        assert not home.exists()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def be_nobody(work: Callable[[Path], None], home: Path) -> None:
    """In a child: become another user, do it, and exit."""
    status = 1
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work(home)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def test_its_owner_cannot_write_there_by_accident_and_can_mend_and_remove_it() -> None:
    def work(home: Path) -> None:
        source = Source()
        source.lay(home)
        root = source.root(home)
        for attempt in (
            lambda: (root / "a.bin").write_bytes(b"x"),
            (root / "a.bin").unlink,
            lambda: (root / "sub" / "cache").write_bytes(b"x"),
        ):
            with pytest.raises(PermissionError):
                attempt()
        unlink(root / "sub" / "deep" / "c.bin")
        write(root / "a.bin", b"x")
        source.lay(home, token="2")
        assert contents(root) == CONTENT
        (other,) = others(1)
        other.lay(home, keep=1)
        assert names(home) == {other.name}
        removal.remove(removal.Request("jobs", home, [], ["data"], False, False))

    as_a_user(work)


@pytest.mark.parametrize("text", [b"", b"x", b"[0]\n", b'[0, "a", 1, 2]\n', b'{"": [1]}\n', b'{"": 1}\n', b"[[0]]\n"])
def test_a_journal_that_is_none_is_no_journal(tmp_path: Path, text: bytes) -> None:
    source = Source()
    source.lay(tmp_path)
    (source.root(tmp_path).parent / "journal").write_bytes(text)
    assert facts(tmp_path, source)["whole"] is False
    assert source.lay(tmp_path, token="2") == 0


def test_no_name_leads_out(tmp_path: Path) -> None:
    for name in ("", "..", "../../etc", "x" * 32):
        assert data_store.look(str(tmp_path), name) is None
