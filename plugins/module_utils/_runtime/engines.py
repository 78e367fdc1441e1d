# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The container engines: one row each, with the words that start an image and the reason of each word. Pure.

There is one container for each node and job. The launcher's daemon and the ranks run in it, the guard and the
supervisor outside. A container for each rank was measured as well: Open MPI is 3.6 times slower, because CMA is off
between user namespaces (ompi#6997), and MPICH does not start.
"""

from __future__ import annotations

import os
from typing import Callable, Mapping, NamedTuple, Sequence

AUTO = "auto"
JOB_LABEL, HOME_LABEL = "torchfleet.job", "torchfleet.home"
DIRECTORY, NAMED = "a directory", "a name"  # what an image may be
MEASURED, DEFAULT, USER = "measured", "default", "user"  # where words come from
TMP = "/tmp"
KEEPER = "conmon.pid"  # in a job's directory
USED = "engines"  # directory in torchfleet's home: a file for each engine that jobs used here, and HOME in images
# Device files that jobs need, by what they are. What a node has of them is given to the container.
DEVICES: Mapping[str, str] = {
    "nvidia": "/dev/nvidiactl",
    "amd": "/dev/kfd",
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
    limits: Mapping[str, Sequence[int]] = {}  # soft and hard, by keys of LIMITS
    args: Sequence[str] = ()
    job_id: str = ""  # empty: no job, the node is only looked at
    user_home: str = ""  # the user's home directory on the node
    has_environment: bool = False  # the directory has Charliecloud's file of variables


class Engine(NamedTuple):
    """One engine."""

    title: str  # for people
    program: str
    form: str  # of its images: DIRECTORY or NAMED
    parts: Callable[[Box], list[Part]]  # the words before the program that runs in the image
    exists: tuple[str, ...] = ()  # with the image: status 0 if it is there, 1 if not; empty: the directory tells
    identify: tuple[str, ...] = ()  # with the image: prints its id
    listing: tuple[str, ...] = ()  # with HOME_LABEL=home: prints name and job of each container
    removal: tuple[str, ...] = ()  # with names: ends and removes containers; empty: they end with their processes
    fetch: str = ""  # how people bring an image to a node
    read_only: bool = True  # whether it can mount a path so that nobody writes to it


def podman_parts(box: Box) -> list[Part]:
    """Return the words for Podman, rootless or as root."""
    label = [f"{HOME_LABEL}={box.home}", *([f"{JOB_LABEL}={box.job_id}"] if box.job_id else [])]
    parts = [
        Part(("podman", "run", "--rm"), "one container for this node's part of the job"),
        Part(("--name", box.name), "by this name it is ended"),
        Part(tuple(word for text in label for word in ("--label", text)), "by these clean.yml finds it"),
        Part(("--pull", "never"), "the image that was looked at, by its id: no other one"),
        Part(("--entrypoint", ""), "the image's own entry point would start something else"),
        Part(("--log-driver", "none"), "output lies in the job's files, not in Podman's as well"),
        Part(("--network", "host"), "ranks reach the addresses of the nodes"),
        Part(("--pid", "host"), "the guard and clean.yml know ranks by the pids that they have outside"),
        Part(("--ipc", "host"), "/dev/shm is the node's: NCCL and MPI need more than 64 MB"),
        Part(("--uts", "host"), "MPI tells nodes apart by their host names"),
        Part(("--security-opt", "label=disable"), "SELinux would hide what is mounted"),
        *(
            Part(("--ulimit", f"{name}={soft}:{hard}"), LIMITS[name], MEASURED)
            for name, (soft, hard) in sorted(box.limits.items())
        ),
    ]
    if box.job_id:
        keeper = keeper_file(box.home, box.job_id)
        parts.append(Part(("--conmon-pidfile", keeper), "the guard ends the job if Podman's monitor is gone"))
    if box.uid:
        parts.append(Part(("--userns", "keep-id"), "you are the same user inside: your files stay yours"))
    return [
        *parts,
        *podman_devices(box.devices),
        *(
            Part(("--volume", f"{mount.here}:{mount.there}{':ro' * mount.read_only}"), mount.reason, mount.source)
            for mount in box.mounts
        ),
        *user_words(box),
        Part((box.image,), "the image", MEASURED if box.job_id else USER),
    ]


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


def charliecloud_parts(box: Box) -> list[Part]:
    """Return the words for Charliecloud: network, pids, /dev, /dev/shm and limits are the node's there anyway."""
    parts = [
        Part(("ch-run",), "one container for this node's part of the job"),
        Part(("--unset-env", "PYTHON*"), "paths of the node's Python are none of the image"),
        Part(("--unset-env", "LD_*"), "paths of the node's libraries are none of the image"),
    ]
    if box.has_environment:
        parts.append(Part(("--set-env",), "the image's own variables", MEASURED))
    at_home = in_own_home(box)
    if at_home:
        reason = "your home, which has torchfleet's: a directory cannot be made in an image that is read only"
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


ENGINES: Mapping[str, Engine] = {
    "podman": Engine(
        title="Podman",
        program="podman",
        form=NAMED,
        parts=podman_parts,
        exists=("podman", "image", "exists"),
        identify=("podman", "image", "inspect", "--format", "{{.Id}}"),
        listing=("podman", "ps", "--all", "--format", '{{.Names}} {{index .Labels "torchfleet.job"}}', "--filter"),
        removal=("podman", "rm", "--force", "--ignore", "--time", "0"),
        fetch="podman pull IMAGE, or podman load --input ARCHIVE",
    ),
    "charliecloud": Engine(
        title="Charliecloud",
        program="ch-run",
        form=DIRECTORY,
        parts=charliecloud_parts,
        fetch="ch-convert IMAGE DIRECTORY",
        read_only=False,
    ),
}
CHOICES = (AUTO, *ENGINES)
# Options that containers of jobs have already, or that would take them away from the guard.
OWNED = frozenset(
    {
        *("--name", "--rm", "--pull", "--entrypoint", "--log-driver", "--network", "--net", "--pid", "--ipc", "--uts"),
        *(
            "--userns",
            "--ulimit",
            "-d",
            "--detach",
            "--restart",
            "-t",
            "--tty",
            "-i",
            "--interactive",
            "-a",
            "--attach",
        ),
        *("--conmon-pidfile", "--cgroups", "--user", "-u", "--replace", "--home", "--cd", "-c", "--join", "-j"),
        *("--label", "-l", "--label-file", "--pod", "--pod-id-file", "--rootfs", "--timeout", "--sig-proxy"),
        *("--join-ct", "--join-pid", "--join-tag", "--private-tmp"),
    }
)
SWITCHES = "Pdiqtvw"  # options of one letter that take no value in an engine: more may stand behind them, as in -Pd


def is_owned(word: str) -> bool:
    """Whether a word is an option of OWNED as engines read it: ch-run takes abbreviations, Podman several letters."""
    name = word.partition("=")[0]
    if name.startswith("--"):
        return any(owned.startswith(name) for owned in OWNED)
    for letter in name[1:] if name.startswith("-") else "":
        if f"-{letter}" in OWNED or letter not in SWITCHES:
            return f"-{letter}" in OWNED
    return False


def form_of(image: str) -> str:
    """Return what an image is by its name."""
    return DIRECTORY if image.startswith("/") else NAMED


def fitting(engine: str, image: str) -> list[str]:
    """Return the engines that may start an image, the first choice first; `engine` may be AUTO."""
    return [name for name, row in ENGINES.items() if engine in (name, AUTO) and row.form == form_of(image)]


def words_of(parts: Sequence[Part]) -> list[str]:
    """Return the words of a command line in order."""
    return [word for part in parts for word in part.words]


def without_doubles(mounts: Sequence[Mount]) -> list[Mount]:
    """Return the mounts without those that lie in another one at the same place, and without the root of all.

    One that may not be written to is not like one that may be.
    """
    kept: list[Mount] = []
    for mount in sorted(mounts, key=lambda each: (each.there.count("/"), each.there)):
        inside = [
            other
            for other in kept
            if other.here == other.there
            and mount.here == mount.there
            and is_below(mount.here, other.here)
            and mount.read_only == other.read_only
        ]
        if mount.there != "/" and not inside and mount.there not in [other.there for other in kept]:
            kept.append(mount)
    return kept


def own_mounts(home: str, tmpdir: str) -> list[Mount]:
    """Return what every container sees of its node."""
    wanted = [
        Mount(home, home, reason="torchfleet's home: the job's files, our code, the MPI", source=DEFAULT),
        Mount(TMP, TMP, reason="the launcher's sockets, in the node's /tmp", source=DEFAULT),
    ]
    if tmpdir and os.path.isabs(tmpdir):
        wanted.append(Mount(tmpdir, tmpdir, reason="TMPDIR of the node", source=MEASURED))
    return wanted
