"""Preflight: from recorded facts of real nodes, each changed in one thing, to exactly the finding about it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import findings as findings_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import preflight, preflight_input
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare, versions_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight import Answer, Clock, Limits, Target
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_rules import RULES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

REPO = Path(__file__).parents[2]
RECORDED = json.loads((Path(__file__).parent / "recorded/node_facts.json").read_text())
TARGETS = (
    Target("n1", "192.0.2.11", user="fleet", head=True, slots=2),
    Target("n2", "192.0.2.12", user="fleet", slots=2),
)
CLOCK = Clock(0.004, 0.008)
LIMITS = Limits()


def two_nodes(**changed: Any) -> dict[str, Answer]:
    """Return what the two recorded nodes answered, with parts of the second changed: home__free=0."""
    facts = copy.deepcopy(RECORDED["n2"])
    for path, value in changed.items():
        *inner, last = path.split("__")
        place = facts
        for name in inner:
            place = place[name]
        assert last in place, path
        place[last] = value
    return {"n1": Answer(RECORDED["n1"], CLOCK), "n2": Answer(facts, CLOCK)}


def judged(
    answers: dict[str, Answer], limits: Limits = LIMITS, targets: tuple[Target, ...] = TARGETS
) -> list[findings_module.Finding]:
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
    drift = compare({name: versions_of(fact, "") for name, fact in facts.items()}, list(facts))
    return list(findings_module.sort_out(preflight.judge(targets, answers, limits, drift)))


def only(findings: list[findings_module.Finding]) -> findings_module.Finding:
    """Return the only finding. Whatever it is, it can be shown, and every word of its mend is filled in."""
    assert len(findings) == 1, findings
    (finding,) = findings
    assert not set("{}") & set(finding.mend)
    assert max(len(line) for line in findings_module.render(findings)) <= 100
    return finding


def test_two_good_nodes_have_no_findings() -> None:
    assert judged(two_nodes()) == []


def test_one_machine_alone_has_no_findings() -> None:
    target = Target("localhost", "localhost", head=True, slots=2)
    assert judged({"localhost": Answer(RECORDED["localhost"], CLOCK)}, targets=(target,)) == []


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, ("n1", "n2")),
        ({"compiler": True}, ("n1", "n2")),
        ({"compiler": True, "python__headers": True}, ()),  # one of a kind builds for the others
        ({"user__sudo": "yes"}, ()),
        ({"backends": True}, ()),
        ({"compiler": True, "python__headers": True, "system__os_version": "13"}, ("n1",)),
    ],
)
def test_a_backend_that_nobody_of_a_kind_can_build(changed: dict[str, Any], names: tuple[str, ...]) -> None:
    answers = two_nodes(**{"user__sudo": "no", **changed})
    first = dict(answers["n1"].facts or {})
    answers["n1"] = Answer({**first, "user": {**first["user"], "sudo": "no"}}, CLOCK)
    findings = judged(answers, Limits(compiles=True))
    found = [finding for finding in findings if finding.id == "TF-NO-COMPILER"]
    assert tuple(name for finding in found for name in finding.nodes) == names
    if names:
        assert "Python.h; installing it needs root" in only(found).seen
    assert not [finding for finding in judged(answers) if finding.id == "TF-NO-COMPILER"]


H100 = {"id": "10de:2330", "vendor": "nvidia", "model": "", "driver": "nvidia"}
CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("TF-OS-UNSUPPORTED", {"system__kernel": "Darwin"}, "Darwin"),
    ("TF-DISK-HOME", {"home__free": 10**9}, "1.0 GB free in /home/fleet (overlay of overlay); needed: 3.0 GB"),
    ("TF-DISK-HOME", {"home__free": 0}, "0 MB free"),
    ("TF-DISK-HOME", {"home__free_inodes": 0}, "and no inodes"),
    ("TF-HOME-READONLY", {"home__read_only": True, "home__writable": False}, "is mounted read-only"),
    ("TF-HOME-READONLY", {"home__writable": False}, "fleet cannot write to /home/fleet"),
    ("TF-HOME-NOEXEC", {"home__noexec": True}, "noexec"),
    (
        "TF-HOME-LOOSE",
        {"home__loose": [{"path": "/home/fleet", "why": "everybody"}]},
        "every user can write to /home/fleet",
    ),
    ("TF-HOME-LOOSE", {"home__loose": [{"path": "/srv/tf", "why": "owner"}]}, "/srv/tf belongs to another user"),
    ("TF-DISK-TMP", {"tmp__free": 10**8}, "100 MB free in /tmp; needed: 200 MB"),
    ("TF-DISK-TMP", {"tmp__writable": False}, "/tmp is not writable"),
    ("TF-SHM-FULL", {"shm__free": 10**6}, "1 MB of 268 MB free"),
    ("TF-SHM-SMALL", {"shm__free": 64 << 20, "shm__size": 64 << 20}, "67 MB of 67 MB"),
    ("TF-MEMORY-LOW", {"memory__limit": 512 << 20}, "the control group of this session has 537 MB"),
    ("TF-MEMORY-LOW", {"memory__total": 512 << 20}, "the machine has 537 MB"),
    ("TF-MEMLOCK", {"rdma": ["mlx5_0"]}, "ulimit -l is 8192 KiB; RDMA devices: mlx5_0"),
    ("TF-NOFILE", {"limits__nofile": 4096}, "ulimit -Hn is 4096; recommended: 16384"),
    ("TF-NPROC", {"limits__nproc": 100}, "ulimit -u is 100"),
    ("TF-HOSTNAME-LOOPBACK", {"host__addresses": ["127.0.1.1"]}, "n2 is 127.0.1.1"),
    ("TF-HOSTNAME-LOOPBACK", {"host__addresses": ["10.91.0.12", "127.0.1.1"]}, "127.0.1.1"),
    ("TF-HOSTNAME-UNRESOLVED", {"host__addresses": []}, "n2: no address"),
    ("TF-HOSTNAME-UNRESOLVED", {"host__addresses": None}, "n2: the lookup timed out"),
    ("TF-MAXSTARTUPS", {"sshd__max_startups": "1:30:60"}, "MaxStartups 1:30:60"),
    ("TF-PORTS-BUSY", {"ports__listening": list(range(20000, 29950))}, "50 of the ports 20000-29999"),
    ("TF-PORT-RANGE", {"ports__local_range": [1024, 65535]}, "1024-65535"),
    ("TF-FIREWALL", {"firewall": ["ufw is enabled"]}, "ufw is enabled"),
    ("TF-NO-VENV", {"python__venv": False}, "/usr/bin/python3 has no module venv"),
    ("TF-PYTHON-TORCH", {"python__version": ""}, "cannot be run"),
    ("TF-GPU-NO-DRIVER", {"accelerators__gpus": [H100, {**H100, "driver": "nouveau"}]}, "1 of 2: 10de:2330"),
    ("TF-NVIDIA-MISMATCH", {"versions__driver_library": "550.1"}, "kernel module 535.2, library 550.1"),
    ("TF-OS-UNTESTED", {"system__os": "fedora", "system__os_version": "44", "system__os_name": "Fedora 44"}, "Fedora"),
    ("TF-SAME-HOSTNAME", {"host__name": "n1"}, "the same host name, n1"),
    ("TF-SAME-HOST-KEY", {"host__host_keys": RECORDED["n1"]["host"]["host_keys"]}, "SHA256:"),
    ("TF-SAME-MACHINE-ID", {"host__machine_id": RECORDED["n1"]["host"]["machine_id"]}, "/etc/machine-id"),
    ("TF-SAME-MACHINE", {"host": RECORDED["n1"]["host"]}, "the same boot"),
]
ALONG = {  # findings that these changes bring along
    "TF-OS-UNTESTED": {"TF-DRIFT-OS"},
    "TF-NVIDIA-MISMATCH": {"TF-DRIFT-DRIVER"},
    "TF-PYTHON-TORCH": {"TF-DRIFT-BASE-PYTHON"},
}


@pytest.mark.parametrize(
    ("name", "changed", "seen"), CHANGES, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(CHANGES)]
)
def test_a_changed_node_has_exactly_this_finding(name: str, changed: dict[str, Any], seen: str) -> None:
    if name == "TF-NVIDIA-MISMATCH":
        changed = {**changed, "versions__driver": "nvidia 535.2"}
    findings = [finding for finding in judged(two_nodes(**changed)) if finding.id not in ALONG.get(name, ())]
    finding = only(findings)
    assert finding.id == name
    assert seen in finding.seen
    assert "n2" in finding.nodes


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"system__libc": ""}, {"TF-OS-UNSUPPORTED", "TF-DRIFT-LIBC"}),
        ({"system__libc": "glibc 2.17"}, {"TF-OS-UNSUPPORTED", "TF-DRIFT-LIBC"}),
        ({"system__arch": "riscv64"}, {"TF-ARCH-UNSUPPORTED", "TF-DRIFT-ARCH"}),
        ({"system__arch": "aarch64"}, {"TF-DRIFT-ARCH"}),
        ({"python__version": "3.9.2"}, {"TF-PYTHON-TORCH", "TF-DRIFT-BASE-PYTHON"}),
        ({"python__version": "3.15.0"}, {"TF-PYTHON-TORCH", "TF-DRIFT-BASE-PYTHON"}),
        ({"versions__kernel": "6.1.0"}, {"TF-DRIFT-KERNEL"}),
        ({"versions__torch": "2.13.0+cpu"}, {"TF-DRIFT-TORCH"}),
    ],
)
def test_what_one_node_has_differs_from_the_other(changed: dict[str, Any], names: set[str]) -> None:
    assert {finding.id for finding in judged(two_nodes(**changed))} == names


def test_an_installed_node_needs_less_room() -> None:
    answers = two_nodes(home__free=10**9, versions__torch="2.13.0+cpu")
    assert [finding.id for finding in judged(answers)] == ["TF-DRIFT-TORCH"]


def test_a_head_that_runs_no_ranks_needs_no_room_for_torch_and_no_python_for_it() -> None:
    head = (Target("n1", "192.0.2.11", head=True, worker=False), TARGETS[1])
    answers = two_nodes()
    answers["n1"] = Answer({**RECORDED["n1"], "home": {**RECORDED["n1"]["home"], "free": 10**9}})
    answers["n1"] = Answer(
        {**dict(answers["n1"].facts or {}), "python": {"path": "p", "version": "3.11.0", "venv": False}}
    )
    assert [finding.severity for finding in judged(answers, targets=head)] == ["info"]


def test_a_head_without_ssh() -> None:
    answers = two_nodes()
    answers["n1"] = Answer({**RECORDED["n1"], "ssh": ""})
    assert only(judged(answers)).id == "TF-NO-SSH"
    assert judged(two_nodes(ssh="")) == []


def test_a_home_that_nodes_share() -> None:
    answers = two_nodes()
    shared = {"source": "server:/home", "kind": "nfs4"}
    answers = {
        name: Answer({**dict(answer.facts or {}), "home": {**(answer.facts or {})["home"], **shared}})
        for name, answer in answers.items()
    }
    finding = only(judged(answers))
    assert (finding.id, finding.nodes) == ("TF-HOME-SHARED", ("n1", "n2"))


@pytest.mark.parametrize(
    ("state", "password", "needed", "found"),
    [
        ("yes", False, True, []),
        ("root", False, True, []),
        ("no", True, True, []),
        ("no", False, False, []),
        ("not tried", False, False, []),
        ("no", False, True, ["TF-NO-SUDO"]),
        ("missing", True, True, ["TF-NO-SUDO"]),
    ],
)
def test_root_where_it_is_needed(state: str, password: bool, needed: bool, found: list[str]) -> None:
    targets = (TARGETS[0], Target("n2", "192.0.2.12", may_ask_password=password))
    findings = judged(two_nodes(user__sudo=state), Limits(needs_root=needed), targets)
    assert [finding.id for finding in findings] == found


# --- the clock -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "uncertainty", "found"),
    [(0.0, 0.01, 0), (4.9, 0.01, 0), (5.2, 0.01, 1), (-300.0, 0.01, 1), (6.0, 2.0, 0)],
)
def test_a_clock_is_off_only_beyond_doubt(offset: float, uncertainty: float, found: int) -> None:
    answers = two_nodes()
    answers["n2"] = Answer(answers["n2"].facts, Clock(offset, uncertainty))
    findings = judged(answers)
    assert len(findings) == found
    if findings:
        assert only(findings).id == "TF-CLOCK-SKEW"
        assert ("ahead of" if offset > 0 else "behind") in findings[0].seen


def test_the_clock_is_corrected_by_the_round_trip() -> None:
    assert preflight.clock_of("1000.25\n", 1000.0, 1000.5) == {"offset": 0.0, "uncertainty": 0.25}
    assert preflight.clock_of("1100.25", 1000.0, 1000.5) == {"offset": 100.0, "uncertainty": 0.25}
    assert preflight.clock_of("900.%N", 1000.0, 1000.5) == {"offset": -99.75, "uncertainty": 0.75}
    assert preflight.clock_of("sh: date: not found", 1000.0, 1000.5) is None


# --- nodes that tell nothing ---------------------------------------------------------------------------------------

VIA = "Failed to connect to the host via ssh: "
# As OpenSSH 9.2 and ansible-core 2.19 said it to nodes of the lab.
SAID = [
    (VIA + "ssh: connect to host 192.0.2.12 port 22: Connection timed out", "", "TF-UNREACHABLE"),
    (VIA + "ssh: connect to host 192.0.2.12 port 22: No route to host", "", "TF-UNREACHABLE"),
    (VIA + "Connection timed out during banner exchange", "", "TF-UNREACHABLE"),
    ("something new", "", "TF-UNREACHABLE"),
    (VIA + "ssh: Could not resolve hostname n9: Name or service not known", "", "TF-NAME-UNKNOWN"),
    (VIA + "ssh: connect to host 192.0.2.12 port 2222: Connection refused", "", "TF-SSH-PORT"),
    (VIA + "kex_exchange_identification: Connection closed by remote host", "", "TF-SSH-CLOSED"),
    (VIA + "fleet@192.0.2.12: Permission denied (publickey,password).", "", "TF-SSH-KEY"),
    (VIA + "No ED25519 host key is known for 192.0.2.12\nHost key verification failed.", "", "TF-HOST-KEY-UNKNOWN"),
    (
        VIA + "@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@@\nHost key verification failed.",
        "",
        "TF-HOST-KEY-CHANGED",
    ),
    ("", "The module interpreter '/usr/bin/python3' was not found.", "TF-NO-PYTHON"),
    ("", "failed\n/bin/sh: 1: /usr/bin/python3: not found\nShared connection to 192.0.2.12 closed.", "TF-NO-PYTHON"),
    ("", "ansible-core requires a minimum of Python version 3.8. Current version: 3.7.3", "TF-PYTHON-OLD"),
    ("", "SyntaxError: future feature annotations is not defined", "TF-PYTHON-OLD"),
    ("", "OSError: [Errno 28] No space left on device", "TF-DISK-TMP"),
    ("", "dd: No space left on device\n0 bytes copied, 0.0001 s, 0.0 kB/s", "TF-DISK-TMP"),
    ("Failed to create temporary directory. In some cases, " + "you may " * 40, "", "TF-ANSIBLE-TMP"),
    ("", "Traceback (most recent call last):\nValueError: x", "TF-NO-ANSWER"),
    ("", "", "TF-NO-ANSWER"),
]


@pytest.mark.parametrize(("problem", "failure", "name"), SAID)
def test_a_silent_node_is_told_by_what_ssh_or_ansible_said(problem: str, failure: str, name: str) -> None:
    answers = {**two_nodes(), "n2": Answer(problem=problem, failure=failure)}
    finding = only(judged(answers))
    assert (finding.id, finding.nodes) == (name, ("n2",))
    assert "\n" not in finding.seen
    assert not finding.seen.startswith(VIA)
    assert "closed." not in finding.seen
    assert "copied" not in finding.seen
    assert len(finding.seen) < 170


def test_a_silent_node_does_not_hide_the_others() -> None:
    answers = {**two_nodes(home__free=0), "n1": Answer(problem="Connection refused")}
    assert {finding.id for finding in judged(answers)} == {"TF-SSH-PORT", "TF-DISK-HOME"}


def test_a_node_that_was_not_asked_is_no_silence() -> None:
    assert preflight_input.answer_of({}).problem == "the node was not asked"
    assert preflight_input.answer_of({"msg": "timed out", "failed": True}).failure == "timed out"


# --- the inventory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "addresses", "name"),
    [
        (("node.a", "node.b"), ("192.0.2.11", "192.0.2.12"), "TF-NAME-FIRST-LABEL"),
        (("n1", "n2"), ("localhost", "192.0.2.12"), "TF-ADDRESS-LOOPBACK"),
        (("n1", "n2"), ("192.0.2.11", "127.0.0.1"), "TF-ADDRESS-LOOPBACK"),
        (("n1", "n2"), ("192.0.2.11", "::1"), "TF-ADDRESS-LOOPBACK"),
        (("192.0.2.11", "192.0.2.12"), ("192.0.2.11", "192.0.2.12"), ""),
    ],
)
def test_names_and_addresses(names: tuple[str, str], addresses: tuple[str, str], name: str) -> None:
    targets = tuple(Target(*pair) for pair in zip(names, addresses, strict=True))
    answers = dict(zip(names, two_nodes().values(), strict=True))
    findings = judged(answers, targets=targets)
    if name:
        assert only(findings).id == name
    else:
        assert findings == []


@pytest.mark.parametrize(
    ("variables", "login", "known_as"),
    [
        ({}, "ssh n1", "n1"),
        ({"ansible_host": "192.0.2.11", "ansible_user": "me"}, "ssh me@192.0.2.11", "192.0.2.11"),
        ({"ansible_host": "192.0.2.11", "ansible_port": 2222}, "ssh -p 2222 192.0.2.11", "[192.0.2.11]:2222"),
    ],
)
def test_how_a_host_is_reached(variables: dict[str, Any], login: str, known_as: str) -> None:
    target = preflight_input.target_of("n1", variables, {"head": ["n1"], "workers": ["n2"]})
    assert (target.head, target.worker, target.slots) == (True, False, None)
    assert (target.words["login"], target.words["known_as"]) == (login, known_as)


# --- what the user may set ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"min_disk_gb": -1}, "preflight_min_disk_gb: got -1; give a number of at least 0"),
        ({"min_disk_gb": "much"}, 'preflight_min_disk_gb: got "much"'),
        ({"min_tmp_mb": "nan"}, "preflight_min_tmp_mb"),
        ({"min_shm_mb": True}, "preflight_min_shm_mb"),
        ({"max_clock_offset": None}, "preflight_max_clock_offset"),
        ({"python_min": 3.1}, "preflight_python_min: got 3.1; give a version in quotes"),
        ({"python_max": "3"}, "preflight_python_max"),
        ({"ignore": ["TF-DISK-HOMES"]}, "preflight_ignore: [TF-DISK-HOME]"),
        ({"report": ""}, "preflight_report"),
    ],
)
def test_bad_input_is_refused_in_one_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as refusal:
        preflight_input.parse_options({"answers": {}, **given}, RULES)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("known", "found"),
    [(["debian 12"], 0), (["debian"], 0), (["Debian 12"], 0), (["debian 1"], 1), (["debian 13"], 1), ([], 1)],
)
def test_supported_systems(known: list[str], found: int) -> None:
    options = preflight_input.parse_options({"supported_os": known}, RULES)
    assert len(judged(two_nodes(), options.limits)) == found


def test_thresholds_of_zero_let_everything_pass() -> None:
    options = preflight_input.parse_options({"min_disk_gb": 0, "min_tmp_mb": 0, "min_shm_mb": 0}, RULES)
    assert judged(two_nodes(home__free=3 * 10**8, tmp__free=0, shm__size=10**8, shm__free=10**8), options.limits) == []


def test_the_report_is_plain_and_tells_whether_all_is_well() -> None:
    answers = two_nodes()
    drift = compare({}, [])
    report = json.loads(json.dumps(preflight_input.report_of([], answers, drift, "now")))
    assert (report["version"], report["ok"]) == (1, True)
    assert report["clocks"]["n2"] == {"offset": 0.004, "uncertainty": 0.008}
    assert report["nodes"]["n1"]["system"]["os"] == "debian"
    bad = [findings_module.found(RULES, "TF-NO-VENV", ["n1"], "x", name="n1")]
    assert preflight_input.report_of(bad, answers, drift, "now")["ok"] is False


def test_every_finding_is_found_above() -> None:
    """Those of drift are in test_drift.py, the inventory's own refusals in the lab."""
    in_tables = {row[0] for row in CHANGES} | {row[2] for row in SAID}
    by_name = {"TF-ARCH-UNSUPPORTED", "TF-NO-SSH", "TF-HOME-SHARED", "TF-NO-SUDO", "TF-CLOCK-SKEW", "TF-NO-COMPILER"}
    by_name |= {"TF-NAME-FIRST-LABEL", "TF-ADDRESS-LOOPBACK", "TF-INVENTORY"}
    assert {name for name in RULES if not name.startswith("TF-DRIFT-")} == in_tables | by_name


def test_everything_known_of_a_finding_is_said() -> None:
    for name, rule in RULES.items():
        assert rule.severity in findings_module.SEVERITIES, name
        assert all((rule.title, rule.why, rule.source, rule.mend)), name
        assert not rule.why.endswith("."), name


# --- one truth in several places ---------------------------------------------------------------------------------


def test_the_page_lists_every_finding() -> None:
    page = (REPO / "docs/preflight.md").read_text()
    listed = re.findall(r"^\| `(TF-[A-Z0-9-]+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert listed == [(name, rule.severity, rule.title, rule.why) for name, rule in RULES.items()]


def test_the_defaults_of_role_module_and_code_are_the_same() -> None:
    role = yaml.safe_load((REPO / "roles/preflight/defaults/main.yml").read_text())
    documented = yaml.safe_load((REPO / "plugins/modules/preflight.py").read_text().split('r"""')[1].split('"""')[0])
    module = {name: option["default"] for name, option in documented["options"].items() if "default" in option}
    module.pop("compiles")  # the role takes it from what is to be installed
    assert {f"preflight_{name}": value for name, value in module.items()} == {
        name: value for name, value in role.items() if name not in ("preflight_python", "preflight_compiles")
    }
    options = preflight_input.parse_options({}, RULES)
    assert not options.limits.compiles
    code = {
        **{name: value for name, value in vars(options.limits).items() if name != "compiles"},
        "ignore": list(options.ignore),
        "report": options.report,
    }
    assert {**code, "supported_os": list(options.limits.supported_os)} == module


def test_the_python_for_torch_is_the_one_that_its_role_allows() -> None:
    torch = yaml.safe_load((REPO / "roles/pytorch/defaults/main.yml").read_text())
    assert (Limits().python_min, Limits().python_max) == (torch["pytorch_python_min"], torch["pytorch_python_max"])
