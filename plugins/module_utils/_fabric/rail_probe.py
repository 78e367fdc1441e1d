# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The test of the rails between two nodes, in one direction: by RDMA, or by TCP over the NIC of each rail.

All rails are tried at once, with small and with full packets. Those by RDMA are measured then, too: the processor has
no part in it. TCP's rates are measured one after the other, because the processors of both nodes carry all of them.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

from . import perftest, probe
from .probe_types import RailStep, RailTest
from .unreached import Unreached, UnreachedCode, in_words

TURN_SECONDS = 90.0  # how long both nodes wait for each other: eight dead rails take a minute


def measure(name: str, step: RailStep) -> list[dict[str, object]]:
    """Return a row for each rail of a step: node, rail, peer, by, code, error; mbit and mtu if it works.

    A row has `since` and `address` if no answer came: probe.settle() says why.
    """
    rails = step["rails"]
    try:
        line, _hello = probe.greet(name, step["address"], step, 2.0)
        with line.socket:
            line.socket.settimeout(TURN_SECONDS)
            line.send(do="turn", round=step["round"], seconds=TURN_SECONDS)
            if not line.receive().get("go"):
                return [row_of(step, rail, UnreachedCode.NOT_READY, f"{step['node']} was not ready") for rail in rails]
            return in_turn(name, step)
    except (OSError, EOFError, ValueError) as error:
        _code, why = in_words(error, 2.0, "")
        return [
            row_of(step, rail, UnreachedCode.NOT_READY, f"{step['node']} over {step['address']}: {why}")
            for rail in rails
        ]


def in_turn(name: str, step: RailStep) -> list[dict[str, object]]:
    """Return the rows, while the other node serves no one else."""
    with ThreadPoolExecutor(len(step["rails"])) as pool:
        rows = list(pool.map(lambda rail: try_rail(name, step, rail), step["rails"]))
    for row, rail in zip(rows, step["rails"]):
        if rail["by"] == "tcp" and not row["code"]:
            try:
                row["mbit"] = probe.rate_out(name, step, rail["address"], rail["source"])
            except (OSError, EOFError, ValueError) as error:
                row["code"], row["error"] = in_words(error, 2.0, "")
    return rows


def row_of(step: RailStep, rail: RailTest, code: str = "", error: str = "") -> dict[str, object]:
    """Return a row without figures."""
    names = {"rail": rail["rail"], "peer": rail["peer"], "by": rail["by"]}
    return {"node": step["node"], **names, "code": code, "error": error}


def try_rail(name: str, step: RailStep, rail: RailTest) -> dict[str, object]:
    """Return the row of one rail."""
    row, since = row_of(step, rail), time.monotonic()
    try:
        found = by_tcp(name, step, rail) if rail["by"] == "tcp" else by_rdma(name, step, rail)
        return {**row, **found}
    except Unreached as error:
        return {**row, "code": error.code, "error": str(error)}
    except socket.timeout as error:
        code, why = in_words(error, 2.0, "")
        doubt = {"since": since, "address": rail["address"]} if rail["by"] == "tcp" else {}
        return {**row, "code": code, "error": why, **doubt}
    except (OSError, EOFError, ValueError) as error:
        code, why = in_words(error, 2.0, rail.get("address", ""))
        return {**row, "code": code, "error": why}


def by_tcp(name: str, step: RailStep, rail: RailTest) -> dict[str, object]:
    """Return the MTU that passes over the NIC of a rail. Raise Unreached, OSError, EOFError or ValueError."""
    probe.check_route(rail)
    probe.check_full(name, step, rail["address"], rail["mtu"], rail["source"])
    return {"mtu": rail["mtu"]}


def by_rdma(name: str, step: RailStep, rail: RailTest) -> dict[str, object]:
    """Return rate and MTU of a rail by RDMA. Raise Unreached, OSError, EOFError or ValueError.

    What passes with small messages and not with large ones loses full packets.
    """
    line, _hello = probe.greet(name, step["address"], step, 2.0)
    with line.socket:
        line.socket.settimeout(TURN_SECONDS)
        run_rdma(line, step, rail, perftest.SMALL)
        try:
            found = run_rdma(line, step, rail, perftest.LARGE)
        except Unreached as error:
            if error.code != UnreachedCode.RDMA_LOST:
                raise
            why = f"small packets pass, full ones do not: {error}"
            raise Unreached(UnreachedCode.SMALL_MTU, why) from None
    return {"mbit": found.mbit, "mtu": found.mtu}


def run_rdma(line: probe.Line, step: RailStep, rail: RailTest, size: tuple[str, str]) -> perftest.Figures:
    """Return what one run measures: the other node's agent starts the server. Raise Unreached."""
    line.send(do="rdma", **rail["other"], size=size)
    answer = line.receive()
    if answer.get("error"):
        raise Unreached(UnreachedCode.NO_TOOL, f"on {step['node']}: {str(answer['error'])[:200]}")
    port, end = int(probe.figure(answer, "port", 65535)), time.monotonic() + perftest.START_SECONDS
    text = perftest.WAITING
    try:
        while perftest.WAITING in text and time.monotonic() < end:
            time.sleep(0.1)
            text = perftest.run_client(perftest.port_of(rail["own"]), port, size, step["address"])
    except OSError as error:
        raise Unreached(UnreachedCode.NO_TOOL, f"{perftest.TOOL}: {error.strerror or error}") from None
    finally:
        line.send(do="over")
    found = perftest.figures(text)
    if not found:
        raise perftest.fault(text)
    return found
