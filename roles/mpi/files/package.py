"""Look at the package that an MPI launcher comes from (`look`), or link to its programs (`link`).

Usage: package.py look|link REQUEST, where REQUEST is JSON with role, path (a directory; the programs are linked in its
bin/), package, suffix (which the distribution gives their names: mpirun.openmpi) and disk_mb. Prints one line of JSON:
  look: {"refusals": [why it cannot be done, ready to be shown], "installed": the package is there whole, "interrupted":
        an installation of whatever package was, "ready": it is installed and linked}, and changes nothing.
  link: {"changed": bool, "error": "" or what went wrong, ready to be shown}.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

RECEIPT = "torchfleet-receipt.json"
PROGRAMS = "/usr/bin/"


def ask(*argv):
    """Return what a program writes to stdout, without its line end; nothing if it is not there."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.decode(errors="replace").rstrip("\n")


# --- what is there -------------------------------------------------------------------------------------------------


def version_of(package):
    """Return the version of a package that is installed whole, or an empty string."""
    form = "${db:Status-Status} ${Version}"
    state, _sep, version = ask("dpkg-query", "--show", "--showformat", form, package).partition(" ")
    return version if state == "installed" else ""


def was_interrupted():
    """Say whether an installation of any package was; apt refuses to work then."""
    return bool(ask("dpkg", "--audit")) or any(Path("/var/lib/dpkg/updates").glob("[0-9]*"))


def programs_of(request):
    """Return {name: path} of a package's programs, without the suffix that the distribution adds."""
    files = ask("dpkg-query", "--listfiles", request["package"]).splitlines()
    found = [file for file in files if file.startswith(PROGRAMS) and os.access(file, os.X_OK)]
    links = {}
    for file in sorted(found):
        name = file[len(PROGRAMS) :]
        plain = name[: -len(request["suffix"])] if request["suffix"] and name.endswith(request["suffix"]) else name
        links[plain] = file
    return links


def make_receipt(request):
    """Return what linking leaves behind."""
    package = request["package"]
    return {"package": package, "version": version_of(package), "programs": programs_of(request)}


def is_linked(request):
    """Say whether all programs are linked, and nothing else is there."""
    path = Path(request["path"])
    try:
        receipt = json.loads((path / RECEIPT).read_text(encoding="utf-8"))
        links = {entry.name: os.readlink(str(entry)) for entry in (path / "bin").iterdir()}
    except (OSError, ValueError):
        return False
    return receipt == make_receipt(request) and links == receipt["programs"]


def nearest_directory(path):
    """Return path, or the closest directory above it that exists."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def is_foreign(path):
    """Say whether path holds what is not ours, and so must not be replaced."""
    ours = (path / "pyvenv.cfg").exists() or (path / RECEIPT).exists()
    return path.exists() and not ours and not (path.is_dir() and not any(path.iterdir()))


def rules(request, near):
    """Return (is broken, what to say) of every rule."""
    free_mb = shutil.disk_usage("/usr").free // 10**6
    return [
        (
            not shutil.which("apt-get") or not shutil.which("dpkg-query"),
            "packages are installed with apt, which is not here: set {role}_install_method to wheel",
        ),
        (
            is_foreign(Path(request["path"])),
            "{path} exists and is not from torchfleet, so it is left alone: set torchfleet_home to another directory",
        ),
        (
            not os.access(str(near), os.W_OK | os.X_OK),
            f"no permission to write in {near}: set torchfleet_home to another directory",
        ),
        (
            free_mb < request["disk_mb"],
            f"{{package}} needs {{disk_mb}} MB in /usr, where {free_mb} MB are free: make room",
        ),
    ]


def look(request):
    """Return the answer of `look`."""
    installed = bool(version_of(request["package"]))
    ready = installed and is_linked(request)
    near = nearest_directory(Path(request["path"]))
    broken = [] if ready else [says for is_broken, says in rules(request, near) if is_broken]
    refusals = [("{role}: " + says).format(**request) for says in broken]
    return {"refusals": refusals, "installed": installed, "interrupted": was_interrupted(), "ready": ready}


# --- linking -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path):
    """Hold the lock of a directory that role python_venv takes too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def remove(path):
    """Remove a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(str(path))


def link(request):
    """Link the programs, unless they are."""
    path = Path(request["path"])
    new, old = (path.with_name(path.name + suffix) for suffix in (".new", ".old"))
    with locked(path):
        if is_linked(request):
            return False
        remove(new)
        (new / "bin").mkdir(parents=True)
        receipt = make_receipt(request)
        for name, target in receipt["programs"].items():
            (new / "bin" / name).symlink_to(target)
        (new / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
        remove(old)
        if path.is_dir():
            path.rename(old)
        new.rename(path)
        remove(old)
    return True


def try_to_link(request):
    """Return the answer of `link`."""
    try:
        return {"changed": link(request), "error": ""}
    except OSError as error:
        return {"changed": False, "error": f"{request['role']}: {error}"}


if __name__ == "__main__":
    answers = {"look": look, "link": try_to_link}
    print(json.dumps(answers[sys.argv[1]](json.loads(sys.argv[2]))))
