"""Role cuda tells nvidia-imex the nodes of an NVLink domain, and leaves what the operator told it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CLUSTER = "6a130f54-faaa-4b8f-847f-be44ab70f917"
TEXT = "10.91.0.1\n10.91.0.2\n"


class Rack:
    """Three nodes that are this machine: two in one domain, one without GPUs. Each has files of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        hosts = {name: self.node(number, name) for number, name in enumerate(("n1", "n2", "n3"), 1)}
        local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
        groups = {"head": {"hosts": {"n1": hosts["n1"]}}, "workers": {"hosts": hosts}}
        self.write("hosts.yml", {"all": {"vars": local, "children": groups}})
        files = [f"{place}/{{{{ inventory_hostname }}}}.{kind}" for kind in ("cfg", "torchfleet")]
        role = {"name": "torchfleet.cluster.cuda", "tasks_from": "imex.yml"}
        task = {"ansible.builtin.include_role": role, "vars": {"__cuda_imex_files": files, "ansible_become": False}}
        self.write("play.yml", [{"hosts": "n1:n2", "gather_facts": False, "tasks": [task]}])

    def write(self, name: str, value: Any) -> None:
        (self.place / name).write_text(json.dumps(value))

    def node(self, number: int, name: str) -> dict[str, Any]:
        home = self.place / name
        home.mkdir()
        fabric = {"nic": "eth0", "address": f"10.91.0.{number}", "network": "10.91.0.0/24"}
        (home / "fabric.json").write_text(json.dumps(fabric))
        domain = f"{CLUSTER}/32766" if name != "n3" else ""
        return {"torchfleet_home": str(home), "__cuda_found": {"facts": {"nvlink_domain": domain}}}

    def run(self, *words: str) -> str:
        argv = [str(BIN / "ansible-playbook"), "-i", "hosts.yml", "play.yml", *words]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
        done = subprocess.run(argv, cwd=self.place, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def told(self, name: str) -> str:
        return (self.place / f"{name}.cfg").read_text()


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    return Rack(tmp_path)


def test_each_node_is_told_all_of_its_domain_once(rack: Rack) -> None:
    assert rack.run().count("changed=1") == 2
    assert rack.told("n1") == rack.told("n2") == TEXT
    assert rack.run().count("changed=0") == 2


def test_what_the_operator_wrote_stays_and_a_part_of_the_nodes_is_refused(rack: Rack) -> None:
    (rack.place / "n2.cfg").write_text("10.0.0.9\n")
    said = " ".join(rack.run().split())
    assert "nodes_config.cfg is not ours and stays; it names 10.0.0.9, and the domain has 10.91.0.1" in said
    assert (rack.told("n1"), rack.told("n2")) == (TEXT, "10.0.0.9\n")
    assert "n2 was not asked: leave --limit out" in " ".join(rack.run("--limit", "n1").split())


def test_check_mode_does_not_ask_what_it_did_not_write(rack: Rack) -> None:
    """It failed on the only machines that have nvidia-imex."""
    given = {"__cuda_plan": {"imex": True, "services": [], "kernel_modules": {}}, "__cuda_facts": {"modules": {}}}
    role = {"name": "torchfleet.cluster.cuda", "tasks_from": "services.yml"}
    task = {"ansible.builtin.include_role": role, "vars": {**given, "ansible_become": False}}
    rack.write("play.yml", [{"hosts": "n1", "gather_facts": False, "tasks": [task]}])
    assert "failed=0" in rack.run("--check")
