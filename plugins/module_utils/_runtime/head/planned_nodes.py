# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The nodes of a job that starts on the head without its controller: whether they are still as it was planned for."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Protocol

from ..basics.job_directory import open_file
from ..nodes.remote_node import in_parallel
from ..nodes.survey import ssh_config, survey
from ..types.file_messages import FolderOffer
from ..types.orders import RunOrder
from ..types.reasons import NotAsPlanned, NoteCode
from ..types.records import AnyFacts
from ..wire import protocol
from .head_job import Controller, order_of

OWN = ""  # among the facts by host: those of the head
# What of a node's facts a plan is made of, with the words for people.
PLANNED_WITH = {
    **{"home": "torchfleet_home", "uid": "the user", "interpreter": "Python", "python": "the Python of programs"},
    **{"torch": "PyTorch", "launcher": "the launcher", "accelerators": "GPUs", "fabric": "the chosen NIC"},
    **{"lost_address": "an address", "program": "the environment of the program", "script": "the script"},
    "container": "the container image",
}


class Head(Controller, Protocol):
    """What such a job needs of the supervisor: the nodes as they were planned with, and the way to them."""

    given_up: dict[str, str]
    asked: protocol.Survey | None
    facts: dict[str, AnyFacts]
    offered: FolderOffer | None

    def survey_node(self, route: protocol.SurveyRoute, home: str) -> AnyFacts: ...


CONFIG_BYTES = 16 << 20  # of the mesh's ssh configuration: some 300 for each node


class Difference(NamedTuple):
    """What is not as it was planned with: `code` decides, `text` explains. `host`: of that node."""

    code: NotAsPlanned
    host: str
    text: str


class PlannedNodes:
    """The nodes of one job. `facts`: those that it was planned with, by host."""

    def __init__(self, head: Head, run_order: RunOrder) -> None:
        self.head, self.run_order = head, run_order
        self.order = order_of(run_order, run_order["job"]["head"])
        self.hosts = list(dict.fromkeys(place["host"] for place in self.order["placement"]))
        self.facts = {**head.facts, self.order["head"]: head.facts[OWN]} if OWN in head.facts else head.facts

    def let_go(self) -> None:
        """Close the connections to the other nodes: they may restart meanwhile."""
        in_parallel(lambda peer: peer.remote.close(), self.head.peers.values())
        self.head.peers.clear()

    def look_anew(self) -> dict[str, AnyFacts]:
        """Return the facts of the job's nodes as they are now."""
        asked, port = self.head.asked, self.order["master_port"]
        if asked is None:
            return {}
        self.head.given_up.clear()
        wanted = {route["host"] for route in self.run_order["routes"]}
        routes = [route for route in asked.get("nodes", []) if route["host"] in wanted]
        for route in routes:
            route["request"]["port"] = port
        found = in_parallel(lambda route: self.head.survey_node(route, self.order["home"]), routes)
        own = survey({**asked["request"], "port": port})
        return {self.order["head"]: own, **{route["host"]: row for route, row in zip(routes, found)}}

    def changed(self, facts: Mapping[str, AnyFacts]) -> Difference | None:
        """Return why the plan of the job is no longer right, or None."""
        for host, now in facts.items():
            before = self.facts.get(host)
            if "unreachable" in now:
                return self.not_reached(host, now["unreachable"])
            if before is None or "unreachable" in before:
                continue
            other = [text for name, text in PLANNED_WITH.items() if before.get(name) != now.get(name)]
            if other:
                text = f"{host} changed while it waited: {', '.join(other)}; start it again"
                return Difference(NoteCode.NODE_CHANGED, host, text)
            if host == self.hosts[0] and now["port"] != self.order["master_port"]:
                text = f"port {self.order['master_port']} of rank 0 is taken on {host} by now; start it again"
                return Difference(NoteCode.PORT_TAKEN, host, text)
        return None

    def not_reached(self, host: str, why: str) -> Difference:
        """Return that a node does not answer, or is none of this cluster's any more: waiting does not mend that."""
        if is_removed(host, self.order["home"]):
            text = f"{host} is no node of this cluster any more: start it again without it"
            return Difference(NoteCode.NODE_REMOVED, host, text)
        return Difference(NoteCode.NODE_AWAY, host, f"{host} was not reached when its turn came: {why}")


def is_removed(host: str, home: str) -> bool:
    """Whether the SSH mesh of this node, which remove.yml and setup.yml keep, has no such node. Without a mesh: no."""
    try:
        with open(open_file(ssh_config(home))) as file:
            lines = file.read(CONFIG_BYTES).splitlines()
    except (OSError, ValueError):
        return False
    return all(host not in line.split()[1:] for line in lines if line.startswith("Host "))
