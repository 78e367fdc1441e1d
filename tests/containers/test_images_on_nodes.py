"""setup.yml brings an image to two nodes, from an archive or a registry, and takes away what it brought."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.containers.nodes import IMAGES, NODES, InImages
from tests.driver import REPO
from tests.lab.cluster import Job

LOADED = "localhost/loaded:1"
UNPACKED = "/home/fleet/unpacked/debian"


def bring(images: InImages, *words: str, **given: Any) -> Job:
    """Run the role alone."""
    return images.cluster.play("setup.yml", "--tags", "container", *words, **given)


def ids(images: InImages, engine: str, name: str) -> list[str]:
    """Return the id that each node's engine has for a name; empty for none."""
    words = (engine, "image", "inspect", "--format", "'{{.Id}}'", name)
    return [images.cluster.lab.ssh(node, *words, check=False).stdout.strip() for node in NODES]


def kept_in_home(images: InImages) -> list[str]:
    """Return the files for images in torchfleet's home."""
    find = ("find", "/home/fleet/.torchfleet/images", "-type", "f")
    return [line for node in NODES for line in images.cluster.lab.ssh(node, *find, check=False).stdout.split()]


@pytest.fixture(scope="module")
def files_of_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tar archive of the files of the image, as Charliecloud takes it."""
    path = tmp_path_factory.mktemp("files") / "debian.tar"
    name = podman("create", image.bootstrap("bookworm", ""), "true").strip()
    try:
        podman("export", "--output", str(path), name)
    finally:
        podman("rm", name)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with archives as podman save writes them, of images with one file: first, second, and both."""
    folder, names = tmp_path_factory.mktemp("small"), []
    for which in ("first", "second"):
        (folder / which).write_text(f"{which}\n")
        with tarfile.open(folder / "files.tar", "w") as files:
            files.add(folder / which, "file")
        names.append(f"localhost/{which}-{os.getpid()}:1")
        podman("import", "--quiet", str(folder / "files.tar"), names[-1])
    try:
        for archive, held in (("first", names[:1]), ("second", names[1:]), ("both", names)):
            words = ("--quiet", "--format", "docker-archive", "--multi-image-archive", "--output")
            podman("save", *words, str(folder / f"{archive}.tar"), *held)
        yield folder
    finally:
        podman("rmi", *names)


def all_names(images: InImages, engine: str, node: str = "n2") -> list[str]:
    """Return each image that an engine has, with its names."""
    words = (engine, "images", "--no-trunc", "--format", "'{{.ID}} {{.Repository}}:{{.Tag}}'")
    return sorted(images.cluster.lab.ssh(node, *words).stdout.splitlines())


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_an_archive_is_loaded_once_and_removed_again(images: InImages, small: Path, engine: str) -> None:
    """It has its image under another name. A name that a user gave it later is the user's."""
    lab, given = images.cluster.lab, {"container_image": LOADED, "container_engine": engine}
    given["container_archive"] = os.path.relpath(small / "first.tar", REPO)
    before = all_names(images, engine)
    checked = bring(images, "--check", **given)
    assert checked.process.returncode == 0 and f"would load {LOADED}" in checked.output
    assert all_names(images, engine) == before
    assert bring(images, **given).process.returncode == 0
    first = ids(images, engine, LOADED)
    assert len(set(first)) == 1 and "" not in first
    assert len(kept_in_home(images)) == 2  # notes, and no archive
    again = bring(images, **given)
    assert again.output.count("changed=0") == 2, again.output
    lab.ssh("n2", engine, "tag", LOADED, "localhost/other:1")
    other = bring(images, **{**given, "container_archive": str(small / "second.tar")})
    assert other.process.returncode == 0, other.output
    second = ids(images, engine, LOADED)
    assert len(set(second)) == 1 and second[0] not in ("", first[0])
    assert ids(images, engine, "localhost/other:1") == ["", first[1]]
    assert [first[0] in line for line in all_names(images, engine, "n1")].count(True) == 0  # nobody had a name for it
    gone = bring(images, container_state="absent")
    assert gone.process.returncode == 0, gone.output
    assert kept_in_home(images) == []
    lab.ssh("n2", engine, "rmi", "localhost/other:1")
    assert all_names(images, engine) == before


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_names_of_an_archive_that_were_not_asked_for_are_as_before(images: InImages, small: Path, engine: str) -> None:
    """An archive of two images says which is meant by its name. A name that the user has already stays the user's."""
    mine = f"localhost/second-{os.getpid()}:1"
    images.cluster.lab.ssh("n2", engine, "tag", IMAGES[engine], mine)
    before = all_names(images, engine)
    given = {"container_engine": engine, "container_archive": str(small / "both.tar")}
    refused = bring(images, **given, container_image=LOADED)
    assert refused.process.returncode == 2 and "the archive has no image of that name, but" in refused.output
    assert all_names(images, engine) == before and kept_in_home(images) == []
    done = bring(images, **given, container_image=f"localhost/first-{os.getpid()}:1")
    assert done.process.returncode == 0, done.output
    assert len({*all_names(images, engine)} - {*before}) == 1
    assert bring(images, container_state="absent").process.returncode == 0
    assert {*before} <= {*all_names(images, engine)}
    images.cluster.lab.ssh("n2", engine, "rmi", mine)


def test_an_image_is_built_once_on_the_controller_and_comes_to_every_node(images: InImages, tmp_path: Path) -> None:
    """The nodes have its id, that of the controller. What does not build is told in the builder's words."""
    name, project = f"localhost/built-{os.getpid()}:1", tmp_path / "project"
    project.mkdir()
    (project / "Containerfile").write_text("FROM scratch\nCOPY file /file\n")
    given = {"container_image": name, "container_engine": "podman", "container_build": str(project)}
    given["container_archive"] = str(tmp_path / "kept/train.tar")
    before = all_names(images, "podman")
    refused = bring(images, **given)
    assert refused.process.returncode == 2 and "container_build: got" in refused.output and "file" in refused.output
    try:
        built = []
        for content in ("first", "second"):
            (project / "file").write_text(content)
            if not built:
                checked = bring(images, "--check", **given)
                assert checked.process.returncode == 0 and f"would build {name}" in checked.output
                assert f"would load {name}" in checked.output and not (tmp_path / "kept").exists()
            done = bring(images, **given)
            assert done.process.returncode == 0, done.output
            built.append(podman("image", "inspect", "--format", "{{.Id}}", name).strip())
            assert ids(images, "podman", name) == [built[-1]] * 2
            assert bring(images, **given).output.count("changed=0") == 2
        assert built[0] != built[1] and [path.name for path in (tmp_path / "kept").iterdir()] == ["train.tar"]
        assert bring(images, container_state="absent").process.returncode == 0
        assert all_names(images, "podman") == before
    finally:
        podman("rmi", "--force", name)


def test_charliecloud_unpacks_the_files_of_an_image(images: InImages, files_of_image: Path, tmp_path: Path) -> None:
    given = {"container_image": UNPACKED, "container_archive": str(files_of_image)}
    done = bring(images, **given)
    assert done.process.returncode == 0, done.output
    (tmp_path / "p").mkdir()
    (tmp_path / "p/a.py").write_text("print('in', __import__('os').path.exists('/usr/bin/podman'))\n")
    job = images.play("charliecloud", tmp_path / "p/a.py", container_image=UNPACKED, launcher="torchrun")
    assert job.process.returncode == 0 and "in False" in job.stdout(0), job.output
    assert bring(images, **given).output.count("changed=0") == 2
    assert bring(images, container_state="absent").process.returncode == 0
    refused = bring(images, **{**given, "container_image": "/home/fleet/.ssh"})
    assert refused.process.returncode == 2 and "something else is at this path" in refused.output
    for node in NODES:
        assert images.cluster.lab.ssh(node, "ls", "-A", "/home/fleet/unpacked").stdout == ""


def test_a_name_is_pulled_only_if_that_is_asked_for(images: InImages, small: Path) -> None:
    """By its tag, or by its digest in the registry."""
    registry = f"{images.cluster.lab.address('n1')}:5000"
    name = f"{registry}/small:1"
    words = ("--quiet", "--tls-verify=false", "--digestfile", str(small / "digest"))
    podman("push", *words, f"localhost/first-{os.getpid()}:1", name)
    by_digest = f"{registry}/small@{(small / 'digest').read_text()}"
    refused = bring(images, container_image=name)
    assert refused.process.returncode == 2
    line = "n1 has no such image; to bring it: -e container_archive=/its/archive.tar, or -e container_pull=true"
    assert line in refused.output
    no_registry = f"{images.cluster.lab.address('n1')}:5999/small:1"
    for engine, none in (("podman", no_registry), ("docker", f"{name}0")):
        given = {"container_engine": engine, "container_pull": True}
        for wanted in (name, by_digest):
            done = bring(images, **given, container_image=wanted)
            assert done.process.returncode == 0, done.output
            assert len(set(ids(images, engine, wanted))) == 1 and "" not in ids(images, engine, wanted)
        assert bring(images, **given, container_image=name).output.count("changed=0") == 2
        assert bring(images, container_state="absent").process.returncode == 0
        assert [ids(images, engine, wanted) for wanted in (name, by_digest)] == [["", ""], ["", ""]]
        done = bring(images, **given, container_image=none)
        assert done.process.returncode == 2 and f"{engine.title()} cannot pull it: " in done.output, done.output
    assert kept_in_home(images) == []


def test_an_archive_that_is_none_is_refused_in_the_engines_words(images: InImages, tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(b"no archive" * 1000)
    done = bring(images, container_image=LOADED, container_engine="podman", container_archive=str(tmp_path / "bad.tar"))
    assert done.process.returncode == 2 and "Podman cannot load the archive: " in done.output
    assert ids(images, "podman", LOADED) == ["", ""] and kept_in_home(images) == []


def test_ids_that_differ_are_drift(images: InImages) -> None:
    lab, tag = images.cluster.lab, "localhost/drift:1"
    lab.ssh("n1", f"podman tag {IMAGES['podman']} {tag}")
    lab.ssh("n2", f"podman commit -q $(podman create {IMAGES['podman']} true) {tag}; podman rm --all")
    found = images.cluster.play("setup.yml", "--tags", "preflight", container_image=tag)
    assert "TF-DRIFT-IMAGE" in found.output, found.output
    for node in NODES:
        lab.ssh(node, "podman", "rmi", tag)
