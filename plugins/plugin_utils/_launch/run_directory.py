# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The run directory on the controller: `runs/<job id>/`, and the link `runs/latest`."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.file_locks import try_lock_open
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import json_in, open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifact_border import Limits
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .requirements import LEAST_FREE_BYTES

FETCHED = "fetched.json"  # in a run directory, written last: where it is, all is that could be had; `missing` is not
FETCHED_BYTES = 1 << 20  # of it that are read: more is of a run that misses much
WRITER_SECONDS = 600.0  # for another playbook to be done with a run directory
COLLECTS_NOTHING = "it collects nothing: give train.yml -e collect=GLOB"
DIAGNOSIS = "diagnosis"  # in a run directory: what looks at the job found
REPORT = "report.html"  # there: the page of all of it, which may be made anew at any time
HELPER_PREFIX = "_"  # files in workloads/ that are no workloads


def new_job_id(script: str) -> str:
    """Return time, workload and a few random letters: 20261120-101500-mnist-3f9a2c."""
    stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in Path(script).stem)
    stem = stem[:40].strip("-") or "job"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(3)}"


def find_workload(name: str, workloads: Path) -> str:
    """Return the absolute path of a workload: a name in workloads/, or the path of a script. InputError if neither."""
    known = {path.stem: path for path in sorted(workloads.glob("*.py")) if not path.name.startswith(HELPER_PREFIX)}
    if name in known:
        return str(known[name])
    allowed = f"give one of {', '.join(known)}, or the path of a script"
    try:
        path = Path(name).expanduser().absolute()
        path.stat()
    except FileNotFoundError:
        raise InputError("workload", name, f"no such workload or file; {allowed}") from None
    except (OSError, RuntimeError) as error:  # a directory on the way is closed, the name is too long, no such ~user
        raise InputError("workload", name, f"{getattr(error, 'strerror', error)}; {allowed}") from None
    if not path.is_file():
        raise InputError("workload", name, f"not a file; {allowed}")
    if not os.access(path, os.R_OK):
        raise InputError("workload", name, f"the file cannot be read: chmod +r, or {allowed}")
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise InputError("workload", name, "neither a .py file nor executable: rename it, or chmod +x")
    return str(path)


def check_run_dir(runs_dir: str, job_id: str) -> Path:
    """Return where the run will lie. InputError if it is there already or cannot be made."""
    try:
        run_dir = Path(runs_dir).expanduser().absolute() / job_id
        there = run_dir.is_symlink() or run_dir.exists()
        above = next(path for path in run_dir.parents if path.exists())
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", error)
        raise InputError("runs_dir", runs_dir, f"{reason}: -e runs_dir=<a directory of yours>") from None
    if there:
        raise InputError("job_id", job_id, f"{run_dir} exists already: choose another id, or leave it out")
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise InputError("runs_dir", runs_dir, f"{above} cannot be written to: -e runs_dir=<a directory of yours>")
    space = os.statvfs(above)
    if space.f_bavail * space.f_frsize < LEAST_FREE_BYTES:
        raise InputError("runs_dir", runs_dir, f"less than {LEAST_FREE_BYTES >> 20} MiB free there: make room")
    return run_dir


def make_run_dir(run_dir: Path, files: Mapping[str, str]) -> None:
    """Make the run directory with its first files and point `latest` at it. InputError leaves nothing behind."""
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir(mode=0o700)
    except FileExistsError:
        raise InputError("job_id", run_dir.name, f"{run_dir} exists already: choose another id") from None
    except OSError as error:
        raise InputError("runs_dir", str(run_dir.parent), f"cannot be written to: {error.strerror}") from None
    try:
        for name, text in files.items():
            write_private(run_dir / name, text)
        point_latest(run_dir)
    except OSError as error:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise InputError("runs_dir", str(run_dir.parent), f"cannot be written to: {error.strerror}") from None


def point_latest(run_dir: Path) -> None:
    """Let `latest` beside the run point at it. A file of the user's by that name stays."""
    latest = run_dir.parent / "latest"
    if latest.exists() and not latest.is_symlink():
        return
    temporary = run_dir.parent / f".latest.{secrets.token_hex(8)}"  # others may write here, and guess a pid
    temporary.symlink_to(run_dir.name)
    temporary.replace(latest)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def noted_run(job_id: str, noted_dir: str, runs_dir: str = "runs") -> tuple[Path, list[tuple[int, str]]]:
    """Return where a run of this controller lies, and its ranks with their hosts, by the plan that lies there.

    A node tells the directory; it is believed only if this controller wrote the plan of that very job into it.
    InputError if there is none: nothing is fetched that nobody here started.
    """
    for run_dir in (Path(noted_dir), Path(runs_dir).expanduser().absolute() / job_id):
        try:
            plan = json.loads(own_plan(run_dir)) if run_dir.name == job_id else {}
            if plan.get("job_id") == job_id and run_dir.is_absolute() and not run_dir.is_symlink():
                return run_dir, [(int(place["rank"]), str(place["host"])) for place in plan["placement"]]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    raise InputError("job_id", job_id, f"no plan of this job is in {noted_dir or 'runs'}: its files stay on the nodes")


def noted_every(run_dir: Path, asked: float | None) -> float | None:
    """Return the seconds between two collections of a run of this controller: those that are asked for, or in its plan.

    None if there are none. A plan of an older version notes none. InputError if the job collects nothing.
    """
    try:
        plan = json.loads(own_plan(run_dir))
        globs, every = plan["collect"], plan.get("collect_every")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        globs, every = None, None
    if not globs:
        if asked:
            raise InputError("collect_every", asked, COLLECTS_NOTHING)
        return None
    is_number = isinstance(every, (int, float)) and not isinstance(every, bool)
    return asked or (float(every) if is_number and every >= 1.0 else None)


def noted_limits(run_dir: Path) -> Limits | None:
    """Return what a node may send of what ranks wrote, by the plan of a run of this controller; nothing if it collects
    nothing. None: no plan is there, or one of an older version.
    """
    try:
        plan = json.loads(own_plan(run_dir))
        files, size = (int(plan[name]) for name in ("collect_files", "collect_limit"))
        return Limits(files, size) if plan["collect"] else Limits(0, 0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def own_plan(run_dir: Path) -> str:
    """Return the text of the plan in a run directory, if it and its directory are this user's. OSError, ValueError."""
    with open(open_file(str(run_dir / "plan.json"))) as file:
        if {os.lstat(run_dir).st_uid, os.fstat(file.fileno()).st_uid} != {os.getuid()}:
            raise PermissionError(f"{run_dir} is somebody else's")
        return file.read()


def is_fetched(run_dir: Path) -> bool:
    """Whether a run is here with nothing missing: the head may offer it once more, and is not to write over it."""
    found = json_in(str(run_dir / FETCHED), FETCHED_BYTES)
    return isinstance(found, dict) and found.get("missing") == []


def run_dir_of(job_id: str, runs_dir: str) -> Path:
    """Return where the run of a job lies, or would lie, on this controller. InputError."""
    try:
        return Path(runs_dir).expanduser().absolute() / job_id
    except RuntimeError as error:  # no such ~user
        raise InputError("runs_dir", runs_dir, f"{error}: -e runs_dir=<a directory of yours>") from None


def fetched_run(job_id: str, runs_dir: str) -> Path:
    """Return where a run goes that another controller had planned. InputError if more than a diagnosis is there."""
    run_dir = Path(runs_dir).expanduser().absolute() / job_id
    if run_dir.is_symlink() or (run_dir.exists() and not is_diagnosis_only(run_dir)):
        raise InputError("job_id", job_id, f"{run_dir} exists already: move it away, or give another runs_dir")
    return run_dir


def is_diagnosis_only(run_dir: Path) -> bool:
    """Whether a directory has nothing but what look.yml, and report.yml, wrote of a job of another controller."""
    found = {path.name for path in run_dir.iterdir()} if run_dir.is_dir() else set()
    return found - {REPORT} == {DIAGNOSIS} and not (run_dir / DIAGNOSIS).is_symlink()


def room_for(run_dir: Path) -> int:
    """Return the limit of a run's bytes: half of the free space, so that no node can fill the disk. OSError."""
    return shutil.disk_usage(run_dir).free // 2


@contextlib.contextmanager
def written_alone(run_dir: Path, give_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """While it is entered, no other playbook fetches into a run directory: two may follow one job to its end.

    It waits for another one, unless `give_up` says not to. OSError.
    """
    deadline = time.monotonic() + WRITER_SECONDS
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError):  # somebody removed it: it is made again
            descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, descriptor)
            while not give_up() and not try_lock_open(descriptor):
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, "another ansible-playbook still writes into it")
                time.sleep(0.1)
        yield


def unwritable_message(error: OSError, run_dir: Path, head: str) -> str:
    """Return the message for a run whose files could not be written here."""
    full = " (disk full)" if error.errno == errno.ENOSPC else ""
    return f"the run could not be written to {run_dir}{full}: {error}; it waits on {head}: ansible-playbook clean.yml"


def remove_run_dir(run_dir: Path) -> None:
    """Take back a run directory whose job was refused, and `latest` with it if it points there."""
    shutil.rmtree(run_dir, ignore_errors=True)
    latest = run_dir.parent / "latest"
    if latest.is_symlink() and os.readlink(latest) == run_dir.name:
        latest.unlink()
