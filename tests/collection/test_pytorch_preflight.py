"""Role pytorch refuses a build that cannot run on a node, before anything is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
GPU = {"address": "0000:03:00.0", "vendor": "amd", "id": "1002:74a1", "model": "", "driver": "", "open_modules": False}
SEEN = {"nvswitches": 0, "modules": {}, "secure_boot": None, "driver_library": "", "libraries": {}, "versions": {}}


@pytest.mark.parametrize(("target", "refused"), [("gfx1011", True), ("gfx942", False)])
def test_a_build_that_cannot_run_ends_the_play(tmp_path: Path, target: str, refused: bool) -> None:
    """The node is this machine, with the GPUs that role preflight would have found."""
    gpus = [{**GPU, "target": target, "numa_node": None}]
    seen = {"facts": {"accelerators": {**SEEN, "gpus": gpus, "usable": {"nvidia": 0, "amd": 1, "intel": 0}}}}
    role = {"name": "torchfleet.cluster.pytorch", "tasks_from": "preflight.yml"}
    after = {"name": "Go on", "ansible.builtin.debug": {"msg": "it goes on"}}
    play = {"hosts": "n1", "gather_facts": True, "tasks": [{"ansible.builtin.include_role": role}, after]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "preflight_seen": seen}
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"n1": local}}}))
    argv = [str(BIN / "ansible-playbook"), "-i", "hosts.yml", "play.yml", "-e", "pytorch_build=rocm7.2"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    assert ("n1 has a GPU of target gfx1011, and this build has code for gfx900" in told) == refused, told
    assert ("it goes on" in told, done.returncode == 0) == (not refused, not refused), told
