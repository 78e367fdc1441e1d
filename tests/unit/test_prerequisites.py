"""Role prerequisites: what a node lacks, what is done about it, and what becomes of it where nobody can become root."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import prerequisites as action
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import prerequisites as facts
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import limits_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import prerequisites as doing
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh import logins
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.files import MeshFailed
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import prerequisites as plan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.clock import Clock
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Case, Limits, Target
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit.file_tree import tree
from tests.unit.recorded_nodes import RECORDED, judged, two_nodes

AUTO = plan.parse_switches({})
RDMA = ("libibverbs1", "ibverbs-providers", "rdma-core")
MELLANOX: dict[str, Any] = {"rdma": ["mlx5_0"]}


def case(count: int = 2, offset: float = 0.0, head: bool = False, **changed: Any) -> Case:
    """Return a recorded node with parts changed: limits__nofile=4096."""
    known = copy.deepcopy(RECORDED["n2"])
    for path, value in changed.items():
        *inner, last = path.split("__")
        place = known
        for name in inner:
            place = place[name]
        place[last] = value
    return Case(Target("n2", "192.0.2.12", head=head), known, Clock(offset, 0.01), Limits(), count)


# --- what is to be done ----------------------------------------------------------------------------------------------


def test_a_node_that_lacks_nothing_is_left_alone() -> None:
    assert plan.work_on(case(), AUTO) == plan.Work()
    assert plan.work_on(case(), dict.fromkeys(plan.SWITCHES, "false")) == plan.Work()


@pytest.mark.parametrize(
    ("changed", "summary"),
    [
        (MELLANOX, f"install {', '.join(RDMA)}; set the limits memlock=unlimited"),
        ({**MELLANOX, "limits__memlock": None}, f"install {', '.join(RDMA)}"),
        ({"limits__nofile": 4096}, "set the limits nofile=65536"),
        ({"limits__nofile": 4096, "prerequisites__limits": {"memlock": "unlimited"}}, "memlock=unlimited nofile=65536"),
        ({"limits__nofile": 4096, "prerequisites__limits": {"nofile": "65536"}}, ""),  # a session from before
        ({"limits__nproc": 100}, "set the limits nproc=32768"),
        ({"limits__nproc": 100, "user__uid": 0}, ""),
        ({"count": 64, "sshd__max_startups": "10:30:100"}, "set MaxStartups 64:30:128 of sshd"),
        ({"count": 64, "sshd__max_startups": ""}, ""),
        ({"count": 64, "sshd__max_startups": "10:30:100", "prerequisites__logins": "64:30:128"}, ""),
        ({"offset": 60.0}, "install chrony; turn on chrony.service"),
        (
            {"offset": 60.0, "prerequisites__time_service__installed": "systemd-timesyncd"},
            "systemd-timesyncd.service",
        ),
        ({"offset": 60.0, "prerequisites__time_service__runs": "chrony"}, ""),
        ({"head": True, "ssh": "", "prerequisites__missing__ssh_client": ["openssh-client"]}, "install openssh-client"),
        ({"ssh": "", "prerequisites__missing__ssh_client": ["openssh-client"]}, ""),
    ],
)
def test_what_is_missing_is_mended(changed: dict[str, Any], summary: str) -> None:
    node = case(**changed)
    found = plan.work_on(node, AUTO)
    assert found.summary.endswith(summary)
    assert found.is_empty == (summary == "")
    assert plan.work_on(node, dict.fromkeys(plan.SWITCHES, "false")).is_empty


def test_a_switch_that_is_true_needs_no_finding_and_is_required() -> None:
    found = plan.work_on(case(), {**AUTO, "rdma": "true", "clock": "true", "limits": "true"})
    assert found.packages == (*RDMA, "chrony")
    assert found.limits == {"memlock": "unlimited"}
    assert found.required == ("rdma", "limits", "clock")


def test_a_limit_is_never_lowered() -> None:
    found = plan.work_on(case(limits__memlock=None, limits__nofile=1 << 19), {**AUTO, "limits": "true"})
    assert found.is_empty


def test_a_time_service_is_called_as_the_distribution_calls_it() -> None:
    node = case(offset=60.0, prerequisites__manager="dnf")
    assert plan.work_on(node, AUTO).order(node)["time_unit"] == "chronyd"
    nothing = case(offset=60.0, prerequisites__manager="", prerequisites__missing__clock=[])
    assert plan.work_on(nothing, AUTO).is_empty


def test_another_value_is_refused() -> None:
    with pytest.raises(InputError, match='prerequisites_rdma: got "maybe"; give one of auto, true, false'):
        plan.parse_switches({"rdma": "maybe"})
    assert plan.parse_switches({"rdma": True})["rdma"] == "true"


# --- what preflight says of it ----------------------------------------------------------------------------------------

SWITCHED = Limits(prerequisites=AUTO)


@pytest.mark.parametrize(
    ("sudo", "severity", "fix"),
    [
        ("yes", "info", "setup.yml does this as root (role prerequisites)"),
        ("not tried", "info", "where nobody can become root: as root, in /etc/security"),
        ("no", "warning", "as root, in /etc/security"),
        ("missing", "warning", "as root, in /etc/security"),
    ],
)
def test_what_setup_mends_is_an_info(sudo: str, severity: str, fix: str) -> None:
    answers = two_nodes(limits__nofile=4096, user__sudo=sudo)
    (finding,) = judged(answers, SWITCHED)
    assert (finding.id, finding.severity) == ("TF-NOFILE", severity)
    assert fix in finding.mend
    (finding,) = judged(answers)
    assert finding.severity == "warning", "without the role"


def test_a_wrong_clock_is_no_error_where_setup_mends_it() -> None:
    answers = two_nodes(user__sudo="yes", prerequisites__missing__clock=["chrony"])
    answers["n2"] = type(answers["n2"])(answers["n2"].facts, Clock(60.0, 0.01))
    assert [finding.severity for finding in judged(answers, SWITCHED)] == ["info"]
    assert [finding.severity for finding in judged(answers)] == ["error"]


def test_libraries_that_rdma_lacks_are_a_finding() -> None:
    findings = judged(two_nodes(rdma=["mlx5_0"], limits__memlock=None))
    assert [(finding.id, finding.severity) for finding in findings] == [("TF-RDMA-LIBRARIES", "warning")]
    assert findings[0].mend == "as root: apt-get install -y libibverbs1 ibverbs-providers rdma-core"


# --- facts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", facts.GROUPS)
def test_a_time_service_is_seen_by_its_control_group(tmp_path: Path, group: str) -> None:
    assert facts.running_time_service(str(tmp_path)) == ""
    (tmp_path / group / "chronyd.service").mkdir(parents=True)
    assert facts.running_time_service(str(tmp_path)) == "chronyd"


def test_a_time_service_that_is_masked_is_not_turned_on(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"usr/lib/systemd/system/systemd-timesyncd.service": "[Unit]"})
    assert facts.installed_time_service(root) == "systemd-timesyncd"
    masked = tmp_path / "etc/systemd/system/systemd-timesyncd.service"
    masked.parent.mkdir(parents=True)
    masked.symlink_to("/dev/null")
    assert facts.installed_time_service(root) == ""


@pytest.mark.parametrize(
    ("there", "family", "manager"),
    [
        (["apt-get", "dnf"], "rpm", "dnf"),  # EPEL has apt, and Debian dnf
        (["apt-get", "dnf"], "deb", "apt-get"),
        (["dnf"], "", "dnf"),
        (["apt-get"], "rpm", "apt-get"),
        ([], "rpm", ""),
    ],
)
def test_packages_are_installed_by_the_manager_of_the_distribution(
    monkeypatch: pytest.MonkeyPatch, there: list[str], family: str, manager: str
) -> None:
    monkeypatch.setattr(facts, "program", lambda name: f"/usr/bin/{name}" if name in there else "")
    assert facts.manager_of(family) == manager


@pytest.mark.parametrize("manager", ["apt-get", "dnf"])
def test_packages_are_looked_for_with_one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    program = tmp_path / {"apt-get": "dpkg-query", "dnf": "rpm"}[manager]
    program.write_text("#!/bin/sh\necho 'rdma-core installed'\necho 'chrony config-files'\necho none >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert facts.installed(["rdma-core", "chrony", "other"], manager) == {"rdma-core"}


def test_our_files_are_read_as_they_were_written() -> None:
    limits = {"memlock": "unlimited", "nofile": "65536"}
    text = limits_file.limits_text(limits)
    assert limits_file.limits_in(text) == limits
    assert "root - nofile 65536\n" in text  # which `*` does not mean
    assert facts.logins_in(facts.logins_text("64:30:128")) == "64:30:128"


# --- doing ------------------------------------------------------------------------------------------------------------


def test_a_limit_is_written_for_everybody_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "limits.d/torchfleet.conf"
    monkeypatch.setattr(doing, "LIMITS_FILE", str(path))
    assert doing.write_limits({}) == [] and not path.exists()
    assert doing.write_limits({"nproc": "32768"}) == [f"{path} written"]
    assert (path.read_text().splitlines()[1:], path.stat().st_mode & 0o777) == (
        ["* - nproc 32768", "root - nproc 32768"],
        0o644,
    )


def test_packages_that_cannot_be_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_names: Any) -> None:
        raise doing.PackageError("no such package")

    monkeypatch.setattr(doing.dnf, "install_packages", fail)
    with pytest.raises(doing.NotDone, match="rdma-core could not be installed: no such package"):
        doing.install_packages("dnf", ["rdma-core"])


def test_a_clock_that_stays_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([("disabled", "inactive"), ("enabled", "active"), *[("enabled", "inactive")] * 2])
    said = {"systemctl": (0, ""), "chronyc": (1, "timed out")}
    monkeypatch.setattr(doing, "run", lambda *argv: said[argv[0]])
    monkeypatch.setattr(doing, "state_of", lambda _unit: next(states))
    assert doing.turn_on("", wait=True) == []
    assert doing.turn_on("chrony", wait=False) == ["chrony.service turned on"]
    assert doing.turn_on("chrony", wait=False) == []
    monkeypatch.setattr(doing, "state_of", lambda _unit: ("", ""))
    with pytest.raises(doing.NotDone, match="has not set the clock"):
        doing.turn_on("chrony", wait=True)


def test_logins_that_another_file_sets_first_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00-logins.conf"
    monkeypatch.setattr(logins, "LOGINS_FILE", str(path))
    monkeypatch.setattr(logins, "require_include", lambda *_words: None)
    monkeypatch.setattr(logins, "drop_in_refusal", lambda _path: "")
    monkeypatch.setattr(logins, "reload_system", lambda *_words, **_more: [])
    monkeypatch.setattr(logins, "sshd_max_startups", lambda _sudo: {"max_startups": "64:30:128"})
    assert logins.accept_logins("64:30:128") == [f"{path} written"]
    assert logins.accept_logins("64:30:128") == []
    with pytest.raises(MeshFailed, match=r"MaxStartups stays 64:30:128, .* prerequisites_logins: false"):
        logins.accept_logins("99:30:198")
    assert not path.exists() or "99" not in path.read_text(), "what has no effect is not left behind"


# --- the action -------------------------------------------------------------------------------------------------------


class Node(action.ActionModule):
    """The action, on a node that answers as a test says."""

    def __init__(self, sudo: dict[str, Any], check: bool = False) -> None:
        self.sudo, self.orders, self.resets = sudo, list[dict[str, Any]](), 0
        self._connection = SimpleNamespace(reset=self.reset)
        self._task = SimpleNamespace(check_mode=check)
        self._play_context = SimpleNamespace(become_pass=None)

    def reset(self) -> None:
        self.resets += 1

    def answer(self, variables: dict[str, Any], options: dict[str, Any] | None = None) -> dict[str, Any]:
        self.orders.append((options or {})["work"])
        return {"changed": True, "changes": ["done"], "left": ""}

    def _low_level_execute_command(self, command: str) -> dict[str, Any]:
        return self.sudo

    def act_on(self, known: dict[str, Any], **switches: Any) -> dict[str, Any]:
        given = {"seen": {"facts": known, "clock": None}, "max_clock_offset": 5.0, **switches}
        names = {"inventory_hostname": "n2", "groups": {"head": ["n1"], "workers": ["n2"]}}
        return self.act(given, {**names, "ansible_play_hosts_all": ["n1", "n2"]})


LOW = case(limits__nofile=4096).facts
REFUSED = {"rc": 1, "stderr": "sudo: a password\nis required", "stdout": ""}


def test_where_nothing_is_missing_the_node_is_not_asked() -> None:
    node = Node({})
    assert node.act_on(RECORDED["n2"]) == {"changed": False, "changes": [], "left": ""}
    assert node.orders == []


def test_raised_limits_hold_for_the_next_task() -> None:
    node = Node({"rc": 0})
    assert node.act_on(LOW)["changes"] == ["done"]
    assert (node.orders[0]["limits"], node.resets) == ({"nofile": "65536"}, 1)


def test_check_mode_says_what_would_be_done() -> None:
    node = Node({"rc": 0}, check=True)
    found = node.act_on(LOW)
    assert (found["changed"], found["diff"]["prepared"]) == (True, "n2: set the limits nofile=65536\n")
    assert (node.orders, node.resets) == ([], 0)


def test_without_root_what_is_recommended_is_left_and_what_was_asked_for_fails() -> None:
    assert Node(REFUSED).act_on(LOW) == {"changed": False, "changes": [], "left": "set the limits nofile=65536"}
    found = Node(REFUSED).act_on(LOW, limits="true")
    assert found["failed"] and found["msg"] == (
        "prerequisites: n2: nobody can become root (sudo: a password is required): set the limits memlock=unlimited "
        "nofile=65536: have that done, or set prerequisites_limits: false"
    )
