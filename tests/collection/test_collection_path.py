"""The collection that runs is the one of this repository, not a copy that was installed elsewhere; it is documented."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller import action

REPO = Path(__file__).parents[2]
LINKED = REPO / "collections/ansible_collections/torchfleet/cluster"
PARTS = ["galaxy.yml", "meta", "playbooks", "plugins", "roles", "versions.yml", "workloads"]


MODULES = sorted(path.stem for path in (REPO / "plugins/modules").glob("[!_]*.py"))
ROLES = sorted(path.name for path in (REPO / "roles").iterdir())


@pytest.fixture(scope="module")
def documented() -> dict[str, dict[str, Any]]:
    """Return what Ansible itself finds of this collection: by kind, what it documents by name. One start for all."""
    argv = [Path(sys.executable).with_name("ansible-doc"), "--metadata-dump", "torchfleet.cluster"]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout)["all"])


def test_the_collection_is_a_real_folder_of_relative_links() -> None:
    """A link of the whole folder makes other tools recurse without end."""
    assert not any(path.is_symlink() for path in (LINKED, *LINKED.parents[:3]))
    assert sorted(entry.name for entry in LINKED.iterdir()) == PARTS
    for part in PARTS:
        assert (LINKED / part).is_symlink()
        assert not (LINKED / part).readlink().is_absolute()
        assert (LINKED / part).resolve() == REPO / part


def test_python_imports_the_plugins_of_this_repository() -> None:
    from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import plan

    assert Path(str(plan.__file__)).resolve().is_relative_to(REPO / "plugins")


def test_ansible_finds_the_modules_of_this_repository(documented: dict[str, dict[str, Any]]) -> None:
    places = {name: Path(entry["doc"]["filename"]).resolve() for name, entry in documented["module"].items()}
    assert places == {f"torchfleet.cluster.{name}": REPO / f"plugins/modules/{name}.py" for name in MODULES}
    for name, entry in documented["module"].items():
        shown = {option: row.get("choices") for option, row in entry["doc"].get("options", {}).items()}
        checked = action.documented(name.rpartition(".")[2])
        assert shown == {option: row.get("choices") for option, row in checked.items()}, "actions check something else"


def test_ansible_finds_the_roles_of_this_repository(documented: dict[str, dict[str, Any]]) -> None:
    assert {name: entry["path"] for name, entry in documented["role"].items()} == {
        f"torchfleet.cluster.{name}": str(LINKED) for name in ROLES
    }


def test_every_module_has_documentation(documented: dict[str, dict[str, Any]]) -> None:
    for entry in documented["module"].values():
        assert entry["examples"].strip()
        assert {"check_mode", "diff_mode"} <= entry["doc"]["attributes"].keys()  # of the fragment for all modules
