# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The CloudFormation template of a cluster: one stack, from which everything derives. Pure.

One stack, because it is one handle: it is made whole or taken back (no capacity for the last worker means no cluster),
deleting it ends everything in the right order, and nothing has to be remembered on the controller.

Sources: CloudFormation's template reference; EC2 User Guide, "Get started with EFA" (rules of the security group,
network cards), "Placement groups", "Instance metadata options".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from .answers import Image, Subnet, TypeFacts
from .request import Address, Group, Request

Json = object
Resource = dict[str, Json]
Template = dict[str, dict[str, Json]]
SHARED = ("UserDataBegin", "UserDataEnd", "Expires", "GraceHours")  # parameters of all instances
MOST_BYTES = 51200  # of a template that is given with the call (CloudFormation quotas)
LOGICAL = re.compile(r"N(\d{1,3})(?:G(\d{1,3}))?\Z")
TAG, NODE_TAG, OWNER_TAG, EXPIRES_TAG = "torchfleet", "torchfleet:node", "torchfleet:owner", "torchfleet:expires"
GRACE_TAG = "torchfleet:grace-hours"
UNTIL = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Kind:
    """A group with what AWS told of its type and image."""

    group: Group
    facts: TypeFacts
    image: Image

    @property
    def slots(self) -> int:
        """Ranks of an instance: as asked for, else its GPUs, else its cores."""
        return self.group.slots or self.facts.gpus or self.facts.cores


@dataclass(frozen=True)
class Member:
    """An instance of the cluster. `generation` counts how often it was lost and made again."""

    number: int
    kind: int  # index of Plan.kinds
    generation: int = 0

    @property
    def node(self) -> str:
        return f"n{self.number}"

    @property
    def logical(self) -> str:
        """Its name in the template; another one for another generation, for CloudFormation does not look after it."""
        return f"N{self.number}" + (f"G{self.generation}" if self.generation else "")


@dataclass(frozen=True)
class Plan:
    """A cluster as it is to be."""

    request: Request
    kinds: tuple[Kind, ...]
    members: tuple[Member, ...]
    subnet: Subnet
    ssh_from: str
    owner: str

    def kind_of(self, member: Member) -> Kind:
        return self.kinds[member.kind]

    @property
    def head(self) -> Member:
        """The head: the instance of its own group, else the first worker."""
        return self.members[0]

    @property
    def workers(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if not self.kind_of(member).group.head)

    @property
    def packed(self) -> bool:
        """Whether the workers are to be near each other: those of one type, if it can be placed so.

        Of several types there is seldom room in one place (EC2 User Guide). One worker alone is too: it may get others.
        """
        kinds = [kind for kind in self.kinds if not kind.group.head]
        return len(kinds) == 1 and kinds[0].facts.cluster_placement

    def cards(self, kind: Kind) -> tuple[tuple[int, str], ...]:
        """Return the network cards of an instance that get an EFA interface.

        An instance with several interfaces gets no public address (EC2 User Guide, "Elastic network interfaces").
        """
        several = self.request.address is Address.PRIVATE
        return () if kind.group.head else kind.facts.efa if several else kind.facts.efa[:1]


@dataclass(frozen=True)
class Made:
    """What was found when a cluster was made, and stays for it: defaults mean something else at another time.

    `shape` has what cannot change, by option.
    """

    owner: str
    subnet: str
    images: tuple[str, ...]
    shape: Mapping[str, Json]


def made_in(template: Mapping[str, Json]) -> Made | None:
    """Return what a template notes of its making; None if the template is not ours."""
    metadata = template.get("Metadata")
    found = metadata.get("torchfleet") if isinstance(metadata, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    owner, shape = found.get("owner"), found.get("shape")
    if not isinstance(owner, str) or not isinstance(shape, Mapping):
        return None
    images = shape.get("cluster_image")
    names = tuple(map(str, images)) if isinstance(images, list) else ()
    return Made(owner, str(shape.get("cluster_subnet", "")), names, shape)


def shape_of(plan: Plan) -> dict[str, Json]:
    """Return what cannot change in a cluster, by option: for each group, or for all."""
    groups = [kind.group for kind in plan.kinds]
    return {
        "cluster_nodes": [f"{'head' if group.head else 'workers'} {group.type}" for group in groups],
        "cluster_image": [kind.image.id for kind in plan.kinds],
        "cluster_spot": [group.spot for group in groups],
        "cluster_disk_gb": [group.disk_gb for group in groups],
        "cluster_subnet": plan.subnet.id,
        "cluster_address": plan.request.address.value,
    }


def members_of(groups: tuple[Group, ...], generations: Mapping[int, int] | None = None) -> tuple[Member, ...]:
    """Return all instances, numbered in the order of the groups: n1 is the head."""
    kinds = [index for index, group in enumerate(groups) for _each in range(group.count)]
    return tuple(Member(number, kind, (generations or {}).get(number, 0)) for number, kind in enumerate(kinds, start=1))


def render(plan: Plan) -> Template:
    """Return the template."""
    resources: dict[str, Json] = {
        "Group": security_group(plan),
        "GroupIn": within_group("AWS::EC2::SecurityGroupIngress", "SourceSecurityGroupId"),
        # EFA needs a rule that names the group: one for all addresses does not let it out (EC2 User Guide, EFA).
        "GroupOut": within_group("AWS::EC2::SecurityGroupEgress", "DestinationSecurityGroupId"),
    }
    if plan.packed:
        resources["Placement"] = {"Type": "AWS::EC2::PlacementGroup", "Properties": {"Strategy": "cluster"}}
    for index, kind in enumerate(plan.kinds):
        resources[f"Kind{index}"] = launch_template(plan, kind)
    for member in plan.members:
        resources[member.logical] = instance(plan, member)
    parameters: dict[str, Json] = {name: {"Type": "String"} for name in SHARED}
    # NoEcho: whoever may look at the stack does not see the key. It is for the first login only anyway.
    parameters.update((own_of(member), {"Type": "String", "NoEcho": True}) for member in plan.members)
    head: dict[str, Json] = {"AWSTemplateFormatVersion": "2010-09-09"}
    head["Description"] = f"torchfleet cluster {plan.request.name}"
    head["Metadata"] = {"torchfleet": {"owner": plan.owner, "shape": shape_of(plan)}}
    return {**head, "Parameters": parameters, "Resources": resources}  # type: ignore[dict-item]


def own_of(member: Member) -> str:
    """Return the name of the parameter with the own piece of an instance's user data."""
    return f"UserData{member.logical}"


def security_group(plan: Plan) -> Resource:
    """Return the group of all instances: SSH from the controller, everything among themselves (GroupIn, GroupOut)."""
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": plan.ssh_from, "Description": "the controller"}
    properties: Resource = {
        "GroupDescription": f"torchfleet cluster {plan.request.name}",
        "VpcId": plan.subnet.vpc,
        "SecurityGroupIngress": [ssh],
        "SecurityGroupEgress": [{"IpProtocol": "-1", "CidrIp": "0.0.0.0/0", "Description": "packages"}],
    }
    return {"Type": "AWS::EC2::SecurityGroup", "Properties": properties}


def within_group(kind: str, other: str) -> Resource:
    """Return the rule that all traffic between instances of the cluster may pass: MPI and NCCL take any ports."""
    group = {"Fn::GetAtt": ["Group", "GroupId"]}
    return {"Type": kind, "Properties": {"GroupId": group, "IpProtocol": "-1", other: group}}


def tags(plan: Plan, **more: Json) -> list[Json]:
    """Return the tags of whatever is billed: whose it is, and until when, as it was when it was made (renewal.py)."""
    found: dict[str, Json] = {TAG: plan.request.name, OWNER_TAG: plan.owner, EXPIRES_TAG: {"Ref": "Expires"}, **more}
    return [{"Key": name, "Value": value} for name, value in found.items()]


def launch_template(plan: Plan, kind: Kind) -> Resource:
    """Return what a resource of type Instance cannot say itself: spot, IMDSv2, EFA."""
    size = max(kind.group.disk_gb, kind.image.root_gb)
    disk = {"VolumeType": "gp3", "VolumeSize": size, "Encrypted": True, "DeleteOnTermination": True}
    data: Resource = {
        "BlockDeviceMappings": [{"DeviceName": kind.image.root, "Ebs": disk}],
        # The lease powers the instance off: that must end it, with its disk, or it would be billed on.
        "InstanceInitiatedShutdownBehavior": "terminate",
        # IMDSv2, one hop: a program that can be made to fetch an address for somebody else gets no secrets there.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [{"ResourceType": what, "Tags": tags(plan)} for what in ("volume", "network-interface")],
    }
    if plan.packed and not kind.group.head:
        data["Placement"] = {"GroupName": {"Ref": "Placement"}}
    if kind.group.spot:
        market = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        data["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": market}
    if plan.cards(kind):
        data["NetworkInterfaces"] = [interface(plan, card, what) for card, what in plan.cards(kind)]
    return {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"LaunchTemplateData": data}}


def interface(plan: Plan, card: int, what: str) -> Resource:
    """Return an EFA interface on a network card. The first one has the addresses."""
    found: Resource = {
        "DeviceIndex": 0 if card == 0 else 1,
        "NetworkCardIndex": card,
        "InterfaceType": what,
        "SubnetId": plan.subnet.id,
        "Groups": [{"Fn::GetAtt": ["Group", "GroupId"]}],
        "DeleteOnTermination": True,
    }
    if card == 0 and plan.request.address is Address.PUBLIC:
        found["AssociatePublicIpAddress"] = True
    return found


def instance(plan: Plan, member: Member) -> Resource:
    """Return an instance. With an EFA interface, subnet and group are those of the interface: EC2 takes no others."""
    kind = plan.kind_of(member)
    parts = "".join(f"${{{name}}}" for name in ("UserDataBegin", own_of(member), "UserDataEnd"))
    properties: Resource = {
        "ImageId": kind.image.id,
        "InstanceType": kind.facts.name,
        "LaunchTemplate": {
            "LaunchTemplateId": {"Ref": f"Kind{member.kind}"},
            "Version": {"Fn::GetAtt": [f"Kind{member.kind}", "LatestVersionNumber"]},
        },
        "UserData": {"Fn::Base64": {"Fn::Sub": parts}},
        "Tags": tags(
            plan, Name=f"{plan.request.name}-{member.node}", **{NODE_TAG: member.node, GRACE_TAG: {"Ref": "GraceHours"}}
        ),
    }
    if not plan.cards(kind):
        properties["SubnetId"] = plan.subnet.id
        properties["SecurityGroupIds"] = [{"Fn::GetAtt": ["Group", "GroupId"]}]
    # The rules must be there before an instance meets another one, and as long as it runs.
    return {"Type": "AWS::EC2::Instance", "DependsOn": ["GroupIn", "GroupOut"], "Properties": properties}


def until_text(until: datetime) -> str:
    """Return a time as the tag has it."""
    return until.strftime(UNTIL)


def node_of(logical: str) -> str:
    """Return the node that an instance in a template is; an empty text for one that is not ours."""
    match = LOGICAL.match(logical)
    return f"n{match[1]}" if match else ""


def nodes_in(template: Mapping[str, Json]) -> dict[int, int]:
    """Return the number and generation of each instance in a template."""
    resources = template.get("Resources")
    names = resources if isinstance(resources, Mapping) else {}
    found = [LOGICAL.match(str(name)) for name in names]
    return {int(match[1]): int(match[2] or 0) for match in found if match}


def difference(was: Mapping[str, Json], wanted: Template) -> Iterator[str]:
    """Yield the resources that are in both templates and differ. Only Group may: its rule has the controller's address.

    CloudFormation would end and replace an instance whose template says something else: never without being asked.
    """
    resources = was.get("Resources")
    old = resources if isinstance(resources, Mapping) else {}
    for name, resource in wanted["Resources"].items():
        if name in old and old[name] != resource and name != "Group":
            yield str(name)
