"""An image comes to a node: what is refused before, what is to be done, and what is remembered of it."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import container_image
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import images as on_node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.containers import parse_container
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import take
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.image_build import (
    NOTHING,
    build,
    read_archive,
    wanted_build,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.images import (
    ANSWER,
    check_source,
    step_for,
    sum_of_archive,
)

SUM = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
SEEN: dict[str, Any] = {
    "engine": "podman",
    "id": "1721a9ca67e5",
    "flaw": "",
    "said": "",
    "loaded": SUM,
    "place": f"/home/me/.torchfleet/images/{SUM[:32]}-01234567.tar",
    "brought": False,
}


@pytest.mark.parametrize(
    ("image", "archive", "pull", "said"),
    [
        ("none", "/a.tar", False, r"container_archive: got .*; it is for an image: name that: -e container_image="),
        ("none", "", True, r"container_pull: got true; it is for an image"),
        ("train:1", "/a.tar", True, r"container_pull is set too: leave one of them out"),
        ("/images/train", "", True, r"an image that is a path is not pulled: -e container_archive="),
        ("/images/train.sif", "/a.tar", False, r"container_image is /images/train.sif, so give a .sif file"),
        ("r.example.com/train@sha256:1", "/a.tar", False, r"no archive has a digest: name it with a tag"),
        ("/images/train.sqsh", "/a.sif", False, r"container_image is /images/train.sqsh, so give a .sqsh file"),
        ("/images/train", "/a.sif", False, r"container_image is /images/train, so give an archive of files"),
        ("train:1", "/a.sif", False, r"container_image is train:1, so give an archive of files"),
    ],
)
def test_what_cannot_be_brought_is_refused_before(image: str, archive: str, pull: bool, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        check_source(parse_container({"container_image": image}), archive, pull)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("image", "engine", "archive"),
    [
        ("train:1", "auto", "/a.tar.gz"),
        ("/i/train", "charliecloud", "/a.tar"),
        ("/i/train.sif", "auto", "/a.sif"),
        ("/i/train.sqsh", "auto", "/a.sqsh"),
    ],
)
def test_what_each_kind_of_image_comes_from(image: str, engine: str, archive: str) -> None:
    check_source(parse_container({"container_image": image, "container_engine": engine}), archive, False)


def test_only_charliecloud_has_a_program_that_unpacks() -> None:
    apptainer = parse_container({"container_image": "/i/train", "container_engine": "apptainer"})
    with pytest.raises(InputError, match=r"container_engine: got .apptainer.; only charliecloud's ch-convert"):
        check_source(apptainer, "/a.tar", False)


# --- built on the controller ------------------------------------------------------------------------------------------


def archive_of(path: Path, rows: object) -> Path:
    """Write an archive with this list of images."""
    listing = json.dumps(rows).encode()
    with tarfile.open(path, "w") as file:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(listing)
        file.addfile(entry, io.BytesIO(listing))
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to build from, on a controller with podman."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/podman").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/Dockerfile").write_text("FROM scratch\n")
    return tmp_path


@pytest.mark.parametrize(
    ("image", "folder", "archive", "said"),
    [
        ("/i/train", "project", "a.tar", r"/i/train is a path, and what is built has a name: train:1"),
        ("train:1", "project", "", r"say where to write the image: -e container_archive=train.tar"),
        ("train:1", "none", "a.tar", r"there is no Containerfile and no Dockerfile: give a folder with one"),
        ("train:1", "project", "project/Dockerfile", r"written over, but it is no archive of an image: name another"),
        (
            "train:1",
            "project",
            "project/out/a.tar",
            r"is in .*project, so each build may include .*: give a path outside",
        ),
        (
            "train:1",
            "project",
            "link/a.tar",
            r"is in .*project, so each build may include .*: give a path outside of it",
        ),
        ("train:1", "project", "other.tar", r"written over, but it holds localhost/other:1: name another file"),
    ],
)
def test_what_cannot_be_built_is_refused_before(
    project: Path, image: str, folder: str, archive: str, said: str
) -> None:
    (project / "link").symlink_to("project")
    archive_of(project / "other.tar", [{"Config": f"{SUM}.json", "RepoTags": ["localhost/other:1"]}])
    with pytest.raises(InputError, match=said) as refused:
        wanted_build(image, str(project / folder), str(project / archive) if archive else "")
    assert "\n" not in str(refused.value)


def test_a_controller_without_a_builder_says_so(project: Path) -> None:
    assert wanted_build("train:1", "", "a.tar") is None
    wanted = wanted_build("train:1", str(project / "project"), str(project / "a.tar"))
    assert wanted and (wanted.builder, wanted.archive) == ("podman", project / "a.tar")
    (project / "bin/podman").unlink()
    with pytest.raises(
        InputError, match=r"the controller has neither podman nor docker: install one, or build elsewhe"
    ):
        wanted_build("train:1", str(project / "project"), str(project / "a.tar"))


def test_what_is_built_is_its_users_alone_and_is_not_written_again(project: Path) -> None:
    ready = archive_of(project / "ready.tar", [{"Config": f"{SUM}.json", "RepoTags": ["localhost/train:1"]}])
    (project / "bin/podman").write_text(
        "#!/bin/sh\numask 022\ncase $1 in image) echo sha256:" + SUM + ";; save)\n"
        f'while [ "$1" != --output ]; do shift; done; /bin/cp {ready} "$2"; esac\n'
    )
    (project / "bin/podman").chmod(0o755)
    wanted = wanted_build("train:1", str(project / "project"), str(project / "out/a.tar"))
    assert wanted and build(wanted) is True
    assert (project / "out/a.tar").stat().st_mode & 0o777 == 0o600  # it may have secrets of the project
    assert [path.name for path in (project / "out").iterdir()] == ["a.tar"]
    assert build(wanted) is False


@pytest.mark.parametrize("config", [f"{SUM}.json", f"blobs/sha256/{SUM}"])
def test_the_image_in_an_archive_is_known(tmp_path: Path, config: str) -> None:
    kept = read_archive(archive_of(tmp_path / "a.tar", [{"Config": config, "RepoTags": ["localhost/train:1"]}]))
    assert (kept.image_id, kept.names) == (SUM, ("localhost/train:1",))


@pytest.mark.parametrize(
    "rows", [[], {}, [{}], [1], ["a"], [{"Config": "x", "RepoTags": []}], [{"Config": SUM, "RepoTags": None}], [{}, {}]]
)
def test_what_is_no_archive_of_one_image_holds_nothing(tmp_path: Path, rows: object) -> None:
    assert read_archive(archive_of(tmp_path / "a.tar", rows)) == NOTHING
    assert read_archive(tmp_path / "none.tar") == NOTHING


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_an_archive_that_is_damaged_holds_nothing(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Cut off, as by a full disk, or with bytes of something else in it."""
    with tarfile.open(tmp_path / "plain.tar", "w") as file:
        entry = tarfile.TarInfo("layer.tar")
        entry.size = 1 << 16
        file.addfile(entry, io.BytesIO(random.Random(0).randbytes(entry.size)))
    whole = pack((tmp_path / "plain.tar").read_bytes())
    for damaged in (whole[: len(whole) // 2], whole[:20_000] + bytes(1000) + whole[21_000:]):
        (tmp_path / "a.tar").write_bytes(damaged)
        assert read_archive(tmp_path / "a.tar") == NOTHING


def test_a_list_without_end_in_an_archive_holds_nothing(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = 100_000
        file.addfile(entry, io.BytesIO(b"[" * entry.size))
    assert read_archive(tmp_path / "a.tar") == NOTHING


def test_an_archive_is_read_or_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"test")
    assert sum_of_archive(str(tmp_path / "a.tar")) == SUM == on_node.sum_of(str(tmp_path / "a.tar"))
    for name in ("none.tar", "."):
        with pytest.raises(InputError, match="there is no such file: podman save -o"):
            sum_of_archive(str(tmp_path / name))


@pytest.mark.parametrize(
    ("changed", "sha256", "pull", "step"),
    [
        ({}, SUM, False, ""),
        ({"loaded": ""}, SUM, False, "load"),  # there, and of unknown origin
        ({"loaded": "0" * 64}, SUM, False, "load"),
        ({}, "", True, ""),
        ({"id": ""}, "", True, "pull"),
        ({"id": ""}, "", False, ""),
    ],
)
def test_what_is_to_be_done(changed: dict[str, Any], sha256: str, pull: bool, step: str) -> None:
    assert step_for(take("n1", "container_image", ANSWER, {**SEEN, **changed}), sha256, pull) == step


@pytest.mark.parametrize(
    "changed",
    [{"place": "../../etc/x"}, {"engine": "other"}, {"loaded": "x"}, {"flaw": "odd"}, {"brought": 1}, {"id": "a b"}],
)
def test_what_no_node_can_answer_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="answer of n1"):
        take("n1", "container_image", ANSWER, {**SEEN, **changed})


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("localhost/train:1", "train:1"),
        ("docker.io/library/debian", "debian:latest"),
        ("r.example.com:5000/train", "r.example.com:5000/train:latest"),
        ("docker.io/me/train:2", "me/train:2"),
    ],
)
def test_one_image_by_all_its_names(name: str, usual: str) -> None:
    assert on_node.usual(name) == usual


@pytest.mark.parametrize(
    ("engine", "image", "name", "found"),
    [
        ("podman", "train:1", "localhost/train:1", True),
        ("podman", "train:1", "docker.io/library/train:1", True),
        ("podman", "localhost/train:1", "localhost/train:1", True),
        ("podman", "docker.io/library/train:1", "localhost/train:1", False),
        ("podman", "localhost/train:1", "docker.io/library/train:1", False),
        ("podman", "train:1", "localhost/train:2", False),
        ("docker", "train", "train:latest", True),
        ("docker", "docker.io/library/train:1", "train:1", True),
        ("docker", "train:1", "localhost/train:1", False),  # as Podman of the controller names what it builds
        ("docker", "localhost/train:1", "train:1", False),
        ("docker", "localhost/train:1", "localhost/train:1", True),
    ],
)
def test_by_which_name_an_engine_finds_what_it_loaded(engine: str, image: str, name: str, found: bool) -> None:
    """Else it is given the name that was asked for. Docker 20.10 and Podman 4.3 do so."""
    assert on_node.finds(engine, image, name) is found


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("Getting image\nLoaded image: localhost/train:1\n", ["localhost/train:1"]),  # podman 4.3.1
        ("Loaded image: train:1\nLoaded image: train:2\n", ["train:1", "train:2"]),  # docker 20.10.24
        ("Loaded image ID: sha256:1721a9ca67e5\n", ["sha256:1721a9ca67e5"]),
        ("Loaded image(s): localhost/train:1,localhost/train:2\n", ["localhost/train:1", "localhost/train:2"]),
        ("Loaded image(s): @1721a9ca67e5\n", ["1721a9ca67e5"]),
        ("Loaded image: --force\nLoaded image(s): -f,a b\n", []),
    ],
)
def test_what_an_engine_says_that_it_loaded(said: str, names: list[str]) -> None:
    assert on_node.loaded_names(said) == names


def test_a_note_is_of_one_node(tmp_path: Path) -> None:
    host = os.uname().nodename
    note: on_node.Note = {"host": host, "engine": "podman", "image": "a:1", "id": "1", "sha256": "", "own": True}
    on_node.write_note(str(tmp_path), note)
    path = on_node.note_path(str(tmp_path), "podman", "a:1")
    assert on_node.read_note(path) == note and Path(path).stat().st_mode & 0o777 == 0o600
    for odd in ({**note, "host": "another"}, {**note, "own": "yes"}, {**note, "engine": "rm"}, ["a"], {}):
        Path(path).write_text(json.dumps(odd))
        assert on_node.read_note(path) is None


def bring(home: Path, image: Path, content: bytes) -> None:
    """Load a .sif file of this content, as the module does when the archive has come."""
    (home / "images").mkdir(parents=True, exist_ok=True)
    sha256 = hashlib.sha256(content).hexdigest()
    archive = on_node.archive_path(str(home), sha256, ".sif")
    Path(archive).write_bytes(content)
    on_node.load(str(home), "apptainer", str(image), archive, sha256)
    assert not Path(archive).exists()


def test_a_file_of_an_image_is_laid_and_removed(tmp_path: Path) -> None:
    """A .sif file is put to its path as it is; what is there by then is somebody's own and stays."""
    image, home = tmp_path / "images/train.sif", tmp_path / "home"
    for content in (b"first", b"second"):
        bring(home, image, content)
        assert image.read_bytes() == content and [path.name for path in image.parent.iterdir()] == ["train.sif"]
    assert on_node.removable(str(home)) == [f"image {image} (apptainer)"]
    mine = image.read_bytes()
    image.write_bytes(b"somebody's own")
    assert on_node.removable(str(home)) == []
    image.write_bytes(mine)
    Path(on_node.archive_path(str(home), "0" * 64, ".sif")).write_bytes(b"of a run that was cut off")
    on_node.remove(str(home))
    assert not image.exists() and not (home / "images").exists()


@pytest.mark.parametrize("other", ["file", "directory", "link"])
def test_what_is_at_the_path_and_was_not_brought_stays(tmp_path: Path, other: str) -> None:
    """A path that is mistyped may be anybody's: a home directory, data."""
    image = tmp_path / "images/train.sif"
    image.parent.mkdir()
    (tmp_path / "data").write_bytes(b"data")
    if other == "directory":
        image.mkdir()
        (image / "data").write_bytes(b"data")
    elif other == "link":
        image.symlink_to(tmp_path / "data")
    else:
        image.write_bytes(b"data")
    with pytest.raises(on_node.ImageError, match="something else is at this path") as refused:
        bring(tmp_path / "home", image, b"image")
    assert "\n" not in str(refused.value)
    kept = image / "data" if other == "directory" else image
    assert kept.read_bytes() == b"data" and [path.name for path in image.parent.iterdir()] == ["train.sif"]
    assert on_node.removable(str(tmp_path / "home")) == []


def test_nodes_that_share_the_path_of_an_image_bring_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one finds the same image there. Who brought it removes it, and either may replace it."""
    image, real = tmp_path / "images/train.sif", os.uname()

    def on(node: str) -> Path:
        monkeypatch.setattr(os, "uname", lambda: os.uname_result((real[0], node, *real[2:])))
        return tmp_path / "home"

    for first, second, content in (("n1", "n2", b"first"), ("n2", "n1", b"second")):
        for node in (first, second):
            bring(on(node), image, content)
        assert image.read_bytes() == content and [path.name for path in image.parent.iterdir()] == ["train.sif"]
    for node in ("n1", "n2"):
        on_node.remove(str(on(node)))
    assert not image.exists() and not (tmp_path / "home/images").exists()


def test_directories_that_were_made_in_vain_are_removed(tmp_path: Path) -> None:
    with pytest.raises(KeyError), on_node.scratch_beside(str(tmp_path / "a/b/image")) as made:
        Path(made).touch()
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_was_there_is_not_removed(tmp_path: Path) -> None:
    image = tmp_path / "train.sif"
    image.write_bytes(b"image")
    bring(tmp_path / "home", image, b"image")
    on_node.remove(str(tmp_path / "home"))
    assert image.read_bytes() == b"image"


def test_an_archive_that_was_cut_off_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.sif").write_bytes(b"tes")
    with pytest.raises(on_node.ImageError, match="sha256 differs"):
        on_node.load(str(tmp_path), "apptainer", str(tmp_path / "i.sif"), str(tmp_path / "a.sif"), SUM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o500, 0o300, 0o000])
def test_a_directory_that_may_not_be_written_to_is_removed(tmp_path: Path, mode: int) -> None:
    """Tests may run as root, whom no mode stops: then only what chmod is asked to do is tested."""
    (tmp_path / "image/usr/lib").mkdir(parents=True)
    (tmp_path / "image/usr/lib/file").touch()
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o711)
    (tmp_path / "image/link").symlink_to(outside)
    for name in ("image/usr/lib", "image/usr"):
        (tmp_path / name).chmod(mode)
    on_node.take_away(str(tmp_path / "image"))
    assert list(tmp_path.iterdir()) == [outside] and outside.stat().st_mode & 0o777 == 0o711
    on_node.take_away(str(tmp_path / "image"))  # another node was faster


def test_an_engine_that_nobody_asked_a_node_for_is_not_used() -> None:
    action = object.__new__(container_image.ActionModule)
    action.node, action.given = "n1", {"sha256": SUM, "pull": False, "build": "", "archive": "/a.tar"}
    seen = take("n1", "container_image", ANSWER, SEEN)
    action.refuse(parse_container({"container_image": "train:1"}), seen)
    with pytest.raises(InputError, match=r'answer of n1: got "podman"; the controller did not ask for this engine'):
        action.refuse(parse_container({"container_image": "train:1", "container_engine": "docker"}), seen)


def test_an_archive_on_a_node_is_its_users_alone() -> None:
    action, task = object.__new__(container_image.ActionModule), SimpleNamespace(args={})
    action._task = SimpleNamespace(copy=lambda: task)
    action._connection = action._play_context = action._loader = action._templar = None
    copy = SimpleNamespace(run=lambda task_vars: {"changed": True, **task_vars})
    action._shared_loader_obj = SimpleNamespace(action_loader=SimpleNamespace(get=lambda _name, **_given: copy))
    assert action.copy("/a.tar", "/h/.torchfleet/images/a.tar", {}) == {"changed": True}
    assert task.args == {"src": "/a.tar", "dest": "/h/.torchfleet/images/a.tar", "mode": "0600"}
