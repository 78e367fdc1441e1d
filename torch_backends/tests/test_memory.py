"""csrc/memory.cpp, compiled alone: which descriptors of another process are taken for shared memory.

A process of another container may have the numbers that a rank names, with any file behind them.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_backends.tests import package

SOURCE = Path(__file__).parent.parent / "csrc" / "memory.cpp"
# C's names for two of its functions.
CODE = f"""
#include "{SOURCE}"
extern "C" int file_of(int64_t process, int64_t number, int64_t bytes) {{
  return torchfleet::file_of(process, number, bytes);
}}
extern "C" int new_file(const char* name, int64_t bytes) {{ return torchfleet::new_file(name, bytes); }}
"""
BYTES = 8192


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    package.install_compiler()
    place = tmp_path_factory.mktemp("memory")
    (place / "memory.cpp").write_text(CODE)
    package.called("g++", "-std=c++20", "-shared", "-fPIC", place / "memory.cpp", "-o", place / "memory.so")
    yield ctypes.CDLL(str(place / "memory.so"))


def taken(memory: ctypes.CDLL, number: int, bytes_: int = BYTES) -> bool:
    """Say whether a descriptor of this process is taken for shared memory of so many bytes."""
    found = memory.file_of(ctypes.c_int64(os.getpid()), ctypes.c_int64(number), ctypes.c_int64(bytes_))
    if found >= 0:
        assert os.path.sameopenfile(found, number)
        os.close(found)
    return bool(found >= 0)


def test_memory_of_a_rank_is_taken(memory: ctypes.CDLL) -> None:
    number = memory.new_file(b"torchfleet-tensor", ctypes.c_int64(BYTES))
    assert taken(memory, number)
    os.close(number)
    assert not taken(memory, number)


def test_memory_of_another_size_is_not_taken(memory: ctypes.CDLL) -> None:
    """Reading beyond its end would be SIGBUS."""
    for bytes_ in (0, BYTES - 1, BYTES + 4096):
        number = memory.new_file(b"torchfleet", ctypes.c_int64(bytes_))
        assert not taken(memory, number), bytes_
        os.close(number)


def test_another_programs_file_is_not_taken(memory: ctypes.CDLL, tmp_path: Path) -> None:
    """Though it has that size."""
    numbers = [os.memfd_create("others"), os.open(tmp_path / "memfd:torchfleet", os.O_RDWR | os.O_CREAT)]
    with tempfile.TemporaryFile() as nameless:
        for number in (*numbers, nameless.fileno()):
            os.ftruncate(number, BYTES)
            assert not taken(memory, number), os.readlink(f"/proc/self/fd/{number}")
    for number in numbers:
        os.close(number)


def test_a_device_is_not_taken(memory: ctypes.CDLL) -> None:
    number = os.open("/dev/zero", os.O_RDWR)
    assert not taken(memory, number, 0)
    os.close(number)
