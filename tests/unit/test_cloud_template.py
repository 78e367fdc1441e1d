"""The template of a cluster on EC2, and the user data of its instances. tests/cloud lints it and runs it."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._cloud import lease
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud import template as module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.request import MOST_INSTANCES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.template import nodes_in, render
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.user_data import PROGRAM, own_piece, user_data
from tests.unit import clouds

BIG = {"workers": {"count": 2, "type": "p5.48xlarge"}}
UNTIL = datetime(2026, 11, 26, 23, 40, tzinfo=UTC)


def resources(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = render(clouds.plan(**given))["Resources"]
    return found


def launch_data(found: dict[str, Any], number: int = 0) -> dict[str, Any]:
    data: dict[str, Any] = found[f"Kind{number}"]["Properties"]["LaunchTemplateData"]
    return data


def test_nobody_but_the_controller_and_the_cluster_gets_in() -> None:
    found = resources()
    ingress = found["Group"]["Properties"]["SecurityGroupIngress"]
    assert [(rule["CidrIp"], rule["FromPort"], rule["ToPort"]) for rule in ingress] == [(clouds.SOURCE, 22, 22)]
    group = {"Fn::GetAtt": ["Group", "GroupId"]}
    assert found["GroupIn"]["Properties"] == {"GroupId": group, "IpProtocol": "-1", "SourceSecurityGroupId": group}
    assert found["GroupOut"]["Properties"]["DestinationSecurityGroupId"] == group


@pytest.mark.parametrize("nodes", [clouds.PAIR, clouds.SEED, BIG])
def test_every_instance_ends_with_its_disk_and_is_tagged(nodes: dict[str, Any]) -> None:
    found = resources(cluster_nodes=nodes)
    kinds = [name for name in found if name.startswith("Kind")]
    assert len(kinds) == (3 if nodes is clouds.SEED else 1)
    for number in range(len(kinds)):
        data = launch_data(found, number)
        assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        disk = data["BlockDeviceMappings"][0]
        assert (
            disk["DeviceName"] == "/dev/xvda" and disk["Ebs"]["Encrypted"] is disk["Ebs"]["DeleteOnTermination"] is True
        )
        assert {row["ResourceType"] for row in data["TagSpecifications"]} == {"volume", "network-interface"}
    for row in found.values():
        if row["Type"] == "AWS::EC2::Instance":
            tags = {tag["Key"]: tag["Value"] for tag in row["Properties"]["Tags"]}
            assert tags["torchfleet"] == "demo" and tags["torchfleet:owner"] == "alice"
            assert tags["torchfleet:expires"] == {"Ref": "Expires"}


def test_spot_is_once_and_ends_when_it_is_interrupted() -> None:
    options = launch_data(resources(cluster_spot=True))["InstanceMarketOptions"]["SpotOptions"]
    assert options == {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    assert "InstanceMarketOptions" not in launch_data(resources())


def test_efa_takes_every_card_unless_an_address_is_needed() -> None:
    """An instance with several interfaces gets no public address."""
    public, private = (
        launch_data(resources(cluster_nodes=BIG, cluster_address=address))["NetworkInterfaces"]
        for address in ("public", "private")
    )
    assert [(row["InterfaceType"], row["AssociatePublicIpAddress"]) for row in public] == [("efa", True)]
    assert [row["InterfaceType"] for row in private] == ["efa", *["efa-only"] * 31]
    assert [(row["NetworkCardIndex"], row["DeviceIndex"]) for row in private[:3]] == [(0, 0), (1, 1), (2, 1)]
    assert "SubnetId" not in resources(cluster_nodes=BIG)["N1"]["Properties"]  # EC2 refuses both
    assert resources()["N1"]["Properties"]["SubnetId"] == "subnet-0000000a"


def test_workers_of_one_type_are_placed_together_and_the_head_is_not() -> None:
    nodes = {"head": {"type": "t3.micro"}, "workers": {"count": 2, "type": "g4dn.xlarge"}}
    found = resources(cluster_nodes=nodes)
    assert found["Placement"]["Properties"] == {"Strategy": "cluster"}
    assert "Placement" not in launch_data(found, 0)
    assert launch_data(found, 1)["Placement"] == {"GroupName": {"Ref": "Placement"}}
    assert "Placement" not in resources(cluster_nodes=clouds.SEED)  # two types
    assert "Placement" not in resources()  # t3 cannot


def test_one_more_worker_changes_nothing_of_the_others() -> None:
    two, three = (render(clouds.plan(cluster_nodes={"workers": {"count": n, "type": "g4dn.xlarge"}})) for n in (2, 3))
    assert list(module.difference(two, three)) == []
    assert nodes_in(three) == {1: 0, 2: 0, 3: 0}
    other = render(clouds.plan(cluster_nodes={"workers": {"count": 2, "type": "g4dn.xlarge"}}, cluster_disk_gb=200))
    assert list(module.difference(two, other)) == ["Kind0"]
    elsewhere = render(
        clouds.plan(cluster_nodes={"workers": {"count": 2, "type": "g4dn.xlarge"}}, cluster_ssh_from="192.0.2.1")
    )
    assert list(module.difference(two, elsewhere)) == []  # only who may log in


def test_the_largest_cluster_fits_into_one_call() -> None:
    nodes = {"workers": {"count": MOST_INSTANCES, "type": "p5.48xlarge"}}
    given = {"cluster_nodes": nodes, "cluster_max_instances": MOST_INSTANCES, "cluster_address": "private"}
    whole = render(clouds.plan(**given))
    assert len(json.dumps(whole, separators=(",", ":"))) < module.MOST_BYTES
    assert len(whole["Parameters"]) < 200


def test_user_data_is_what_cloud_init_reads() -> None:
    private = '-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn"\\x\n-----END OPENSSH PRIVATE KEY-----\n'
    text = user_data("ssh-ed25519 AAAA me").whole(own_piece(private, "ssh-ed25519 BBBB", UNTIL, 24))
    assert text.startswith("#cloud-config\n")
    config = yaml.safe_load(text)
    assert config["ssh_keys"] == {"ed25519_private": private, "ed25519_public": "ssh-ed25519 BBBB"}
    assert config["users"][0]["ssh_authorized_keys"] == ["ssh-ed25519 AAAA me"]
    assert config["ssh_pwauth"] is False and config["disable_root"] is True
    files = {each["path"]: each for each in config["write_files"]}
    assert json.loads(files[lease.LEASE]["content"]) == {"until": int(UNTIL.timestamp()), "grace": 86400}
    program = gzip.decompress(base64.b64decode(files[PROGRAM]["content"]))
    assert files[PROGRAM]["encoding"] == "gz+b64" and program == Path(lease.__file__).read_bytes()
    assert user_data("me") == user_data("me")


def test_a_parameter_of_a_stack_has_room_for_its_piece() -> None:
    """4096 bytes (CloudFormation quotas)."""
    shared = user_data("ssh-ed25519 " + "A" * 100)
    assert max(len(shared.begin), len(shared.end)) < 4096
    parameters = render(clouds.plan())["Parameters"]
    assert parameters["UserDataN1"] == {"Type": "String", "NoEcho": True}
