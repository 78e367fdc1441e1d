# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What module python_environment does in each of its states. The module documents its options, `given` here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Mapping, cast

from . import environment_copy, versions
from .environment import Lock, Program, Request, is_ready, link, look
from .environment_files import NotMadeError
from .environment_make import try_to_make
from .environment_proof import prove
from .interpreter import probe
from .old_environments import remove_old

AS_THEY_ARE = (
    *("role", "setting", "path", "python", "packages", "python_min", "python_max", "disk_mb", "index_url"),
    *("preferred_index", "tools", "build_environment", "linked_environment", "versions", "one_index", "kept"),
    *("torch_packages", "torch_index_url"),
)
PREPARED = ("wheelhouse", "sources", "lock", "brought")
Given = Dict[str, Any]


def request_of(given: Given) -> Request:
    """Return the environment that is wanted."""
    prepared = given["prepared"]
    programs = [{key: value for key, value in program.items() if value is not None} for program in given["programs"]]
    return Request(
        programs=cast("list[Program]", programs),
        interpreter=probe(given["python"]),
        mesh=f"{given['home']}/ssh/config",
        locked=Lock(**prepared.get("locked", {})),
        **{name: given[name] for name in AS_THEY_ARE},
        **{name: prepared[name] for name in PREPARED if name in prepared},
    )


def state_look(given: Given, check: bool) -> Given:
    return {"changed": False, **look(request_of(given))}


def state_adopt(given: Given, check: bool) -> Given:
    request = request_of(given)
    try:
        versions.adopt(Path(request.path), request.versions == "own", request.companion)
    except (OSError, ValueError, NotMadeError) as error:
        return {"changed": True, "error": f"{request.role}: {request.path} cannot become a version: {error}"}
    return {"changed": True}


def state_make(given: Given, check: bool) -> Given:
    request = request_of(given)
    if check:
        return {"changed": not is_ready(request), "error": ""}
    made = try_to_make(request)
    return {"changed": made["changed"], "error": made["error"]}


def state_send(given: Given, check: bool) -> Given:
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


def state_prove(given: Given, check: bool) -> Given:
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


STATES: Mapping[str, Callable[[Given, bool], Given]] = {
    "look": state_look,
    "adopt": state_adopt,
    "make": state_make,
    "send": state_send,
    "prove": state_prove,
}
