"""Shared memory, the ring over MPI and all_reduce over TCP, each alone, under the address sanitizer.

Ranks are threads. Some are late; over TCP there are strangers, and ranks that disagree, leave or fall silent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_backends.tests import package
from torch_backends.tests.sanitize.run import RING, SHARED, TCP, Build, Program, builds, built, wrong


@pytest.fixture(scope="module", params=[SHARED, RING, TCP], ids=lambda program: program.name.replace(" ", "-"))
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Path]:
    """Return a build, and its path."""
    package.install_compiler()
    program: Program = request.param
    build = next(build for build in builds(program) if build.name == "address-undefined")
    return build, built(build, tmp_path_factory.mktemp("stress"))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_finds_what_it_should(compiled: tuple[Build, Path], ranks: int) -> None:
    """Strangers that say nothing would take ten seconds of each of TCP's twelve groups, were they heard."""
    assert wrong(*compiled, ranks, 480, limit_s=110) == ""
