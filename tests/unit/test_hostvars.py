"""The inventory as Ansible has it, and the cluster that is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    to_plain,
)


def test_inventory_to_cluster() -> None:
    hostvars: dict[str, Any] = {
        "h": {"ansible_connection": "local", "ansible_python_interpreter": "auto_silent"},
        "w": {
            "ansible_host": "10.0.0.2",
            "slots": "8",
            "torchfleet_home": "/data/tf",
            "torchfleet_python": "/c/python",
        },
    }
    cluster = cluster_from_hostvars({"head": ["h"], "workers": ["h", "w"]}, hostvars)
    assert (cluster.head.local, cluster.head.interpreter, cluster.head.slots) == (True, "python3", None)
    assert (cluster.workers[1].address, cluster.workers[1].slots) == ("10.0.0.2", 8)
    assert (cluster.workers[1].home, cluster.workers[1].python) == ("/data/tf", "/c/python")


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ({}, "group head needs one host"),
        ({"head": [], "workers": ["h"]}, "group head needs one host"),
        ({"head": ["h", "w"], "workers": ["h"]}, "group head needs one host"),
        ({"head": ["h"]}, "group workers needs hosts"),
    ],
)
def test_groups_that_are_missing(groups: dict[str, list[str]], text: str) -> None:
    with pytest.raises(InputError, match=text):
        cluster_from_hostvars(groups, {"h": {}, "w": {}})


def test_to_plain_leaves_no_foreign_types() -> None:
    class Tagged(str):
        pass

    plain = to_plain({Tagged("a"): [Tagged("b"), 1, 1.5, True, None, (2,)]})
    assert plain == {"a": ["b", 1, 1.5, True, None, [2]]}
    assert type(next(iter(plain))) is str and type(plain["a"][0]) is str and plain["a"][3] is True
