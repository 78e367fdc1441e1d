"""Every golden command line, given to the real program on two nodes: it must still make of it what it did.

`pytest tests/lab/test_across_transcripts.py --record-transcripts` writes what comes of them now.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS
from tests import transcripts
from tests.lab import slurm
from tests.lab.cluster import SLURM, Cluster
from tests.lab.lab import OUT_OF_PATIENCE, PATIENCE
from tests.transcripts import AS_ROOT, PROGRAMS, Transcript
from tests.unit.nodes import facts_of_a_node

PLACE = "/tmp/transcripts"
HOME = "/home/fleet/.torchfleet"
WRAPPER = "/usr/bin/python3 -I -S /home/me/.torchfleet/lib/d/torchfleet.py rank /home/me/.torchfleet/jobs/job"
# Instead of a rank: tells where it came up. Instead of ssh: ssh, with the PATH that a guard would have set.
TELL = """#!/usr/bin/python3
import json, os
rank, size, local_rank = (os.environ[name] for name in {names})
line = f"rank {{rank}} of {{size}}, local {{local_rank}}, on {node}"
with open(f"{place}/out/{{rank}}.json", "w") as file:
    json.dump([line, sorted(os.sched_getaffinity(0))], file)
"""
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
shift
exec ssh -F {home}/ssh/config n2 "export PATH={path}; $*"
"""
CPUS = Path("/sys/devices/system")
KINDS = {
    "core": "cpu/cpu[0-9]*/topology/thread_siblings_list",
    "socket": "cpu/cpu[0-9]*/topology/package_cpus_list",
    "numa": "node/node[0-9]*/cpulist",
}


class Stage:
    """Two nodes on which the lines of one program are tried."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.lab, self.program = cluster.lab, PROGRAMS[name]
        kind = self.program.launcher
        own = "" if self.program.path.startswith("/usr") else f"{HOME}/{kind}/bin:"
        self.path = f"{PLACE}/job/bin:{own}/usr/bin:/bin"
        network = cluster.second_network()
        addresses = [self.lab.address(node, nic=1) for node in ("n1", "n2")]
        self.real = {
            WRAPPER: f"{PLACE}/job/bin/torchfleet-rank",
            facts_of_a_node()["home"] + "/jobs/job": f"{PLACE}/job",
            f"--mincpus={transcripts.CORES}": f"--mincpus={len(os.sched_getaffinity(0))}",
            "/l/bin/": f"{HOME}/{kind}/bin/",
            "/v/bin/": "/srv/torchfleet/pytorch/bin/",
            **dict(zip(("10.1.0.0/24", "10.1.0.11", "10.1.0.12", "eth0"), (network, *addresses, "eth1"), strict=True)),
        }
        for node in ("n1", "n2"):
            names = LAUNCHERS[kind].identity[:3]
            files = {"torchfleet-rank": TELL.format(names=names, node=node, place=PLACE)}
            files["torchfleet-agent"] = AGENT.format(home=HOME, path=self.path)
            lines = [f"printf %s {shlex.quote(text)} > {PLACE}/job/bin/{file}" for file, text in files.items()]
            begin = f"rm -rf {PLACE}; mkdir -p {PLACE}/job/bin {PLACE}/out; chmod 777 {PLACE}/*"
            self.lab.ssh(node, "\n".join([begin, *lines, f"chmod 755 {PLACE}/job/bin/*"]))

    def here(self, text: str) -> str:
        """Return a text of a plan as it has to be on these nodes."""
        for planned, real in self.real.items():
            text = text.replace(planned, real)
        return text

    def play(self, case: str) -> tuple[list[str], list[list[int]]]:
        """Return what the ranks of a command told, and the processors that each was given."""
        command = transcripts.command_of(self.program, case)
        files = [
            f"printf %s {shlex.quote(self.here(text))} > {PLACE}/job/{file}" for file, text in command.files.items()
        ]
        before = [f"{setting.name}={shlex.quote(setting.value)}" for setting in command.environment]
        lines = {}
        for node, options in command.on.items():
            start = " ".join([f"exec {PATIENCE} env", f"PATH={self.path}", *before])
            start += " " + self.here(shlex.join(transcripts.words_of(options)))
            lines["n1" if node == "localhost" else node] = "\n".join(["cd /", f"rm -rf {PLACE}/out/*", *files, start])
        self.lab.ssh("n2", f"rm -rf {PLACE}/out/*")
        others = [subprocess.Popen(self.lab.ssh_argv(node, line)) for node, line in lines.items() if node != "n1"]
        if case.endswith(AS_ROOT):
            self.lab.root("n1", "sh", "-c", lines["n1"], check=False)
        else:
            done = self.lab.ssh("n1", lines["n1"], check=False)
            may_stay = [OUT_OF_PATIENCE] * (self.program.launcher == "openmpi")
            assert done.returncode in (0, *may_stay), done.stdout + done.stderr
        assert [other.wait(60) for other in others] == [0] * len(others)
        told = [self.lab.ssh(node, f"cat {PLACE}/out/* 2>/dev/null; true").stdout for node in ("n1", "n2")]
        rows = sorted(json.loads("[" + "".join(told).replace("][", "],[") + "]"))
        return [line for line, _cpus in rows], [cpus for _line, cpus in rows]


def places(kind: str) -> list[set[int]]:
    """Return the sets of this machine's processors to which a rank may be bound."""
    ours = os.sched_getaffinity(0)
    if kind not in KINDS:
        return [ours]
    return [numbers(path.read_text()) & ours for path in CPUS.glob(KINDS[kind])] or [ours]


def numbers(text: str) -> set[int]:
    """Return the numbers of a list such as 0-3,8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _dash, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def allowed(case: str, cpus: Iterable[list[int]]) -> bool:
    """Whether every rank of a case is bound to what was asked for."""
    sets = places(case.removeprefix("bound to a "))
    return all(set(row) in sets for row in cpus)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_real_program_takes_every_golden_line(cluster: Cluster, request: pytest.FixtureRequest, name: str) -> None:
    if PROGRAMS[name].launcher in SLURM:
        request.getfixturevalue("slurm_nodes")
        slurm.wake(cluster.lab, ["n1", "n2"])
    stage = Stage(cluster, name)
    record = request.config.getoption("record_transcripts")
    known = {} if record else transcripts.read(name)
    now = {}
    for case in PROGRAMS[name].cases:
        came, cpus = stage.play(case)
        assert allowed(case, cpus), (case, cpus)
        now[case] = Transcript(transcripts.text_of(transcripts.command_of(PROGRAMS[name], case)), came)
    if record:
        transcripts.write(name, now)
    else:
        assert {case: row.came for case, row in now.items()} == {case: row.came for case, row in known.items()}
