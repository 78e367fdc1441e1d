"""A whole job on two nodes, which are homes of this machine: all messages between controller, head, node and guards."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    RANK_PROGRAM,
    JobDir,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifact_border import Limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.brought_home import BroughtHome
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import survey_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.laid_runtime import share_runtime
from tests.unit.nodes import plan_on_two

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "result.schema.json").read_text())
SSH = '#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nexec /bin/sh -c "$2"\n'
PROGRAM = 'echo "rank $RANK of $WORLD_SIZE on node $NODE_RANK: $HF_TOKEN"'


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_lib: Path) -> Iterator[RemoteProcess]:
    """Return the supervisor of n1; it reaches n2 by a program that is called ssh."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    share_runtime(runtime_lib, tmp_path / "n1", tmp_path / "n2")
    (tmp_path / "n1" / "ssh").mkdir()
    (tmp_path / "n1" / "ssh" / "config").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = bootstrap.bootstrap(sys.executable, str(tmp_path / "n1"), runtime_archive.digest())
    remote = RemoteProcess(command, None, frames.FROM_HEAD)
    remote.greet(runtime_archive.archive, 60)
    yield remote
    remote.close()


def surveyed(head: RemoteProcess, root: Path) -> dict[str, Any]:
    """Have the head look at both nodes, which also connects it to n2."""
    asked = {
        name: survey_request(Node(name, name, home=str(root / name)), Request("mnist"), ()) for name in ("n1", "n2")
    }
    route = {"host": "n2", "home": str(root / "n2"), "interpreter": sys.executable, "request": asked["n2"]}
    answer = head.ask({"kind": "survey", "request": asked["n1"], "nodes": [route]}, 60)
    return {"n1": answer["facts"], **answer["nodes"]}


def order_of_two(facts: dict[str, Any], program: str) -> dict[str, Any]:
    """Return the order of a job with a rank on each node, whose guard starts the rank's wrapper in place of mpirun."""
    homes = {
        name: {**fact, "launcher": {**fact["launcher"], "version": "5.0.11", "path": "/m/bin/mpirun"}}
        for name, fact in facts.items()
    }
    python = {"python": sys.executable, "torch": {"version": "2", "cuda": "", "hip": ""}, "fabric": None}
    plan = plan_on_two(
        n1={**homes["n1"], **python}, n2={**homes["n2"], **python}, slots={"n1": 1, "n2": 1}, secret_names=["HF_TOKEN"],
        job_env={"HF_TOKEN": "s3cret"}, job_timeout=120,
    )  # fmt: skip
    order: Any = order_for(plan, render(plan), "c")
    for rank, (name, node) in enumerate(order["nodes"].items()):
        identity = f"OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=2"
        local = "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"
        wrapper = shlex.quote(f"{facts[name]['home']}/jobs/job/bin/{RANK_PROGRAM}")
        node["command"] = ["/bin/sh", "-c", f"{identity} {local} exec {wrapper}"]
        node["programs"][RANK_PROGRAM][3] = f"{facts[name]['home']}/{runtime_archive.entry()}"
        node["argv"], node["cwd"] = ["/bin/sh", "-c", program], "/"
    return dict(order)


def run(head: RemoteProcess, order: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Run a job; return its result, and the lines that were shown."""
    frame = head.ask({"kind": "run", "order": order}, 60)
    lines = []
    while frame["kind"] != "result":
        assert frame["kind"] in ("started", "line"), frame
        lines += [frame["text"]] if frame["kind"] == "line" else []
        frame = head.answer(60)
    jsonschema.validate(frame["result"], SCHEMA)
    return frame["result"], lines


def test_a_job_on_two_nodes(head: RemoteProcess, tmp_path: Path) -> None:
    result, lines = run(head, order_of_two(surveyed(head, tmp_path), PROGRAM))
    assert (result["state"], [row["last_line"] for row in result["ranks"]]) == (
        "succeeded",
        ["rank 0 of 2 on node 0: s3cret", "rank 1 of 2 on node 1: s3cret"],
    ), result
    assert lines == ["rank 0 of 2 on node 0: s3cret"]  # show_ranks is 0
    jobs = {name: JobDir(str(tmp_path / name / "jobs" / "job")) for name in ("n1", "n2")}
    orders = {name: job.order() or {} for name, job in jobs.items()}
    assert {name: order["ranks"] for name, order in orders.items()} == {"n1": [0], "n2": [1]}
    assert {name: [route["host"] for route in job.routes()] for name, job in jobs.items()} == {"n1": ["n2"], "n2": []}
    kept = [path for job in jobs.values() for path in Path(job.path).iterdir() if path.suffix == ".json"]
    assert {"order.json", "staging.json", "routes.json"} <= {path.name for path in kept}
    assert [path.name for path in kept if "s3cret" in path.read_text()] == ["result.json"]  # the program printed it
    head.channel.send({"kind": "fetch", "home": str(tmp_path / "n1"), "job_id": "job", "limit": 1 << 30})
    names, frame = [], head.answer(60)
    while frame["kind"] == "file":
        names.append(frame["name"])
        frame = head.answer(60)
    assert frame["missing"] == [] and {"result.json", "ranks/0/stdout", "ranks/1/stdout"} <= set(names)


def test_a_rank_that_fails_ends_the_other_node_too(head: RemoteProcess, tmp_path: Path) -> None:
    fails = '[ "$RANK" = 0 ] && exec sleep 600; kill -SEGV $$'
    result, _lines = run(head, order_of_two(surveyed(head, tmp_path), fails))
    assert (result["state"], result["rc"]) == ("failed", 139)
    failure = result["first_failure"]
    assert (failure["rank"], failure["host"], failure["cause"]) == (1, "n2", "killed by SIGSEGV")
    assert [row["state"] for row in result["ranks"]] == ["ended", "failed"]


def test_a_node_that_cannot_stage_leaves_no_node_with_the_job(head: RemoteProcess, tmp_path: Path) -> None:
    order = order_of_two(surveyed(head, tmp_path), PROGRAM)
    (tmp_path / "n2" / "jobs" / "job").mkdir(parents=True)
    answer = head.ask({"kind": "run", "order": order}, 60)
    assert answer["kind"] == "refused" and answer["reason"].startswith("cannot stage the job: n2: "), answer
    assert not (tmp_path / "n1" / "jobs" / "job").exists()


def test_what_ranks_wrote_comes_home_from_both(head: RemoteProcess, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    order = order_of_two(surveyed(head, tmp_path), 'printf "$RANK" > model-$RANK.pt; mkdir out-$RANK; : > out-$RANK/x')
    order["job"]["collect"] = ["model-*", "out-?", "none"]
    for node in order["nodes"].values():
        node["cwd"] = str(work)
    result, _lines = run(head, order)
    assert result["state"] == "succeeded", result
    home = BroughtHome({"n1", "n2"}, Limits(4, 100))
    head.channel.send(
        {"kind": "fetch", "home": str(tmp_path / "n1"), "job_id": "job", "limit": 1 << 30, "artifacts": [4, 100]}
    )
    frame = head.answer(60)
    while frame["kind"] != "fetched":
        home.take(frame)
        frame = head.answer(60)
    assert frame["missing"] == [] and home.damaged == []
    names = {"model-0.pt", "model-1.pt", "out-0/x", "out-1/x"}  # they work in one directory
    assert [(row["host"], row["path"]) for row in home.listing()["files"]] == [
        (host, name) for host in ("n1", "n2") for name in sorted(names)
    ]
    assert home.unmatched() == ["none"]
