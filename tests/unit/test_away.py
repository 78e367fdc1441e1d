"""Which nodes a run is about: without those that are away, and those that remove.yml removes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.torchfleet.cluster.plugins.filter.cluster_nodes import FilterModule
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import away

GROUPS = {"all": ["h", "n1", "n2", "n3"], "head": ["h"], "workers": ["n1", "n2", "n3"]}
FILTERS = FilterModule().filters()


@pytest.mark.parametrize("value", ["n1,n3", ["n1", "n3"], [["n1"], "n3"], " n1 , n3,", [None, "n1,n3", []]])
def test_nodes_are_away_however_they_are_written(value: Any) -> None:
    assert FILTERS["cluster_nodes"](GROUPS, value) == ["h", "n2"]


def test_a_group_of_that_name_is_away_too() -> None:
    assert FILTERS["cluster_nodes"]({**GROUPS, "away": ["n2"]}, "n1") == ["h", "n3"]
    assert FILTERS["cluster_nodes"](GROUPS) == ["h", "n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("n7", 'away: got "n7"; there is no such node: give some of h, n1, n2, n3'),
        (7, "away: got 7; give names of nodes: away=h,n1"),
        ("h", 'away: got "h"; nothing works without the head: name another machine in group head'),
    ],
)
def test_what_cannot_be_away_is_refused(value: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        away.without_away(GROUPS, value)
    assert str(caught.value) == says


def test_removal_is_of_some_nodes_or_of_all() -> None:
    assert FILTERS["removed_nodes"](GROUPS, "n3", "n1") == ["n3"]
    assert FILTERS["staying_nodes"](GROUPS, "n3", "n1") == ["h", "n2"]
    assert FILTERS["removed_nodes"](GROUPS, [], "n1") == ["h", "n2", "n3"]
    assert FILTERS["staying_nodes"](GROUPS) == []
    assert FILTERS["staying_nodes"](GROUPS, "h,n1,n2,n3") == []
    with pytest.raises(InputError, match='nodes: got "h"; the others need the head'):
        away.removed(GROUPS, "h,n1", [])


def test_a_node_that_is_shut_out_is_not_asked() -> None:
    assert FILTERS["removed_nodes"](GROUPS, "n3", [], "true") == []
    assert FILTERS["removed_nodes"](GROUPS, "n3", [], "false") == ["n3"]
    for nodes in ([], "h,n1,n2,n3"):
        with pytest.raises(InputError, match=r"shut_out: got .*; say which nodes the others shut out: -e nodes=n3"):
            away.asked(GROUPS, nodes, [], "true")
    with pytest.raises(InputError, match="shut_out: got "):
        away.asked(GROUPS, "n3", [], "perhaps")


def test_what_cannot_be_asked_for_ends_the_play() -> None:
    with pytest.raises(AnsibleFilterError, match="shut_out: got "):
        FILTERS["removed_nodes"](GROUPS, "n3", [], "perhaps")


def test_a_task_asks_its_host() -> None:
    variables = {"inventory_hostname": "n1", "groups": GROUPS, "hostvars": {"n1": {"away": "n2"}}}
    assert away.groups_of(variables)["workers"] == ["n1", "n3"]
