# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Opening and closing the firewalls of this machine for the nodes of a cluster. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Iterable, Mapping, Sequence

from . import boot, firewalld, iptables, look, nftables, ufw
from .rules import Change, Command, Grant

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEMD = "/run/systemd/system"
SECONDS = 60  # of one command


class NotChanged(Exception):
    """A firewall refuses: the command and what it says."""


def run(command: Command) -> str:
    """Return what a program prints. NotChanged if it fails."""
    env = {**os.environ, "PATH": PATH, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            list(command.argv),
            env=env,
            input=command.stdin.encode(),
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotChanged(f"{' '.join(command.argv)}: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).decode(errors="replace").split("\n")
        said = next((line.strip() for line in lines if line.strip()), f"exit status {done.returncode}")
        raise NotChanged(f"{' '.join(command.argv)}: {said}")
    return done.stdout.decode(errors="replace")


def ask(program: str, words: Sequence[str]) -> str:
    """Return what a program prints, or nothing where it is not there or fails."""
    try:
        return run(Command((program, *words))) if shutil.which(program, path=PATH) else ""
    except NotChanged:
        return ""


def plan(grants: Sequence[Grant], mark: str) -> list[Change]:
    """Return the change in each firewall that is here."""
    changes, others = [], []
    status = ask("ufw", ("status", "verbose"))
    if status:
        changes.append(ufw.plan(status, ask("ufw", ("show", "added")), grants, mark))
    default = ask("firewall-cmd", ("--get-default-zone",)).strip()
    if default:
        others.append("firewalld")
        running, kept = (ask("firewall-cmd", (*words, "--list-all-zones")) for words in ((), ("--permanent",)))
        changes.append(firewalld.plan(running, kept, default, grants, mark))
    alone = not default and not ufw.active(status)
    for program in iptables.PROGRAMS:
        text = ask(program, ("-S",))
        others += ["iptables"] if text else []
        changes.append(iptables.plan(program, text, grants if alone else (), mark))
    changes.append(nftables.plan(ask("nft", look.NFT), grants, mark, others))
    return changes


def apply(grants: Sequence[Grant], mark: str, check: bool) -> dict[str, object]:
    """Make it so, and return changed, rules and diff (lines before and after). NotChanged if a firewall refuses."""
    changes = plan(grants, mark)
    loaded = [change for change in changes if change.loaded]
    anew = any(change.needed for change in loaded)  # then all of them: the unit adds the rules of all
    files = {program: text for change in loaded for program, text in change.files.items()}
    there, wanted = boot.present(mark), boot.files(mark, files, where(files)) if os.path.isdir(SYSTEMD) else {}
    if not check:
        for change in changes:
            for command in change.commands if (anew if change.loaded else change.needed) else ():
                run(command)
        keep(mark, there, wanted, anew)
        for program, text in files.items() if anew and not wanted else ():
            run(Command((program, "-f", "-") if program == "nft" else (program, "--noflush"), text))
    return {
        "changed": any(change.needed for change in changes) or there != wanted,
        "rules": [line for change in changes for line in change.after],
        "diff": {side: lines(changes, side) for side in ("before", "after")},
    }


def where(programs: Iterable[str]) -> dict[str, str]:
    """Return the paths of programs."""
    return {program: shutil.which(program, path=PATH) or program for program in programs}


def lines(changes: Sequence[Change], side: str) -> str:
    """Return what is ours before or after, a line for each rule."""
    return "".join(f"{line}\n" for change in changes for line in getattr(change, side))


def keep(mark: str, there: Mapping[str, str], wanted: Mapping[str, str], anew: bool) -> None:
    """Have systemd add the rules whenever their firewall is loaded; `anew`: also now."""
    unit = boot.unit_of(mark)
    if there and not wanted:
        ask("systemctl", ("disable", "--now", unit))
    if there != wanted:
        boot.write(wanted, there)
        ask("systemctl", ("daemon-reload",))
    if wanted and there != wanted:
        run(Command(("systemctl", "enable", unit)))
    if wanted and anew:
        run(Command(("systemctl", "restart", unit)))
