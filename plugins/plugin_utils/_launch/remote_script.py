# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A script that lies elsewhere: behind an https address with its checksum, or in a git repository at a commit.

The controller fetches it once and keeps it by content. What is not pinned is refused: it may be another one tomorrow.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .request import Request
from .run_directory import find_workload

SHELF = Path(".torchfleet", "scripts")  # below the user's home
MOST_BYTES = 64 << 20
SECONDS = 60  # of silence
GIT_SECONDS = 600
GIT = re.compile(r"git\+((?:https|ssh|file)://\S+?)@([0-9a-f]{40})#(\S+)\Z")  # repository, commit, script
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\Z")


def find_script(request: Request, workloads: Path) -> str:
    """Return the path of a job's script: a name in workloads/, a path, or what lies at an address. InputError.

    Of a module that is in a folder it is the file of that. An empty text for one that is installed on the nodes.
    """
    if request.module:
        return module_file(request.workload, request.module) if request.workload else ""
    if "://" in request.workload:
        return find_workload(script_at(request.workload, request.sha256), workloads)
    if request.sha256:
        raise InputError("sha256", request.sha256, "it is for a workload that is an address: https://...")
    return find_workload(request.workload, workloads)


def module_file(folder: str, module: str) -> str:
    """Return the file that `python -m` runs in a folder. InputError if it is not there."""
    root = Path(folder).expanduser().absolute()
    if not root.is_dir():
        raise InputError("workload", folder, "with module it is the folder that has the package, or is left out")
    inside = root.joinpath(*module.split("."))
    files = [inside.with_name(f"{inside.name}.py"), inside / "__main__.py"]
    for file in files:
        if file.is_file():
            return str(file)
    raise InputError("module", module, f"neither {files[0]} nor {files[1]} is there: name a module that is")


def script_at(address: str, sha256: str | None) -> str:
    """Return the path of a script that an address names, fetched unless it is here. InputError if it is not pinned."""
    try:
        hide = urlsplit(address.removeprefix("git+"))
    except ValueError as error:  # brackets that hold no IPv6 address
        raise InputError("workload", address.rpartition("@")[2], f"it is no address: {error}") from None
    if hide.password or (hide.username and hide.scheme == "https"):
        raise InputError("workload", f"{hide.scheme}://...", "no password in a URL: use git's credential helper")
    if address.startswith("git+"):
        found = GIT.match(address)
        if not found or sha256:
            raise InputError(
                "workload", address, "pin the commit: git+https://HOST/REPOSITORY@<40 digits>#path/train.py"
            )
        return in_repository(*found.groups())
    if hide.scheme != "https":
        raise InputError("workload", address, "give https://..., git+https://... or git+ssh://..., or a path")
    if not sha256 or not DIGEST.match(sha256):
        raise InputError("sha256", sha256, f"pin what lies at {address}: -e sha256=<64 hexadecimal digits>")
    return fetched(address, sha256)


def fetched(url: str, sha256: str) -> str:
    """Return the path of a file with this checksum that lies at an address. InputError for another one."""
    name = Path(urlsplit(url).path).name
    if not FILE_NAME.match(name):
        raise InputError("workload", url, "the address must end in the name of the script, such as train.py")
    place = Path.home() / SHELF / sha256
    if (place / name).is_file() and digest(place / name) == sha256:
        return str(place / name)
    from ansible.module_utils.urls import open_url  # takes 0.1 s, for which every job would wait

    try:
        with open_url(url, timeout=SECONDS) as answer:
            content = answer.read(MOST_BYTES + 1)
        found = hashlib.sha256(content).hexdigest()
        if len(content) > MOST_BYTES or found != sha256:
            raise InputError(
                "workload", url, f"it has the sha256 {found}, not {sha256}: look at it before you pin that"
            )
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, delete=False) as file:
            file.write(content)
        if name.endswith(".sh"):
            os.chmod(file.name, 0o700)
        Path(file.name).replace(place / name)
    except InputError:
        raise
    except (OSError, HTTPException, ValueError) as error:  # the last: a name of a host that is none
        raise InputError("workload", url, f"it cannot be fetched: {' '.join(str(error).split())}") from None
    return str(place / name)


def digest(path: Path) -> str:
    """Return the checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- git --------------------------------------------------------------------------------------------------------------


def in_repository(url: str, commit: str, path: str) -> str:
    """Return the path of a script in a repository at a commit. InputError if it cannot be had."""
    if path.startswith("/") or ".." in path.split("/"):
        raise InputError("workload", path, "give the path of the script in the repository")
    place = Path.home() / SHELF / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{commit}"
    if not (place / ".git").is_dir():
        checked_out(url, commit, place)
    git(url, place, "checkout", "--quiet", "--force", "--detach", commit)
    git(url, place, "clean", "--quiet", "--force", "-d", "-x")
    script = place / path
    if not script.is_file() or place.resolve() not in script.resolve().parents:
        raise InputError("workload", f"{url}#{path}", f"no such file at {commit[:12]}: give its path in the repository")
    return str(script)


def checked_out(url: str, commit: str, place: Path) -> None:
    """Fetch a commit into a directory, which is there only if all of it is."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".git-") as folder:
        new = Path(folder, "new")
        git(url, Path(folder), "init", "--quiet", "--template=", str(new))
        try:
            git(url, new, "fetch", "--quiet", "--depth=1", "--no-tags", "--", url, commit)
        except InputError:  # some servers give branches and tags only
            git(
                url,
                new,
                "fetch",
                "--quiet",
                "--",
                url,
                "+refs/heads/*:refs/remotes/origin/*",
                "+refs/tags/*:refs/tags/*",
            )
        git(url, new, "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}")
        if not place.exists():
            new.rename(place)


def git(url: str, place: Path, *words: str) -> None:
    """Run git in a directory. InputError with its last line if that fails."""
    argv: Sequence[str] = ("git", "-c", "core.hooksPath=/dev/null", "-C", str(place), *words)
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError("workload", url, f"git cannot be started, or did not end in time: {error}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise InputError("workload", url, f"git {words[0]}: {([f'status {done.returncode}', *lines])[-1][:200]}")
