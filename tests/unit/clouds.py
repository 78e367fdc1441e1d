"""A region of AWS for the tests of the pure core: four types, one subnet in each zone, a stack in memory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.answers import (
    Event,
    Image,
    Instance,
    Remain,
    Stack,
    Subnet,
    TypeFacts,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.planning import plan_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.request import Request, parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.template import Plan, Template
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented, values_of

CARDS = tuple((card, "efa" if card == 0 else "efa-only") for card in range(32))
TYPES = {
    facts.name: facts
    for facts in (
        TypeFacts("t3.micro", "x86_64", 1, 0, "", False, True, ()),
        TypeFacts("t3.xlarge", "x86_64", 2, 0, "", False, True, ()),
        TypeFacts("g4dn.xlarge", "x86_64", 2, 1, "nvidia", True, True, ()),
        TypeFacts("g4ad.xlarge", "x86_64", 2, 1, "amd", True, True, ()),
        TypeFacts("p5.48xlarge", "x86_64", 96, 8, "nvidia", True, False, CARDS),
        TypeFacts("c7g.large", "arm64", 2, 0, "", True, True, ()),
    )
}
SOURCE = "203.0.113.7/32"
SEED = {"head": {"type": "t3.micro"}, "workers": [{"type": "g4dn.xlarge"}, {"type": "g4ad.xlarge"}]}
PAIR = {"workers": {"count": 2, "type": "t3.xlarge"}}


def options(**given: Any) -> dict[str, Any]:
    """Return all options of the module as Ansible hands them over."""
    asked = {"cluster_name": "demo", "cluster_nodes": PAIR, "cluster_ssh_from": SOURCE, **given}
    return values_of("ec2_cluster", asked, documented("ec2_cluster"))


def request(**given: Any) -> Request:
    return parse_request(options(**given))


def plan(**given: Any) -> Plan:
    return plan_of(request(**given), FakeRegion(), None, {})


@dataclasses.dataclass
class FakeRegion:
    """AWS as far as the plan and the lifecycle ask it.

    `failure`: with what the next stack fails; `stuck`: with what its deletion does.
    `strangers`: instances of others with our tags.
    """

    region: str = "eu-central-1"
    public: bool = True
    seen: str = "203.0.113.7"
    failure: str = ""
    stuck: str = ""
    newest: str = "ami-0aaaaaaa"
    leaks: list[Remain] = dataclasses.field(default_factory=list)
    strangers: list[Instance] = dataclasses.field(default_factory=list)
    stacks: dict[str, Stack] = dataclasses.field(default_factory=dict)
    templates: dict[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    running: dict[str, Instance] = dataclasses.field(default_factory=dict)
    happened: list[Event] = dataclasses.field(default_factory=list)
    asked: list[str] = dataclasses.field(default_factory=list)

    def who(self) -> str:
        return "alice"

    def seen_address(self) -> str:
        return self.seen

    def types(self, names: Sequence[str]) -> dict[str, TypeFacts]:
        return {name: TYPES[name] for name in names if name in TYPES}

    def zones(self, names: Sequence[str]) -> set[str]:
        return {"eu-central-1b"} if any(name.startswith("p5") for name in names) else {"eu-central-1a", "eu-central-1b"}

    def subnets(self, subnet: str) -> list[Subnet]:
        zones = "b" if subnet else "ba"
        return [
            Subnet(subnet or f"subnet-0000000{zone}", "vpc-0000000a", f"eu-central-1{zone}", self.public)
            for zone in zones
        ]

    def parameter(self, path: str) -> str:
        self.asked.append(path)
        return self.newest

    def image(self, ami: str) -> Image:
        return Image(ami, "an image", "x86_64", "/dev/xvda", 8)

    def price(self, kind: str, spot: bool, zone: str) -> float | None:
        return {"t3.micro": 0.012, "g4dn.xlarge": 0.2 if spot else 0.658, "t3.xlarge": 0.192}.get(kind)

    def instances(self, cluster: str = "") -> list[Instance]:
        return [*self.running.values(), *self.strangers]

    def members(self, stack: str) -> list[Instance]:
        return list(self.running.values())

    def tag(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        self.asked.append(f"tag {' '.join(ids)}: {', '.join(sorted(tags))}")
        for name, each in self.running.items():
            if each.id in ids:
                self.running[name] = dataclasses.replace(each, tags={**each.tags, **tags})

    def remains(self, cluster: str, volumes: Sequence[str]) -> list[Remain]:
        return self.leaks

    def stack(self, name: str) -> Stack | None:
        found = self.stacks.get(name.partition("/")[0])
        if found and found.status.endswith("_IN_PROGRESS"):
            self.advance(found)
            return found
        return found

    def advance(self, stack: Stack) -> None:
        """Bring a stack to where AWS brings it."""
        if stack.status == "DELETE_IN_PROGRESS":
            if self.stuck:
                self.happened = [Event("Group", "AWS::EC2::SecurityGroup", "DELETE_FAILED", self.stuck)]
                self.stacks[stack.name] = dataclasses.replace(stack, status="DELETE_FAILED")
                return
            del self.stacks[stack.name]
            self.running.clear()
            return
        end = stack.status.replace("_IN_PROGRESS", "_COMPLETE")
        if self.failure:
            reasons = ["Resource creation cancelled", self.failure]
            self.happened = [Event("N2", "AWS::EC2::Instance", "CREATE_FAILED", reason) for reason in reasons]
            end = "UPDATE_ROLLBACK_COMPLETE" if stack.status.startswith("UPDATE") else "DELETE_COMPLETE"
        self.stacks[stack.name] = dataclasses.replace(stack, status=end)
        if end == "DELETE_COMPLETE":
            del self.stacks[stack.name]
        elif not self.failure:
            self.run(stack.name)

    def run(self, stack: str) -> None:
        """Have the instances of a template run."""
        resources: Any = self.templates[stack]["Resources"]
        wanted = {name: row for name, row in resources.items() if row["Type"] == "AWS::EC2::Instance"}
        self.running = {
            name: self.running.get(name) or self.boot(stack, name, number, row["Properties"])
            for number, (name, row) in enumerate(wanted.items(), start=1)
        }

    def boot(self, stack: str, name: str, number: int, properties: Mapping[str, Any]) -> Instance:
        parameters = self.stacks[stack].parameters
        values = {row["Key"]: row["Value"] for row in properties["Tags"]}
        tags = {key: each if isinstance(each, str) else parameters[each["Ref"]] for key, each in values.items()}
        tags["aws:cloudformation:stack-name"] = stack
        addresses = (f"198.51.100.{number}", f"10.0.0.{number}")
        node, kind = tags["torchfleet:node"], properties["InstanceType"]
        return Instance(f"i-{name}", node, kind, "running", *addresses, tags, (f"vol-{name}",))

    def template(self, stack: str) -> Mapping[str, object]:
        return self.templates[stack.partition("/")[0]]

    def create(self, name: str, template: Template, parameters: Mapping[str, str], tags: Mapping[str, str]) -> str:
        self.asked.append(f"create {name}")
        self.stacks[name] = Stack(f"{name}/id", name, "CREATE_IN_PROGRESS", "", dict(parameters), tags)
        self.templates[name] = json.loads(json.dumps(template))  # as it comes back from AWS
        return f"{name}/id"

    def update(self, stack: Stack, template: Template, parameters: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self.asked.append(f"update {stack.name}: {', '.join(sorted(parameters))}")
        merged = {**stack.parameters, **parameters}
        self.stacks[stack.name] = dataclasses.replace(stack, status="UPDATE_IN_PROGRESS", parameters=merged)
        if not self.failure:
            self.templates[stack.name] = json.loads(json.dumps(template))

    def delete(self, stack: Stack) -> None:
        self.asked.append(f"delete {stack.name}")
        self.stacks[stack.name] = dataclasses.replace(stack, status="DELETE_IN_PROGRESS")

    def events(self, stack: str) -> list[Event]:
        return self.happened

    def wait(self) -> None:
        """Nothing takes time here."""
