"""Facts of limits and memory."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    limits,
)
from tests.unit.file_tree import tree


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/user.slice/session\n", {"user.slice__memory.max": "1000000"}, 1000000),
        ("0::/a/b\n", {"a__b__memory.max": "max", "a__memory.max": "3000", "memory.max": "5000"}, 3000),
        ("0::/a/b\n", {"a__b__memory.max": "9000", "a__memory.max": "3000", "memory.max": "5000"}, 3000),
        ("0::/a/b\n", {"a__b__memory.max": "max", "memory.max": "5000"}, 5000),  # systemd in a container
        ("0::/\n", {"memory.max": "77"}, 77),
        ("0::/a\n", {"a__memory.max": "max"}, None),
        ("5:memory:/job\n0::/x\n", {"memory__job__memory.limit_in_bytes": "4096"}, 4096),
        ("5:memory:/docker/1a2b\n", {"memory__memory.limit_in_bytes": "4096"}, 4096),  # told as the machine has it
        ("5:memory:/\n", {"memory__memory.limit_in_bytes": "9223372036854771712"}, None),
        ("5:cpu:/\n", {}, None),
        ("", {}, None),
    ],
)
def test_the_memory_limit_of_a_control_group(tmp_path: Path, cgroup: str, files: dict[str, str], limit: int) -> None:
    below = {f"sys__fs__cgroup__{name}": text for name, text in files.items()}
    assert limits.memory_limit(tree(tmp_path, proc__self__cgroup=cgroup, **below)) == limit


def test_of_files_the_limit_is_told_that_a_program_may_raise_its_own_to() -> None:
    """The soft one is 1024 nearly everywhere: a rule about it never fired, or always."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        told = limits.limits()["nofile"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told == (None if hard == resource.RLIM_INFINITY else hard)
