"""Golden command lines of every launcher, each with what the real program made of it on two nodes.

A file per program and version lies in tests/transcripts. The unit tests hold the renderer against its command lines,
the lab tests the real program against what came of them: an option that a version does not know fails one of the two.
"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand, words_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import facts_of_a_node, launcher, plan_here, plan_on_two

DIRECTORY = Path(__file__).parent / "transcripts"
CORES = 2  # of a node
ALONE = "alone"  # no other machine
AS_ROOT = "root"
Cases = dict[str, dict[str, Any]]  # launch options by what they are for
TWO: Cases = {"two nodes": {}, "three ranks": {"np": 3}}
TURN: Cases = {"in turn": {"map_by": "node"}}
BOUND: Cases = {f"bound to a {kind}": {"bind_to": kind} for kind in ("core", "numa", "socket")}
MIXED: Cases = {"NVIDIA and AMD": {"mixed": True}}
PORTS: Cases = {"ports": {"ports": "24000-24999"}}
ROOT: Cases = {f"{ALONE}, as {AS_ROOT}": {}, f"two nodes, as {AS_ROOT}": {}}
MPI: Cases = {ALONE: {}, **TWO, **TURN, **BOUND, **PORTS, **MIXED}


@dataclasses.dataclass(frozen=True)
class Program:
    """A launcher, the version that speaks for its dialect, and the options that are put into it."""

    launcher: str
    path: str
    version: str
    cases: Cases


PROGRAMS = {
    "openmpi-4.1": Program("openmpi", "/usr/bin/mpirun", "4.1.4", {**MPI, **ROOT}),
    "openmpi-5.0": Program("openmpi", "/l/bin/mpirun", "5.0.11", {**MPI, **ROOT}),
    "mpich-5.0": Program("mpich", "/l/bin/mpiexec", "5.0.2", MPI),
    "intelmpi-2021.18": Program("intelmpi", "/l/bin/mpiexec.hydra", "2021.18.1", MPI),
    "torchrun-2.13": Program(
        "torchrun",
        "/v/bin/python",
        "2.13.0",
        {ALONE: {}, "two nodes": {}, "negotiating": {"rendezvous": "c10d"}},
    ),
    "srun-22.05": Program("srun", "/usr/bin/srun", "22.05.8", {**TWO, **TURN, **BOUND}),
    "sbatch-22.05": Program("sbatch", "/usr/bin/sbatch", "22.05.8", TWO),
}


@dataclasses.dataclass
class Transcript:
    """A command as text, and the lines that came of it."""

    rendered: str
    came: list[str]


def plan_of(program: Program, case: str) -> LaunchPlan:
    """Return the plan of a case."""
    facts = launcher(program.path, program.version)
    options = {"launcher": program.launcher, **program.cases[case]}
    vendors = ("nvidia", "amd") if options.pop("mixed", False) else ("", "")
    uid = 0 if case.endswith(AS_ROOT) else 1000
    if case.startswith(ALONE):
        return plan_here(facts_of_a_node(launcher=facts, uid=uid), **options)
    n1, n2 = (
        {"hostname": f"n{number}", "uid": uid, "cores": CORES, "accelerators": {vendor: 2} if vendor else {}}
        for number, vendor in enumerate(vendors, 1)
    )
    return plan_on_two(n1=n1, n2=n2, launcher_facts=facts, **options)


def command_of(program: Program, case: str) -> LaunchCommand:
    """Return the command of a case."""
    return render(plan_of(program, case))


def ranks_of(program: Program, case: str) -> list[str]:
    """Return what the ranks of a case tell, if each is where the plan has it."""
    plan = plan_of(program, case)
    hosts = {"localhost": "n1"}
    return [
        f"rank {place.rank} of {plan.world_size}, local {place.local_rank}, on {hosts.get(place.host, place.host)}"
        for place in plan.placement
    ]


def text_of(command: LaunchCommand) -> str:
    """Return a command as it stands in a transcript: a line per node that starts something, then what is read."""
    before = [f"{setting.name}={shlex.quote(setting.value)}" for setting in command.environment]
    lines = [f"{node}$ {' '.join([*before, shlex.join(words_of(on))])}" for node, on in command.on.items()]
    for name, text in command.files.items():
        lines += [f"[{name}]", *text.splitlines()]
    return "\n".join(lines)


def read(name: str) -> dict[str, Transcript]:
    """Return the transcripts of a program by case."""
    found = {}
    for part in (DIRECTORY / f"{name}.txt").read_text().split("\n\n"):
        title, *lines = part.strip().splitlines()
        came = [line[2:] for line in lines if line.startswith("> ")]
        found[title[len("# ") :]] = Transcript("\n".join(line for line in lines if not line.startswith("> ")), came)
    return found


def write(name: str, transcripts: dict[str, Transcript]) -> None:
    """Keep the transcripts of a program."""
    parts = [
        "\n".join([f"# {case}", transcript.rendered, *("> " + line for line in transcript.came)])
        for case, transcript in transcripts.items()
    ]
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{name}.txt").write_text("\n\n".join(parts) + "\n")
