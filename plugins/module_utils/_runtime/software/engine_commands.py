# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The words with which each container engine starts an image, and the reason of each word. Pure."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

from .gpu_vendors import VENDORS

JOB_LABEL, HOME_LABEL = "torchfleet.job", "torchfleet.home"
MEASURED, DEFAULT, USER = "measured", "default", "user"  # where words come from
TMP = "/tmp"
KEEPER = "conmon.pid"  # in a job's directory
RC_SCRIPT = "enroot-rc.sh"  # in our code on a node: what enroot starts instead of an image's own entry point
RC_SOURCE = b'exec "$@"\n'
# Device files that jobs need, by what they are. What a node has of them is given to the container.
DEVICES: Mapping[str, str] = {
    **{name: row.device_file for name, row in VENDORS.items() if row.device_file},
    "render": "/dev/dri",
    "rdma": "/dev/infiniband",
}


# The node's own limits are given to the container: --ulimit host leaves a million files to root, who may not have them
# (podman 4.3.1), and unlimited memlock is refused where the node's is lower.
LIMITS: Mapping[str, str] = {
    "memlock": "as on the node: RDMA locks memory",
    "nofile": "as on the node: open files",
    "nproc": "as on the node: processes",
}


# Options of a mount as pyxis gives them to Enroot (add_mount() of its args.c): its place is made if it is missing.
FSTAB = "x-create=auto,rbind"


class Part(NamedTuple):
    """Words of an engine's command line that belong together, why they are there and where that comes from."""

    words: tuple[str, ...]
    reason: str
    source: str = DEFAULT


class Mount(NamedTuple):
    """A path of the node that the container sees."""

    here: str
    there: str
    read_only: bool = False
    reason: str = "container_mounts"
    source: str = USER


class Box(NamedTuple):
    """What a container is started for."""

    image: str  # an id, or a path
    name: str
    home: str  # torchfleet's, on the node
    mounts: Sequence[Mount]
    devices: Sequence[str]  # keys of DEVICES
    uid: int
    gid: int
    groups: Sequence[int]  # the user's other groups
    limits: Mapping[str, Sequence[int]] = {}  # soft and hard, by keys of LIMITS
    args: Sequence[str] = ()
    job_id: str = ""  # empty: no job, the node is only looked at
    user_home: str = ""  # the user's home directory on the node
    has_environment: bool = False  # the directory has Charliecloud's file of variables
    code: str = ""  # directory of our code on the node


def named_parts(program: str, box: Box) -> list[Part]:
    """Return the words that Podman and Docker have alike."""
    label = [f"{HOME_LABEL}={box.home}", *([f"{JOB_LABEL}={box.job_id}"] if box.job_id else [])]
    return [
        Part((program, "run", "--rm"), "one container for this node's part of the job"),
        Part(("--name", box.name), "the job ends the container by this name"),
        Part(tuple(word for text in label for word in ("--label", text)), "clean.yml finds the container by these"),
        Part(("--pull", "never"), "no other image than the one that was checked, named by its id"),
        Part(("--entrypoint", ""), "the image's own entry point would start something else"),
        Part(("--log-driver", "none"), "output lies in the job's files, not in the engine's as well"),
        Part(("--network", "host"), "ranks reach the addresses of the nodes"),
        Part(("--pid", "host"), "the guard and clean.yml know ranks by the pids that they have outside"),
        Part(("--ipc", "host"), "/dev/shm is the node's: NCCL and MPI need more than 64 MB"),
        Part(("--uts", "host"), "MPI tells nodes apart by their host names"),
    ]


def limit_words(box: Box) -> list[Part]:
    return [
        Part(("--ulimit", f"{name}={soft}:{hard}"), LIMITS[name], MEASURED)
        for name, (soft, hard) in sorted(box.limits.items())
    ]


def mount_words(option: str, mounts: Sequence[Mount]) -> list[Part]:
    """Return an option for each mount."""
    return [
        Part((option, f"{mount.here}:{mount.there}{':ro' * mount.read_only}"), mount.reason, mount.source)
        for mount in mounts
    ]


def podman_parts(box: Box) -> list[Part]:
    """Return the words for Podman, rootless or as root."""
    parts = [
        *named_parts("podman", box),
        Part(("--security-opt", "label=disable"), "SELinux would hide what is mounted"),
        *limit_words(box),
    ]
    if box.job_id:
        keeper = keeper_file(box.home, box.job_id)
        parts.append(Part(("--conmon-pidfile", keeper), "the guard ends the job if Podman's monitor is gone"))
    if box.uid:
        parts.append(Part(("--userns", "keep-id"), "you are the same user inside: your files stay yours"))
    image = Part((box.image,), "the image", MEASURED if box.job_id else USER)
    return [*parts, *podman_devices(box.devices), *mount_words("--volume", box.mounts), *user_words(box), image]


def keeper_file(home: str, job_id: str) -> str:
    """Return the file with the pid of the engine's monitor, if it has one."""
    return f"{home}/jobs/{job_id}/{KEEPER}"


def podman_devices(devices: Sequence[str]) -> list[Part]:
    """Return the words for the devices of a node (cdi.md of podman-run, ROCm's and the kernel's documentation)."""
    parts = []
    if "nvidia" in devices:
        parts.append(
            Part(("--device", "nvidia.com/gpu=all"), "all NVIDIA GPUs, by CDI: nvidia-ctk cdi generate", MEASURED)
        )
    if "amd" in devices:
        parts.append(Part(("--device", DEVICES["amd"]), "AMD's GPUs compute through it", MEASURED))
    if "render" in devices and "nvidia" not in devices:
        parts.append(Part(("--device", DEVICES["render"]), "AMD's and Intel's GPUs", MEASURED))
        parts.append(Part(("--group-add", "keep-groups"), "your groups render and video open the GPUs", MEASURED))
    if "rdma" in devices:
        parts.append(Part(("--device", DEVICES["rdma"]), "RDMA devices", MEASURED))
    return parts


def docker_parts(box: Box) -> list[Part]:
    """Return the words for Docker, whose daemon starts the container as root, outside of the guard's processes."""
    parts = [
        *named_parts("docker", box),
        Part(("--user", f"{box.uid}:{box.gid}"), "you are the same user inside: your files stay yours", MEASURED),
        *(
            Part(("--group-add", str(group)), "your groups open the files that they open outside", MEASURED)
            for group in box.groups
        ),
        Part(("--env", "USER", "--env", "HOME"), "Python asks for them: your uid has no name in the image"),
        # Docker's default seccomp profile refuses both (docker 20.10), and gives what these two are for with them.
        Part(("--cap-add", "SYS_PTRACE"), "MPI copies between processes of a node by process_vm_readv (CMA)"),
        Part(("--cap-add", "SYS_NICE"), "libraries place memory near their cores by set_mempolicy"),
        Part(("--security-opt", "label=disable"), "SELinux would hide what is mounted"),
        *limit_words(box),
    ]
    image = Part((box.image,), "the image", MEASURED if box.job_id else USER)
    return [*parts, *docker_devices(box.devices), *mount_words("--volume", box.mounts), *user_words(box), image]


def docker_devices(devices: Sequence[str]) -> list[Part]:
    """Return the words for the devices of a node (docker-run, "Access an NVIDIA GPU"; ROCm's documentation)."""
    parts = []
    if "nvidia" in devices:
        parts.append(Part(("--gpus", "all"), "all NVIDIA GPUs: needs the NVIDIA Container Toolkit", MEASURED))
    if "amd" in devices:
        parts.append(Part(("--device", DEVICES["amd"]), "AMD's GPUs compute through it", MEASURED))
    if "render" in devices and "nvidia" not in devices:
        parts.append(Part(("--device", DEVICES["render"]), "AMD's and Intel's GPUs", MEASURED))
    if "rdma" in devices:
        parts.append(Part(("--device", DEVICES["rdma"]), "RDMA devices", MEASURED))
    return parts


def apptainer_parts(box: Box) -> list[Part]:
    """Return the words for Apptainer (apptainer-exec): network, pids, IPC, /dev and limits are the node's anyway."""
    parts = [
        Part(("apptainer", "exec"), "one container for this node's part of the job"),
        Part(("--cleanenv",), "the image does not get the node's variables; the job's come from its order"),
        Part(("--no-home",), "your home has packages and settings of the node; container_mounts gives it"),
        Part(("--pwd", "/"), "our program in the image changes into the job's directory"),
    ]
    if "nvidia" in box.devices:
        parts.append(Part(("--nv",), "NVIDIA's GPUs, and the libraries of their driver", MEASURED))
    if "amd" in box.devices:
        parts.append(Part(("--rocm",), "AMD's GPUs, and ROCm's libraries", MEASURED))
    return [*parts, *mount_words("--bind", box.mounts), *user_words(box), Part((box.image,), "the image", USER)]


def enroot_parts(box: Box) -> list[Part]:
    """Return the words for Enroot (its doc/cmd/start.md, doc/standard-hooks.md and src/runtime.sh).

    Network, pids, IPC, limits, /dev and /dev/shm are the node's there anyway, and no variable of the node is passed on.
    """
    parts = [
        Part(("enroot", "start"), "one container for this node's part of the job"),
        Part(("--rc", f"{box.code}/{RC_SCRIPT}"), "the image's own entry point would start something else"),
    ]
    if "nvidia" in box.devices:
        gpus = ("--env", "NVIDIA_VISIBLE_DEVICES=all", "--env", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
        parts.append(Part(gpus, "all NVIDIA GPUs: by its hook 98-nvidia.sh and libnvidia-container", MEASURED))
    mounts = [
        Part(
            ("--mount", f"{mount.here}:{mount.there}:none:{FSTAB}{',ro' * mount.read_only}"), mount.reason, mount.source
        )
        for mount in box.mounts
    ]
    return [*parts, *mounts, *user_words(box), Part((box.image,), "the image", USER)]


def charliecloud_parts(box: Box) -> list[Part]:
    """Return the words for Charliecloud: network, pids, /dev, /dev/shm and limits are the node's there anyway."""
    parts = [
        Part(("ch-run",), "one container for this node's part of the job"),
        Part(("--unset-env", "PYTHON*"), "these hold paths of the node's Python, which the image does not have"),
        Part(("--unset-env", "LD_*"), "these hold paths of the node's libraries, which the image does not have"),
    ]
    if box.has_environment:
        parts.append(Part(("--set-env",), "the image's own variables", MEASURED))
    at_home = in_own_home(box)
    if at_home:
        reason = "mounts your home, and torchfleet's below it: a read-only image has no place for another mount"
        parts.append(Part(("--home",), reason, MEASURED))
    mounts = [mount for mount in box.mounts if mount.there != TMP]  # ch-run has the node's /tmp
    if at_home:
        mounts = [mount for mount in mounts if not (mount.here == mount.there and is_below(mount.here, box.user_home))]
    return [
        *parts,
        *(Part(("--bind", f"{mount.here}:{mount.there}"), mount.reason, mount.source) for mount in mounts),
        *user_words(box),
        Part((box.image, "--"), "the image", USER),
    ]


def in_own_home(box: Box) -> bool:
    """Whether torchfleet's home is below the directory that ch-run --home binds: /home/$USER."""
    return box.user_home.startswith("/home/") and is_below(box.home, box.user_home)


def is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def user_words(box: Box) -> list[Part]:
    return [Part(tuple(box.args), "container_args", USER)] if box.args else []


def words_of(parts: Sequence[Part]) -> list[str]:
    """Return the words of a command line in order."""
    return [word for part in parts for word in part.words]
