"""Modules as Ansible runs them: what fails the task, what check mode leaves alone, and what is written how."""

from __future__ import annotations

import importlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import PodmanError
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import signing_keys

Run = Callable[..., dict[str, Any]]
FOUND: dict[str, Any] = {
    **{
        name: []
        for name in (
            "ended",
            "containers",
            "unseen",
            "cancelled",
            "removed",
            "outputs",
            "runtimes",
            "running",
            "waiting",
        )
    },
    **{"store": {"files": 0, "bytes": 0}, "known": True},
}


def module(name: str) -> Any:
    return importlib.import_module(f"ansible_collections.torchfleet.cluster.plugins.modules.{name}")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a module with these arguments and returns what it printed."""

    def started(name: str, /, check: bool = False, **arguments: Any) -> dict[str, Any]:
        with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            module(name).main()
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return started


# --- reap -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_id", ["../../etc", "a/b", "..", "a..b", "-x", "x" * 101])
def test_a_job_id_that_is_a_path_ends_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, job_id: str) -> None:
    monkeypatch.setattr(module("reap"), "reap", lambda *_given: pytest.fail("it looked for that"))
    assert run("reap", job_id=job_id)["msg"] == f"job_id: got {job_id!r}; give the name of a run"


def test_a_job_that_does_not_end_fails_the_task(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("reap"), "reap", lambda *_given: {**FOUND, "cancelled": ["one"], "running": ["one"]})
    failed = run("reap", job_id="one")
    assert failed["failed"] is True and failed["msg"].startswith("one still runs: ")
    would = run("reap", check=True, job_id="one")
    assert not would.get("failed") and would["changed"] is True and would["msg"].startswith("would end job one")


def test_a_process_that_outlives_sigkill_fails_the_task_and_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"pid": 7, "job_id": "one", "command": "cat /mnt/dead", "ended": None}
    ended = {**row, "pid": 8, "command": "sleep", "ended": "SIGTERM"}
    monkeypatch.setattr(module("reap"), "reap", lambda *_given: {**FOUND, "ended": [row, ended]})
    failed = run("reap")
    assert failed["failed"] is True
    assert failed["msg"] == "not even SIGKILL ended: ended 1 leftover (pid 7 of one, cat /mnt/dead)"
    assert run("reap", check=True).get("failed") is not True  # where nothing has been ended yet


def test_an_engine_that_could_not_be_asked_fails_the_task_when_all_else_is_done(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not installed any more would fail it for ever, and is told."""
    unseen = {"engine": "podman", "code": "engine_failed", "said": "Error: database is locked"}
    monkeypatch.setattr(module("reap"), "reap", lambda *_given: {**FOUND, "removed": ["one"], "unseen": [unseen]})
    failed = run("reap")
    assert (failed["failed"], failed["code"], failed["removed"]) == (True, "engine_failed", ["one"])
    assert failed["msg"] == (
        "ended 0 leftovers; could not look for containers of podman: Error: database is locked; removed: one; "
        "when podman works here, run this again"
    )
    unseen["code"] = "no_engine"
    assert not run("reap").get("failed")


# --- publish --------------------------------------------------------------------------------------------------------


def test_a_file_is_published_whole_for_all_to_read(run: Run, tmp_path: Path) -> None:
    """Jobs that start meanwhile read it: half a fabric.env would send them to another NIC."""
    given = {"directory": str(tmp_path / "home"), "files": {"fabric.env": "NIC=eth0\n"}}
    before = os.umask(0o077)
    try:
        assert run("publish", **given)["changed"] is True
    finally:
        os.umask(before)
    path = tmp_path / "home" / "fabric.env"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    with open(path) as reader:
        run("publish", **{**given, "files": {"fabric.env": "NIC=eth1\n"}})
        assert reader.read() == "NIC=eth0\n"  # who has begun to read it reads the old one to its end
    assert path.read_text() == "NIC=eth1\n"
    assert os.listdir(path.parent) == ["fabric.env"]
    assert run("publish", **{**given, "files": {"fabric.env": "NIC=eth1\n"}})["changed"] is False


def test_check_mode_publishes_nothing_and_shows_what_would_be(run: Run, tmp_path: Path) -> None:
    found = run("publish", check=True, directory=str(tmp_path / "home"), files={"fabric.env": "NIC=eth0\n"})
    assert found["changed"] is True and found["diff"][0]["after"] == "NIC=eth0\n"
    assert not (tmp_path / "home").exists()


# --- fabric_probe, stage, signing_key, lab --------------------------------------------------------------------------


@pytest.mark.parametrize("ports", ["80", "1023-2000", "29099-29000", "65000-65536", "many", "1-2-3"])
def test_ports_that_no_agent_can_have_are_refused(run: Run, ports: str) -> None:
    told = f"fabric_ports: got {ports!r}; give one as 29000, or a range as 29000-29099"
    assert run("fabric_probe", state="listen", name="n1", expected=["n2"], ports=ports)["msg"] == told


def test_the_token_of_an_agent_is_not_logged() -> None:
    """Who has it may ask that agent, and Ansible writes the options of a module into the journal of the node."""
    assert module("fabric_probe").PEER["token"]["no_log"] is True


def test_a_node_without_others_listens_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, started = module("fabric_probe"), list[object]()
    monkeypatch.setattr(probe, "survey", lambda *_given: {})
    monkeypatch.setattr(probe.probe_server, "start", lambda *given: started.append(given[-1]) or {"port": 1})
    given = {"name": "n1", "ports": "", "seconds": 1.0, "home": "", "sysfs_root": "", "constraints": {}}
    assert probe.listen({**given, "expected": ["n1"]})["agent"] == {} and started == []
    assert probe.listen({**given, "expected": ["n1", "n2"]})["agent"] == {"port": 1} and started == [["n2"]]


@pytest.mark.parametrize(
    ("changed", "role", "lacks"),
    [
        ({}, ["head", "worker"], []),
        ({"launcher": {"version": "", "wanted": "/h/openmpi"}}, ["head", "worker"], ["openmpi (/h/openmpi)"]),
        ({"launcher": {"version": "", "wanted": "/h/openmpi"}}, ["worker"], []),
        ({"torch": None}, ["worker"], ["torch in /h/python"]),
        ({"python": "", "torch": None}, ["worker"], ["Python (/wanted)"]),
        ({"torch": None}, ["head"], []),
    ],
)
def test_what_a_node_lacks_for_its_role(changed: dict[str, Any], role: list[str], lacks: list[str]) -> None:
    facts = {
        "launcher": {"version": "5.0.11", "wanted": "/h/openmpi"},
        "python": "/h/python",
        "python_wanted": "/wanted",
        "torch": {"version": "2.13.0"},
    }
    assert module("stage").missing({**facts, **changed}, role, "openmpi") == lacks


def test_what_is_known_of_a_node_is_returned_as_it_is(run: Run) -> None:
    known = {"cores": 2}
    for name in ("stage", "accelerator_facts"):
        assert run(name, known=known)["facts"] == known
    assert run("fabric_probe", state="recall", name="n1", known=known, constraints={"nic": "eth0"})["facts"] == known


class Endless:
    """An answer of a web server that never ends."""

    def read(self, most: int = -1) -> bytes:
        assert 0 < most <= 10**7, "it would be read for ever"
        return b"x" * most


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(signing_keys, "open_url", lambda *_given, **_more: BytesIO(b"a key"))
    monkeypatch.setattr(signing_keys, "keyring", lambda data, _fingerprints: data)
    yield signing_keys


KEY = {"url": "https://vendor.example/key", "fingerprints": ["A" * 40]}


def test_a_keyring_is_for_apts_own_user_to_read(run: Run, keys: Any, tmp_path: Path) -> None:
    dest = tmp_path / "keyrings" / "cuda.gpg"
    before = os.umask(0o077)
    try:
        assert run("signing_key", check=True, dest=str(dest), **KEY)["changed"] is True and not dest.exists()
        assert run("signing_key", dest=str(dest), **KEY)["changed"] is True
    finally:
        os.umask(before)
    assert (stat.S_IMODE(dest.stat().st_mode), dest.read_bytes()) == (0o644, b"a key")
    assert run("signing_key", dest=str(dest), **KEY)["changed"] is False


def test_an_address_that_answers_without_end_is_read_so_far(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_keys, "open_url", lambda *_given, **_more: Endless())
    failed = run("signing_key", dest="/none/cuda.gpg", **KEY)
    assert failed["failed"] is True and failed["msg"].startswith("https://vendor.example/key is not the key that is")


@pytest.mark.parametrize("error", [ValueError("lab_name: no"), OSError("no podman"), PodmanError("`podman` ended")])
def test_what_goes_wrong_in_a_lab_is_told_in_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_given: Any, _check: bool) -> dict[str, Any]:
        raise error

    monkeypatch.setitem(module("lab").VERBS, "present", fails)
    failed = run("lab", directory="/nowhere")
    assert failed["failed"] is True and failed["msg"] == f"lab: {error}"


# --- packages and launchers of the distribution -----------------------------------------------------------------------

WANTED = {"role": "some", "names": ["a", "b"], "hint": "set some_install_method to wheel"}


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return module system_packages on a machine with apt on which package b is missing, for root."""
    packages = module("system_packages").system_packages
    (tmp_path / "apt-get").touch()
    monkeypatch.setattr(packages, "APT", str(tmp_path / "apt-get"))
    monkeypatch.setattr(packages, "missing", lambda names: [name for name in names if name != "a"])
    monkeypatch.setattr(packages, "install", lambda names: pytest.fail(f"{names} were installed"))
    monkeypatch.setattr(packages.os, "geteuid", lambda: 0)
    return packages


def test_check_mode_installs_no_package(run: Run, apt: Any) -> None:
    assert run("system_packages", check=True, **WANTED)["missing"] == ["b"]
    assert run("system_packages", check=True, **WANTED)["changed"] is True
    assert run("system_packages", **{**WANTED, "names": ["a"]})["changed"] is False


def test_root_installs_what_is_missing_and_apt_says_why_it_cannot(
    run: Run, apt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(apt, "install", asked.append)
    assert run("system_packages", **WANTED)["changed"] is True
    assert asked == [["b"]]

    def fail(_names: list[str]) -> None:
        raise apt.NotInstalled("E: Unable to locate package b")

    monkeypatch.setattr(apt, "install", fail)
    assert run("system_packages", **WANTED)["msg"] == ("some: b could not be installed: E: Unable to locate package b")


def test_a_user_is_told_that_root_is_needed_and_a_machine_without_apt_what_to_do(
    run: Run, apt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt.os, "geteuid", lambda: 1000)
    found = run("system_packages", **WANTED)
    assert (found["failed"], found["needs_root"]) == (True, True)
    monkeypatch.setattr(apt, "APT", "/no/such/apt-get")
    found = run("system_packages", **WANTED)
    assert found["msg"] == (
        "some: b would be installed with apt, and this machine has no apt: set some_install_method to wheel"
    )
    assert "needs_root" not in found


def test_check_mode_says_that_a_driver_would_be_loaded_and_loads_none(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, check mode left the module out, and said of no reboot that would follow."""
    loads = module("driver_load")
    monkeypatch.setattr(loads, "load", lambda name: pytest.fail(f"{name} was loaded"))
    monkeypatch.setattr(loads, "job_refusal", lambda *_words: "")
    given = {"role": "cuda", "module": "no-such-module", "package": "p", "reason": "none is loaded", "may_reboot": True}
    found = run("driver_load", check=True, **given)
    assert found["changed"] is True
    assert found["msg"] == "would load module no-such-module, or reboot the machine if modprobe fails: none is loaded"
    monkeypatch.setattr(loads, "job_refusal", lambda *_words: "cuda: job one runs here")
    assert run("driver_load", check=True, **given)["msg"] == "cuda: job one runs here"


def test_check_mode_links_no_launcher(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launcher = module("system_launcher")
    given = {"launcher": "some", "path": str(tmp_path / "some"), "package": "no-such-package"}
    monkeypatch.setattr(launcher, "refusals", lambda _request: [])
    assert run("system_launcher", check=True, **given)["changed"] is True
    assert run("system_launcher", **given)["msg"].startswith("some: no-such-package is not installed: ")
    monkeypatch.setattr(launcher, "refusals", lambda _request: ["some: one", "some: two"])
    assert run("system_launcher", check=True, **given)["msg"] == "some: one; some: two"
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_is_proven_once_and_not_in_check_mode(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"launcher": "mpich", "path": str(tmp_path)}
    failed = run("launcher_proof", **given)
    assert failed["msg"] == f"mpich: {tmp_path}/bin/mpirun does not run: No such file or directory"
    monkeypatch.setattr(module("launcher_proof"), "prove", lambda *_given: pytest.fail("it was started"))
    found = run("launcher_proof", check=True, **given)
    assert (found["changed"], found["version"]) == (True, "")
    (tmp_path / "torchfleet-proof.txt").write_text("5.0.2\n")
    found = run("launcher_proof", **given)
    assert (found["changed"], found["version"]) == (False, "5.0.2")


def test_a_library_that_is_not_there_fails_the_task(run: Run, tmp_path: Path) -> None:
    given = {"library": "ucx", "path": str(tmp_path)}
    assert run("library_proof", **given)["msg"] == f"ucx: {tmp_path} has no include/ucp/api/ucp_version.h"
    assert not run("library_proof", check=True, **given).get("failed")
