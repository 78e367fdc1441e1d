"""Who makes a Python environment, and who is sent it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.sharing import Share, share_out

A, B = {"installed": {"torch": "1"}}, {"installed": {"torch": "2"}}


def look(has: Any = None, kind: str = "k", mesh: bool = False) -> dict[str, Any]:
    """What the role sees on a machine: the receipt of what it has, if anything."""
    return {"ready": has is not None, "receipt": has, "kind": kind, "mesh": mesh}


def test_it_is_made_once_and_sent_to_the_others() -> None:
    looks = {"n1": look(mesh=True), "n2": look(), "n3": look()}
    assert share_out(looks, "n1", True) == {
        "n1": Share(makes=True, to=("n2", "n3"), sender="n1"),
        "n2": Share(source="n1"),
        "n3": Share(source="n1"),
    }


def test_machines_that_reach_the_others_send_it_on() -> None:
    looks = {name: look(mesh=True) for name in ("n1", "n2", "n3")}
    assert share_out(looks, "n1", True)["n1"].senders == ("n2", "n3")


def test_a_machine_that_has_what_it_takes_to_build_makes_it() -> None:
    looks = {"n1": {**look(mesh=True), "missing_tools": ["g++"]}, "n2": look(mesh=True), "n3": look()}
    shares = share_out(looks, "n1", True)
    assert [name for name, share in shares.items() if share.makes] == ["n2"]
    assert shares["n1"].source == shares["n3"].source == "n2"


def test_where_all_have_the_same_there_is_nothing_to_do() -> None:
    looks = {"n1": look(A, mesh=True), "n2": look(A)}
    assert share_out(looks, "n1", True) == {"n1": Share(), "n2": Share()}


def test_a_new_machine_is_sent_what_the_others_have() -> None:
    looks = {"n1": look(A, mesh=True), "n2": look(A), "n3": look()}
    assert share_out(looks, "n1", True)["n1"] == Share(to=("n3",), sender="n1")
    # Also the head that was installed anew: the head itself then fetches it.
    looks = {"n1": look(mesh=True), "n2": look(A), "n3": look(A)}
    assert share_out(looks, "n1", True) == {
        "n1": Share(source="n2"),
        "n2": Share(to=("n1",), sender="n1"),
        "n3": Share(),
    }


def test_what_most_have_is_kept() -> None:
    looks = {"n1": look(B, mesh=True), "n2": look(A), "n3": look(A)}
    assert share_out(looks, "n1", True)["n2"] == Share(to=("n1",), sender="n1")


def test_kinds_do_not_mix() -> None:
    looks = {"n1": look(mesh=True), "n2": look(kind="other"), "n3": look(kind="other"), "n4": look(kind="")}
    assert share_out(looks, "n1", True) == {
        "n1": Share(makes=True),
        "n2": Share(makes=True, to=("n3",), sender="n1"),
        "n3": Share(source="n2"),
        "n4": Share(makes=True),
    }


@pytest.mark.parametrize("head", ["", "n0"])
def test_without_a_way_between_them_each_makes_its_own(head: str) -> None:
    looks = {"n1": look(), "n2": look(), "n3": look(A)}
    shares = share_out(looks, head, False)
    assert shares == {"n1": Share(makes=True), "n2": Share(makes=True), "n3": Share()}


def test_what_lies_in_another_place_is_sent_to_nobody() -> None:
    """An environment has its own path in it. And no machine says where another one unpacks what it is sent."""
    looks = {"n1": {**look(A, mesh=True), "place": "/home/evil"}, "n2": {**look(), "place": "/home/v/1-a"}}
    shares = share_out(looks, "n1", True)
    assert shares["n2"].makes and not shares["n1"].to
