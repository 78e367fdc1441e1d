"""Makes hangs of many kinds under each launcher and backend, and looks whether the right rank is named: `make hangs`.

Usage: run.py [SETUP ...] [CASE ...]. Needs setup.yml with all MPIs and the backends mpi, shm and ccl. What is found
is in tests/hangs/found.json; `python tests/hangs/table.py` prints the table of docs/why-it-hangs.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import HUNG, Verdict, VerdictCode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.autopsy import judged
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from tests.hangs.cases import CASES, PROGRAM, Case, culprits_of, expected

REPO = Path(__file__).parents[2]
INSTALLED = Path.home() / ".torchfleet"
SHARED = ("pytorch", "openmpi", "mpich", "intelmpi", "backends")  # of what setup.yml installed
FOUND = Path(__file__).with_name("found.json")
START_SECONDS, SETTLE_SECONDS, LOOK_SECONDS, END_SECONDS = 120.0, 1.0, 60.0, 90.0
SOME = ("broadcasts", "receives", "groups_in_another_order", "does_not_leave", "never_comes")  # that end the job
OTHERS_SECONDS = 600.0  # for an environment with packages of others to be made, and for a program of theirs to hang
RIGHT, NOT_SURE, FALSE_NAME = "right", "not sure", "false name"
REFUSED = "refused"  # no hang: the backend saw that ranks ask for different things, and the job failed with its error
DIFFERENT = "the ranks do not ask for the same: "  # what its error says (torch_backends/csrc/signature.cpp)
OUTCOMES = (RIGHT, NOT_SURE, FALSE_NAME, REFUSED)


@dataclass(frozen=True)
class Setup:
    """Launcher and backend of jobs, and the rank that their hangs concern."""

    launcher: str
    backend: str
    culprit: int
    whole: bool = True  # also of the cases that end the job all, not only some

    @property
    def name(self) -> str:
        return f"{self.launcher}-{self.backend}"


SETUPS = (
    Setup("openmpi", "gloo", 1),
    Setup("torchrun", "gloo", 2),
    Setup("mpich", "gloo", 0, whole=False),
    Setup("intelmpi", "gloo", 1, whole=False),
    Setup("openmpi", "mpi", 1, whole=False),
    Setup("mpich", "mpi", 2, whole=False),
    Setup("intelmpi", "mpi", 0, whole=False),
    Setup("openmpi", "ccl", 1, whole=False),
    Setup("torchrun", "ccl", 2, whole=False),
    Setup("torchrun", "shm", 0, whole=False),
)


@dataclass(frozen=True)
class Cell:
    """What was said of one hang."""

    setup: str
    case: str
    outcome: str  # RIGHT, NOT_SURE, FALSE_NAME, REFUSED
    code: str
    ranks: Sequence[int]
    sentence: str
    looks: int  # until it was said to hang
    seconds: float  # of the last one


class Job:
    """A job that hangs in these ways, one after the other."""

    def __init__(self, root: Path, setup: Setup, cases: Sequence[Case]) -> None:
        self.setup, self.cases, self.size = setup, cases, cases[0].size
        self.home, self.log, self.runs = root / "home", root / "log", root / "runs"
        self.home.mkdir(exist_ok=True)
        for name in SHARED:
            if (INSTALLED / name).exists() and not (self.home / name).exists():
                (self.home / name).symlink_to(INSTALLED / name)
        place = tempfile.mkdtemp(dir=root)
        inventory = root / "inventory.json"
        host = {"localhost": {"slots": 4}}
        local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
        groups = {"head": {"hosts": {"localhost": {}}}, "workers": {"hosts": host}}
        inventory.write_text(json.dumps({"all": {"children": groups, "vars": local}}))
        given: dict[str, Any] = {
            "torchfleet_home": str(self.home),
            "runs_dir": str(self.runs),
            "job_id": f"hang-{os.getpid()}-{time.monotonic_ns()}",
            "launcher": setup.launcher,
            "backend": setup.backend,
            "np": self.size,
            "job_env": {"CULPRIT": str(setup.culprit)},
            "hang_look": 0,
            **start_of(cases, setup, place),
        }
        self.id = given["job_id"]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                ["ansible-playbook", "-i", str(inventory), "train.yml", "-e", json.dumps(given)],
                cwd=REPO, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def said(self, rank: int) -> str:
        """Return what a rank has printed."""
        path = self.home / "jobs" / self.id / "ranks" / str(rank) / "stdout"
        return path.read_text() if path.exists() else ""

    def wait_for(self, line: str, ranks: Sequence[int]) -> None:
        """Wait until these ranks have printed a line. RuntimeError."""
        self.wait_until(lambda: all(f"{line}\n" in self.said(rank) for rank in ranks), f"no {line!r}")

    def wait_until(self, condition: Callable[[], object], otherwise: str) -> None:
        """Wait until a condition holds. RuntimeError if it does not in time, or if the job ends."""
        until = time.monotonic() + (OTHERS_SECONDS if self.cases[0].module else START_SECONDS)
        while not condition():
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError(f"{otherwise}:\n{self.log.read_text()}")
            time.sleep(0.05)

    def look(self) -> Verdict:
        """Look at it as playbooks/look.yml does."""
        here = Node("localhost", "localhost", interpreter=sys.executable, home=str(self.home), local=True)
        with Session(here, ()) as session:
            return judged(self.id, session.look(self.id)).verdict

    def cell(self, case: Case) -> Cell:
        """Return what is said of a hang. A job that is not said to hang is looked at again, as train.yml does."""
        if not case.module:
            self.wait_for(case.name, range(self.size))
        else:
            self.wait_until(lambda: self.said(0), "no output")
        time.sleep(SETTLE_SECONDS)
        until, looks = time.monotonic() + (OTHERS_SECONDS if case.module else LOOK_SECONDS), 0
        while True:
            began, looks = time.monotonic(), looks + 1
            found = self.look()
            if found.code in HUNG or case.code == VerdictCode.SLOW or time.monotonic() > until:
                break
            time.sleep(1.0)
        seconds = round(time.monotonic() - began, 1)
        outcome = judge_of(case, self.setup, found)
        return Cell(self.setup.name, case.name, outcome, found.code, found.ranks, found.sentence, looks, seconds)

    def refused(self, case: Case) -> Cell | None:
        """Return what is said where a backend refused what would hang; None if the job did not end by that."""
        path = self.runs / self.id / "result.json"
        if case.code != VerdictCode.MISMATCH or not self.ended() or not path.exists():
            return None
        failure = json.loads(path.read_text())["first_failure"] or {}
        said, rank = failure.get("message", ""), failure.get("rank")
        ranks = [rank] if rank is not None else []
        return Cell(self.setup.name, case.name, REFUSED, "", ranks, said, 0, 0.0) if DIFFERENT in said else None

    def ended(self) -> bool:
        """Whether the job ends by itself, as one does that a look no longer finds."""
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self, case: Case) -> None:
        """Let the job go on."""
        number = signal.SIGCONT if case.name == "is_stopped" else signal.SIGUSR1
        freed = culprits_of(case, self.setup.culprit)[0] or (self.setup.culprit,)
        for rank in freed:
            record = self.home / "jobs" / self.id / "ranks" / str(rank) / "record.json"
            os.kill(json.loads(record.read_text())["pid"], number)
        self.wait_for(f"over {case.name}", range(self.size))

    def end(self) -> None:
        """End it as a person does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # its guards end the job when nobody follows it
            self.process.kill()
            self.process.wait()


def start_of(cases: Sequence[Case], setup: Setup, place: str) -> dict[str, object]:
    """Return what train.yml is told of the program."""
    case = cases[0]
    if case.module:
        packages = REPO / "tests/compat" / case.folder / "requirements.txt"
        return {"module": case.module, "requirements": str(packages)}
    return {"workload": str(PROGRAM), "workload_args": [setup.backend, place, *(row.name for row in cases)]}


def judge_of(case: Case, setup: Setup, found: Verdict) -> str:
    """Return what a verdict is worth."""
    true = culprits_of(case, setup.culprit)
    if not any(set(found.ranks) <= set(ranks) for ranks in true):
        return FALSE_NAME
    whole = all(text in found.sentence for text in expected(case, setup.culprit))
    return RIGHT if found.code == case.code and tuple(found.ranks) in true and whole else NOT_SURE


def jobs(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yield what one job after the other does: all from which it can go on in one, the others each in its own."""
    together = [case for case in cases if not case.ends]
    if together:
        yield together
    for case in cases:
        if case.ends:
            yield [case]


def cells_of(root: Path, setup: Setup, cases: Sequence[Case]) -> Iterator[Cell]:
    """Yield what is said of each case. A job that ends before its time is told, and the next one is made."""
    wanted = [case for case in cases if setup.whole or not case.ends or case.name in SOME]
    wanted = [case for case in wanted if not case.module or setup.backend == "gloo"]
    for row in jobs(wanted):
        job = Job(root, setup, row)
        try:
            for case in row:
                yield job.cell(case)
                if case is not row[-1]:
                    job.release(case)
        except (RuntimeError, InputError, OSError) as error:
            refused = job.refused(row[-1])
            if refused:
                yield refused
            else:
                print(f"{setup.name}: {error}\n{job.log.read_text()}", file=sys.stderr, flush=True)
        finally:
            job.end()


def main() -> None:
    """Make those that were named, or all; print and keep what was found."""
    names = set(sys.argv[1:])
    setups = [setup for setup in SETUPS if setup.name in names] or list(SETUPS)
    cases = [case for case in CASES if case.name in names] or list(CASES)
    kept = json.loads(FOUND.read_text()) if FOUND.exists() else []
    with tempfile.TemporaryDirectory(prefix="torchfleet-hangs-", ignore_cleanup_errors=True) as root:
        for setup in setups:
            for cell in cells_of(Path(root), setup, cases):
                print(f"{cell.outcome:10} {cell.setup:14} {cell.case}: {cell.sentence}", flush=True)
                kept = [row for row in kept if (row["setup"], row["case"]) != (cell.setup, cell.case)]
                kept.append(asdict(cell))
                FOUND.write_text(json.dumps(kept, indent=1) + "\n")
    counts = {outcome: sum(row["outcome"] == outcome for row in kept) for outcome in OUTCOMES}
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    sys.exit(counts[FALSE_NAME] > 0 or counts[RIGHT] < 0.98 * (len(kept) - counts[REFUSED]))


if __name__ == "__main__":
    main()
