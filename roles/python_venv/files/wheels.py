"""Choose the wheels that a machine needs out of a directory on this one, and pack them into one file, with sources that
the machine is to build, and with pip where it has none.

Usage: wheels.py REQUEST, where REQUEST is JSON with role, wheelhouse, packages, index_url, fill, into (a directory for
the file), sources ({name: {file: digest}}), directories ({name: directory}), programs (each with url, sha256 and file,
what it is called in the directory shelf), locked (the lock, as in environment.py) and what role python_venv saw on the
machine: python, libc, machine and lacks_pip. Prints one line of JSON: {"pack": the file, "error": "" or why not, ready
to be shown}. With `fill`, wheels that are missing are downloaded first; tarballs of programs also where there is no
wheelhouse.

Which of them are installed is for pip on the machine to say; this leaves out what can be of no use there.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
PINNED = re.compile(r"\s*[\w.-]+(?:\[.*\])?==([^\s;,*]+)\s*$")
SYSTEM_WHEELS = Path("/usr/share/python-wheels")  # where Debian and Fedora keep what ensurepip would bring
# pip takes a Python and a platform to download for, but asks the Python it runs in what a marker such as
# `python_version >= "3.12"` says.
PIP = """
import json, sys
import pip._vendor.packaging.markers as markers
from pip._internal.cli.main import main
here = markers.default_environment()
there = {**here, **json.loads(sys.argv.pop(1))}
markers.default_environment = lambda: there
sys.exit(main())
"""


class NotFoundError(Exception):
    """Wheels are missing."""


class NotFetchedError(Exception):
    """A tarball is missing, or is not what it should be; the message is ready to be shown."""


def canonical(name):
    """Return the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def fits(tags, request):
    """Say whether a wheel with these tags (cp311-cp311-manylinux_2_28_x86_64) can be of use on the machine."""
    pythons, abis, platforms = (tag.split(".") for tag in tags.split("-"))
    major, minor = request["python"].split(".")
    mine = {f"py{major}", f"py{major}{minor}", f"cp{major}{minor}"}
    stable = "abi3" in abis and any(re.match(r"cp3\d+$", tag) and int(tag[3:]) <= int(minor) for tag in pythons)
    linux = [tag for tag in platforms if "linux" in tag and tag.endswith("_" + request["machine"])]
    return bool((mine & set(pythons) or stable) and (linux or "any" in platforms))


def wheels_by_name(request):
    """Return {distribution: its wheels} of those in the wheelhouse that can be of use on the machine."""
    found = {}
    for path in sorted(Path(request["wheelhouse"]).glob("*.whl")):
        parts = path.stem.split("-")
        if len(parts) in (5, 6) and fits("-".join(parts[-3:]), request):
            found.setdefault(canonical(parts[0]), []).append(path)
    return found


def is_version(path, package):
    """Say whether a wheel has the version that is asked for, whatever its build (+cpu, +cu126)."""
    pin, version = PINNED.match(package), path.name.split("-")[1]
    return pin is None or pin.group(1) in (version, version.split("+")[0])


def locked_versions(request):
    """Return {distribution: its versions} of the lock."""
    found = {}
    for line in request["locked"]["lines"]:
        name, _sep, version = line.split()[0].partition("==")
        found.setdefault(name, []).append(version)
    return found


def by_lock(name, wheels, request):
    """Return those of a distribution's wheels that the lock has. NotFoundError if there are wheels, but not these."""
    versions = locked_versions(request).get(name, [])
    fitting = [path for path in wheels if not versions or path.name.split("-")[1].split("+")[0] in versions]
    if wheels and not fitting:
        raise NotFoundError(" or ".join(f"{name}=={version}" for version in versions))
    return fitting


def required_by(path):
    """Return the names of all distributions that a wheel may require; which of them it does is for pip to say."""
    with zipfile.ZipFile(path) as wheel:
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        lines = wheel.read(metadata).decode("utf-8", "replace").splitlines()
    wanted = [line.partition(":")[2] for line in lines if line.startswith("Requires-Dist:")]
    return {canonical(NAME.match(line).group(1)) for line in wanted if "extra ==" not in line}


def choose(request):
    """Return the wheels to bring. NotFoundError if one of those asked for is not there."""
    there, chosen = wheels_by_name(request), {}
    for package in request["packages"]:
        name = canonical(NAME.match(package).group(1))
        wheels = [path for path in there.get(name, []) if is_version(path, package)]
        if not wheels:
            raise NotFoundError(package)
        chosen[name] = wheels
    known, waiting = set(chosen), [path for wheels in chosen.values() for path in wheels]
    while waiting:
        for name in required_by(waiting.pop()) - known:
            known.add(name)
            chosen[name] = by_lock(name, there.get(name, []), request)
            waiting += chosen[name]
    return sorted(path for wheels in chosen.values() for path in wheels)


def download(request):
    """Download what is missing for the machine. NotFoundError with pip's own words if that fails."""
    machine, minor = request["machine"], request["python"]
    newest = int([*request["libc"].split("."), "17"][1])
    platforms = [f"manylinux_2_{number}_{machine}" for number in range(newest, 4, -1)] + [f"manylinux2014_{machine}"]
    markers = {"python_version": minor, "python_full_version": f"{minor}.0", "platform_machine": machine}
    wheelhouse = request["wheelhouse"]
    argv = [sys.executable, "-c", PIP, json.dumps(markers), "download", "--quiet", "--no-input", "--only-binary=:all:"]
    argv += ["--disable-pip-version-check", f"--python-version={minor}", f"--dest={wheelhouse}"]
    argv += ["--find-links", wheelhouse]
    argv += [f"--platform={platform}" for platform in platforms]
    Path(wheelhouse).mkdir(parents=True, exist_ok=True)
    if run_pip([*argv, "--no-index", "--", *request["packages"]]):  # what is there is not looked for elsewhere
        for where, packages in locked_courses(request, argv) if request["locked"]["lines"] else courses(request):
            error = run_pip([*argv, *where, "--", *packages]) if packages or "--requirement" in where else ""
            if error:
                raise NotFoundError(error)


def courses(request):
    """Return pip's options for where from, and the packages: never from two indexes at once, as in environment.py."""
    packages, index = request["packages"], request["index_url"]
    return [(["--index-url", index], packages[:1]), ([], packages[1:])] if index else [([], packages)]


def locked_courses(request, argv):
    """Return the same where there is a lock: what it has by its checksums, and then the rest, as in environment.py."""
    locked, packages, index = request["locked"], request["packages"], request["index_url"]
    own = bool(index) or brings_own_build(request, argv)
    lines = [line for line in locked["lines"] if not (own and line.split("==")[0] in locked["of_the_build"])]
    hashed, versions = Path(request["into"], "lock.txt"), Path(request["into"], "versions.txt")
    hashed.write_text("\n".join([*lines, ""]), encoding="utf-8")
    versions.write_text("\n".join([line.split(" --hash")[0] for line in lines] + [""]), encoding="utf-8")
    constrained = ["--constraint", str(versions)]
    return [
        (["--require-hashes", "--requirement", str(hashed)], []),
        (["--index-url", index, *constrained], packages[:1] if index else []),
        (constrained, [package for package in locked["more"] if package not in (packages[:1] if own else [])]),
    ]


def brings_own_build(request, argv):
    """Bring a build of the first package that pip is told of here (find-links), and say whether there is one (+cpu)."""
    package = request["packages"][0]
    if run_pip([*argv, "--no-index", "--no-deps", "--", package]):
        return False
    name = canonical(NAME.match(package).group(1))
    return any("+" in path.name for path in wheels_by_name(request).get(name, []) if is_version(path, package))


def run_pip(argv):
    """Run pip. Return what it says of errors if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"pip ended with {done.returncode}"]
    return "; ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:]) if done.returncode else ""


def own_pip(into):
    """Return a wheel of pip: the one that this interpreter brings, or one made of the pip that it has.

    NotFetchedError where it has neither.
    """
    brings = importlib.util.find_spec("ensurepip")
    places = [Path(brings.origin).parent / "_bundled"] if brings and brings.origin else []
    for place in [*places, SYSTEM_WHEELS]:
        for wheel in sorted(place.glob("pip-*.whl")):
            return wheel
    try:
        pip = importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        raise NotFetchedError("the machine has no pip, and neither has this one's " + sys.executable) from None
    wheel = Path(into, f"pip-{pip.version}-py3-none-any.whl")
    with zipfile.ZipFile(wheel, "w") as content:
        for file in pip.files or ():
            if file.parts[0].startswith("pip") and file.suffix != ".pyc" and ".." not in file.parts:
                content.write(str(file.locate()), str(file))
    return wheel


def digest_of(path):
    """Return the sha256 of a file, or an empty string where it is not there."""
    if not path.is_file():
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for part in iter(lambda: stream.read(1 << 20), b""):
            digest.update(part)
    return digest.hexdigest()


def fetch(request, program):
    """Fetch the tarball of a program, unless it is there. NotFetchedError if it is not what it should be."""
    shelf, url = Path(request["shelf"]), program["url"]
    path, unfinished = shelf / program["file"], shelf / f"{program['file']}.{os.getpid()}"
    if digest_of(path) == program["sha256"]:
        return
    if request["wheelhouse"] and not request["fill"]:
        hint = f"download it with -e {request['role']}_wheelhouse_fill=true"
        raise NotFetchedError(f"{shelf} has no {path.name} with the checksum of versions.yml: {hint}")
    shelf.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, unfinished.open("wb") as stream:
            shutil.copyfileobj(answer, stream)
        found = digest_of(unfinished)
        if found != program["sha256"]:
            hint = "if that is right, change it in versions.yml"
            raise NotFetchedError(f"{url} should have the checksum {program['sha256']}, but has {found}: {hint}")
        unfinished.replace(path)
    except OSError as error:
        hint = f"lay it in {shelf} as {path.name}"
        raise NotFetchedError(f"{url} could not be fetched ({error}): {hint}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def identity(file):
    """Return a line that tells a file from any other, without reading it: wheels are large."""
    name, path = file
    status = path.stat()
    return f"{name} {path} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def pack(request, wheels):
    """Return the path of a tar file with the wheels and the sources, which is made unless it is there."""
    files = {path.name: path for path in wheels}
    files.update({program["file"]: Path(request["shelf"], program["file"]) for program in request["programs"]})
    for name, listed in request["sources"].items():
        files.update({f"{name}/{file}": Path(request["directories"][name], file) for file in listed})
    digest = hashlib.sha256("\n".join(sorted(map(identity, files.items()))).encode()).hexdigest()[:16]
    there = Path(request["into"], digest + ".tar")
    if not there.exists():
        with tarfile.open(there, "w") as file:
            for name, path in files.items():
                file.add(path, arcname=name)
    return str(there)


def answer(request):
    """Return the answer to a request."""
    role, wheelhouse = request["role"], request["wheelhouse"]
    kind = f"Python {request['python']} on {request['machine']}"
    try:
        if request["fill"] and request["packages"]:
            download(request)
        for program in request["programs"]:
            fetch(request, program)
        brought = (choose(request) if wheelhouse else []) + ([own_pip(request["into"])] if request["lacks_pip"] else [])
        return {"pack": pack(request, brought), "error": ""}
    except NotFoundError as error:
        if request["fill"]:
            return {"pack": "", "error": f"{role}: no wheels for {kind} could be brought to {wheelhouse}: {error}"}
        hint = f"download it with -e {role}_wheelhouse_fill=true"
        return {"pack": "", "error": f"{role}: {wheelhouse} has no wheel of {error} for {kind}: {hint}"}
    except NotFetchedError as error:
        return {"pack": "", "error": f"{role}: {error}"}
    except (OSError, zipfile.BadZipFile) as error:
        return {"pack": "", "error": f"{role}: {wheelhouse}: {error}"}


if __name__ == "__main__":
    os.umask(0o077)
    print(json.dumps(answer(json.loads(sys.argv[1]))))
