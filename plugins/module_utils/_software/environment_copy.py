# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sends an environment over the SSH mesh to machines of the same kind, and receives it there.

A receiver may have no files of torchfleet yet. So the sender starts Python there with START, and writes the text of
these modules to its stdin, followed by the environment as a tar stream.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Sequence, TypedDict

from . import build_errors, environment, environment_files, interpreter, remote_program, versions
from .environment import (
    PROOF,
    Receipt,
    has_pins,
    installed,
    is_made_from,
    is_whole,
    read_receipt,
    write_receipt,
)
from .environment_files import RECEIPT, NotMadeError, locked, remove_leftovers, replaced, run
from .remote_program import RemoteProgram, ask

# How many machines one machine sends to at a time: the receivers need longer to unpack than the sender to send.
SENT_AT_A_TIME = 4
SEND_SECONDS = 3600.0  # for one machine: it may wait for a lock, and then gets some GB
QUESTION_SECONDS = 60.0
ERROR_CHARACTERS = 300
SEND = "send"  # the line with which a receiver asks for the tar stream
PACKAGE = "torchfleet_environment"
# The modules that a receiver needs, each after those that it imports.
FILES = (build_errors, environment_files, interpreter, versions, environment, remote_program)
START = f"""
import io, json, sys, types
order = json.loads(io.FileIO(0, closefd=False).readline())
package = sys.modules["{PACKAGE}"] = types.ModuleType("{PACKAGE}")
package.__path__ = []
for name, text in order["files"]:
    module = sys.modules["{PACKAGE}." + name] = types.ModuleType("{PACKAGE}." + name)
    module.__package__ = "{PACKAGE}"
    setattr(package, name, module)
    exec(compile(text, name + ".py", "exec"), module.__dict__)
module.serve(order)
"""


class Course(TypedDict):
    """The fields of a Transfer that the controller gives: from where to where."""

    path: str
    mesh: str
    to: list[str]
    senders: list[str]
    source: str


class Fields(Course):
    """All fields of a Transfer, as an order has them."""

    python: str
    packages: list[str]
    receipt: Receipt | None
    left_out: list[str]


class Order(TypedDict):
    """What START reads: see order()."""

    verb: str  # receive or send
    transfer: Fields
    files: list[list[str]]  # name and text of each


@dataclass(frozen=True)
class Transfer:
    """An environment to send, and the hosts that receive it."""

    path: str
    python: str  # the interpreter of the receivers
    packages: list[str]
    mesh: str  # the configuration of ssh
    to: list[str]  # hosts of the mesh
    senders: list[str]  # those that can send it on
    source: str = ""  # the host that has it; "" for this one
    receipt: Receipt | None = None  # of the source
    left_out: list[str] = field(default_factory=list)  # what lies in it and is sent apart


# --- on the machine that receives -------------------------------------------------------------------------------------


def receive(transfer: Transfer) -> None:
    """Unpack the environment from stdin, unless it is there (machines may share a home). Raise NotMadeError."""
    path, receipt = Path(transfer.path), transfer.receipt or {}
    with locked(path):
        remove_leftovers(path)
        if is_there(transfer):
            return
        print(SEND, flush=True)
        with replaced(path):
            path.mkdir()
            run(["tar", "--extract", "--no-same-owner", "--file", "-", "--directory", str(path)], "it arrived in part")
            write_receipt(path, receipt)


def is_there(transfer: Transfer) -> bool:
    """Whether the environment with this receipt is there and complete."""
    path, receipt = Path(transfer.path), transfer.receipt or {}
    version = str(receipt.get("python", ""))
    runs = os.access(str(path / "bin" / "python"), os.X_OK) and read_receipt(path) == receipt
    return runs and has_pins(installed(path, version), transfer.packages) and is_whole(path, version)


def try_to_receive(transfer: Transfer) -> dict[str, str]:
    """Return {"error": the error, or ""}."""
    try:
        receive(transfer)
        return {"error": ""}
    except (NotMadeError, OSError) as error:
        return {"error": str(error)}


def serve(order: Order) -> None:
    """Run the verb of an order from the sender, and print the answer as JSON."""
    SENT_FILES.extend((name, text) for name, text in order["files"])
    does = {"receive": try_to_receive, "send": send}
    print(json.dumps(does[order["verb"]](Transfer(**order["transfer"]))))


# --- on the machine that sends ----------------------------------------------------------------------------------------

SENT_FILES: list[tuple[str, str]] = []  # what was sent here, or read at the first use where the modules are imported


def files() -> list[tuple[str, str]]:
    """Return name and text of the files that another machine needs, this one last."""
    if not SENT_FILES:
        modules = [*FILES, sys.modules[__name__]]
        SENT_FILES.extend((module.__name__.rpartition(".")[2], inspect.getsource(module)) for module in modules)
    return SENT_FILES


def on_host(transfer: Transfer, host: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs another one on a host of the mesh."""
    mesh = os.path.expanduser(transfer.mesh)
    return ["ssh", "-F", mesh, host, " ".join(shlex.quote(word) for word in argv)]


def program_on(transfer: Transfer, host: str) -> list[str]:
    """Return the command that runs START on a host of the mesh. The order is written to its stdin."""
    return on_host(transfer, host, [transfer.python, "-I", "-c", START])


def order(verb: str, transfer: Transfer) -> bytes:
    """Return the order for START on another host: verb, transfer and modules."""
    return json.dumps({"verb": verb, "transfer": asdict(transfer), "files": files()}).encode() + b"\n"


def tar_of(transfer: Transfer) -> list[str]:
    """Return the command that writes the environment to stdout."""
    left_out = [f"--exclude=./{name}" for name in (RECEIPT, PROOF, *transfer.left_out)]
    tar = ["tar", "--create", "--file", "-", *left_out, "--directory", transfer.path, "."]
    return on_host(transfer, transfer.source, tar) if transfer.source else tar


def send_to(transfer: Transfer, host: str) -> str:
    """Send the environment to a host. Return the error, or ""."""
    sent = 0
    with RemoteProgram(program_on(transfer, host), SEND_SECONDS) as receiver:
        receiver.write(order("receive", transfer))
        answer = receiver.line()
        if answer.strip() == SEND.encode():
            sent = receiver.feed(tar_of(transfer))
            answer = receiver.rest()
    error = receiver.limit or error_in(answer, receiver.error)
    if sent and not error:  # what was read is not the whole environment
        ask(on_host(transfer, host, ["rm", "--force", f"{transfer.path}/{RECEIPT}"]), QUESTION_SECONDS)
        error = receiver.error if receiver.last else f"tar ended with status {sent}"
    return error[:ERROR_CHARACTERS]


def error_in(answer: bytes, otherwise: str) -> str:
    """Return the error in an answer of `receive`; `otherwise` if the answer is invalid."""
    try:
        return str(json.loads(answer.decode())["error"])
    except (ValueError, LookupError, TypeError):
        return otherwise


def send_on(transfer: Transfer, host: str, others: list[str]) -> dict[str, str]:
    """Let a host that has the environment send it to others. Return its answer, as of send()."""
    seconds = SEND_SECONDS * (1 + len(others).bit_length())  # at least the levels of the tree below that host
    there = order("send", replace(transfer, to=others, source=""))
    said, error = ask(program_on(transfer, host), seconds, there)
    try:
        answer = json.loads(said.decode())
        return {other: str(answer[other])[:ERROR_CHARACTERS] for other in others}
    except (ValueError, LookupError, TypeError):
        why = error or "its answer is invalid"
        return dict.fromkeys(others, f"{host}, which was to send it on, failed: {why}"[:ERROR_CHARACTERS])


def branch(transfer: Transfer, hosts: list[str]) -> dict[str, str]:
    """Send it to the first host, and from there to the others if that host can reach them."""
    first, others = hosts[0], hosts[1:]
    answer = {first: send_to(transfer, first)}
    if others and not answer[first] and first in transfer.senders:
        answer.update(send_on(transfer, first, others))
    else:
        answer.update((other, send_to(transfer, other)) for other in others)
    return answer


def send(transfer: Transfer) -> dict[str, str]:
    """Return the error of each host, or "". The hosts form a tree, so the time grows with log N."""
    hosts = transfer.to
    branches = [hosts[first::SENT_AT_A_TIME] for first in range(min(SENT_AT_A_TIME, len(hosts)))]
    answer: dict[str, str] = {}
    from concurrent.futures import ThreadPoolExecutor  # takes long to import, and only sending needs it

    files()  # here, for two threads that read texts with `inspect` at once fail each other
    with ThreadPoolExecutor(len(branches) or 1) as pool:
        for part in pool.map(lambda some: branch(transfer, some), branches):
            answer.update(part)
    return answer


def receipt_at_source(transfer: Transfer) -> Receipt | None:
    """Return the receipt of the source, or None if it has none."""
    if not transfer.source:
        return read_receipt(Path(transfer.path))
    argv = on_host(transfer, transfer.source, ["cat", f"{transfer.path}/{RECEIPT}"])
    said, _error = ask(argv, QUESTION_SECONDS)
    try:
        receipt = json.loads(said.decode())
    except ValueError:
        return None
    return receipt if isinstance(receipt, dict) else None


def send_what_is_wanted(transfer: Transfer, wanted: Receipt) -> dict[str, str]:
    """Send the environment if the source has the requested one. Return the answer of send()."""
    receipt = receipt_at_source(transfer)
    if receipt is None or not is_made_from(receipt, {**wanted, "python": receipt.get("python")}):
        return dict.fromkeys(transfer.to, f"{transfer.source or 'the machine that has it'} has not finished it")
    return send(replace(transfer, receipt=receipt))
