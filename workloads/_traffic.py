"""What this node sent over its network, and what that carries: from the kernel's files in sysfs, without PyTorch."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# Of a port of an RDMA device, in units of 4 bytes (kernel documentation, stable/sysfs-class-infiniband).
RDMA_WORDS = "port_xmit_data"
WORD_BYTES = 4


class Sent(NamedTuple):
    """Bytes that this node has sent since it booted: over the NIC of the job, and over all RDMA devices."""

    nic: int
    rdma: int

    def since(self, before: "Sent") -> "Sent":
        """Give what was sent after `before`."""
        return Sent(self.nic - before.nic, self.rdma - before.rdma)


def sent(environ: Mapping[str, str], root: Path = Path("/")) -> Sent:
    """Read the counters. What cannot be read counts as 0."""
    nic = chosen_nic(environ)
    counter = root / "sys/class/net" / nic / "statistics/tx_bytes"
    ports = (root / "sys/class/infiniband").glob(f"*/ports/*/counters/{RDMA_WORDS}")
    return Sent(number(counter) if nic else 0, WORD_BYTES * sum(number(port) for port in ports))


def rates(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[float, float]:
    """Read what the NIC of the job and the RDMA devices that it is told to use carry, in Gbit/s; 0: not known.

    Source of both files and their units: kernel documentation, testing/sysfs-class-net (speed, in Mbit/s) and
    stable/sysfs-class-infiniband (rate, such as `100 Gb/sec (4X EDR)`).
    """
    nic = chosen_nic(environ)
    speed = number(root / "sys/class/net" / nic / "speed") if nic else 0
    told = [part.partition(":")[0] for part in environ.get("NCCL_IB_HCA", "").removeprefix("=").split(",")]
    ports = (root / "sys/class/infiniband").glob("*/ports/*/rate")
    rdma = sum(gigabits(port) for port in ports if port.parts[-4] in told)
    return max(0, speed) / 1000, rdma


def gigabits(path: Path) -> float:
    """Read the rate of a port, or 0."""
    try:
        return float(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


def chosen_nic(environ: Mapping[str, str]) -> str:
    """Name the NIC that the job's libraries are told to use; an empty text if none is named."""
    told = environ.get("GLOO_SOCKET_IFNAME") or environ.get("NCCL_SOCKET_IFNAME", "").removeprefix("=")
    return "" if "/" in told or told in ("", ".", "..") else told


def number(path: Path) -> int:
    """Read a counter, or 0."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def several_nodes(environ: Mapping[str, str]) -> bool:
    """Say whether ranks of this job run on other nodes too."""
    return environ.get("LOCAL_WORLD_SIZE", "1") != environ.get("WORLD_SIZE", "1")


def job_sends(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Sent | None:
    """Read the counters in a job on several nodes; None on one node, which sends nothing."""
    return sent(environ, root) if several_nodes(environ) else None


def job_rates(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[float, float] | None:
    """Read the rates in a job on several nodes; None on one node."""
    return rates(environ, root) if several_nodes(environ) else None
