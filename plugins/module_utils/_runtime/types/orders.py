# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The order of a job: what its nodes are told. Types of JSON, in messages and in order.json.

The controller makes it once (plugin_utils/_launch/order.py), and nobody changes it after that. A head that starts a job
again makes the order of the next attempt of it (restarting.py), and a node that of its next round (round_files.py).
What a node adds when it stages the job is a Staging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, TypedDict

if TYPE_CHECKING:
    from .restarts import Rule


class Place(TypedDict):
    """Where a rank runs."""

    rank: int
    local_rank: int
    host: str


class UsedLauncher(TypedDict):
    name: str
    version: str
    path: str  # on the head


class JobOrder(TypedDict):
    """The part of an order that is the same on all nodes of a job. Times are in seconds."""

    job_id: str
    controller: str  # who started the job (plugin_utils/_controller/identity.py)
    owner: str  # the same for people, as they say themselves: user@controller
    run_dir: str  # on the controller
    head: str  # its host
    world_size: int
    placement: list[Place]  # by rank
    backend: str
    launcher: UsedLauncher
    launcher_environment: dict[str, str]
    shown_command: list[str]
    queue: list[list[str]]  # of a batch system: a command that lists the job's numbers and states, one that cancels
    master_addr: str
    master_port: int
    job_timeout: float | None
    notice: float | None  # SIGUSR1 comes this long before the end of job_timeout; None: never
    restarts: int  # how often this job was started before
    rounds: Rule | None  # by which torchrun's agents start its ranks again while it runs; None: they do not
    grace: float | None  # between SIGTERM and SIGKILL; None: by what a process does with SIGTERM
    lease: float
    exclusive: bool
    show_ranks: list[int]
    hang_look: float  # without a sign of life, until the job is looked at (hang_end.py); 0: never
    hang_end: bool  # it is ended if two looks found the same hang
    sample: bool  # what its ranks take of their nodes is read while they run (sampler.py)
    collect: list[str]  # globs of what ranks write that comes home (artifacts.py)


class LocalNames(TypedDict):
    """What launchers take to have the same name on every node, and has not (remote_shell.py)."""

    launcher_prefix: str  # the directory in which the launcher is installed
    nic: str  # empty: none was chosen


class Container(TypedDict):
    """What a node's part of a job runs in (engines.py)."""

    engine: str
    name: str
    below_guard: bool  # whether its processes are below the guard: a daemon of the node starts Docker's
    before: list[str]  # the words before the command of a launcher, our own step into the image among them


class NodeOrder(LocalNames):
    """The part of an order that is one node's own."""

    host: str
    ranks: list[int]  # that run on this node
    address: str
    home: str
    command: list[str]  # that the guard starts: the launcher, or its agent; empty where something else starts it
    launcher_search: list[str]  # directories
    argv: list[str]  # of the program of each rank
    cwd: str
    tmpdir: str
    path_first: str  # directory of the ranks' Python; empty: none
    environment: dict[str, str]
    checkpoint_dir: str  # is made if it is not there; empty: none
    data: str  # the name of the data set of ours that the ranks read (data_store.py); empty: none
    secret_names: list[str]  # of variables whose values are in no file (secrets.py)
    known_jobs: list[str]  # that ran on this node when the job was planned
    programs: dict[str, list[str]]  # that launchers start by name: their command lines
    container: Container | None  # None: all runs on the node itself


class Order(JobOrder, NodeOrder):
    """order.json: all that one node is told of a job."""


class Route(TypedDict):
    """How the head reaches another node: a host of the mesh's ssh configuration, and where our code is there."""

    host: str
    home: str
    interpreter: str


class JobRoute(Route, LocalNames):
    """One of routes.json, which the head alone has: for a launcher's daemons, and for later questions of a job."""

    address: str
    launcher_search: list[str]


class RunOrder(TypedDict):
    """All that the head needs to run a job by itself."""

    job: JobOrder
    nodes: dict[str, NodeOrder]  # by host, the head's among them
    routes: list[JobRoute]  # to the other nodes
    secrets: dict[str, dict[str, str]]  # by host: variables that are in no file
    files: dict[str, str]  # for the job directory on the head: text by name


class Staging(TypedDict):
    """staging.json: what a node itself adds when it stages a job."""

    started: float
    private_tmp: str  # directory of the launcher, 0700


def ranks_by_host(placement: Iterable[Place]) -> dict[str, list[int]]:
    """Return the ranks of each node: job_directory.ranks_on() looks at all of them for one."""
    found: dict[str, list[int]] = {}
    for place in placement:
        found.setdefault(place["host"], []).append(place["rank"])
    return found
