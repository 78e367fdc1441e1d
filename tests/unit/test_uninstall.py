"""What remove.yml takes away on a node: what was added for torchfleet, and nothing of others. Never under a job."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import uninstall as action
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.queue.job_queue import Queue
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import (
    groups,
    ledger,
    package_removal,
    packages,
    removal,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.packages import Done, PackageError
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh import clusters_here
from ansible_collections.torchfleet.cluster.plugins.modules import uninstall as module

ROWS = (
    "installed\tg++\tc++-compiler\t, g++-12 (>= 12.2), gcc (= 4:12.2.0)\n"
    "installed\tg++-12\tc++-compiler\tlibc6-dev (>= 2.13), libstdc++6:any\n"
    "installed\tgcc\tc-compiler\t, gcc-12\n"
    "installed\tgcc-12\t\t, libc6\n"
    "installed\tlibc6-dev:amd64\tlibc-dev (= 2.36)\t, libc6\n"
    "installed\tlibc6:amd64\t\t\n"
    "config-files\tgone\t\t, libc6-dev\n"
)
OURS = ["g++", "g++-12", "gcc", "gcc-12", "libc6-dev:amd64"]


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the ledger of a machine whose programs are recorded and not run."""
    path = tmp_path / "lib" / "installed.json"
    monkeypatch.setattr(ledger, "LEDGER", path)
    return path


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_what_is_installed_meanwhile_is_noted_also_if_it_fails(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = iter([{"a"}, {"a", "b", "c"}, {"a", "b", "c"}, {"a", "b", "c"}])
    monkeypatch.setattr(ledger, "every_package", lambda: next(there))
    with pytest.raises(PackageError, match="broken"), ledger.noting("mpich"):
        raise PackageError("broken")
    assert json.loads(book.read_text())["packages"] == {"b": "mpich", "c": "mpich"}
    with ledger.noting("ucx"):
        pass
    assert ledger.names_of("ucx", "packages") == []
    ledger.note("ucx", "packages", ["b"])  # which is mpich's
    assert ledger.names_of("mpich", "packages") == ["b", "c"]


def test_an_empty_ledger_is_removed_with_its_directory(book: Path) -> None:
    ledger.note("rocm", "groups", ["render"])
    assert book.stat().st_mode & 0o777 == 0o644
    ledger.forget("groups", ["render"])
    assert not book.parent.exists()


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("{", 0o644, "cannot be read"),
        ("[]", 0o644, "is damaged"),
        ('{"packages": ["a"]}', 0o644, "is damaged"),
        ('{"packages": {"a": 1}}', 0o644, "is damaged"),
        ("{}", 0o666, "can be written by others than root"),
    ],
)
def test_root_does_not_act_on_a_ledger_of_others(book: Path, text: str, mode: int, says: str) -> None:
    book.parent.mkdir()
    book.write_text(text)
    book.chmod(mode)
    with pytest.raises(PackageError, match=says):
        ledger.read()


# --- packages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("", set()),
        ("installed\tsite-tool\t\tlibc-dev | musl-dev\n", {"libc6-dev:amd64"}),
        ("installed\tsite-tool\t\tc-compiler\n", {"gcc", "gcc-12"}),
        ("installed\tsite-tool\t\tbuild, g++ (>= 4)\n", set(OURS)),
        ("unpacked\tsite-tool\tc-compiler\tgcc-12\n", {"gcc-12"}),
    ],
)
def test_a_package_that_another_one_needs_stays(
    book: Path, monkeypatch: pytest.MonkeyPatch, more: str, kept: set[str]
) -> None:
    monkeypatch.setattr(package_removal, "ask", lambda *_words: ROWS + more)
    assert package_removal.needed(OURS, package_removal.installed_packages()) == kept


@pytest.fixture
def machine(book: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a Debian: `there` are its packages, `ran` is what was called, `purged` what a simulation names."""
    made = SimpleNamespace(there=set(OURS), ran=[], purged=OURS)

    def run(*argv: str) -> Done:
        made.ran.append([word for word in argv if not word.startswith("--")])
        return Done(0, "".join(f"Purg {name.split(':')[0]} [1]\n" for name in made.purged), "")

    monkeypatch.setattr(package_removal, "every_package", lambda: made.there)
    monkeypatch.setattr(package_removal, "read_system", lambda: ("debian12", "deb"))
    monkeypatch.setattr(package_removal, "ask", lambda *_words: ROWS)
    monkeypatch.setattr(package_removal, "run", run)
    monkeypatch.setattr(packages, "run", run)
    return made


def test_exactly_what_the_role_added_goes(machine: SimpleNamespace, tmp_path: Path) -> None:
    ledger.note("torch_backends", "packages", [*OURS, "of-another-day"])
    ledger.note("cuda", "packages", ["driver"])
    (tmp_path / "cuda.sources").touch()
    ledger.note("torch_backends", "files", [str(tmp_path / "cuda.sources")])
    assert package_removal.leaving("torch_backends", True).texts == []
    assert package_removal.leaving("torch_backends", False).texts == [
        *(f"package {name}" for name in OURS),
        str(tmp_path / "cuda.sources"),
    ]
    package_removal.remove("torch_backends", False)
    assert machine.ran == [["apt-get", "purge", *OURS]] * 2  # the first is a simulation
    assert not (tmp_path / "cuda.sources").exists()
    assert ledger.read() == {
        "packages": {"driver": "cuda"},
        "files": {},
        "groups": {},
        "members": {},
        "services": {},
        "rules": {},
        "holds": {},
    }


def test_a_package_that_was_there_before_stays_and_is_free_again(machine: SimpleNamespace) -> None:
    """The role held it, as it held what it installed. What the user held is not noted."""
    ledger.note("cuda", "packages", OURS)
    ledger.note_holds("cuda", ["gcc", "theirs", "of-another-day"])
    machine.there.add("theirs")
    assert package_removal.leaving("cuda", False).texts[-1] == "hold of theirs"
    assert package_removal.leaving("cuda", True).texts == []
    package_removal.remove("cuda", False)
    assert machine.ran == [["apt-mark", "unhold", "theirs"], *[["apt-get", "purge", *OURS]] * 2]
    assert not ledger.LEDGER.exists()


def test_a_package_that_two_roles_hold_stays_held_until_both_are_removed(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that the first of them installed, with what it needs."""
    ledger.note("cuda", "packages", ["gcc", "gcc-12", "g++"])
    for role in ("cuda", "rocm"):
        ledger.note_holds(role, ["gcc", "theirs"])
    machine.there.add("theirs")
    machine.purged = ["g++"]
    going = package_removal.leaving("cuda", False)
    assert (going.packages, going.passed_on, going.holds) == (["g++"], ["gcc", "gcc-12"], [])
    assert going.texts[1:] == ["hold of gcc (other roles keep it)", "hold of theirs (other roles keep it)"]
    package_removal.remove("cuda", False)
    assert machine.ran == [["apt-get", "purge", "g++"]] * 2
    assert ledger.holds() == {"gcc": {"rocm"}, "theirs": {"rocm"}}
    machine.ran.clear()
    monkeypatch.setattr(package_removal, "ask", lambda *_words: ROWS[ROWS.index("installed\tg++-12") :])
    machine.purged = ["gcc", "gcc-12"]
    package_removal.remove("rocm", False)
    assert machine.ran == [["apt-mark", "unhold", "theirs"], *[["apt-get", "purge", "gcc", "gcc-12"]] * 2]
    assert not ledger.LEDGER.exists()


def test_a_role_whose_packages_all_stay_is_removed_as_root(
    book: Path, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else they would be noted as its own for ever, and go with no other role."""
    ledger.note("ucx", "packages", ["gcc"])
    monkeypatch.setattr(package_removal, "ask", lambda *_words: ROWS + "installed\tsite-tool\t\tc-compiler\n")
    given: dict[str, Any] = {"role": "ucx", "keep_packages": False, "services": [], "mine": []}
    found = module.look(request(tmp_path), given)
    assert (found["removed"], found["kept"], found["needs_root"]) == ([], ["gcc"], True)
    package_removal.remove("ucx", False)
    assert module.look(request(tmp_path), given)["needs_root"] is False


def test_a_hold_that_the_user_lifted_on_rpm_is_no_error(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dnf fails for a package that is not locked."""
    ledger.note_holds("cuda", ["driver", "lifted"])
    machine.there |= {"driver", "lifted"}
    monkeypatch.setattr(package_removal, "read_system", lambda: ("rhel9", "rpm"))
    monkeypatch.setattr(package_removal, "installed", lambda _family, names: ({}, {"driver"} & set(names)))
    package_removal.remove("cuda", False)
    assert machine.ran == [["dnf", "versionlock", "delete", "driver"]]


def test_what_a_held_package_needs_stays_on_rpm(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.note("cuda", "packages", ["driver", "library"])
    machine.there |= {"driver", "library"}
    for role in ("cuda", "rocm"):
        ledger.note_holds(role, ["driver"])
    monkeypatch.setattr(package_removal, "read_system", lambda: ("rhel9", "rpm"))
    package_removal.remove("cuda", False)
    assert machine.ran == []
    assert package_removal.leaving("rocm", False).packages == ["driver", "library"]


def test_what_another_package_needs_goes_with_a_later_role(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both roles need a compiler: the second is not asked again what it added."""
    ledger.note("torch_backends", "packages", OURS)
    ledger.note("ucx", "packages", ["build-essential"])
    machine.there.add("build-essential")
    monkeypatch.setattr(package_removal, "ask", lambda *_words: ROWS + "installed\tbuild-essential\t\tg++\n")
    package_removal.remove("torch_backends", False)
    assert machine.ran == []
    assert package_removal.leaving("torch_backends", False).kept == OURS
    machine.purged = ["build-essential", *OURS]
    package_removal.remove("ucx", False)
    assert machine.ran[-1] == ["apt-get", "purge", "build-essential", *OURS]
    assert not ledger.LEDGER.exists()


def test_nothing_is_removed_if_others_would_go_too(machine: SimpleNamespace) -> None:
    ledger.note("mpich", "packages", OURS)
    machine.purged = [*OURS, "site-tool"]
    with pytest.raises(PackageError, match=r"nothing was removed: the removal would take site-tool too"):
        package_removal.remove("mpich", False)
    assert len(machine.ran) == 1
    ledger.note("evil", "packages", ["--purge-all"])
    with pytest.raises(PackageError, match="names no package: '--purge-all'"):
        package_removal.remove_packages(["--purge-all"])


def test_groups_and_members_that_were_added_go_and_no_others(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = SimpleNamespace(gr_name="video", gr_mem=["other"], gr_gid=44)
    monkeypatch.setattr(groups.grp, "getgrall", lambda: [group])
    monkeypatch.setattr(groups.pwd, "getpwnam", lambda _name: SimpleNamespace(pw_gid=7))
    wanted = groups.lacking(["render", "video"], ["me", "other"])
    assert wanted == (["render"], ["render:me", "render:other", "video:me"])
    groups.add("rocm", wanted)
    assert machine.ran[0] == ["groupadd", "render"]
    machine.ran.clear()
    package_removal.remove("rocm", False)
    assert machine.ran == [
        ["gpasswd", "me", "render"],
        ["gpasswd", "other", "render"],
        ["gpasswd", "me", "video"],
        ["groupdel", "render"],
    ]


# --- the user's part --------------------------------------------------------------------------------------------------


def request(home: Path, **given: Any) -> removal.Request:
    known: dict[str, Any] = {"role": "r", "home": home, "environments": [], "files": [], "force": False}
    return removal.Request(**{**known, "others_stay": False, **given})


def make(path: Path, *names: str) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).touch()
    return path


def test_environments_of_ours_go_and_a_directory_of_the_user_stays(tmp_path: Path) -> None:
    home = make(tmp_path / "home")
    for name in ("pytorch", "pytorch.old"):
        make(home / name, removal.RECEIPT)
    (home / "pytorch.lock").touch()
    theirs = make(home / "venv", "pyvenv.cfg")
    wanted = request(home, environments=[home / "pytorch", theirs, home / "none"])
    assert removal.texts(wanted) == [str(home / "pytorch")]
    removal.remove(wanted)
    assert [path.name for path in home.iterdir()] == ["venv"]


def test_all_versions_go_with_what_is_in_use(tmp_path: Path) -> None:
    home, store = tmp_path / "home", tmp_path / "home" / "versions"
    for name in ("1-a", "2-b"):
        make(store / "pytorch" / name, removal.RECEIPT)
    make(store / "openmpi" / "1-a", removal.RECEIPT)
    make(store / "pytorch" / "2-b" / "backends", removal.RECEIPT)
    (home / "pytorch").symlink_to("versions/pytorch/2-b")
    (home / "backends").symlink_to("pytorch/backends")
    (home / "openmpi").symlink_to("versions/openmpi/1-a")
    removal.remove(request(home, environments=[home / "backends"]))
    assert not (store / "pytorch" / "2-b" / "backends").exists() and (home / "pytorch" / removal.RECEIPT).exists()
    removal.remove(request(home, environments=[home / "pytorch"]))
    assert sorted(path.name for path in home.rglob("*")) == ["1-a", "openmpi", "openmpi", removal.RECEIPT, "versions"]
    last = request(home, environments=[home / "openmpi"])
    assert removal.texts(last) == [str(home / "openmpi"), str(home)]
    removal.remove(last)
    assert not home.exists()


def test_a_version_that_never_came_into_use_goes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make(home / "versions" / "pytorch" / "1-a", removal.RECEIPT)
    (home / "pytorch.new").symlink_to("versions/pytorch/1-a")
    mine = make(home / "mpich", "mine")
    removal.remove(request(home, environments=[home / "pytorch", mine]))
    assert sorted(path.name for path in home.rglob("*")) == ["mine", "mpich"]


@pytest.mark.parametrize("left", ["1-a.lock", "1-a.brought.tar"])
def test_what_an_installation_left_before_there_was_a_version_goes(tmp_path: Path, left: str) -> None:
    home = make(tmp_path / "home", "mine")
    make(home / "versions" / "pytorch", left)
    removal.remove(request(home, environments=[home / "pytorch"]))
    assert [path.name for path in home.rglob("*")] == ["mine"]


def test_versions_of_somebody_else_stay(tmp_path: Path) -> None:
    """An environment may be asked for anywhere, such as /opt/pytorch, and /opt/versions be there before."""
    mine = make(tmp_path / "versions" / "pytorch" / "2.1", "mine")
    asked = request(tmp_path / "home", environments=[tmp_path / "pytorch"])
    assert removal.texts(asked) == []
    removal.remove(asked)
    assert (mine / "mine").exists()


def test_the_home_goes_if_nothing_of_others_is_left_in_it(tmp_path: Path) -> None:
    home = make(tmp_path / "home", "fabric.json", "notes")
    make(home / "jobs" / "one", "fetched")
    make(home / "python-3.12", "receipt")
    (home / "python-3.12.lock").touch()
    removal.remove(request(home, files=["fabric.json", "jobs", "store", "python-*"]))
    assert [path.name for path in home.iterdir()] == ["notes"]
    assert removal.texts(request(home, files=["jobs"])) == []
    (home / "notes").unlink()
    assert removal.texts(request(home)) == [str(home)]  # another role has left it empty
    removal.remove(request(home))
    assert not home.exists() and removal.texts(request(home)) == []


def test_a_link_in_the_home_goes_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    home, other = make(tmp_path / "home"), make(tmp_path / "other", "data")
    (home / "store").symlink_to(other)
    removal.remove(request(home, files=["store"]))
    assert not home.exists() and (other / "data").exists()


def test_an_environment_that_other_nodes_share_stays_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "pytorch", removal.RECEIPT)
    monkeypatch.setattr(removal, "is_shared", lambda _path: True)
    place = [tmp_path / "pytorch"]
    assert removal.texts(request(tmp_path, environments=place, others_stay=True)) == []
    assert removal.texts(request(tmp_path, environments=place)) == [str(place[0]), str(tmp_path)]


def test_nothing_goes_while_a_job_runs(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    held = job.lock()
    with pytest.raises(removal.Refused, match=r"job one of \w+ runs here: .* clean.yml -e job_id=one; -e force=true"):
        removal.refuse_running(request(tmp_path))
    removal.refuse_running(request(tmp_path, force=True))
    os.close(held)
    removal.refuse_running(request(tmp_path))


def test_nothing_goes_while_a_job_waits(tmp_path: Path) -> None:
    wish: Any = {"job_id": "one", "controller": "me", "owner": "me@here", "hosts": ["n1"], "ranks": 1}
    ticket = Queue(str(tmp_path)).enter(
        {**wish, "launcher": "openmpi", "backend": "gloo", "detached": False, "private_tmp": ""}
    )
    with pytest.raises(removal.Refused, match=r"job one waits in the queue here: .* -e do=cancel -e job_id=one"):
        removal.refuse_running(request(tmp_path))
    leaving = threading.Timer(0.1, ticket.leave)  # as its process does when the ticket is gone
    leaving.start()
    removal.end_jobs(str(tmp_path))
    assert not ticket.valid and Queue(str(tmp_path)).entries() == []
    leaving.join()
    removal.refuse_running(request(tmp_path))


def test_results_that_nobody_fetched_are_not_thrown_away(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    wanted = request(tmp_path, files=["jobs"])
    with pytest.raises(removal.Refused, match="results of job one were not fetched from here: ansible-playbook clean"):
        removal.refuse_running(wanted)
    (tmp_path / "jobs" / "one" / "fetched").touch()
    removal.refuse_running(wanted)


# --- other clusters on the node ---------------------------------------------------------------------------------------


def test_the_clusters_of_a_node_are_those_of_all_its_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a mesh leaves: root's part, a block of keys, a note in the usual home. Other files tell nothing."""
    users = [SimpleNamespace(pw_name=name, pw_dir=str(tmp_path / name)) for name in ("ann", "bob", "eve", "none")]
    monkeypatch.setattr(clusters_here.pwd, "getpwall", lambda: users)
    monkeypatch.setattr(clusters_here.pwd, "getpwuid", lambda _uid: users[0])
    monkeypatch.setattr(clusters_here, "PLACE", str(tmp_path / "etc"))
    for path, text in {
        "etc/clusters/one.json": '{"user": "ann"}',
        "etc/clusters/damaged.json": "{",
        "ann/.torchfleet/ssh/applied-n1.json": '{"cluster": "one", "work": {}}',
        "bob/.ssh/authorized_keys": "ssh-ed25519 A\n# BEGIN torchfleet two\nx\n# END torchfleet two\n",
        "bob/.torchfleet/ssh/applied-n1.json": '{"cluster": "three"}',
        "eve/.torchfleet/ssh/applied-n1.json": '{"cluster": "\\u001b[2J"}',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "eve/.ssh").mkdir()
    os.mkfifo(tmp_path / "eve/.ssh/authorized_keys")  # at which root must not wait
    assert {each.text for each in clusters_here.clusters_here()} == {"one of ann", "two of bob", "three of bob"}
    assert {each.text for each in clusters_here.clusters_in(str(tmp_path / "ann/.torchfleet"))} == {"one of ann"}

    given: dict[str, Any] = {"role": "r", "keep_packages": False, "services": [], "mine": None}
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "installed.json")
    monkeypatch.setattr(package_removal, "every_package", set)
    found = module.look(request(tmp_path / "ann/.torchfleet"), given)
    assert (found["mine"], found["others"]) == (["one of ann"], ["three of bob", "two of bob"])
    found = module.look(request(tmp_path / "root"), {**given, "mine": ["two of bob"]})
    assert found["others"] == ["one of ann", "three of bob"]


def test_packages_that_another_user_works_with_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise removal.Refused("job one of bob runs here")

    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    monkeypatch.setattr(removal, "refuse_other_users", refuse)
    monkeypatch.setattr(package_removal, "remove", lambda *_given: pytest.fail("nothing is removed"))
    with pytest.raises(removal.Refused, match="job one of bob runs here"):
        module.remove_as_root({"role": "ucx", "keep_packages": True, "services": []}, needs_packages=True)


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "..", ".ssh", "", "a\n"])
def test_a_file_of_the_home_is_a_name_in_it(name: str) -> None:
    given = {"role": "r", "home": "~/.torchfleet", "environments": [], "force": False, "others_stay": False}
    assert module.request_of({**given, "files": ["ucx-*"]}).files == ["ucx-*"]
    with pytest.raises(removal.Refused, match="give names in the home"):
        module.request_of({**given, "files": ["ucx-*", name]})


# --- the action -------------------------------------------------------------------------------------------------------

FOUND = {"changed": True, "removed": ["/h/x", "package p"], "kept": ["q"], "needs_root": True, "needs_packages": True}


@pytest.fixture
def uninstall(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], list[tuple[str, bool]]]]:
    """Return a function that runs the action and returns its result and the parts that ran, with root or without."""

    def started(
        found: dict[str, Any], check: bool = False, why: str = "", as_root: dict[str, Any] | None = None
    ) -> Any:
        one = object.__new__(action.ActionModule)
        one._task = SimpleNamespace(args={"role": "mpich"}, check_mode=check, delegate_to=None)
        one._connection = SimpleNamespace(become="sudo")
        one._connection.set_become_plugin = lambda plugin: setattr(one._connection, "become", plugin)
        ran: list[tuple[str, bool]] = []

        def execute(module_args: dict[str, Any], **_given: Any) -> dict[str, Any]:
            is_root = one._connection.become is not None
            ran.append((module_args["part"], is_root))
            return as_root if as_root is not None and is_root else found

        one._execute_module = execute  # type: ignore[method-assign]
        one.why_not_root = lambda: why  # type: ignore[method-assign]
        return one.act({"role": "mpich"}, {"inventory_hostname": "n1"}), ran

    return started


def test_root_is_taken_for_what_root_added_alone(uninstall: Any) -> None:
    told, ran = uninstall(FOUND)
    assert ran == [("look", False), ("look", True), ("user", False), ("root", True)]
    assert told["msg"] == "removed: /h/x, package p; kept, because other packages or roles need them: q"
    assert uninstall({**FOUND, "needs_root": False})[1] == [("look", False), ("user", False)]
    assert uninstall({"changed": False})[1] == [("look", False)]


def test_check_mode_lists_and_removes_nothing(uninstall: Any) -> None:
    told, ran = uninstall(FOUND, check=True, why="no sudo")
    assert ran == [("look", False)]
    assert (told["changed"], told["msg"][:30]) == (True, "would remove: /h/x, package p;")


@pytest.mark.parametrize("check", [True, False])
def test_what_root_added_stays_while_the_node_has_another_cluster(uninstall: Any, check: bool) -> None:
    """Only root sees that another user has one."""
    found = {**FOUND, "roots": ["package p"], "mine": ["a of me"]}
    told, ran = uninstall(found, check=check, as_root={**found, "others": ["b of other"]})
    assert ran == [("look", False), ("look", True), ("user", False)][: 2 if check else 3]
    stays = "kept until the last cluster of this node is removed, which has others (b of other): package p"
    assert told["msg"] == f"{'would remove' if check else 'removed'}: /h/x; {stays}"
    assert (
        uninstall({**found, "removed": ["package p"]}, as_root={**found, "others": ["b of other"]})[0]["msg"] == stays
    )
    refused = {"failed": True, "msg": "the ledger is damaged"}
    assert uninstall(found, as_root=refused) == (refused, [("look", False), ("look", True)])


def test_without_root_nothing_is_removed(uninstall: Any) -> None:
    told, ran = uninstall(FOUND, why="sudo: a password is required")
    assert ran == [("look", False)]
    assert told["msg"] == (
        "mpich: packages are removed as root, and there is no way to become root on n1 (sudo: a password is required): "
        "give the password with -K, or keep the packages: -e keep_packages=true"
    )


def test_a_refusal_of_the_node_ends_it(uninstall: Any) -> None:
    assert uninstall({"failed": True, "msg": "job one runs"}) == (
        {"failed": True, "msg": "job one runs"},
        [("look", False)],
    )
