# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packages of a node: which are installed and offered, and how root runs the programs that change them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Iterable, NamedTuple, Sequence

from .system_packages import PATH

FAMILIES = {
    "debian": "deb",
    "ubuntu": "deb",
    "rhel": "rpm",
    "centos": "rpm",
    "rocky": "rpm",
    "almalinux": "rpm",
    "ol": "rpm",
}
OS_RELEASE = Path("/etc/os-release")
VERSIONLOCK = Path("/etc/dnf/plugins/versionlock.list")
RPM_KEY = "gpg-pubkey"
LOCK_SECONDS = 300  # for which another program that installs packages may hold the lock
RETRY_SECONDS = 5.0
LOCKED = re.compile(r"get lock|acquire .*lock|Unable to lock|already locked by")
MOST_CHARACTERS = 1500  # of what a program said, in an error
# Without questions, and with English messages, which are parsed.
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "DEBIAN_PRIORITY": "critical", "LC_ALL": "C.UTF-8"}


class PackageError(Exception):
    """Packages cannot be installed. The text is one line."""


class Done(NamedTuple):
    """A program that has ended."""

    status: int
    stdout: str
    stderr: str

    def reason(self) -> str:
        """Return why it failed, on one line: what apt marks as an error, else all that it said there."""
        errors = re.findall(r"^E: .+$", self.stderr, re.MULTILINE) or [self.stderr.strip() or self.stdout]
        return " ".join("; ".join(errors).split())[:MOST_CHARACTERS]


def run(*argv: str) -> Done:
    """Run a program to its end. While another one holds the lock of the packages, run it again."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        done = run_once(argv)
        if done.status == 0 or not LOCKED.search(done.stderr) or time.monotonic() > deadline:
            return done
        time.sleep(RETRY_SECONDS)


def run_once(argv: Sequence[str]) -> Done:
    """Run a program. It writes to files, for a service that it starts may keep them open."""
    environment = {**os.environ, **ENVIRONMENT, "PATH": PATH}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            status = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, check=False
            ).returncode
        except OSError as error:
            return Done(127, "", f"{argv[0]}: {error.strerror}")
        return Done(status, written(out), written(err))


def written(file: IO[bytes]) -> str:
    """Return what a program wrote to a file."""
    file.seek(0)
    return file.read().decode(errors="replace")


def change(*argv: str, what: str, hint: str = "") -> None:
    """Run a program. PackageError if it fails: what could not be done, and why."""
    done = run(*argv)
    if done.status != 0:
        raise PackageError(f"{what}: {done.reason()}{hint}")


def ask(*argv: str) -> str:
    """Return what a program writes to stdout, without its line end; nothing if it is not there."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.decode(errors="replace").rstrip("\n")


def text_of(path: str) -> str:
    """Return what a text file holds; nothing if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_system() -> tuple[str, str]:
    """Return the distribution with its version (debian12, ubuntu2404, rhel9), and its family (deb, rpm or none)."""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text_of(str(OS_RELEASE)), re.MULTILINE))
    name, version = fields.get("ID", "linux"), fields.get("VERSION_ID", "")
    family = FAMILIES.get(name, "")
    if family == "rpm":
        return "rhel" + version.split(".")[0], family
    return name + version.replace(".", ""), family


# --- installed ------------------------------------------------------------------------------------------------------


def installed(family: str, names: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """Return {package: version} of those that are installed whole, and which are held. Names may be globs."""
    if family == "rpm":
        versions = {name: version for each in names for name, version in installed_rpms(each)}
        locked = text_of(
            str(VERSIONLOCK)
        )  # name-epoch:version-release.*, a line each; ! before it excludes that version
        return versions, {name for name in versions if re.search(rf"^{re.escape(name)}-\d", locked, re.MULTILINE)}
    wanted = list(names)
    if not wanted:  # dpkg-query would list every package
        return {}, set()
    form = "${Package} ${db:Status-Want} ${db:Status-Status} ${Version}\\n"
    lines = ask("dpkg-query", "--show", "--showformat", form, *wanted).splitlines()
    rows = [row for row in map(str.split, lines) if len(row) == 4 and row[2] == "installed"]
    return {row[0]: row[3] for row in rows}, {row[0] for row in rows if row[1] == "hold"}


def installed_rpms(name: str) -> list[tuple[str, str]]:
    """Return (package, version) of those of a name, which only with --all may be a pattern: else nothing is found."""
    every = ["--all"] if set("*?[") & set(name) else []
    lines = ask("rpm", "--query", *every, "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\\n", name).splitlines()
    rows = [row for row in map(str.split, lines) if len(row) == 2]  # else rpm says that there is none
    return [(row[0] if every else name, row[1]) for row in rows]


def every_package() -> set[str]:
    """Return the names of all packages of this machine, also of those that are not installed whole.

    Keys that rpm trusts are packages of one name: these are told apart by their versions.
    """
    if read_system()[1] == "rpm":
        lines = ask("rpm", "--query", "--all", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\\n").splitlines()
        pairs = [row for row in map(str.split, lines) if len(row) == 2]
        return {"-".join(row) if row[0] == RPM_KEY else row[0] for row in pairs}
    lines = ask("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${binary:Package}\\n").splitlines()
    rows = [row for row in map(str.split, lines) if len(row) == 2 and row[0] not in ("not-installed", "config-files")]
    return {row[1] for row in rows}


def was_interrupted() -> bool:
    """Whether the installation of any package was interrupted; apt refuses to work then."""
    return bool(ask("dpkg", "--audit")) or any(Path("/var/lib/dpkg/updates").glob("[0-9]*"))


# --- versions -------------------------------------------------------------------------------------------------------


def upstream(version: str) -> str:
    """Return a version without epoch and revision."""
    return version.rpartition(":")[2].rpartition("-")[0] or version.rpartition(":")[2]


def is_of(branch: str, version: str) -> bool:
    """Say whether a version belongs to a branch: 580.95.05-1 to 580."""
    return not branch or (upstream(version) + ".").startswith(branch + ".")


def offered(names: Sequence[str], *options: str) -> dict[str, list[str]]:
    """Return the versions of each package that apt can install, newest first."""
    versions: dict[str, list[str]] = {name: [] for name in names}
    for line in ask("apt-cache", *options, "madison", *names).splitlines():
        name, version = [word.strip() for word in line.split("|")][:2]
        versions[name].append(version)
    return versions


def exactly(name: str, version: str) -> str:
    """Return what apt calls a package in a version, of which only the upstream part is known."""
    fitting = [each for each in offered([name])[name] if upstream(each) == version]
    return f"{name}={(fitting or [version + '-*'])[0]}"
