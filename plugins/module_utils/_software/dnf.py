# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Installs a vendor's packages with dnf, as root. The tests run it on a Debian, which has dnf and rpm, not on RHEL."""

from __future__ import annotations

from typing import Sequence

from . import ledger
from .openpgp import KeyFileError, armored
from .packages import PackageError, change, run_once
from .signing_keys import fetch_keyring, write
from .vendor import Request, State, look

DNF = ("dnf", "--assumeyes", "--setopt=exit_on_lock=true")  # change() waits for the lock, and not for ever


def install(request: Request, state: State) -> None:
    """Install what is missing. PackageError for the first step that fails."""
    keys = trusted_keys(state)
    for repository in state["repositories"]:
        write(repository["keyring"], keys[repository["name"]].encode())
        change("rpm", "--import", repository["keyring"], what=f"the key {repository['key']} could not be imported")
        for path, text in repository["files"].items():
            write(path, text.encode())
    for words in request["dnf_commands"].get(state["system"], []):
        change(*DNF, *words, what=f"dnf {' '.join(words)} failed")
    install_packages(*state["headers"], *(name for name in state["missing"] if name not in request["same_version"]))
    install_packages(*(package.replace("=", "-", 1) for package in look(request)["wrong_version"]))
    not_held = look(request)["not_held"]
    if not_held:
        ledger.note_holds(request["role"], not_held)
        change(*DNF, "versionlock", "add", *not_held, what=f"{', '.join(not_held)} could not be held")


def trusted_keys(state: State) -> dict[str, str]:
    """Return the keys of each repository, fetched and known by their fingerprints, as rpm reads them."""
    try:
        return {
            repository["name"]: "".join(
                armored(fetch_keyring(repository["key"], [each])) for each in repository["fingerprints"]
            )
            for repository in state["repositories"]
        }
    except KeyFileError as error:
        raise PackageError(f"nothing was changed: {error}") from None


def install_packages(*names: str) -> None:
    """Install packages, each by its name or as name-version."""
    if names:
        change(*DNF, "install", *names, what=f"{', '.join(names)} could not be installed")


def missing(names: Sequence[str]) -> list[str]:
    """Return the packages that nothing installed provides: zlib-devel has another name on EL 10."""
    return [name for name in names if run_once(("rpm", "--query", "--whatprovides", name)).status != 0]
