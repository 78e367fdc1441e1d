"""Build wheels of torchfleet-backends that machines without a compiler install: `make wheels`.

Usage: make.py [--torch RELEASE]... [--python VERSION]... [--machine MACHINE]... Each wheel has backend shm, and mpi for
both ABIs, for one release of PyTorch, one version of Python and one kind of machine. Its C++ is compiled in a container
of Debian 11, for aarch64 by a cross compiler: needed are root, podman and an x86-64 machine, as for a lab. PyTorch is
fetched, but not run. auditwheel gives each wheel the tag of the oldest glibc that it runs with. What the launcher or
PyTorch brings stays out of them: libmpi, libtorch and the like.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.host import limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman

HERE = Path(__file__).resolve().parent
PACKAGE, TOP = HERE.parent, HERE.parents[1]
WORK, INTO = TOP / ".cache" / "wheels", TOP / "wheels"
# By release of PyTorch, the newest of each minor release that we support: the compiler of the container. Its headers
# are the same files for all versions of Python.
RELEASES = {"2.13.0": "g++", "2.14.1": "clang++-16", "2.15.0": "clang++-16"}
MACHINES = ("x86_64", "aarch64")
# By version of Python: the kinds of machines whose headers the container has. Ubuntu has 3.12, and keeps what is for
# other machines on another server.
PYTHONS = {"3.11": MACHINES, "3.12": MACHINES[:1], "3.13": MACHINES}
CROSS = {"g++": ["aarch64-linux-gnu-g++"], "clang++-16": ["clang++-16", "--target=aarch64-linux-gnu"]}
MPIS = ("openmpi", "mpich")  # one of each ABI; Intel MPI has that of MPICH
BROUGHT = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libmpi.so.40", "libmpi_abi.so.1")
PIP = ("-I", "-m", "pip", "--quiet", "--disable-pip-version-check")
UNCONSTRAINED = {"PIP_CONSTRAINT": os.devnull}  # what this machine's pip may install is not what others have
# What is taken out of the wheels of others, and where it lies then.
OF_TORCH = (
    r"(torch/__init__\.py|torch/include/.*|torch/lib/lib(?:c10|torch|torch_cpu|torch_python)\.so|[^/]+-info/METADATA)"
)
OF_MPI = r"[^/]+\.data/data/(include/.*|lib/[^/]*)"


@dataclass(frozen=True)
class Target:
    """What a wheel is for."""

    release: str  # of PyTorch
    python: str
    machine: str

    @property
    def tag(self) -> str:
        """Return the tag of the version of Python."""
        return f"cp{self.python.replace('.', '')}"

    @property
    def platforms(self) -> list[str]:
        """Return pip's options for wheels of this kind of machine."""
        kinds = [f"{kind}_{self.machine}" for kind in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
        return ["--python-version", self.python, *(word for kind in kinds for word in ("--platform", kind))]

    @property
    def compiler(self) -> list[str]:
        """Return the compiler of the container."""
        name = RELEASES.get(self.release, RELEASES["2.14.1"])
        return [name] if self.machine == MACHINES[0] else CROSS[name]


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
    base, newer = image.bootstrap("bullseye", ""), image.bootstrap("trixie", "")
    made_from = hashlib.sha256(f"{base}\n{newer}\n{(HERE / 'Containerfile').read_text()}".encode()).hexdigest()[:12]
    tag = f"localhost/torchfleet-wheels:{made_from}"
    if not image.exists(tag):
        given = ["--build-arg", f"BASE={base}", "--build-arg", f"NEWER={newer}"]
        podman("build", "--quiet", "--network", "host", "--tag", tag, *limits(), *given, str(HERE))
    return tag


def tools() -> Path:
    """Return the interpreter of an environment that has the tools."""
    lock, python = TOP / "requirements-wheels.txt", Path(sys.executable)
    key = hashlib.sha256(f"{python.resolve()}\n{lock.read_text()}".encode()).hexdigest()[:12]
    place = WORK / f"tools-{key}"
    own, done = place / "bin" / "python", place / "filled"
    if not done.exists():
        call(python, "-I", "-m", "venv", "--clear", place)
        call(own, *PIP, "install", "--require-hashes", "--requirement", lock)
        done.touch()
    return own


def unpacked(place: Path, own: Path, wanted: str, *words: str) -> Path:
    """Return a directory with some files of a wheel that pip fetches, made unless it is there."""
    done = place / "filled"
    if not done.exists():
        call("rm", "-rf", place)
        fetched = place / "fetched"
        options = ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", fetched]
        call(own, *PIP, "download", *options, *words, **UNCONSTRAINED)
        (wheel,) = fetched.glob("*.whl")
        with zipfile.ZipFile(wheel) as pack:
            for name in pack.namelist():
                found = re.fullmatch(wanted, name)
                if found and not name.endswith("/"):
                    there = place / found[1]
                    there.parent.mkdir(parents=True, exist_ok=True)
                    there.write_bytes(pack.read(name))
        wheel.unlink()
        done.touch()
    return place


def pytorch(own: Path, target: Target) -> Path:
    """Return a directory with PyTorch's headers, and the libraries that are linked to."""
    any_python = replace(target, python=next(iter(PYTHONS)))
    place = WORK / f"torch-{target.release}-{target.machine}"
    return unpacked(place, own, OF_TORCH, *any_python.platforms, f"torch=={target.release}")


def mpi(own: Path, name: str, target: Target) -> Path:
    """Return a directory with an MPI's headers and libraries."""
    lock = TOP / "locks" / f"{name}.txt"
    place = WORK / f"{name}-{target.machine}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    return unpacked(place, own, OF_MPI, *target.platforms, "--require-hashes", "--requirement", str(lock))


def compiler(place: Path, tag: str, target: Target, seen: list[Path]) -> Path:
    """Return a program that is the compiler of the container. It sees these directories, under their own names."""
    mounts = [word for path in seen for word in ("--volume", f"{path}:{path}:ro")]
    argv = ["podman", "run", "--rm", "--network", "none", *limits(), *mounts, "--volume", f"{place}:{place}"]
    program = place / "compiler"
    words = [*argv, "--workdir", str(place), tag, *target.compiler]
    program.write_text(f"#!{sys.executable} -I\nimport os, sys\nos.execvp('podman', [*{words!r}, *sys.argv[1:]])\n")
    program.chmod(0o700)
    return program


def build(tag: str, target: Target) -> Path:
    """Return the wheel for a target."""
    own = tools()
    mpis = [mpi(own, name, target) for name in MPIS]
    torch = pytorch(own, target)
    place = WORK / f"build-{target.release}-{target.tag}-{target.machine}"
    call("rm", "-rf", place)
    call("cp", "-r", PACKAGE, place)
    # setuptools docs: DIST_EXTRA_CONFIG
    (place / "version.cfg").write_text(f"[egg_info]\ntag_build = +torch{target.release}\n")
    environment = {
        "CXX": str(compiler(place, tag, target, [torch, *mpis])),
        "DIST_EXTRA_CONFIG": str(place / "version.cfg"),
        "PYTHONPATH": str(torch),
        "TORCHFLEET_BACKENDS_MPI": ":".join(map(str, mpis)),
        "TORCHFLEET_BACKENDS_PYTHON": f"/python/python{target.python}:/python",
        "TORCHFLEET_BACKENDS_SHM": "yes",
        "TMPDIR": str(place),
    }
    words = ["wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", place / "raw", place]
    call(own, "-m", "pip", *PIP[3:], *words, **environment)
    return repaired(own, tagged(own, next((place / "raw").glob("*.whl")), target))


def tagged(own: Path, wheel: Path, target: Target) -> Path:
    """Return the wheel with the tags of its target instead of those of the interpreter that made it."""
    tags = ["--python-tag", target.tag, "--abi-tag", target.tag, "--platform-tag", f"linux_{target.machine}"]
    call(own, "-I", "-m", "wheel", "tags", "--remove", *tags, wheel)
    return next(wheel.parent.glob("*.whl"))


def repaired(own: Path, wheel: Path) -> Path:
    """Return the wheel with the tag of the oldest glibc that it runs with."""
    into = wheel.parent.parent / "repaired"
    argv = [
        own.with_name("auditwheel"),
        "repair",
        "--wheel-dir",
        into,
        *(f"--exclude={name}" for name in BROUGHT),
        wheel,
    ]
    call(*argv, PATH=f"{own.parent}{os.pathsep}{os.environ['PATH']}")
    (found,) = into.glob("*.whl")
    INTO.mkdir(exist_ok=True)
    return found.replace(INTO / found.name)


def targets() -> list[Target]:
    """Return what is asked for on the command line."""
    parser = argparse.ArgumentParser(description="Build wheels of torchfleet-backends.")
    parser.add_argument("--torch", action="append", metavar="RELEASE", help=f"instead of {', '.join(RELEASES)}")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="instead of all")
    parser.add_argument("--machine", action="append", choices=MACHINES, help="instead of all")
    given = parser.parse_args()
    releases, pythons, machines = (
        given.torch or list(RELEASES),
        given.python or list(PYTHONS),
        given.machine or MACHINES,
    )
    found = [
        Target(release, python, machine)
        for release in releases
        for python in pythons
        for machine in machines
        if machine in PYTHONS[python]
    ]
    if not found:
        parser.error(
            f"there are no headers of Python {pythons[0]} for {machines[0]}: see PYTHONS in {Path(__file__).name}"
        )
    return found


def main() -> None:
    """Build all that are asked for."""
    found = targets()
    if os.geteuid():
        sys.exit("make wheels: it compiles in a container of Debian 11, which takes root: sudo make wheels")
    if platform.machine() != MACHINES[0]:
        sys.exit(f"make wheels: this machine is {platform.machine()}: the compilers of its container are for x86_64")
    WORK.mkdir(parents=True, exist_ok=True)
    tag = container()
    for target in found:
        print(build(tag, target).relative_to(TOP), flush=True)


if __name__ == "__main__":
    main()
