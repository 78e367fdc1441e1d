"""Drives the playbooks as a user does, through ansible-runner, and looks at what they leave."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible_runner
import jsonschema

REPO = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
SCHEMA = json.loads((REPO / "docs" / "result.schema.json").read_text())
INSTALLED = Path(os.environ.get("TORCHFLEET_HOME", "~/.torchfleet")).expanduser()
END_SECONDS = 5.0  # what the README promises for the end of a job


@dataclasses.dataclass
class Played:
    """One finished playbook."""

    rc: int
    stdout: str
    msg: str
    events: list[dict[str, Any]]
    run_dir: Path | None

    @property
    def result(self) -> dict[str, Any]:
        assert self.run_dir is not None, self.stdout
        return whole_result(self.run_dir / "result.json")

    def output(self, rank: int, stream: str = "stdout") -> str:
        assert self.run_dir is not None, self.stdout
        return (self.run_dir / "ranks" / str(rank) / stream).read_text()


class Fleet:
    """A torchfleet home and a runs directory of a test's own, beside whatever else this machine does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.runs = root / "runs"
        self.home.mkdir()
        for name in ("pytorch", "openmpi"):
            (self.home / name).symlink_to(INSTALLED / name)

    def variables(self, **given: Any) -> dict[str, Any]:
        return {"torchfleet_home": str(self.home), "runs_dir": str(self.runs), **given}

    def play(
        self, playbook: str = "train.yml", *, inventory: Path | None = None, check: bool = False, **given: Any
    ) -> Played:
        """Run a playbook to its end."""
        data = self.root / "runner"
        data.mkdir()
        run = ansible_runner.run(
            private_data_dir=str(data),
            project_dir=str(REPO),
            playbook=playbook,
            inventory=str(inventory or REPO / "inventory" / "hosts.yml"),
            extravars=self.variables(**given),
            cmdline="--check" if check else None,
            quiet=True,
        )
        events = [event for event in run.events if event["event"].startswith("runner_on_")]
        results = [event["event_data"].get("res", {}) for event in events]
        stdout = run.stdout.read()
        shutil.rmtree(data, ignore_errors=True)
        last: dict[str, Any] = next((found for found in reversed(results) if found), {})
        run_dir = Path(last["run_dir"]) if "run_dir" in last else None
        return Played(run.rc, stdout, str(last.get("msg", "")), events, run_dir)

    def start(self, stdout: int | None = None, *, inventory: Path | None = None, **given: Any) -> Started:
        """Start train.yml as a person does in a shell, its output in a log or in stdout; come back while it runs."""
        job_id = given.setdefault("job_id", f"job-{len(list(self.root.glob('*.log')))}")
        log = self.root / f"{job_id}.log"
        extra = json.dumps(self.variables(**given))
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["ansible-playbook", *(["-i", str(inventory)] if inventory else []), "train.yml", "-e", extra],
                cwd=REPO,
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=output,
                start_new_session=True,
            )
        return Started(self, process, job_id, log)

    def alive(self, job_id: str) -> list[int]:
        """Return the pids of processes that carry the mark of this job in their environment."""
        mark = f"TORCHFLEET_JOB_DIR={self.home}/jobs/{job_id}".encode()
        return [pid for pid in pids() if mark in environment(pid)]


@dataclasses.dataclass
class Started:
    """A playbook that runs."""

    fleet: Fleet
    process: subprocess.Popen[bytes]
    job_id: str
    log: Path

    @property
    def job_dir(self) -> Path:
        return self.fleet.home / "jobs" / self.job_id

    @property
    def run_dir(self) -> Path:
        return self.fleet.runs / self.job_id

    def wait_until(self, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Wait until a condition holds and return its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s; output so far:\n{self.log.read_text()}")

    def record(self, rank: int) -> dict[str, Any]:
        """Return the record of a rank whose program runs."""
        path = self.job_dir / "ranks" / str(rank) / "record.json"
        self.wait_until(lambda: path.exists() and "pid" in json.loads(path.read_text()))
        return dict(json.loads(path.read_text()))

    def wait_for_output(self, rank: int, text: str) -> None:
        """Wait until a rank has written a text to stdout."""
        path = self.job_dir / "ranks" / str(rank) / "stdout"
        self.wait_until(lambda: path.exists() and text in path.read_text())

    def brought_home(self, rank: int) -> list[str]:
        """Return the lines of a rank's stdout when the whole run is on the controller."""
        self.wait_until(lambda: not self.job_dir.exists() or (self.job_dir / "home").exists())
        return (self.run_dir / "ranks" / str(rank) / "stdout").read_text().splitlines()

    def all_gone(self, *pids_seen: int, seconds: float = END_SECONDS) -> float:
        """Wait until no process of the job is left; return the seconds it took. Fails after the promised time."""
        start = time.monotonic()
        while left := [*self.fleet.alive(self.job_id), *(pid for pid in pids_seen if running(pid))]:
            told = {pid: command(pid) for pid in left}
            assert time.monotonic() - start < seconds + 1.0, f"still there: {told}\n{self.log.read_text()}"
            time.sleep(0.02)
        return time.monotonic() - start

    @property
    def result(self) -> dict[str, Any]:
        self.wait_until((self.run_dir / "fetched.json").exists)
        return whole_result(self.run_dir / "result.json")


def whole_result(path: Path) -> dict[str, Any]:
    """Return a result that fits the schema, whatever became of the job."""
    result = json.loads(path.read_text())
    jsonschema.validate(result, SCHEMA)
    return dict(result)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
