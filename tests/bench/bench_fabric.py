"""What role fabric's plan costs the controller for 64 simulated machines with eight GPUs: part of `make bench`.

The nodes are values, not machines: what is measured is the choice itself, and how much JSON it sends to the nodes.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric import rdma
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import next_step
from tests.unit.machines import DGX_H100, build

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
    print(f"  {what:<24} {statistics.median(seconds):.3f} s, {size / 1e6:.2f} MB of JSON")
    return answer


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


if __name__ == "__main__":
    main()
