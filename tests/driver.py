"""Drives a playbook as a person does in a shell, and looks at the processes that it makes: here and on lab nodes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jsonschema

REPO = Path(__file__).parents[1]
SCRIPTS = REPO / "tests/integration/scripts"
SCHEMA = json.loads((REPO / "docs/result.schema.json").read_text())
END_SECONDS = 5.0  # what the README promises for the end of a job that no network hides
POLL_SECONDS = 0.1  # a look at all of /proc takes 4 ms of a core
T = TypeVar("T")


def start(
    argv: list[str], log: Path, *, stdout: int | None = None, env: Mapping[str, str] = os.environ
) -> subprocess.Popen[bytes]:
    """Start one of Ansible's programs in a session of its own, its output in a log or in stdout."""
    with log.open("wb") as output:
        return subprocess.Popen(
            argv,
            cwd=REPO,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            start_new_session=True,
        )


@dataclasses.dataclass
class Started:
    """A playbook that runs or has run, and the job that it launched."""

    process: subprocess.Popen[bytes]
    job_id: str
    log: Path
    runs: Path

    @property
    def run_dir(self) -> Path:
        return self.runs / self.job_id

    @property
    def result(self) -> dict[str, Any]:
        return whole_result(self.run_dir / "result.json")

    def wait_until(self, condition: Callable[[], T], seconds: float = 40.0) -> T:
        """Wait until a condition holds and return its value."""
        return wait_until(condition, seconds, lambda: f"output so far:\n{self.log.read_text()}")

    def wait_until_gone(self, alive: Callable[[], Collection[int]], seconds: float) -> float:
        """Wait until none of these processes is left; return the seconds it took. Fails after the promised time."""
        began = time.monotonic()
        while left := alive():
            told = {pid: command(pid) for pid in left}
            assert time.monotonic() - began < seconds + 1.0, f"still there: {told}\n{self.log.read_text()}"
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began


def wait_until(condition: Callable[[], T], seconds: float = 60.0, told: Callable[[], str] = str) -> T:
    """Wait until a condition holds and return its value. `told`: what else is known when the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"not within {seconds} s; {told()}")


def whole_result(path: Path) -> dict[str, Any]:
    """Return a result that fits the schema, whatever became of the job."""
    result = json.loads(path.read_text())
    jsonschema.validate(result, SCHEMA)
    return dict(result)


def pids() -> list[int]:
    """Return all processes of this machine, those of lab nodes among them."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def proc(pid: int, name: str) -> bytes:
    """Return a file of a process as the kernel gives it; nothing if the process is gone. Unbuffered: half the time."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def environment(pid: int) -> list[bytes]:
    return proc(pid, "environ").split(b"\0")


def command(pid: int) -> list[str]:
    """Return the words of a process's command line: none if it is gone, or a zombie."""
    words = proc(pid, "cmdline").decode(errors="replace").rstrip("\0")
    return words.split("\0") if words else []


def parent(pid: int) -> int:
    """Return the parent of a process, 0 if the process is gone."""
    return int((stat_of(pid) or ["Z", "0"])[1])


def family(pid: int) -> list[int]:
    """Return a process and all below it: Ansible's workers leave its process group."""
    found = {pid}
    while more := {child for child in pids() if parent(child) in found} - found:
        found |= more
    return sorted(found)


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return (stat_of(pid) or ["Z"])[0] not in "ZX"


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if the process is gone."""
    return proc(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
