"""What is asked of AWS, with boto3 and moto's server: what belongs to a stack, and what is left of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.absence import left_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.aws import Aws
from tests.cloud.api import REGION, Api, served

AMI, STACK = "ami-1e749f67", "torchfleet-demo"
TAGS = [{"Key": "torchfleet", "Value": "demo"}, {"Key": "torchfleet:node", "Value": "n1"}]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with served(tmp_path / "log") as found:
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        yield found


def test_the_list_of_the_stack_says_what_is_of_it(api: Api) -> None:
    disks = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8, "DeleteOnTermination": True}}]
    properties = {"ImageId": AMI, "InstanceType": "t3.micro", "Tags": TAGS, "BlockDeviceMappings": disks}
    resources = {name: {"Type": "AWS::EC2::Instance", "Properties": properties} for name in ("N1", "N2G1")}
    stacks, ec2, region = api.client("cloudformation"), api.client("ec2"), Aws(REGION)
    stacks.create_stack(StackName=STACK, TemplateBody=json.dumps({"Resources": resources}))
    kinds = [{"ResourceType": kind, "Tags": TAGS} for kind in ("instance", "volume")]
    words = {"ImageId": AMI, "MinCount": 1, "MaxCount": 1, "TagSpecifications": kinds, "BlockDeviceMappings": disks}
    other = ec2.run_instances(**words)["Instances"][0]["InstanceId"]

    members = region.members(STACK)
    assert {each.node for each in members} == {"n1", "n2"} and other not in {each.id for each in members}
    assert other in {each.id for each in region.instances("demo")}
    volume = next(part for part in members[0].parts if part.startswith("vol-"))

    region.tag([members[0].id, *members[0].parts], {"torchfleet:expires": "2026-11-26T23:40:00Z"})
    (now,) = [each for each in region.members(STACK) if each.id == members[0].id]
    assert now.tags["torchfleet:expires"] == "2026-11-26T23:40:00Z"

    left = left_of("demo", STACK, region, members)
    assert left.strangers == (other,) and {each.id for each in members} < set(left.own)
    assert volume in left.own  # it never had the tag
    stacks.delete_stack(StackName=STACK)
    left = left_of("demo", STACK, region, members)
    assert left.own == () and left.strangers == (other,)
    spare = ec2.create_volume(Size=8, AvailabilityZone=f"{REGION}a", TagSpecifications=kinds[1:])["VolumeId"]
    assert left_of("demo", STACK, region, []).own == (spare,)
