"""A cluster on EC2 that is asked for: what is refused before anything is asked of AWS, and what becomes of defaults."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud import planning
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.answers import TypeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit import clouds


def nodes(**group: Any) -> dict[str, Any]:
    return {"cluster_nodes": {"workers": {"type": "t3.xlarge", **group}}}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"cluster_name": None}, "cluster_name: got null; give at most 30"),
        ({"cluster_name": "../x"}, 'cluster_name: got "../x"; give at most 30'),
        ({"cluster_nodes": None}, "cluster_nodes: got null; give workers, and a head"),
        ({"cluster_nodes": {"head": {"type": "t3.micro"}}}, "give workers, and a head if it is another machine"),
        ({"cluster_nodes": {"workers": []}}, "cluster_nodes, workers: got []; give at least one group"),
        ({"cluster_nodes": {"workers": {"count": 2}}}, "give a type, and any of count, type, spot"),
        (nodes(typ="x"), "give a type, and any of count, type, spot"),
        (nodes(type="g4dn"), 'cluster_nodes, workers, type: got "g4dn"; give an instance type'),
        (nodes(count=0), "cluster_nodes, workers, count: got 0; give a whole number from 1 to 640: -e '{"),
        (nodes(count=80), 'got "80 instances"; cluster_max_instances is 8; give fewer'),
        (nodes(count=20), 'got "20 instances"; cluster_max_instances is 8; if you mean it, type -e cluster_max'),
        (nodes(spot="maybe"), 'cluster_spot: got "maybe"; give true or false'),
        (nodes(image="debian"), 'cluster_image: got "debian"; give an AMI (ami-...) or the path'),
        (nodes(disk_gb=1), "cluster_disk_gb: got 1; give a whole number from 8 to 16384"),
        (nodes(slots=0), "cluster_nodes, workers, slots: got 0; give a whole number"),
        ({"cluster_nodes": {"head": {"type": "t3.micro", "count": 2}, "workers": {"type": "t3.micro"}}}, "from 1 to 1"),
        ({"cluster_hours": 0}, "cluster_hours: got 0; give a whole number from 1 to 720"),
        ({"cluster_grace_hours": -1}, "cluster_grace_hours: got -1; give a whole number from 0 to 720"),
        ({"cluster_max_instances": 1000}, "cluster_max_instances: got 1000; give a whole number from 1 to 64"),
        ({"cluster_region": "Frankfurt"}, 'cluster_region: got "Frankfurt"; give a region'),
        ({"cluster_ssh_from": "203.0.113.7/8"}, 'cluster_ssh_from: got "203.0.113.7/8"; give the IPv4 address'),
        ({"cluster_subnet": "10.0.0.0/24"}, 'cluster_subnet: got "10.0.0.0/24"; give one such as subnet-'),
        ({"cluster_owner": "a\nb"}, "cluster_owner: got "),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        clouds.request(**given)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_only_who_types_it_lets_everybody_in() -> None:
    assert clouds.request(cluster_ssh_from="0.0.0.0/0").ssh_from == "0.0.0.0/0"
    assert clouds.request(cluster_ssh_from="203.0.113.7").ssh_from == "203.0.113.7/32"


def test_spot_is_for_workers_unless_the_head_says_so() -> None:
    groups = clouds.request(cluster_nodes=clouds.SEED, cluster_spot=True).groups
    assert [group.spot for group in groups] == [False, True, True]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (nodes(type="zz.large"), 'cluster_nodes, type: got "zz.large"; eu-central-1 does not have it'),
        (nodes(type="p5.48xlarge", spot=True), 'cluster_spot: got "p5.48xlarge"; AWS sells no spot instances of it'),
        (nodes(type="c7g.large", image="ami-0aaaaaaa"), "it is for x86_64, and c7g.large is arm64"),
        ({"cluster_address": "private", "cluster_ssh_from": ""}, "give the private address of this controller"),
    ],
)
def test_what_the_region_does_not_have_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        clouds.plan(**given)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_a_subnet_without_public_addresses_is_refused_if_they_are_needed() -> None:
    region = clouds.FakeRegion(public=False)
    with pytest.raises(InputError, match="it gives no public addresses: give another, or -e cluster_address=private"):
        planning.plan_of(clouds.request(), region, None, {})
    assert planning.plan_of(clouds.request(cluster_address="private"), region, None, {}).subnet.zone == "eu-central-1a"


def test_the_zone_has_all_types() -> None:
    assert clouds.plan(**nodes(type="p5.48xlarge")).subnet.zone == "eu-central-1b"
    assert clouds.plan(cluster_subnet="subnet-0a1b2c3d").subnet.id == "subnet-0a1b2c3d"


@pytest.mark.parametrize(
    ("facts", "parameter"),
    [
        ("t3.micro", "/aws/service/debian/release/12/latest/amd64"),
        ("c7g.large", "/aws/service/debian/release/12/latest/arm64"),
        (
            "g4dn.xlarge",
            "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
        ),
        ("g4ad.xlarge", "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"),
    ],
)
def test_the_image_follows_the_gpus(facts: str, parameter: str) -> None:
    found: TypeFacts = clouds.TYPES[facts]
    assert planning.default_image(found)[0] == parameter


def test_every_choice_has_a_reason_and_the_price_is_told() -> None:
    plan = clouds.plan(cluster_nodes={"head": {"type": "t3.micro"}, "workers": {"count": 2, "type": "g4dn.xlarge"}})
    assert all(choice.why for choice in planning.choices(plan, "eu-central-1"))
    assert planning.cost_lines(plan, clouds.FakeRegion()) == [
        "1 x t3.micro: $0.0120 an hour each",
        "2 x g4dn.xlarge: $0.6580 an hour each",
        "together $1.33 an hour, $5.31 in 4 h, without disks and traffic",
    ]
    unknown = planning.cost_lines(clouds.plan(cluster_nodes=clouds.SEED), clouds.FakeRegion())
    assert unknown[-1] == "1 x g4ad.xlarge: AWS does not tell the price here"


@pytest.mark.parametrize("seen", ["", "<html>", "2001:db8::1"])
def test_a_controller_that_is_not_told_its_address_says_what_to_type(seen: str) -> None:
    """A portal in a hotel answers every address with a page."""
    request = clouds.request(cluster_ssh_from="")
    assert planning.plan_of(request, clouds.FakeRegion(), None, {}).ssh_from == "203.0.113.7/32"
    with pytest.raises(InputError, match="give the address of this controller, which could not be found") as caught:
        planning.plan_of(request, clouds.FakeRegion(seen=seen), None, {})
    assert "-e cluster_ssh_from=203.0.113.7" in str(caught.value) and "\n" not in str(caught.value)
