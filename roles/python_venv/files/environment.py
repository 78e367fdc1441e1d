"""Look at a machine before a Python environment is made on it (`look`), or make the environment (`make`).

Usage: environment.py look|make REQUEST, where REQUEST is JSON with role, path, python, packages, python_min,
python_max, disk_mb, index_url and wheelhouse. Prints one line of JSON:
  look: {"refusals": [why it cannot be done, ready to be shown], "ready": it is there already}, and changes nothing.
  make: {"changed": bool, "error": "" or what went wrong, ready to be shown}.

Making is one process, and not a task per step, because it has to survive whoever asked for it: a playbook that is
killed leaves it running, and the next one waits for its lock and finds the work done. Whatever was really interrupted
has no receipt and is made anew. Runs on Python 3.6 and newer, so that an interpreter which is too old is told apart
from one that does not run at all.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

RECEIPT = "torchfleet-receipt.json"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
LOCK_SECONDS = 900
# Without bytecode: compiling all of PyTorch takes twice as long as unpacking it, and most of it is never imported.
PIP_INSTALL = ["-m", "pip", "install", "--quiet", "--no-input", "--no-compile", "--disable-pip-version-check"]


class NotMadeError(Exception):
    """The environment could not be made."""


# --- what is there -------------------------------------------------------------------------------------------------


def nearest_directory(path):
    """Return path, or the closest directory above it that exists."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def is_foreign(path):
    """Say whether path holds what is no environment, and so must not be emptied."""
    if not path.is_dir():
        return path.exists() or path.is_symlink()
    return not (path / "pyvenv.cfg").exists() and any(entry.is_file() for entry in path.rglob("*"))


def can_make_environments():
    """Say whether this interpreter has all it takes; Debian packages that part separately."""
    return all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))


def is_supported(oldest, newest):
    """Say whether this interpreter lies between two versions, given as "3.10" or as "" for no limit."""

    def number(text):
        return tuple(int(part) for part in text.split("."))

    mine = number(PYTHON)
    return not (oldest and mine < number(oldest)) and not (newest and mine > number(newest))


def canonical(name):
    """Return the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(path):
    """Return {distribution: version} of an environment, read from its file names without running anything of it."""
    found = (path / "lib" / f"python{PYTHON}" / "site-packages").glob("*-*.dist-info")
    pairs = [entry.stem.split("-", 1) for entry in found]
    return {canonical(name): version for name, version in pairs}


def has_pins(path, packages):
    """Say whether every exactly pinned package is there in that version, whatever its build (+cpu, +cu126)."""
    there = installed(path)
    pins = [re.match(r"([\w.-]+)(?:\[.*\])?==([^\s;,*]+)$", package) for package in packages]
    wanted = [(canonical(pin.group(1)), pin.group(2)) for pin in pins if pin]
    return all(version in (there.get(name), there.get(name, "").split("+")[0]) for name, version in wanted)


def read_receipt(path):
    """Return what the last finished installation left behind, or None."""
    try:
        return json.loads((path / RECEIPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def make_receipt(request):
    """Return what this installation leaves behind: everything that makes the environment what it is."""
    receipt = {key: request[key] for key in ("packages", "index_url", "wheelhouse")}
    receipt["python"] = PYTHON
    return receipt


def is_ready(request):
    """Say whether the environment is there already, finished and made from the same things."""
    path = Path(request["path"])
    runs = os.access(str(path / "bin" / "python"), os.X_OK)
    return runs and read_receipt(path) == make_receipt(request) and has_pins(path, request["packages"])


# --- why not to start ----------------------------------------------------------------------------------------------


def rules(request, near, free_mb):
    """Return (is broken, what to say) of every rule."""
    path, wheelhouse = Path(request["path"]), request["wheelhouse"]
    return [
        (not path.is_absolute(), "{role}_venv must be an absolute path, not {path}"),
        (
            not is_supported(request["python_min"], request["python_max"]),
            "{python} is not supported by {what} ({supported} is): set {role}_python to another interpreter",
        ),
        (
            not can_make_environments(),
            "{python} cannot make virtual environments: install that part of it (Debian, Ubuntu: apt install "
            "python3-venv) or set {role}_python to another interpreter",
        ),
        (
            wheelhouse and not Path(wheelhouse).is_dir(),
            "{role}_wheelhouse is no directory on this machine: {wheelhouse}",
        ),
        (
            is_foreign(path),
            "{path} exists and is no Python environment, so it is left alone: set {role}_venv to another directory",
        ),
        (
            not os.access(str(near), os.W_OK | os.X_OK),
            "no permission to write in {near}: set {role}_venv to another directory",
        ),
        (
            free_mb < request["disk_mb"] and not is_ready(request),
            "{what} needs {disk_mb} MB in {near}, where {free_mb} MB are free: set {role}_venv to another disk",
        ),
    ]


def look(request):
    """Return the answer of `look`."""
    near = nearest_directory(Path(request["path"]))
    free_mb = shutil.disk_usage(str(near)).free // 10**6
    words = dict(
        request,
        python=f"Python {PYTHON} at {request['python']}",
        supported=f"{request['python_min']} to {request['python_max'] or 'newer'}",
        what=request["packages"][0] if request["packages"] else "the environment",
        near=near,
        free_mb=free_mb,
    )
    broken = [says for is_broken, says in rules(request, near, free_mb) if is_broken]
    return {"refusals": [("{role}: " + says).format(**words) for says in broken], "ready": is_ready(request)}


# --- making it -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path):
    """Hold the lock of an environment, which lies beside it; programs started meanwhile hold it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock")
    with lock.open("w") as stream:
        os.set_inheritable(stream.fileno(), True)
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NotMadeError(f"another installation has held {lock} for {LOCK_SECONDS} s") from None
                time.sleep(0.2)
        yield


def run(argv, what):
    """Run a program to its end; a failure tells pip's own ERROR lines, or else all it wrote."""
    env = dict(os.environ, PIP_USER="0")
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, close_fds=False, check=False)
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise NotMadeError(f"{what}: {'; '.join(errors) or f'exit status {done.returncode}'}")


def source(request):
    """Return pip's options for where packages come from."""
    if request["wheelhouse"]:
        return ["--no-index", "--find-links", request["wheelhouse"]]
    return ["--extra-index-url", request["index_url"]] if request["index_url"] else []


def make(request):
    """Make the environment, unless it is there."""
    path, packages = Path(request["path"]), request["packages"]
    with locked(path):
        if is_ready(request):
            return False
        with contextlib.suppress(FileNotFoundError):
            (path / RECEIPT).unlink()
        run([sys.executable, "-m", "venv", "--clear", str(path)], f"{path} could not be made")
        if packages:
            argv = [str(path / "bin" / "python"), *PIP_INSTALL, *source(request), "--", *packages]
            run(argv, f"pip could not install {' '.join(packages)}")
        unfinished = path / (RECEIPT + ".new")
        unfinished.write_text(json.dumps(make_receipt(request), indent=2) + "\n", encoding="utf-8")
        unfinished.replace(path / RECEIPT)
    return True


def try_to_make(request):
    """Return the answer of `make`."""
    try:
        return {"changed": make(request), "error": ""}
    except (NotMadeError, OSError) as error:
        return {"changed": True, "error": f"{request['role']}: {error}"}


if __name__ == "__main__":
    answers = {"look": look, "make": try_to_make}
    print(json.dumps(answers[sys.argv[1]](json.loads(sys.argv[2]))))
