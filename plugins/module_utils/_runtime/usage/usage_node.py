# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What /proc and /sys of a node say of CPU, memory, disks, network and processes. Nothing is raised.

All of it can be read without root. `root` is where /proc, /sys and /dev are looked for.
"""

from __future__ import annotations

import glob
import os
import re
from typing import NamedTuple

from ..types.usage import NAME, NIC
from .usage_series import Counters

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
READ_BYTES = 1 << 18  # of one file
NICS_MOST, PORTS_MOST = 8, 8  # of a node that are sampled
RATE = re.compile(r"([0-9.]+) Gb/sec")  # of an RDMA port
RDMA_WORD = 4  # bytes: port_rcv_data and port_xmit_data count these (IBTA, PortCounters)
CGROUP = "sys/fs/cgroup"


class Devices(NamedTuple):
    """What a node has that is sampled, looked up once."""

    nics: tuple[str, ...]
    ports: tuple[tuple[str, str], ...]  # RDMA: "mlx5_0:1", and its directory
    cgroup: str  # a directory whose memory.max is the lowest above us; empty: none has a limit
    cores: int
    limits: dict[str, float]  # by series


class Taken(NamedTuple):
    """What one process has taken."""

    started: int  # ticks since boot: tells it from a later process with the same pid
    cpu: int  # ticks, with those of children that it waited for
    memory: int  # bytes


def read(path: str) -> bytes:
    """Return what is in a file; nothing if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def whole(text: bytes) -> int:
    """Return a whole number of at least 0; -1 if it is none."""
    text = text.strip()
    return int(text) if text.isdigit() else -1


def devices(nic: str, root: str = "/") -> Devices:
    """Return what is to be sampled. `nic`: the one that carries the job; the others are those of hardware."""
    net = os.path.join(root, "sys/class/net")
    there = [os.path.basename(path) for path in sorted(glob.glob(os.path.join(net, "*")))]
    hardware = [name for name in there if os.path.exists(os.path.join(net, name, "device"))]
    nics = tuple(name for name in dict.fromkeys([nic, *hardware]) if name in there and NIC.match(name))[:NICS_MOST]
    found = sorted(glob.glob(os.path.join(root, "sys/class/infiniband/*/ports/*")))[:PORTS_MOST]
    ports = tuple((f"{path.split(os.sep)[-3]}:{os.path.basename(path)}", path) for path in found)
    ports = tuple(port for port in ports if NAME.match(f"rdma_rx.{port[0]}"))
    limits: dict[str, float] = {}
    for name in nics:
        speed = whole(read(os.path.join(net, name, "speed")))  # Mbit/s; -1 where it is not known
        if speed > 0:
            limits[f"rx.{name}"] = limits[f"tx.{name}"] = speed * 1e6 / 8
    for name, path in ports:
        rate = RATE.match(read(os.path.join(path, "rate")).decode(errors="replace"))
        if rate:
            limits[f"rdma_rx.{name}"] = limits[f"rdma_tx.{name}"] = float(rate.group(1)) * 1e9 / 8
    cores = len([line for line in read(os.path.join(root, "proc/stat")).split(b"\n") if re.match(rb"cpu\d", line)])
    cgroup, limit = limited_cgroup(root)
    memory = meminfo(root).get(b"MemTotal", -1)
    if memory > 0:
        limits["memory"] = limits["available"] = float(min(memory, limit) if cgroup else memory)
    limits["cpu_node"] = float(cores)
    shm = shared_memory(root)
    if shm:
        limits["shm"] = float(shm[1])
    return Devices(nics, ports, cgroup, max(1, cores), limits)


def limited_cgroup(root: str) -> tuple[str, int]:
    """Return the cgroup (version 2) above us with the lowest limit of memory, and its bytes; empty: none has one."""
    line = next((line for line in read(os.path.join(root, "proc/self/cgroup")).split(b"\n") if line[:3] == b"0::"), b"")
    place, found = line[3:].decode(errors="surrogateescape").strip("/"), ("", 0)
    while True:
        here = os.path.join(root, CGROUP, place)
        limit = whole(read(os.path.join(here, "memory.max")))  # "max": none
        if limit > 0 and (not found[0] or limit < found[1]):
            found = here, limit
        if not place:
            return found
        place = os.path.dirname(place)


def meminfo(root: str) -> dict[bytes, int]:
    """Return /proc/meminfo in bytes."""
    rows = (line.partition(b":") for line in read(os.path.join(root, "proc/meminfo")).split(b"\n"))
    found = {name: whole(value.split(b"kB")[0]) for name, _colon, value in rows}
    return {name: value << 10 for name, value in found.items() if value >= 0}


def shared_memory(root: str) -> tuple[int, int] | None:
    """Return the bytes in /dev/shm, and how many it can have. None if it has no limit, or is not there."""
    try:
        found = os.statvfs(os.path.join(root, "dev/shm"))
    except OSError:
        return None
    return (
        ((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize) if found.f_blocks else None
    )


def counters(known: Devices, root: str = "/") -> Counters:
    """Return all counters of the node, by the name of their series."""
    found: Counters = {}
    ticks = [whole(word) for word in read(os.path.join(root, "proc/stat")).split(b"\n", 1)[0].split()[1:9]]
    if len(ticks) == 8 and min(ticks) >= 0:
        user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
        found["cpu_node"] = user + nice + system + irq + softirq, 1 / TICKS
        found["steal"] = steal, 1 / TICKS
    words = (line.split() for line in read(os.path.join(root, "proc/vmstat")).split(b"\n"))
    pages = {row[0]: whole(row[1]) for row in words if len(row) == 2}
    if min(pages.get(name, -1) for name in (b"pswpin", b"pswpout")) >= 0:
        found["swap"] = pages[b"pswpin"] + pages[b"pswpout"], PAGE
    for name, field in (("disk_read", b"pgpgin"), ("disk_write", b"pgpgout")):
        if pages.get(field, -1) >= 0:
            found[name] = pages[field], 1024  # whatever the size of a page
    return {**found, **network_counters(known, root)}


def network_counters(known: Devices, root: str) -> Counters:
    """Return the bytes of NICs and RDMA ports."""
    found: Counters = {}
    for line in read(os.path.join(root, "proc/net/dev")).split(b"\n")[2:]:
        name, _colon, rest = line.decode(errors="replace").partition(":")
        words = rest.split()
        if name.strip() in known.nics and len(words) >= 9 and words[0].isdigit() and words[8].isdigit():
            found[f"rx.{name.strip()}"], found[f"tx.{name.strip()}"] = (int(words[0]), 1), (int(words[8]), 1)
    for port, path in known.ports:
        for series, file in (("rdma_rx", "port_rcv_data"), ("rdma_tx", "port_xmit_data")):
            count = whole(read(os.path.join(path, "counters", file)))
            if count >= 0:
                found[f"{series}.{port}"] = count, RDMA_WORD
    return found


def gauges(known: Devices, root: str = "/") -> dict[str, float]:
    """Return what is at this moment, by the name of its series."""
    found: dict[str, float] = {}
    available = meminfo(root).get(b"MemAvailable")
    if known.cgroup and available is not None:
        used = whole(read(os.path.join(known.cgroup, "memory.current")))
        rows = (line.split() for line in read(os.path.join(known.cgroup, "memory.stat")).split(b"\n"))
        cache = next((whole(row[1]) for row in rows if row[:1] == [b"inactive_file"] and len(row) == 2), 0)
        if used >= 0:  # what the kernel would drop first is not in use
            available = min(available, max(0, int(known.limits["available"]) - max(0, used - max(0, cache))))
    if available is not None:
        found["available"] = float(available)
    shm = shared_memory(root)
    if shm:
        found["shm"] = float(shm[0])
    return found


def taken(pid: int, root: str = "/") -> Taken | None:
    """Return what a process has taken until now; None if it is gone."""
    fields = read(os.path.join(root, f"proc/{pid}/stat")).rpartition(b")")[2].split()  # its name may hold anything
    numbers = [whole(word) for word in fields[11:22]]
    if len(numbers) < 11 or fields[0] in (b"Z", b"X"):
        return None
    cpu = sum(max(0, ticks) for ticks in numbers[:4])  # utime, stime, cutime, cstime
    return Taken(numbers[8], cpu, max(0, numbers[10]) * PAGE)


def waited(pid: int, root: str = "/") -> int:
    """Return for how many nanoseconds the main thread of a process waited for a CPU; -1 if the kernel does not tell."""
    words = read(os.path.join(root, f"proc/{pid}/schedstat")).split()
    return whole(words[1]) if len(words) == 3 else -1
