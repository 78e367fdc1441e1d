# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nodes are told for the network test: where the others listen, and the steps of each. Types of JSON."""

from __future__ import annotations

from typing import TypedDict, Union, final


class AgentLate(TypedDict, total=False):
    last_port: int  # of a range: the last one that is free


class Agent(AgentLate):
    """Where the agent of a node listens, and its token."""

    port: int
    token: str


class Peer(TypedDict):
    """A node that is to be reached. The connection must use `nic` and `source`. `mtu`: bytes."""

    node: str
    network: str
    address: str
    port: int
    last_port: int  # 0: none
    token: str
    nic: str
    source: str
    mtu: int


class StepLate(TypedDict, total=False):
    """What a client needs of the node that it measures with."""

    address: str
    port: int
    token: str
    last_port: int


class LinkFields(StepLate):
    """What a node does in a round: as the client it measures the link to another. `seconds`: in each direction."""

    network: str
    round: int
    seconds: float
    role: str  # client or server
    node: str  # the other one


@final
class LinkStep(LinkFields):
    """A step without packets of the full size."""


@final
class FullLinkStep(LinkFields):
    """A step with packets that no router may split. `mtu`: bytes."""

    nic: str
    mtu: int


class RailTestLate(TypedDict, total=False):
    own: dict[str, str | int | None]  # by RDMA: the ports, as perftest.Port
    other: dict[str, str | int | None]
    nic: str  # by TCP, as the rest
    source: str
    address: str
    mtu: int


class RailTest(RailTestLate):
    """The test of a rail by RDMA, or by TCP over its NIC."""

    rail: str  # the name of the rail here
    peer: str  # and on the other node
    by: str  # rdma or tcp


@final
class RailStep(StepLate):
    """What a node does in a round: as the client it tests its rails to another node."""

    round: int
    seconds: float
    role: str
    node: str
    rails: list[RailTest]


Step = Union[LinkStep, FullLinkStep, RailStep]
Server = Union[Agent, Peer, Step]  # has port and token of an agent
