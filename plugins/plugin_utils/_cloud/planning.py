# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From what the user asks and what the region has to the plan of a cluster, and each choice with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .answers import Image, Instance, Subnet, TypeFacts
from .errors import CloudError
from .files import how_to_remove
from .request import Address, Group, Request, parse_source
from .template import Kind, Made, Plan, members_of

# Public SSM parameters by vendor of the GPUs: Debian (wiki.debian.org/Cloud/AmazonEC2Image), AWS's Deep Learning Base
# AMI with NVIDIA's driver (DLAMI guide), Ubuntu (documentation.ubuntu.com/aws), for which AMD has packages (role rocm).
DEFAULTS = {
    "": ("/aws/service/debian/release/12/latest/{deb}", "Debian 12: no GPUs to drive"),
    "nvidia": (
        "/aws/service/deeplearning/ami/{arch}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
        "AWS's image with NVIDIA's driver and EFA's, on Ubuntu 24.04",
    ),
    "amd": (
        "/aws/service/canonical/ubuntu/server/24.04/stable/current/{deb}/hvm/ebs-gp3/ami-id",
        'Ubuntu 24.04, for which AMD has drivers: setup.yml -e \'{"accelerators": ["rocm"]}\'',
    ),
}
STOPPED = ("stopping", "stopped")  # states of an instance that keeps its disks, which are billed


class Region(Protocol):
    """What a plan asks of AWS (aws.Aws)."""

    region: str

    def who(self) -> str: ...
    def seen_address(self) -> str: ...
    def types(self, names: Sequence[str]) -> dict[str, TypeFacts]: ...
    def zones(self, names: Sequence[str]) -> set[str]: ...
    def subnets(self, subnet: str) -> list[Subnet]: ...
    def parameter(self, path: str) -> str: ...
    def image(self, ami: str) -> Image: ...
    def price(self, kind: str, spot: bool, zone: str) -> float | None: ...


@dataclass(frozen=True)
class Choice:
    """Something that was decided, and why."""

    what: str
    value: str
    why: str


def refuse_stopped(request: Request, members: Sequence[Instance]) -> None:
    """Raise CloudError for instances that somebody stopped: they would be replaced as lost ones, with their disks."""
    found = ", ".join(f"{each.node} ({each.id})" for each in members if each.state in STOPPED)
    if found:
        told = f"cluster {request.name}: stopped by somebody: {found}; this would replace them and their disks"
        start = "start them in the console, which ends them at once if their lease is over"
        raise CloudError("Stopped", f"{told}; {start}, or type {how_to_remove(request.name)}")


def plan_of(request: Request, region: Region, made: Made | None, generations: Mapping[int, int]) -> Plan:
    """Return the plan. `made`: of a cluster that exists, whose subnet, images and owner stay. Raise InputError."""
    facts = region.types([group.type for group in request.groups])
    for group in request.groups:
        if group.type not in facts:
            raise InputError("cluster_nodes, type", group.type, f"{region.region} does not have it: give another")
        if group.spot and not facts[group.type].spot:
            raise InputError("cluster_spot", group.type, "AWS sells no spot instances of it: -e cluster_spot=false")
    subnet = subnet_of(request, region, made)
    kinds = tuple(
        Kind(group, facts[group.type], image_of(group, facts[group.type], region, made, index))
        for index, group in enumerate(request.groups)
    )
    owner = made.owner if made else request.owner or region.who() or "unknown"
    return Plan(request, kinds, members_of(request.groups, generations), subnet, source_of(request, region), owner)


def subnet_of(request: Request, region: Region, made: Made | None) -> Subnet:
    """Return the subnet for all instances: one zone, for between zones the network is slower and is billed."""
    wanted = request.subnet or (made.subnet if made else "")
    subnets = region.subnets(wanted)
    if not wanted:
        zones = region.zones([group.type for group in request.groups])
        subnets = sorted((subnet for subnet in subnets if subnet.zone in zones), key=lambda subnet: subnet.zone)
    if not subnets:
        kinds = ", ".join(sorted({group.type for group in request.groups}))
        advice = "give a subnet in a zone that has them: -e cluster_subnet=subnet-..."
        raise InputError("cluster_subnet", "", f"{region.region} has no default subnet with {kinds}: {advice}")
    if request.address is Address.PUBLIC and not subnets[0].public:
        advice = "give another, or -e cluster_address=private if this controller reaches private addresses (VPN)"
        raise InputError("cluster_subnet", subnets[0].id, f"it gives no public addresses: {advice}")
    return subnets[0]


def image_of(group: Group, facts: TypeFacts, region: Region, made: Made | None, index: int) -> Image:
    """Return the image of a group. A name is resolved once: an image that is newer later replaces nothing."""
    named = group.image or default_image(facts)[0]
    if named.startswith("ami-"):
        ami = named
    elif made and index < len(made.images):
        ami = made.images[index]
    else:
        ami = region.parameter(named)
    image = region.image(ami)
    if image.architecture != facts.architecture:
        told = f"it is for {image.architecture}, and {group.type} is {facts.architecture}: give another"
        raise InputError("cluster_image", ami, told)
    return image


def default_image(facts: TypeFacts) -> tuple[str, str]:
    """Return the SSM parameter of the image for a type, and why it is that."""
    path, why = DEFAULTS.get(facts.gpu_vendor, DEFAULTS[""])
    deb = "arm64" if facts.architecture == "arm64" else "amd64"
    return path.format(deb=deb, arch=facts.architecture), why


def source_of(request: Request, region: Region) -> str:
    """Return who may log in: what was given, else this controller's own public address."""
    if request.ssh_from:
        return request.ssh_from
    if request.address is Address.PRIVATE:
        allowed = "give the private address of this controller, or its network: -e cluster_ssh_from=10.0.0.7/32"
        raise InputError("cluster_ssh_from", "", allowed)
    try:
        return parse_source(region.seen_address()) or parse_source("nothing")
    except (CloudError, InputError) as error:
        told = (
            f"give the address of this controller, which could not be found ({error}): -e cluster_ssh_from=203.0.113.7"
        )
        raise InputError("cluster_ssh_from", "", told) from None


def choices(plan: Plan, region: str) -> list[Choice]:
    """Return every choice of a plan with its reason, for --check."""
    request = plan.request
    found = [
        Choice("stack", f"torchfleet-{request.name} in {region}", "AWS makes all of it, or takes all of it back"),
        Choice("subnet", f"{plan.subnet.id} ({plan.subnet.zone})", "one zone, which has all the types"),
        Choice("SSH from", plan.ssh_from, "nobody else reaches port 22; no other port is open"),
        Choice("lease", f"{request.hours} h", "then the instances end themselves, whatever the controller does"),
        Choice("  grace", f"{request.grace_hours} h", "more, for a job that runs at the end of the lease"),
        Choice("owner", plan.owner, "a tag on all that is billed, beside the end of the lease"),
    ]
    for kind in plan.kinds:
        found += choices_of_kind(plan, kind)
    if plan.packed:
        found.append(Choice("placement", "cluster", "workers near each other: full bandwidth, low latency"))
    else:
        found.append(Choice("placement", "none", "workers of several types, or of one that cannot be placed so"))
    return found


def choices_of_kind(plan: Plan, kind: Kind) -> list[Choice]:
    """Return the choices for the instances of a group."""
    group, facts = kind.group, kind.facts
    what = f"{'head' if group.head else 'workers'}, {group.count} x {group.type}"
    size = max(group.disk_gb, kind.image.root_gb)
    why = default_image(facts)[1] if not group.image else "cluster_image"
    ranks = "as given" if group.slots else "its GPUs" if facts.gpus else "its cores"
    found = [
        Choice(what, f"{kind.image.id} ({kind.image.name})", why),
        Choice("  disk", f"{size} GiB, gp3, encrypted", "deleted with the instance"),
        Choice("  metadata", "IMDSv2, 1 hop", "a program that is made to fetch an address gets no secrets"),
        Choice("  market", "spot" if group.spot else "on demand", market_reason(group)),
    ]
    if not group.head:
        found += [Choice("  slots", str(kind.slots), ranks), efa_choice(plan, kind)]
    return found


def market_reason(group: Group) -> str:
    """Return why instances are of a market."""
    if group.spot:
        return "cluster_spot: cheaper, and AWS may take them away with 2 minutes' notice"
    return "a head that is taken away ends all jobs" if group.head else "cluster_spot is false"


def efa_choice(plan: Plan, kind: Kind) -> Choice:
    """Return the choice of EFA interfaces."""
    used, there = len(plan.cards(kind)), len(kind.facts.efa)
    if used < there:
        return Choice("  EFA", f"{used} of {there} cards", "more leave no public address: cluster_address=private")
    return Choice("  EFA", f"{used} cards" if used else "none", "all that the type has")


def cost_lines(plan: Plan, region: Region) -> list[str]:
    """Return what the cluster costs in dollars an hour and until its lease ends, as far as AWS tells."""
    prices = [region.price(kind.facts.name, kind.group.spot, plan.subnet.zone) for kind in plan.kinds]
    found = list(zip(plan.kinds, prices, strict=True))
    lines = [
        f"{kind.group.count} x {kind.facts.name}: "
        + ("AWS does not tell the price here" if price is None else f"${price:.4f} an hour each")
        for kind, price in found
    ]
    known = [kind.group.count * price for kind, price in found if price is not None]
    if len(known) == len(found):
        hours = plan.request.hours
        lines.append(
            f"together ${sum(known):.2f} an hour, ${sum(known) * hours:.2f} in {hours} h, without disks and traffic"
        )
    return lines
