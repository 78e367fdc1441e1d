"""cluster.yml with an API of EC2 in this machine (moto), behind which nodes of a lab run the instances' user data.

Real: boto3, HTTP, the stack's parameters, cloud-init, the host keys, ssh, the lease, setup.yml and train.yml. Not: EC2.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._cloud import lease
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.contact import (
    Contact,
    Pin,
    meet,
    one_time_key,
    pins_in,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.template import EXPIRES_TAG, until_text
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.user_data import PROGRAM, own_piece, user_data
from tests.cloud.api import BIN, Api, Instances, boot, served
from tests.driver import REPO
from tests.lab.lab import ENVIRONMENT, Lab, ansible

NODES = ["n1", "n2"]
ALONE = ["n3", "n4"]  # Debian 12 and 13
LOCK = "/srv/jobs/1/lock"
HOLDER = f"import time; file = open('{LOCK}', 'w'); print(1, file=file, flush=True); time.sleep(3600)"  # as a job does
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
    """Machines with Debian 12, one with 13, and cloud-init. Their user is not that of the user data."""
    name = f"ec2-{os.getpid()}"
    given = {"nodes": 4, "packages": ["cloud-init"], "user": "other", "overrides": {"n4": {"release": "trixie"}}}
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
        assert "1 cluster, 2 instances" in listed.stdout and "not of the stack" not in listed.stdout

        expire(api, datetime.now(UTC) + timedelta(hours=1))
        done = api.play(directory, **options(lab, image, subnet, cluster_nodes=workers(2), cluster_hours=9))
        assert changed(done) and "renewing the lease of n1, n2 until" in done.stdout
        for node in NODES:
            assert until_of(lab, node) - time.time() > 8 * 3600
        assert {each["torchfleet:expires"] for each in tags(api)} == {f"{told(done.stdout)}"}

        inventory = directory / "hosts.yml"
        for playbook in (
            ["setup.yml"],
            ["train.yml", "-e", "workload=message_passing", "-e", f"runs_dir={tmp_path}/runs"],
        ):
            done = ansible("ansible-playbook", "-i", str(inventory), *playbook)
            assert done.returncode == 0, done.stdout + done.stderr
        see_a_job(lab, inventory, tmp_path)

        other = copy_of(api, image, first)
        done = api.play(directory, cluster_state="absent")
    assert changed(done) and f"{other}: tag torchfleet=demo, but not made by stack" in done.stdout
    assert [row["InstanceId"] for row in api.running()] == [other] and not directory.exists()
    assert api.client("cloudformation").describe_stacks()["Stacks"] == []
    assert not changed(api.play(directory, cluster_state="absent"))
    api.client("ec2").terminate_instances(InstanceIds=[other])


def see_a_job(lab: Lab, inventory: Path, place: Path) -> None:
    """Have instances whose lease is nearly over see a job of train.yml, and only while it runs."""
    program = place / "wait.py"
    program.write_text("import os, time\nwhile not os.path.exists('/tmp/go'):\n    time.sleep(0.1)\n")
    for node in NODES:
        lab.root(node, "python3", PROGRAM, "renew", str(int(time.time()) + 1500), "86400")
        assert not looks(lab, node)
    given = {"workload": str(program), "runs_dir": f"{place}/runs", "job_timeout": 300}
    argv = ["-i", str(inventory), "train.yml", "-e", json.dumps(given)]
    with subprocess.Popen([BIN / "ansible-playbook", *argv], cwd=REPO, env=ENVIRONMENT) as job:
        while not (looks(lab, "n1") and looks(lab, "n2")):
            assert job.poll() is None  # it is ended after some time if nobody sees it
        for node in NODES:
            lab.root(node, "touch", "/tmp/go")
        assert job.wait() == 0
    for node in NODES:
        lab.root(node, "rm", lease.BUSY)
        assert not looks(lab, node)


def looks(lab: Lab, node: str) -> bool:
    """Have a node look whether its lease is over, as its timer does. Return whether it has seen a job."""
    lab.root(node, "python3", PROGRAM, "check")
    return bool(lab.root(node, "ls", lease.BUSY, check=False))


def copy_of(api: Api, image: str, instance: str) -> str:
    """Start an instance of somebody else's with the tags of one of ours, and return its id."""
    copied = [row for row in tagged(api, instance) if not row["Key"].startswith("aws:")]
    kinds = [{"ResourceType": kind, "Tags": copied} for kind in ("instance", "volume")]
    words = {"ImageId": image, "MinCount": 1, "MaxCount": 1, "InstanceType": "t3.micro", "TagSpecifications": kinds}
    return str(api.client("ec2").run_instances(**words)["Instances"][0]["InstanceId"])


def tagged(api: Api, instance: str) -> list[dict[str, str]]:
    return next(row["Tags"] for row in api.running() if row["InstanceId"] == instance)


def tags(api: Api) -> list[dict[str, str]]:
    return [{tag["Key"]: tag["Value"] for tag in row["Tags"]} for row in api.running()]


def expire(api: Api, until: datetime) -> None:
    """Have the tags say that all leases end at a time."""
    ids = [row["InstanceId"] for row in api.running()]
    api.client("ec2").create_tags(Resources=ids, Tags=[{"Key": EXPIRES_TAG, "Value": until_text(until)}])


def told(stdout: str) -> str:
    """Return the end of the lease that cluster.yml names."""
    return " ".join(stdout.split()).partition("they end at ")[2].partition(",")[0]


def until_of(lab: Lab, node: str) -> float:
    return float(json.loads(lab.read(node, lease.LEASE))["until"])


def test_a_machine_ends_itself_when_its_lease_is_over_and_not_under_a_job(lab: Lab) -> None:
    """Nobody tells it to: the controller may be gone. On Debian 12 and 13, which end in the same minute."""
    there = {node: boot_alone(lab, node) for node in ALONE}
    for node in ALONE:
        lab.root(node, "mkdir", "-p", "/srv/jobs/1")
        lab.root(node, "systemd-run", "--unit=job", "python3", "-c", HOLDER)
        while not lab.read(node, LOCK):
            time.sleep(0.1)
        renew(there[node], datetime.now(UTC) - timedelta(hours=1))
        lab.root(node, "systemctl", "start", "torchfleet-lease.service")  # returns when it has looked
        assert lab.root(node, "ls", lease.BUSY) and "stopping" not in state(lab, node)
    for node in ALONE:
        lab.root(node, "systemctl", "stop", "job")
        lab.root(node, "touch", "-d", "1 hour ago", lease.BUSY, check=False)  # from here on it may end at any moment
    while "running" in [lab.states()[node] for node in ALONE]:
        time.sleep(0.5)
    assert [lab.states()[node] for node in ("n1", *ALONE)] == ["running", "exited", "exited"]


def boot_alone(lab: Lab, node: str) -> tuple[Contact, Pin]:
    """Boot a node with user data, and meet it. Return how it is reached."""
    private, public = one_time_key()
    key = (lab.directory / "key.pub").read_text().strip()
    until = datetime.now(UTC) + timedelta(hours=4)
    boot(lab, node, f"i-{node}", user_data(key).whole(own_piece(private, public, until, 24)))
    there = Contact(node, lab.address(node), lab.directory)
    new = meet(there, [Pin(node, public, True)], lambda _pin: None)
    assert (
        new.key != public and not there.ask([Pin(node, public, True)], "offer").said
    )  # the first key is worth nothing
    assert until_of(lab, node) == int(until.timestamp())
    lab.root(node, "systemctl", "start", "torchfleet-lease.service")  # it looks, and stays
    assert "stopping" not in state(lab, node)
    return there, new


def state(lab: Lab, node: str) -> str:
    """Return what systemd says of a node; in a container it is rarely `running`."""
    return lab.root(node, "systemctl", "is-system-running", check=False)


def renew(there: tuple[Contact, Pin], until: datetime) -> None:
    contact, pin = there
    answer = contact.ask([pin], "renew", str(int(until.timestamp())), "86400", program=lease.__file__)
    assert answer.said and not answer.error, answer
