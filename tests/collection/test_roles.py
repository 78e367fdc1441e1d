"""Every role reads like the others, and its documentation is true. Only files are read: `make check` runs this."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).parents[2]
ROLES = sorted(path.name for path in (REPO / "roles").iterdir())
TASK_FILES = sorted((REPO / "roles").glob("*/tasks/*.yml"))
PLAYBOOKS = sorted((REPO / "playbooks").glob("*.yml"))
# The variables of that name that are no facts.
NO_FACTS = {"facts", "check_mode", "playbook_python", "connection", "python_interpreter", "limit"}
NO_FACTS |= {"play_hosts", "play_hosts_all", "version", "port", "failed_task", "failed_result"}
# Roles that do more that only root can do than install packages: services, mounts, a reboot, sshd, firewalls.
AS_ROOT = {"cuda", "firewall", "rocm", "ssh_mesh", "storage"}
# Modules that become root only if something is missing, or to be removed.
ROOT_MODULES = ("prerequisites", "system_groups", "system_packages", "uninstall", "vendor_packages")
TAKES_ROOT = {f"torchfleet.cluster.{name}" for name in ROOT_MODULES}
BY_THEMSELVES = {"lab", "node_container"}  # which a playbook of their own removes
DECIDES = {"prerequisites"}  # whose module refuses by itself what it must
SHORT_CUTS = {"shell", "raw", "script", "ignore_errors", "become", "set_fact"}
TASK_FILE_LINES = 80
# Task files that several roles have alike: a role cannot include what another one has, and none is internal.
ALIKE = {
    "wheel.yml": {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI", "ucx": "UCX"},
    "use.yml": {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI", "pytorch": "PyTorch"},
    "reboot.yml": {"cuda": "nvidia", "rocm": "amdgpu"},
}
OWN_LINES = ("packages:", "disk_mb:", "versions: common")  # in which they may differ: of wheel.yml
OWN_WORDS = (("pytorch_venv", "__pytorch_path"), ("__pytorch_ready", "__pytorch_proof"))  # and what others call it


def load(path: Path) -> Any:
    return yaml.load(path.read_text(), yaml.CSafeLoader)  # a tenth of the time: it is done while tests are collected


def label(path: Path) -> str:
    return "/".join(path.parts[-4:])


def tasks_of(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield every task of a task file or a playbook, also those inside blocks."""
    for entry in entries:
        yield entry
        for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers"):
            yield from tasks_of(entry.get(key, []))


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_equal_defaults(role: str) -> None:
    defaults = load(REPO / "roles" / role / "defaults/main.yml")
    options = load(REPO / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert {name: option["default"] for name, option in options.items() if "default" in option} == defaults
    assert [name for name, option in options.items() if "default" not in option and not option.get("required")] == []
    assert [name for name in options if not name.startswith(f"{role}_")] == []
    assert [name for name, option in options.items() if not option.get("description")] == []


@pytest.mark.parametrize("name", ALIKE)
def test_what_several_roles_do_alike_differs_in_names_only(name: str) -> None:
    assert set(ALIKE[name]) == {path.parts[-3] for path in TASK_FILES if path.name == name}
    found = {}
    for role, title in ALIKE[name].items():
        text = (REPO / "roles" / role / "tasks" / name).read_text()
        for own, usual in (*OWN_WORDS, (title, "TITLE"), (role, "ROLE")):
            text = text.replace(own, usual)
        found[role] = [line for line in text.splitlines() if not line.strip().startswith(OWN_LINES)]
    first, *others = found.values()
    for other in others:
        assert other == first


@pytest.mark.parametrize("role", ROLES)
def test_internal_variables_are_named_so(role: str) -> None:
    internal = load(REPO / "roles" / role / "vars/main.yml")
    registered = [
        task["register"]
        for path in TASK_FILES
        if path.parts[-3] == role
        for task in tasks_of(load(path))
        if "register" in task
    ]
    told = (REPO / "roles" / role / "README.md").read_text()  # of what other roles may read
    public = {name for name in registered if name.startswith(f"{role}_") and f"`{name}`" in told}
    assert [name for name in [*internal, *registered] if not name.startswith(f"__{role}_")] == sorted(public)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_all_its_parts(role: str) -> None:
    parts = ["README.md", "meta/main.yml", "tasks/main.yml"]
    if role not in ("preflight", "verify"):  # which look, and install nothing
        methods = load(REPO / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
        ways = methods.get(f"{role}_install_method", {"choices": ["install"]})["choices"]
        parts += [f"tasks/{name}.yml" for name in (*(["preflight"] if role not in DECIDES else []), *ways)]
    if role not in ("preflight", "verify", "lab"):
        parts += ["tasks/present.yml", "tasks/absent.yml"]
    parts += [f"molecule/default/{name}.yml" for name in ("molecule", "converge", "verify")]
    assert [part for part in parts if not (REPO / "roles" / role / part).is_file()] == []


def test_whatever_puts_something_on_a_machine_is_removed_again() -> None:
    """remove.yml has the roles of setup.yml, in the reverse order."""
    removed = [
        entry["role"].rpartition(".")[2]
        for play in load(REPO / "playbooks/remove.yml")
        for entry in play.get("roles", [])
        if f"{entry['role'].rpartition('.')[2]}_state" in entry
    ]
    assert sorted(removed) == sorted(set(ROLES) - {"preflight", "verify"} - BY_THEMSELVES)
    assert [
        f"{role}_state" for role in removed if f"{role}_state" not in load(REPO / "roles" / role / "defaults/main.yml")
    ] == []


def test_an_unnamed_cluster_keeps_its_name_until_all_of_it_is_removed() -> None:
    """It is known by what goes with the mesh: rules of its firewall, and blocks of its keys, would have stayed."""
    named = {
        path.parts[-3] for path in (REPO / "roles").glob("*/vars/main.yml") if "unnamed_cluster" in path.read_text()
    }
    (order,) = [
        [entry["role"].rpartition(".")[2] for entry in play["roles"]]
        for play in load(REPO / "playbooks/remove.yml")
        if any("ssh_mesh_state" in entry for entry in play.get("roles", []))
    ]
    assert named & set(order[order.index("ssh_mesh") :]) == {"ssh_mesh"} and "firewall" in named
    (task,) = load(REPO / "roles/ssh_mesh/tasks/install.yml")
    assert task["torchfleet.cluster.ssh_mesh_apply"]["cluster"] == "{{ __ssh_mesh_plan.cluster }}"


def test_roles_that_are_tried_together_have_homes_of_their_own() -> None:
    """What converges is what is verified, and no role finds what another one installed."""
    scenario = REPO / "tests/roles/molecule/default"
    plays = {kind: load(scenario / f"{kind}.yml") for kind in ("converge", "verify")}
    roles = [re.sub(r".*/roles/(\w+)/.*", r"\1", play["ansible.builtin.import_playbook"]) for play in plays["converge"]]
    assert len(set(roles)) == len(roles) > 1
    for kind, entries in plays.items():
        assert [(play["ansible.builtin.import_playbook"], play["vars"]) for play in entries] == [
            (
                f"../../../../roles/{role}/molecule/default/{kind}.yml",
                {"torchfleet_home": f"/home/fleet/molecule/{role}"},
            )
            for role in roles
        ]


def test_task_files_are_small() -> None:
    lines = {label(path): len(path.read_text().splitlines()) for path in TASK_FILES}
    assert {path: count for path, count in lines.items() if count >= TASK_FILE_LINES} == {}


def becomes_root_if_it_must(task: dict[str, Any], key: str) -> bool:
    """Whether this part of a task gives root to a module that takes it only where something is missing."""
    return key == "become" and not task.keys().isdisjoint(TAKES_ROOT)


def short_cuts(path: Path) -> list[str]:
    """Return what the tasks of a file take of the short cuts, as `file: name of the task: short cut`."""
    allowed = {"become"} if path.parts[-3] in AS_ROOT else set()
    found = [(task, key, key.rpartition(".")[2]) for task in tasks_of(load(path)) for key in task]
    return [
        f"{label(path)}: {task.get('name')}: {word}"
        for task, key, word in found
        if word in SHORT_CUTS - allowed and not becomes_root_if_it_must(task, key)
    ] + [f"{label(path)}: {task.get('name')}: debug and register" for task in tasks_of(load(path)) if computes(task)]


def computes(task: dict[str, Any]) -> bool:
    """Whether a task says something only so that others can read it: that is set_fact by another name."""
    return "register" in task and not task.keys().isdisjoint({"debug", "ansible.builtin.debug"})


def test_no_task_takes_a_short_cut() -> None:
    """No shell, no ignored errors, no root, no facts as variables, nor debug that is registered: tasks find, or do."""
    assert [line for path in [*TASK_FILES, *PLAYBOOKS] for line in short_cuts(path)] == []


def test_machines_are_rebooted_one_after_the_other_and_only_with_permission() -> None:
    """What reboots all nodes at once takes the whole cluster away, and a driver that does not come back with it."""
    found = {path: load(path) for path in TASK_FILES if "ansible.builtin.reboot:" in path.read_text()}
    assert {path.parts[-3] for path in found} == {"cuda", "rocm"}
    for path, tasks in found.items():
        role, names = path.parts[-3], [next(name for name in task if "." in name) for task in tasks]
        at = names.index("ansible.builtin.reboot")
        assert tasks[at]["throttle"] == 1
        refusal = tasks[at - 1]
        assert names[at - 1] == "ansible.builtin.fail"
        assert refusal["when"] == f"__{role}_reason != '' and not {role}_allow_reboot | bool"


def test_a_lab_installs_packages_with_permission_alone() -> None:
    (refusal,) = [task for task in load(REPO / "roles/lab/tasks/preflight.yml") if "ansible.builtin.fail" in task]
    assert refusal["when"] == "__lab_plan.packages | length > 0 and not lab_install | bool"


def test_facts_are_read_as_facts() -> None:
    """`ansible_facts['...']`, not the loose variables of the same names."""
    paths = sorted((REPO / "roles").rglob("*.yml")) + PLAYBOOKS
    read = [(path, name) for path in paths for name in re.findall(r"\bansible_(?!playbook:)(\w+)", path.read_text())]
    assert [f"{label(path)}: ansible_{name}" for path, name in read if name not in NO_FACTS] == []


def long_jinja(path: Path) -> list[str]:
    """Return the lines of a file on which a Jinja expression begins that ends on a later one."""
    lines = path.read_text().splitlines()
    return [line.strip() for line in lines if re.search(r"\{\{((?!\}\}).)*$|\{%((?!%\}).)*$", line)]


def test_no_jinja_is_longer_than_a_line() -> None:
    """What takes more is code: a filter or an action, typed and tested."""
    paths = [path for path in (REPO / "roles").glob("*/*/*.yml") if "templates" not in path.parts]
    paths += [*PLAYBOOKS, *REPO.glob("*.yml")]
    assert {label(path): found for path in paths if (found := long_jinja(path))} == {}


BOOLEANS = sorted(
    name
    for role in ROLES
    for name, option in load(REPO / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"][
        "options"
    ].items()
    if option.get("type") == "bool"
)


def loose_booleans(text: str, names: list[str]) -> list[str]:
    """Return the lines that decide by an option as it was typed: `-e name=false` is a text, and that counts as true."""
    used = re.compile(rf"\b({'|'.join(names)})\b(?![:=])(?! \| (default\([^)]*\) \| )?bool\b)")
    passed_on = re.compile(r"\"\{\{ \w+( \| default\([^{}]*\))? \}\}\"")  # a module converts it
    lines = [line.partition(" #")[0] for line in text.splitlines()]
    decide = [line for line in lines if not line.startswith("#") and "name:" not in line]
    return [line.strip() for line in decide if used.search(passed_on.sub("", line))]


def test_nothing_is_decided_by_false_as_a_text() -> None:
    paths = [path for part in ("tasks", "vars", "defaults") for path in (REPO / "roles").glob(f"*/{part}/*.yml")]
    assert {label(path): found for path in paths if (found := loose_booleans(path.read_text(), BOOLEANS))} == {}


def test_what_breaks_a_rule_is_named(tmp_path: Path) -> None:
    task = {
        "name": "Do it",
        "ansible.builtin.shell": "x",
        "become": True,
        "block": [{"ansible.builtin.set_fact": {"__a": 1}}],
    }
    path = tmp_path / "roles/some/tasks/main.yml"
    path.parent.mkdir(parents=True)
    found = {"name": "Compute", "ansible.builtin.debug": {"msg": "{{ a }}"}, "register": "__some_a"}
    path.write_text(yaml.safe_dump([task, found]))
    named = ["shell", "become", "set_fact", "debug and register"]
    assert [line.rpartition(": ")[2] for line in short_cuts(path)] == named
    path.write_text("a: >-\n  {{ a\n     | b }}\nb: '{{ a }}'\nc: >-\n  {{ a }} and\n  {{ b }}\n")
    assert long_jinja(path) == ["{{ a"]
    wrong = ["when: a and x", "  - a", 'b: "{{ 1 if a else 2 }}"']
    fine = ["a: true", "when: a | bool", 'b: "{{ a }}"', 'b: "{{ a | default(false) }}"', "x: 1 # of a", "when: aa"]
    assert loose_booleans("\n".join([*wrong, *fine]), ["a"]) == [line.strip() for line in wrong]
