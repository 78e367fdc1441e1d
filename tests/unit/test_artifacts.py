"""What ranks wrote comes home: which files match, what a node may send, and what the controller makes of it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer import artifact_border
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer import artifacts as artifacts_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifact_border import Border, Limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifacts import (
    Search,
    pattern_parts,
    patterns_of,
    send_artifacts,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.brought_home import BroughtHome
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from tests.unit.nodes import STAGING, nested, order_of_a_job

MANY = Limits(100, 1 << 20)
TOLD = {"kind": "artifacts", "host": "n1", "files": [], "left_out": {}, "unmatched": [], "refused": ""}


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.pt", ["a.pt"]),
        ("**/*.pt", ["a.pt", "out/b.pt", "out/deep/c.pt"]),
        ("out", ["out/.hidden", "out/b.pt", "out/deep/c.pt"]),
        ("out/*", ["out/b.pt", "out/deep/c.pt"]),
        ("out/**", ["out/b.pt", "out/deep/c.pt"]),
        ("./out/?.pt", ["out/b.pt"]),
        ("**/deep/[cd].pt", ["out/deep/c.pt"]),
        ("**", ["a.pt", "log", "out/.hidden", "out/b.pt", "out/deep/c.pt"]),
        (".secret", [".secret"]),
        ("x*", []),
    ],
)
def test_globs(tmp_path: Path, pattern: str, found: list[str]) -> None:
    tree(tmp_path, "a.pt", "log", ".secret", "out/b.pt", "out/.hidden", "out/deep/c.pt", "out/__pycache__/d.pt")
    search = Search([pattern])
    assert sorted(path for path, _state in search.below(str(tmp_path))) == found
    assert bool(search.matched) == bool(found)


def test_links_special_files_and_odd_names_are_left_out(tmp_path: Path) -> None:
    tree(tmp_path, "w/a.pt", "elsewhere/key", "w/\x1b[2J", "w/own/in.pt")
    (tmp_path / "w" / "link").symlink_to(tmp_path / "elsewhere" / "key")
    (tmp_path / "w" / "folder").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "w" / "fifo")
    search = Search(["**"], [str(tmp_path / "w" / "own")])
    assert [path for path, _state in search.below(str(tmp_path / "w"))] == ["a.pt"]
    assert search.left_out == {"link": 2, "special": 1, "name": 1}


def test_a_tree_that_is_too_deep_is_left_out_and_the_rest_comes(tmp_path: Path) -> None:
    """Reproduced before: a program that made 500 directories in each other killed the supervisor at every fetch."""
    tree(tmp_path, "w/a.pt")
    search = Search(["**"])
    with nested(tmp_path / "w", 500):
        assert [path for path, _state in search.below(str(tmp_path / "w"))] == ["a.pt"]
    assert search.left_out == {"name": 1}


def test_what_goes_away_or_is_closed_while_we_look_keeps_nothing_else_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reproduced before: one such file, and nothing of the node came home."""
    tree(tmp_path / "w", "a.pt", "closed.pt", "gone.pt", "z.pt")
    real = os.stat

    def look(path: Any, **given: Any) -> os.stat_result:
        if path in ("closed.pt", "gone.pt"):
            raise {"closed.pt": PermissionError, "gone.pt": FileNotFoundError}[path](path)
        return real(path, **given)

    monkeypatch.setattr(os, "stat", look)
    *files, report = sent(tmp_path, monkeypatch, ["*.pt"])
    assert [row["path"] for row in report["files"]] == ["a.pt", "z.pt"] and len(files) == 2
    assert (report["left_out"], report["refused"]) == ({"unreadable": 1}, "")


@pytest.mark.parametrize("whole_blocks", [0, 1])
def test_a_file_that_cannot_be_read_to_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_blocks: int
) -> None:
    """Reproduced before: the error killed the supervisor."""

    def broken(_descriptor: int) -> Any:
        yield from [b"x"] * whole_blocks
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(artifacts_module, "blocks", broken)
    tree(tmp_path / "w", "a.pt")
    frames = sent(tmp_path, monkeypatch, ["*.pt"])
    home = BroughtHome({"n1"}, MANY)
    assert all(home.take(frame) for frame in frames)
    assert home.damaged == ["n1: a.pt changed while it was read, or ends too soon"] * whole_blocks
    assert home.reports["n1"]["left_out"] == ({} if whole_blocks else {"unreadable": 1})


def test_a_file_that_is_written_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def growing(_descriptor: int) -> Any:
        yield b"a.pt"
        (tmp_path / "w" / "a.pt").write_text("more than it was")

    monkeypatch.setattr(artifacts_module, "blocks", growing)
    tree(tmp_path / "w", "a.pt")
    home = BroughtHome({"n1"}, MANY)
    assert all(home.take(frame) for frame in sent(tmp_path, monkeypatch, ["*.pt"]))
    assert home.damaged == ["n1: a.pt changed while it was read, or ends too soon"]


def bring(run_dir: Path, *hosts: str, over: bool = False, **other: str) -> BroughtHome:
    """Bring what hosts have written now of a job, as Session.fetch() does; `other`: one that is otherwise."""
    number = len(list(run_dir.iterdir()))
    home = BroughtHome({*hosts, *other.values()}, MANY)
    with home.arriving(run_dir):
        for host in hosts:
            rows = []
            for name in (f"model-{number}", "log") if host not in (other.get("refused"), other.get("empty")) else ():
                data = f"{name} of {number}".encode()
                path = run_dir / ".collecting" / "artifacts" / host / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                home.take({"kind": "file", "name": f"artifacts/{host}/{name}", "first": True, "data": data})
                digest = hashlib.sha256(data).hexdigest()
                rows.append(
                    {"path": name, "bytes": len(data), "sha256": "0" * 64 if host == other.get("damaged") else digest}
                )
            left = {"unreadable": 1} if host == other.get("unreadable") else {}
            told = {**TOLD, "host": host, "files": rows, "refused": "too_many" if host == other.get("refused") else ""}
            if host != other.get("broken"):
                home.take({**told, "left_out": left})
        home.settle(run_dir, over)
    return home


def test_what_came_before_stays_unless_all_of_a_host_came_now(tmp_path: Path) -> None:
    bring(tmp_path, "n1", "n2", "n3")
    there = {str(path.relative_to(tmp_path / "artifacts")) for path in (tmp_path / "artifacts").rglob("model-*")}
    assert there == {"n1/model-0", "n2/model-0", "n3/model-0"}
    bring(tmp_path, "n1", "n2", damaged="n2")
    (tmp_path / "mark").touch()
    bring(tmp_path, "n3", refused="n3")
    there = {str(path.relative_to(tmp_path / "artifacts")) for path in (tmp_path / "artifacts").rglob("model-*")}
    assert there == {"n1/model-2", "n2/model-0", "n3/model-0"}
    listing = json.loads((tmp_path / "artifacts.json").read_text())
    assert {(row["host"], row["path"]) for row in listing["files"]} == {
        ("n1", "model-2"), ("n1", "log"), ("n2", "model-0"), ("n2", "log"), ("n3", "model-0"), ("n3", "log"),
    }  # fmt: skip
    assert listing["refused"] == {"n3": "too_many"}
    for row in listing["files"]:
        content = (tmp_path / "artifacts" / row["host"] / row["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"]


def models(run_dir: Path) -> list[str]:
    """Return the models that are there; artifacts.json has the same, with their digests."""
    rows = json.loads((run_dir / "artifacts.json").read_text())["files"]
    for row in rows:
        content = (run_dir / "artifacts" / row["host"] / row["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"]
    return [f"{row['host']}/{row['path']}" for row in rows if row["path"] != "log"]


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("broken", "not all of its files came now"),  # reproduced before: artifacts.json had lost them
        ("damaged", "a file that came now is damaged"),
        ("refused", "not all of its files came now"),
        ("unreadable", "more files cannot be read now than last time"),
        ("empty", "nothing matches there now"),
    ],
)
def test_what_is_less_than_before_takes_no_place(tmp_path: Path, other: str, why: str, over: bool) -> None:
    """Also at the end of the job, where a line says that what is there is older."""
    bring(tmp_path, "n1", "n2")
    home = bring(tmp_path, "n1", "n2", over=over, **{other: "n2"})
    assert models(tmp_path) == ["n1/model-2", "n2/model-0"] and "2 files" in home.line and "from n1:" in home.line
    assert home.warnings[-1] == f"collect: artifacts/n2 has the files that came earlier: {why}"
    assert not (tmp_path / ".collecting").exists()


def test_a_file_that_can_never_be_read_keeps_nothing_else_back(tmp_path: Path) -> None:
    for number in (0, 2, 2):
        bring(tmp_path, "n1", unreadable="n1")
        assert models(tmp_path) == [f"n1/model-{number}"]


def test_of_a_job_that_is_over_parts_are_better_than_nothing(tmp_path: Path) -> None:
    bring(tmp_path, "n1", damaged="n1")
    assert not (tmp_path / "artifacts").exists()
    home = bring(tmp_path, "n1", "n2", over=True, damaged="n1", broken="n2")
    assert models(tmp_path) == [] and home.line == ""
    assert {path.parent.name for path in (tmp_path / "artifacts").glob("*/log")} == {"n1", "n2"}


@pytest.mark.parametrize("pattern", ["/etc/*", "../x", "a/../../b", "", "/", ".", "x" * 501, "a\0b"])
def test_a_glob_stays_below_the_working_directory(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"glob|relative"):
        pattern_parts(pattern)
    with pytest.raises(InputError, match="collect"):
        parse_request({"collect": [pattern]})


def test_options() -> None:
    request = parse_request({"collect": "*.pt 'my out/*'", "collect_files": "5", "collect_limit": "2M"})
    assert request.collect == ("*.pt", "my out/*") and request.collect_limits == (5, 2 << 20)
    assert parse_request({}).collect == () and parse_request({}).collect_limits == (0, 0)
    assert parse_request({"collect": "*.pt", "collect_every": "300"}).collect_every == 300.0
    assert parse_request({"collect": "*.pt", "collect_every": 300, "detach": True}).collect_every == 300.0
    for every in (0, -1, "often", 0.5):
        with pytest.raises(InputError, match="collect_every"):
            parse_request({"collect": "*.pt", "collect_every": every})
    with pytest.raises(InputError, match="say which files: add -e collect=GLOB"):
        parse_request({"collect_every": 300})
    for wrong in ({"collect_files": 0}, {"collect_files": 10**6}, {"collect_limit": "much"}, {"collect": ["x"] * 101}):
        with pytest.raises(InputError):
            parse_request(wrong)
    assert patterns_of({"collect": ["a", "/b", 3, "../c"]}) == ["a"]  # type: ignore[typeddict-item]
    assert patterns_of({}) == []  # type: ignore[typeddict-item]


def test_a_file_that_changes_between_two_looks_at_a_job_that_runs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had come before it was written on. Of several one that is replaced or gone belongs to another checkpoint."""
    folder = tmp_path / "w"

    def write(_seconds: float) -> None:
        with open(folder / "a.pt", "a") as file:
            file.write("more")
        (folder / "new").write_text("the next one")
        (folder / "new").replace(folder / "b.pt")
        (folder / "c.pt").unlink()

    monkeypatch.setattr(artifacts_module.time, "sleep", write)
    tree(folder, "a.pt", "b.pt", "c.pt")
    home = BroughtHome({"n1"}, MANY)
    assert all(home.take(frame) for frame in sent(tmp_path, monkeypatch, ["*.pt"]))
    why = "changed while it was read, or ends too soon"
    assert home.damaged == [f"n1: {name}.pt {why}" for name in "abc"]
    for pattern, torn in (("a.pt", 1), ("b.pt", 0), ("c.pt", 0)):  # one that is alone is whole
        tree(folder, "a.pt", "b.pt", "c.pt")
        home = BroughtHome({"n1"}, MANY)
        assert all(home.take(frame) for frame in sent(tmp_path, monkeypatch, [pattern]))
        assert len(home.damaged) == torn
    tree(folder, "a.pt", "b.pt", "c.pt")
    JobDir(str(tmp_path / "home" / "jobs" / "one")).write("over.json", {})
    home = BroughtHome({"n1"}, MANY)  # of a job that is over nothing changes: it is not waited for
    assert all(home.take(frame) for frame in sent(tmp_path, monkeypatch, ["*.pt"]))
    assert home.damaged == [] and (folder / "c.pt").exists()


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_file_that_a_server_loses_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, calls: int
) -> None:
    """Reproduced before: it killed the supervisor. `calls` that look at the open file go well."""
    tree(tmp_path / "w", "a.pt")
    real, left = os.fstat, [calls]

    def look(descriptor: int) -> os.stat_result:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("a.pt"):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(error, os.strerror(error))
        return real(descriptor)

    real_open = artifacts_module.open_below

    def opened(root: str, path: str) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", real)
            return real_open(root, path)

    monkeypatch.setattr(artifacts_module, "open_below", opened)
    monkeypatch.setattr(os, "fstat", look)
    home = BroughtHome({"n1"}, MANY)
    assert all(home.take(frame) for frame in sent(tmp_path, monkeypatch, ["*.pt"]))
    unread = calls == 0 and error == errno.EIO
    assert len(home.damaged) == (not unread) and home.reports["n1"]["left_out"] == ({"unreadable": 1} if unread else {})


def test_a_file_that_is_gone_when_it_is_read_makes_the_others_no_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "w", "a.pt", "b.pt")

    def gone(root: str, path: str) -> int:
        (Path(root) / "b.pt").unlink(missing_ok=True)
        return real(root, path)

    real = artifacts_module.open_below
    monkeypatch.setattr(artifacts_module, "open_below", gone)
    home = BroughtHome({"n1"}, MANY)
    assert all(home.take(frame) for frame in sent(tmp_path, monkeypatch, ["*.pt"]))
    assert home.damaged == ["n1: b.pt changed while it was read, or ends too soon"]


def sent(root: Path, monkeypatch: pytest.MonkeyPatch, patterns: list[str], limits: Limits = MANY) -> list[Any]:
    """Return the frames of a node on which a job of the tree below `root` runs, or is over."""
    monkeypatch.setattr(artifacts_module, "APART_SECONDS", 0.0)
    job = JobDir(str(root / "home" / "jobs" / "one"))
    cwd = root / "w"
    order = order_of_a_job(home=str(root / "home"), cwd=str(cwd), run_dir=str(cwd / "runs" / "one"), collect=patterns)
    Path(job.path).mkdir(parents=True, exist_ok=True)
    job.write("staging.json", {**STAGING, "started": 1e9})
    channel, frames = Channel(-1, -1), list[Any]()
    monkeypatch.setattr(channel, "send", frames.append)
    send_artifacts(channel, job, order, limits)  # type: ignore[arg-type]
    return frames


def test_a_node_sends_what_matches_and_the_controller_lists_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "w", "a.pt", "runs/zero/a.pt", "out/b.pt", "out/empty")
    (tmp_path / "w" / "out" / "empty").write_text("")
    frames = sent(tmp_path, monkeypatch, ["**/*.pt", "out", "none*"])
    home = BroughtHome({"n1", "n2"}, MANY)
    assert all(home.take(frame) for frame in frames) and not home.take({"kind": "file", "name": "launcher.out"})
    home.write(tmp_path)
    listing = json.loads((tmp_path / "artifacts.json").read_text())
    rows = {row["path"]: (row["host"], row["bytes"], row["sha256"]) for row in listing.pop("files")}
    assert set(rows) == {"a.pt", "out/b.pt", "out/empty"}  # not the runs
    assert rows["a.pt"] == ("n1", 4, hashlib.sha256(b"a.pt").hexdigest())
    assert listing == {"left_out": {}, "refused": {}, "unmatched": ["none*"]}
    assert home.said == [
        "collected: 3 files, 12 bytes, from n1: artifacts/ and artifacts.json",
        "warning: collect: 'none*' matches nothing that the job wrote",
    ]
    assert home.damaged == []


def test_what_was_there_before_the_job_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "w", "old.pt", "new.pt")
    since = (tmp_path / "w" / "old.pt").stat().st_ctime + 3600

    def later(_job: JobDir) -> Any:
        return {**STAGING, "started": since}

    monkeypatch.setattr(JobDir, "staging", later)
    frames = sent(tmp_path, monkeypatch, ["*.pt"])
    assert [frame["kind"] for frame in frames] == ["artifacts"] and frames[0]["files"] == []


def test_in_a_jobs_own_tree_what_was_shipped_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    tree(tmp_path / "jobs" / "one" / "src", "main.py", "config", "model.pt")
    digest = hashlib.sha256(b"main.py").hexdigest()
    job.write("listing.json", [["main.py", digest, False], ["config", digest, False]])
    order = order_of_a_job(home=str(tmp_path), cwd=job.at("src"), collect=["**"])
    channel, paths = Channel(-1, -1), list[str]()
    monkeypatch.setattr(channel, "send", lambda frame: paths.append(frame.get("name", "")))
    send_artifacts(channel, job, order, MANY)  # type: ignore[arg-type]
    assert paths == ["artifacts/n1/config", "artifacts/n1/model.pt", ""]  # config was changed
    (tmp_path / "jobs/one/src").rename(tmp_path / "elsewhere")
    (tmp_path / "jobs/one/src").symlink_to(tmp_path / "elsewhere")
    paths.clear()
    send_artifacts(channel, job, order, MANY)  # type: ignore[arg-type]
    assert paths == [""], "the program made a link of its folder: it may lead anywhere"


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        (Limits(2, 1 << 20), "too_many", "more files than collect_files=2 match"),
        (Limits(9, 10), "too_large", "what matches has more bytes than collect_limit=10"),
    ],
)
def test_a_node_with_too_much_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits, code: str, said: str
) -> None:
    tree(tmp_path / "w", "a.pt", "b.pt", "c.pt")
    (frame,) = sent(tmp_path, monkeypatch, ["*"], limits)
    assert frame["refused"] == code and frame["files"] == []
    home = BroughtHome({"n1"}, limits)
    assert home.take(frame)
    assert home.warnings == [f"collect: nothing came from n1: {said}; the files stay there"]


def test_a_look_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "w", "a", "b", "c")
    monkeypatch.setattr(artifacts_module, "LOOKED_MOST", 2)
    (frame,) = sent(tmp_path, monkeypatch, ["*.pt"])
    assert frame["refused"] == "too_wide"
    (frame,) = sent(tmp_path / "nowhere", monkeypatch, ["*.pt"])
    assert frame["refused"] == "no_folder"


@pytest.mark.parametrize(
    "name",
    [
        "artifacts/n1/../../escaped",
        "artifacts//etc/passwd",
        "artifacts/n9/a",
        "artifacts/n1",
        "artifacts/n1/",
        "artifacts/./a",
        "artifacts/n1/a/b",  # n1 has sent a file a
        "artifacts/n1/a",  # which it has sent
        "artifacts/n1/out",  # and out/b
    ],
)
def test_names_that_no_honest_node_sends(name: str) -> None:
    border = Border(["n1"], MANY)
    for honest in ("artifacts/n1/a", "artifacts/n1/out/b"):
        assert border.check(honest, True, 1) == ("n1", honest[13:])
    with pytest.raises(ValueError, match=r"file|path below"):
        border.check(name, True, 1)


def test_what_comes_is_bounded_and_listed() -> None:
    border = Border(["n1"], Limits(2, 10))
    border.check("artifacts/n1/a", True, 5)
    border.check("artifacts/n1/a", False, 5)
    for name, first, size in (("a", False, 0), ("a", False, 1), ("b", False, 1), ("b", True, 1)):
        with pytest.raises(ValueError, match="file"):
            border.check(f"artifacts/n1/{name}", first, size)
    border = Border(["n1"], Limits(1, 10))
    border.check("artifacts/n1/a", True, 0)
    with pytest.raises(ValueError, match="collect_files"):
        border.check("artifacts/n1/b", True, 0)
    border = Border(None, Limits(2, 10))  # a job that was planned elsewhere: its hosts share what one may send
    border.check("artifacts/n1/a", True, 6)
    with pytest.raises(ValueError, match="collect_limit"):
        border.check("artifacts/n2/a", True, 6)
    with pytest.raises(ValueError, match="collect_files"):
        border.check("artifacts/n3/a", True, 0)
    border = Border(["n1"], Limits(1, 1 << 20))
    border.check("artifacts/n1/a", True, 1)
    with pytest.raises(ValueError, match="too many small blocks"):  # reproduced before: a byte at a time, for days
        for _block in range(400):
            border.check("artifacts/n1/a", False, 1)
    border = Border(["n1"], MANY)
    border.check("artifacts/n1/a", True, 0)
    row: Any = {"path": "a", "bytes": 0, "sha256": ""}
    for host, rows in (("n1", []), ("n1", [row, row]), ("n2", []), ("n1", [row, {**row, "path": "b"}])):
        with pytest.raises(ValueError, match="list"):
            border.end(host, rows)
    border.end("n1", [row])
    with pytest.raises(ValueError, match="list"):
        border.end("n1", [row])
    with pytest.raises(ValueError, match="behind"):
        border.check("artifacts/n1/b", True, 0)


def test_a_file_is_read_through_no_link_whoever_puts_one_there_meanwhile(tmp_path: Path) -> None:
    root, other = tmp_path / "work", tmp_path / "other"
    for place in (root, other):
        place.mkdir()
    (other / "key").write_text("secret")
    (root / "sub").symlink_to(other)
    (root / "key").symlink_to(other / "key")
    os.mkfifo(root / "pipe")
    for path in ("sub/key", "key", "pipe", "sub"):
        with pytest.raises(OSError):
            artifacts_module.open_below(str(root), path)


def test_a_head_cannot_name_hosts_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_border, "HOSTS_MOST", 2)
    border = Border(None, MANY)
    for host in ("n1", "n2"):
        border.end(host, [])
    with pytest.raises(ValueError, match="too many hosts"):
        border.end("n3", [])


def test_a_file_that_is_not_what_was_sent_is_told() -> None:
    home = BroughtHome(None, MANY)
    home.take({"kind": "file", "name": "artifacts/n1/a", "first": True, "data": b"x"})
    row = {"path": "a", "bytes": 1, "sha256": "f" * 64}
    home.take(
        {"kind": "artifacts", "host": "n1", "files": [row], "left_out": {"link": 3}, "unmatched": [], "refused": ""}
    )
    assert home.damaged == ["n1: a has another checksum"]
    assert home.warnings == ["collect: left on n1: 3 links"]


def test_shell_words() -> None:
    assert parse_request({"collect": shlex.join(["a b/*", "c"])}).collect == ("a b/*", "c")
