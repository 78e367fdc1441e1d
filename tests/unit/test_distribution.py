"""What is to be typed is a command of the machine's own distribution, in every mend that names one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare, drift_findings
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_no_answer import explain_no_answer
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_one_node import OPEN_BY_HAND
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_rules import RULES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer, Limits, Target
from tests.unit.recorded_nodes import judged, only, two_nodes

TOOLS = {"debian": "apt-get", "ubuntu": "apt-get", "rocky": "dnf", "opensuse-leap": "zypper", "arch": "pacman"}
MANAGERS = {"apt-get", "apt-mark", "apt", "dnf", "yum", "zypper", "pacman"}


def managers_in(text: str) -> set[str]:
    return MANAGERS & set(re.findall(r"[\w-]+", text))


@pytest.mark.parametrize(("os", "manager"), TOOLS.items())
@pytest.mark.parametrize("what", distribution.PACKAGES)
def test_each_distribution_has_its_command(os: str, manager: str, what: str) -> None:
    assert managers_in(distribution.install(what, os)) == {manager}
    assert managers_in(distribution.install(what, "slackware")) == {"apt-get", "dnf", "zypper"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('ID=debian\nVERSION_ID="12"\n', "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "rocky"),
        ('ID=zorin\nID_LIKE="ubuntu debian"\n', "ubuntu"),
        ("ID=alpine\n", "alpine"),
        ("", ""),
    ],
)
def test_the_distribution_of_a_machine(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "os-release").write_text(text)
    assert distribution.here(str(tmp_path / "os-release")) == says
    assert distribution.here(str(tmp_path / "none")) == ""


def on(os: str, **changed: Any) -> dict[str, Any]:
    """Return the answers of two nodes of a distribution, the second of which has something changed."""
    answers = two_nodes(**changed)
    return {
        name: Answer({**answer.facts, "system": {**answer.facts["system"], "os": os}}, answer.clock)
        for name, answer in answers.items()
        if answer.facts
    }


def about(name: str, os: str, **changed: Any) -> str:
    """Return the mend of the only finding of that id."""
    (finding,) = [each for each in judged(on(os, **changed)) if each.id == name]
    return finding.mend


@pytest.mark.parametrize(
    ("os", "says"),
    [
        ("debian", "systemctl reload ssh"),
        ("ubuntu", "systemctl reload ssh"),
        ("rocky", "systemctl reload sshd"),
        ("opensuse-leap", "systemctl reload sshd"),
        ("slackware", "systemctl reload sshd || systemctl reload ssh"),
    ],
)
def test_a_mend_about_sshd_names_the_service(os: str, says: str) -> None:
    assert about("TF-MAXSTARTUPS", os, sshd__max_startups="1:30:60").endswith(f"then {says}")


@pytest.mark.parametrize(
    ("os", "says"),
    [
        ("ubuntu", "apt-mark hold nvidia-open (on older GPUs cuda-drivers)"),
        ("rocky", "dnf versionlock add nvidia-open"),
        ("opensuse-leap", "zypper addlock nvidia-open"),
    ],
)
def test_a_mend_about_a_driver_names_what_holds_it(os: str, says: str) -> None:
    """With the package that role cuda has installed."""
    versions = {"versions__driver": "nvidia 580.65.06", "versions__driver_library": "575.57.08"}
    assert says in about("TF-NVIDIA-MISMATCH", os, **versions)
    values = {"os": f"{os} 1", "driver": "nvidia 1"}
    drift = compare({"n1": values, "n2": {**values, "driver": "nvidia 2"}}, ["n1", "n2"])
    (finding,) = [each for each in drift_findings(drift) if each.id == "TF-DRIFT-DRIVER"]
    assert says in finding.mend


@pytest.mark.parametrize(
    ("os", "severity"), [("debian", "info"), ("rocky", "info"), ("almalinux", "info"), ("opensuse-leap", "error")]
)
def test_a_machine_without_apt_and_dnf_is_told_how_to_have_a_compiler(os: str, severity: str) -> None:
    """Also where root is there: the roles install packages of Debian, RHEL and their like alone."""
    answers = {"n2": on(os, user__sudo="yes", compiler=False)["n2"]}
    target = Target("n2", "192.0.2.12", user="fleet", head=True, slots=2)
    found = judged(answers, Limits(compiles=True, supported_os=(os,)), (target,))
    finding = only([each for each in found if each.id == "TF-NO-COMPILER"])
    assert finding.severity == severity
    if severity == "error":
        assert finding.seen.endswith("torchfleet installs it only with apt-get and dnf")
        assert managers_in(finding.mend) == {TOOLS[os]} and "gcc-c++ python3-devel" in finding.mend


def test_a_machine_that_nothing_is_known_of_is_told_every_way() -> None:
    mend = explain_no_answer(Target("n2", "192.0.2.12"), Answer(failure="/bin/sh: python3: not found")).mend
    assert managers_in(mend) == {"apt-get", "dnf", "zypper"} and " || " in mend


def test_no_mend_names_a_command_of_one_distribution() -> None:
    """Those go through the table."""
    said = {name: managers_in(rule.mend) for name, rule in RULES.items()}
    assert {name: names for name, names in said.items() if names} == {}
    assert [name for name, rule in RULES.items() if re.search(r"systemctl \w+ sshd?\b", rule.mend)] == []


def test_a_firewall_is_opened_for_good() -> None:
    assert "firewall-cmd --permanent --zone=trusted --add-source=ADDRESS" in OPEN_BY_HAND["firewalld"]
    assert "firewall-cmd --reload" in OPEN_BY_HAND["firewalld"]
