"""The machines that software can be installed on, as Ansible's facts tell of them."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import platform_check
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

BOTH = ["x86_64", "aarch64"]


def checked(wheels: list[str], facts: dict[str, str]) -> dict[str, Any]:
    action = object.__new__(platform_check.ActionModule)
    variables = {"inventory_hostname": "n1", "ansible_facts": facts}
    return action.act({"role": "mpich", "title": "MPICH", "wheels": wheels}, variables)


@pytest.mark.parametrize(("wheels", "machine"), [(BOTH, "x86_64"), (BOTH, "aarch64"), ([], "riscv64")])
def test_a_machine_that_it_is_made_for_passes(wheels: list[str], machine: str) -> None:
    assert checked(wheels, {"system": "Linux", "machine": machine}) == {"changed": False}


@pytest.mark.parametrize(
    ("wheels", "system", "machine", "told"),
    [
        (
            BOTH,
            "Linux",
            "ppc64le",
            "there is no MPICH wheel for Linux on ppc64le, only for Linux on x86_64 and aarch64",
        ),
        (["x86_64"], "Darwin", "x86_64", "there is no MPICH wheel for Darwin on x86_64, only for Linux on x86_64"),
        ([], "FreeBSD", "x86_64", "MPICH runs on Linux only, and this is FreeBSD"),
        ([], "Free\nBSD", "x86_64", "MPICH runs on Linux only, and this is Free BSD"),
    ],
)
def test_another_one_is_refused_in_one_line(wheels: list[str], system: str, machine: str, told: str) -> None:
    refused = checked(wheels, {"system": system, "machine": machine})
    assert refused == {"failed": True, "msg": f"mpich: {told}"}


@pytest.mark.parametrize("facts", [{}, {"system": "Linux"}, {"machine": "x86_64"}])
def test_missing_facts_are_asked_for(facts: dict[str, str]) -> None:
    with pytest.raises(
        InputError, match="ansible_facts of n1: got null; gather facts before this role: gather_facts: true"
    ):
        checked(BOTH, facts)
