"""The example inventories are clusters, and an inventory that is none is refused by the playbooks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
EXAMPLES = sorted((REPO / "inventory/examples").glob("*.yml"))


def label(path: Path) -> str:
    return str(path.relative_to(REPO))


def inventory_of(*sources: Path) -> dict[str, Any]:
    argv = [BIN / "ansible-inventory", *(f"--inventory={source}" for source in sources), "--list"]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("path", [REPO / "inventory/hosts.yml", *EXAMPLES], ids=label)
def test_an_inventory_is_a_cluster(path: Path) -> None:
    from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import cluster_from_hostvars

    inventory = inventory_of(path)
    groups = {name: hosts_of(inventory, name) for name in ("head", "workers")}
    cluster = cluster_from_hostvars(groups, inventory["_meta"]["hostvars"])
    assert all(node.slots for node in cluster.workers)
    assert path.read_text().startswith("---\n# ")


def hosts_of(inventory: dict[str, Any], group: str) -> list[str]:
    """Return the hosts of a group and of the groups in it."""
    entry = inventory.get(group, {})
    inner = [host for child in entry.get("children", []) for host in hosts_of(inventory, child)]
    return [*entry.get("hosts", []), *inner]


@pytest.mark.parametrize("verb", ["setup", "verify", "train"])
@pytest.mark.parametrize(
    "groups",
    [{}, {"workers": {"hosts": {"localhost": {}}}}, {"head": {"hosts": {}}, "workers": {"hosts": {"localhost": {}}}}],
    ids=["no group", "no head", "an empty head"],
)
def test_an_inventory_that_is_no_cluster_is_an_error(verb: str, groups: dict[str, Any], tmp_path: Path) -> None:
    """Ansible alone would find no hosts, do nothing and be content."""
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"children": groups}}))
    argv = [BIN / "ansible-playbook", f"--inventory={tmp_path}/hosts.yml", f"{verb}.yml"]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "head" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["setup", "verify", "train", "clean"])
def test_a_missing_inventory_is_an_error(verb: str, tmp_path: Path) -> None:
    argv = [BIN / "ansible-playbook", f"--inventory={tmp_path}/none.yml", f"{verb}.yml"]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{tmp_path}/none.yml" in done.stderr


def test_a_login_that_is_refused_is_told_even_if_ssh_ends_while_it_is_sent_the_module(tmp_path: Path) -> None:
    """Ansible then says "Broken pipe" and drops what ssh said."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec <&-\nsleep 0.3\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    ssh.chmod(0o755)
    variables = json.dumps({"ansible_ssh_executable": str(ssh), "ansible_python_interpreter": "/usr/bin/python3"})
    argv = [BIN / "ansible", "-i", "192.0.2.1,", "all", "-m", "torchfleet.cluster.node_facts", "-e", variables]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True)
    assert "Permission denied" in done.stdout
