"""Builds the compiled part for one MPI: `python -m torchfleet_backends.build --mpi ~/.torchfleet/openmpi`.

With the Python whose torch it is for. Nothing but a C++ compiler is needed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).parent / "csrc"
# By the header that an MPI has: the build, how it is compiled, and the library it is linked to. One for each ABI.
KINDS = {
    "mpi_abi.h": ("_abi", ["-DTORCHFLEET_STANDARD_ABI"], "libmpi_abi.so.1"),
    "mpi.h": ("_openmpi", [], "libmpi.so.40"),
}


def command(prefix: Path, into: Path, compiler: str) -> list[str]:
    """Return the command that builds the module for the MPI below a directory. FileNotFoundError if none is there."""
    import torch

    header = next((name for name in KINDS if (prefix / "include" / name).exists()), "")
    if not header:
        raise FileNotFoundError(f"there is no {' or '.join(KINDS)} in {prefix / 'include'}: name the prefix of an MPI")
    name, flags, library = KINDS[header]
    home = Path(torch.__file__).parent
    includes = [home / "include", home / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    libraries = ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python", f"-l:{library}"]
    return [
        *(compiler, "-O3", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", *flags),
        *("-DTORCH_API_INCLUDE_EXTENSION_H", f"-DTORCH_EXTENSION_NAME={name}"),
        *(f"-I{path}" for path in [*includes, prefix / "include"]),
        *(str(SOURCE / "all.cpp"), "-o", str(into / f"{name}.so")),
        *(f"-L{home / 'lib'}", f"-L{prefix / 'lib'}", *libraries),
    ]


def main() -> None:
    """Build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", type=Path, required=True, help="prefix of the MPI: its include and lib are below it")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent, help="default: beside this file")
    given = parser.parse_args()
    words = command(given.mpi.expanduser().resolve(), given.into, os.environ.get("CXX", "g++"))
    raise SystemExit(subprocess.run(words, check=False).returncode)


if __name__ == "__main__":
    main()
