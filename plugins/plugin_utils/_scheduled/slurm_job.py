# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job on nodes of Slurm from its plan to its last trace in the queue: started by one srun, followed, ended."""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets as random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.bootstrap import HEADER, pack, parcel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import RunOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import EndReason
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Result
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import FIRST, PYTHON, REFUSED
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import MARK
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.slurm_entry import FORM, HOME
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import StopWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand, Option, words_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import command_table, explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job, LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import digest
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import View
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import Folder
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render

from .entry_files import entry_files
from .following import GRACE_SECONDS
from .nodes_plan import Asked, plan_nodes, with_reasons
from .outcome import keep, result_of
from .slurm import COMMENT, SECONDS, Row, Slurm, SlurmError
from .slurm_following import SlurmFollowing
from .slurm_request import SlurmRequest, names_partitions, parse_slurm

AGAIN = "ansible-playbook clean.yml -e target=slurm -e job_id="
SUBMIT = Path(__file__).parents[2] / "module_utils" / "_scheduled" / "submit.py"
HOME_FILE = "home"  # has the name of our directory on a node: on a command line others would see it, and make it first
MOST_BYTES = 16 << 20  # of our code, the script's folder and the order: srun sends it to the nodes in pieces of 1 KiB
NAME_SECONDS = 20  # for the name of another node to be resolved
PORTS = range(20_000, 30_000)  # below those that Linux gives to connections (ip_local_port_range)
LEFT_SECONDS = 90.0  # for Slurm to take a job off its nodes: KillWait and some more
LOOK_SECONDS, LOOK_MOST = 0.5, 8.0  # until the first look whether it is gone, and between two, which double
OWN_PORT = "a random one: other jobs may run on that node"
REASONS = {
    "--master-port": OWN_PORT,
    "MASTER_PORT": OWN_PORT,
    "--local-addr": "the first of the nodes that Slurm chooses",
    "OMP_NUM_THREADS": "slurm_cpus / ranks; one for each without",
    PYTHON: "torchrun of the torch on the nodes",
}
# The first thing that runs on a node: takes our files from the input, lays them into a directory of this job's own, and
# becomes the first program of pods. What comes after the files is the controller's sign of life. Any Python reads it.
CODE = """
import json, os, sys
home, version = "/tmp", sys.argv[1]
def refuse(text):
    frame = json.dumps({"kind": "ending", "reason": NOT_STARTED, "detail": text[:500]})
    os.write(1, ("%s 0 : %s\\n" % (MARK, frame)).encode())
    sys.exit(REFUSED)
if sys.version_info < (3, 8):
    found = tuple(sys.version_info[:2])
    refuse("Python %d.%d is there, and 3.8 or newer is needed: -e python=/path/to/python3" % found)
import io, zipfile
def take(size):
    data = bytearray()
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit(REFUSED)
    return bytes(data)
os.umask(0o077)
try:
    packed = zipfile.ZipFile(io.BytesIO(take(int(take(HEADER)))))
    home = packed.read(HOME_FILE).decode()
    os.mkdir(home)
    packed.extractall(home)
except (OSError, ValueError, zipfile.error) as error:
    refuse("our files cannot be laid into %s: %s" % (home, error))
source = os.path.join(home, "files")
entry = os.path.join(source, "entry.py")
os.execv(sys.executable, [sys.executable, "-I", "-S", entry, source, home, version, FORM])
"""


@dataclass(frozen=True)
class SlurmJob:
    """All that is decided about a job on nodes of Slurm."""

    plan: LaunchPlan
    command: LaunchCommand
    order: RunOrder
    asked: SlurmRequest
    slurm: Slurm
    interpreter: str  # on the head
    options: tuple[Option, ...]  # of srun
    parcel: bytes

    @property
    def name(self) -> str:
        """Return its name in Slurm: people give job ids such as `train`, which other jobs may have as a name."""
        return name_of(self.plan)

    @property
    def lines(self) -> list[str]:
        """Return what `train.yml --check` prints."""
        title = f"command on {self.slurm.name}, which starts our entry once on each node"
        return [*explain(self.plan, self.command), "", title, *command_table(self.options)]

    @property
    def again(self) -> str:
        """Return what ends the job when its controller is gone."""
        return AGAIN + self.plan.job_id

    @property
    def said(self) -> list[str]:
        """Return what people are told when the job starts."""
        return list(filter(None, [self.plan.shipped]))

    def written(self) -> list[str]:
        """Return nothing: such a job is followed."""
        return []

    def start(self) -> Callable[[View, StopWatch], tuple[Result, list[str]]]:
        """Return what runs the job. SlurmError if the head has no Slurm."""
        self.slurm.jobs(f"--name={self.name}")
        return self.run

    @property
    def argv(self) -> list[str]:
        """Return what starts srun on the head, with our program above it."""
        patience = (self.plan.grace or 0) + 2 * GRACE_SECONDS
        cancel = json.dumps([self.slurm.program("scancel"), "--quiet", f"--name={self.name}"])
        program = python_words(self.interpreter, SUBMIT.read_text(), too_old(self.slurm.name))
        return self.slurm.words([*program, str(self.plan.lease), str(patience), cancel, *words_of(self.options)])

    def run(self, view: View, stop: StopWatch) -> tuple[Result, list[str]]:
        """Run the job; return its result and lines on what is left in Slurm. OSError.

        Nothing is left there whatever happens, unless Slurm does not answer.
        """
        order, run_dir, wait = self.order["job"], Path(self.plan.run_dir), self.asked.start_timeout
        following = SlurmFollowing(
            self.slurm, self.name, self.argv, self.parcel, order, run_dir, wait, view.show, view.say
        )
        following.has_choice = names_partitions(self.asked.arguments)
        try:
            following.run(stop.reason, stop.insisted)
        finally:
            view.close()
            left = take_away(self.slurm, self.name)
        outcome = result_of(order, following.reports, following.end, following.started)
        following.keep_said(run_dir)
        keep(run_dir, outcome, following.reports)
        return outcome, left


def job_on_slurm(
    request: Request,
    asked: SlurmRequest,
    job: Job,
    folder: Folder | None,
    who: str,
    slurm: Slurm,
    interpreter: str = "python3",
) -> SlurmJob:
    """Return a job on nodes of Slurm. InputError for what cannot work."""
    nodes = nodes_of(asked, random.token_hex(8), random.choice(PORTS))
    plan = plan_nodes(request, nodes, job)
    command = with_reasons(render(plan), nodes)
    order = order_for(plan, command, who)
    files = entry_files(order, folder, asked.output, NAME_SECONDS, MOST_BYTES, "a job on nodes of Slurm", "")
    secret = next(iter(order["secrets"].values()))  # the same on all nodes
    options = srun_options(plan, asked, slurm)
    return SlurmJob(plan, command, order, asked, slurm, interpreter, options, parcel_of(files, secret, plan.head.home))


def on_slurm(
    given: Mapping[str, object], request: Request, head: Node, ssh: Sequence[str], who: str
) -> Callable[[Job, Folder | None], SlurmJob]:
    """Return what makes the job that was asked for. InputError.

    `given`: the options; `ssh`: words that run a command on the head, if it is elsewhere; `who` starts the job.
    """
    asked = parse_slurm(given, request)
    # Nothing is written to the job while squeue is asked: that must not take the lease.
    slurm = Slurm(head.name, ssh, head.launcher_paths["srun"], min(SECONDS, request.lease / 2))

    def make(job: Job, folder: Folder | None) -> SlurmJob:
        named = dataclasses.replace(request, job_id=job.job_id)
        return job_on_slurm(named, asked, job, folder, who, slurm, head.interpreter)

    return make


def nodes_of(asked: SlurmRequest, token: str, port: int) -> Asked:
    """Return the nodes as the plan needs them. `token`: of a directory on each that nobody else can know before."""
    names = [f"node{number}" for number in range(asked.nodes)]
    return Asked(
        hosts=tuple((name, name if number else FIRST) for number, name in enumerate(names)),
        ranks=asked.ranks,
        cores=asked.cores,
        home=f"/tmp/{HOME}{token}",
        port=port,
        reasons=REASONS,
        gpus=asked.gpus,
        vendor=asked.vendor,
        unit="node",
    )


def parcel_of(files: Mapping[str, bytes], secret: Mapping[str, str], home: str) -> bytes:
    """Return what each entry reads first."""
    packed = {HOME_FILE: home.encode()} | {f"files/{name}": data for name, data in files.items()}
    packed.update({f"files-secret/{name}": value.encode() for name, value in secret.items()})
    return parcel(pack(packed))


def name_of(plan: LaunchPlan) -> str:
    """Return the name of a job in Slurm."""
    return f"torchfleet-{plan.job_id}-{plan.token}"


def python_words(interpreter: str, code: str, too_old: str = "") -> list[str]:
    """Return words that run a program of ours, in one line: csh takes it too.

    `too_old`: what an interpreter says that cannot read it; empty: the program says it itself.
    """
    packed = base64.b64encode(code.encode()).decode()
    first = f"import sys;sys.version_info>=(3,8) or sys.exit({too_old!r});" if too_old else ""
    return [interpreter, "-E", "-s", "-S", "-c", f"{first}import base64;exec(base64.b64decode('{packed}'))"]


def too_old(head: str) -> str:
    """Return what a Python says on the head that is older than 3.8."""
    return f"Python 3.8 or newer is needed on {head}: set ansible_python_interpreter to its path there"


def entry_words(python: str) -> list[str]:
    """Return words that run our entry's first program. One more follows: our version."""
    names = {
        "HEADER": HEADER,
        "REFUSED": REFUSED,
        "FORM": FORM,
        "MARK": MARK,
        "HOME_FILE": HOME_FILE,
        "NOT_STARTED": EndReason.NOT_STARTED.value,
    }
    return python_words(python, "".join(f"{name} = {value!r}\n" for name, value in names.items()) + CODE)


def srun_options(plan: LaunchPlan, asked: SlurmRequest, slurm: Slurm) -> tuple[Option, ...]:
    """Return srun's command line, each option with its reason."""
    words = (*entry_words(asked.python), digest())
    named = not asked.gpus or asked.names_gpus
    gpus = [] if named else [Option((f"--gpus-per-node={asked.gpus}",), "slurm_gpus", "user")]
    cores = "slurm_cpus" if asked.cpus else "a core for each rank: give slurm_cpus for more"
    entry = "our program on each node: it reads our code and your script, and prints what ranks say"
    return (
        Option((slurm.program("srun"),), f"Slurm's program on {slurm.name}", "inventory"),
        Option((f"--job-name={name_of(plan)}",), "unique: the job is found by it, whichever process dies", "default"),
        Option((f"--comment={COMMENT}{plan.owner}",), "clean.yml reads here who started the job", "default"),
        Option((f"--nodes={asked.nodes}",), "slurm_nodes; Slurm chooses which", "user"),
        Option((f"--ntasks={asked.nodes}", "--ntasks-per-node=1"), "our entry, once on each node", "default"),
        Option((f"--cpus-per-task={asked.cores}",), cores, "user" if asked.cpus else "default"),
        *gpus,
        Option(("--cpu-bind=none", "--mpi=none"), "torchrun starts the ranks, and they meet by themselves", "default"),
        Option(("--label",), "each line has the number of its node", "default"),
        Option(("--input=all",), "all nodes get what the controller sends", "default"),
        Option(("--kill-on-bad-exit=0", "--wait=0"), "the job ends by our rules, with its records", "default"),
        Option(("--chdir=/",), "directories differ between nodes", "default"),
        *(Option((word,), "slurm_args", "user") for word in asked.arguments),
        Option(words, entry, "default"),
    )


class Jobs(NamedTuple):
    """Jobs of ours in Slurm. `taken`: those to end; `going`: the ids of others that this user started from here."""

    taken: list[Row]
    going: list[str]


def jobs_there(slurm: Slurm, job_id: str) -> Jobs:
    """Return the jobs in Slurm. The wanted one is to be ended, if this user of the cluster has it. SlurmError.

    Several people may share that user, and give jobs the same id: then one that was started from here is meant.
    InputError if the wanted one is not there. Without a name nothing is to end: what is in the queue waits or runs.
    """
    rows = [row for row in slurm.jobs() if row.job_id and not row.is_over]
    if not job_id:
        return Jobs([], [row.job_id for row in rows if row.owner == owner()])
    taken = [row for row in rows if row.job_id == job_id]
    if not taken:
        raise InputError("job_id", job_id, f"Slurm has no such job of yours in its queue: squeue --me on {slurm.name}")
    return Jobs([row for row in taken if row.owner == owner()] or taken, [])


def take_away(slurm: Slurm, name: str) -> list[str]:
    """Cancel a job that is still there, and return what is left, with what to do: nothing if all is well."""
    until, pause = time.monotonic() + LEFT_SECONDS, LOOK_SECONDS
    try:
        rows = [row for row in slurm.jobs(f"--name={name}") if not row.is_over]
        if any(row.state != "COMPLETING" for row in rows):
            slurm.cancel([row.number for row in rows])
        while rows and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, LOOK_MOST)
            rows = [row for row in slurm.jobs(f"--name={name}") if not row.is_over]
    except SlurmError as error:
        return [f"what is left in Slurm is not known: {error.told}"]
    return [f"job {row.number} is left in Slurm, {row.state}: a node of it may not answer" for row in rows]
