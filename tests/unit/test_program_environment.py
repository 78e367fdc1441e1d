"""The environment of a program: its name, where it is there, and what a plan makes of that."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import program_environment as on_node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.environment_tasks import to_make
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import Program, program_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program_environment import (
    ProgramEnvironment,
    environment_for,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.remote_script import find_script
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import folder_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import HERE, Cluster, Node, fabric, facts_of_a_node, planned

TORCH = {"version": "2.13.0", "cuda": "", "hip": ""}
HASH = "sha256:" + "0" * 64


def needs(place: Path, text: str, **options: Any) -> ProgramEnvironment:
    (place / "requirements.txt").write_text(text)
    found = environment_for(parse_request(options), str(place / "train.py"))
    assert found is not None
    return found


# --- its name ---------------------------------------------------------------------------------------------------------


def test_the_name_is_that_of_the_content(tmp_path: Path) -> None:
    name = needs(tmp_path, "tiny==1.0\nother\n").name
    assert needs(tmp_path, "# in another order\nother\nTINY == 1.0\n").name == name
    assert needs(tmp_path, "tiny==1.0\nother\n", program_index_url="https://me:new@i/").name == (
        needs(tmp_path, "tiny==1.0\nother\n", program_index_url="https://me:old@i/").name
    )
    others = [
        needs(tmp_path, "tiny==1.1\nother\n"),
        needs(tmp_path, f"tiny==1.0 --hash={HASH}\nother==1 --hash={HASH}\n"),
        needs(tmp_path, "tiny==1.0\nother\n", program_index_url="https://i/"),
        needs(tmp_path, "tiny==1.0\nother\n", program_wheelhouse="/wheels"),
    ]
    assert len({name, *(other.name for other in others)}) == 5


def test_a_program_that_needs_nothing_more_has_none(tmp_path: Path) -> None:
    assert needs(tmp_path, "torch>=2\n").name == ""
    (tmp_path / "requirements.txt").unlink()
    assert environment_for(parse_request({}), str(tmp_path / "train.py")) is None


# --- on a node --------------------------------------------------------------------------------------------------------


def made(home: Path, receipt: dict[str, Any]) -> Path:
    """Make what is looked for: a proven environment with torch, and an environment of a program."""
    (home / "pytorch/lib/python3.11/site-packages/torch").mkdir(parents=True)
    place = home / "programs/abc"
    (place / "bin").mkdir(parents=True)
    (place / "bin/python").symlink_to("/bin/sh")
    proper = {"python": "3.11", "linked_environment": str(home / "pytorch"), "kept": ["torch==2.13.0"]}
    (place / "torchfleet-receipt.json").write_text(json.dumps({**proper, "installed": {"tiny": "1.0"}, **receipt}))
    return place


def look(home: Path) -> Any:
    return on_node.look(str(home), "abc", str(home / "pytorch/bin/python"), TORCH)


def test_it_is_there(tmp_path: Path) -> None:
    place = made(tmp_path, {})
    found = look(tmp_path)
    assert (found["path"], len(found["content"])) == (str(place), 16)
    assert on_node.look(str(tmp_path), "", "", TORCH) is None


@pytest.mark.parametrize(
    "receipt",
    [
        {"kept": ["torch==2.12.0"]},
        {"kept": None},
        {"linked_environment": "/other"},
        {"python": "3.12"},
        {"python": ["../.."]},
    ],
)
def test_one_for_another_torch_or_python_is_made_anew(tmp_path: Path, receipt: dict[str, Any]) -> None:
    made(tmp_path, receipt)
    assert look(tmp_path)["content"] == ""


def test_one_that_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    place = made(tmp_path, {})
    (place / "bin/python").unlink()
    assert look(tmp_path)["content"] == ""
    (place / "torchfleet-receipt.json").write_text("[]")
    assert look(tmp_path)["content"] == ""


def test_a_job_notes_which_one_it_uses(tmp_path: Path) -> None:
    place = made(tmp_path, {})
    os.utime(place, (1, 1))
    orders: list[Any] = [
        {"home": str(tmp_path), "path_first": f"{tmp_path}/pytorch/bin"},
        {"home": str(tmp_path), "path_first": ""},
        {"home": str(tmp_path), "path_first": f"{place}/bin:{tmp_path}/pytorch/bin"},
    ]
    for order in orders[:2]:
        on_node.note_use(order)
    assert place.stat().st_mtime == 1
    assert on_node.used_by(orders[2]) == str(place)
    on_node.note_use(orders[2])
    assert place.stat().st_mtime > 1


def test_what_a_path_means(tmp_path: Path) -> None:
    conda, venv = tmp_path / "conda", tmp_path / "venv"
    for place in (conda, venv, tmp_path / "plain"):
        (place / "bin").mkdir(parents=True)
    (conda / "conda-meta").mkdir()
    (conda / "etc/conda/activate.d").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("")
    assert on_node.interpreter(str(venv)) == f"{venv}/bin/python"
    assert on_node.interpreter(f"{venv}/bin/python3") == f"{venv}/bin/python3"
    active = {"kind": "venv", "prefix": str(venv), "failed": 0, "variables": {"VIRTUAL_ENV": str(venv)}}
    assert on_node.activation(f"{venv}/bin/python") == active
    variables = {"CONDA_PREFIX": str(conda), "CONDA_DEFAULT_ENV": "conda", "CONDA_SHLVL": "1"}
    active = {"kind": "conda", "prefix": str(conda), "failed": 0, "variables": variables}
    assert on_node.activation(f"{conda}/bin/python") == active
    assert on_node.activation(f"{tmp_path}/plain/bin/python") is None


# --- in a plan --------------------------------------------------------------------------------------------------------

NAME = "6c9fc347a386845561a94324"  # of a requirements.txt with the line: tiny
PATH = f"/home/me/.torchfleet/programs/{NAME}"


def program(content: str, kind: str = "x86_64 3.11", path: str = PATH) -> dict[str, str]:
    return {"path": path, "content": content, "kind": kind}


def plan_with(wanted: ProgramEnvironment, *nodes: dict[str, Any]) -> LaunchPlan:
    """Plan a job of one rank on each of some nodes, by what is found on each."""
    names = [f"n{number}" for number in range(1, len(nodes) + 1)]
    facts = {
        name: facts_of_a_node(fabric=fabric("eth0", f"10.1.0.{number}"), **node)
        for number, (name, node) in enumerate(zip(names, nodes, strict=True), 1)
    }
    workers = tuple(Node(name, f"192.0.2.{number}", slots=1) for number, name in enumerate(names, 1))
    return planned(Cluster(workers[0], workers), facts, Program("/w/train.py", (), shipped=True), {}, wanted)


def test_ranks_run_in_it(tmp_path: Path) -> None:
    wanted = needs(tmp_path, "tiny\n")
    plan = plan_with(wanted, {"program": program("ab")}, {"program": program("")})
    assert plan.unmade == ("n2",)
    assert plan.nodes[0].argv[0] == f"{PATH}/bin/python"
    assert plan.nodes[0].path_first == f"{PATH}/bin:/home/me/.torchfleet/pytorch/bin"
    text = "\n".join(explain(plan, render(plan)))
    for part in ("requirements.txt: tiny", "is there and is used: n1", "would be made: n2", PATH):
        assert part in text


def test_without_requirements_they_run_in_the_proven_one() -> None:
    plan = planned(Cluster(HERE, (HERE,)), {"localhost": facts_of_a_node()}, Program("/w/train.py", ()), {})
    assert plan.unmade == plan.packages == ()
    assert plan.head.argv[0] == "/home/me/.torchfleet/pytorch/bin/python"


def test_nodes_of_one_kind_have_one_content(tmp_path: Path) -> None:
    wanted = needs(tmp_path, "tiny\n")
    with pytest.raises(InputError, match="n1 and n2 have different versions: write exact versions into it"):
        plan_with(wanted, {"program": program("ab")}, {"program": program("cd")})


def test_nodes_of_other_kinds_with_other_versions_are_told(tmp_path: Path) -> None:
    """Their pips have chosen each by itself; what a lock says of them was chosen once."""
    nodes = [{"program": program("ab")}, {"program": program("cd", "x86_64 3.13")}, {"program": program("ab")}]
    plan = plan_with(needs(tmp_path, "tiny\n"), *nodes)
    where = "n1 n3 (x86_64 3.11), n2 (x86_64 3.13)"
    assert not plan.unmade
    assert [text for text in plan.warnings if "packages" in text] == [
        f"the program's packages, or their versions, differ between {where}: "
        f"write exact versions into {tmp_path}/requirements.txt, or give all nodes one Python"
    ]
    same = [{"program": program("ab")}, {"program": program("ab", "x86_64 3.13")}, {"program": program("")}]
    for wanted, found in ((needs(tmp_path, "tiny\n"), same), (needs(tmp_path, f"tiny==1 --hash={HASH}\n"), nodes)):
        for node in found:
            node["program"]["path"] = f"{PATH.rpartition('/')[0]}/{wanted.name}"
        assert not [text for text in plan_with(wanted, *found).warnings if "packages" in text]


def test_a_node_cannot_name_another_place(tmp_path: Path) -> None:
    for path in ("/home/me/.ssh", f"/home/me/{NAME}", f"{PATH}/..", "/programs/other"):
        with pytest.raises(InputError, match="the plan has another path for this environment than n2"):
            plan_with(needs(tmp_path, "tiny\n"), {"program": program("ab")}, {"program": program("ab", path=path)})


def test_another_torch_is_refused_with_both_sides(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r'"torch==2.4.0 \(requirements.txt line 1\)"; torch 2.13.0\+cpu is proven on n1'
    ):
        plan_with(needs(tmp_path, "torch==2.4.0\n"), {})


def test_what_the_tasks_are_told(tmp_path: Path) -> None:
    facts: Any = {"n1": facts_of_a_node(program=program(""))}
    lock = f'tiny==1.0 --hash={HASH}\nother==2 ; python_version < "3.9" --hash={HASH}\n'
    told = to_make(needs(tmp_path, lock), facts, ["n1"], tmp_path)
    assert (told["packages"], told["nodes"]) == (
        ["tiny==1.0"],
        {
            "n1": {
                "path": PATH,
                "home": "/home/me/.torchfleet",
                "python": "/home/me/.torchfleet/pytorch/bin/python",
                "linked": "/home/me/.torchfleet/pytorch",
                "torch": "2.13.0+cpu",
                "build": "cpu",
            }
        },
    )
    assert Path(told["lock"]).read_text().splitlines() == [
        f"tiny==1.0 --hash={HASH}",
        f'other==2 ; python_version < "3.9" --hash={HASH}',
    ]
    given = {"program_wheelhouse": "/w", "program_wheelhouse_fill": "true", "program_keep": "0"}
    told = to_make(needs(tmp_path, "tiny\n", **given), facts, ["n1"], tmp_path)
    assert (told["wheelhouse"], told["wheelhouse_fill"], told["keep"]) == ("/w", True, 0)
    told = to_make(needs(tmp_path, "tiny>=1\nTorchVision>=0.2\n"), facts, ["n1"], tmp_path)
    assert (told["lock"], told["torch_packages"]) == ("", ["torchvision>=0.2"])


# --- an environment of the user's own ---------------------------------------------------------------------------------


def active(**change: Any) -> dict[str, Any]:
    return {"kind": "conda", "prefix": "/opt/x", "failed": 0, "variables": {}, **change}


def test_it_is_active() -> None:
    variables = {"CONDA_PREFIX": "/opt/x", "NVCC_PREPEND_FLAGS": "-ccbin=/opt/x/bin/g++"}
    facts = facts_of_a_node(python="/opt/x/bin/python", activation=active(variables=variables))
    plan = planned(Cluster(HERE, (HERE,)), {"localhost": facts}, Program("/w/train.py", ()), {"python": "/opt/x"})
    found = {setting.name: setting.value for setting in plan.head.environment}
    assert {name: found.get(name) for name in variables} == variables
    assert (plan.head.argv, plan.head.path_first) == (("/opt/x/bin/python", "/w/train.py"), "/opt/x/bin")
    assert not [text for text in plan.warnings if "/opt/x" in text]


def test_what_activation_does_not_set_is_told() -> None:
    owned = {"RANK": "0", "MASTER_ADDR": "evil", "TORCHFLEET_JOB_DIR": "/other"}
    facts = facts_of_a_node(activation=active(failed=3, variables={**owned, "MY_TOKEN": "hush", "A": "b"}))
    plan = planned(Cluster(HERE, (HERE,)), {"localhost": facts}, Program("/w/train.py", ()), {"python": "/opt/x"})
    where = "/opt/x/etc/conda/activate.d"
    scripts = f"none of the 3 scripts in {where} counts: one ends the shell, or they take too long (on localhost)"
    why = "it may be secret (give it as job_env), or a job sets it itself"
    names = "MASTER_ADDR, MY_TOKEN, RANK, TORCHFLEET_JOB_DIR"
    hidden = f"/opt/x sets {names}, which is not passed on: {why} (on localhost)"
    assert {scripts, hidden} <= set(plan.warnings)
    found = {setting.name: setting.value for setting in plan.head.environment}
    assert (found["A"], {"MY_TOKEN", *owned} & set(found)) == ("b", set())


def test_nothing_is_installed_into_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("tiny\n")
    assert environment_for(parse_request({"python": "/opt/x"}), str(tmp_path / "train.py")) is None
    with pytest.raises(InputError, match="give either python or requirements"):
        parse_request({"python": "/opt/x", "requirements": "other.txt"})
    for wrong in ("bin/python", "", ["/x"]):
        with pytest.raises(InputError, match="give a path that all nodes have"):
            parse_request({"python": wrong})


def test_a_module_is_run_as_python_does() -> None:
    request = parse_request({"module": "package.train", "workload_args": "--lr 1"})
    assert request.module == "package.train"
    assert environment_for(request, "") is None
    program = program_of(request, "", shipped=False, local=True)
    assert program == Program("", ("--lr", "1"), module="package.train")
    plan = planned(Cluster(HERE, (HERE,)), {"localhost": facts_of_a_node()}, program, {"workload_args": "--lr 1"})
    assert plan.head.argv[1:] == ("-m", "package.train", "--lr", "1")
    assert plan.head.cwd == "/home/me"
    for wrong in ("a/b.py", "a..b", "-c", "a;b", ""):
        with pytest.raises(InputError, match="give a name as after python -m"):
            parse_request({"module": wrong})


def test_a_module_in_a_folder_is_copied_with_it_and_runs_there(tmp_path: Path) -> None:
    (tmp_path / "package" / "sub").mkdir(parents=True)
    for name in ("train.py", "sub/__main__.py"):
        (tmp_path / "package" / name).write_text("")
    (tmp_path / "requirements.txt").write_text("tiny\n")
    node = Node("n1", "192.0.2.1", slots=1)
    for module, file in (("package.train", "package/train.py"), ("package.sub", "package/sub/__main__.py")):
        request = parse_request({"workload": str(tmp_path), "module": module})
        script = find_script(request, tmp_path)
        assert script == str(tmp_path / file)
        assert set(folder_of(script, module).files) >= {"package/train.py", "requirements.txt"}
        assert environment_for(request, script)
        places = {"copied": "/home/me/.torchfleet/jobs/job/src", "in place": str(tmp_path)}
        for place, where in places.items():
            program = program_of(request, script, shipped=place == "copied", local=False)
            (made,) = planned(Cluster(node, (node,)), {"n1": facts_of_a_node()}, program, {}).nodes
            assert (made.argv[1:], made.cwd) == (("-m", module), where)
    assert program_of(request, script, shipped=False, local=True).folder == str(tmp_path)


def test_a_module_that_is_not_in_the_folder_is_refused(tmp_path: Path) -> None:
    for given, match in (
        ({"workload": "mnist"}, "the folder that has the package"),
        ({"workload": str(tmp_path)}, "neither"),
    ):
        with pytest.raises(InputError, match=match):
            find_script(parse_request({"module": "package.train", **given}), tmp_path)


@pytest.mark.parametrize(("python", "linked"), [("/opt/env/bin/python", "/opt/env"), ("/python", "/"), ("", "")])
def test_where_a_node_says_its_python_is(tmp_path: Path, python: str, linked: str) -> None:
    """Reproduced before: a node that named one in the root directory was a traceback."""
    facts: Any = {"n1": facts_of_a_node(python=python)}
    assert to_make(needs(tmp_path, "tiny\n"), facts, ["n1"], tmp_path)["nodes"]["n1"]["linked"] == linked
