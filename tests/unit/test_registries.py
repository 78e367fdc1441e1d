"""A launcher, a backend and a vendor of GPUs have one row each; what cannot derive from it agrees (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.doc_fragments.choices import ModuleDocFragment
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import gpu_vendors, installed
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS, MPIS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage import usage_findings
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench import judge
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud import planning
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import speed
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.setup_parts import PARTS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostfile
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers import registry
from tests import transcripts
from tests.programs import load

REPO = Path(__file__).parents[2]
tables = load(REPO / "docs/registry_tables.py")
VERSIONS = yaml.safe_load((REPO / "versions.yml").read_text())


def carried() -> dict[str, str]:
    """Return the devices of the backends that do not carry CPU tensors, as the workloads have them."""
    found = re.search(r"^ACCELERATORS = (\{.*\})$", (REPO / "workloads/_device.py").read_text(), re.MULTILINE)
    assert found
    return {str(name): str(device) for name, device in ast.literal_eval(found[1]).items()}


def everything_of_ours() -> set[str]:
    """Return our own backends as they are found where all their files are."""
    with tempfile.TemporaryDirectory() as root:
        packages = Path(root, "backends", "lib", "python3.11", "site-packages")
        for name in (
            *installed.MPI_PARTS,
            installed.SHM_PART,
            "torchfleet_backends/oneccl",
            "torchfleet_backends-0.1.0.dist-info",
        ):
            (packages / name).mkdir(parents=True)
        found = installed.own_backends(f"{root}/pytorch/bin/python").split()[1:]
        return {name.partition(":")[0] for name in found}


@pytest.mark.parametrize("name", [*tables.ROLE_FILES, tables.PAGE])
def test_what_is_written_from_the_tables_is_up_to_date(name: str) -> None:
    """Else type `.venv/bin/python docs/registry_tables.py`, then `.venv/bin/python docs/role_tables.py`."""
    assert (REPO / name).read_text() == tables.written(name)


@pytest.mark.parametrize("name", tables.CHOICES)
def test_a_role_has_the_option_whose_choices_are_written(name: str) -> None:
    assert any(f"\n      {name}:\n" in (REPO / file).read_text() for file in tables.ROLE_FILES)


@pytest.mark.parametrize("part", [name for name in vars(ModuleDocFragment) if name.isupper()])
def test_a_module_has_the_choices_of_the_tables(part: str) -> None:
    """Its documentation extends the fragment of its name."""
    options = documented(part.lower())
    for name, row in json.loads(getattr(ModuleDocFragment, part))["options"].items():
        assert options[name].get("choices") == row["choices"], name


@pytest.mark.parametrize(
    ("place", "names", "wanted"),
    [
        ("_launchers/registry.py COMMANDS", registry.COMMANDS, LAUNCHERS),
        ("tests/transcripts.py", [program.launcher for program in transcripts.PROGRAMS.values()], LAUNCHERS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_launcher_is_in(place: str, names: Any, wanted: Collection[str]) -> None:
    assert set(names) == set(wanted)


@pytest.mark.parametrize("name", MPIS)
def test_an_mpi_can_be_installed(name: str) -> None:
    """By a role of its name, in the version and the wheel that are locked."""
    assert (REPO / "roles" / name / "tasks" / "main.yml").exists()
    assert VERSIONS[name]["version"]
    wheel = LAUNCHERS[name].wheel.replace("_", "-")
    assert re.search(rf"^{wheel}==", (REPO / "locks" / f"{name}.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_row_is_whole(name: str) -> None:
    """A launcher with a program says where it may be and what it is called; an MPI why versions must not be mixed."""
    row = LAUNCHERS[name]
    assert len(row.identity) in (3, 4)
    assert bool(row.programs) == bool(row.version) == bool(row.variable)
    assert row.hostfile in ("", *hostfile.SPELLINGS)
    assert bool(row.wheel) == bool(row.mixed) == bool(row.part)


def test_every_backend_of_ours_is_found_on_nodes() -> None:
    """By _runtime/software/installed.py."""
    assert everything_of_ours() == set(PARTS["backends"])


def test_workloads_know_which_backends_carry_other_tensors_than_those_of_the_cpu() -> None:
    assert carried() == {name: row.device for name, row in BACKENDS.items() if row.device != "cpu"}


def test_backends_that_come_with_a_module_are_some() -> None:
    assert set(survey.PLUGINS) <= set(BACKENDS)


def test_who_has_no_table_of_backends_knows_of_them_what_it_says() -> None:
    """Nodes have none, and figures of a device that is not listed count as those of other GPUs."""
    assert set(usage_findings.GPU_BACKENDS) == {name for name, row in BACKENDS.items() if row.vendors}
    assert {row.device for row in BACKENDS.values()} >= {*judge.NOISE, *speed.BASELINE_SHARE}


@pytest.mark.parametrize("name", BACKENDS)
def test_whose_gpus_a_backend_needs(name: str) -> None:
    """They are counted, and it is known by which name torch is built for them."""
    for vendor in BACKENDS[name].vendors:
        assert vendor in gpu_vendors.USABLE
        assert VENDORS[vendor].build


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_has_what_its_row_says(vendor: str) -> None:
    row = VENDORS[vendor]
    assert not row.role or (REPO / "roles" / row.role / "tasks" / "main.yml").exists()
    assert vendor in {build.get("vendor") for build in VERSIONS["pytorch"]["builds"].values()}


def test_whoever_names_vendors_names_those_of_the_table() -> None:
    assert set(gpu_vendors.RESOURCES.values()) <= set(gpu_vendors.USABLE)
    assert set(planning.DEFAULTS) - {""} <= set(VENDORS)


def test_clean_knows_every_target() -> None:
    """A target that it does not know is refused as if it were a mistake. Nodes of the inventory are what is left."""
    first = yaml.safe_load((REPO / "clean.yml").read_text())[0]
    assert {"nodes", *first["vars"]["__clean_of"]} == set(documented("launch")["target"]["choices"])


@pytest.mark.parametrize("name", PARTS)
def test_setup_offers_what_can_be_installed(name: str) -> None:
    """There is a role for each; one role installs all backends."""
    roles = ["torch_backends"] if name == "backends" else PARTS[name]
    assert [role for role in roles if not (REPO / "roles" / role / "tasks" / "main.yml").exists()] == []


def test_the_action_group_has_all_modules() -> None:
    """Users give options to all modules of the collection by it (module_defaults)."""
    group = yaml.safe_load((REPO / "meta" / "runtime.yml").read_text())["action_groups"]["cluster"]
    assert group == sorted(path.stem for path in (REPO / "plugins" / "modules").glob("*.py"))
