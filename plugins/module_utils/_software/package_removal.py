# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Removes what root added for a role, as the ledger has it. Packages that others need stay. Changes need root."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Iterable, NamedTuple

from . import ledger
from .packages import PackageError, ask, change, every_package, installed, read_system, run

PURGE = (
    *("apt-get", "purge", "--yes", "--allow-change-held-packages"),
    "--option=DPkg::Lock::Timeout=300",
    "--option=APT::Get::AutomaticRemove=false",
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*(:[a-z0-9]+)?\Z")
FORM = "${db:Status-Status}\\t${binary:Package}\\t${Provides}\\t${Pre-Depends}, ${Depends}\\n"


class Package(NamedTuple):
    """An installed package: what it is called where others need it, and what it needs, every alternative of it."""

    name: str
    names: frozenset[str]
    needs: frozenset[str]


def bare(text: str) -> frozenset[str]:
    """Return the names in a relation of Debian's: `a (>= 1) | b:any, c` has a, b and c."""
    words = [word.strip().split(" ")[0] for word in re.split(r"[,|]", text)]
    return frozenset(word.split(":")[0] for word in words if word)


def installed_packages() -> list[Package]:
    """Return the installed packages of a Debian, with what each needs."""
    rows = [row.split("\t") for row in ask("dpkg-query", "--show", "--showformat", FORM).splitlines()]
    return [
        Package(name, bare(provides) | bare(name), bare(needs))
        for state, name, provides, needs in (row for row in rows if len(row) == 4)
        if state not in ("not-installed", "config-files")
    ]


def needed(candidates: Iterable[str], packages: Iterable[Package]) -> set[str]:
    """Return the candidates that a package needs which is none, or one that such a package needs, and so on."""
    ours = set(candidates)
    kept: set[str] = set()
    wanted = {name for package in packages if package.name not in ours for name in package.needs}
    while True:
        more = [package for package in packages if package.name in ours - kept and package.names & wanted]
        if not more:
            return kept
        kept.update(package.name for package in more)
        wanted.update(*(package.needs for package in more))


class Leaving(NamedTuple):
    """What a role added and will be removed, and which of its packages stay."""

    packages: list[str]
    kept: list[str]
    passed_on: list[str]  # those of them that are noted for this role, and then for the next one that is removed
    files: list[str]
    groups: list[str]
    members: list[str]
    services: list[str]
    holds: list[str]
    shared_holds: list[str]  # which other roles keep

    @property
    def texts(self) -> list[str]:
        """Return what goes, for people."""
        members = [f"{user} in group {group}" for group, _colon, user in (name.partition(":") for name in self.members)]
        return [
            *(f"package {name}" for name in self.packages),
            *self.files,
            *members,
            *(f"group {name}" for name in self.groups),
            *(f"service {name} (turned off)" for name in self.services),
            *(f"hold of {name}" for name in self.holds),
            *(f"hold of {name} (other roles keep it)" for name in self.shared_holds),
        ]


def leaving(role: str, keep_packages: bool) -> Leaving:
    """Return what root would remove of a role. PackageError for a ledger that cannot be read."""
    there = every_package()
    ours = [] if keep_packages else [name for name in ledger.names_of(role, "packages") if name in there]
    kept = needed_or_held(role, ours) if ours else set()
    files = [path for path in ledger.names_of(role, "files") if os.path.lexists(path)]
    going = [name for name in ours if name not in kept]
    noted = ledger.read()["packages"]
    held = {} if keep_packages else {name: roles - {role} for name, roles in ledger.holds().items() if role in roles}
    return Leaving(
        packages=going,
        kept=sorted(kept),
        passed_on=sorted(name for name in kept if noted[name] == role),
        files=[] if keep_packages else files,
        groups=ledger.names_of(role, "groups"),
        members=ledger.names_of(role, "members"),
        services=[] if keep_packages else ledger.names_of(role, "services"),
        holds=[name for name, others in held.items() if not others and name in there and name not in going],
        shared_holds=[name for name, others in held.items() if others],
    )


def needed_or_held(role: str, ours: list[str]) -> set[str]:
    """Return which packages of a role stay: others need them, or another role holds them."""
    held = set(ours).intersection(name for name, roles in ledger.holds().items() if roles - {role})
    if read_system()[1] == "rpm":  # what a held package needs is not looked up there: all stay, and go with that role
        return set(ours) if held else set()
    return held | needed(set(ours) - held, installed_packages())


def remove(role: str, keep_packages: bool) -> None:
    """Remove it. PackageError for what cannot be removed; all that went before is forgotten by then."""
    going = leaving(role, keep_packages)
    for name in going.members:
        group, _colon, user = name.partition(":")
        run("gpasswd", "--delete", user, group)  # that is not in it any more is none's mistake
        ledger.forget("members", [name])
    for group in going.groups:
        run("groupdel", group)
        ledger.forget("groups", [group])
    for unit in going.services:
        run("systemctl", "disable", "--now", unit)
        ledger.forget("services", [unit])
    if not keep_packages:
        free(going.holds)
        remove_packages(going.packages)
        ledger.forget_holds(role)
        noted = ledger.names_of(role, "packages")
        ledger.forget("packages", [name for name in noted if name not in going.kept])
        leave_over(going.kept)
        for path in ledger.names_of(role, "files"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            ledger.forget("files", [path])


def free(names: list[str]) -> None:
    """Let upgrades change packages that stay and that we had held."""
    is_rpm = read_system()[1] == "rpm"
    if is_rpm:  # dnf fails for a package that is not locked any more
        held = installed("rpm", names)[1]
        names = [name for name in names if name in held]
    words = ("dnf", "--assumeyes", "versionlock", "delete") if is_rpm else ("apt-mark", "unhold")
    if names:
        change(*words, *names, what=f"the hold of {', '.join(names)} could not be lifted")


def leave_over(names: list[str]) -> None:
    """Note that no role wants these any more: they go with the next role that is removed, if they can."""
    if names:
        with ledger.changed() as entries:
            entries["packages"].update(dict.fromkeys(names, ledger.LEFT_OVER))


def remove_packages(names: list[str]) -> None:
    """Remove packages with their configuration. PackageError if others would go with them."""
    odd = [name for name in names if not NAME.match(name)]
    if odd:
        raise PackageError(f"{ledger.LEDGER} names no package: {odd[0]!r}: remove that line")
    if not names:
        return
    if read_system()[1] == "rpm":
        test = run("rpm", "--erase", "--test", *names)
        if test.status != 0:
            raise PackageError(f"nothing was removed: {test.reason()}")
        run("dnf", "--assumeyes", "versionlock", "delete", *names)  # of which not all are locked
        change("rpm", "--erase", *names, what=f"{', '.join(names)} could not be removed")
        return
    would = run(*PURGE, "--simulate", "--", *names)
    gone = {f"{name}" for name in re.findall(r"^(?:Purg|Remv) (\S+)", would.stdout, re.MULTILINE)}
    others = sorted(gone - {name.split(":")[0] for name in names} - set(names))
    if would.status != 0 or others:
        reason = f"the removal would take {', '.join(others)} too" if others else would.reason()
        raise PackageError(f"nothing was removed: {reason}")
    change(*PURGE, "--", *names, what=f"{', '.join(names)} could not be removed")
