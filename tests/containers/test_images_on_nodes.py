"""setup.yml brings an image to two nodes, from an archive or a registry, and takes away what it brought."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.containers.nodes import IMAGES, NODES, InImages
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
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive of an image with one file, as podman save writes it."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "file").write_text("content\n")
    name = f"localhost/small-{os.getpid()}:1"
    with tarfile.open(folder / "files.tar", "w") as files:
        files.add(folder / "file", "file")
    podman("import", "--quiet", str(folder / "files.tar"), name)
    try:
        podman("save", "--quiet", "--format", "docker-archive", "--output", str(folder / "small.tar"), name)
    finally:
        podman("rmi", name)
    return folder / "small.tar"


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_an_archive_is_loaded_once_and_removed_again(images: InImages, small: Path, engine: str) -> None:
    """It has its image under another name. A name that a user gave it later is the user's."""
    lab, given = images.cluster.lab, {"container_image": LOADED, "container_engine": engine}
    given["container_archive"] = str(small)
    before = ids(images, engine, IMAGES[engine])
    checked = bring(images, "--check", **given)
    assert checked.process.returncode == 0 and f"would load {LOADED}" in checked.output
    assert ids(images, engine, LOADED) == ["", ""]
    assert bring(images, **given).process.returncode == 0
    loaded = ids(images, engine, LOADED)
    assert len(set(loaded)) == 1 and "" not in loaded
    assert len(kept_in_home(images)) == 2  # notes, and no archive
    again = bring(images, **given)
    assert again.output.count("changed=0") == 2, again.output
    lab.ssh("n2", engine, "tag", LOADED, "localhost/other:1")
    gone = bring(images, container_state="absent")
    assert gone.process.returncode == 0, gone.output
    assert ids(images, engine, LOADED) == ["", ""] and kept_in_home(images) == []
    assert ids(images, engine, "localhost/other:1") == ["", loaded[1]]
    assert ids(images, engine, IMAGES[engine]) == before
    lab.ssh("n2", engine, "rmi", "localhost/other:1")


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
    for node in NODES:
        assert images.cluster.lab.ssh(node, "ls", "-A", "/home/fleet/unpacked").stdout == ""


def test_a_name_is_pulled_only_if_that_is_asked_for(images: InImages, small: Path) -> None:
    name = f"{images.cluster.lab.address('n1')}:5000/small:1"
    podman("load", "--quiet", "--input", str(small))
    podman("push", "--quiet", "--tls-verify=false", f"localhost/small-{os.getpid()}:1", name)
    podman("rmi", f"localhost/small-{os.getpid()}:1")
    for engine in ("podman", "docker"):
        given = {"container_image": name, "container_engine": engine}
        refused = bring(images, **given)
        assert refused.process.returncode == 2
        line = "n1 has no such image; to bring it: -e container_archive=/its/archive.tar, or -e container_pull=true"
        assert line in refused.output
        done = bring(images, **given, container_pull=True)
        assert done.process.returncode == 0, done.output
        assert len(set(ids(images, engine, name))) == 1 and "" not in ids(images, engine, name)
        assert bring(images, **given, container_pull=True).output.count("changed=0") == 2
        assert bring(images, container_state="absent").process.returncode == 0
        assert ids(images, engine, name) == ["", ""]
    none = bring(images, container_image=f"{name}0", container_engine="podman", container_pull=True)
    assert none.process.returncode == 2 and "Podman cannot pull it" in none.output
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
