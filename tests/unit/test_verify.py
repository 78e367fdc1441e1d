"""What is tried to prove a cluster, and what is said of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import trial as trial_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import verify, verify_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift_values import versions_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import sort_out
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.run_results import speeds_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostvars

NODES = ("n1", "n2", "n3")


CPU = {"version": "2.13.0+cpu", "cuda": "", "hip": "", "xpu": ""}
CUDA = {**CPU, "version": "2.13.0+cu130", "cuda": "13.0"}
ROCM = {**CPU, "version": "2.13.0+rocm7.2", "hip": "7.2.26015"}
XPU = {**CPU, "version": "2.13.0+xpu", "xpu": "20250301"}


def answer(torch_for: dict[str, str] = CPU, usable: dict[str, int] | None = None, **versions: str) -> Answer:
    """Return what a node tells: what its torch is built for, its GPUs by vendor, its versions. No driver tells one."""
    facts = {
        "system": {"arch": "x86_64", "os": "debian", "os_version": "12", "libc": "glibc 2.36"},
        "python": {"version": "3.11.2"},
        "wrappers": ["abc"],
        "home": {"path": "/home/me/.torchfleet"},
        "firewall": [],
        "memory": {"total": 540 << 30},
        "accelerators": {"gpus": [], "usable": {"nvidia": 0, "amd": 0, "intel": 0, **(usable or {})}},
        "torch": torch_for,
        "gpu_health": {"nvidia": [], "xids": [], "next_kernel": {"release": "", "modules": []}},
        "versions": {
            **{"openmpi": "5.0.11", "torch": "2.13.0+cpu", "torch_backends": "", "nccl": "", "driver": ""},
            **versions,
        },
    }
    return Answer(facts=facts, clock=None, problem="", failure="")


def unreachable() -> Answer:
    return Answer(facts=None, clock=None, problem="no route to host", failure="")


def listened(address: str, network: str = "10.1.0.0/24") -> dict[str, Any]:
    fabric = {"nic": "eth0", "address": address, "network": network}
    return {"fabric": fabric, "agent": {"port": 4711, "token": "t"}}


ALL = {name: answer() for name in NODES}
HEARD = {name: listened(f"10.1.0.{number}") for number, name in enumerate(NODES, 11)}


def outcome(**changed: Any) -> verify.Outcome:
    answers = changed.pop("answers", ALL)
    heard = changed.pop("listened", HEARD)
    trial = trial_module.plan_trial(answers, heard, "n1", NODES)
    versions = {name: versions_of(each.facts, "abc") for name, each in answers.items() if each.facts}
    given = {"failures": [], "measured": links(), "runs": [run()], **changed}
    return verify.Outcome(answers, heard, trial=trial, drift=compare(versions, NODES), **given)


@pytest.mark.parametrize(("days", "found"), [(-1, []), (0, ["in 0 days"]), (29, ["in 29 days"]), (30, []), (364, [])])
def test_a_certificate_that_ends_soon_is_told_in_time(days: int, found: list[str]) -> None:
    """It ended on day 366 of a cluster that was only trained on, and no job started from then on."""
    rows = [row for row in verify.judge(outcome(certificate_days=days)) if row.id == "TF-VERIFY-CERTIFICATE"]
    assert [row.seen.removeprefix("it ends ") for row in rows] == found
    assert verify_report.report(outcome(certificate_days=days), [], "now")["certificate_days"] == days


def links(**rates: float) -> dict[str, list[dict[str, Any]]]:
    """Return a measurement in which every link has 1000 Mbit/s but those given as n1_n2=10."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in NODES}
    for one, two in (("n1", "n2"), ("n1", "n3"), ("n2", "n3")):
        row = {"node": two, "network": "10.1.0.0/24", "error": "", "rtt_us": 50.0}
        rows[one].append(
            {**row, "mbit_out": rates.get(f"{one}_{two}", 1000.0), "mbit_in": rates.get(f"{two}_{one}", 1000.0)}
        )
    return rows


def run(**changed: Any) -> dict[str, Any]:
    asked = {"workload": "all_reduce_bench", "launcher": "openmpi", "backend": "gloo"}
    return {**asked, "failed": False, "msg": "", "run_dir": "", "in_image": False, **changed}


def tried(trial: trial_module.Trial) -> list[tuple[str, str]]:
    """Return launcher and backend of each planned run."""
    return [verify_report.of(each) for each in trial.runs]


def ids(given: verify.Outcome) -> list[str]:
    return [finding.id for finding in sort_out(verify.judge(given))]


def test_every_pair_is_measured_and_every_launcher_tried() -> None:
    trial = trial_module.plan_trial(ALL, HEARD, "n1", NODES)
    pairs = {frozenset((name, step["node"])) for name, steps in trial.steps.items() for step in steps}
    assert len(pairs) == 3 and trial.network == "10.1.0.0/24"
    assert trial.logins[2] == {"name": "n3", "config": "/home/me/.torchfleet/ssh/config", "address": "n3"}
    assert tried(trial) == [("openmpi", "gloo"), ("torchrun", "gloo")]
    assert {each["ranks_per_node"] for each in trial.runs} == {1} and not any(each["job_env"] for each in trial.runs)


def test_an_mpi_is_tried_only_if_a_head_without_ranks_has_it_too() -> None:
    answers = {"head": answer(openmpi=""), **ALL}
    runs = trial_module.plan_trial(answers, HEARD, "head", NODES).runs
    assert [each["launcher"] for each in runs] == ["torchrun"]  # whose agents are on the workers alone
    answers["head"] = answer(torch="")
    runs = trial_module.plan_trial(answers, HEARD, "head", NODES).runs
    assert [each["launcher"] for each in runs] == ["openmpi", "torchrun"]


def test_backend_mpi_is_tried_with_each_mpi_where_every_worker_has_it() -> None:
    having = {name: answer(torch_backends="0.1.0 mpi mpi:openmpi") for name in NODES}
    runs = trial_module.plan_trial(having, HEARD, "n1", NODES).runs
    assert [run["launcher"] for run in runs if run["backend"] == "mpi"] == ["openmpi"]
    assert not [run for run in runs if run["backend"] == "ccl"]
    lacking = having | {NODES[-1]: answer(torch_backends="")}
    assert all(run["backend"] == "gloo" for run in trial_module.plan_trial(lacking, HEARD, "n1", NODES).runs)


def test_backend_mpi_is_tried_only_with_the_mpis_that_it_is_made_for() -> None:
    """A second setup.yml with fewer `mpis` makes it for those alone; the others are still installed."""
    having = {name: answer(mpich="5.0.2", torch_backends="0.1.0 mpi mpi:openmpi") for name in NODES}
    runs = trial_module.plan_trial(having, HEARD, "n1", NODES).runs
    assert ("mpich", "gloo") in map(verify_report.of, runs)
    assert [run["launcher"] for run in runs if run["backend"] == "mpi"] == ["openmpi"]


def test_backend_ccl_is_tried_with_every_launcher_where_every_worker_has_it() -> None:
    having = {name: answer(torch_backends="0.1.0 ccl") for name in NODES}
    runs = trial_module.plan_trial(having, HEARD, "n1", NODES).runs
    assert [run["launcher"] for run in runs if run["backend"] == "ccl"] == ["openmpi", "torchrun"]
    assert not [run for run in runs if run["backend"] == "mpi"]


GPUS = {"nccl": answer(CUDA, {"nvidia": 8}), "rccl": answer(ROCM, {"amd": 8}), "xccl": answer(XPU, {"intel": 4})}


@pytest.mark.parametrize(("gpus", "backend"), [("nccl", "nccl"), ("rccl", "nccl"), ("xccl", "xccl")])
def test_gpus_are_proven_by_their_own_backend(gpus: str, backend: str) -> None:
    """The amdgpu of the kernel has no version, and ROCm's torch no wheel of RCCL: neither decides."""
    having = dict.fromkeys(NODES, GPUS[gpus])
    runs = trial_module.plan_trial(having, HEARD, "n1", NODES).runs
    reduced = [each for each in runs if each["backend"] == backend and each["workload"] == "all_reduce_bench"]
    assert [each["launcher"] for each in reduced] == ["openmpi", "torchrun"]
    assert all(each["ranks_per_node"] == 0 and "256M" in each["workload_args"] for each in reduced)
    assert all("--device" not in each["workload_args"] for each in reduced)
    assert [each["job_env"].get("NCCL_DEBUG", "") for each in reduced] == ["INFO" if backend == "nccl" else ""] * 2
    (burn_in,) = [each for each in runs if each["workload"] == "burn_in"]
    assert (burn_in["launcher"], burn_in["backend"]) == ("openmpi", backend)
    assert "TF-VERIFY-GPUS" not in ids(outcome(answers=having, workers=NODES, runs=[run(**each) for each in runs]))


@pytest.mark.parametrize("gpus", ["", "nccl"])
def test_an_image_is_proven_by_one_more_run_whose_speed_is_not_compared(gpus: str, tmp_path: Path) -> None:
    """GPUs first: an image may not see them."""
    having = dict.fromkeys(NODES, GPUS[gpus]) if gpus else ALL
    runs = trial_module.plan_trial(having, HEARD, "n1", NODES, has_image=True).runs
    others = trial_module.plan_trial(having, HEARD, "n1", NODES).runs
    assert [each for each in runs if not each["in_image"]] == list(others)
    (proof,) = [each for each in runs if each["in_image"]]
    assert (proof["workload"], proof["launcher"], proof["backend"]) == ("all_reduce_bench", "openmpi", gpus or "gloo")
    failed = outcome(runs=[run(in_image=True, failed=True, msg="no torch")])
    assert "openmpi with gloo in the image: no torch" in [finding.seen for finding in sort_out(verify.judge(failed))]
    (tmp_path / "result.json").write_text('{"metrics": {"busbw_gbps": 1.0}, "world_size": 2}')
    of = {"run_dir": str(tmp_path)}
    assert [bool(speeds_of([run(in_image=told, **of)])) for told in (False, True)] == [True, False]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "own", "found"),
    [
        (None, [None, None], False),
        (None, ["image:1", None], True),
        ("none", ["image:1"], False),
        ("image:1", [None], True),
    ],
)
def test_which_image_is_to_be_proven(given: str | None, own: list[str | None], found: bool) -> None:
    variables = {f"n{number}": {"torchfleet_container_image": image} for number, image in enumerate(own)}
    assert hostvars.has_image(given, variables, list(variables)) == found


def test_gpus_are_loaded_with_a_launcher_that_is_asked_for() -> None:
    runs = trial_module.plan_trial(dict.fromkeys(NODES, GPUS["rccl"]), HEARD, "n1", NODES, ["torchrun"]).runs
    asked = [(each["workload"], each["launcher"], each["backend"]) for each in runs]
    reduced = [("all_reduce_bench", "torchrun", backend) for backend in ("gloo", "nccl")]
    assert asked == [*reduced, ("burn_in", "torchrun", "nccl")]


DRIVEN_BY_NOBODY = answer()
DRIVEN_BY_NOBODY.facts["accelerators"] = {"gpus": [{"vendor": "amd", "driver": ""}], "usable": {"amd": 0}}  # type: ignore[index]


@pytest.mark.parametrize(
    ("third", "seen"),
    [
        (answer(), "n3 has no GPU"),
        (answer(ROCM, {"amd": 8}), "no backend joins GPUs of NVIDIA and AMD"),
        (answer(CPU, {"nvidia": 8}), "torch on n3 is not built for GPUs of NVIDIA"),
        (answer(ROCM, {"nvidia": 8}), "torch on n3 is not built for GPUs of NVIDIA"),
        (DRIVEN_BY_NOBODY, "no program can open the GPUs of n3: there is no driver, or it does not run"),
    ],
)
def test_gpus_that_were_not_proven_are_told(third: Answer, seen: str) -> None:
    answers = {**dict.fromkeys(NODES, GPUS["nccl"]), "n3": third}
    planned = trial_module.plan_trial(answers, HEARD, "n1", NODES).runs
    assert {each["backend"] for each in planned} == {"gloo"}
    (finding,) = [each for each in verify.judge(outcome(answers=answers, workers=NODES)) if each.id == "TF-VERIFY-GPUS"]
    assert finding.seen == seen and finding.nodes[:2] == ("n1", "n2")


def test_gpus_that_nobody_wants_are_not_missed() -> None:
    answers = dict.fromkeys(NODES, answer(CPU, {"amd": 1}))
    assert "TF-VERIFY-GPUS" in ids(outcome(answers=answers, workers=NODES))
    assert "TF-VERIFY-GPUS" not in ids(outcome(answers=answers, workers=NODES, gpus=dict.fromkeys(NODES, 0)))


def test_a_sound_cluster_has_no_findings() -> None:
    found = outcome()
    assert ids(found) == []
    text = "\n".join(verify_report.show(found, []))
    assert "1,000 / 50" in text and "all-reduce correct" in text and "verify of 3 nodes: nothing found" in text
    assert verify_report.report(found, [], "now")["links"][0] == {
        "from": "n1",
        "to": "n2",
        "mbit": 1000.0,
        "rtt_us": 50.0,
    }


def test_one_node_has_no_network_to_agree_on() -> None:
    heard = {"n1": {**listened("127.0.0.1", "127.0.0.0/8"), "agent": {}}}
    assert ids(outcome(answers={"n1": answer()}, listened=heard, measured={})) == []


def test_a_node_that_does_not_answer_hides_no_other() -> None:
    answers = {**ALL, "n2": unreachable(), "n3": answer(torch="2.12.0")}
    heard = {name: told for name, told in HEARD.items() if name != "n2"} | {"n2": {}}
    measured = {"n1": [{"node": "n3", "network": "10.1.0.0/24", "error": "timed out", "rtt_us": 0.0}], "n3": []}
    found = outcome(answers=answers, listened=heard, measured=measured)
    assert found.trial.nodes == ("n1", "n3")
    assert ids(found) == ["TF-DRIFT-TORCH", "TF-VERIFY-LINK", "TF-VERIFY-NODE"]


def test_a_node_whose_answer_cannot_be_is_a_finding_and_is_left_out() -> None:
    """Its facts may look sound; what it says of its network shows that it is not to be believed."""
    told = verify.take(ALL, {name: {} for name in NODES} | {"n2": {"facts": {"nics": 5}}}, {})
    assert told.answers["n1"].facts and told.answers["n3"].facts and not told.answers["n2"].facts
    given = outcome(answers=told.answers, listened=HEARD | {"n2": told.listened["n2"]}, measured={"n1": [], "n3": []})
    (finding,) = [each for each in verify.judge(given) if each.id == "TF-VERIFY-NODE"]
    assert finding.nodes == ("n2",) and finding.seen.startswith('answer of n2: got "networks, ')


@pytest.mark.parametrize(
    ("changed", "name", "seen"),
    [
        ({"failures": [{"from": "n1", "to": "n3", "why": "refused"}]}, "TF-VERIFY-LOGIN", "to n3: refused"),
        ({"listened": {**HEARD, "n2": {"fabric": {}, "agent": {}}}}, "TF-VERIFY-FABRIC", "no fabric.json"),
        (
            {"listened": {**HEARD, "n2": listened("10.2.0.12", "10.2.0.0/24")}},
            "TF-VERIFY-FABRIC",
            "its network is 10.2.0.0",
        ),
        ({"measured": {**links(), "n2": []}}, "TF-VERIFY-LINK", "to n3: it reported no measurement"),
        ({"measured": links(n1_n2=10.0)}, "TF-VERIFY-SLOW", "n1 -> n2: 10 Mbit/s, the median is 1,000"),
        ({"runs": [run(failed=True, msg="rank 1 on n2: killed")]}, "TF-VERIFY-RUN", "rank 1 on n2: killed"),
        ({"runs": []}, "TF-VERIFY-LAUNCHER", "none of verify_launchers"),
    ],
)
def test_each_fault_is_named(changed: dict[str, Any], name: str, seen: str) -> None:
    findings = [finding for finding in verify.judge(outcome(**changed)) if finding.id == name]
    assert len(findings) == 1 and seen in findings[0].seen
    assert any(seen in line for line in " ".join(verify_report.show(outcome(**changed), findings)).splitlines())


def test_every_finding_is_in_the_page(repo_docs: str) -> None:
    for name, rule in verify.RULES.items():
        assert f"| `{name}` | {rule.severity} |" in repo_docs


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("dropped", "TF-VERIFY-FIREWALL"),
        ("no-neighbour", "TF-VERIFY-LINK"),
        ("no-carrier", "TF-VERIFY-LINK"),
        ("small-mtu", "TF-VERIFY-MTU"),
    ],
)
def test_a_link_that_fails_is_called_what_it_is(code: str, rule: str) -> None:
    measured = links()
    measured["n1"][0] = {"node": "n2", "network": "10.1.0.0/24", "error": "no answer", "code": code}
    answers = {name: copy.deepcopy(each) for name, each in ALL.items()}
    answers["n2"].facts["firewall"] = [{"kind": "ufw", "where": "it is enabled"}]  # type: ignore[index]
    found = [each for each in sort_out(verify.judge(outcome(answers=answers, measured=measured))) if each.id == rule]
    assert [(each.nodes, each.seen.startswith("to n2: no answer")) for each in found] == [(("n1",), True)]
    assert ("(n2: ufw, it is enabled)" in found[0].seen) is (rule == "TF-VERIFY-FIREWALL")
