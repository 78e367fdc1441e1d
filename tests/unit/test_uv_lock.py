"""What a project needs by its uv.lock."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.uv_lock import locked_packages

DIGEST = "sha256:" + "ab" * 32
REGISTRY = 'source = { registry = "https://index.example/simple" }'
WHEEL = f'wheels = [{{ url = "https://index.example/x.whl", hash = "{DIGEST}", size = 1 }}]'
LOCK = f"""
version = 1
[[package]]
name = "mine"
version = "0.1.0"
source = {{ virtual = "." }}
dependencies = [
    {{ name = "torch" }},
    {{ name = "tiny", extra = ["fast"] }},
    {{ name = "old", marker = "python_full_version < '3.12'" }},
]
[[package]]
name = "torch"
version = "2.13.0"
{REGISTRY}
dependencies = [{{ name = "cuda-library" }}]
{WHEEL}
[[package]]
name = "cuda-library"
version = "12.0"
{REGISTRY}
{WHEEL}
[[package]]
name = "tiny"
version = "1.0"
{REGISTRY}
dependencies = [{{ name = "shared" }}]
{WHEEL}
[package.optional-dependencies]
fast = [{{ name = "speed", marker = "sys_platform == 'linux'" }}]
[[package]]
name = "old"
version = "3"
{REGISTRY}
dependencies = [{{ name = "shared" }}, {{ name = "older", marker = "os_name == 'posix' or os_name == 'nt'" }}]
{WHEEL}
[[package]]
name = "older"
version = "2"
{REGISTRY}
dependencies = [{{ name = "old" }}]
{WHEEL}
[[package]]
name = "shared"
version = "5"
{REGISTRY}
{WHEEL}
[[package]]
name = "speed"
version = "6"
{REGISTRY}
{WHEEL}
[[package]]
name = "of-tests-alone"
version = "1"
{REGISTRY}
{WHEEL}
"""


def found(text: str) -> dict[str, tuple[str, ...]]:
    return dict(locked_packages(tomllib.loads(text), "uv.lock", "torch"))


def test_each_package_has_its_version_checksums_and_markers() -> None:
    """Not what torch alone needs, nor what the project does not; a cycle ends."""
    assert found(LOCK) == {
        "torch==2.13.0": (DIGEST,),
        "tiny==1.0": (DIGEST,),
        "shared==5": (DIGEST,),
        "speed==6 ; (sys_platform == 'linux')": (DIGEST,),
        "old==3 ; (python_full_version < '3.12') or "
        "(python_full_version < '3.12') and (os_name == 'posix' or os_name == 'nt')": (DIGEST,),
        "older==2 ; (python_full_version < '3.12') and (os_name == 'posix' or os_name == 'nt')": (DIGEST,),
    }


def test_a_lock_that_uv_wrote() -> None:
    """By uv 0.13.9, with the hosts replaced. Extras, groups and what only other systems need are left out."""
    lock = (Path(__file__).parent / "recorded" / "uv.lock").read_text()
    rows = found(lock)
    names = [
        "click==8.5.1",
        "einops==0.8.2",
        "markdown-it-py==4.3.0",
        "mdurl==0.1.2",
        "pygments==2.21.0",
        "rich==15.0.0",
    ]
    assert sorted(row.partition(" ;")[0] for row in rows) == names
    assert rows["rich==15.0.0"] == ("sha256:33bd4ef74232fb73fe9279a257718407f169c09b78a87ad3d296f548e27de0bb",)


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ('{ virtual = "." }', '{ virtual = "other" }', "it does not have exactly one project"),
        ('name = "shared" }', 'name = "nowhere" }', "not a valid lock file of uv"),
        ('name = "speed"\nversion = "6"', 'name = "speed"\nversion = "6; rm"', "no name and version"),
        (f'version = "5"\n{REGISTRY}', 'version = "5"\nsource = { git = "x" }', "it has no wheel"),
        (DIGEST, "md5:00", "it has no wheel on an index"),
        ("[[package]]", "[[packages]]", "not a valid lock file of uv"),
        ('{ name = "torch" }', "{ name = 7 }", "not a valid lock file of uv"),
        ('extra = ["fast"]', 'extra = "fast"', "not a valid lock file of uv"),
    ],
)  # fmt: skip
def test_a_lock_that_cannot_be_followed_is_refused(old: str, new: str, allowed: str) -> None:
    assert old in LOCK
    with pytest.raises(InputError, match=allowed):
        found(LOCK.replace(old, new))
