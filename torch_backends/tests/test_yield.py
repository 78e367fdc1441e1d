"""Whoever waits can tell a core of its own from one that others use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torch_backends.tests import package


@pytest.mark.parametrize("where", ["alone", "beside"])
def test_a_yield_tells_whether_others_use_the_core(tmp_path: Path, where: str) -> None:
    package.install_compiler()
    program, source = tmp_path / "yielding", Path(__file__).with_name("yielding.cpp")
    package.called("g++", "-O2", "-std=c++20", "-pthread", f"-I{package.PACKAGE / 'csrc'}", source, "-o", program)
    assert subprocess.run([program, where], check=False).returncode == 0
