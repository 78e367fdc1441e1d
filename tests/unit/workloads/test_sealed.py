"""Files that are whole or never read."""

import io
import zipfile
from pathlib import Path

import pytest
from _sealed import before, foreign, located, newest, replace, restarted, whole


def archive(text: str) -> bytes:
    """Return a ZIP file, as torch.save writes one."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as pack:
        pack.writestr("data", text)
    return stream.getvalue()


def saved(path: Path, text: str) -> None:
    replace(path, lambda stream: stream.write(archive(text)))


def read(path: Path) -> str:
    with zipfile.ZipFile(path) as pack:
        return pack.read("data").decode()


def test_the_newest_is_read_and_two_are_kept(tmp_path):
    path = tmp_path / "x.pt"
    for text in ("one", "two", "three"):
        saved(path, text)
    assert newest(path) == (path, [])
    assert (read(path), read(before(path))) == ("three", "two")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["x.pt", "x.pt.previous"]


def test_every_torn_file_is_known(tmp_path):
    """Cut anywhere, or with any byte changed, and in each case the one before is taken."""
    path = tmp_path / "x.pt"
    saved(path, "one")
    saved(path, "two")
    content = path.read_bytes()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        assert newest(path) == (before(path), [path]), end
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert newest(path) == (before(path), [path]), at


def test_a_damaged_file_never_takes_the_place_of_the_whole_one_before_it(tmp_path):
    path = tmp_path / "x.pt"
    saved(path, "one")
    saved(path, "two")
    path.write_bytes(b"torn")
    saved(path, "three")
    assert (read(path), read(before(path))) == ("three", "one")


def test_a_crash_between_the_two_renames_leaves_the_one_before(tmp_path):
    path = tmp_path / "x.pt"
    saved(path, "one")
    path.replace(before(path))
    path.with_name("x.pt.partial").write_bytes(b"half")
    assert newest(path) == (before(path), [])


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path):
    path = tmp_path / "x.pt"
    saved(path, "one")

    def fail(stream):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        replace(path, fail)
    assert [found.name for found in tmp_path.iterdir()] == ["x.pt"] and whole(path)


def test_a_file_without_a_digest_is_not_whole(tmp_path):
    path = tmp_path / "x.pt"
    assert newest(path) == (None, [])
    path.write_bytes(archive("of another program"))
    assert newest(path) == (None, [path])


def test_a_relative_path_is_below_the_directory_that_the_job_names():
    job = {"TORCHFLEET_CHECKPOINT_DIR": "/data/job"}
    assert located(Path("a/x.pt"), job) == Path("/data/job/a/x.pt")
    assert located(Path("/own/x.pt"), job) == Path("/own/x.pt")
    assert located(Path("x.pt"), {}) == Path("x.pt")


@pytest.mark.parametrize(("count", "again"), [("", False), ("0", False), ("1", True), ("12", True), ("-1", False)])
def test_a_job_that_was_run_again_knows_it(count, again):
    assert restarted({"TORCHFLEET_RESTART_COUNT": count}) is again
    assert restarted({}) is False


def test_a_directory_with_other_things_is_no_place_for_a_checkpoint(tmp_path):
    """Reproduced before: `llm --checkpoint DIR` removed whatever was in that directory, to put its own there."""
    ours = r"\.[0-9a-f]{16}"
    assert foreign(tmp_path, "manifest.json", ours) == ""
    (tmp_path / ".0123456789abcdef").touch()  # a run was killed
    assert foreign(tmp_path, "manifest.json", ours) == ""
    (tmp_path / "thesis.tex").touch()
    assert foreign(tmp_path, "manifest.json", ours) == "thesis.tex"
    (tmp_path / "manifest.json").touch()
    assert foreign(tmp_path, "manifest.json", ours) == ""
