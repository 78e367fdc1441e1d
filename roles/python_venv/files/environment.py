"""Look at a machine before a Python environment is made on it (`look`), make it (`make`), or bring it to machines of
the same kind (`send`, which starts `receive` there).

Usage: environment.py look|make|send|receive REQUEST, where REQUEST is JSON with role, setting, path, python, packages,
python_min, python_max, disk_mb, index_url, wheelhouse, sources, programs, tools, build_environment, beside and lock (a
digest). Prints one line of JSON:
  look:    {"refusals": [why it cannot be done, ready to be shown], "ready": it is there already, "receipt": what it was
           made from and what is in it, "proven": it was tried on this machine, "kind": equal on machines that can
           share one, "os": the ID of its distribution, "mesh": this one reaches the others, "python", "libc" and
           "machine": which wheels fit, "lacks": those of the tools that are not here, "lacks_pip": pip has to be
           brought}, and changes nothing.
  make:    {"changed": bool, "error": "" or what went wrong, ready to be shown, "receipt": as above}. `brought` in
           REQUEST: a tar file of wheels to install from (pip's among them where it lacks here), and of what to build:
           directories (sources), and tarballs
           (programs: name, file, sha256 and configure, the program in the tarball and its options). It is removed.
           `locked` in REQUEST, if there is a lock: its lines (name==version, a marker, checksums), names of those that
           only the index's own build of the first package takes (of_the_build), and packages not in it (more).
  send:    {host: "" or what went wrong}. In REQUEST: to (hosts), source (a host, or "" for this one), mesh (the ssh
           configuration), program (the text of this one), receipt (of the source), senders (hosts that may send on).
  receive: the line `send`, if the environment is to be sent (a tar stream on stdin), then {"error": ...}.

Making is one process, and not a task per step, because it has to survive whoever asked for it: a playbook that is
killed leaves it running, and the next one waits for its lock and finds the work done. Whatever was really interrupted
has no receipt and is made anew; whatever failed leaves what was there before. Runs on Python 3.6 and newer, so that an
interpreter which is too old is told apart from one that does not run at all.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

RECEIPT = "torchfleet-receipt.json"
PROOF = "torchfleet-proof.txt"  # that it works on this machine: never sent to another
# Everything in a request that makes the environment what it is.
SOURCE = ("packages", "index_url", "wheelhouse", "sources", "programs", "build_environment", "beside", "lock")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
PACKAGES = Path("lib", f"python{PYTHON}", "site-packages")  # below an environment
LOCK_SECONDS = 900
FULL_MB = 5
LOOKED_AT = 50  # files of each package
# How many machines one machine sends to at a time: unpacking takes longer than what a network card can bring.
SENT_AT_A_TIME = 4
# Without bytecode: compiling all of PyTorch takes twice as long as unpacking it, and most of it is never imported.
QUIET = ["--quiet", "--no-input", "--disable-pip-version-check"]
PIP_SCRIPT = "#!{}\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
PIP_INSTALL = ["-m", "pip", "install", "--no-compile", *QUIET]
WHEELS_ONLY = ["--only-binary", ":all:"]
PIP_REPORTS = (22, 2)  # from which version on pip can tell what it installed, with checksums
# Verb, request and program come ahead of the environment: shells and lists of processes see only this.
START = "import io, json, sys; sys.argv[1:] = json.loads(io.FileIO(0, closefd=False).readline()); exec(sys.argv[3])"


class NotMadeError(Exception):
    """The environment could not be made."""


# --- what is there -------------------------------------------------------------------------------------------------


def nearest_directory(path):
    """Return path, or the closest directory above it that exists."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def free_mb(path):
    """Return how much can be written in a directory."""
    return shutil.disk_usage(str(path)).free // 10**6


def is_foreign(path):
    """Say whether path holds what is not ours, and so must not be emptied."""
    if not path.is_dir():
        return path.exists()
    ours = (path / "pyvenv.cfg").exists() or (path / RECEIPT).exists()
    return not ours and any(entry.is_file() for entry in path.rglob("*"))


def needs_pip(request):
    """Say whether anything is installed that pip installs."""
    return bool(request["packages"] or request["sources"])


def lacks_pip(request):
    """Say whether pip has to be brought: Debian packages what makes it (ensurepip) apart from Python."""
    beside = request["beside"] and Path(request["beside"], PACKAGES, "pip").is_dir()
    return needs_pip(request) and not (beside or importlib.util.find_spec("ensurepip") or bundled_pip())


def has_tool(tool):
    """Say whether a program is on the search path, or a header (Python.h) is where this interpreter's lie."""
    if tool.endswith(".h"):
        return os.path.exists(os.path.join(sysconfig.get_path("include"), tool))
    return shutil.which(tool) is not None


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
    found = (path / PACKAGES).glob("*-*.dist-info")
    pairs = [entry.stem.split("-", 1) for entry in found]
    return {canonical(name): version for name, version in sorted(pairs)}


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


def write_receipt(path, receipt):
    """Leave behind what the environment was made from and what is in it."""
    unfinished = path / (RECEIPT + ".new")
    unfinished.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path / RECEIPT)


def made_from(request):
    """Return what makes the environment what it is. Where a tarball comes from does not: it has a checksum."""
    programs = [{key: value for key, value in program.items() if key != "url"} for program in request["programs"]]
    return dict({key: request[key] for key in SOURCE}, programs=programs, python=PYTHON)


def is_whole(path):
    """Say whether the files of the packages are there: some of each, for to look at all of PyTorch's takes seconds.

    systemd clears /tmp and /var/tmp of files that are old, one by one: the names of all packages may be left.
    """
    packages = path / PACKAGES
    for record in packages.glob("*.dist-info/RECORD"):
        names = [line.split(",")[0] for line in record.read_text(encoding="utf-8", errors="replace").splitlines()]
        plain = [name for name in names if not name.startswith('"') and not name.endswith((".pyc", ".la"))]
        if not all(os.path.exists(str(packages / name)) for name in plain[:: len(plain) // LOOKED_AT + 1]):
            return False
    return True


def make_receipt(request, digests, unlocked):
    """Return what this installation leaves behind: `digests` has the sha256 of the wheels that pip took, by package;
    `unlocked` names those that no lock was asked about.
    """
    there = installed(Path(request["path"]))
    return dict(made_from(request), installed=there, digests=digests, unlocked=sorted(unlocked))


def is_ready(request):
    """Say whether the environment is there already, finished and made from the same things."""
    path = Path(request["path"])
    runs = os.access(str(path / "bin" / "python"), os.X_OK)
    receipt = read_receipt(path) if runs else None
    wanted = made_from(request)
    # Receipts from before a key was known are as good as those where it is empty.
    same = receipt is not None and all((receipt.get(key) or None) == (value or None) for key, value in wanted.items())
    return same and has_pins(path, request["packages"]) and is_whole(path)


def os_release():
    """Return the lines of /etc/os-release."""
    try:
        return Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def kind_of_machine(request):
    """Return what machines have in common that can share an environment as it is, or "" if this one cannot.

    It holds programs of this distribution, links to this interpreter and its own path.
    """
    system = [line for line in os_release() if line.startswith(("ID=", "VERSION_ID="))]
    if not system or not shutil.which("tar"):
        return ""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    same = [system, platform.machine(), python, request["path"], request["mesh"], made_from(request)]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]


# --- why not to start ----------------------------------------------------------------------------------------------


def rules(request, near):
    """Return (is broken, what to say) of every rule."""
    path = Path(request["path"])
    return [
        (not path.is_absolute(), "{setting} must be an absolute path, not {path}"),
        (path.is_symlink(), "{path} is a symbolic link: set {setting} to where it leads"),
        (
            not is_supported(request["python_min"], request["python_max"]),
            "{python} is not supported by {what} ({supported} is): set {role}_python to another interpreter",
        ),
        (
            not importlib.util.find_spec("venv"),
            "{python} has no module venv, which makes environments: set {role}_python to another interpreter",
        ),
        (
            is_foreign(path),
            "{path} exists and is no Python environment, so it is left alone: set {setting} to another directory",
        ),
        (
            not os.access(str(near), os.W_OK | os.X_OK),
            "no permission to write in {near}: set {setting} to another directory",
        ),
        (
            free_mb(near) < request["disk_mb"] and not is_ready(request),
            "{what} needs {disk_mb} MB in {near}, where {free_mb} MB are free: set {setting} to another disk",
        ),
    ]


def look(request):
    """Return the answer of `look`."""
    path = Path(request["path"])
    near = nearest_directory(path)
    words = dict(
        request,
        python=f"Python {PYTHON} at {request['python']}",
        supported=f"{request['python_min']} to {request['python_max'] or 'newer'}",
        what=(request["packages"] + [program["name"] for program in request["programs"]] + ["the environment"])[0],
        near=near,
        free_mb=free_mb(near),
    )
    broken = [says for is_broken, says in rules(request, near) if is_broken]
    ready = is_ready(request)
    return {
        "refusals": [("{role}: " + says).format(**words) for says in broken],
        "ready": ready,
        "receipt": read_receipt(path) if ready else None,
        "proven": (path / PROOF).exists(),
        "kind": kind_of_machine(request),
        "os": "".join(line[3:].strip('"') for line in os_release() if line.startswith("ID=")),
        "mesh": os.path.exists(os.path.expanduser(request["mesh"])),
        "python": PYTHON,
        "libc": platform.libc_ver()[1],
        "machine": platform.machine(),
        "lacks": [tool for tool in request["tools"] if not has_tool(tool)],
        "lacks_pip": lacks_pip(request),
    }


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


def remove(path):
    """Remove a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(str(path))


@contextlib.contextmanager
def replaced(path):
    """Put what is there aside while something new is made in its place. If that fails, it comes back."""
    aside = path.with_name(path.name + ".old")
    remove(aside)
    if path.is_dir():
        path.rename(aside)
    try:
        yield
    except BaseException:
        full = free_mb(path.parent) < FULL_MB
        remove(path)
        if aside.is_dir():
            aside.rename(path)
        if full:  # which few programs say plainly
            raise NotMadeError(f"no space is left in {path.parent}") from None
        raise
    remove(aside)


def run(argv, what, cwd=None, **environment):
    """Run a program to its end; a failure tells what it says of errors."""
    how = {"cwd": cwd, "env": dict(os.environ, PIP_USER="0", **environment), "close_fds": False}
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **how)
    if done.returncode != 0:
        errors = errors_in([line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()])
        raise NotMadeError(f"{what}: {'; '.join(errors) or f'exit status {done.returncode}'}")


def errors_in(lines):
    """Return what tells of errors: other checksums, of a build by pip, of a compiler, where make stopped, of pip, else
    the first."""
    if mismatches(lines):
        return mismatches(lines)
    built = [line.strip()[len("error: ") :] for line in lines if line.strip().startswith("error: ")]
    built = [line for line in built if " " in line]  # what pip adds are names such as subprocess-exited-with-error
    compiled = [
        line.strip() for line in lines if re.search(r"\S: (fatal )?error: ", line)
    ]  # by a compiler or configure
    stops = [number for number, line in enumerate(lines) if re.match(r"make(\[\d+\])?: \*\*\* ", line)][:1]
    made = [line.strip() for stop in stops for line in lines[max(stop - 2, 0) : stop + 1]]
    return built or compiled[:3] or made or [line for line in lines if line.startswith("ERROR")] or lines[:3]


TRUST = "if you know why, say -e torchfleet_locked=false, which takes versions without checksums"


def mismatches(lines):
    """Return what pip says of checksums, a line for each package: another one than in the lock, or none in it."""
    said, package, expected = [], "", []
    for line in [line.strip() for line in lines]:
        found = re.match(r"(\S+) from (\S+?)(#\S*)?( \(from .*)?:?$", line)
        if found:
            package, expected, required = found.group(1), [], (found.group(4) or "")
            if "In --require-hashes mode" in " ".join(lines):
                said.append(
                    f"{package} is required{required.replace(' (from', ' (by', 1)}, and the lock has no such package"
                )
        elif line.startswith(("Expected sha256", "Expected     or", "or ")):
            expected.append(line.split()[-1])
        elif line.startswith("Got ") and package:
            others = f" nor one of {len(expected) - 1} others" if len(expected) > 1 else ""
            said.append(
                f"{package}: the lock has the sha256 {expected[0]}{others}, and what came has {line.split()[-1]}"
            )
        elif re.match(r"\S+==\S+ --hash=sha256:", line):
            name, _sep, digest = line.partition(" --hash=sha256:")
            said.append(f"{name} is required, and the lock has no such package; what came has the sha256 {digest}")
    return [f"{line}: {TRUST}" for line in dict.fromkeys(said)]


@contextlib.contextmanager
def brought(request):
    """Give the directory with what was brought here: wheels, and sources to build."""
    with tempfile.TemporaryDirectory(prefix=".brought-", dir=str(Path(request["path"]).parent)) as place:
        if request["wheelhouse"] or request["sources"] or request["programs"] or lacks_pip(request):
            with tarfile.open(request["brought"]) as pack:
                pack.extractall(place)
        yield place


def courses(request, place):
    """Return what pip installs one after the other: its options for where from, and the packages.

    Never from two indexes at once: pip would take each name from the one that has the higher version of it, and anybody
    can give the public one a package of a name that only the other had.
    """
    packages = request["packages"]
    if request["lock"]:
        return locked_courses(request, place)
    if request["wheelhouse"]:
        return [(["--no-index", "--find-links", place], packages)]
    if not request["index_url"]:
        return [([], packages)]
    return [(["--index-url", request["index_url"]], packages[:1]), ([], packages[1:])]


def locked_courses(request, place):
    """Return the courses where there is a lock: what it has by its checksums, then what is not in it, which is what the
    user named: a build of the first package that has a version of its own (+cpu), and packages besides."""
    locked, packages = request["locked"], request["packages"]
    where = ["--no-index", "--find-links", place] if request["wheelhouse"] else []
    own = own_build(request, place)
    left_out = locked["of_the_build"] if own else []
    lines = [line for line in locked["lines"] if line.split("==")[0] not in left_out]
    hashed, versions = Path(place, "lock.txt"), Path(place, "versions.txt")
    hashed.write_text("\n".join([*lines, ""]), encoding="utf-8")
    versions.write_text("\n".join([line.split(" --hash")[0] for line in lines] + [""]), encoding="utf-8")
    constrained = [*WHEELS_ONLY, "--constraint", str(versions)]
    return [
        ([*where, *WHEELS_ONLY, "--require-hashes", "--requirement", str(hashed)], []),
        ([*own, *constrained], packages[:1] if own else []),
        (
            [*where, *constrained],
            [package for package in locked["more"] if package not in (packages[:1] if own else [])],
        ),
    ]


def own_build(request, place):
    """Return pip's options for where a build of the first package is, if it is not the package index's own.

    A version such as 2.13.0+cpu is on no public index. It comes from the index or the wheelhouse that the user named,
    or from a directory that pip of this machine was told of by whoever set it up (find-links).
    """
    if not request["wheelhouse"]:
        if request["index_url"]:
            return ["--index-url", request["index_url"]]
        return ["--no-index"] if has_own_build(request, ["--no-index"], place) else []
    where = ["--no-index", "--find-links", place]
    return where if has_own_build(request, where, place) else []


def has_own_build(request, where, place):
    """Say whether pip finds the first package there in a version with a part of its own (+cpu)."""
    python, package = str(Path(request["path"], "bin", "python")), request["packages"][0]
    if not can_report(request):
        return False
    report = Path(place, "found.json")
    argv = [python, *PIP_INSTALL, "--dry-run", "--ignore-installed", "--no-deps", *WHEELS_ONLY, *where]
    argv += ["--report", str(report), "--", package]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        return False
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return any("+" in each["metadata"]["version"] for each in found)


def can_report(request):
    """Say whether pip of the environment tells what it installed."""
    found = [installed(Path(path)).get("pip") for path in (request["path"], request["beside"]) if path]
    numbers = [re.findall(r"\d+", version)[:2] for version in found if version]
    return bool(numbers) and tuple(int(number) for number in numbers[0]) >= PIP_REPORTS


def digests_in(report):
    """Return the sha256 of each wheel that pip took, by package, from what it told; nothing if it was too old to."""
    if not report.exists():
        return {}
    taken = json.loads(report.read_text(encoding="utf-8"))["install"]
    about = [(each["metadata"]["name"], each["download_info"].get("archive_info", {})) for each in taken]
    return {
        canonical(name): archive.get("hashes", {}).get("sha256") or archive.get("hash", "").partition("=")[2]
        for name, archive in about
    }


def bundled_pip():
    """Return the wheels of pip that this interpreter brings (Debian's lie apart); none where it has them elsewhere."""
    brings = importlib.util.find_spec("ensurepip")
    places = [Path(brings.origin).parent / "_bundled"] if brings and brings.origin else []
    return [wheel for place in [*places, Path("/usr/share/python-wheels")] for wheel in sorted(place.glob("pip-*.whl"))]


def make_bare(path, beside, with_pip, place):
    """Make an environment without packages. It sees those of another one, now or when that is there, pip among them.

    pip is unpacked, which installs a wheel that has no compiled part: ensurepip comes to the same, but takes ten times
    as long, as it runs pip out of its wheel.
    """
    wanted = with_pip and not (beside is not None and (beside / PACKAGES / "pip").is_dir())
    bundled = [*bundled_pip(), *sorted(Path(place).glob("pip-*.whl"))][:1] if wanted else []
    option = [] if wanted and not bundled else ["--without-pip"]
    run([sys.executable, "-m", "venv", *option, str(path)], f"{path} could not be made")
    for wheel in bundled:
        with zipfile.ZipFile(str(wheel)) as content:
            content.extractall(str(path / PACKAGES))
        script = path / "bin" / "pip"
        script.write_text(PIP_SCRIPT.format(path / "bin" / "python"), encoding="utf-8")
        script.chmod(0o755)
    if beside:
        (path / PACKAGES / "torchfleet-beside.pth").write_text(f"{beside / PACKAGES}\n", encoding="utf-8")


def install(request, place):
    """Install the packages, and build what is there as a source. Return the checksums of the wheels, by package, and
    which of them came by version alone."""
    path = Path(request["path"])
    python = str(path / "bin" / "python")
    report, digests, unlocked = Path(place, "installed.json"), {}, set()
    told = ["--report", str(report)] if can_report(request) else []
    for options, some in courses(request, place):
        if some or "--requirement" in options:
            what = " ".join(some or request["packages"])
            run([python, *PIP_INSTALL, *told, *options, "--", *some], f"pip could not install {what}")
            came = digests_in(report)
            digests.update(came)
            unlocked.update([] if "--require-hashes" in options else came)
    for name in request["sources"]:
        kept = path / "wheels"  # for whoever has machines without a compiler
        build = ["-m", "pip", "wheel", *QUIET, "--no-deps", "--no-build-isolation", "--wheel-dir", str(kept), "--"]
        run([python, *build, str(Path(place, name))], f"{name} could not be built", **request["build_environment"])
    for wheel in (path / "wheels").glob("*.whl"):
        run([python, *PIP_INSTALL, "--no-deps", "--", str(wheel)], f"pip could not install {wheel.name}")
    for description in (path / PACKAGES).glob("*/lib/*.la"):
        description.unlink()  # UCX's wheel: libtool would look for UCX where the wheel was made
    return digests, unlocked


def build(request, program, place):
    """Build a program from its tarball, with the environment as its prefix. A checkout has no configure yet."""
    path = Path(request["path"])
    mine = f".build-{path.name}-"
    for interrupted in path.parent.glob(mine + "*"):  # nobody else builds this one: its lock is ours
        remove(interrupted)
    with tempfile.TemporaryDirectory(prefix=mine, dir=str(path.parent)) as folder:
        with tarfile.open(str(Path(place, program["file"]))) as source:
            source.extractall(folder)
        root = str(next(Path(folder).iterdir()))
        steps = [] if os.path.exists(os.path.join(root, "configure")) else [["./autogen.sh"]]
        configure, *options = program["configure"]
        steps += [[configure, f"--prefix={path}", *options], ["make", f"-j{len(os.sched_getaffinity(0))}"]]
        for argv in [*steps, ["make", "install"]]:
            run(argv, f"{program['name']} could not be built: {argv[0]}", cwd=root, **request["build_environment"])


def make(request):
    """Make the environment, unless it is there."""
    path = Path(request["path"])
    with locked(path):
        if is_ready(request):
            return False
        with replaced(path), brought(request) as place:
            make_bare(path, Path(request["beside"]) if request["beside"] else None, needs_pip(request), place)
            digests, unlocked = install(request, place)
            for program in request["programs"]:
                build(request, program, place)
            write_receipt(path, make_receipt(request, digests, unlocked))
    return True


def try_to_make(request):
    """Return the answer of `make`."""
    try:
        changed = make(request)
        return {"changed": changed, "error": "", "receipt": read_receipt(Path(request["path"]))}
    except (NotMadeError, OSError, tarfile.TarError) as error:
        return {"changed": False, "error": f"{request['role']}: {error}", "receipt": None}
    finally:
        if request.get("brought"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(request["brought"])


# --- sharing it ----------------------------------------------------------------------------------------------------


def receive(request):
    """Take the environment from stdin, unless it is there (as on machines that share a home)."""
    path = Path(request["path"])
    with locked(path):
        if is_ready(request) and read_receipt(path) == request["receipt"]:
            return
        print("send", flush=True)
        with replaced(path):
            path.mkdir()
            run(["tar", "--extract", "--no-same-owner", "--file", "-", "--directory", str(path)], "it arrived in part")
            write_receipt(path, request["receipt"])


def try_to_receive(request):
    """Return the answer of `receive`."""
    try:
        receive(request)
        return {"error": ""}
    except (NotMadeError, OSError) as error:
        return {"error": str(error)}


def on_host(request, host, argv):
    """Return the command that runs another one on a host of the mesh."""
    mesh = os.path.expanduser(request["mesh"])
    return ["ssh", "-F", mesh, host, " ".join(shlex.quote(word) for word in argv)]


def program_on(request, host):
    """Return the command that runs this program on a host of the mesh; what to do is written to it."""
    return on_host(request, host, [request["python"], "-c", START])


def order(verb, request):
    """Return what is written to this program on another host."""
    return json.dumps([verb, json.dumps(request), request["program"]]).encode() + b"\n"


def last_line(stream):
    """Return the last line of a file that says something."""
    stream.seek(0)
    lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def send_to(request, host):
    """Bring the environment to a host. Return "" or what went wrong."""
    with tempfile.TemporaryFile() as said:
        peer = subprocess.Popen(
            program_on(request, host), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, bufsize=0
        )
        try:
            peer.stdin.write(order("receive", request))
            answer, sent = peer.stdout.readline(), 0
            if answer.strip() == b"send":
                sent = subprocess.call(tar_of(request), stdin=subprocess.DEVNULL, stdout=peer.stdin, stderr=said)
                peer.stdin.close()
                answer = peer.stdout.read()
        except BrokenPipeError:
            answer, sent = b"", 0
        peer.stdin.close()
        peer.stdout.close()
        peer.wait()
        why = last_line(said)
    error = error_in(answer, why or f"ssh ended with status {peer.returncode}")
    if sent and not error:  # then what arrived whole is not all there is
        receipt = f"{request['path']}/{RECEIPT}"
        subprocess.call(on_host(request, host, ["rm", "--force", receipt]), stdin=subprocess.DEVNULL)
        error = why or f"tar ended with status {sent}"
    return error


def tar_of(request):
    """Return the command that writes the environment to stdout."""
    left_out = [f"--exclude=./{name}" for name in (RECEIPT, PROOF)]
    tar = ["tar", "--create", "--file", "-", *left_out, "--directory", request["path"], "."]
    return on_host(request, request["source"], tar) if request["source"] else tar


def error_in(answer, otherwise):
    """Return the error in an answer of `receive`, or something else if it is no answer."""
    try:
        return json.loads(answer.decode())["error"]
    except ValueError:
        return otherwise


def send_on(request, host, others):
    """Have a host that has the environment bring it to others. Return the answer of `send` there."""
    errand = order("send", dict(request, to=others, source=""))
    done = subprocess.run(program_on(request, host), input=errand, stdout=subprocess.PIPE, check=False)
    try:
        return json.loads(done.stdout.decode())
    except ValueError:
        return dict.fromkeys(others, f"{host}, which was to send it on, ended with status {done.returncode}")


def branch(request, hosts):
    """Bring it to the first of some hosts, and then from there to the others, if there is a way."""
    first, others = hosts[0], hosts[1:]
    answer = {first: send_to(request, first)}
    if others and not answer[first] and first in request["senders"]:
        answer.update(send_on(request, first, others))
    else:
        answer.update((other, send_to(request, other)) for other in others)
    return answer


def send(request):
    """Return the answer of `send`: the hosts form a tree, so that N of them take log N times as long as one."""
    hosts = request["to"]
    branches = [hosts[number::SENT_AT_A_TIME] for number in range(min(SENT_AT_A_TIME, len(hosts)))]
    answer = {}
    from concurrent.futures import ThreadPoolExecutor  # takes long to import, and only sending needs it

    with ThreadPoolExecutor(len(branches) or 1) as pool:
        for part in pool.map(lambda some: branch(request, some), branches):
            answer.update(part)
    return answer


if __name__ == "__main__":
    answers = {"look": look, "make": try_to_make, "send": send, "receive": try_to_receive}
    print(json.dumps(answers[sys.argv[1]](json.loads(sys.argv[2]))))
