# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the user asked for of a job on nodes that Slurm brings: options `slurm_...` of `torchfleet.cluster.launch`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import USABLE
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import (
    parse_bytes,
    parse_choice,
    parse_seconds,
    parse_whole,
    parse_words,
    plain_text,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request

from .nodes_request import NODES_MOST, NOTHING, size_of

ARGUMENTS = """-e '{"slurm_args": ["--nodelist=n1,n2"]}'"""
# What has no meaning for nodes of Slurm, and what to do instead.
NOT_FOR_SLURM: Mapping[str, str] = {
    "nodes": f"Slurm chooses the nodes: -e slurm_nodes=2; to name them: {ARGUMENTS}",
    "launcher_args": "give options of srun: -e slurm_args='--partition=gpu --time=2:00:00'",
    "map_by": "ranks fill one node after the other",
    "bind_to": "ranks have the cores that slurm_cpus asks for",
    "ports": "nodes of Slurm reach each other by any port",
    "rendezvous": "the plan numbers the nodes",
    "detach": "the job ends when nobody follows it: start train.yml in tmux or screen on a machine that stays",
    "hang_end": "nobody looks at ranks there while they run: -e job_timeout=3600 ends them",
    "queue": "Slurm has one, in which the job waits: -e slurm_start_timeout=3600",
    "queue_timeout": "give the seconds that the job may wait: -e slurm_start_timeout=3600",
    "exclusive": "-e slurm_args=--exclusive",
    "data": "read it from the site's shared file system",
    "data_keep": "read it from the site's shared file system",
    "collect": "write to the site's shared file system",
    "collect_every": "write to the site's shared file system",
    "max_restarts": "start train.yml again: with checkpoint_dir on a shared file system it goes on",
    "min_nodes": "start train.yml again: with checkpoint_dir on a shared file system it goes on",
    "requirements": "name an interpreter that has the packages: -e python=/path/to/venv/bin/python",
    "container_image": "name an interpreter on the nodes: -e python=/path/to/venv/bin/python",
    "container_engine": "name an interpreter on the nodes: -e python=/path/to/venv/bin/python",
    "container_args": "name an interpreter on the nodes: -e python=/path/to/venv/bin/python",
    "container_mounts": "name an interpreter on the nodes: -e python=/path/to/venv/bin/python",
    "program_index_url": "name an interpreter that has the packages: -e python=/path/to/venv/bin/python",
    "profile": "write the profile to the site's shared file system",
    "ship": "the folder of the script is sent to the nodes with the job",
}
# Options of srun that are the plan's, and what to type instead.
PLANNED: Mapping[str, str] = {
    **dict.fromkeys(("-N", "--nodes"), "-e slurm_nodes=2"),
    **dict.fromkeys(("-n", "--ntasks", "--ntasks-per-node"), "-e ranks_per_node=2"),
    **dict.fromkeys(("-c", "--cpus-per-task"), "-e slurm_cpus=8"),
    **dict.fromkeys(("-G", "--gpus", "--gpus-per-task"), "-e slurm_gpus=4"),
    **dict.fromkeys(("-M", "--clusters"), "log in to a head of that cluster: squeue and scancel ask the same one"),
    **dict.fromkeys(("-J", "--job-name"), "-e job_id=NAME"),
    **dict.fromkeys(("-D", "--chdir"), "ranks work in the folder of the script"),
    **dict.fromkeys(
        (
            *("-o", "--output", "-e", "--error", "-i", "--input", "-l", "--label", "-u", "--unbuffered", "--pty"),
            *("-K", "--kill-on-bad-exit", "-W", "--wait", "--comment", "-I", "--immediate", "-m", "--distribution"),
            *("--multi-prog", "--jobid", "--het-group", "--bcast", "-Q", "--quiet", "--export"),
        ),
        "leave it out: our code on the nodes needs it as it is",
    ),
}


@dataclass(frozen=True)
class SlurmRequest:
    """The options of a job on nodes of Slurm. `nodes`: how many, `ranks`: on each."""

    nodes: int
    ranks: int
    cpus: int | None = None  # of each node; None: one for each rank
    gpus: int = 0  # of each node
    vendor: str = "nvidia"  # of the GPUs
    start_timeout: float = 600.0
    output: int = 4 << 20  # bytes of output of each node that come home
    arguments: tuple[str, ...] = ()  # of srun
    python: str = "python3"  # on the nodes: a path, or a name on the PATH

    @property
    def cores(self) -> int:
        """Return the cores that each node is asked for."""
        return self.cpus or self.ranks

    @property
    def names_gpus(self) -> bool:
        """Whether the user's options of srun say which GPUs."""
        return any(map(gpus_of, self.arguments))


Parser = Callable[[str, object], object]
PARSERS: Mapping[str, tuple[str, Parser]] = {  # by option: the field of SlurmRequest, and what checks it
    "slurm_cpus": ("cpus", lambda name, value: parse_whole(name, value, 1, 100_000)),
    "slurm_gpus": ("gpus", lambda name, value: parse_whole(name, value, 0, 64)),
    "slurm_gpu_vendor": ("vendor", lambda name, value: parse_choice(name, value, USABLE)),
    "slurm_start_timeout": ("start_timeout", lambda name, value: parse_seconds(name, value, 3600)),
    "slurm_output": ("output", parse_bytes),
    "slurm_args": ("arguments", lambda name, value: checked_arguments(name, parse_words(name, value))),
}
OPTIONS = ("slurm_nodes", *PARSERS)


def checked_arguments(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return options of srun. InputError for what the plan decides, and for a program among them."""
    for word in words:
        key = word.partition("=")[0] if word.startswith("--") else word[:2]
        if key in PLANNED:
            raise InputError(name, word, f"the plan decides that: {PLANNED[key]}")
        if not word.startswith("-") or word in ("-", "--"):
            raise InputError(name, word, "write each option and its value as one word: --partition=gpu")
    return tuple(words)


def names_partitions(words: Sequence[str]) -> bool:
    """Whether options of srun name several partitions. Slurm says of the last one alone why a job waits."""
    return any("," in word for word in words if word.startswith(("-p", "--partition=")))


def gpus_of(word: str) -> int:
    """Return how many GPUs of each node an option of srun asks for, as `--gres=gpu:a100:4,nvme:1` does."""
    name, _, value = word.partition("=")
    found = [re.split("[:=]", element.removeprefix("gres/")) for element in value.split(",")]
    if name == "--gres":
        found = [parts for parts in found if parts[0] == "gpu"]
    elif name != "--gpus-per-node":
        return 0
    return sum(int(parts[-1][:6]) if parts[-1].isdecimal() else 1 for parts in found)


def refuse_other_gpus(asked: SlurmRequest) -> None:
    """InputError if the user's options of srun ask for another number of GPUs than slurm_gpus."""
    for word in asked.arguments:
        count = gpus_of(word)
        if count not in (0, asked.gpus):
            advice = f"it asks for {count} GPUs of each node, and slurm_gpus for {asked.gpus}: -e slurm_gpus={count}"
            raise InputError("slurm_args", word, advice)


def parse_slurm(given: Mapping[str, object], request: Request) -> SlurmRequest:
    """Return the checked request. InputError names an option that is wrong, or that nodes of Slurm do not have."""
    for name, instead in NOT_FOR_SLURM.items():
        if given.get(name) is not None and plain_text(given[name]) not in NOTHING:
            raise InputError(name, given[name], f"it is not for nodes of Slurm: {instead}")
    if given.get("launcher") not in (None, "torchrun"):
        own = "-e launcher=srun without target is for a cluster of your own"
        advice = f"target=slurm starts ranks with torchrun: leave it out; {own}"
        raise InputError("launcher", given["launcher"], advice)
    found = {part: parse(name, given[name]) for name, (part, parse) in PARSERS.items() if given.get(name) is not None}
    count = parse_whole("slurm_nodes", given.get("slurm_nodes"), 1, NODES_MOST)
    nodes, ranks = size_of(count, request, int(str(found.get("gpus", 0))), "nodes")
    if request.python.startswith("~"):
        raise InputError("python", request.python, "give its whole path on the nodes: -e python=/opt/venv/bin/python")
    made = SlurmRequest(nodes, ranks, python=request.python or "python3")
    asked = dataclasses.replace(made, **found)  # type: ignore[arg-type]
    refuse_other_gpus(asked)
    return asked
