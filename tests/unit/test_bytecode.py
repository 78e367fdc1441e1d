"""Ansible finds the bytecode of the controller's modules where Python left it, at the start before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.driver import REPO

PLUGINS = "ansible_collections.torchfleet.cluster.plugins"
PROGRAM = f"""
import importlib, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([sys.argv[1]])
def compiled(event, given):
    if event == "compile" and str(given[1]).startswith(sys.argv[1]):
        print(given[1])
sys.addaudithook(compiled)
for name in ("plugin_utils._a.first", "module_utils._b.second"):
    importlib.import_module(f"{PLUGINS}.{{name}}")
"""


def test_modules_are_compiled_once(tmp_path: Path) -> None:
    """Reproduced before: each start of ansible-playbook compiled 200 modules."""
    cluster = tmp_path / "ansible_collections/torchfleet/cluster"
    for name in ("plugin_utils/_a/first.py", "module_utils/_b/second.py"):
        (cluster / "plugins" / name).parent.mkdir(parents=True)
        (cluster / "plugins" / name).touch()
    shutil.copyfile(REPO / "plugins/plugin_utils/__init__.py", cluster / "plugins/plugin_utils/__init__.py")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    starts = [
        subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], env=env, stdout=subprocess.PIPE, check=True)
        for _time in range(2)
    ]
    first, second = ([Path(line).name for line in start.stdout.decode().splitlines()] for start in starts)
    assert first == ["__init__.py", "first.py", "second.py"]
    assert second == ["__init__.py"]  # a folder, which is Ansible's to load
