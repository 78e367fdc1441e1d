# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether an all-reduce was as fast as the network allows, and went over it: the findings of its figures. Pure.

Rates are in GB/s of bus bandwidth (10^9 bytes a second, as nccl-tests and all_reduce_bench tell them).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Fabric
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import rails_in_use
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .findings import Finding, Rule, found
from .nccl_log import SOCKET, Transport

# Of what RDMA can carry by its link rates. A sound cluster reaches 80 to 95 % with large messages (nccl-tests).
RDMA_SHARE = 0.5
# Of the bytes that a node must send at least: protocols of MPI and NCCL send more, none sends less.
SENT_SHARE = 0.4
# Of the stored baseline. Between two runs on GPUs a few percent are usual. Processors that others use too vary by far
# more: by up to three times on two busy cores.
BASELINE_SHARE = {"cuda": 0.7, "cpu": 0.3}

RULES: Mapping[str, Rule] = {
    "TF-VERIFY-TRANSPORT": Rule(
        "error",
        "NCCL does not use RDMA",
        "over TCP an all-reduce is about ten times slower than over InfiniBand or RoCE",
        "NCCL's own log (NCCL_DEBUG=INFO)",
        "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL), allow locked memory "
        "(ulimit -l unlimited), and look for NCCL_IB_DISABLE in the environment of the job",
    ),
    "TF-VERIFY-RAILS": Rule(
        "warning",
        "NCCL does not use all RDMA devices",
        "each device that is not used takes its share of the bandwidth away",
        "NCCL's own log (NCCL_DEBUG=INFO)",
        "compare with NCCL_IB_HCA: ansible-playbook train.yml --check",
    ),
    "TF-VERIFY-ROUTE": Rule(
        "error",
        "the data of an all-reduce went over another network",
        "the chosen network is not used: another one may be slow, or fail under load",
        "counters of the NIC and of the RDMA devices, before and after",
        "look for variables that name another NIC (torchfleet_env, job_env), and choose again: "
        "ansible-playbook setup.yml --tags fabric",
    ),
    "TF-VERIFY-FLOOR": Rule(
        "error",
        "an all-reduce is too slow",
        "training on several nodes would wait for the network most of the time",
        "the floor is verify_floor_gbps, or half of what the RDMA devices can carry",
        "see the slowest link above, and measure by hand: "
        "ansible-playbook train.yml -e workload=all_reduce_bench -e launcher={launcher} -e backend={backend}",
    ),
    "TF-VERIFY-SLOWER": Rule(
        "warning",
        "an all-reduce is slower than before",
        "something became worse since the baseline was stored",
        "measured against verify_baseline",
        "compare the reports; if the cluster was changed on purpose: "
        "ansible-playbook verify.yml -e verify_baseline_reset=true",
    ),
}


@dataclass(frozen=True)
class Speed:
    """The figures of one all-reduce run. GB are 10^9 bytes; None: the run did not tell.

    `nic_sent`, `rdma_sent`: of the node that sent least.
    """

    launcher: str
    backend: str
    device: str  # torch's name of the device whose tensors the backend carries: cpu, cuda, xpu
    world_size: int
    busbw: float
    reduced: float = 0.0
    nic_sent: float | None = None
    rdma_sent: float | None = None
    transport: Transport = field(default_factory=Transport)

    @property
    def carrier(self) -> str:
        """Return what carried the data between nodes; empty within one node."""
        if self.transport.is_known:
            return str(self.transport)
        if self.nic_sent is None or self.rdma_sent is None:
            return ""
        return "RDMA" if self.rdma_sent > self.nic_sent else "NIC"


@dataclass(frozen=True)
class Network:
    """What carries the data: the nodes, the RDMA devices that each of them has at least, and what these carry."""

    nodes: tuple[str, ...]  # the workers that have a fabric.json
    rails: int = 0
    rdma_gbps: float = 0.0  # GB/s, of the node that has least
    cluster: str = ""

    def key(self, speed: Speed) -> str:
        """Return the name of a run in the baseline: other nodes, and another cluster, have figures of their own."""
        return f"{self.old_key(speed)} of {self.cluster}" if self.cluster else self.old_key(speed)

    def old_key(self, speed: Speed) -> str:
        """Return the name that a run had before clusters were told apart."""
        return f"{speed.launcher} {speed.backend} {speed.world_size} on {fold_names(self.nodes)}"


def network_of(fabrics: Mapping[str, Fabric], ports: Mapping[str, Mapping[str, float]], cluster: str = "") -> Network:
    """Return the network of the workers, from their fabric.json and from the rate in Gbit/s of each RDMA device."""
    rates = [
        [ports.get(name, {}).get(rail["device"], 0.0) for rail in rails_in_use(each)] for name, each in fabrics.items()
    ]
    rails = min((len(own) for own in rates), default=0)
    return Network(tuple(fabrics), rails, min((sum(own) for own in rates), default=0.0) / 8, cluster)


def judge_speed(
    speeds: Sequence[Speed], network: Network, floor: float | None, baseline: Mapping[str, float]
) -> Iterator[Finding]:
    """Yield the findings about the speed of all-reduces. `floor`: in GB/s, for every run; None: by the network."""
    for speed in speeds:
        words = {"launcher": speed.launcher, "backend": speed.backend}
        title = f"{speed.launcher} with {speed.backend}"
        for rule, seen in (*path_faults(speed, network), *rate_faults(speed, network, floor, baseline)):
            yield found(RULES, rule, [], f"{title}: {seen}", **words)


def path_faults(speed: Speed, network: Network) -> Iterator[tuple[str, str]]:
    """Yield rule and observation for data that took another way than the chosen network."""
    transport = speed.transport
    if network.rails and SOCKET in transport.plugins:
        yield "TF-VERIFY-TRANSPORT", f"it used {transport}; every worker has {devices(network.rails)}"
    elif network.rails and transport.plugins and len(transport.devices) < network.rails:
        yield "TF-VERIFY-RAILS", f"it used {transport}; every worker has {devices(network.rails)}"
    if len(network.nodes) < 2 or speed.nic_sent is None or speed.rdma_sent is None or transport.nvlink:
        return  # what goes over NVLink is in no counter of a NIC
    least = speed.reduced * (len(network.nodes) - 1) / len(network.nodes) * SENT_SHARE
    carried = f"a node sent {speed.nic_sent:.3g} GB over its NIC and {speed.rdma_sent:.3g} GB by RDMA"
    if speed.nic_sent + speed.rdma_sent < least:
        yield "TF-VERIFY-ROUTE", f"{carried}, and {speed.reduced:.3g} GB were reduced"
    elif network.rails and speed.backend == "nccl" and not transport.is_known and speed.rdma_sent < speed.nic_sent:
        yield "TF-VERIFY-TRANSPORT", f"its log does not say what it used; {carried}"


def devices(count: int) -> str:
    """Return "1 RDMA device", "8 RDMA devices"."""
    return f"{count} RDMA device{'s' * (count != 1)}"


def rate_faults(
    speed: Speed, network: Network, floor: float | None, baseline: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Yield rule and observation for an all-reduce that is too slow."""
    least = floor if floor is not None else default_floor(speed, network)
    if speed.busbw < least:
        yield "TF-VERIFY-FLOOR", f"{speed.busbw:.3g} GB/s; at least {least:.3g} GB/s are expected"
    before = baseline.get(network.key(speed))
    alone = speed.device == "cpu" and len(network.nodes) < 2  # what it measures is the machine's load
    if before and not alone and speed.busbw < before * BASELINE_SHARE.get(speed.device, BASELINE_SHARE["cuda"]):
        yield "TF-VERIFY-SLOWER", f"{speed.busbw:.3g} GB/s; the baseline is {before:.3g} GB/s"


def default_floor(speed: Speed, network: Network) -> float:
    """Return the least bus bandwidth that an all-reduce of GPUs must have over RDMA, in GB/s; else 0."""
    return RDMA_SHARE * network.rdma_gbps if speed.device != "cpu" and len(network.nodes) > 1 else 0.0


def measured_anew(speeds: Sequence[Speed], network: Network, baseline: Mapping[str, float]) -> list[str]:
    """Return a line about rates of a baseline that may be those of another cluster with nodes of the same names."""
    old = [speed for speed in speeds if network.key(speed) not in baseline and network.old_key(speed) in baseline]
    if not old:
        return []
    rates = "1 rate" if len(old) == 1 else f"{len(old)} rates"
    return [f"baseline: {rates} without the name of a cluster, so not compared; what was measured now is stored"]


def merged_baseline(stored: Mapping[str, float], speeds: Sequence[Speed], network: Network) -> dict[str, float]:
    """Return the baseline to store: the best rate ever seen of each run, in GB/s."""
    kept = dict(stored)
    for speed in speeds:
        key = network.key(speed)
        kept[key] = max(kept.get(key, 0.0), speed.busbw)
    return dict(sorted(kept.items()))


def report(speed: Speed) -> dict[str, object]:
    """Return the figures as plain values for JSON; rates in GB/s, amounts in GB."""
    return {
        "launcher": speed.launcher,
        "backend": speed.backend,
        "world_size": speed.world_size,
        "busbw_gbps": speed.busbw,
        "reduced_gb": speed.reduced,
        "nic_sent_gb": speed.nic_sent,
        "rdma_sent_gb": speed.rdma_sent,
        "transport": str(speed.transport) if speed.transport.is_known else "",
    }
