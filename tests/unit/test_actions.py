"""Actions as Ansible runs them: what fails the task, what is kept, and whose word counts."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from ansible_collections.torchfleet.cluster.plugins.action import (
    accelerator_facts,
    fabric_probe,
    firewall,
    gather,
    jobs,
    launch,
    node_facts,
    preflight,
    publish,
    ssh_mesh_plan,
    stage,
    verify,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import trial as trial_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import verify as verify_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostvars as hostvars_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import brought_home, run_directory
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.mesh import Refused, member_from
from tests.unit.machines import networks_of

RECORDED = json.loads((Path(__file__).parent / "recorded/node_facts.json").read_text())
CLOCK = {"offset": 0.004, "uncertainty": 0.008}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJILq8aotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAq"


# --- preflight ------------------------------------------------------------------------------------------------------


def preflight_of(path: Path, n2: dict[str, Any], asked: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Return what preflight says of the two recorded nodes, of which the second is changed; `asked`: its variables."""
    action = object.__new__(preflight.ActionModule)
    action._play_context = SimpleNamespace(become_pass=None)
    hostvars: dict[str, Any] = {f"n{number}": {"ansible_host": f"192.0.2.1{number}", "slots": 2} for number in (1, 2)}
    hostvars["n2"].update(asked or {})
    answers = {"n1": {"facts": RECORDED["n1"], "clock": CLOCK}, "n2": {"facts": n2, "clock": CLOCK}}
    variables = {"inventory_hostname": "n1", "hostvars": hostvars, "groups": {"head": ["n1"], "workers": ["n1", "n2"]}}
    return action.act({"answers": answers, "report": str(path), **options}, variables)


def test_a_node_without_room_fails_preflight_unless_that_is_ignored(tmp_path: Path) -> None:
    full = copy.deepcopy(RECORDED["n2"])
    full["home"]["free"] = 0
    failed = preflight_of(tmp_path / "x.json", full)
    assert failed["failed"] is True
    assert failed["msg"] == f"1 error: TF-DISK-HOME on n2; report: {tmp_path / 'x.json'}"
    report = json.loads((tmp_path / "x.json").read_text())
    assert report["ok"] is False and report["findings"][0]["id"] == "TF-DISK-HOME"
    ignored = preflight_of(tmp_path / "x.json", full, ignore=["TF-DISK-HOME"])
    assert ignored["failed"] is False and ignored["msg"].endswith("1 ignored")
    assert json.loads((tmp_path / "x.json").read_text())["ok"] is True
    with pytest.raises(InputError, match="preflight_ignore"):
        preflight_of(tmp_path / "x.json", full, ignore=["TF-DISC-HOME"])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"fabric_rdma": ["mlx5_99"]}, 'fabric_rdma of n2: got "mlx5_99"; there is no such RDMA device'),
        ({"fabric_rdma": 99}, 'fabric_rdma of n2: got "99"; there is no such RDMA device'),
        ({"fabric_nic": "eth99"}, 'fabric_nic of n2: got "eth99"; there is no such NIC'),
        ({"fabric_address": "192.0.2.99"}, 'fabric_address of n2: got "192.0.2.99"; the node has no such address'),
    ],
)
def test_a_rail_or_nic_that_is_not_there_fails_preflight(tmp_path: Path, asked: dict[str, Any], told: str) -> None:
    """Before packages, keys and firewalls are changed: role fabric comes after them."""
    failed = preflight_of(tmp_path / "x.json", {**RECORDED["n2"], "networks": networks_of("n2")}, asked)
    assert failed["failed"] is True and failed["msg"].startswith("1 error: TF-FABRIC-ASKED on n2; ")
    (finding,) = json.loads((tmp_path / "x.json").read_text())["findings"]
    assert finding["seen"].startswith(told)


def test_an_inventory_that_is_no_cluster_fails_preflight(tmp_path: Path) -> None:
    action = object.__new__(preflight.ActionModule)
    action._play_context = SimpleNamespace(become_pass=None)
    twice = {name: {"ansible_host": "192.0.2.11"} for name in ("n1", "n2")}
    variables = {"inventory_hostname": "n1", "hostvars": twice, "groups": {"head": ["n1"], "workers": ["n1", "n2"]}}
    answers = {name: {"facts": RECORDED[name], "clock": CLOCK} for name in twice}
    failed = action.act({"answers": answers, "report": str(tmp_path / "x.json")}, variables)
    assert failed["failed"] is True and "TF-INVENTORY" in failed["msg"]


# --- verify ---------------------------------------------------------------------------------------------------------


def outcome(tmp_path: Path, **failed: bool) -> verify_module.Outcome:
    """Return what came back of a machine alone; a run of each launcher, failed or not."""
    runs = [
        {
            "workload": "all_reduce_bench",
            "launcher": name,
            "backend": "gloo",
            "failed": lost,
            "msg": "x",
            "run_dir": str(tmp_path / name),
            "in_image": False,
        }
        for name, lost in failed.items()
    ]
    for run in runs:
        Path(run["run_dir"]).mkdir()
    trial = trial_module.Trial(("n1",), (), "", {}, ())
    return verify_module.Outcome({"n1": Answer(RECORDED["n1"])}, {}, [], {}, runs, trial, compare({}, ["n1"]))


def test_an_all_reduce_that_fails_fails_verify_and_keeps_its_run(tmp_path: Path) -> None:
    action = object.__new__(verify.ActionModule)
    found = action.judge(outcome(tmp_path, openmpi=True, torchrun=False), str(tmp_path / "x.json"), [])
    assert found["failed"] is True and found["msg"].startswith("1 error: TF-VERIFY-RUN; report: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["openmpi", "x.json"]  # the good one is in the report
    assert json.loads((tmp_path / "x.json").read_text())["ok"] is False
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == 0o600


def test_what_verify_is_to_ignore_is_something_that_it_finds(tmp_path: Path) -> None:
    action = object.__new__(verify.ActionModule)
    found = action.judge(outcome(tmp_path, openmpi=True), str(tmp_path / "x.json"), ["TF-VERIFY-RUN"])
    assert found["failed"] is False
    with pytest.raises(InputError, match=r"verify_ignore: got .*TF-VERIFY-RUNS.*TF-VERIFY-RUN"):
        action.judge(outcome(tmp_path, torchrun=True), str(tmp_path / "x.json"), ["TF-VERIFY-RUNS"])


# --- nodes ----------------------------------------------------------------------------------------------------------


def asking(kind: Any, execute: Callable[..., Any], command: Callable[[str], Any] = lambda _words: {}) -> Any:
    """Return an action whose module and commands on the node do this."""
    action = object.__new__(kind.ActionModule)
    action._task = SimpleNamespace(args={}, delegate_to=None)
    action._execute_module, action._low_level_execute_command = execute, command
    return action


def unreachable(*_given: Any, **_more: Any) -> Any:
    raise AnsibleConnectionFailure("ssh: connect to host 192.0.2.12 port 22: Connection refused")


def test_a_node_that_cannot_be_reached_is_an_answer() -> None:
    """As a failed task it would end the play, and nobody would hear of the other nodes."""
    found = asking(node_facts, unreachable, unreachable).act({}, {"inventory_hostname": "n2"})
    assert found == {"problem": "ssh: connect to host 192.0.2.12 port 22: Connection refused"}


@pytest.mark.parametrize(("times", "found"), [(3, "facts"), (99, "problem")])
@pytest.mark.parametrize("says", ["kex_exchange_identification: Connection closed by remote host", "Data was not sent"])
def test_a_node_whose_sshd_hangs_up_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, says: str, times: int, found: str
) -> None:
    """Among many first contacts sshd drops some (MaxStartups), and so does a bastion before it."""
    monkeypatch.setattr(node_facts.random, "uniform", lambda _least, _most: 0.0)
    monkeypatch.setattr(node_facts, "checked", lambda _variables, answer: answer)
    left = [times]

    def crowded(*_given: Any, **_more: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise AnsibleConnectionFailure(says)
        return {"facts": {}, "stdout": "1.5"}

    assert found in asking(node_facts, crowded, crowded).act({}, {"inventory_hostname": "n2"})


def test_a_node_that_cannot_be_believed_is_an_answer_too() -> None:
    action = asking(node_facts, lambda **_given: {"facts": {"system": "evil"}}, lambda _words: {"stdout": "1.5"})
    assert action.act({}, {"inventory_hostname": "n2"})["failure"].startswith('answer of n2: got "facts, ')
    action = asking(node_facts, lambda **_given: {"msg": "no room", "module_stderr": "x"})
    assert action.act({}, {"inventory_hostname": "n2"}) == {"failure": "no room\nx"}


def test_gpus_are_believed_in_their_form_only() -> None:
    honest = RECORDED["n1"]["accelerators"]
    action = asking(accelerator_facts, lambda **_given: {"facts": honest, "ansible_facts": {"ansible_host": "x"}})
    assert action.act({}, {"inventory_hostname": "n1"}) == {"changed": False, "facts": honest}
    action = asking(accelerator_facts, lambda **_given: {"facts": {**honest, "usable": {"evil": 1}}})
    with pytest.raises(InputError, match="answer of n1"):
        action.act({}, {"inventory_hostname": "n1"})


def test_a_run_may_fill_half_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1001))
    assert run_directory.room_for(tmp_path) == 500


@pytest.mark.parametrize(("room", "limit"), [(7, 7), (100, 10)])
def test_no_node_fills_the_disk_with_a_run_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, limit: int
) -> None:
    asked: list[int] = []

    class Session:
        def __init__(self, *_given: Any) -> None: ...

        def __enter__(self) -> Session:
            return self

        def __exit__(self, *_given: Any) -> None: ...

        def fetch(self, _job_id: str, _run_dir: Path, _placement: Any, most: int, artifacts: Any) -> list[str]:
            asked.append(most)
            assert artifacts.limits.bytes == room // 2  # of all nodes: half of what the other files may take
            return []

    monkeypatch.setattr(gather, "Session", Session)
    monkeypatch.setattr(gather, "place_for", lambda _run, _given: (tmp_path / "one", None))
    for module in (gather, brought_home):
        monkeypatch.setattr(module, "room_for", lambda _run_dir: room)
    action = object.__new__(gather.ActionModule)
    action.limit, action.head, action.ssh = 10, SimpleNamespace(name="n1"), ()
    action._task = SimpleNamespace(check_mode=False)
    assert action.bring({"job_id": "one", "state": "lost"}, {}) == ""
    assert asked == [limit] and stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o700


def jobs_of(run_dir: Path, fetch: Callable[..., list[str]]) -> tuple[Any, Any]:
    """Return the action, for a run that was planned here, and a session whose head sends what `fetch` says."""
    run_dir.mkdir()
    place = {"rank": 0, "host": "n1"}
    (run_dir / "plan.json").write_text(json.dumps({"job_id": run_dir.name, "placement": [place]}))
    action: Any = object.__new__(jobs.ActionModule)
    action.given = {"do": "logs", "runs_dir": str(run_dir.parent)}
    action.limit, action.shown, action.head = 10, (0,), SimpleNamespace(name="n1")
    return action, SimpleNamespace(fetch=fetch, jobs=lambda _controller: [])


def test_a_run_that_is_home_is_not_written_over(tmp_path: Path) -> None:
    """Reproduced before: the head could send other files, and other results, of a job that was fetched long ago."""

    def fetch(*_given: Any, **_more: Any) -> list[str]:
        raise AssertionError("it asked for files")

    action, session = jobs_of(tmp_path / "one", fetch)
    (tmp_path / "one" / "fetched.json").write_text('{"missing": []}')
    assert action.bring(session, SimpleNamespace(insisted=lambda: False), "one") == (str(tmp_path / "one"), [])
    assert action.logs(session, "one")["warnings"] == []


def test_a_run_that_cannot_be_written_is_a_failure_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: a full disk was a traceback."""

    def fetch(*_given: Any, **_more: Any) -> list[str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    action, session = jobs_of(tmp_path / "one", fetch)
    given = {"do": "logs", "job_id": "one", "runs_dir": str(tmp_path), "fetch_limit": "1G", "show_ranks": [0]}
    monkeypatch.setattr(jobs, "cluster_from_hostvars", lambda *_given: SimpleNamespace(head=action.head))
    monkeypatch.setattr(jobs, "ssh_words", lambda *_given: ())
    monkeypatch.setattr(jobs, "Session", lambda *_given: contextlib.nullcontext(session))
    action._connection = None
    answer = action.act({**given, "result_query": None}, {"groups": {}, "hostvars": {}})
    assert answer["failed"] and answer["msg"].startswith(f"the run could not be written to {tmp_path}/one (disk full)")


def test_a_list_of_attempts_that_cannot_be_written_hides_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reproduced before: a disk that was full after the job was a traceback, and its outcome was not told."""

    def full(*_given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[str] = []
    monkeypatch.setattr(launch, "note_attempts", full)
    monkeypatch.setattr(launch, "check_cluster", lambda _cluster: None)
    monkeypatch.setattr(launch, "with_containers", lambda cluster, _request: cluster)
    monkeypatch.setattr(launch, "display", SimpleNamespace(warning=said.append, display=said.append))
    action = object.__new__(launch.ActionModule)
    answer = {"state": "succeeded", "run_dir": str(tmp_path)}
    action.outcome = {"state": "succeeded", "first_failure": None, "metrics": {}, "seconds": 1.0}
    monkeypatch.setattr(action, "launch", lambda *_given: answer)
    assert action.run_job(parse_request({"max_restarts": 1}), None) == {**answer, "attempts": 1}
    assert said == [f"{tmp_path}/attempts.json cannot be written: No space left on device"]


@pytest.mark.parametrize("passes", [True, False])
def test_a_node_that_does_not_answer_is_waited_for_before_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """One that failed twice is not: the job ends with what became of its last attempt, and why it is the last."""
    said: list[str] = []
    monkeypatch.setattr(launch, "check_cluster", lambda _cluster: None)
    monkeypatch.setattr(launch, "with_containers", lambda cluster, _request: cluster)
    monkeypatch.setattr(launch, "display", SimpleNamespace(warning=said.append, display=said.append))
    monkeypatch.setattr(launch, "rest", lambda seconds: said.append(f"rest {seconds:g}"))
    action = object.__new__(launch.ActionModule)
    lost = {"failed": True, "state": "lost", "run_dir": str(tmp_path), "msg": "job j lost: n2"}
    placement = [{"host": "n1"}, {"host": "n2"}]
    failure = {"rank": None, "host": "n2", "message": ""}
    given = {"first_failure": failure, "placement": placement, "metrics": {}, "seconds": 1.0, "ranks": [], "rc": 1}
    absent = launch.NoStandIn("n2", "n2 is not reached", passes)
    answers: Any = [lost, absent, absent, {"state": "succeeded", "run_dir": str(tmp_path)}]

    def answer(*_given: Any) -> Any:
        found = answers.pop(0)
        if isinstance(found, launch.NoStandIn):
            raise found
        action.outcome = {**given, "state": found["state"]}
        return found

    monkeypatch.setattr(action, "launch", answer)
    played = action.run_job(parse_request({"max_restarts": 3, "job_id": "j"}), None)
    begin = ["job j lost: restart 1 of at most 3", "rest 1"]
    waits = 'job j-r1 waits for 10 min at most: nodes: got "n2"; n2 is not reached'
    if passes:
        assert played["state"] == "succeeded" and said == [*begin, waits, "rest 5", "rest 5"]
    else:
        last = 'job j lost: n2; it was not started again: nodes: got "n2"; n2 is not reached'
        assert played == {**lost, "msg": last, "attempts": 1} and said == begin


# --- what is known already --------------------------------------------------------------------------------------------


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that runs an action, which must not ask the node."""

    def run(module: Any, **given: Any) -> dict[str, Any]:
        action = object.__new__(module.ActionModule)
        monkeypatch.setattr(action, "answer", lambda *_given: pytest.fail("the node was asked"), raising=False)
        done: dict[str, Any] = action.act(given, {"inventory_hostname": "n1"})
        return done

    return run


def test_a_node_is_not_asked_for_what_preflight_has_read(unasked: Callable[..., dict[str, Any]]) -> None:
    facts, constraints = RECORDED["n1"], {"nic": "eth0", "address": ""}
    gpus = unasked(accelerator_facts, known=facts["accelerators"])
    assert gpus == {"changed": False, "facts": facts["accelerators"]}
    seat = {"home": "/h", "cores": 2, "accelerators": {"nvidia": 0, "amd": 0}, "fabric": None}
    assert unasked(stage, role=[], known=seat) == {"changed": False, "facts": seat}
    recalled = unasked(fabric_probe, state="recall", name="n1", known={"nics": []}, constraints=constraints)
    assert recalled == {"changed": False, "facts": {"nics": []}, "constraints": constraints}
    assert unasked(fabric_probe, state="recall", name="n1", known={})["facts"] == {}


@pytest.mark.parametrize(("module", "known"), [(accelerator_facts, {"gpus": 7}), (stage, {"home": "not absolute"})])
def test_what_is_known_is_checked_too(
    unasked: Callable[..., dict[str, Any]], module: Any, known: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="n1"):
        unasked(module, known=known)


def test_a_node_is_not_asked_where_there_is_nothing_to_write(unasked: Callable[..., dict[str, Any]]) -> None:
    assert unasked(publish, directory="/h", files={}) == {"changed": False, "files": []}


# --- the SSH mesh ---------------------------------------------------------------------------------------------------


def member(**changed: Any) -> Any:
    found = {
        **{"name": "n1", "address": "192.0.2.1", "port": 22, "sshd": "system", "become": False, "client": True},
        **{"user": "fleet", "directory": "/home/fleet/.torchfleet/ssh", "key": KEY, "host_keys": [KEY]},
        **{"addresses": ["192.0.2.1"], "authorized_keys": "/home/fleet/.ssh/authorized_keys"},
    }
    return member_from({**found, **changed}, {})


def planned(place: Path, *members: Any, **changed: Any) -> dict[str, Any]:
    given = {
        **{"directory": str(place), "cluster": "mine", "state": "present", "trust": "keys", "any_to_any": False},
        **{"extra_sources": [], "valid_days": 365, "accept_changed": [], "rotate": False, "former": ""},
        **{"shut_out": [], "inventory": ""},
    }
    names = changed.pop("names", ["n1"])
    return ssh_mesh_plan.plan({**given, **changed}, members, names, dry_run=False)


def test_no_mesh_is_made_over_a_changed_host_key(tmp_path: Path) -> None:
    assert planned(tmp_path / "ca", member())["open"] == ["n1"]
    other = member(host_keys=[f"{KEY[:-4]}AAAA"])
    with pytest.raises(Refused, match="the host key of n1 changed since the last setup"):
        planned(tmp_path / "ca", other)
    with pytest.raises(Refused, match="the host key of n1 changed"):  # it is not what is known now
        planned(tmp_path / "ca", other)
    planned(tmp_path / "ca", other, accept_changed=["n1"])
    planned(tmp_path / "ca", other)
    assert json.loads((tmp_path / "ca" / "nodes.json").read_text())["revoked"] == {KEY: "n1"}
    with pytest.raises(Refused, match="the host key of n1 changed"):  # the old machine is not taken for the new one
        planned(tmp_path / "ca", member())


def test_the_others_revoke_the_key_of_a_node_that_left(tmp_path: Path) -> None:
    """However it left: with remove.yml, whether it answered or not, or out of the inventory."""
    key = f"{KEY[:-4]}AAAA"
    other = member(name="n2", address="192.0.2.2", addresses=["192.0.2.2"], client=False, host_keys=[key])
    known_hosts = "/home/fleet/.torchfleet/ssh/known_hosts"
    for leaves in ("absent", "unheard"):
        place = tmp_path / leaves
        (step,) = planned(place, member(), other)["nodes"]["n1"]["steps"]
        assert "@revoked" not in step["files"][known_hosts]
        if leaves == "absent":
            planned(place, other, state="absent")
        (step,) = planned(place, member())["nodes"]["n1"]["steps"]
        assert f"\n@revoked * {key}\n" in step["files"][known_hosts]
        assert "n2" not in step["files"][known_hosts]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_machine_that_was_shut_out_comes_back_by_replace_alone(tmp_path: Path, forgotten: bool) -> None:
    """Whatever its name is then; also if the others had forgotten it before. A removed one is let in as a new one."""
    key = f"{KEY[:-4]}AAAA"
    there = {"address": "192.0.2.2", "addresses": ["192.0.2.2"], "client": False, "host_keys": [key]}
    planned(tmp_path, member(), member(name="n2", **there))
    if forgotten:
        planned(tmp_path, member())
    planned(tmp_path, member(), shut_out=["n2"])
    planned(tmp_path, member())
    for name in ("n2", "n3"):
        says = rf"{name} was shut out \(host key .*\): .* if it is safe again, add -e replace={name}"
        with pytest.raises(Refused, match=says):
            planned(tmp_path, member(), member(name=name, **there))
    lies = {**there, "host_keys": [f"{KEY[:-4]}BBBB"]}  # a hostile machine may tell new keys, and have both
    with pytest.raises(Refused, match=r"n2 was shut out \(by this name; its host key is another one now\): "):
        planned(tmp_path, member(), member(name="n2", **lies))
    names = ["n1", "n2"]
    planned(tmp_path, member(), member(name="n2", **there), names=names, accept_changed=["n2"])
    planned(tmp_path, member(), member(name="n2", **there), names=names)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_machine_does_not_keep_a_certificate_for_a_name_that_another_one_has(tmp_path: Path, at_once: bool) -> None:
    """It had that name before, and its key is not revoked, for it is a node. A renewal changes nothing of this."""
    keys = [KEY, f"{KEY[:-4]}AAAA", f"{KEY[:-4]}BBBB"]
    first, second, third = (
        {"address": f"192.0.2.{n}", "addresses": [f"192.0.2.{n}"], "become": True, "host_keys": [key], "key": KEY}
        for n, key in enumerate(keys, 1)
    )
    given: dict[str, Any] = {"trust": "certificates", "names": ["n1"]}
    head = member(**first)
    planned(tmp_path, head, member(name="n2", **{**second, "client": False}), **given)
    renamed = member(name="n7", **{**second, "client": False})
    if not at_once:
        planned(tmp_path, head, renamed, **given)
        planned(tmp_path, head, renamed, **given)
    new = member(name="n2", **{**third, "client": False})
    given["names"] = ["n1", "n2", "n7"]
    accepted: dict[str, Any] = {"accept_changed": ["n2"]} if at_once else {}
    says = (
        r"n7 was called n2 before, has a certificate for that name until \d{4}-\d\d-\d\d, and could pose .*_rotate=true"
    )
    with pytest.raises(Refused, match=says):
        planned(tmp_path, head, renamed, new, **given, **accepted)
    planned(tmp_path, head, renamed, new, **{**given, "trust": "keys"}, **accepted)  # where none is believed
    with pytest.raises(Refused, match=says):
        planned(tmp_path, head, renamed, new, **given)
    planned(tmp_path, head, renamed, new, **given, rotate=True)
    planned(tmp_path, head, renamed, new, **given)


def test_a_mesh_is_taken_away_with_what_root_wrote_for_it(tmp_path: Path) -> None:
    """Else it would stay in force: sshd would go on to trust an authority that nobody has any more."""
    planned(tmp_path / "ca", member())
    left = member(root_files=["/etc/ssh/torchfleet-mine"])
    done = planned(tmp_path / "ca", left, state="absent")
    assert [step["by"] for step in done["nodes"]["n1"]["steps"]] == ["root", "user"]
    assert not (tmp_path / "ca").exists()


def test_a_cluster_that_gets_a_name_loses_the_mesh_of_its_old_one_first(tmp_path: Path) -> None:
    """Else its nodes would go on to trust the old authorities for ever."""
    planned(tmp_path / "by-path", member(), cluster="by-path")
    former = {"former": str(tmp_path / "by-path")}
    with pytest.raises(Refused, match=r"called by-path, .* -e ssh_mesh_state=absent -e ssh_mesh_cluster=by-path"):
        planned(tmp_path / "ca", member(), **former)
    planned(tmp_path / "by-path", member(), cluster="by-path", state="absent")
    planned(tmp_path / "ca", member(), **former)


def test_the_drop_in_of_another_clusters_old_setup_is_refused(tmp_path: Path) -> None:
    """sshd takes the first authority for a user: ours would be hidden."""
    theirs = ["/etc/ssh/sshd_config.d/40-torchfleet-theirs.conf"]
    says = r"n1: .*40-torchfleet-theirs.conf is of another cluster, set up by an older torchfleet, .* run setup.yml"
    with pytest.raises(Refused, match=says):
        planned(tmp_path / "ca", member(others=theirs, become=True), trust="certificates")
    planned(tmp_path / "ca", member(others=theirs), trust="certificates")


# --- firewall -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noted", "asked"), [(True, ["look", None]), (False, ["look"])])
def test_nobody_becomes_root_to_remove_rules_that_were_never_added(
    monkeypatch: pytest.MonkeyPatch, noted: bool, asked: list[str | None]
) -> None:
    """remove.yml must not fail on a node where nobody can become root."""
    action, parts = object.__new__(firewall.ActionModule), list[str | None]()
    action._task = SimpleNamespace(args={"state": "absent"})

    def answer(_self: Any, _variables: Any, options: Any = None) -> dict[str, Any]:
        parts.append((options or {}).get("part"))
        return {"changed": False, "noted": noted}

    monkeypatch.setattr(firewall.ActionModule, "answer", answer)
    monkeypatch.setattr(firewall.ActionModule, "without_root", lambda _self: contextlib.nullcontext())
    action.act({"state": "absent"}, {})
    assert parts == asked
    parts.clear()
    action.act({}, {})  # as role firewall writes it
    assert parts == [None]


@pytest.mark.parametrize("rdma", ["mlx5_0", ["mlx5_0"]])
def test_the_plan_of_the_firewalls_knows_what_the_choice_rests_on(rdma: Any) -> None:
    asked = {"nic": "eth1", "address": "", "rdma": ["mlx5_0"]}
    assert hostvars_module.asked_of_fabric({"fabric_nic": "eth1", "fabric_rdma": rdma}) == asked
    assert hostvars_module.asked_of_fabric({}) == {"nic": "", "address": "", "rdma": []}
