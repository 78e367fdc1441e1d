"""A node whose Python answers what it likes: what the action of ssh_mesh_keys makes of it, by a real playbook."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.unit.test_ssh_answer import honest

REPO = Path(__file__).parents[2]
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - torchfleet.cluster.ssh_mesh_keys: {name: "{{ inventory_hostname }}", cluster: mine, home: /nowhere}
      register: answer
    - ansible.builtin.copy: {content: "{{ answer.member | to_json }}", dest: "{{ playbook_dir }}/n2.json"}
      vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
"""


def ask(place: Path, answer: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Have a node n2 with this answer asked. Its interpreter reads the module and prints something else."""
    (place / "answer.json").write_text(json.dumps(answer))
    liar = place / "python3"
    liar.write_text(f"#!/bin/sh\ncat >/dev/null\nexec cat {place}/answer.json\n")
    liar.chmod(0o755)
    (place / "hosts").write_text(f"n2 ansible_connection=local ansible_python_interpreter={liar}\n")
    (place / "play.yml").write_text(PLAY)
    argv = ["ansible-playbook", "-i", str(place / "hosts"), str(place / "play.yml")]
    where = {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "HOME": str(place)}
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=REPO, env=where, timeout=120)


def test_a_node_does_not_choose_its_own_name(tmp_path: Path) -> None:
    asked = {"name": "n1", "address": "192.0.2.1", "port": 1, "sshd": "own", "become": True, "client": True}
    done = ask(tmp_path, {"changed": False, "member": {**honest(2, False), **asked, "more": "than was asked"}})
    assert done.returncode == 0, done.stdout + done.stderr
    member = json.loads((tmp_path / "n2.json").read_text())
    assert {name: member[name] for name in asked} == {
        **{"name": "n2", "address": "", "port": 0, "sshd": "system", "become": False, "client": False}
    }
    assert "more" not in member


def test_a_hostile_answer_is_refused_in_one_line_that_names_the_node(tmp_path: Path) -> None:
    hostile = {**honest(2, False), "addresses": ["192.0.2.2\nMatch all\n    ProxyCommand sh -c id"]}
    done = ask(tmp_path, {"changed": False, "member": hostile})
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in said
    assert "ssh_mesh: addresses of n2: got" in said
    assert not (tmp_path / "n2.json").exists()


def test_an_answer_without_any_member_is_refused(tmp_path: Path) -> None:
    done = ask(tmp_path, {"changed": False, "member": ["n2"]})
    assert "ssh_mesh: n2 did not return its keys" in done.stdout + done.stderr
