"""What AWS, boto3 or the network refuses is one line of cluster.yml, says what to type, and leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.api import Api, served

NODES = {"workers": {"count": 2, "type": "t3.large"}}
GIVEN: dict[str, Any] = {"cluster_nodes": NODES, "cluster_ssh_from": "203.0.113.7"}
AMI = {"cluster_image": "ami-1e749f67"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with served(tmp_path_factory.mktemp("moto") / "log") as found:
        yield found


def line_of(stdout: str) -> str:
    """Return the message of the task that failed."""
    return " ".join(stdout.partition("[ERROR]: ")[2].partition("\nOrigin:")[0].split())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"cluster_nodes": {"workers": {"type": "g9.huge"}}},
            "do not exist: [g9.huge]; give types that the region has",
        ),
        ({}, "Parameter /aws/service/debian/release/12/latest/amd64 not found.; give another cluster_image"),
        ({"cluster_image": "ami-00000000"}, "give one of this region"),
        ({**AMI, "cluster_subnet": "subnet-0a1b2c3d"}, "give a subnet of this region"),
        ({"cluster_max_instances": 1}, 'got "2 instances"; cluster_max_instances is 1; if you mean it, type'),
        ({"cluster_nods": {}}, "-e cluster_nods: there is no option of that name; did you mean cluster_nodes?"),
    ],
)
def test_what_aws_does_not_have(api: Api, tmp_path: Path, given: dict[str, Any], told: str) -> None:
    done = api.play(tmp_path / "demo", **{**GIVEN, **given})
    assert told in " ".join((done.stdout + done.stderr).split()), done.stdout + done.stderr
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "demo").exists()
    assert api.client("cloudformation").describe_stacks()["Stacks"] == []


@pytest.mark.parametrize(
    ("without", "more", "told"),
    [
        (
            ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
            {},
            "Unable to locate credentials; give credentials: type aws",
        ),
        (("AWS_SECRET_ACCESS_KEY",), {}, "Partial credentials found in env"),
        (
            ("AWS_DEFAULT_REGION",),
            {},
            "no region is given, and none is in your AWS configuration; name one: -e cluster_",
        ),
        ((), {"AWS_PROFILE": "none-of-that-name"}, "EC2: your AWS configuration: The config profile (none-of"),
        ((), {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "is there a network, and is the region right?"),
    ],
)
@pytest.mark.parametrize("state", ["present", "absent"])
def test_who_cannot_ask_aws(
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without: tuple[str, ...],
    more: dict[str, str],
    told: str,
    state: str,
) -> None:
    environment = {name: value for name, value in api.environment().items() if name not in without}
    mine = {**environment, **more, "HOME": str(tmp_path), "AWS_MAX_ATTEMPTS": "1"}
    monkeypatch.setattr(Api, "environment", lambda _self: mine)
    done = api.play(tmp_path / "demo", cluster_state=state, **{**GIVEN, **AMI})
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr
    assert told in line_of(done.stdout + done.stderr), done.stdout + done.stderr


SSO = """[profile old]
sso_start_url = https://example.com/start
sso_region = eu-central-1
sso_account_id = 123456789012
sso_role_name = admin
region = eu-central-1
"""


def test_a_login_that_is_over(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of AWS's own kind: the token that aws sso login wrote is not there any more."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(SSO)
    environment = {name: value for name, value in api.environment().items() if "ACCESS_KEY" not in name}
    mine = {**environment, "AWS_PROFILE": "old", "HOME": str(tmp_path)}
    monkeypatch.setattr(Api, "environment", lambda _self: mine)
    done = api.play(tmp_path / "demo", **{**GIVEN, **AMI})
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr
    assert "log in again: aws sso login" in line_of(done.stdout + done.stderr), done.stdout + done.stderr


def test_a_cluster_in_another_region_is_not_said_to_be_gone(api: Api, tmp_path: Path) -> None:
    """It would be billed on unseen."""
    template = '{"Resources": {"Group": {"Type": "AWS::EC2::SecurityGroup", "Properties": {"GroupDescription": "x"}}}}'
    tags = [{"Key": "torchfleet", "Value": "away"}]
    stacks = api.client("cloudformation")
    stacks.create_stack(StackName="torchfleet-away", TemplateBody=template, Tags=tags)
    try:
        done = api.play(tmp_path / "away", cluster_name="away", cluster_state="absent", cluster_region="us-west-2")
    finally:
        stacks.delete_stack(StackName="torchfleet-away")
    assert done.returncode == 2
    assert "away is not in us-west-2 but in eu-central-1; type: ansible-playbook cluster.yml" in line_of(done.stdout)
    assert "-e cluster_region=eu-central-1" in line_of(done.stdout)


def test_check_mode_makes_nothing_and_shows_what_it_would(api: Api, tmp_path: Path) -> None:
    done = api.play(tmp_path / "demo", "--check", "--diff", **{**GIVEN, **AMI, "cluster_spot": True})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cluster_spot: cheaper, and AWS may take them away" in done.stdout
    assert "+    Type: AWS::EC2::LaunchTemplate" in done.stdout
    assert not (tmp_path / "demo").exists()
    assert api.client("cloudformation").describe_stacks()["Stacks"] == []
