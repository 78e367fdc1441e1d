# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the user asks of a cluster on EC2, checked. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import (
    parse_choice,
    parse_flag,
    parse_whole,
)

# A stack is called torchfleet-<name>; a name of CloudFormation has letters, digits and hyphens, 128 at most.
NAME = re.compile(r"[a-z][a-z0-9-]{0,29}\Z")
TYPE = re.compile(r"[a-z][a-z0-9-]{1,19}\.[a-z0-9-]{1,19}\Z")
REGION = re.compile(r"[a-z]{2}(-[a-z]+){1,3}-\d{1,2}\Z")
IMAGE = re.compile(r"ami-[0-9a-f]{8,17}\Z|/[A-Za-z0-9_./-]{1,500}\Z")
SUBNET = re.compile(r"subnet-[0-9a-f]{8,17}\Z")
OWNER = re.compile(r"[\w.@+=:/-]{1,128}\Z", re.ASCII)
MOST_HOURS = 720  # 30 days: a forgotten cluster must end some time
MOST_DISK_GB = 16384  # of a gp3 volume (EBS User Guide)
MOST_INSTANCES = 64  # each takes some 700 bytes of a template, which has 51,200 at most (template.MOST_BYTES)
KEYS = ("count", "type", "spot", "image", "disk_gb", "slots")
EXAMPLE = """-e '{"cluster_nodes": {"head": {"type": "t3.micro"}, "workers": {"count": 2, "type": "g4dn.xlarge"}}}'"""


class Address(Enum):
    """Which address of an instance the controller uses."""

    PUBLIC = "public"
    PRIVATE = "private"


@dataclass(frozen=True)
class Group:
    """Instances that are alike. `image`: an AMI, an SSM parameter, or empty for the default of the type."""

    head: bool
    count: int
    type: str
    spot: bool
    image: str
    disk_gb: int
    slots: int | None


@dataclass(frozen=True)
class Request:
    """A cluster as it was asked for. `subnet`, `ssh_from` and `owner` are empty if they are to be found."""

    name: str
    groups: tuple[Group, ...]
    region: str
    hours: int
    grace_hours: int
    ssh_from: str
    subnet: str
    address: Address
    owner: str

    @property
    def instances(self) -> int:
        return sum(group.count for group in self.groups)


def parse_request(given: Mapping[str, object]) -> Request:
    """Return the cluster that was asked for. InputError for whatever cannot be, before anything is asked of AWS."""
    groups = parse_nodes(given)
    address = Address(parse_choice("cluster_address", given["cluster_address"], tuple(each.value for each in Address)))
    return Request(
        name=parse_name(given["cluster_name"]),
        groups=groups,
        region=parse_region(given["cluster_region"]),
        hours=whole("cluster_hours", given["cluster_hours"], 1, MOST_HOURS),
        grace_hours=whole("cluster_grace_hours", given["cluster_grace_hours"], 0, MOST_HOURS),
        ssh_from=parse_source(given["cluster_ssh_from"]),
        subnet=matched("cluster_subnet", given["cluster_subnet"], SUBNET, "give one such as subnet-0a1b2c3d"),
        address=address,
        owner=parse_owner(given["cluster_owner"]),
    )


def parse_name(value: object) -> str:
    """Return the name of a cluster: part of the name of its stack, and of a path."""
    if not isinstance(value, str) or not NAME.match(value):
        allowed = "give at most 30 of a-z, 0-9 and -, beginning with a letter: -e cluster_name=demo"
        raise InputError("cluster_name", value, allowed)
    return value


def parse_region(value: object) -> str:
    """Return a region; an empty text if it is the one of the user's AWS configuration."""
    return matched("cluster_region", value, REGION, "give a region: -e cluster_region=eu-central-1")


def parse_owner(value: object) -> str:
    """Return whose a cluster is; an empty text if it is the user's own."""
    return matched("cluster_owner", value, OWNER, "give letters, digits and _.:/=+-@")


def matched(name: str, value: object, pattern: re.Pattern[str], allowed: str) -> str:
    """Return a text that fits, or an empty one for none."""
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not pattern.match(value):
        raise InputError(name, value, allowed)
    return value


def whole(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number in its range; it must be given."""
    number = parse_whole(name, value, least, most, EXAMPLE if ", " in name else "")  # of a group
    if number is None:
        raise InputError(name, None, f"give a whole number from {least} to {most}")
    return number


def parse_source(value: object) -> str:
    """Return the IPv4 network that may log in, as CIDR. The whole Internet may log in only if the user types it."""
    if value is None or value == "":
        return ""
    try:
        return str(ipaddress.IPv4Network(str(value)))
    except ValueError:
        allowed = "give the IPv4 address of this controller, or a network: -e cluster_ssh_from=203.0.113.7/32"
        raise InputError("cluster_ssh_from", value, allowed) from None


def parse_nodes(given: Mapping[str, object]) -> tuple[Group, ...]:
    """Return the groups, the head's first. There are workers, and not more instances than cluster_max_instances."""
    nodes = given["cluster_nodes"]
    if not isinstance(nodes, Mapping) or not set(nodes) <= {"head", "workers"} or "workers" not in nodes:
        raise InputError("cluster_nodes", nodes, f"give workers, and a head if it is another machine: {EXAMPLE}")
    workers = nodes["workers"]
    kinds = list(workers) if isinstance(workers, Sequence) and not isinstance(workers, str) else [workers]
    groups = [parse_group("cluster_nodes, head", nodes["head"], True, given)] if "head" in nodes else []
    groups += [parse_group("cluster_nodes, workers", kind, False, given) for kind in kinds]
    if not kinds:
        raise InputError("cluster_nodes, workers", workers, f"give at least one group: {EXAMPLE}")
    total = sum(group.count for group in groups)
    most = whole("cluster_max_instances", given["cluster_max_instances"], 1, MOST_INSTANCES)
    if total > most:
        typed = f"if you mean it, type -e cluster_max_instances={total}" if total <= MOST_INSTANCES else "give fewer"
        raise InputError("cluster_nodes", f"{total} instances", f"cluster_max_instances is {most}; {typed}")
    return tuple(groups)


def parse_group(name: str, value: object, head: bool, given: Mapping[str, object]) -> Group:
    """Return a group. What it does not say itself is taken from the options that are for all groups."""
    if not isinstance(value, Mapping) or not set(value) <= set(KEYS) or "type" not in value:
        raise InputError(name, value, f"give a type, and any of {', '.join(KEYS)}: {EXAMPLE}")
    if not isinstance(value["type"], str) or not TYPE.match(value["type"]):
        raise InputError(f"{name}, type", value["type"], "give an instance type such as t3.xlarge, g4dn.xlarge")
    image = value.get("image", given["cluster_image"])
    slots = value.get("slots")
    return Group(
        head=head,
        count=whole(f"{name}, count", value.get("count", 1), 1, 1 if head else MOST_INSTANCES * 10),
        type=value["type"],
        # A head that AWS takes away ends the jobs of all workers, and is the cheapest of them.
        spot=parse_flag("cluster_spot", value.get("spot", False if head else given["cluster_spot"])),
        image=matched(
            "cluster_image", image, IMAGE, "give an AMI (ami-...) or the path of an SSM parameter (/aws/...)"
        ),
        disk_gb=whole("cluster_disk_gb", value.get("disk_gb", given["cluster_disk_gb"]), 8, MOST_DISK_GB),
        slots=None if slots is None else whole(f"{name}, slots", slots, 1, 1024),
    )
