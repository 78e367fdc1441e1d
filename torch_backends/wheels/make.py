"""Build wheels of torchfleet-backends that machines without a compiler install: `make wheels`.

Usage: make.py [--torch RELEASE]... [--python INTERPRETER]... Each wheel has backend shm, and mpi for both ABIs, for one
release of PyTorch and one version of Python, on this kind of machine. Its C++ is compiled in a container of Debian 11:
needed are root and podman, as for a lab. PyTorch is fetched, but not run. auditwheel gives each wheel the tag of the
oldest glibc that it runs with. What the launcher or PyTorch brings stays out of them: libmpi, libtorch and the like.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.host import limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman

HERE = Path(__file__).resolve().parent
PACKAGE, TOP = HERE.parent, HERE.parents[1]
WORK, INTO = TOP / ".cache" / "wheels", TOP / "wheels"
# By release of PyTorch, the newest of each minor release that we support: the compiler of the container.
RELEASES = {"2.13.0": "g++", "2.14.1": "clang++-16"}
MPIS = ("openmpi", "mpich")  # one of each ABI; Intel MPI has that of MPICH
BROUGHT = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libmpi.so.40", "libmpi_abi.so.1")
PIP = ("-I", "-m", "pip", "--quiet", "--disable-pip-version-check")
HEADERS = "import sysconfig as s; print(s.get_path('include'), s.get_config_var('MULTIARCH') or '')"


def call(*argv: object, **environment: str) -> str:
    """Run a program, and return what it printed. Where it fails, end with its last words."""
    words = [str(word) for word in argv]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in said if "error: " in line.lower()] or said[-1:] or ["it said nothing"]
        sys.exit(f"make wheels: {Path(words[0]).name} failed with status {done.returncode}: {errors[0].strip()}")
    return done.stdout


def container() -> str:
    """Return the image with the compilers, made unless it is there."""
    base = image.bootstrap("bullseye", "")
    made_from = hashlib.sha256(f"{base}\n{(HERE / 'Containerfile').read_text()}".encode()).hexdigest()[:12]
    tag = f"localhost/torchfleet-wheels:{made_from}"
    if not image.exists(tag):
        podman(
            "build", "--quiet", "--network", "host", "--tag", tag, *limits(), "--build-arg", f"BASE={base}", str(HERE)
        )
    return tag


def installed(place: Path, python: Path, *words: object, **environment: str) -> Path:
    """Return a directory that pip has filled, filled unless it is there: its name tells what with."""
    done = place / "filled"
    if not done.exists():
        call(python, *PIP, "install", "--no-warn-script-location", *words, **environment)
        done.touch()
    return place


def tools(python: Path) -> Path:
    """Return the interpreter of an environment that has the tools, for the version of Python of this interpreter."""
    lock = TOP / "requirements-wheels.txt"
    key = hashlib.sha256(f"{python.resolve()}\n{lock.read_text()}".encode()).hexdigest()[:12]
    place = WORK / f"tools-{key}"
    own = place / "bin" / "python"
    if not own.exists():
        call(python, "-I", "-m", "venv", place)
    installed(place, own, "--require-hashes", "--requirement", lock)
    return own


def headers(python: Path) -> list[Path]:
    """Return the directories of the headers of an interpreter. Debian has one of them for all kinds of machines."""
    include, _blank, kind = call(python, "-I", "-c", HEADERS).strip("\n").partition(" ")
    if not Path(include, "Python.h").exists():
        sys.exit(
            f"make wheels: there is no Python.h in {include}: install libpython3-dev (Debian), or name another --python"
        )
    own = Path("/usr/include", kind, Path(include).name)
    return [Path(include), *([own] if kind and own.exists() else [])]


def compiler(place: Path, tag: str, name: str, seen: list[Path]) -> Path:
    """Return a program that is the compiler of the container. It sees these directories, under their own names."""
    mounts = [word for path in seen for word in ("--volume", f"{path}:{path}:ro")]
    argv = ["podman", "run", "--rm", "--network", "none", *limits(), *mounts, "--volume", f"{place}:{place}"]
    program = place / "compiler"
    words = [*argv, "--workdir", str(place), tag, name]
    program.write_text(f"#!{sys.executable} -I\nimport os, sys\nos.execvp('podman', [*{words!r}, *sys.argv[1:]])\n")
    program.chmod(0o700)
    return program


def build(tag: str, python: Path, release: str) -> Path:
    """Return the wheel for a release of PyTorch and an interpreter."""
    own = tools(python)
    key = own.parents[1].name.removeprefix("tools-")
    mpis = [
        WORK / f"{mpi}-{hashlib.sha256((TOP / 'locks' / f'{mpi}.txt').read_bytes()).hexdigest()[:12]}" for mpi in MPIS
    ]
    for mpi, place in zip(MPIS, mpis, strict=True):
        lock = TOP / "locks" / f"{mpi}.txt"
        installed(place, own, "--no-deps", "--require-hashes", "--prefix", place, "--requirement", lock)
    torch = WORK / f"torch-{release}-{key}"
    installed(torch, own, "--no-deps", "--only-binary", ":all:", "--target", torch, f"torch=={release}")
    place = WORK / f"build-{release}-{key}"
    call("rm", "-rf", place)
    call("cp", "-r", PACKAGE, place)
    (place / "version.cfg").write_text(
        f"[egg_info]\ntag_build = +torch{release}\n"
    )  # setuptools docs: DIST_EXTRA_CONFIG
    environment = {
        "CXX": str(compiler(place, tag, RELEASES.get(release, RELEASES["2.14.1"]), [*headers(python), torch, *mpis])),
        "DIST_EXTRA_CONFIG": str(place / "version.cfg"),
        "PYTHONPATH": str(torch),
        "TORCHFLEET_BACKENDS_MPI": ":".join(map(str, mpis)),
        "TORCHFLEET_BACKENDS_SHM": "yes",
        "TMPDIR": str(place),
    }
    words = ["wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", place / "raw", place]
    call(own, "-m", "pip", *PIP[3:], *words, **environment)
    return repaired(own, next((place / "raw").glob("*.whl")))


def repaired(own: Path, wheel: Path) -> Path:
    """Return the wheel with the tag of the oldest glibc that it runs with."""
    into = wheel.parent.parent / "tagged"
    argv = [
        own.with_name("auditwheel"),
        "repair",
        "--wheel-dir",
        into,
        *(f"--exclude={name}" for name in BROUGHT),
        wheel,
    ]
    call(*argv, PATH=f"{own.parent}{os.pathsep}{os.environ['PATH']}")
    (tagged,) = into.glob("*.whl")
    INTO.mkdir(exist_ok=True)
    return tagged.replace(INTO / tagged.name)


def main() -> None:
    """Build all that are asked for."""
    parser = argparse.ArgumentParser(description="Build wheels of torchfleet-backends.")
    parser.add_argument("--torch", action="append", metavar="RELEASE", help=f"instead of {', '.join(RELEASES)}")
    parser.add_argument("--python", action="append", type=Path, metavar="INTERPRETER", help="instead of this one")
    given = parser.parse_args()
    if os.geteuid():
        sys.exit("make wheels: it compiles in a container of Debian 11, which takes root: sudo make wheels")
    WORK.mkdir(parents=True, exist_ok=True)
    tag = container()
    for python in given.python or [Path(sys.executable)]:
        for release in given.torch or RELEASES:
            print(build(tag, python, release).relative_to(TOP), flush=True)


if __name__ == "__main__":
    main()
