"""What AWS and new instances answer is checked once, and what they refuse is one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import ec2_cluster
from ansible_collections.torchfleet.cluster.plugins.module_utils._cloud import first_contact
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud import answers, contact
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.contact import Answer, Contact, Pin
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.errors import ADVICE, CloudError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented, values_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJILq8aotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAq"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKzzzzzotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAqz"
# Of EC2's answers, fields that are used here ("Actions" of its API reference), and one that is not.
P5: dict[str, Any] = {
    "InstanceType": "p5.48xlarge",
    "Hypervisor": "nitro",
    "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
    "VCpuInfo": {"DefaultCores": 96},
    "NetworkInfo": {
        "NetworkCards": [
            {"NetworkCardIndex": 0, "InterfaceTypes": ["interface", "efa", "efa-only"]},
            {"NetworkCardIndex": 1, "InterfaceTypes": ["interface", "efa", "efa-only"]},
            {"NetworkCardIndex": 2, "InterfaceTypes": ["interface", "efa"]},
        ]
    },
    "GpuInfo": {"Gpus": [{"Name": "H100", "Manufacturer": "NVIDIA", "Count": 8}]},
    "PlacementGroupInfo": {"SupportedStrategies": ["cluster", "spread"]},
    "SupportedUsageClasses": ["capacity-block", "on-demand"],
}


def test_a_type_is_read() -> None:
    (facts,) = answers.types_in({"InstanceTypes": [P5]})
    assert (facts.cores, facts.gpus, facts.gpu_vendor, facts.cluster_placement, facts.spot) == (
        96,
        8,
        "nvidia",
        True,
        False,
    )
    assert facts.efa == ((0, "efa"), (1, "efa-only"), (2, "efa"))


@pytest.mark.parametrize(
    "row",
    [
        {"InstanceType": 7},
        {**P5, "GpuInfo": []},
        {**P5, "VCpuInfo": {"DefaultCores": -1}},
        {**P5, "NetworkInfo": {"NetworkCards": "many"}},
        "p5",
    ],
)
def test_an_answer_of_another_form_is_refused(row: object) -> None:
    with pytest.raises(CloudError, match=r"AWS answered without a usable \w+: does AWS_ENDPOINT_URL lead to AWS"):
        list(answers.types_in({"InstanceTypes": [row]}))


def test_an_address_is_an_address_and_text_is_on_one_line() -> None:
    row = {"InstanceId": "i-1", "State": {"Name": "running"}, "PublicIpAddress": "$(id)"}
    with pytest.raises(CloudError, match="PublicIpAddress"):
        list(answers.instances_in({"Reservations": [{"Instances": [row]}]}))
    stack = {"StackId": "x", "StackName": "n", "StackStatus": "A", "StackStatusReason": "a\x1b[2J\nb"}
    (found,) = answers.stacks_in({"Stacks": [stack]})
    assert found.reason == "a [2J b"


def test_prices_are_read() -> None:
    """The form of GetProducts: a list of JSON documents (AWS Price List API)."""
    row = {"pricePerUnit": {"USD": "0.6580000000"}}
    document = json.dumps({"terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": row}}}}})
    assert answers.price_in({"PriceList": [document]}) == 0.658
    assert answers.price_in({"PriceList": []}) is None
    assert answers.spot_price_in({"SpotPriceHistory": [{"SpotPrice": "0.21"}]}) == 0.21
    assert [answers.spot_price_in({"SpotPriceHistory": [{"SpotPrice": text}]}) for text in ("0", "nan")] == [None, None]
    with pytest.raises(CloudError):
        answers.price_in({"PriceList": ["{}"]})


def test_a_refusal_is_one_line_with_what_to_do() -> None:
    error = CloudError(
        "UnauthorizedOperation", "ec2, run_instances in eu-central-1", "You are not authorized\n(encoded)"
    )
    assert str(error).startswith(
        "ec2, run_instances in eu-central-1: You are not authorized; your user lacks that right"
    )
    assert "\n" not in str(error) and all("\n" not in advice for advice in ADVICE.values())


@pytest.mark.parametrize("state", ["present", "absent", "list"])
def test_without_boto3_it_says_what_to_install(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    action = object.__new__(ec2_cluster.ActionModule)
    nodes = {"workers": {"type": "t3.micro"}}
    args = {"cluster_name": "demo", "cluster_nodes": nodes, "cluster_state": state, "cluster_directory": str(tmp_path)}
    action._task = SimpleNamespace(args=args, check_mode=False, diff=False)
    with pytest.raises(InputError, match=r"no boto3 in this Python.*pip install -r requirements-ec2.txt"):
        action.act(values_of("ec2_cluster", args, documented("ec2_cluster")), {})


def test_a_cluster_in_another_region_is_not_said_to_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be billed on unseen."""
    region = SimpleNamespace(region="eu-central-1", stack=lambda _name: None, instances=lambda _name: [])
    rows = [SimpleNamespace(cluster="demo", is_cluster=True, region="us-west-2")]
    monkeypatch.setattr(region, "place", lambda: "1/eu-central-1", raising=False)
    monkeypatch.setattr(ec2_cluster, "Aws", lambda _region: region)
    monkeypatch.setattr(ec2_cluster.lifecycle, "absent", lambda *_given: pytest.fail("nothing is removed here"))
    action = object.__new__(ec2_cluster.ActionModule)
    monkeypatch.setattr(action, "look", lambda _region: (rows, []))
    args = {"cluster_name": "demo", "cluster_state": "absent", "cluster_directory": str(tmp_path)}
    action._task = SimpleNamespace(args=args, check_mode=True, diff=False)
    told = action.act(values_of("ec2_cluster", args, documented("ec2_cluster")), {})
    assert told["failed"] is True and "cluster demo is not in eu-central-1 but in us-west-2; type: " in told["msg"]


@pytest.mark.parametrize("said", [b"welcome to this image\n{}", b"[]", b'{"key": 7}', b"\xff" * 70000, b"[" * 60000])
def test_what_is_no_answer_of_ours_is_quoted(said: bytes) -> None:
    with pytest.raises(CloudError, match="n1 did not answer with a line of JSON but") as caught:
        contact.answer_in("n1", said)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


class Scripted(Contact):
    """A node that answers from a list; then it lets nobody in."""

    def ask(self, pins: Any, *words: str, **_program: str) -> Answer:
        asked.append((words[0], [pin.key for pin in pins]))
        return script.pop(0) if script else Answer(False, error="Connection refused")


asked: list[tuple[str, list[str]]] = []
script: list[Answer] = []


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Contact:
    asked.clear()
    script.clear()
    monkeypatch.setattr(contact, "RETRY_SECONDS", 0.0)
    return Scripted("n1", "192.0.2.1", tmp_path)


def test_the_new_key_is_noted_before_it_is_taken_and_proven_alone(node: Contact) -> None:
    script.extend([Answer(False), Answer(True, key=OTHER), Answer(True), Answer(False), Answer(True)])
    saved: list[list[tuple[str, bool]]] = []
    pins = [Pin("n1", KEY, True), Pin("n2", KEY, False)]
    contact.meet_all(
        [node], pins, lambda now: saved.append([(pin.key, pin.one_time) for pin in now if pin.node == "n1"])
    )
    assert asked == [("offer", [KEY])] * 2 + [("take", [KEY, OTHER])] + [("take", [OTHER])] * 2
    assert saved == [[(KEY, True), (OTHER, False)], [(OTHER, False)]]


def test_a_node_that_lets_nobody_in_is_told_with_ssh_s_own_line(node: Contact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact, "BOOT_SECONDS", 0.0)
    with pytest.raises(
        CloudError, match=r"n1 \(192.0.2.1\) lets nobody in after 0 s: Connection refused; is cluster_ssh"
    ):
        contact.meet_all([node], [Pin("n1", KEY, True)], lambda _now: None)


@pytest.mark.parametrize("answer", [Answer(True, error="the lease does not run"), Answer(True, key="ssh-rsa x\ny")])
def test_a_node_without_a_lease_or_a_key_is_refused(node: Contact, answer: Answer) -> None:
    script.append(answer)
    with pytest.raises(CloudError, match=answer.error or "this is not a public SSH key"):
        contact.meet_all([node], [Pin("n1", KEY, True)], lambda _now: None)


def test_ssh_trusts_what_is_pinned_and_nothing_else(tmp_path: Path) -> None:
    argv = Contact("n1", "192.0.2.1", tmp_path).ssh(tmp_path / "pins", "offer")
    for option in (
        "StrictHostKeyChecking=yes",
        "GlobalKnownHostsFile=/dev/null",
        "UpdateHostKeys=no",
        "HostKeyAlias=n1",
    ):
        assert option in argv
    assert argv[-8:] == ["--", "192.0.2.1", "sudo", "-n", "python3", "-I", "-", "offer"]


def test_a_machine_whose_lease_does_not_run_offers_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"cloud-init": 0, "systemctl": 3}
    monkeypatch.setattr(
        first_contact, "run", lambda argv: SimpleNamespace(returncode=codes[argv[0]], stdout="inactive\n")
    )
    assert first_contact.offer() == {"error": "the lease does not run: torchfleet-lease.timer is inactive"}
    codes["cloud-init"] = 1
    assert first_contact.offer()["error"].startswith("cloud-init status --wait: ")


def test_what_a_new_machine_says_cannot_act_on_the_terminal() -> None:
    assert str(CloudError("FirstContact", "n1", "\x1b[2J\x07wrong\u202e\nmore")) == "n1: [2Jwrong"
