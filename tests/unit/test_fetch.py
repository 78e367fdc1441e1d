"""How files come home: from all nodes side by side, the result first, and no node is asked for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import supervisor as supervisor_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    FETCHED_MARK,
    JobDir,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.supervisor import Supervisor
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import BLOCK, Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import ConnectionLost, RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive
from tests.driver import wait_until
from tests.unit.laid_runtime import share_runtime
from tests.unit.nodes import order_of_a_job

# In place of ssh: nodes are homes of this machine, and the dead ones refuse when all of them were asked.
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in
dead*) touch "$PLACE/asked.$1.$$"
    until [ "$(ls "$PLACE" | grep -c asked.dead)" -ge 3 ]; do sleep 0.05; done
    echo "$1: all were asked" >&2; exit 255 ;;
*) exec /bin/sh -c "$2" ;;
esac
"""
DEAD = ("dead1", "dead2", "dead3")
ROWS = 6_000  # which make more than one block
STILL_RUNS = "processes of the job still run there"


def node(root: Path, name: str, rank: int) -> JobDir:
    """Make what a job leaves on a node."""
    job = JobDir(str(root / name / "jobs" / "one"))
    job.create([rank])
    Path(job.rank(rank, "stdout")).write_text(f"rank {rank}\n")
    rows = ({"rank": rank, "row": row, "text": "x" * 250} for row in range(ROWS))
    Path(job.at("metrics.jsonl")).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert os.path.getsize(job.at("metrics.jsonl")) > BLOCK
    placement = [{"rank": number, "host": host} for number, host in enumerate(("n1", "n2", "n3", *DEAD))]
    job.write("order.json", order_of_a_job(home=str(root / name), placement=placement))
    return job


@contextmanager
def head_with(tmp_path: Path, lib: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[RemoteProcess]:
    """Have a supervisor on n1, the head of a job that is over, which reaches nodes of these names."""
    (tmp_path / "bin").mkdir(parents=True)
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PLACE", str(tmp_path))
    head = node(tmp_path, "n1", 0)
    routes = [{"host": name, "home": str(tmp_path / name), "interpreter": sys.executable} for name in names]
    head.write("routes.json", routes)
    head.write("result.json", {"state": "succeeded"})
    share_runtime(lib, tmp_path / "n1", *(tmp_path / name for name in names))
    (tmp_path / "n1" / "ssh").mkdir()
    (tmp_path / "n1" / "ssh" / "config").touch()
    remote = RemoteProcess(bootstrap.bootstrap(sys.executable, str(tmp_path / "n1"), runtime_archive.digest()))
    remote.greet(runtime_archive.archive, 60)
    try:
        yield remote
    finally:
        remote.close()


def fetched(remote: RemoteProcess, tmp_path: Path) -> tuple[list[str], dict[str, bytes], list[str]]:
    """Ask for all files; return their names as they came, their bytes, and what is missing."""
    remote.channel.send({"kind": "fetch", "home": str(tmp_path / "n1"), "job_id": "one", "limit": 1 << 40})
    names, files = [], dict[str, bytes]()
    frame = remote.answer(120)
    while frame["kind"] == "file":
        names.append(frame["name"])
        files[frame["name"]] = (b"" if frame["first"] else files[frame["name"]]) + frame["data"]
        frame = remote.answer(120)
    assert frame["kind"] == "fetched"
    return names, files, frame["missing"]


def test_a_rank_that_still_writes_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_lib: Path
) -> None:
    """Reproduced before: after guard and supervisor of a node were killed, its files were fetched as if they were all.

    The rank went on writing until clean.yml, which brought nothing more.
    """
    for place in ("n1", "n2"):
        there = tmp_path / place
        with head_with(there, runtime_lib, monkeypatch, "n2") as remote:
            other = node(there, "n2", 1)
            marks = {"TORCHFLEET_JOB_ID": "one", "TORCHFLEET_JOB_DIR": str(there / place / "jobs" / "one")}
            with subprocess.Popen(["sleep", "600"], env={**os.environ, **marks}) as rank:
                wait_until(lambda: processes.mark_of(rank.pid))
                early = fetched(remote, there)[2]
                Path(other.rank(1, "stdout")).write_text("and more\n")
                rank.kill()
            assert early == [STILL_RUNS if place == "n1" else f"n2: {STILL_RUNS}"]
            _names, files, missing = fetched(remote, there)
            assert (files["ranks/1/stdout"], missing) == (b"and more\n", [])


def test_nodes_are_asked_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_lib: Path) -> None:
    """Reproduced before: three dead nodes took three times ten seconds, each after the other."""
    others = [node(tmp_path, name, rank) for rank, name in ((1, "n2"), (2, "n3"))]
    with head_with(tmp_path, runtime_lib, monkeypatch, "n2", *DEAD, "n3") as remote:
        for _time in range(2):
            names, files, missing = fetched(remote, tmp_path)
            assert missing == [f"{name}: {name}: all were asked" for name in DEAD]
            assert names[0] == "result.json"
            assert {"ranks/0/stdout", "ranks/1/stdout", "ranks/2/stdout"} <= set(names)
            rows = [json.loads(row) for row in files["metrics.jsonl"].splitlines()]  # none is torn
            assert all([row["row"] for row in rows if row["rank"] == rank] == list(range(ROWS)) for rank in range(3))
            remote.channel.send({"kind": "received"})
    assert len(list(tmp_path.glob("asked.*"))) == 3  # who did not answer is not asked again
    jobs = [JobDir(str(tmp_path / "n1" / "jobs" / "one")), *others]
    assert not any(os.path.exists(job.at(FETCHED_MARK)) for job in jobs)  # not all of it is home


def test_a_node_that_was_lost_is_tried_once_more_and_soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, bool]] = []

    def peer(route: dict[str, str], _config: str, lost: bool) -> None:
        tried.append((route["host"], lost))
        raise ConnectionLost("no answer within 5 s")

    monkeypatch.setattr(supervisor_module, "RemoteNode", peer)
    supervisor = Supervisor(Channel(*os.pipe()))
    supervisor.peers["n2"] = SimpleNamespace(lost="silent", remote=SimpleNamespace(close=int))  # type: ignore[assignment]
    for name in ("n2", "n2", "n3"):
        with pytest.raises(ConnectionLost, match="within 5 s"):
            supervisor.reach({"host": name}, "/home")
    assert tried == [("n2", True), ("n3", False)]


@pytest.mark.parametrize("size", [100, BLOCK, 3 * BLOCK])
def test_blocks_of_a_file_end_with_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    rows = b"".join(b"%d\n" % number for number in range(size))[:size].rpartition(b"\n")[0] + b"\n"
    (tmp_path / "rows").write_bytes(rows)
    channel, blocks = Channel(-1, -1), list[bytes]()
    monkeypatch.setattr(channel, "send", lambda frame: blocks.append(frame["data"]))
    channel.send_file("rows", str(tmp_path / "rows"))
    assert b"".join(blocks) == rows and all(block.endswith(b"\n") and len(block) <= BLOCK for block in blocks)
