"""Whom the firewalls of a cluster let in: addresses of nodes, in the chosen network or in all that may be chosen."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import next_step
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._firewall.admission import (
    Admission,
    Admitted,
    admission,
    chosen_admission,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit.test_fabric import LISTENED, NAMES, REACHED, B, batch, facts

FIRST, SECOND = ["10.91.0.1", "10.91.0.2"], ["10.92.0.1", "10.92.0.2"]


def seen() -> dict[str, Any]:
    """Return the networks of both nodes, which Ansible reaches in the first one."""
    found = copy.deepcopy(LISTENED)
    for name, address in zip(NAMES, FIRST, strict=True):
        found[name]["facts"]["arrival"] = address
    return found


def for_all(addresses: list[str], ssh_addresses: list[str], settled: bool) -> Admission:
    return Admission(dict.fromkeys(NAMES, Admitted(addresses, ssh_addresses)), settled)


def published() -> dict[str, Any]:
    """Return the same after the choice of the second network."""
    found = seen()
    slow = batch(100.0, 9000.0)
    step = next_step(NAMES, found, REACHED, {}, slow, earlier=[slow, slow])
    assert step["msg"].startswith(B)
    for name in NAMES:
        found[name]["facts"]["files"] = step["files"][name]
    return found


def test_before_the_choice_all_networks_are_open_that_may_be_chosen() -> None:
    assert admission(NAMES, seen(), "", "auto") == for_all([*FIRST, *SECOND], [], False)
    assert chosen_admission(NAMES, seen(), "", "auto") == Admission({}, False)


def test_after_the_choice_only_that_one_is_and_the_logins_stay() -> None:
    found = published()
    assert admission(NAMES, found, "", "auto") == for_all(SECOND, FIRST, True)
    assert chosen_admission(NAMES, found, "", "auto") == for_all(SECOND, FIRST, True)
    found["n2"]["facts"]["files"] = {"fabric.json": "", "fabric.env": ""}
    assert admission(NAMES, found, "", "auto") == for_all([*FIRST, *SECOND], [], False)


def test_where_no_network_was_chosen_for_a_new_node_the_others_keep_theirs() -> None:
    found = published()
    found["n3"] = facts(3)
    names = [*NAMES, "n3"]
    assert not admission(names, found, "", "auto").settled
    assert chosen_admission(names, found, "", "auto") == Admission(dict.fromkeys(NAMES, Admitted(SECOND, FIRST)), False)


def test_a_published_address_that_a_node_does_not_have_is_not_let_in() -> None:
    found = published()
    files = found["n2"]["facts"]["files"]
    files["fabric.json"] = files["fabric.json"].replace(SECOND[1], "10.92.0.66")
    for plan in (admission, chosen_admission):
        assert "10.92.0.66" not in str(plan(NAMES, found, "", "auto"))


def test_nodes_that_have_published_different_networks_have_none_in_common() -> None:
    """Settled, each would let in itself alone."""
    found = published()
    files = found["n2"]["facts"]["files"]
    files["fabric.json"] = files["fabric.json"].replace("10.92.0.", "10.91.0.")
    assert chosen_admission(NAMES, found, "", "auto") == Admission({}, False)


def test_what_the_user_asks_for_is_open_and_nothing_else() -> None:
    assert admission(NAMES, seen(), B, "auto") == for_all(SECOND, FIRST, False)
    with pytest.raises(InputError, match=r"10\.99\.0\.0/24"):
        admission(NAMES, seen(), "10.99.0.0/24", "auto")


def test_one_node_needs_nobody() -> None:
    assert admission(["n1"], seen(), "", "auto") == Admission({}, True)
