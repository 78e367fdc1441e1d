# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The container engines: one row each, and which of them starts an image. Pure.

There is one container for each node and job. The launcher's daemon and the ranks run in it, the guard and the
supervisor outside. A container for each rank was measured as well: Open MPI is 3.6 times slower, because CMA is off
between user namespaces (ompi#6997), and MPICH does not start.
"""

from __future__ import annotations

import os
from typing import Callable, Mapping, NamedTuple, Sequence

from .engine_commands import (
    DEFAULT,
    MEASURED,
    TMP,
    Box,
    Mount,
    Part,
    apptainer_parts,
    charliecloud_parts,
    docker_parts,
    enroot_parts,
    is_below,
    podman_parts,
)

AUTO = "auto"
# What an image may be.
DIRECTORY, SIF, SQUASHFS, NAMED = "a directory", "a .sif file", "a .sqsh file", "a name"
FILES = {".sif": SIF, ".sqsh": SQUASHFS}  # by the ending of its path
USED = "engines"  # directory in torchfleet's home: a file for each engine that jobs used here, and HOME in images


class Engine(NamedTuple):
    """One engine."""

    title: str  # for people
    program: str
    forms: tuple[str, ...]  # of its images: of DIRECTORY, SIF, SQUASHFS and NAMED
    parts: Callable[[Box], list[Part]]  # the words before the program that runs in the image
    helpers: tuple[str, ...] = ()  # programs without which it starts nothing, and says something else
    works: tuple[str, ...] = ()  # status 0 if the engine works: where `exists` cannot tell that from a missing image
    exists: tuple[str, ...] = ()  # with the image: status 0 if it is there, 1 if not; empty: the path tells
    identify: tuple[str, ...] = ()  # with the image: prints its id
    listing: tuple[str, ...] = ()  # with HOME_LABEL=home: prints name and job of each container
    removal: tuple[str, ...] = ()  # with names: ends and removes containers; empty: they end with their processes
    fetch: str = ""  # how people bring an image to a node
    below_guard: bool = (
        True  # whether its containers' processes are below who started it; else the job's mark finds them
    )
    read_only: bool = True  # whether it can mount a path so that nobody writes to it
    user_namespaces: bool = True  # whether it needs them to start something for a user other than root


ENGINES: Mapping[str, Engine] = {
    "podman": Engine(
        title="Podman",
        program="podman",
        forms=(NAMED,),
        parts=podman_parts,
        exists=("podman", "image", "exists"),
        identify=("podman", "image", "inspect", "--format", "{{.Id}}"),
        listing=("podman", "ps", "--all", "--format", '{{.Names}} {{index .Labels "torchfleet.job"}}', "--filter"),
        removal=("podman", "rm", "--force", "--ignore", "--time", "0"),
        fetch="podman pull IMAGE, or podman load --input ARCHIVE",
    ),
    "docker": Engine(
        title="Docker",
        program="docker",
        forms=(NAMED,),
        parts=docker_parts,
        works=("docker", "version"),
        exists=("docker", "image", "inspect"),
        identify=("docker", "image", "inspect", "--format", "{{.Id}}"),
        listing=("docker", "ps", "--all", "--format", '{{.Names}} {{.Label "torchfleet.job"}}', "--filter"),
        removal=("docker", "rm", "--force"),
        fetch="docker pull IMAGE, or docker load --input ARCHIVE",
        below_guard=False,
        user_namespaces=False,
    ),
    "charliecloud": Engine(
        title="Charliecloud",
        program="ch-run",
        forms=(DIRECTORY,),
        parts=charliecloud_parts,
        fetch="ch-convert IMAGE DIRECTORY",
        read_only=False,
    ),
    "apptainer": Engine(
        title="Apptainer",
        program="apptainer",
        forms=(SIF, DIRECTORY),
        parts=apptainer_parts,
        fetch="apptainer pull FILE docker://IMAGE, or apptainer build --sandbox DIRECTORY FILE",
    ),
    "enroot": Engine(
        title="Enroot",
        program="enroot",
        forms=(SQUASHFS,),
        parts=enroot_parts,
        helpers=("unsquashfs",),  # without it: "Invalid argument" (enroot#150)
        fetch="enroot import --output FILE docker://IMAGE",
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
        *("--contain", "--containall", "-C", "--compat", "--fakeroot", "-f", "--no-home", "--pwd", "--cleanenv"),
        *("-p", "-n", "--hostname", "-h", "--cwd", "--sharens", "--fusemount", "--netns-path"),
        *("--rc", "--conf", "--root", "-r"),
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
    if not image.startswith("/"):
        return NAMED
    return FILES.get(os.path.splitext(image)[1], DIRECTORY)


def is_file(image: str) -> bool:
    """Whether an image is a file by its name."""
    return form_of(image) in FILES.values()


def fitting(engine: str, image: str, read_only: bool = False) -> list[str]:
    """Return the engines that may start an image, the first choice first.

    `engine` may be AUTO; `read_only`: whether something is mounted so that nobody writes to it.
    """
    return [
        name
        for name, row in ENGINES.items()
        if engine in (name, AUTO) and form_of(image) in row.forms and (row.read_only or not read_only)
    ]


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
