# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What AWS answers, as far as a cluster needs it: typed, and checked once. Pure.

Each function takes the answer of one call of boto3. CloudError for an answer that is not as the API's reference says.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .errors import CloudError

Tags = Mapping[str, str]
GONE = ("shutting-down", "terminated")  # states of an instance that nobody is billed for any more


@dataclass(frozen=True)
class TypeFacts:
    """An instance type in a region. `efa`: interface type (efa, efa-only) of each network card that has EFA."""

    name: str
    architecture: str
    cores: int
    gpus: int
    gpu_vendor: str
    cluster_placement: bool
    spot: bool
    efa: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Subnet:
    """A subnet, and whether its instances get public addresses by themselves."""

    id: str
    vpc: str
    zone: str
    public: bool


@dataclass(frozen=True)
class Image:
    """A machine image: its root device (/dev/xvda), the size of that in GiB."""

    id: str
    name: str
    architecture: str
    root: str
    root_gb: int


@dataclass(frozen=True)
class Instance:
    """An instance. `node`: its name in the inventory. `parts`: ids of its volumes and network interfaces."""

    id: str
    node: str
    type: str
    state: str
    public: str
    private: str
    tags: Tags
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Volume:
    """A volume that no instance uses."""

    id: str
    tags: Tags


@dataclass(frozen=True)
class Remain:
    """A volume, network interface or address, and the id of the instance that uses it, empty if none does."""

    id: str
    instance: str


@dataclass(frozen=True)
class Stack:
    """A stack. `parameters` has what CloudFormation shows of them."""

    id: str
    name: str
    status: str
    reason: str
    parameters: Mapping[str, str]
    tags: Tags


@dataclass(frozen=True)
class Event:
    """Something that happened to a resource of a stack, newest first."""

    resource: str
    kind: str
    status: str
    reason: str


def rows(answer: object, key: str) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a list in an answer; a list that is left out is empty."""
    found = answer.get(key, []) if isinstance(answer, Mapping) else None
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise CloudError.unreadable(key)
    for row in found:
        if not isinstance(row, Mapping):
            raise CloudError.unreadable(key)
        yield row


def part(row: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return an object in an answer; one that is left out is empty."""
    found = row.get(key, {})
    if not isinstance(found, Mapping):
        raise CloudError.unreadable(key)
    return found


def text(row: Mapping[str, object], key: str, default: str | None = None) -> str:
    """Return a text of printable characters on one line."""
    found = row.get(key, default)
    if not isinstance(found, str):
        raise CloudError.unreadable(key)
    return "".join(character if character.isprintable() else " " for character in found)


def number(row: Mapping[str, object], key: str, default: int | None = None) -> int:
    """Return a whole number that is not negative."""
    found = row.get(key, default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise CloudError.unreadable(key)
    return found


def texts(row: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return a list of texts."""
    found = row.get(key, [])
    if not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
        raise CloudError.unreadable(key)
    return tuple(found)


def address(row: Mapping[str, object], key: str) -> str:
    """Return an IPv4 address, an empty text if there is none."""
    found = text(row, key, "")
    try:
        return str(ipaddress.IPv4Address(found)) if found else ""
    except ValueError:
        raise CloudError.unreadable(key) from None


def tags_of(row: Mapping[str, object]) -> Tags:
    """Return the tags of anything that has some."""
    return {text(tag, "Key"): text(tag, "Value", "") for tag in rows(row, "Tags")}


def types_in(answer: object) -> Iterator[TypeFacts]:
    """Yield the types of DescribeInstanceTypes."""
    for row in rows(answer, "InstanceTypes"):
        gpus = list(rows(part(row, "GpuInfo"), "Gpus"))
        cards = [(number(card, "NetworkCardIndex"), card) for card in rows(part(row, "NetworkInfo"), "NetworkCards")]
        # The first card also carries IP (efa); the others need no address of their own (efa-only) where there is that.
        efa = [
            (index, "efa" if index == 0 or "efa-only" not in texts(card, "InterfaceTypes") else "efa-only")
            for index, card in cards
            if "efa" in texts(card, "InterfaceTypes")
        ]
        yield TypeFacts(
            name=text(row, "InstanceType"),
            architecture=(texts(part(row, "ProcessorInfo"), "SupportedArchitectures") or ("",))[-1],
            cores=number(part(row, "VCpuInfo"), "DefaultCores", 1),
            gpus=sum(number(gpu, "Count", 0) for gpu in gpus),
            gpu_vendor=text(gpus[0], "Manufacturer", "").lower() if gpus else "",
            cluster_placement="cluster" in texts(part(row, "PlacementGroupInfo"), "SupportedStrategies"),
            spot="spot" in texts(row, "SupportedUsageClasses"),
            efa=tuple(efa),
        )


def offers_in(answer: object) -> Iterator[tuple[str, str]]:
    """Yield type and zone of DescribeInstanceTypeOfferings."""
    return ((text(row, "InstanceType"), text(row, "Location")) for row in rows(answer, "InstanceTypeOfferings"))


def subnets_in(answer: object) -> Iterator[Subnet]:
    """Yield the subnets of DescribeSubnets."""
    for row in rows(answer, "Subnets"):
        public = row.get("MapPublicIpOnLaunch") is True
        yield Subnet(text(row, "SubnetId"), text(row, "VpcId"), text(row, "AvailabilityZone"), public)


def images_in(answer: object) -> Iterator[Image]:
    """Yield the images of DescribeImages. The size of the root volume is 0 where it is not told."""
    for row in rows(answer, "Images"):
        root = text(row, "RootDeviceName", "/dev/sda1")
        sizes = {
            text(disk, "DeviceName", ""): number(part(disk, "Ebs"), "VolumeSize", 0)
            for disk in rows(row, "BlockDeviceMappings")
        }
        yield Image(text(row, "ImageId"), text(row, "Name", ""), text(row, "Architecture"), root, sizes.get(root, 0))


def instances_in(answer: object) -> Iterator[Instance]:
    """Yield the instances of DescribeInstances, whatever their state."""
    for reservation in rows(answer, "Reservations"):
        for row in rows(reservation, "Instances"):
            tags = tags_of(row)
            yield Instance(
                id=text(row, "InstanceId"),
                node=tags.get("torchfleet:node", ""),
                type=text(row, "InstanceType", ""),
                state=text(part(row, "State"), "Name"),
                public=address(row, "PublicIpAddress"),
                private=address(row, "PrivateIpAddress"),
                tags=tags,
                parts=parts_in(row),
            )


def parts_in(row: Mapping[str, object]) -> tuple[str, ...]:
    """Return the ids of the volumes and network interfaces of an instance."""
    volumes = [text(part(disk, "Ebs"), "VolumeId", "") for disk in rows(row, "BlockDeviceMappings")]
    return (*filter(None, volumes), *(text(each, "NetworkInterfaceId") for each in rows(row, "NetworkInterfaces")))


def members_in(answer: object) -> Iterator[tuple[str, str]]:
    """Yield the logical name and id of each instance of ListStackResources. One that was not made yet has no id."""
    for row in rows(answer, "StackResourceSummaries"):
        if text(row, "ResourceType") == "AWS::EC2::Instance" and row.get("PhysicalResourceId"):
            yield text(row, "LogicalResourceId"), text(row, "PhysicalResourceId")


def remains_in(answer: object, key: str, name: str) -> Iterator[Remain]:
    """Yield what DescribeVolumes, DescribeNetworkInterfaces or DescribeAddresses has, and the instance that uses it."""
    for row in rows(answer, key):
        uses = [*rows(row, "Attachments"), part(row, "Attachment"), row]
        yield Remain(text(row, name), next((found for use in uses if (found := text(use, "InstanceId", ""))), ""))


def volumes_in(answer: object) -> Iterator[Volume]:
    """Yield the volumes of DescribeVolumes."""
    return (Volume(text(row, "VolumeId"), tags_of(row)) for row in rows(answer, "Volumes"))


def stacks_in(answer: object) -> Iterator[Stack]:
    """Yield the stacks of DescribeStacks."""
    for row in rows(answer, "Stacks"):
        parameters = {text(each, "ParameterKey"): text(each, "ParameterValue", "") for each in rows(row, "Parameters")}
        reason = text(row, "StackStatusReason", "")
        yield Stack(
            text(row, "StackId"), text(row, "StackName"), text(row, "StackStatus"), reason, parameters, tags_of(row)
        )


def events_in(answer: object) -> Iterator[Event]:
    """Yield the events of DescribeStackEvents."""
    for row in rows(answer, "StackEvents"):
        reason = text(row, "ResourceStatusReason", "")
        yield Event(text(row, "LogicalResourceId"), text(row, "ResourceType", ""), text(row, "ResourceStatus"), reason)


def price_in(answer: object) -> float | None:
    """Return the dollars an hour on demand of GetProducts; None if there is no such product."""
    for document in texts(answer, "PriceList") if isinstance(answer, Mapping) else ():
        try:
            terms = json.loads(document)["terms"]["OnDemand"].values()
            dollars = [float(row["pricePerUnit"]["USD"]) for term in terms for row in term["priceDimensions"].values()]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise CloudError.unreadable("PriceList") from None
        if dollars and 0 < max(dollars) < 1e6:
            return max(dollars)
    return None


def spot_price_in(answer: object) -> float | None:
    """Return the dollars an hour that DescribeSpotPriceHistory says now; None if it says none."""
    for row in rows(answer, "SpotPriceHistory"):
        try:
            price = float(text(row, "SpotPrice"))
        except ValueError:
            raise CloudError.unreadable("SpotPrice") from None
        return price if 0 < price < 1e6 else None
    return None
