"""Drives the playbooks as a user does, through ansible-runner, and looks at what they leave."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import ansible_runner

from tests import driver
from tests.driver import END_SECONDS, REPO, environment, pids, running, whole_result

INSTALLED = Path(os.environ.get("TORCHFLEET_HOME", "~/.torchfleet")).expanduser()


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
        run_dir = next((Path(found["run_dir"]) for found in reversed(results) if "run_dir" in found), None)
        return Played(run.rc, stdout, str(last.get("msg", "")), events, run_dir)

    def start(
        self,
        stdout: int | None = None,
        *,
        inventory: Path | None = None,
        playbook: str = "train.yml",
        log_name: str | None = None,
        **given: Any,
    ) -> Started:
        """Start a playbook as a person does in a shell, its output in a log or in stdout; come back while it runs."""
        job_id = given.setdefault("job_id", f"job-{len(list(self.root.glob('*.log')))}")
        log = self.root / f"{log_name or job_id}.log"
        extra = json.dumps(self.variables(**given))
        argv = ["ansible-playbook", *(["-i", str(inventory)] if inventory else []), playbook, "-e", extra]
        live = {**os.environ, "PYTHONUNBUFFERED": "1"}  # Python holds lines back that go to a file
        return Started(driver.start(argv, log, stdout=stdout, env=live), job_id, log, self.runs, self)

    def alive(self, job_id: str) -> list[int]:
        """Return the pids of processes that carry the mark of this job in their environment."""
        mark = f"TORCHFLEET_JOB_DIR={self.home}/jobs/{job_id}".encode()
        return [pid for pid in pids() if mark in environment(pid)]


@dataclasses.dataclass
class Started(driver.Started):
    """A playbook that runs or has run, and the job it launched on this machine."""

    fleet: Fleet

    @property
    def job_dir(self) -> Path:
        return self.fleet.home / "jobs" / self.job_id

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
        self.wait_until(lambda: not self.job_dir.exists() or (self.job_dir / "fetched").exists())
        return (self.run_dir / "ranks" / str(rank) / "stdout").read_text().splitlines()

    def all_gone(self, *pids_seen: int, seconds: float = END_SECONDS) -> float:
        """Wait until no process of the job is left; return the seconds it took. Fails after the promised time."""
        return self.wait_until_gone(lambda: [*self.fleet.alive(self.job_id), *filter(running, pids_seen)], seconds)

    @property
    def result(self) -> dict[str, Any]:
        self.wait_until((self.run_dir / "fetched.json").exists)
        return whole_result(self.run_dir / "result.json")
