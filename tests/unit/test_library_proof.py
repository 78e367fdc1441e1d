"""The proof of a communication library. The libraries here are copies of the system's libm."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import library_proof as proof

(LIBM,) = [path for path in Path("/lib").glob("*-linux-gnu/libm.so.6") if "i386" not in str(path)][:1]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A directory with UCC 1.4."""
    return install(tmp_path)


def install(prefix: Path, libraries: str = "lib") -> Path:
    header = prefix / "include/ucc/api/ucc_version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define UCC_API_MAJOR 1\n# define UCC_API_MINOR   4\n")
    (prefix / libraries / "ucc").mkdir(parents=True)
    shutil.copy(LIBM, prefix / libraries / "libucc.so.1")
    (prefix / libraries / "ucc/libucc_tl_ucp.so.1").touch()
    return prefix


@pytest.mark.parametrize("libraries", ["lib", "lib64", "lib/x86_64-linux-gnu"])
def test_it_loads_wherever_its_files_are(tmp_path: Path, libraries: str) -> None:
    install(tmp_path, libraries)
    assert proof.prove("ucc", tmp_path, "1.4.4", ["ucc/libucc_tl_ucp.so*"]) == "1.4"


def test_a_wheel_has_it_among_its_packages(tmp_path: Path) -> None:
    install(tmp_path / "lib/python3.11/site-packages/libucc")
    assert proof.prove("ucc", tmp_path) == "1.4"


def no_library(prefix: Path) -> None:
    (prefix / "lib/libucc.so.1").unlink()


def no_elf(prefix: Path) -> None:
    (prefix / "lib/libucc.so.1").write_text("text")


def no_header(prefix: Path) -> None:
    (prefix / "include/ucc/api/ucc_version.h").unlink()


def no_version(prefix: Path) -> None:
    (prefix / "include/ucc/api/ucc_version.h").write_text("")


@pytest.mark.parametrize(
    ("breaks", "given", "says"),
    [
        (no_library, {}, " has no libucc.so.1"),
        (no_elf, {}, "cannot be loaded: OSError: "),
        (no_header, {}, " has no include/ucc/api/ucc_version.h"),
        (no_version, {"version": "1.4"}, " should be ucc 1.4, but is ?.?"),
        (lambda prefix: None, {"version": "1.5.0"}, " should be ucc 1.5.0, but is 1.4"),
        (lambda prefix: None, {"parts": ["ucc/libucc_mc_cuda.so*"]}, " was built without ucc/libucc_mc_cuda.so*"),
    ],
)
def test_what_is_not_as_asked_for_is_told_in_a_line(
    prefix: Path, breaks: Callable[[Path], None], given: dict[str, Any], says: str
) -> None:
    breaks(prefix)
    with pytest.raises(proof.UnprovenError) as error:
        proof.prove("ucc", prefix, **given)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_library_that_takes_the_process_with_it_is_refused(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "LOAD", "import os; os.abort()")
    with pytest.raises(proof.UnprovenError, match=r"ucc of .* cannot be loaded: status -6"):
        proof.prove("ucc", prefix)
