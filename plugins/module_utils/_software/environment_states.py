# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What module python_environment does in each of its states. The module documents its options, `given` here."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, Mapping, TypedDict, cast

from . import environment_copy, versions
from .environment import Lock, Program, Request, is_ready, link, look
from .environment_files import NotMadeError
from .environment_make import try_to_make
from .environment_proof import prove
from .interpreter import probe
from .old_environments import remove_old


class LockLines(TypedDict):
    """The fields of a Lock."""

    lines: list[str]
    of_the_build: list[str]
    more: list[str]


class Prepared(TypedDict, total=False):
    """What the action adds to the options: see prepared() in plugin_utils/_software/environment_request."""

    wheelhouse: str
    sources: dict[str, dict[str, str]]
    lock: str
    locked: LockLines
    brought: str  # of state make
    transfer: environment_copy.Course  # of state send
    is_sent: bool  # of state prove


class Given(TypedDict):
    """The options that are used here."""

    role: str
    setting: str
    path: str
    python: str
    packages: list[str]
    python_min: str
    python_max: str
    disk_mb: int
    index_url: str
    one_index: bool
    preferred_index: str
    torch_packages: list[str]
    torch_index_url: str
    kept: list[str]
    programs: list[Program]
    tools: list[str]
    build_environment: dict[str, str]
    linked_environment: str
    versions: str
    home: str
    keep: int
    proof: str
    proof_arguments: list[str]
    prepared: Prepared


Answer = Dict[str, object]


def request_of(given: Given) -> Request:
    """Return the environment that is wanted."""
    prepared = given["prepared"]
    programs = [{key: value for key, value in program.items() if value is not None} for program in given["programs"]]
    return Request(
        programs=cast("list[Program]", programs),
        interpreter=probe(given["python"]),
        mesh=f"{given['home']}/ssh/config",
        role=given["role"],
        setting=given["setting"],
        path=given["path"],
        python=given["python"],
        packages=given["packages"],
        python_min=given["python_min"],
        python_max=given["python_max"],
        disk_mb=given["disk_mb"],
        index_url=given["index_url"],
        one_index=given["one_index"],
        preferred_index=given["preferred_index"],
        torch_packages=given["torch_packages"],
        torch_index_url=given["torch_index_url"],
        kept=given["kept"],
        tools=given["tools"],
        build_environment=given["build_environment"],
        linked_environment=given["linked_environment"],
        versions=given["versions"],
        wheelhouse=prepared.get("wheelhouse", ""),
        sources=prepared.get("sources", {}),
        lock=prepared.get("lock", ""),
        locked=Lock(**prepared["locked"]) if "locked" in prepared else Lock(),
        brought=prepared.get("brought", ""),
    )


def state_look(given: Given, check: bool) -> Answer:
    return {"changed": False, **look(request_of(given))}


def state_adopt(given: Given, check: bool) -> Answer:
    request = request_of(given)
    try:
        versions.adopt(Path(request.path), request.versions == "own", request.companion)
    except (OSError, ValueError, NotMadeError) as error:
        return {"changed": True, "error": f"{request.role}: {request.path} cannot become a version: {error}"}
    return {"changed": True}


def state_make(given: Given, check: bool) -> Answer:
    request = request_of(given)
    if check:
        return {"changed": not is_ready(request), "error": ""}
    made = try_to_make(request)
    if made["changed"] and not made["error"]:
        # Before it is sent: what the proof imports is compiled here for all machines. State prove tells of a failure.
        prove(request, given["proof"], given["proof_arguments"])
    return {"changed": made["changed"], "error": made["error"]}


def state_send(given: Given, check: bool) -> Answer:
    request = request_of(given)
    transfer = environment_copy.Transfer(
        python=given["python"],
        packages=given["packages"],
        left_out=companion_files(request.companion),
        **given["prepared"]["transfer"],
    )
    unsent = {} if check else environment_copy.send_what_is_wanted(transfer, request.made_from)
    return {"changed": False, "unsent": unsent}


def companion_files(name: str) -> list[str]:
    """Return what an environment that lies in another one consists of there."""
    return [name + suffix for suffix in ("", ".lock", ".old", ".brought.tar")] if name else []


def state_prove(given: Given, check: bool) -> Answer:
    request = request_of(given)
    if given["prepared"].get("is_sent") and not is_ready(request):
        return {"changed": False, "arrived": False}
    if check:
        return {"changed": False, "arrived": True, "error": ""}
    ran, error = prove(request, given["proof"], given["proof_arguments"])
    try:
        linked = not error and link(request)
    except OSError as failure:
        return {"changed": ran, "arrived": True, "error": f"{request.role}: {request.path}: {failure.strerror}"}
    if given["keep"] and not error:
        remove_old(request.place, given["keep"], given["home"])
    return {"changed": ran or linked, "arrived": True, "error": error}


STATES: Mapping[str, Callable[[Given, bool], Answer]] = {
    "look": state_look,
    "adopt": state_adopt,
    "make": state_make,
    "send": state_send,
    "prove": state_prove,
}
