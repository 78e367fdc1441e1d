# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes a Python environment: with pip from locked wheels, and from sources that are built here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Iterator, NamedTuple, TypedDict

from .build_errors import TRUST, TRUST_OF_PROGRAM
from .environment import Program, Request, canonical, installed, is_ready, make_receipt, read_receipt, write_receipt
from .environment_files import LINK, NotMadeError, locked, remove_leftovers, replaced, run, work_directory
from .interpreter import bundled_pip, number, packages_of
from .kept_packages import keep_option, refuse_exchanged, refuse_unfit

# No bytecode: compiling all of PyTorch takes twice as long as unpacking it, and most of it is never imported.
QUIET = ["--quiet", "--no-input", "--disable-pip-version-check"]
PIP_SCRIPT = "#!{}\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
PIP = ["-I", "-m", "pip"]  # isolated: pip would take modules in PYTHONPATH or the current directory for installed
PIP_INSTALL = [*PIP, "install", "--no-compile", *QUIET]
WHEELS_ONLY = ["--only-binary", ":all:"]
IN_TIME = ["--retries", "1", "--timeout", "15"]  # of an index that is only preferred
PIP_REPORTS = (22, 2)  # the first version of pip with --report


class PipCall(NamedTuple):
    """One call of pip: the options that name the sources of packages, and the packages.

    The address of an index may contain a password or token. It is passed in the environment, because all users can read
    command lines.
    """

    options: list[str]
    packages: list[str]
    index_url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The additional environment variables of pip."""
        return {"PIP_INDEX_URL": self.index_url} if self.index_url else {}


@contextlib.contextmanager
def brought(request: Request) -> Iterator[str]:
    """Yield a directory with the files that the controller copied here: wheels, and sources to build."""
    with work_directory(request.place, "brought") as place:
        if request.brought:
            with tarfile.open(request.brought) as pack:
                pack.extractall(place)
            os.unlink(request.brought)
        yield place


# --- where pip takes packages from ------------------------------------------------------------------------------------


def pip_calls(request: Request, place: str) -> list[PipCall]:
    """Return the calls of pip, one after the other.

    No call uses two indexes: pip would take each name from the one with the higher version, and anyone can publish a
    package on the public index with a name that only the other index has.
    """
    packages = request.packages
    compiled = compiled_for_torch(request)
    if request.lock:
        return [*compiled, *locked_pip_calls(request, place)]
    if request.wheelhouse:
        return [PipCall(["--no-index", "--find-links", place], packages)]
    if compiled:
        return [*compiled, PipCall([], packages, request.index_url)]
    if not request.index_url or request.one_index:
        return [PipCall([], packages, request.index_url)]
    return [PipCall([], packages[:1], request.index_url), PipCall([], packages[1:])]


def compiled_for_torch(request: Request) -> list[PipCall]:
    """Return the call for packages that are compiled for the kept build of torch, from the index of that build.

    What they need comes with the other packages, from the index of those: they are named there too, and are there then.
    """
    if not request.torch_packages or request.wheelhouse:
        return []
    return [PipCall(["--no-deps", *WHEELS_ONLY], request.torch_packages, request.torch_index_url)]


def locked_pip_calls(request: Request, place: str) -> list[PipCall]:
    """Return the calls with a lock.

    First the packages of the lock, by checksum. Then, by version, a build of the first package with a suffix in its
    version (+cpu), and packages that are not in the lock.
    """
    lock, first = request.locked, request.packages[:1]
    where = ["--no-index", "--find-links", place] if request.wheelhouse else []
    own = None if request.kept else own_build(request, place)  # torch is not among them: all have checksums
    left_out = lock.of_the_build if own else []
    if not request.wheelhouse:  # the checksums are those of the index's own build
        left_out = [*left_out, *(canonical(re.split(r"[^A-Za-z0-9._-]", each)[0]) for each in request.torch_packages)]
    lines = [line for line in lock.lines if line.split("==")[0] not in left_out]
    hashed, versions = Path(place, "lock.txt"), Path(place, "versions.txt")
    hashed.write_text("\n".join([*lines, ""]), encoding="utf-8")
    versions.write_text("\n".join([line.split(" --hash")[0] for line in lines] + [""]), encoding="utf-8")
    constrained = [*WHEELS_ONLY, "--constraint", str(versions)]
    more = [package for package in lock.more if package not in (first if own else [])]
    return [
        PipCall([*where, *WHEELS_ONLY, "--require-hashes", "--requirement", str(hashed)], [], index_of(request)),
        PipCall([*(own.options if own else []), *constrained], first if own else [], own.index_url if own else ""),
        PipCall([*where, *constrained], more),
    ]


def index_of(request: Request) -> str:
    """Return the index of all packages, an empty text for the one that pip is configured with."""
    return request.index_url if request.one_index and not request.wheelhouse else ""


def own_build(request: Request, place: str) -> PipCall | None:
    """Return where a build of the first package is, if it is not the package index's own.

    A version such as 2.13.0+cpu is on no public index. It comes from the user's index or wheelhouse, from a directory
    in this machine's pip configuration (find-links), or from the preferred index if that can be reached.
    """
    if not request.wheelhouse:
        if request.index_url:
            return PipCall([], [], request.index_url)
        ways = [PipCall(["--no-index"], [])]
        ways += [PipCall(IN_TIME, [], request.preferred_index)] if request.preferred_index else []
        return next((way for way in ways if has_own_build(request, way, place)), None)
    shelf = PipCall(["--no-index", "--find-links", place], [])
    return shelf if has_own_build(request, shelf, place) else None


def has_own_build(request: Request, where: PipCall, place: str) -> bool:
    """Whether pip finds the first package there in a version with a suffix (+cpu)."""
    python, package = str(request.place / "bin" / "python"), request.packages[0]
    if not can_report(request):
        return False
    report = Path(place, "found.json")
    argv = [python, *PIP_INSTALL, "--dry-run", "--ignore-installed", "--no-deps", *WHEELS_ONLY, *where.options]
    argv += ["--report", str(report), "--", package]
    environment = {**os.environ, **where.environment}
    done = subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        return False
    return any("+" in each["metadata"]["version"] for each in taken(report))


def can_report(request: Request) -> bool:
    """Whether the environment's pip can report what it installed."""
    version = request.interpreter.version
    found = [installed(Path(path), version).get("pip") for path in (str(request.place), request.linked) if path]
    numbers = [number(release)[:2] for release in found if release]
    return bool(numbers) and numbers[0] >= PIP_REPORTS


class PipPackage(TypedDict):
    """An installed package in a report of pip: what is read of it."""

    metadata: dict[str, str]
    download_info: DownloadInfo


class DownloadInfo(TypedDict, total=False):
    archive_info: ArchiveInfo


class ArchiveInfo(TypedDict, total=False):
    hash: str  # of older versions of pip: "sha256=..."
    hashes: dict[str, str]


def taken(report: Path) -> list[PipPackage]:
    """Return the installed packages of a report of pip."""
    found: list[PipPackage] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return found


def digests_in(report: Path) -> dict[str, str]:
    """Return the sha256 of each installed wheel, by package, from a report of pip."""
    nothing: ArchiveInfo = {}
    about = [(each["metadata"]["name"], each["download_info"].get("archive_info", nothing)) for each in taken(report)]
    return {
        canonical(name): archive.get("hashes", {}).get("sha256") or archive.get("hash", "").partition("=")[2]
        for name, archive in about
    }


# --- making -----------------------------------------------------------------------------------------------------------


def make_bare(request: Request, place: str) -> None:
    """Make an environment without packages other than pip, with a link to the packages of the linked environment.

    pip's wheel is unpacked, which is enough because it has no compiled part. ensurepip has the same result, but takes
    ten times as long, because it runs pip from its wheel.
    """
    path, packages = request.place, request.place / request.interpreter.packages
    other = request.linked
    linked = Path(other, request.interpreter.packages) if other else None
    wanted = request.installs and not (linked is not None and (linked / "pip").is_dir())
    found = [*bundled_pip(request.interpreter.ensurepip), *sorted(Path(place).glob("pip-*.whl"))]
    bundled = found[:1] if wanted else []
    option = [] if wanted and not bundled else ["--without-pip"]
    run([request.python, "-I", "-m", "venv", *option, str(path)], f"{path} could not be made")
    for wheel in bundled:
        with zipfile.ZipFile(str(wheel)) as content:
            content.extractall(str(packages))
        script = path / "bin" / "pip"
        script.write_text(PIP_SCRIPT.format(path / "bin" / "python"), encoding="utf-8")
        script.chmod(0o755)
    if linked:
        # Links of linked environments are not followed by themselves. Only what programs bring goes beside all of them:
        # pip would take another build of our backends for installed that lies there already.
        further = linked / LINK
        text = further.read_text(encoding="utf-8") if request.kept and further.is_file() else ""
        (packages / LINK).write_text(f"{linked}\n{text}", encoding="utf-8")


def install(request: Request, place: str) -> tuple[dict[str, str], set[str]]:
    """Install the packages. Return the checksum of each wheel, by package, and which were installed without a lock."""
    python = str(request.place / "bin" / "python")
    report = Path(place, "installed.json")
    options = ["--report", str(report)] if can_report(request) else []
    digests: dict[str, str] = {}
    unlocked: set[str] = set()
    kept = keep_option(request, place)
    for call in pip_calls(request, place):
        if call.packages or "--requirement" in call.options:
            what = " ".join(call.packages or request.packages)
            argv = [python, *PIP_INSTALL, *options, *kept, *call.options, "--", *call.packages]
            trust = TRUST_OF_PROGRAM if request.kept else TRUST
            run(argv, f"pip could not install {what}", environment=call.environment, trust=trust)
            came = digests_in(report) if options else {}
            digests.update(came)
            unlocked.update([] if "--require-hashes" in call.options else came)
    refuse_exchanged(request)
    refuse_unfit(request)
    return digests, unlocked


def build_sources(request: Request, place: str) -> None:
    """Build Python packages from their sources. The wheels are kept, for machines without a compiler."""
    python, kept = str(request.place / "bin" / "python"), request.place / "wheels"
    wheel_options = [*QUIET, "--no-deps", "--no-build-isolation", "--wheel-dir", str(kept), "--"]
    for name in request.sources:
        argv = [python, *PIP, "wheel", *wheel_options, str(Path(place, name))]
        run(argv, f"{name} could not be built", environment=request.build_environment)
    for wheel in kept.glob("*.whl"):
        run([python, *PIP_INSTALL, "--no-deps", "--", str(wheel)], f"pip could not install {wheel.name}")


def build_program(request: Request, program: Program, place: str) -> None:
    """Build a program from its tarball, with the environment as its prefix. Without configure, run autogen.sh."""
    path = request.place
    with work_directory(path, "build") as folder:
        with tarfile.open(str(Path(place, program["file"]))) as source:
            source.extractall(folder)
        root = str(next(Path(folder).iterdir()))
        steps = [] if os.path.exists(os.path.join(root, "configure")) else [["./autogen.sh"]]
        configure, *options = program["configure"]
        steps += [[configure, f"--prefix={path}", *options], ["make", f"-j{len(os.sched_getaffinity(0))}"]]
        for argv in [*steps, ["make", "install"]]:
            run(argv, f"{program['name']} could not be built: {argv[0]}", root, request.build_environment)


def make(request: Request) -> bool:
    """Make the environment, unless it is there. Return whether it was made. Raise NotMadeError if that fails."""
    path = request.place
    with locked(path):
        remove_leftovers(path, request.brought)
        if is_ready(request):
            return False
        with replaced(path):
            with brought(request) as place:
                digests, unlocked = fill(request, place)
            write_receipt(path, make_receipt(request, digests, unlocked))
    return True


def fill(request: Request, place: str) -> tuple[dict[str, str], set[str]]:
    """Make the environment with everything in it. Return the result of install()."""
    make_bare(request, place)
    found = install(request, place)
    build_sources(request, place)
    for description in (request.place / packages_of(request.interpreter.version)).glob("*/lib/*.la"):
        description.unlink()  # of UCX's wheel: libtool would look for UCX in the directory named there
    for program in request.programs:
        build_program(request, program, place)
    return found


class Made(TypedDict):
    changed: bool
    error: str  # a line to be shown; empty: none
    receipt: dict[str, object] | None


def try_to_make(request: Request) -> Made:
    """Make the environment, and return how it went. What was brought is removed."""
    try:
        changed = make(request)
        return {"changed": changed, "error": "", "receipt": read_receipt(request.place)}
    except (NotMadeError, OSError, tarfile.TarError) as error:
        text = re.sub(r"\s+", " ", str(error))
        return {"changed": False, "error": f"{request.role}: {text}", "receipt": None}
    finally:
        if request.brought:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(request.brought)
