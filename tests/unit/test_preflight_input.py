"""The options of preflight, the hosts it is given, and its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import findings as findings_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import preflight_input
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_rules import RULES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Limits
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit.recorded_nodes import judged, two_nodes

REPO = Path(__file__).parents[2]


def test_a_node_that_was_not_asked_is_no_silence() -> None:
    assert preflight_input.answer_of({}).problem == "the node was not asked"
    assert preflight_input.answer_of({"msg": "timed out", "failed": True}).failure == "timed out"


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


ASKED_OF_NODES = ("python", "timeout", "container_image", "container_engine")  # which module node_facts is given


def test_the_defaults_of_role_module_and_code_are_the_same() -> None:
    role = yaml.safe_load((REPO / "roles/preflight/defaults/main.yml").read_text())
    documented = yaml.safe_load((REPO / "plugins/modules/preflight.py").read_text().split('r"""')[1].split('"""')[0])
    module = {name: option["default"] for name, option in documented["options"].items() if "default" in option}
    elsewhere = (
        "compiles",
        "installs_tools",
        "prerequisites",
        "needs_root",
    )  # the role takes them from what is to be done
    module = {name: value for name, value in module.items() if name not in elsewhere}
    not_compared = {f"preflight_{name}" for name in (*ASKED_OF_NODES, *elsewhere)}
    assert {f"preflight_{name}": value for name, value in module.items()} == {
        name: value for name, value in role.items() if name not in not_compared
    }
    options = preflight_input.parse_options({}, RULES)
    assert not options.limits.compiles and not options.limits.prerequisites
    code = {
        **{name: value for name, value in vars(options.limits).items() if name not in elsewhere},
        "ignore": list(options.ignore),
        "report": options.report,
    }
    assert {**code, "supported_os": list(options.limits.supported_os)} == module


def test_the_python_for_torch_is_the_one_that_its_role_allows() -> None:
    torch = yaml.safe_load((REPO / "roles/pytorch/defaults/main.yml").read_text())
    assert (Limits().python_min, Limits().python_max) == (torch["pytorch_python_min"], torch["pytorch_python_max"])
