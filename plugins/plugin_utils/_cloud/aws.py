# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The border to AWS: every call of boto3, whose answers are checked in answers.py, and whose errors are one line.

boto3 is of the controller alone, and needed for this alone: requirements-ec2.txt. It has no types. The endpoint,
credentials and region come from where boto3 takes them (AWS_PROFILE, ~/.aws, AWS_ENDPOINT_URL, the instance's role).
"""

from __future__ import annotations

import contextlib
import json
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible.module_utils.urls import open_url

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from . import answers
from .answers import Event, Image, Instance, Remain, Stack, Subnet, TypeFacts, Volume
from .errors import CloudError
from .template import MOST_BYTES, TAG, Template, node_of

INSTALL = "type pip install -r requirements-ec2.txt in the environment of Ansible"
POLL_SECONDS = 3.0
NO_STACK = "ValidationError"  # what CloudFormation answers for a stack that does not exist
WHERE_AM_I = "https://checkip.amazonaws.com"  # AWS's own; it answers with the address that it sees
PRICES = "us-east-1"  # the price list has endpoints in a few regions, each with the prices of all
# What goes with instances, and may be billed without them: its call, list and id.
PARTS = (
    ("volumes", "Volumes", "VolumeId"),
    ("network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    ("addresses", "Addresses", "AllocationId"),
)
LINUX = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}


def boto() -> types.ModuleType:
    """Return boto3. InputError with the command that installs it if it is missing."""
    try:
        import boto3
    except ImportError as error:
        raise InputError("cluster.yml", f"no {error.name} in this Python", INSTALL) from None
    module: types.ModuleType = boto3
    return module


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise CloudError with AWS's code, or one of ours, for whatever boto3 raises."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        found = error.response.get("Error", {})
        raise CloudError(str(found.get("Code", "")), what, str(found.get("Message", ""))) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        raise CloudError("NoCredentials", what, str(error)) from None
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        raise CloudError("NoConnection", what, str(error)) from None
    except (exceptions.BotoCoreError, OSError, ValueError) as error:  # a wrong endpoint is a ValueError
        raise CloudError(type(error).__name__, what, str(error)) from None


class Aws:
    """One region of an account."""

    def __init__(self, region: str, beside: Aws | None = None) -> None:
        # One session for all regions: each one would read boto3's tables of all services again.
        module = boto()
        with translated("your AWS configuration"):
            self.session: Any = beside.session if beside else module.session.Session(region_name=region or None)
            self.region = region or str(self.session.region_name or "")
        if not self.region:
            raise CloudError("NoRegion", "no region is given, and none is in your AWS configuration")
        self.clients: dict[str, Any] = {}
        self.caller: Mapping[str, object] = {}

    def client(self, service: str) -> Any:
        """Return the client of a service. It repeats by itself what AWS asks to repeat."""
        if service not in self.clients:
            from botocore.config import Config

            attempts, region = (1, PRICES) if service == "pricing" else (5, self.region)
            retries = {"mode": "standard", "max_attempts": attempts}
            config = Config(connect_timeout=10, read_timeout=60, retries=retries)
            self.clients[service] = self.session.client(service, region_name=region, config=config)
        return self.clients[service]

    def call(self, service: str, operation: str, **words: object) -> object:
        """Return the answer of an operation. CloudError with AWS's code for whatever fails."""
        with translated(f"{service}, {operation} in {self.region}"):
            answer: object = getattr(self.client(service), operation)(**words)
        return answer

    def pages(self, service: str, operation: str, **words: object) -> Iterator[object]:
        """Yield all pages of an answer, as the service's own NextToken leads to them."""
        token: dict[str, object] = {}
        for _page in range(1000):
            answer = self.call(service, operation, **words, **token)
            yield answer
            following = answer.get("NextToken") if isinstance(answer, Mapping) else None
            if not following:
                return
            token = {"NextToken": following}

    # --- what there is -----------------------------------------------------------------------------------------------

    def who(self) -> str:
        """Return the last part of who we are: the name of the user, or of the role's session."""
        return answers.text(self.identity(), "Arn", "").rpartition("/")[2]

    def place(self) -> str:
        """Return account and region, as files on the controller name them."""
        return f"account {answers.text(self.identity(), 'Account')}, region {self.region}"

    def identity(self) -> Mapping[str, object]:
        """Return who we are, asked once."""
        if not self.caller:
            answer = self.call("sts", "get_caller_identity")
            self.caller = answer if isinstance(answer, Mapping) else {}
        return self.caller

    def seen_address(self) -> str:
        """Return the IPv4 address of this controller as AWS sees it."""
        try:
            return str(open_url(WHERE_AM_I, timeout=10).read(64).decode("ascii", "replace").strip())
        except (OSError, ValueError) as error:
            raise CloudError("NoConnection", WHERE_AM_I, str(error)) from None

    def types(self, names: Sequence[str]) -> dict[str, TypeFacts]:
        """Return the facts of instance types."""
        answer = self.call("ec2", "describe_instance_types", InstanceTypes=sorted(set(names)))
        return {facts.name: facts for facts in answers.types_in(answer)}

    def zones(self, names: Sequence[str]) -> set[str]:
        """Return the zones that offer all these types."""
        wanted = set(names)
        words = {"LocationType": "availability-zone", "Filters": filters({"instance-type": sorted(wanted)})}
        offers = {
            offer
            for page in self.pages("ec2", "describe_instance_type_offerings", **words)
            for offer in answers.offers_in(page)
        }
        return {zone for _type, zone in offers if {name for name, where in offers if where == zone} == wanted}

    def subnets(self, subnet: str) -> list[Subnet]:
        """Return this subnet, or the default ones of all zones."""
        words = {"SubnetIds": [subnet]} if subnet else {"Filters": filters({"default-for-az": ["true"]})}
        return [each for page in self.pages("ec2", "describe_subnets", **words) for each in answers.subnets_in(page)]

    def parameter(self, path: str) -> str:
        """Return the AMI that a public parameter names now."""
        answer = self.call("ssm", "get_parameter", Name=path)
        return answers.text(answers.part(answer, "Parameter"), "Value") if isinstance(answer, Mapping) else ""

    def image(self, ami: str) -> Image:
        """Return an image. CloudError if the region does not have it."""
        found = next(answers.images_in(self.call("ec2", "describe_images", ImageIds=[ami])), None)
        if not found:
            raise CloudError("InvalidAMIID.NotFound", f"image {ami} is not in {self.region}")
        return found

    def instances(self, cluster: str = "") -> list[Instance]:
        """Return the instances that have the tag of a cluster, or of any, and are not gone: tags can be copied."""
        return self.instances_with({f"tag:{TAG}": [cluster]} if cluster else {"tag-key": [TAG]})

    def instances_with(self, wanted: Mapping[str, Sequence[str]]) -> list[Instance]:
        """Return the instances that pass filters, and are not gone."""
        pages = self.pages("ec2", "describe_instances", Filters=filters(wanted))
        return [each for page in pages for each in answers.instances_in(page) if each.state not in answers.GONE]

    def members(self, stack: str) -> list[Instance]:
        """Return the instances that a stack made and that are not gone, whatever tags they and others have."""
        pages = self.pages("cloudformation", "list_stack_resources", StackName=stack)
        nodes = {one: node_of(name) for page in pages for name, one in answers.members_in(page)}
        found = self.instances_with({"instance-id": sorted(nodes)}) if nodes else []
        return [replace(each, node=nodes[each.id]) for each in found if each.id in nodes]

    def tag(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Set tags of instances, volumes and network interfaces."""
        words = [{"Key": key, "Value": value} for key, value in tags.items()]
        self.call("ec2", "create_tags", Resources=list(ids), Tags=words)

    def volumes(self) -> list[Volume]:
        """Return the volumes of clusters that no instance uses, and that are billed all the same."""
        wanted = filters({"tag-key": [TAG], "status": ["available"]})
        pages = self.pages("ec2", "describe_volumes", Filters=wanted)
        return [each for page in pages for each in answers.volumes_in(page)]

    def remains(self, cluster: str, volumes: Sequence[str]) -> list[Remain]:
        """Return what could be billed without an instance: what has the tag of a cluster, and these volumes."""
        wanted = [(row, {f"tag:{TAG}": [cluster]}) for row in PARTS]
        if volumes:  # a filter without values passes everything
            wanted.append((PARTS[0], {"volume-id": list(volumes)}))
        found: dict[str, Remain] = {}
        for (what, key, name), by in wanted:
            answer = self.call("ec2", f"describe_{what}", Filters=filters(by))
            found.update((row.id, row) for row in answers.remains_in(answer, key, name))
        return list(found.values())

    def regions(self) -> list[str]:
        """Return the regions that are enabled for the account."""
        return [
            answers.text(row, "RegionName") for row in answers.rows(self.call("ec2", "describe_regions"), "Regions")
        ]

    def price(self, kind: str, spot: bool, zone: str) -> float | None:
        """Return the dollars an hour of an instance; None if AWS does not tell."""
        try:
            if spot:
                words = {"InstanceTypes": [kind], "ProductDescriptions": ["Linux/UNIX"], "AvailabilityZone": zone}
                now = {"StartTime": time.time(), "MaxResults": 1}
                return answers.spot_price_in(self.call("ec2", "describe_spot_price_history", **words, **now))
            wanted = {**LINUX, "instanceType": kind, "regionCode": self.region}
            terms = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
            return answers.price_in(self.call("pricing", "get_products", ServiceCode="AmazonEC2", Filters=terms))
        except CloudError:  # a price is good to know; many users may not ask for it
            return None

    # --- the stack ---------------------------------------------------------------------------------------------------

    def stack(self, name: str) -> Stack | None:
        """Return a stack by name or id; None if there is none of that name."""
        try:
            return next(answers.stacks_in(self.call("cloudformation", "describe_stacks", StackName=name)), None)
        except CloudError as error:
            if error.code == NO_STACK:
                return None
            raise

    def stacks(self) -> list[Stack]:
        """Return the stacks of all clusters."""
        pages = self.pages("cloudformation", "describe_stacks")
        return [stack for page in pages for stack in answers.stacks_in(page) if TAG in stack.tags]

    def template(self, stack: str) -> Mapping[str, object]:
        """Return the template of a stack, an empty one if it is not JSON."""
        answer = self.call("cloudformation", "get_template", StackName=stack)
        body = answer.get("TemplateBody") if isinstance(answer, Mapping) else None
        try:
            found = json.loads(body) if isinstance(body, str) else body
        except ValueError:
            return {}
        return found if isinstance(found, Mapping) else {}

    def create(self, name: str, template: Template, parameters: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """Begin to make a stack, and return its id. AWS takes all of it back if a part cannot be had."""
        words = {**stack_words(name, template, tags), "Parameters": parameter_words(parameters, ())}
        answer = self.call("cloudformation", "create_stack", **words, OnFailure="DELETE", TimeoutInMinutes=30)
        return answers.text(answer, "StackId") if isinstance(answer, Mapping) else name

    def update(self, stack: Stack, template: Template, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Begin to change a stack. Parameters that are not given keep their values."""
        names = template["Parameters"]
        kept = [name for name in names if name not in parameters and name in stack.parameters]
        words = {**stack_words(stack.name, template, tags), "Parameters": parameter_words(parameters, kept)}
        self.call("cloudformation", "update_stack", **words)

    def delete(self, stack: Stack) -> None:
        """Begin to delete a stack with all that is in it."""
        self.call("cloudformation", "delete_stack", StackName=stack.id)

    def events(self, stack: str) -> list[Event]:
        """Return what happened to a stack, the newest first."""
        pages = self.pages("cloudformation", "describe_stack_events", StackName=stack)
        return [event for page in pages for event in answers.events_in(page)]

    def wait(self) -> None:
        """Let a little time pass between two questions."""
        time.sleep(POLL_SECONDS)


def filters(wanted: Mapping[str, Sequence[str]]) -> list[dict[str, object]]:
    """Return filters as the API has them."""
    return [{"Name": name, "Values": list(values)} for name, values in wanted.items()]


def stack_words(name: str, template: Template, tags: Mapping[str, str]) -> dict[str, object]:
    """Return what making and changing a stack have in common."""
    body = json.dumps(template, separators=(",", ":"))
    if len(body) > MOST_BYTES:
        raise CloudError("TooLarge", f"the template has {len(body)} bytes, {MOST_BYTES} are allowed: give fewer nodes")
    return {
        "StackName": name,
        "TemplateBody": body,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def parameter_words(given: Mapping[str, str], kept: Sequence[str]) -> list[dict[str, object]]:
    """Return parameters: new values, and those that keep theirs."""
    new: list[dict[str, object]] = [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()]
    return new + [{"ParameterKey": key, "UsePreviousValue": True} for key in kept]
