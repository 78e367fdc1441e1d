"""What all nodes go back to, and why none does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import environment_version
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented, values_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import version_changes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.version_changes import NowhereError, back

PATHS = {"pytorch": "/h/pytorch", "openmpi": "/h/openmpi"}


def seen(used: str = "2-b", before: str = "1-a", job: str = "") -> dict[str, str]:
    return {"used": used, "before": before, "job": job}


NONE = seen("", "")
BOTH = {"n1": {"pytorch": seen(), "openmpi": seen()}, "n2": {"pytorch": seen(), "openmpi": seen()}}


def test_all_nodes_go_back_with_what_has_a_version_before() -> None:
    assert back(BOTH, []) == {node: {"pytorch": "1-a", "openmpi": "1-a"} for node in BOTH}
    assert back(BOTH, ["openmpi"]) == {node: {"openmpi": "1-a"} for node in BOTH}
    head = {"n1": {"pytorch": NONE, "openmpi": seen(before="")}, "n2": {"pytorch": seen(), "openmpi": seen(before="")}}
    assert back(head, []) == {"n1": {}, "n2": {"pytorch": "1-a"}}


def test_a_diff_has_the_paths_that_lead_elsewhere() -> None:
    (row,) = version_changes.difference(PATHS, {"openmpi": "1-a"}, {"pytorch": "2-b", "openmpi": "2-b"})
    assert row == {"before_header": "/h/openmpi", "after_header": "/h/openmpi", "before": "1-a\n", "after": "2-b\n"}
    (row,) = version_changes.difference(PATHS, {"openmpi": ""}, {"openmpi": "2-b"})
    assert row["before"] == ""


@pytest.mark.parametrize(
    ("n2", "parts", "says"),
    [
        ({"pytorch": seen(), "openmpi": seen(before="")}, [], "no version of openmpi before that in use on n2 (2-b)"),
        ({"pytorch": seen(before="1-other"), "openmpi": seen()}, [], None),  # another Python
        (
            {"pytorch": seen(before="0-a"), "openmpi": seen()},
            [],
            "pytorch would not be one version on all nodes: 1-a on",
        ),
        (
            {"pytorch": seen(job="one"), "openmpi": seen(job="one")},
            [],
            "job one runs on n2: wait for its end, or end it",
        ),
    ],
)
def test_no_node_goes_back_where_one_cannot(n2: dict[str, Any], parts: list[str], says: str | None) -> None:
    looks = {"n1": BOTH["n1"], "n2": n2}
    if says is None:
        assert back(looks, parts)["n2"]["pytorch"] == "1-other"
        return
    with pytest.raises(NowhereError) as caught:
        back(looks, parts)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_nodes_with_other_gpus_go_back_to_their_own_builds_of_one_version() -> None:
    builds = {"n1": "1.0+cu130-a", "n2": "1.0+rocm6.4-b", "n3": "1.0-c"}
    found = back({node: {"pytorch": seen(before=name)} for node, name in builds.items()}, [])
    assert {node: each["pytorch"] for node, each in found.items()} == builds


def test_where_there_is_nothing_before_one_line_says_so() -> None:
    with pytest.raises(NowhereError, match="nothing to go back to"):
        back({"n1": {"pytorch": seen(before=""), "openmpi": NONE}}, [])
    with pytest.raises(NowhereError, match="openmpi is not installed"):
        back({"n1": {"pytorch": seen(), "openmpi": NONE}}, ["openmpi"])


def test_parts_are_a_list_or_names_with_commas() -> None:
    assert version_changes.parts_in("openmpi, pytorch", PATHS) == ["openmpi", "pytorch"]
    assert version_changes.parts_in(["openmpi"], PATHS) == ["openmpi"]
    for given in ("opnmpi", [7], {"openmpi": True}):
        with pytest.raises(InputError, match="give some of pytorch, openmpi: -e parts=pytorch"):
            version_changes.parts_in(given, PATHS)


# --- the action -------------------------------------------------------------------------------------------------------


class Node:
    """The action on n1 of two nodes. `answers`: of the module, by state."""

    def __init__(self, registered: dict[str, Any], **answers: Any) -> None:
        self.registered, self.answers, self.asked = registered, answers, list[str]()

    def act(self, state: str, check: bool = False, **given: Any) -> dict[str, Any]:
        action: Any = object.__new__(environment_version.ActionModule)
        action._task = SimpleNamespace(check_mode=check)

        def answer(_variables: Any, options: dict[str, Any]) -> Any:
            self.asked.append(options["state"])
            return self.answers[options["state"]]

        action.answer = answer
        hostvars = {node: {"before": self.registered.get(node)} for node in ("n1", "n2")}
        variables = {"inventory_hostname": "n1", "ansible_play_hosts_all": ["n1", "n2"], "hostvars": hostvars}
        asked = {"state": state, "paths": {"openmpi": "/h/openmpi"}, "after": "before", **given}
        options = values_of("environment_version", asked, documented("environment_version"))
        return dict(action.act(options, variables))


READY = {"n1": {"changed": False}, "n2": {"changed": True}}
WANTED: dict[str, Any] = {"versions": {"openmpi": "2-b"}, "used": {"openmpi": "1-a"}}


@pytest.mark.parametrize(
    "lost", [{"failed": True, "msg": "openmpi: broken"}, {"unreachable": True, "msg": "gone"}, None]
)
def test_no_link_is_changed_unless_all_nodes_are_ready(lost: Any) -> None:
    node = Node({"n1": {"changed": False}, "n2": lost})
    failed = node.act("use", **WANTED)
    assert failed["failed"] and failed["msg"].startswith("openmpi: n2 is not ready, so no node changes: ")
    assert node.asked == []


def test_a_change_is_told() -> None:
    used = Node(READY, use={"changed": True, "was": {"openmpi": "1-a", "odd": "\x1b"}}).act("use", **WANTED)
    assert (used["was"], used["msg"]) == ({"openmpi": "1-a"}, "uses: openmpi 2-b instead of 1-a")
    idle = Node(READY)
    assert idle.act("use", versions={"openmpi": "2-b"}, used={"openmpi": "2-b"})["was"] == {} and idle.asked == []


def test_a_node_that_could_not_change_takes_the_others_back() -> None:
    why = Node(READY, use={"failed": True, "msg": "openmpi: no space"}).act("use", **WANTED)
    assert why == {"changed": False, "why": "openmpi: no space"}
    node = Node({"n1": {"changed": True, "was": {"openmpi": "1-a"}}, "n2": why}, undo={"changed": True})
    failed = node.act("settle")
    assert failed["msg"] == "openmpi: n2 could not change, so every node keeps what it had: openmpi: no space"
    assert node.asked == ["undo"]


def test_a_node_that_changed_nothing_goes_on() -> None:
    node = Node({"n1": {"changed": False, "was": {}}, "n2": {"failed": True, "msg": "broken"}})
    assert "failed" not in node.act("use", versions={"openmpi": "2-b"}, used={"openmpi": "2-b"})
    assert "failed" not in node.act("settle") and node.asked == []


def test_old_versions_go_when_all_nodes_have_changed() -> None:
    changed = {node: {"changed": True, "was": {"openmpi": "1-a"}} for node in ("n1", "n2")}
    node = Node(changed, settle={"changed": False, "removed": []})
    assert not node.act("settle", check=True)["changed"] and node.asked == []
    node.act("settle")
    assert node.asked == ["settle"]
    with pytest.raises(InputError, match="torchfleet_keep_versions"):
        node.act("settle", keep=-1)


def test_a_node_that_did_not_look_stops_the_plan() -> None:
    failed = Node({"n1": {"changed": False, "found": {}}, "n2": {"unreachable": True, "msg": "no route"}}).act("plan")
    assert failed["msg"] == "n2 cannot go back, so no node does: no route; -e away=n2"


def test_a_look_that_is_none_is_refused() -> None:
    odd = {"openmpi": {"used": "../../etc", "before": "", "job": ""}}
    with pytest.raises(InputError, match="answer of n1"):
        Node({}, look={"changed": False, "found": odd}).act("look")
