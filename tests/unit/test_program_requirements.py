"""What a program needs, read from the files in which people write that down."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.program_requirements import (
    Asked,
    Requirements,
    file_for,
    read_requirements,
    refuse_other_torch,
)

HASH = "sha256:" + "0" * 64


def written(place: Path, text: str, name: str = "requirements.txt") -> str:
    (place / name).write_text(text)
    return str(place / name)


def texts(found: Requirements) -> list[str]:
    return [asked.text for asked in found.packages]


@pytest.mark.parametrize(
    ("text", "packages"),
    [
        ("NumPy >= 2 # why\n\n# alone\nfoo_bar[B,a]~=1.2\n", ["numpy>=2", "foo-bar[a,b]~=1.2"]),
        ("tiny==1.0; python_version < '4'\n", ['tiny==1.0 ; python_version < "4"']),
        ("tiny \\\n  == \\\n 1.0\r\nother\n", ["tiny==1.0", "other"]),
        ("\ufefftiny\n", ["tiny"]),
        ("tiny#no-comment\n", None),
        ("-i https://mirror.example/simple\ntiny\n", ["tiny"]),
        ("", []),
    ],
)
def test_pips_format(tmp_path: Path, text: str, packages: list[str] | None) -> None:
    file = written(tmp_path, text)
    if packages is None:
        with pytest.raises(InputError, match="line 1"):
            read_requirements(file)
    else:
        assert texts(read_requirements(file)) == packages


def test_files_that_it_names_and_the_index(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    written(tmp_path / "more", "--index-url=https://mirror.example/simple\nb==2\n-r ../base.txt\n", "more.txt")
    written(tmp_path, "c\n", "base.txt")
    found = read_requirements(written(tmp_path, "a\n-r more/more.txt\n"))
    assert (texts(found), found.index_url) == (["a", "b==2", "c"], "https://mirror.example/simple")
    assert [asked.where for asked in found.packages] == [
        "requirements.txt line 1",
        "more.txt line 2",
        "base.txt line 1",
    ]


def test_checksums(tmp_path: Path) -> None:
    found = read_requirements(written(tmp_path, f"tiny[x]==1.0 \\\n    --hash={HASH} \\\n    --hash {HASH}\n"))
    assert (found.locked, found.packages) == (True, (Asked("tiny==1.0", "requirements.txt line 1", (HASH, HASH)),))


REFUSED = [
    ("-e .\n", "an editable package is on no other node"),
    ("--extra-index-url https://x/\n", "two indexes are never searched together"),
    ("--find-links=wheels\n", "-e program_wheelhouse=DIRECTORY"),
    ("-c other.txt\n", "write the versions into the requirements themselves"),
    ("--pre\n", "this option of pip is not taken"),
    ("-i\n", "the option has no value"),
    ("-i https://me:hush@x/\n", "give it as -e @file: program_index_url"),
    ("-i https://a/\n-i https://b/\n", "it names 2 indexes"),
    ("./wheels/tiny-1.0-py3-none-any.whl\n", "a path or an address"),
    ("tiny @ https://x/tiny.whl\n", "the file at an address may change"),
    ("git+https://x/y.git\n", "a path or an address"),
    ("tiny = 1\n", "no requirement; write name==version"),
    ("-r missing.txt\n", "No such file or directory"),
    ("-r requirements.txt\n", "these files name each other"),
    (f"tiny==1.0 --hash={HASH}\nother==1\n", "this package has no checksum, but others in the file have checksums"),
    (f"tiny>=1.0 --hash={HASH}\n", "this package has no exact version"),
    ("tiny==1.0 --hash=md5:00\n", "only --hash=sha256:... is taken"),
    ("tiny==1.0 --global-option=x\n", "only --hash=sha256:... is taken"),
]


@pytest.mark.parametrize(("text", "allowed"), REFUSED, ids=[text.splitlines()[0] for text, _allowed in REFUSED])
def test_what_would_not_be_the_same_everywhere_is_refused_in_one_line(tmp_path: Path, text: str, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        read_requirements(written(tmp_path, text))
    message = str(caught.value)
    assert message.startswith("requirements: got ")
    assert allowed in message
    assert "\n" not in message
    assert "hush" not in message


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe\0")
    with pytest.raises(InputError, match="no text in UTF-8"):
        read_requirements(str(tmp_path / "requirements.txt"))


def test_pyproject(tmp_path: Path) -> None:
    found = read_requirements(
        written(tmp_path, '[project]\nname = "x"\ndependencies = ["Tiny>=1", "torch"]\n', "pyproject.toml")
    )
    assert (texts(found), [asked.text for asked in found.torch]) == (["tiny>=1"], ["torch"])


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('[project]\ndynamic = ["dependencies"]\n', "its dependencies are dynamic"),
        ("[project]\ndependencies = 1\n", "not a list of texts"),
        ("[tool.ruff]\n", "it has no table"),
        ("[project\n", "not TOML"),
    ],
)
def test_a_pyproject_that_says_nothing_of_packages(tmp_path: Path, text: str, allowed: str) -> None:
    with pytest.raises(InputError, match=allowed):
        read_requirements(written(tmp_path, text, "pyproject.toml"))


def test_which_file_counts(tmp_path: Path) -> None:
    """A lock says more than a list, and settings of tools say nothing of packages."""
    assert file_for(tmp_path, None, runs_python=True) == ""
    tools = written(tmp_path, "[tool.ruff]\n", "pyproject.toml")
    assert file_for(tmp_path, None, runs_python=True) == ""
    assert file_for(tmp_path, tools, runs_python=True) == tools
    listed = written(tmp_path, "tiny\n")
    assert file_for(tmp_path, None, runs_python=True) == listed
    assert file_for(tmp_path, None, runs_python=False) == ""
    assert file_for(tmp_path, listed, runs_python=False) == listed
    assert file_for(tmp_path, "none", runs_python=True) == ""
    locked = written(tmp_path, "", "uv.lock")
    assert file_for(tmp_path, None, runs_python=True) == locked
    with pytest.raises(InputError, match="no such file"):
        file_for(tmp_path, str(tmp_path / "other.txt"), runs_python=True)


@pytest.mark.parametrize(
    ("line", "proven", "fits"),
    [
        ("torch", "2.13.0+cpu", True),
        ("torch==2.13.0", "2.13.0+cpu", True),
        ("torch>=2.4,<3", "2.13.0", True),
        ("torch==2.4.0", "2.13.0+cpu", False),
        ("torch==2.13.0+cu126", "2.13.0+cpu", False),
        ("torch==2.4.0 ; sys_platform == 'win32'", "2.13.0", True),
        ("torch<3", "2.14.0a0+git1234", True),
        ("torch<3", "own build", False),
    ],
)
def test_torch_is_never_exchanged(tmp_path: Path, line: str, proven: str, fits: bool) -> None:
    found = read_requirements(written(tmp_path, f"tiny\n{line}\n"))
    assert texts(found) == ["tiny"]
    if fits:
        refuse_other_torch(found, {"n1": proven})
        return
    with pytest.raises(InputError) as caught:
        refuse_other_torch(found, {"n1": proven})
    assert f"{line} (requirements.txt line 2)" in str(caught.value)
    assert f"torch {proven} is proven on n1" in str(caught.value)


@pytest.mark.parametrize("marker", ["\\n--index-url https://other.example/simple", "os_name is 'posix'"])
def test_a_lock_has_one_requirement_in_each_line(tmp_path: Path, marker: str) -> None:
    """Reproduced before: what stood behind the end of a line in a marker was an option of pip."""
    lock = f"""
    [[package]]
    name = "mine"
    source = {{ virtual = "." }}
    dependencies = [{{ name = "tiny", marker = "{marker}" }}]
    [[package]]
    name = "tiny"
    version = "1.0"
    source = {{ registry = "https://index.example/simple" }}
    wheels = [{{ hash = "sha256:{"0" * 64}" }}]
    """
    with pytest.raises(InputError, match=r"no requirement|path or an address"):
        read_requirements(written(tmp_path, lock, "uv.lock"))
