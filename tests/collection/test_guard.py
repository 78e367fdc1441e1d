"""The collection that runs is the one in this repository, and no copy that was installed somewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
LINKED = REPO / "collections/ansible_collections/torchfleet/cluster"
PARTS = ["galaxy.yml", "meta", "playbooks", "plugins", "roles", "versions.yml", "workloads"]


def ansible_doc(kind: str, name: str) -> dict[str, object]:
    """Return what Ansible itself finds under a name."""
    tool = Path(sys.executable).with_name("ansible-doc")
    done = subprocess.run([tool, "-t", kind, name, "--json"], cwd=REPO, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout)[name])


def test_the_collection_is_a_real_folder_of_relative_links() -> None:
    """A link of the whole folder makes other tools recurse without end."""
    assert not any(path.is_symlink() for path in (LINKED, *LINKED.parents[:3]))
    assert sorted(entry.name for entry in LINKED.iterdir()) == PARTS
    for part in PARTS:
        assert (LINKED / part).is_symlink()
        assert not (LINKED / part).readlink().is_absolute()
        assert (LINKED / part).resolve() == REPO / part


def test_python_imports_the_plugins_of_this_repository() -> None:
    from ansible_collections.torchfleet.cluster.plugins.plugin_utils import _plan

    assert Path(str(_plan.__file__)).resolve().is_relative_to(REPO / "plugins")


@pytest.mark.parametrize("name", sorted(path.stem for path in (REPO / "plugins/modules").glob("[!_]*.py")))
def test_ansible_finds_the_modules_of_this_repository(name: str) -> None:
    doc = ansible_doc("module", f"torchfleet.cluster.{name}")["doc"]
    assert isinstance(doc, dict)
    assert Path(doc["filename"]).resolve() == REPO / f"plugins/modules/{name}.py"


@pytest.mark.parametrize("name", sorted(path.name for path in (REPO / "roles").iterdir()))
def test_ansible_finds_the_roles_of_this_repository(name: str) -> None:
    assert ansible_doc("role", f"torchfleet.cluster.{name}")["path"] == str(LINKED)
