"""What is left out of a script's folder: by the built-in names, and by .torchfleetignore."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import Program
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request, parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import survey_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import (
    check_in_place,
    code_digest,
    folder_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import facts_of_a_node, plan_on_two, planned

PATTERNS = "# comment\n*.ckpt\n!keep.ckpt\n/big\nwandb/\nlogs/**/raw\n"
FILES = (
    *("train.py", "a.ckpt", "keep.ckpt", "big/x", "src/big", "src/a.ckpt", "wandb/run", "logs/1/raw", "logs/1/kept"),
    *(".git/config", ".env", "__pycache__/x.pyc", "venv/bin/python"),
)


def folder(root: Path, patterns: str | bytes = PATTERNS) -> str:
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / ".torchfleetignore").write_bytes(patterns if isinstance(patterns, bytes) else patterns.encode())
    return str(root / "train.py")


def test_it_is_read_as_git_reads_its_own(tmp_path: Path) -> None:
    made = folder_of(folder(tmp_path))
    assert sorted(made.files) == ["keep.ckpt", "logs/1/kept", "src/big", "train.py"]
    assert (made.by_file, made.by_name) == (5, 5)  # big/ and wandb/ count once, and so do .git/ and venv/
    assert made.line == (
        f"shipped from {tmp_path}: 4 files, {made.bytes} bytes; left out: 5 by .torchfleetignore;"
        " 5 hidden or called __pycache__, node_modules, runs, venv"
    )
    assert made.warnings == ()


def test_without_one_all_is_shipped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    made = folder_of(str(tmp_path / "train.py"))
    assert made.line == f"shipped from {tmp_path}: 1 file, 1 bytes; left out: nothing"


@pytest.mark.parametrize(
    ("patterns", "said"), [("!\n", "Invalid git pattern"), (b"\xff\xfe", "decode"), (b"x\n" * 600_000, "bytes")]
)
def test_one_that_cannot_be_used_is_refused(tmp_path: Path, patterns: str | bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        folder_of(folder(tmp_path, patterns))
    assert "gitignore(5)" in str(refused.value)


def test_a_link_or_a_pipe_in_its_place_is_refused(tmp_path: Path) -> None:
    """A folder of somebody else's may have a link to a file of yours there, or a pipe that nobody writes to."""
    script = folder(tmp_path)
    place = tmp_path / ".torchfleetignore"
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(InputError, match="torchfleetignore"):
        folder_of(script)
    place.unlink()
    place.symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="torchfleetignore"):
        folder_of(script)


def test_the_script_itself_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.torchfleetignore leaves it out: rename it, or add !/train\.py there"):
        folder_of(folder(tmp_path, "*.py\n"))
    assert "train.py" in folder_of(folder(tmp_path, "*.py\n!/train.py\n")).files


def test_what_is_shipped_is_shown_before_it_happens() -> None:
    plan = plan_on_two()
    assert "shipped" not in "\n".join(explain(plan, render(plan)))


# --- ship=false ---------------------------------------------------------------------------------------------------


def test_a_program_in_place_works_in_its_folder() -> None:
    node = Node("n1", "192.0.2.1", slots=1)
    program = Program("/shared/x/train.py", (), folder="/shared/x")
    (made,) = planned(Cluster(node, (node,)), {"n1": facts_of_a_node()}, program, {"workload_args": "--a"}).nodes
    assert made.argv[1:] == ("/shared/x/train.py", "--a") and made.cwd == "/shared/x"


def test_it_is_the_same_file_on_every_node(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x")
    right = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    names = ("n1", "n2", "n3")
    cluster = Cluster(Node("n1", "n1"), tuple(Node(name, name) for name in names))

    def check(*digests: str) -> None:
        facts = {name: facts_of_a_node(script=digest) for name, digest in zip(names, digests, strict=True)}
        check_in_place(str(script), cluster, facts)  # type: ignore[arg-type]

    check(right, right, right)
    with pytest.raises(InputError, match=r"it is not on n2; it is another file on n3: with ship=false"):
        check(right, "", "0" * 64)
    check_in_place(  # the plan says what is wrong with a node that does not answer
        str(script), cluster, {**dict.fromkeys(names, facts_of_a_node(script=right)), "n3": {"unreachable": "gone"}}
    )  # type: ignore[arg-type]


def test_only_then_are_nodes_asked_for_it() -> None:
    asked = {"workload": "/w/train.py"}
    assert survey_request(Node("n1", "n1"), Request(**asked), ())["script"] == ""
    assert survey_request(Node("n1", "n1"), Request(**asked, ship=False), ())["script"] == "/w/train.py"
    assert parse_request({"ship": "false"}).ship is False
    with pytest.raises(InputError, match="ship"):
        parse_request({"ship": "maybe"})


def test_the_digest_of_the_code_is_that_of_what_is_copied(tmp_path: Path) -> None:
    """A run's report tells by it whether two runs had the same program."""
    script = folder(tmp_path)
    alone, whole = code_digest(None, script), code_digest(folder_of(script), script)
    assert len({alone, whole}) == 2 and len(alone) == len(whole) == 16
    (tmp_path / "src" / "big").write_text("changed")
    assert code_digest(None, script) == alone and code_digest(folder_of(script), script) != whole
    assert code_digest(None, str(tmp_path / "absent.py")) == code_digest(None, "/bin/sh") == ""


def test_a_plan_has_the_torch_and_the_clock_of_each_node() -> None:
    plan = plan_on_two(n2={"clock_offset": 1.5})
    assert [(node.torch, node.clock_offset) for node in plan.nodes] == [("2.13.0+cpu", 0.0), ("2.13.0+cpu", 1.5)]
