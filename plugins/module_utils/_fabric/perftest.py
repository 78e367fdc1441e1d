# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ib_write_bw of perftest, which measures RDMA between two ports: its command lines, its server, and what it prints.

It needs no root, where the devices are open to the user (rdma-core) and memory may be locked. Its two programs find
each other over TCP, without a secret: so a server lives for seconds, and takes one client.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from typing import Iterator, Mapping, NamedTuple

from .unreached import Unreached, UnreachedCode

TOOL = "ib_write_bw"
SECONDS = 20.0  # for one run: the card gives up a lost packet after 4 (timeout 14, 7 attempts)
START_SECONDS = 5.0  # until a server listens
SMALL = ("64", "10")  # bytes of a message, and how many: each fits into one packet
LARGE = ("1048576", "1000")  # 1 GB, in packets of the full size: 20 ms at 400 Gbit/s
FIGURES = re.compile(r"^ *\d+ +\d+ +[\d.]+ +([\d.]+)\s+[\d.]+ *$", re.MULTILINE)
UNIT = "BW average[Gb/sec]"
MTU = re.compile(r"^ *Mtu +: (\d{1,5})\[B\]", re.MULTILINE)
STATUS = re.compile(r"Failed status (\d{1,3})")  # of a work completion: ibv_wc_status
LOST = "Completion with error"  # after a packet that was never acknowledged, above all (status 12)
WAITING = "Couldn't connect to"  # the server does not listen yet
DEVICE = re.compile(r"[\w.-]{1,64}\Z")


class Port(NamedTuple):
    """An RDMA port: device, number of its port, and index of the GID to use (RoCE; None: InfiniBand)."""

    device: str
    port: int
    gid_index: int | None


class Figures(NamedTuple):
    """What a run measured: Mbit/s, and the MTU of the packets in bytes (None if it was not told)."""

    mbit: float
    mtu: int | None


def tool() -> str:
    """Return the path of the program; empty if it is not installed."""
    return shutil.which(TOOL) or ""


def port_of(given: Mapping[str, object]) -> Port:
    """Return the port of a message. Raise ValueError for one that is none."""
    device, index = str(given["device"]), given.get("gid_index")
    if not DEVICE.match(device) or device.startswith("-"):
        raise ValueError("no device")
    return Port(device, int(str(given["port"])), None if index is None else int(str(index)))


def argv(path: str, own: Port, listener: int, size: tuple[str, str], server: str = "") -> list[str]:
    """Return the command line: of the server, or of the client if the address of a server is given.

    It is ended after some seconds even if its parent is killed (timeout of coreutils).
    """
    gid = [] if own.gid_index is None else ["--gid-index", str(own.gid_index)]
    words = ["--ib-dev", own.device, "--ib-port", str(own.port), *gid, "--port", str(listener), "--report_gbits"]
    limit = ["timeout", "--kill-after", "2", str(SECONDS + START_SECONDS)]
    return [*limit, path, *words, "--CPU-freq", "--size", size[0], "--iters", size[1], *([server] if server else [])]


@contextlib.contextmanager
def served(own: Port, listener: int, size: tuple[str, str]) -> Iterator[None]:
    """Run the server of one measurement until the block ends. Raise OSError if it cannot be started."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv(tool() or TOOL, own, listener, size), stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def run_client(own: Port, listener: int, size: tuple[str, str], server: str) -> str:
    """Return what the client printed. Raise OSError if it cannot be started."""
    words = argv(tool() or TOOL, own, listener, size, server)
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False
    )
    return done.stdout[: 1 << 16].decode("utf-8", "replace") + ("\ntimed out" if done.returncode in (124, 137) else "")


def figures(text: str) -> Figures | None:
    """Return what a client measured, from its output; None if it measured nothing."""
    rows = FIGURES.findall(text[text.find(UNIT) :]) if UNIT in text else []
    mtu = MTU.search(text)
    if not rows or LOST in text:
        return None
    try:
        return Figures(round(float(rows[-1]) * 1000, 1), int(mtu.group(1)) if mtu else None)
    except ValueError:
        return None


def fault(text: str) -> Unreached:
    """Return why a client measured nothing: `rdma-lost` if packets do not arrive, `no-tool` if it could not try."""
    if LOST in text:
        status = STATUS.search(text)
        told = f"status {status.group(1)} of {TOOL}" if status else TOOL
        return Unreached(UnreachedCode.RDMA_LOST, f"no acknowledgement by RDMA ({told})")
    lines = [line.strip() for line in text.splitlines() if line.strip(" -*\t")]
    if lines[-1:] == ["timed out"]:
        return Unreached(UnreachedCode.RDMA_LOST, f"no answer by RDMA within {SECONDS:g} s ({TOOL})")
    return Unreached(UnreachedCode.NO_TOOL, f"{TOOL}: {(lines or ['it printed nothing'])[-1][:200]}")
