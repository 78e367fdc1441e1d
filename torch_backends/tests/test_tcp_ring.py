"""all_reduce over TCP, under the address sanitizer: strangers, ranks that disagree, leave or fall silent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torch_backends.tests import package

SANITIZE = Path(__file__).with_name("sanitize")
FLAGS = ["-O1", "-g", "-std=c++20", "-DTORCHFLEET_SHM", "-pthread", "-fsanitize=address,undefined"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled program."""
    package.install_compiler()
    made = tmp_path_factory.mktemp("tcp") / "tcp_stress"
    includes = [f"-I{path}" for path in (package.PACKAGE / "csrc", SANITIZE / "torch_parts")]
    package.called("g++", *FLAGS, "-fno-sanitize-recover=undefined", *includes, SANITIZE / "tcp_stress.cpp", "-o", made)
    return made


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_finds_what_it_should(program: Path, ranks: int) -> None:
    """Strangers that say nothing would take ten seconds of each of these twelve groups, were they heard."""
    words = [str(program), str(ranks), "480", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr
