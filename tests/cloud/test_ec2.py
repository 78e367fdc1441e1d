"""cluster.yml with an API of EC2 in this machine (moto), behind which nodes of a lab run the instances' user data.

Real: boto3, HTTP, the stack's parameters, cloud-init, the host keys, ssh, the lease, setup.yml and train.yml. Not: EC2.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.contact import (
    Contact,
    Pin,
    meet,
    one_time_key,
    pins_in,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.user_data import TIMER, host_key, user_data
from tests.cloud.api import Api, Instances, boot, served
from tests.lab.lab import Lab, ansible

NODES = ["n1", "n2"]
TIMER_FILE = f"/etc/systemd/system/{TIMER}"
FIRST_OF_MOTO, FIRST_OF_LAB = 4, 11  # last byte of the first address in a subnet


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with served(tmp_path_factory.mktemp("moto") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def image(api: Api) -> str:
    """An AMI that the API knows: which one is all the same to nodes of a lab."""
    found = api.client("ec2").describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"]
    return str(next(row["ImageId"] for row in found if row.get("Platform") != "windows"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Machines with Debian 12 and cloud-init. Their user is not that of the user data."""
    name = f"ec2-{os.getpid()}"
    given = {"nodes": 3, "packages": ["cloud-init"], "user": "other"}
    made = Lab(name, tmp_path_factory.mktemp("lab") / name, **given)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def subnet(api: Api, lab: Lab, image: str) -> str:
    """A subnet in which the first instances get the addresses of the lab's nodes."""
    network = lab.address("n1").rpartition(".")[0] + ".0/24"
    ec2 = api.client("ec2")
    vpc = ec2.create_vpc(CidrBlock=network)["Vpc"]["VpcId"]
    made = str(ec2.create_subnet(VpcId=vpc, CidrBlock=network)["Subnet"]["SubnetId"])
    fill = FIRST_OF_LAB - FIRST_OF_MOTO
    ec2.run_instances(ImageId=image, MinCount=fill, MaxCount=fill, SubnetId=made, InstanceType="t3.micro")
    return made


def options(lab: Lab, image: str, subnet: str, **given: Any) -> dict[str, Any]:
    gateway = lab.address("n1").rpartition(".")[0] + ".1/32"
    network = {"cluster_subnet": subnet, "cluster_address": "private", "cluster_ssh_from": gateway}
    return {**network, "cluster_image": image, "cluster_nodes": workers(1), **given}


def workers(count: int) -> dict[str, Any]:
    return {"workers": {"count": count, "type": "t3.large", "slots": 1}}


def changed(done: subprocess.CompletedProcess[str]) -> bool:
    assert done.returncode == 0, done.stdout + done.stderr
    return "changed=1 " in done.stdout


def test_a_cluster_from_nothing_to_nothing(api: Api, lab: Lab, image: str, subnet: str, tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with Instances(api, lab, NODES) as instances:
        api.play_until_it_runs(directory, **options(lab, image, subnet))
        assert [pin.one_time for pin in pins_in((directory / "known_hosts").read_text())] == [True]
        assert changed(api.play(directory, **options(lab, image, subnet)))  # goes on where the killed one was
        first = next(row["InstanceId"] for row in api.running())
        assert len(api.running()) == 1
        pins = pins_in((directory / "known_hosts").read_text())
        assert [pin.one_time for pin in pins] == [False]
        assert pins[0].key.split()[1] not in api.user_data(first)  # what everybody may read is worth nothing now

        assert not changed(api.play(directory, **options(lab, image, subnet)))
        assert [row["InstanceId"] for row in api.running()] == [first]

        assert changed(api.play(directory, **options(lab, image, subnet, cluster_nodes=workers(2))))
        assert first in [row["InstanceId"] for row in api.running()] and len(instances.booted) == 2
        assert "demo: eu-central-1" in (listed := api.play(directory, cluster_state="list")).stdout, listed.stderr
        assert "1 cluster, 2 instances" in listed.stdout

        inventory = directory / "hosts.yml"
        for playbook in (
            ["setup.yml"],
            ["train.yml", "-e", "workload=message_passing", "-e", f"runs_dir={tmp_path}/runs"],
        ):
            done = ansible("ansible-playbook", "-i", str(inventory), *playbook)
            assert done.returncode == 0, done.stdout + done.stderr

        assert changed(api.play(directory, cluster_state="absent"))
    assert api.running() == [] and not directory.exists()
    assert api.client("cloudformation").describe_stacks()["Stacks"] == []
    assert not changed(api.play(directory, cluster_state="absent"))


def test_a_machine_ends_itself_when_its_lease_is_over(lab: Lab) -> None:
    """Nobody tells it to: the controller may be gone."""
    private, public = one_time_key()
    key = (lab.directory / "key.pub").read_text().strip()
    until = datetime.now(UTC) + timedelta(hours=4)
    boot(lab, "n3", "i-short", user_data(key, until).whole(host_key(private, public)))
    there = Contact("n3", lab.address("n3"), lab.directory)
    new = meet(there, [Pin("n3", public, True)], lambda _pin: None)
    assert (
        new.key != public and not there.ask([Pin("n3", public, True)], "offer").said
    )  # the first key is worth nothing
    assert f"OnCalendar={until:%Y-%m-%d %H:%M:%S} UTC\n" in lab.read("n3", TIMER_FILE)
    while lab.states()["n3"] == "running":
        if not left(lab):  # not set yet, or this machine was too busy and the time is over
            shorten(lab, datetime.now(UTC) + timedelta(seconds=15))
        time.sleep(0.5)
    assert lab.states()["n3"] == "exited" and lab.states()["n1"] == "running"


def left(lab: Lab) -> bool:
    """Whether the lease of n3 ends within a minute."""
    argv = ["systemctl", "show", TIMER, "--property=NextElapseUSecRealtime", "--value", "--timestamp=unix"]
    said = lab.root("n3", *argv, check=False).strip().lstrip("@")
    return said.isdigit() and int(said) < datetime.now(UTC).timestamp() + 60


def shorten(lab: Lab, until: datetime) -> None:
    """Change the end of the lease of n3, as docs/ec2.md says."""
    line = f"s/^OnCalendar=.*/OnCalendar={until:%Y-%m-%d %H:%M:%S} UTC/"
    for argv in (["sed", "-i", line, TIMER_FILE], ["systemctl", "daemon-reload"], ["systemctl", "restart", TIMER]):
        lab.root("n3", *argv, check=False)
