"""What the plans of fabric and verify cost for 64 simulated machines with eight GPUs: part of `make bench`.

The nodes are values, not machines: what is measured is the choice itself, and how much JSON it sends to the nodes.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric import rdma
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import next_step
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import trial as trial_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import verify, verify_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift_values import versions_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import sort_out
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer
from tests.unit.machines import DGX_H100, build
from tests.unit.recorded_nodes import RECORDED

WORKERS = 64
NETWORKS = ("10.91.0", "10.92.0")
ROUNDS = 5


def told(host: int, scratch: Path) -> dict[str, Any]:
    """Return what a node tells of itself: the head, number 1, has no RDMA and is in the first network alone."""
    worker = host > 1
    nics = [
        {
            **{"name": f"eth{number}", "kind": "physical", "mtu": 1500, "speed_mbit": 1000 + 99000 * number},
            **{"up": True, "carrier": True, "operstate": "up", "port_of": ""},
            "addresses": [{"address": f"{start}.{host}", "prefix": 24, "stable": True, "route": f"eth{number}"}],
        }
        for number, start in enumerate(NETWORKS[: 1 + worker])
    ]
    root = str(build(DGX_H100, scratch / str(host), host).root) if worker else "/nowhere"
    known = {"host_name": f"n{host}", "host_name_addresses": [], "arrival": "", "nics": nics}
    files = {"fabric.json": "", "fabric.env": ""}
    facts = {**known, "rdma": rdma.rdma_ports(root), "gpus": rdma.gpus(root), "files": files}
    return {"facts": facts, "agent": {"port": 29000, "token": "0" * 32}, "constraints": {}}


def timed(what: str, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Print how long a step takes and how large its answer is, and return it."""
    seconds = []
    for _round in range(ROUNDS):
        start = time.perf_counter()
        answer = act()
        seconds.append(time.perf_counter() - start)
    size = len(json.dumps(answer))
    print(f"  {what:<34} {statistics.median(seconds):.3f} s, {size / 1e6:.2f} MB of JSON")
    return answer


def answer_of(name: str) -> Answer:
    """Return what a recorded node tells of itself, with eight GPUs and a torch for them."""
    facts = copy.deepcopy(RECORDED["n2"])
    facts["host"]["name"], facts["accelerators"]["usable"]["nvidia"] = name, 8
    facts["torch"] = {"version": "2.13.0", "cuda": "13.0", "hip": "", "xpu": ""}
    facts["versions"].update(torch="2.13.0", openmpi="5.0.11")
    return Answer(facts=facts)


def measured_by(steps: Sequence[Mapping[str, Any]], network: str) -> list[dict[str, Any]]:
    """Return what a node would report of its steps: every link and rail is sound."""
    rows: list[dict[str, Any]] = []
    for step in (step for step in steps if step["role"] == "client"):
        node = {"node": step["node"], "error": ""}
        rails = [{"rail": row["rail"], "peer": row["peer"], "by": row["by"]} for row in step.get("rails", ())]
        rows += [{**node, **rail, "code": "", "mbit": 390_000.0, "mtu": 4096} for rail in rails]
        link = {"network": network, "rtt_us": 50.0, "mbit_out": 90_000.0, "mbit_in": 90_000.0}
        rows += [] if rails else [{**node, **link}]
    return rows


def prove(listened: dict[str, Any], files: dict[str, Any], tool: bool) -> None:
    """Print what verify costs. Without perftest (`tool`) nothing tests rails that have no addresses."""
    head, *workers = listened
    told_now = copy.deepcopy(listened)
    for name, each in told_now.items():
        each["facts"].update(files=files[name], rdma_test=tool)
    answers = {name: answer_of(name) for name in listened}
    heard = verify.take(answers, told_now, {}).listened
    planned = trial_module.plan_trial(answers, heard, head, workers)
    rows = {name: measured_by(own, planned.network) for name, own in planned.steps.items()}
    drift = compare({name: versions_of(each.known, "") for name, each in answers.items()}, workers)

    def plan() -> dict[str, Any]:
        steps: dict[str, Any] = dataclasses.asdict(trial_module.plan_trial(answers, heard, head, workers))["steps"]
        return steps

    def judge() -> dict[str, Any]:
        seen = verify.take(answers, told_now, rows)
        outcome = verify.Outcome(
            seen.answers, seen.listened, [], seen.measured, [], planned, drift, head, workers, rails=seen.rails
        )
        return verify_report.report(outcome, sort_out(verify.judge(outcome)), "now")

    title = "with perftest" if tool else "without perftest"
    timed(f"verify's plan, {title}", plan)
    report = timed(f"verify's verdict, {title}", judge)
    found = ", ".join(sorted({finding["id"] for finding in report["findings"]}))
    size = len(json.dumps(rows)) / 1e6
    print(f"  {size:.2f} MB came from the nodes; {planned.left_out} pairs left out; found: {found}")


def main() -> None:
    """Print the figures."""
    names = [f"n{host}" for host in range(1, WORKERS + 2)]
    print(
        f"the plan of role fabric for {WORKERS} workers with {len(DGX_H100.cards)} RDMA devices each, and a small head"
    )
    with tempfile.TemporaryDirectory() as scratch:
        listened = {name: told(host, Path(scratch)) for host, name in enumerate(names, 1)}
    given: dict[str, Any] = {
        "names": names,
        "listened": listened,
        "measuring": {},
        "measured": {},
        "workers": names[1:],
    }
    plan = timed("whom to reach", lambda: next_step(reached={}, **given))
    rows = {name: [{**peer, "reason": "", "mtu": 1500} for peer in peers] for name, peers in plan["peers"].items()}
    given["reached"] = {name: {"reached": found} for name, found in rows.items()}
    timed("what to measure", lambda: next_step(**{**given, "measuring": listened}))
    row = {"error": "", "rtt_us": 50.0, "mbit_in": 900.0, "mbit_out": 900.0}
    links = [{**row, "node": "n3", "network": f"{start}.0/24"} for start in NETWORKS]
    given["measured"] = {"n2": {"measured": links}}
    done = timed("the choice", lambda: next_step(**given))
    print(f"  chosen: {done['msg']}")
    for tool in (True, False):
        prove(listened, done["files"], tool)


if __name__ == "__main__":
    main()
