"""Tasks that name an option wrongly: Ansible itself would drop it, and do something else than was written."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.driver import REPO
from tests.integration.fleet import Fleet

MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("launch", {"lanucher": "torchrun", "np": 7}, 'launch: got "lanucher"; did you mean launcher'),
    ("preflight", {"answers": {}, "bogus": 1}, 'preflight: got "bogus"; it has the options answers'),
    ("gather", {"bogus": 1}, 'gather: got "bogus"; it has'),
    ("verify", {"answers": {}, "listened": {}, "state": "nonsense"}, 'state of verify: got "nonsense"; choose one of'),
    ("verify", {"state": "plan"}, "answers of verify: got null; it is required"),
    ("fabric_choose", {}, "nodes of fabric_choose: got null; it is required"),
    ("node_facts", {"hmoe": "/tmp"}, 'node_facts: got "hmoe"; did you mean home'),
    ("accelerator_facts", {"bogus": 1}, 'accelerator_facts: got "bogus"'),
    ("ssh_mesh_keys", {"cluster": "c"}, "name of ssh_mesh_keys: got null; it is required"),
    ("ssh_mesh_plan", {"clutser": "c"}, 'ssh_mesh_plan: got "clutser"; did you mean cluster'),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what one playbook says that has every mistake, each in a task of its own."""
    root = tmp_path_factory.mktemp("options")
    tasks = [{f"torchfleet.cluster.{name}": given, "ignore_errors": True} for name, given, _told in MISTAKES]
    play = {"hosts": "head", "gather_facts": False, "tasks": tasks}
    playbook = Path(root / "mistakes.yml")
    playbook.write_text(json.dumps([play]))
    done = subprocess.run(
        ["ansible-playbook", str(playbook), "-e", json.dumps(Fleet(root).variables())],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert not (root / "runs").exists(), done.stdout
    return done.stdout


@pytest.mark.parametrize(("name", "given", "told"), MISTAKES, ids=[told[:40] for _name, _given, told in MISTAKES])
def test_a_mistake_is_refused_in_one_line(said: str, name: str, given: dict[str, Any], told: str) -> None:
    assert f"[ERROR]: Task failed: Action failed: {told}" in said, said
    assert "Traceback" not in said
