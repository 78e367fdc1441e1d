# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Installs a vendor's packages with apt, as root. Repositories are tried in a directory before anything is changed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from . import ledger
from .openpgp import KeyFileError
from .packages import PackageError, change, installed, is_of, offered, run, upstream
from .repositories import Repository
from .signing_keys import content, fetch_keyring, write
from .vendor import Request, State, look

INSTALL = (
    *("apt-get", "install", "--yes"),
    "--allow-change-held-packages",  # which are those that we hold
    "--option=DPkg::Lock::Timeout=300",
    "--option=APT::Keep-Downloaded-Packages=false",
    *("--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold"),
)


def install(request: Request, state: State) -> None:
    """Install what is missing. PackageError for the first step that fails; up to prove() nothing was changed."""
    with tempfile.TemporaryDirectory(prefix="torchfleet-") as name:
        trial = Path(name)
        prove(request, state["repositories"], trial)
        if state["interrupted"]:  # if it is no use, the next step says why
            run("dpkg", "--force-confdef", "--force-confold", "--configure", "-a")
        install_for_kernel(request)
        for repository in state["repositories"]:
            write(repository["keyring"], content(str(keyring_in(trial, repository))))
            for path, text in repository["files"].items():
                write(path, text.encode())
    for repository in state["repositories"]:
        read_lists(repository)
    for step in (request["first"], request["packages"]):
        install_packages(step, everything=state["changes_branch"])
    for package in look(request)["wrong_version"]:
        install_exactly(package)
    not_held = look(request)["not_held"]
    if not_held:
        ledger.note_holds(request["role"], not_held)
        change("apt-mark", "hold", *not_held, what=f"{', '.join(not_held)} could not be held")


# --- the repositories, tried in a directory ---------------------------------------------------------------------------


def prove(request: Request, repositories: list[Repository], trial: Path) -> None:
    """Fetch the keys into a directory, and let apt read the repositories there. PackageError if anything is wrong."""
    lay_out(repositories, trial)
    fetch_keys(repositories, trial)
    done = run("apt-get", *options(trial), "update")
    addresses = " and ".join(repository["address"] for repository in repositories)
    if done.status != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("E: ", "W: "))]
        reason = " ".join("; ".join(lines).split()) or done.reason()
        raise PackageError(f"nothing was changed: apt cannot read or verify {addresses}: {reason}")
    missing = not_offered(request, trial)
    if missing:
        raise PackageError(f"nothing was changed: {addresses} has no {', '.join(missing)}: set another version")


def lay_out(repositories: list[Repository], trial: Path) -> None:
    """Make what apt works with there: the repositories with their keyrings, and a system without a package."""
    for name in ("sources", "none", "lists", "cache"):
        (trial / name).mkdir()
    trial.chmod(0o755)  # apt fetches as a user of its own
    (trial / "status").write_text("", encoding="utf-8")
    for repository in repositories:
        (text,) = [text for path, text in repository["files"].items() if path.endswith(".sources")]
        text = text.replace(repository["keyring"], str(keyring_in(trial, repository)))
        (trial / "sources" / f"{repository['name']}.sources").write_text(text, encoding="utf-8")


def keyring_in(trial: Path, repository: Repository) -> Path:
    """Return where the keyring of a repository lies in the directory."""
    return trial / f"{repository['name']}.gpg"


def fetch_keys(repositories: list[Repository], trial: Path) -> None:
    """Fetch the key of each repository. PackageError names all that are wrong."""
    wrong = []
    for repository in repositories:
        try:
            keys = fetch_keyring(repository["key"], repository["fingerprints"])
            write(str(keyring_in(trial, repository)), keys)
        except KeyFileError as error:
            wrong.append(str(error))
    if wrong:
        raise PackageError(f"nothing was changed: {'; '.join(wrong)}")


def options(trial: Path) -> list[str]:
    """Return apt's options: it uses only that directory, and treats a list that it cannot fetch as an error."""
    places = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": f"{trial}/sources",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": f"{trial}/none",
        "Dir::State::lists": f"{trial}/lists",
        "Dir::State::status": f"{trial}/status",
        "Dir::Cache": f"{trial}/cache",
        "APT::Update::Error-Mode": "any",
    }
    return [f"--option={name}={value}" for name, value in places.items()]


def not_offered(request: Request, trial: Path) -> list[str]:
    """Return which packages the repositories do not have."""
    wanted = [*request["first"], *request["packages"], *request["same_version"], *request["same_version"].values()]
    versions = offered(wanted, *options(trial))
    missing = [name for name in dict.fromkeys(wanted) if not versions[name]]
    for name, other in request["same_version"].items():
        chosen = [upstream(version) for version in versions[other] if is_of(request["branch"], version)][:1]
        if versions[name] and chosen and chosen[0] not in map(upstream, versions[name]):
            missing.append(f"{name} {chosen[0]}, which is the version of {other}")
    return missing


# --- the steps --------------------------------------------------------------------------------------------------------


def install_for_kernel(request: Request) -> None:
    """Install what belongs to the running kernel, while nothing of the vendor is there.

    The vendor's packages need others of the distribution: from its lists of last month they would not come. Not only
    where the lists are old: an image whose lists were emptied has new ones by their time.
    """
    run("apt-get", "update")  # a mirror may be away that nothing is wanted from; what cannot be installed is told below
    headers = look(request)["headers"]  # only now apt knows what there is
    if headers:
        hint = f"; boot a kernel of the distribution, or set {request['role']}_kernel_headers=false"
        change(*INSTALL, *headers, what=f"{', '.join(headers)} could not be installed", hint=hint)


def read_lists(repository: Repository) -> None:
    """Let apt read the lists of one repository: the distribution's are ten times as long."""
    (sources,) = [path for path in repository["files"] if path.endswith(".sources")]
    change(
        *("apt-get", "update", f"--option=Dir::Etc::sourcelist={sources}", "--option=Dir::Etc::sourceparts=/dev/null"),
        *("--option=APT::Get::List-Cleanup=0", "--option=APT::Update::Error-Mode=any"),
        what=f"{repository['address']} could not be read",
    )


def install_packages(names: list[str], everything: bool) -> None:
    """Install those packages that are missing, or `everything`, for another branch: then all are brought up to date."""
    present = {} if everything else installed("deb", names)[0]
    missing = [name for name in names if name not in present]
    if missing:
        change(*INSTALL, *missing, what=f"{', '.join(names)} could not be installed")


def install_exactly(package: str) -> None:
    """Install a package=version, also where a file of preferences prefers another version strongly."""
    change(*INSTALL, "--allow-downgrades", package, what=f"{package} could not be installed")
