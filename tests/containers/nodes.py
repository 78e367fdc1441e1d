"""Two lab nodes that start containers themselves, without any privilege, and the image that jobs run in there."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.driver import command, parent, pids, wait_until
from tests.lab.cluster import Cluster, Job
from tests.lab.lab import Lab, namespace
from torch_backends.tests import package

NODES = ("n1", "n2")
PYTHON = "/home/fleet/.torchfleet/pytorch/bin/python"  # of the nodes: the image is the same Debian, and sees the home
ROOTFS = "/images/debian"  # on each node; ch-run 0.31 starts none that lies below / itself
TAG = "localhost/job:1"
IMAGES = {"podman": TAG, "docker": TAG, "charliecloud": ROOTFS}
# Podman in a node, which is a container without privileges: images lie in memory, whole for each container, for an
# overlay cannot lie on another one, nor whiteouts in memory. There a program with the set-uid bit may write no maps of
# user ids, one with the capability may.
STORAGE = """[storage]
driver = "vfs"
rootless_storage_path = "/run/store"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""
ENGINE = """[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
"""
# The registry of a test, on the first node, has no certificate.
REGISTRIES = """[[registry]]
location = "{address}:5000"
insecure = true
"""
PREPARE = """set -e
install -d -o fleet /run/store
usermod -aG docker fleet
systemctl mask --quiet --now docker.socket docker.service containerd.service
ip link delete docker0 2>/dev/null || true
rm -f /run/containerd/containerd.sock
setcap cap_setuid+ep /usr/bin/newuidmap; chmod u-s /usr/bin/newuidmap
setcap cap_setgid+ep /usr/bin/newgidmap; chmod u-s /usr/bin/newgidmap
printf '%s' "$1" > /etc/containers/storage.conf
printf '%s' "$2" > /etc/containers/containers.conf
printf '%s' "$3" > /etc/containers/registries.conf
sed -i '/^auth:/,/^health:/ { /^health:/! d }' /etc/docker/registry/config.yml  # its file of passwords is none
systemctl restart docker-registry
"""


# dockerd needs more than a node may. It gets what root may on this machine, as on a privileged node, among the files,
# addresses and processes of the node, whose control groups are read-only: it sees those of this test as its own root.
DOCKERD = """set -e
mount --make-rprivate /
mount -t tmpfs cgroup /sys/fs/cgroup
for name in $(awk '!/^#/ && $2 { print $1 }' /proc/cgroups); do
    mkdir /sys/fs/cgroup/$name
    mount -t cgroup -o $name cgroup /sys/fs/cgroup/$name
done
setsid dockerd --data-root /run/docker-data --default-cgroupns-mode private --bridge none --iptables=false \\
    --ip6tables=false --insecure-registry 0.0.0.0/0 >/var/log/dockerd.log 2>&1 </dev/null &
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
    rootfs.chmod(0o755)
    (
        rootfs / "etc/hosts"
    ).touch()  # ch-run binds the node's onto it: without it Intel MPI takes its own node for another
    return rootfs, archive


@dataclasses.dataclass
class InImages:
    """Two nodes, and jobs in an image there. `given`: what ranks need to find torch."""

    cluster: Cluster
    given: dict[str, Any]

    def set_up(self) -> None:
        """Start the nodes, run setup.yml, and bring them the image."""
        lab = self.cluster.lab
        lab.up()
        registries = REGISTRIES.format(address=lab.address(NODES[0]))
        for node in NODES:
            lab.root(node, "sh", "-c", PREPARE, "sh", STORAGE, ENGINE, registries)
            self.start_docker(node)
            lab.ssh(node, f"podman load --quiet --input /image.tar && podman tag $(podman images -q | head -1) {TAG}")
            lab.ssh(node, f"docker load --quiet --input /image.tar && docker tag $(docker images -q | head -1) {TAG}")
        package.install()
        (wheel,) = Path(package.HOME, "backends", "wheels").glob("*.whl")
        given = {"mpis": ["openmpi", "mpich", "intelmpi"], "backends": ["mpi"], "torch_backends_wheel": str(wheel)}
        done = self.cluster.play("setup.yml", "--skip-tags", "verify", **given)
        assert done.process.returncode == 0, done.log.read_text()

    def start_docker(self, node: str) -> None:
        """Start Docker's daemon among the files of a node; come back when it answers."""
        spaces = [f"--{name}" for name in ("mount", "uts", "ipc", "net", "pid")]
        words = ["nsenter", "--target", str(self.cluster.lab.init(node)[0]), *spaces]
        subprocess.run([*words, "unshare", "--mount", "--cgroup", "sh", "-c", DOCKERD], check=True)
        wait_until(lambda: self.cluster.lab.ssh(node, "docker", "version", check=False).returncode == 0, 60)

    def start(self, engine: str, script: Path, **given: Any) -> Job:
        """Start a job of two ranks on each node; come back while it runs."""
        usual = {"container_image": IMAGES[engine], "container_engine": engine, "lease": 6, "backend": "gloo"}
        return self.cluster.start(workload=str(script), **{**usual, **self.given, **given})

    def play(self, engine: str, script: Path, **given: Any) -> Job:
        """Run a job to its end."""
        job = self.start(engine, script, **given)
        job.process.wait(300)
        return job

    def processes(self, node: str, *texts: str) -> list[int]:
        """Return the processes of a node, by their pid on this machine, whose command line has all of these texts."""
        space = self.cluster.lab.init(node)[1]
        return [
            pid for pid in pids() if namespace(pid) == space and all(text in " ".join(command(pid)) for text in texts)
        ]

    def left(self, *texts: str) -> dict[str, list[str]]:
        """Return what is left on each node: processes whose command lines have a text, and records of the engines."""
        listing = "ps --all --format '{{.Names}}' --filter label=torchfleet.job"
        words = f"podman {listing}; docker {listing}"
        found = {
            node: [
                *(" ".join(command(pid)) for pid in self.processes(node, *texts)),
                *self.cluster.lab.ssh(node, words).stdout.split(),
            ]
            for node in NODES
        }
        return {node: rows for node, rows in found.items() if rows}

    def victims(self, job: Job, what: str, node: str = "n2") -> list[int]:
        """Return the processes of a running job that a fault ends."""
        own = self.processes(node, "torchfleet.py", "supervise")
        if what == "conmon":
            return self.processes(node, "conmon", "--api-version")
        if what == "daemon":
            return [pid for pid in self.processes(node, "prted") if "prted" in command(pid)[0]]
        if what == "controller":
            return [job.process.pid]
        guards = {parent(pid) for pid in job.alive(node)} & set(own)
        return own if what == "supervisor and guard" else sorted(guards)


def container_nodes(name: str, root: Path) -> InImages:
    """Return two nodes with Podman, Docker and Charliecloud that are not there yet."""
    rootfs, archive = export_image(root)
    packages = ["podman", "crun", "uidmap", "charliecloud-runtime", "docker.io", "libcap2-bin"]
    packages += ["charliecloud-builders", "docker-registry"]
    options: dict[str, Any] = {"nodes": 2, "nics": 2, "install": True, "image": "bare", "packages": packages}
    options["mounts"] = [f"{rootfs}:{ROOTFS}", f"{archive}:/image.tar"]
    return InImages(Cluster(Lab(name, root / "inventory", **options), root), {"python": PYTHON})
