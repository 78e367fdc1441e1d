"""Two lab nodes that start containers themselves, without any privilege, and the image that jobs run in there."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab

NODES = ("n1", "n2")
HOME = "/home/fleet/.torchfleet"
PYTHON = f"{HOME}/pytorch/bin/python"  # of the nodes: the image, which is a Debian too, sees it with the home
ROOTFS = "/images/debian"  # on each node; ch-run 0.31 starts none that lies below / itself
TAG = "localhost/job:1"
ROOTFS = "/images/debian"  # on each node; ch-run 0.31 starts none that lies below / itself
# another one; a program with the set-uid bit may write no maps of user ids here, one with the capability may.
STORAGE = """[storage]
driver = "vfs"
rootless_storage_path = "/run/store"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""
ENGINE = """[containers]
cgroupns = "host"
utsns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
"""
PREPARE = """set -e
install -d -o fleet /run/store
setcap cap_setuid+ep /usr/bin/newuidmap; chmod u-s /usr/bin/newuidmap
setcap cap_setgid+ep /usr/bin/newgidmap; chmod u-s /usr/bin/newgidmap
printf '%s' "$1" > /etc/containers/storage.conf
printf '%s' "$2" > /etc/containers/containers.conf
"""


def export_image(into: Path) -> tuple[Path, Path]:
    """Write the image, Debian with Python and nothing else, as a directory and as an archive. Return both paths."""
    base = image.bootstrap("bookworm", "")
    rootfs, archive = into / "rootfs", into / "image.tar"
    rootfs.mkdir()
    name = podman("create", base, "true").strip()
    try:
        with subprocess.Popen(["podman", "export", name], stdout=subprocess.PIPE) as exported:
            subprocess.run(["tar", "-x", "-C", str(rootfs)], stdin=exported.stdout, check=True)
    finally:
        podman("rm", name)
    podman("save", "--quiet", "--format", "docker-archive", "--output", str(archive), base)
    subprocess.run(["chmod", "-R", "a+rX", str(rootfs)], check=True)
    return rootfs, archive


def container_nodes(name: str, root: Path) -> Cluster:
    """Return two nodes with Podman and Charliecloud, set up by setup.yml, that have the image. The caller removes."""
    rootfs, archive = export_image(root)
    (rootfs / "home/fleet").mkdir(parents=True, exist_ok=True)  # Charliecloud binds onto what is there
    packages = ["podman", "crun", "uidmap", "charliecloud", "libcap2-bin"]
    mounts = [f"{rootfs}:{ROOTFS}", f"{archive}:/image.tar"]
    lab = Lab(
        name, root / "inventory", nodes=2, nics=2, install=True, image="bare", packages=packages, mounts=mounts,
        shm_mb=2000,
    )  # fmt: skip
    return Cluster(lab, root)


def set_up(cluster: Cluster, **more: object) -> None:
    """Start the nodes, run setup.yml, and bring them the image."""
    lab = cluster.lab
    lab.up()
    for node in NODES:
        lab.root(node, "sh", "-c", PREPARE, "sh", STORAGE, ENGINE)
    done = cluster.play("setup.yml", "--skip-tags", "verify", **more)
    assert done.process.returncode == 0, done.log.read_text()
    for node in NODES:
        lab.ssh(node, f"podman load --quiet --input /image.tar && podman tag $(podman images -q | head -1) {TAG}")
