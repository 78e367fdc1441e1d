"""Compiles backend shm, and mpi for each MPI that the environment names, for the torch that is there.

So pip needs --no-build-isolation, a C++ compiler, and the headers of Python and of the MPIs. If the environment names
nothing, it is shm alone. Brings oneCCL if it asks for that.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

VARIABLE = "TORCHFLEET_BACKENDS_MPI"  # prefixes of MPIs: include/ and lib/ are below each
SHM_VARIABLE = "TORCHFLEET_BACKENDS_SHM"  # anything: backend shm is compiled
ONECCL_VARIABLE = "TORCHFLEET_BACKENDS_CCL"  # anything: oneCCL is brought
# Directories of Python's headers where CXX sees them, if it compiles for another Python or kind of machine.
HEADERS_VARIABLE = "TORCHFLEET_BACKENDS_PYTHON"
RANGE = "torch>=2.13,<2.16"  # of what is not compiled; what is compiled is for one release
BINDINGS = "oneccl_bindings_for_pytorch"  # the name by which scripts import what brings backend ccl
# The C++ library that torch itself uses. Some compilers put their own, another version, into what they link (seen in an
# image for GPUs): then streams of the one meet locales of the other, and the first number that is printed crashes.
CPP_LIBRARY = "-l:libstdc++.so.6"
HERE = Path(__file__).parent
SOURCES = HERE / "csrc"
# By the header that an MPI has: the build, how it is compiled, and the library it is linked to. One for each ABI.
KINDS = {
    "mpi_abi.h": ("_abi", ["-DTORCHFLEET_STANDARD_ABI"], "libmpi_abi.so.1"),
    "mpi.h": ("_openmpi", [], "libmpi.so.40"),
}

# What is taken of each wheel in oneccl.txt, below lib/ of its data. Both have a libccl.so.1; one does without SYCL.
TAKEN = {
    "oneccl": r"libccl\.so\.2|libccl_legacy_cpu\.so",
    "oneccl_cpu": r"libccl\.so\.1",
    "impi_rt": r"libfabric\.so\.1|lib\w+-fi\.so",
}


def prefixes() -> list[Path]:
    """Return the directories of the MPIs to build for."""
    return [Path(word).expanduser().resolve() for word in os.environ.get(VARIABLE, "").split(":") if word]


def wants_shm() -> bool:
    """Whether backend shm is compiled: it is asked for, or nothing else is."""
    return SHM_VARIABLE in os.environ or not {VARIABLE, ONECCL_VARIABLE} & set(os.environ)


def torch_home() -> Path:
    """Return torch's directory. It is not imported: a build for GPUs needs libraries that need not be here."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        sys.exit("error: there is no torch in this environment: install it, and give pip --no-build-isolation")
    return Path(found.origin).parent


def torch_release() -> str:
    """Return the release of torch, without the suffix of its build (+cpu)."""
    return importlib.metadata.version("torch").partition("+")[0]


def requirement() -> str:
    """Return what torch the package works with."""
    is_compiled = importlib.util.find_spec("torch") is not None and (prefixes() or wants_shm())
    return f"torch=={torch_release()}" if is_compiled else RANGE


def python_headers() -> list[str]:
    """Return the directories of Python's headers."""
    given = os.environ.get(HEADERS_VARIABLE, "")
    return given.split(":") if given else [sysconfig.get_path("include")]


def for_mpi(prefix: Path, into: Path, compiler: str) -> list[str]:
    """Return the command that builds the module for an MPI."""
    header = next((name for name in KINDS if (prefix / "include" / name).exists()), "")
    if not header:
        sys.exit(f"error: there is no {' or '.join(KINDS)} in {prefix / 'include'}: install the headers of this MPI")
    name, flags, library = KINDS[header]
    words = [*flags, f"-I{prefix / 'include'}", f"-L{prefix / 'lib'}", f"-l:{library}"]
    return command(name, "all.cpp", words, into, compiler)


def command(name: str, source: str, words: list[str], into: Path, compiler: str) -> list[str]:
    """Return the command that builds a module of this name."""
    home = torch_home()
    includes = [home / "include", home / "include/torch/csrc/api/include", *python_headers()]
    return [
        *(compiler, "-O3", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden"),
        *("-DTORCH_API_INCLUDE_EXTENSION_H", f"-DTORCH_EXTENSION_NAME={name}"),
        *(f"-I{path}" for path in includes),
        *(str(SOURCES / source), "-o", str(into / f"{name}.so")),
        *(f"-L{home / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python", *words, CPP_LIBRARY),
    ]


def compiled(into: Path) -> None:
    """Build for all MPIs, and backend shm, at the same time."""
    compiler = os.environ.get("CXX", "g++")
    commands = [for_mpi(prefix, into, compiler) for prefix in prefixes()]
    if wants_shm():
        commands.append(command("_shm", "all_shm.cpp", ["-DTORCHFLEET_SHM"], into, compiler))
    if not commands:
        return
    if not shutil.which(compiler):
        sys.exit(f"error: there is no C++ compiler {compiler}: install g++ (Fedora, RHEL, SUSE: gcc-c++), or set CXX")
    where = sysconfig.get_path("include")
    if HEADERS_VARIABLE not in os.environ and not Path(where, "Python.h").exists():
        package = "libpython3-dev (Fedora, RHEL, SUSE: python3-devel)"
        sys.exit(f"error: there is no Python.h in {where}: install {package}")
    with ThreadPoolExecutor() as pool:
        failures = [line for line in pool.map(failure, commands) if line]
    if failures:
        sys.exit(f"error: {failures[0]}")
    Path(into, "built_for.txt").write_text(torch_release() + "\n")


def failure(argv: list[str]) -> str:
    """Run a compiler. Return its first error line, or an empty text where it succeeds."""
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    first = next((line for line in lines if re.search(r"\berror: |: undefined reference", line)), "")
    print(done.stdout, end="")  # pip -v shows it
    return (first or f"{argv[0]} ended with status {done.returncode}") if done.returncode else ""


def bring_oneccl(into: Path) -> None:
    """Put oneCCL's libraries there, from wheels that pip finds as it finds all others."""
    into.mkdir()
    with tempfile.TemporaryDirectory() as place:
        options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", place]
        pip = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(HERE / "oneccl.txt")]
        if subprocess.run(pip, check=False).returncode:
            sys.exit("error: pip could not bring oneCCL, which is for x86-64: oneccl.txt says what is wanted")
        for wheel in Path(place).glob("*.whl"):
            taken = re.compile(rf".*\.data/data/lib/({TAKEN[wheel.name.partition('-')[0]]})")
            with zipfile.ZipFile(wheel) as pack:
                for member in filter(taken.fullmatch, pack.namelist()):
                    Path(into, Path(member).name).write_bytes(pack.read(member))


class Build(build_py):
    """The Python files, and beside them what is compiled."""

    def run(self) -> None:
        """Build it."""
        into, bindings = Path(self.build_lib, "torchfleet_backends"), Path(self.build_lib, BINDINGS)
        shutil.rmtree(into, ignore_errors=True)  # what was built before, for other MPIs
        super().run()
        compiled(into)
        if ONECCL_VARIABLE in os.environ:
            bring_oneccl(into / "oneccl")
        else:
            shutil.rmtree(bindings)  # who finds this name takes it that there is a backend ccl


class Binary(Distribution):
    """What is built is for this machine and this Python."""

    def has_ext_modules(self) -> bool:
        """Say so."""
        return True


setup(cmdclass={"build_py": Build}, distclass=Binary, install_requires=[requirement()])
