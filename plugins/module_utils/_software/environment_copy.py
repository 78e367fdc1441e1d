# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sending an environment over the SSH mesh to machines of the same kind, and receiving it there.

A machine that receives has nothing of ours yet. So the sender writes the text of these files to Python there, ahead of
the environment (a tar stream): shells and lists of processes see only START.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Sequence

from . import build_errors, environment, environment_files, interpreter, remote_program
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

# How many machines one machine sends to at a time: unpacking takes longer than what a network card can bring.
SENT_AT_A_TIME = 4
SEND_SECONDS = 3600.0  # for one machine: it may wait for a lock, and then gets some GB
QUESTION_SECONDS = 60.0
ERROR_CHARACTERS = 300
SEND = "send"  # the line of a receiver that wants it
PACKAGE = "torchfleet_environment"
# What a receiver needs of our files, each after those that it imports.
FILES = (build_errors, environment_files, interpreter, environment, remote_program)
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


@dataclass(frozen=True)
class Transfer:
    """What is to be sent, and to whom."""

    path: str
    python: str  # the interpreter of the receivers
    packages: list[str]
    mesh: str  # the configuration of ssh
    to: list[str]  # hosts of the mesh
    senders: list[str]  # those that can send it on
    source: str = ""  # the host that has it; "" for this one
    receipt: Receipt | None = None  # of the source


# --- on the machine that receives -------------------------------------------------------------------------------------


def receive(transfer: Transfer) -> None:
    """Take the environment from stdin, unless it is there (as on machines that share a home). NotMadeError."""
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
    """Whether the environment is there, as its receipt has it, and whole."""
    path, receipt = Path(transfer.path), transfer.receipt or {}
    version = str(receipt.get("python", ""))
    runs = os.access(str(path / "bin" / "python"), os.X_OK) and read_receipt(path) == receipt
    return runs and has_pins(installed(path, version), transfer.packages) and is_whole(path, version)


def try_to_receive(transfer: Transfer) -> dict[str, str]:
    """Return {"error": "" or what went wrong}."""
    try:
        receive(transfer)
        return {"error": ""}
    except (NotMadeError, OSError) as error:
        return {"error": str(error)}


def serve(order: dict[str, Any]) -> None:
    """Do what the sender of this program asks for, and print the answer."""
    SENT_FILES.extend((name, text) for name, text in order["files"])
    does = {"receive": try_to_receive, "send": send}
    print(json.dumps(does[order["verb"]](Transfer(**order["transfer"]))))


# --- on the machine that sends ----------------------------------------------------------------------------------------

SENT_FILES: list[tuple[str, str]] = []  # as they were sent to this machine; none where it has them as modules


def files() -> list[tuple[str, str]]:
    """Return name and text of the files that another machine needs, this one last."""
    modules = [*FILES, sys.modules[__name__]]
    return SENT_FILES or [(module.__name__.rpartition(".")[2], inspect.getsource(module)) for module in modules]


def on_host(transfer: Transfer, host: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs another one on a host of the mesh."""
    mesh = os.path.expanduser(transfer.mesh)
    return ["ssh", "-F", mesh, host, " ".join(shlex.quote(word) for word in argv)]


def program_on(transfer: Transfer, host: str) -> list[str]:
    """Return the command that runs this program on a host of the mesh; what to do is written to it."""
    return on_host(transfer, host, [transfer.python, "-I", "-c", START])


def order(verb: str, transfer: Transfer) -> bytes:
    """Return what is written to this program on another host."""
    return json.dumps({"verb": verb, "transfer": asdict(transfer), "files": files()}).encode() + b"\n"


def tar_of(transfer: Transfer) -> list[str]:
    """Return the command that writes the environment to stdout."""
    left_out = [f"--exclude=./{name}" for name in (RECEIPT, PROOF)]
    tar = ["tar", "--create", "--file", "-", *left_out, "--directory", transfer.path, "."]
    return on_host(transfer, transfer.source, tar) if transfer.source else tar


def send_to(transfer: Transfer, host: str) -> str:
    """Bring the environment to a host. Return "" or what went wrong."""
    sent = 0
    with RemoteProgram(program_on(transfer, host), SEND_SECONDS) as receiver:
        receiver.write(order("receive", transfer))
        answer = receiver.line()
        if answer.strip() == SEND.encode():
            sent = receiver.feed(tar_of(transfer))
            answer = receiver.rest()
    error = receiver.limit or error_in(answer, receiver.error)
    if sent and not error:  # then what arrived whole is not all there is
        ask(on_host(transfer, host, ["rm", "--force", f"{transfer.path}/{RECEIPT}"]), QUESTION_SECONDS)
        error = receiver.error if receiver.last else f"tar ended with status {sent}"
    return error[:ERROR_CHARACTERS]


def error_in(answer: bytes, otherwise: str) -> str:
    """Return the error in an answer of `receive`, or something else if it is no answer."""
    try:
        return str(json.loads(answer.decode())["error"])
    except (ValueError, LookupError, TypeError):
        return otherwise


def send_on(transfer: Transfer, host: str, others: list[str]) -> dict[str, str]:
    """Have a host that has the environment bring it to others. Return the answer of `send` there."""
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
    """Bring it to the first of some hosts, and then from there to the others, if there is a way."""
    first, others = hosts[0], hosts[1:]
    answer = {first: send_to(transfer, first)}
    if others and not answer[first] and first in transfer.senders:
        answer.update(send_on(transfer, first, others))
    else:
        answer.update((other, send_to(transfer, other)) for other in others)
    return answer


def send(transfer: Transfer) -> dict[str, str]:
    """Return {host: "" or what went wrong}. The hosts form a tree: N of them take log N times as long as one."""
    hosts = transfer.to
    branches = [hosts[first::SENT_AT_A_TIME] for first in range(min(SENT_AT_A_TIME, len(hosts)))]
    answer: dict[str, str] = {}
    from concurrent.futures import ThreadPoolExecutor  # takes long to import, and only sending needs it

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
    """Send the environment if the source has the one that is wanted. Return the answer of `send`."""
    receipt = receipt_at_source(transfer)
    if receipt is None or not is_made_from(receipt, {**wanted, "python": receipt.get("python")}):
        return dict.fromkeys(transfer.to, f"{transfer.source or 'the machine that has it'} has not finished it")
    return send(replace(transfer, receipt=receipt))
