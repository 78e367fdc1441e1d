"""How the modules are compiled and linked, with a source that is small."""

from __future__ import annotations

import subprocess
from pathlib import Path

from torch_backends.tests import package

SOURCE = '#include <sstream>\nextern "C" __attribute__((visibility("default"))) int told(unsigned long number) {\n'
SOURCE += "  std::ostringstream text;\n  text << number;\n  return static_cast<int>(text.str().size());\n}\n"
# setup.py as it is, but that nothing is set up; and the library of the module that it links, as torch has loaded it.
BUILD = """if True:
    import ctypes, pathlib, runpy, subprocess, sys, setuptools
    setuptools.setup = lambda **given: None
    made, place, compiler = runpy.run_path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    made["command"].__globals__["SOURCES"] = place
    subprocess.run(made["command"]("_small", "small.cpp", [], place, compiler), check=True)
    import torch
    assert ctypes.CDLL(str(place / "_small.so")).told(ctypes.c_ulong(12345)) == 5
"""


def test_the_cpp_library_is_that_of_torch(tmp_path: Path) -> None:
    """Also where the compiler would put its own into the module: in an image for GPUs mpi and shm crashed for that."""
    package.install_compiler()
    (tmp_path / "small.cpp").write_text(SOURCE)
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -static-libstdc++\n')
    compiler.chmod(0o755)
    package.called(package.PYTHON, "-c", BUILD, package.PACKAGE / "setup.py", tmp_path, compiler)
    dynamic = subprocess.run(
        ["readelf", "--dynamic", tmp_path / "_small.so"], capture_output=True, text=True, check=True
    ).stdout
    assert "[libstdc++.so.6]" in dynamic
