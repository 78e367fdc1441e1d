"""Supervisors in processes of their own, for tests that play the other end of their wire."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import RemoteProcess

COLLECTIONS = Path(__file__).parents[2] / "collections"
PACKAGE = "ansible_collections.torchfleet.cluster.plugins.module_utils._runtime"
BEAT_SECONDS = 0.2  # of these supervisors, so that no test waits for a beat as long as a node sleeps
SERVE = f"""
import os, sys, threading, time
sys.path.insert(0, {str(COLLECTIONS)!r})
from {PACKAGE}.wire import channel
channel.BEAT_SECONDS = {BEAT_SECONDS}  # before the modules are imported that take it from there
from {PACKAGE}.basics import open_files; from {PACKAGE}.ranks import output_lines; from {PACKAGE} import supervisor
"""


def supervisor(hook: str = "") -> RemoteProcess[Any, Any]:
    """Start a supervisor; `hook`: what is done in its process before it serves, such as making its disk hang."""
    serve = "supervisor.Supervisor(channel.Channel(0, 1)).serve()\nos._exit(0)\n"
    return RemoteProcess([sys.executable, "-c", f"{SERVE}\n{hook}\n{serve}"])


def order_of_one(home: Path, command: tuple[str, ...] = ("/bin/sleep", "600"), **changed: Any) -> dict[str, Any]:
    """Return an order for one rank on w1, which never comes: what runs there is the command alone."""
    return {
        "job_id": "one",
        "controller": "",
        "run_dir": "",
        "head": "h",
        "backend": "gloo",
        "shown_command": ["mpirun"],
        "home": str(home),
        "host": "w1",
        "ranks": [0],
        "cwd": "/",
        "placement": [{"rank": 0, "local_rank": 0, "host": "w1"}],
        "world_size": 1,
        "show_ranks": [0],
        "notice": None,
        "restarts": 0,
        "checkpoint_dir": "",
        "grace": 0.5,
        "lease": 3600.0,
        "job_timeout": None,
        "launcher": {"name": "openmpi", "version": "5.0.11"},
        "launcher_environment": {},
        "launcher_search": [],
        "programs": {"torchfleet-rank": ["/bin/true"]},
        "command": list(command),
        "exclusive": False,
        "sample": True,
        "secret_names": [],
        "known_jobs": [],
        **changed,
    }


def stage(remote: RemoteProcess[Any, Any], order: dict[str, Any]) -> None:
    assert not remote.ask({"kind": "stage", "beats": True, "order": order, "secrets": {}}, 60).get("reason")


def begin(remote: RemoteProcess[Any, Any], order: dict[str, Any]) -> None:
    """Stage a job and let it go."""
    stage(remote, order)
    remote.channel.send({"kind": "start"})
