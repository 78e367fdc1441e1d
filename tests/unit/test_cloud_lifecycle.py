"""What becomes of a cluster on EC2 whatever state AWS has it in. tests/cloud does it with a real API and real nodes."""

from __future__ import annotations

import dataclasses
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud import absence, lifecycle, listing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.answers import (
    Event,
    Instance,
    Remain,
    Stack,
    Volume,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.contact import (
    Answer,
    Contact,
    Pin,
    pins_in,
    pins_text,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.errors import CloudError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.files import Files, alone
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.lifecycle import Done
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.template import until_text
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit import clouds
from tests.unit.clouds import FakeRegion

STACK = "torchfleet-demo"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJILq8aotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAq"


class Controller:
    """A controller, its files, and what it was told."""

    def __init__(self, directory: Path) -> None:
        self.region, self.said = FakeRegion(), list[str]()
        self.files = Files("demo", directory / "inventory" / "demo")
        self.met: list[str] = []
        self.asked: list[tuple[str, ...]] = []  # node, and words, of what was asked over SSH
        self.unreached: set[str] = set()

    def present(self, check: bool = False, **given: Any) -> Done:
        return lifecycle.present(clouds.request(**given), self.region, self.files, check, self.said.append)

    def absent(self, check: bool = False, owner: str = "") -> Done:
        return lifecycle.absent("demo", self.region, self.files, check, self.said.append, owner)

    def ask(self, contact: Contact, _pins: list[Pin], *words: str, program: str) -> Answer:
        self.asked.append((contact.node, *words))
        return Answer(False, error="no route") if contact.node in self.unreached else Answer(True)

    def expire(self, node: str, until: datetime) -> None:
        """Have the lease of a node end at a time."""
        for name, each in self.region.running.items():
            if each.node == node:
                tags = {**each.tags, "torchfleet:expires": until_text(until)}
                self.region.running[name] = dataclasses.replace(each, tags=tags)

    def hosts(self) -> dict[str, Any]:
        groups = yaml.safe_load((self.files.directory / "hosts.yml").read_text())["all"]["children"]
        return {name: groups[name]["hosts"] for name in ("head", "workers")}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """A controller whose instances change their keys at once: tests/cloud has real ones."""
    controller = Controller(tmp_path)
    (tmp_path / "inventory").mkdir()

    def meet_all(contacts: list[Contact], pins: list[Pin], save: Any) -> None:
        controller.met = [contact.node for contact in contacts]
        save([Pin(pin.node, KEY, False) if pin.node in controller.met else pin for pin in pins])

    def ask(contact: Contact, pins: list[Pin], *words: str, program: str) -> Answer:
        return controller.ask(contact, pins, *words, program=program)

    monkeypatch.setattr(lifecycle, "meet_all", meet_all)
    monkeypatch.setattr(lifecycle, "ADDRESS_SECONDS", 0.0)
    monkeypatch.setattr(absence, "GONE_SECONDS", 0.0)
    monkeypatch.setattr(Contact, "ask", ask)
    return controller


def test_a_cluster_is_made_once(here: Controller) -> None:
    done = here.present(cluster_nodes=clouds.SEED)
    assert done.changed and done.nodes == ["n1", "n2", "n3"] and here.met == done.nodes
    assert here.region.asked[-1] == f"create {STACK}"
    assert {path.name for path in here.files.directory.iterdir()} == {"hosts.yml", "known_hosts", "key", "key.pub"}
    assert stat.S_IMODE((here.files.directory / "key").stat().st_mode) == 0o600
    assert here.hosts() == {
        "head": {"n1": {"ansible_host": "198.51.100.1", "ansible_user": "fleet", "ssh_mesh_address": "10.0.0.1"}},
        "workers": {
            f"n{number}": {
                "ansible_host": f"198.51.100.{number}",
                "ansible_user": "fleet",
                "ssh_mesh_address": f"10.0.0.{number}",
                "slots": 1,
                "torchfleet_gpus": 1,
            }
            for number in (2, 3)
        },
    }
    before = {path: path.read_text() for path in here.files.directory.iterdir()}
    again = here.present(cluster_nodes=clouds.SEED)
    assert not again.changed and here.met == []
    assert [line for line in here.region.asked if line.startswith(("create", "update"))] == [f"create {STACK}"]
    assert {path: path.read_text() for path in here.files.directory.iterdir()} == before


def test_check_mode_changes_nothing(here: Controller) -> None:
    done = here.present(check=True)
    assert done.changed and done.template and not here.files.directory.exists() and here.region.stacks == {}
    assert any("$0.1920 an hour each" in line for line in here.said)
    here.present()
    assert not here.present(check=True).changed
    assert here.absent(check=True).changed and here.region.stacks


def test_a_worker_is_added_and_taken_away_and_the_others_stay(here: Controller) -> None:
    here.present()
    ids = {each.id for each in here.region.running.values()}
    grown = here.present(cluster_nodes={"workers": {"count": 3, "type": "t3.xlarge"}})
    assert grown.changed and here.met == ["n3"]
    assert here.region.asked[-1] == f"update {STACK}: UserDataN3"  # the others keep theirs
    assert ids < {each.id for each in here.region.running.values()}
    here.present()
    assert {each.id for each in here.region.running.values()} == ids
    assert [pin.node for pin in here.files.pins()] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"cluster_disk_gb": 200}, "cluster_disk_gb: got [200]; the cluster has [100]"),
        ({"cluster_spot": True}, "cluster_spot: got [true]; the cluster has [false]"),
        ({"cluster_image": "ami-0bbbbbbb"}, 'cluster_image: got ["ami-0bbbbbbb"]; the cluster has ["ami-0aaaaaaa"]'),
        ({"cluster_address": "private"}, 'cluster_address: got "private"; the cluster has "public"'),
        (
            {"cluster_nodes": {"workers": {"type": "t3.micro"}}},
            'got ["workers t3.micro"]; the cluster has ["workers t3',
        ),
        ({"cluster_nodes": clouds.SEED}, 'cluster_nodes: got ["head t3.micro", "workers g4dn.xlarge", "workers g4ad'),
    ],
)
def test_what_would_replace_instances_is_refused(here: Controller, given: dict[str, Any], told: str) -> None:
    here.present()
    with pytest.raises(InputError) as caught:
        here.present(**given)
    assert told in str(caught.value) and "only counts of workers can change; give that, or remove" in str(caught.value)
    assert not [line for line in here.region.asked if line.startswith("update")]


def test_another_version_s_cluster_is_not_replaced(here: Controller) -> None:
    here.present()
    resources: Any = here.region.templates[STACK]["Resources"]
    resources["Kind0"]["Properties"]["LaunchTemplateData"]["EbsOptimized"] = True
    with pytest.raises(
        InputError, match=r"another version of torchfleet made it, and its instances would be replaced: Kind0"
    ):
        here.present()


def test_the_controller_s_new_address_is_let_in(here: Controller) -> None:
    here.present()
    ids = {each.id for each in here.region.running.values()}
    assert here.present(cluster_ssh_from="192.0.2.9").changed
    assert {each.id for each in here.region.running.values()} == ids


def test_a_lost_instance_is_replaced(here: Controller) -> None:
    here.present()
    del here.region.running["N2"]
    assert here.present().changed and here.met == ["n2"]
    assert set(here.region.running) == {"N1", "N2G1"}
    assert not here.present().changed


@pytest.mark.parametrize(("stopped", "check"), [(("N2",), False), (("N1", "N2"), False), (("N1", "N2"), True)])
def test_instances_that_somebody_stopped_are_not_replaced(
    here: Controller, stopped: tuple[str, ...], check: bool
) -> None:
    """They have their disks, and what was computed may lie there alone."""
    here.present()
    for name in stopped:
        here.region.running[name] = dataclasses.replace(here.region.running[name], state="stopped")
    before, asked = dict(here.region.running), list(here.region.asked)
    with pytest.raises(CloudError, match=r"stopped by somebody: .*n2 \(.*; this would replace them and") as refused:
        here.present(check=check)
    assert refused.value.code == "Stopped" and "\n" not in str(refused.value)
    assert (here.region.running, here.region.asked) == (before, asked)
    assert here.absent().changed and not here.region.running


def test_a_cluster_whose_lease_is_over_is_made_anew(here: Controller) -> None:
    here.present()
    here.region.running.clear()
    here.present()
    verbs = [line for line in here.region.asked if not line.startswith("/")]
    assert verbs == [f"create {STACK}", f"delete {STACK}", f"create {STACK}"]
    assert set(here.region.running) == {"N1", "N2"} and here.met == ["n1", "n2"]


# --- the lease ------------------------------------------------------------------------------------------------------


def hours(count: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=count)


def ends(here: Controller) -> list[float]:
    """Return in how many hours the lease of each instance ends, as its tag says, to the nearest half hour."""
    found = [datetime.fromisoformat(each.tags["torchfleet:expires"]) for each in here.region.running.values()]
    return [round((end - datetime.now(UTC)) / timedelta(hours=0.5)) / 2 for end in found]


def test_present_again_renews_the_lease(here: Controller) -> None:
    assert "they end at" in here.present().msg and ends(here) == [4, 4]
    for node in ("n1", "n2"):
        here.expire(node, hours(1))
    shown = here.present(check=True)
    assert shown.changed and "; the lease of n1, n2 would be renewed until " in shown.msg and ends(here) == [1, 1]
    done = here.present()
    assert done.changed and ends(here) == [4, 4] and f"they end at {done.until}, or up to 24 h later" in done.msg
    assert [(node, word, grace) for node, word, _until, grace in here.asked] == [
        (node, "renew", "86400") for node in ("n1", "n2")
    ]
    assert not [line for line in here.region.asked if line.startswith("update")]  # it would replace the instances
    assert "tag i-N1 vol-N1 i-N2 vol-N2: torchfleet:expires" in here.region.asked
    assert not here.present().changed  # it is renewed already


def test_present_does_not_shorten_a_lease(here: Controller) -> None:
    here.present(cluster_hours=48)
    assert not here.present().changed and ends(here) == [48, 48]
    here.present(cluster_nodes={"workers": {"count": 3, "type": "t3.xlarge"}})
    assert ends(here) == [48, 48, 48] and here.asked == []


def test_no_tag_makes_a_lease_longer_than_an_option_can(here: Controller) -> None:
    here.present()
    here.expire("n1", hours(24 * 365))
    here.present()
    assert ends(here)[1] == 720


def test_a_node_that_joins_later_has_a_lease_of_its_own(here: Controller) -> None:
    """The user data that all share was made with the stack: a lease from there that is over would end it at once."""
    here.present(cluster_hours=1)
    for node in ("n1", "n2"):
        here.expire(node, hours(0.1))
    here.present(cluster_nodes={"workers": {"count": 3, "type": "t3.xlarge"}})
    own = here.region.stacks[STACK].parameters["UserDataN3"]
    until = int(own.partition('{\\"until\\": ')[2].partition(",")[0])
    assert abs(until - hours(4).timestamp()) < 300 and ends(here) == [4, 4, 4]


def test_another_grace_is_told_to_the_nodes(here: Controller) -> None:
    here.present()
    assert here.present(cluster_grace_hours=0).changed
    assert [(words[0], words[3]) for words in here.asked] == [("n1", "0"), ("n2", "0")]
    assert not here.present(cluster_grace_hours=0).changed


def test_a_lease_that_could_not_be_renewed_is_told_and_the_others_are_renewed(here: Controller) -> None:
    here.present()
    for node in ("n1", "n2"):
        here.expire(node, hours(1))
    here.unreached = {"n2"}
    with pytest.raises(
        CloudError, match=r"the lease of n2 was not renewed; it ends at 20.*Z; .*: n2: no route"
    ) as error:
        here.present()
    assert error.value.code == "Lease" and ends(here) == [4, 1]
    here.unreached = set()
    assert here.present().changed and ends(here) == [4, 4]


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "CREATE_FAILED", "DELETE_FAILED"])
def test_a_half_made_cluster_is_completed(here: Controller, status: str) -> None:
    here.region.stacks[STACK] = Stack(f"{STACK}/id", STACK, status, "", {}, {"torchfleet": "demo"})
    here.present()
    assert here.region.stacks[STACK].status == "CREATE_COMPLETE" and f"delete {STACK}" in here.region.asked


def test_an_interrupted_creation_goes_on(here: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller was killed when AWS had begun: its keys are pinned, and the same ones are used."""
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "finish", lambda *_given, **_words: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            here.present()
    assert here.region.stacks[STACK].status == "CREATE_IN_PROGRESS"
    assert [pin.one_time for pin in here.files.pins()] == [True, True]
    here.present()
    assert here.met == ["n1", "n2"] and here.region.asked.count(f"create {STACK}") == 1
    assert [(pin.key, pin.one_time) for pin in here.files.pins()] == [(KEY, False)] * 2


CAPACITY = "We currently do not have sufficient p5.48xlarge capacity in zones with support for gp3 (Service: Ec2)"
QUOTA = "You have requested more vCPU capacity than your current vCPU limit of 0 allows (Service: Ec2)"


@pytest.mark.parametrize(
    ("reason", "code", "advice"),
    [
        (CAPACITY, "InsufficientInstanceCapacity", "AWS has none left there"),
        (QUOTA, "VcpuLimitExceeded", "raise the quota in the console"),
        (
            "There is no Spot capacity available that matches your request. (Service: Ec2)",
            "InsufficientInstanceCapacity",
            "AWS has none left there",
        ),
        (
            "Max spot instance count exceeded (Service: Ec2)",
            "MaxSpotInstanceCountExceeded",
            "give -e cluster_spot=false",
        ),
        (
            "Your request for accessing resources in this region is being validated, and you cannot launch",
            "PendingVerification",
            "wait for its mail",
        ),
        (
            "Your requested instance type (g4ad.xlarge) is not supported in your requested Availability Zone (x).",
            "Unsupported",
            "cluster_subnet in another zone",
        ),
        (
            "There are not enough free addresses in subnet 'subnet-1' to satisfy the requested number of instances.",
            "InsufficientFreeAddressesInSubnet",
            "with more free addresses",
        ),
        ("Something else", "", "Something else"),
    ],
)
def test_what_aws_cannot_make_leaves_nothing_and_is_told_in_a_line(
    here: Controller, reason: str, code: str, advice: str
) -> None:
    here.region.failure = reason
    with pytest.raises(CloudError) as caught:
        here.present()
    assert str(caught.value).startswith("AWS did not make N2 (AWS::EC2::Instance); nothing of it is left: ")
    assert reason in str(caught.value) and advice in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.code == code
    assert here.region.stacks == {} and not here.files.directory.exists()


def test_a_worker_that_cannot_be_added_leaves_the_cluster_as_it_was(here: Controller) -> None:
    here.present()
    here.region.failure = CAPACITY
    with pytest.raises(CloudError, match="the cluster is as it was"):
        here.present(cluster_nodes={"workers": {"count": 3, "type": "t3.xlarge"}})
    here.region.failure = ""
    assert set(here.region.running) == {"N1", "N2"}
    text = (here.files.directory / "known_hosts").read_text()
    assert f"n1,10.0.0.1,198.51.100.1 {KEY}\n" in text  # Ansible reaches them as before, whatever comes next
    here.present()
    assert [pin.node for pin in here.files.pins()] == ["n1", "n2"]


def test_absence_is_proven(here: Controller) -> None:
    here.present()
    done = here.absent()
    assert done.changed and done.nodes == ["n1", "n2"] and not here.files.directory.exists()
    assert not here.absent().changed
    here.present()
    here.region.leaks = [Remain("vol-1", "")]
    with pytest.raises(CloudError, match="not removed, and maybe billed, in eu-central-1, tag torchfleet=demo: vol-1"):
        here.absent()


def stranger(**tags: str) -> Instance:
    """An instance that somebody else started, with the tags of n1: the console copies them."""
    copied = {"torchfleet": "demo", "torchfleet:node": "n1", **tags}
    return Instance("i-other", "n1", "t3.xlarge", "running", "192.0.2.66", "10.0.0.66", copied)


def test_an_instance_with_a_copied_tag_is_not_of_the_cluster(here: Controller) -> None:
    here.region.strangers = [stranger()]
    here.present()
    assert here.hosts()["workers"]["n1"]["ansible_host"] == "198.51.100.1"
    del here.region.running["N1"]  # what has its tag does not stand in for it
    assert here.present().changed and set(here.region.running) == {"N1G1", "N2"}
    here.region.leaks = [Remain("vol-other", "i-other")]
    done = here.absent()
    assert done.changed and done.nodes == ["n1", "n2"] and not here.files.directory.exists()
    assert here.said[-1].startswith(
        "i-other: tag torchfleet=demo, but not made by stack torchfleet-demo; left as it is"
    )


def test_an_instance_of_a_stack_that_is_gone_is_left_of_the_cluster(here: Controller) -> None:
    """Somebody deleted the stack, and had AWS keep its instances: CloudFormation's own tag says so."""
    here.region.strangers = [stranger(**{absence.STACK_TAG: STACK})]
    assert here.absent(check=True).msg == "cluster demo: would remove i-other"
    with pytest.raises(CloudError, match=r"not removed, and maybe billed, .*: i-other: end them in the console"):
        here.absent()


def test_absent_goes_on_where_it_was_interrupted(here: Controller) -> None:
    here.present()
    stack = here.region.stacks[STACK]
    here.region.delete(stack)  # and the controller was killed
    assert here.absent().changed and here.region.asked.count(f"delete {STACK}") == 1
    assert here.region.stacks == {} and not here.files.directory.exists()


@pytest.mark.parametrize(
    "status", ["CREATE_IN_PROGRESS", "CREATE_FAILED", "ROLLBACK_COMPLETE", "UPDATE_ROLLBACK_FAILED"]
)
def test_a_half_made_cluster_is_removed(here: Controller, status: str) -> None:
    here.region.stacks[STACK] = Stack(f"{STACK}/id", STACK, status, "", {}, {"torchfleet": "demo"})
    here.region.templates[STACK] = {"Resources": {}}
    assert here.absent().changed and here.region.stacks == {}


def test_a_stack_that_aws_cannot_mend_is_told_with_what_to_type(here: Controller) -> None:
    tags = {"torchfleet": "demo"}
    here.region.stacks[STACK] = Stack(f"{STACK}/id", STACK, "UPDATE_ROLLBACK_FAILED", "no capacity", {}, tags)
    with pytest.raises(
        CloudError, match="in state UPDATE_ROLLBACK_FAILED: no capacity; remove it, and make it again: an"
    ):
        here.present()


def test_a_part_that_aws_does_not_delete_is_named_and_it_can_be_tried_again(here: Controller) -> None:
    here.present()
    here.region.stuck = "resource sg-1 has a dependent object"
    for _time in range(2):
        with pytest.raises(
            CloudError, match="did not delete stack torchfleet-demo: type it again: Group: resource sg-1"
        ):
            here.absent()
    here.region.stuck = ""
    assert here.absent().changed and here.region.stacks == {}


def test_what_was_found_at_first_stays(here: Controller) -> None:
    """An image that is newer, another user, another zone that AWS lists first: no reason to replace instances."""
    here.present()
    here.region.newest = "ami-0bbbbbbb"
    here.region.who = lambda: "bob"  # type: ignore[method-assign]
    here.region.zones = lambda names: {"eu-central-1b"}  # type: ignore[method-assign]
    assert not here.present().changed


@pytest.mark.parametrize("file", ["key", "known_hosts"])
def test_a_cluster_of_another_controller_is_not_touched(here: Controller, file: str) -> None:
    here.present()
    (here.files.directory / file).unlink()
    with pytest.raises(
        InputError, match="another controller made it, or files were removed: bring key and known_hosts"
    ):
        here.present()


def test_a_directory_of_something_else_is_not_touched(here: Controller) -> None:
    here.files.directory.mkdir()
    (here.files.directory / "hosts.yml").write_text("---\nall: {}\n")
    with pytest.raises(InputError, match="exists and has no cluster's inventory; give another cluster_name"):
        here.present()
    assert here.region.asked == []


def test_a_stack_that_is_not_ours_is_not_touched(here: Controller) -> None:
    here.present()
    here.region.templates[STACK] = {"Resources": {}}
    with pytest.raises(CloudError, match=r"stack torchfleet-demo is not of torchfleet; give another cluster_name"):
        here.present()


def test_clusters_are_listed_with_what_is_left_of_those_whose_stack_is_gone(here: Controller) -> None:
    here.present()
    volume = Volume("vol-1", {"torchfleet": "old", "torchfleet:owner": "bob"})
    rows = listing.rows_of("eu-central-1", [], list(here.region.running.values()), [volume], ())
    assert rows[0].expires == here.region.running["N1"].tags["torchfleet:expires"]
    assert [(row.cluster, row.status, row.instances, row.volumes, row.owner) for row in rows] == [
        ("demo", "", ("t3.xlarge", "t3.xlarge"), (), "alice"),
        ("old", "", (), ("vol-1",), "bob"),
    ]
    assert "2 x t3.xlarge, of alice" in listing.row_line(rows[0])
    assert listing.row_line(rows[1]) == "old: eu-central-1, no stack, vol-1, of bob, until ?"


def test_an_instance_with_a_copied_tag_is_listed_apart(here: Controller) -> None:
    here.present()
    for node in ("n1", "n2"):
        here.expire(node, hours(9))  # renewed: the stack does not know of it
    there = [*here.region.running.values(), stranger()]
    (row,) = listing.rows_of("eu-central-1", list(here.region.stacks.values()), there, [], {"i-N1", "i-N2"})
    assert row.strangers == ("i-other",) and row.expires == here.region.running["N2"].tags["torchfleet:expires"]
    assert listing.row_line(row).endswith(f"until {row.expires}; not of the stack, only its tag: i-other")
    (alone,) = listing.rows_of("eu-central-1", [], [stranger()], [], ())
    assert row.is_cluster and not alone.is_cluster


def test_the_first_failure_is_the_cause() -> None:
    rows = [("N3", "Resource creation cancelled"), ("N2", "no capacity"), ("N1", "")]
    events = [Event(name, "", "CREATE_FAILED", reason) for name, reason in rows]
    cause = lifecycle.cause_of(events)
    assert cause and cause.resource == "N2"


def test_a_failure_of_an_earlier_change_is_not_the_cause() -> None:
    """The events of a stack are those of its whole life. Codes in the cause choose the advice."""
    stack = Event("torchfleet-demo", lifecycle.STACK_KIND, "UPDATE_IN_PROGRESS", "User Initiated")
    events = [
        Event("torchfleet-demo", lifecycle.STACK_KIND, "UPDATE_ROLLBACK_COMPLETE", ""),
        *(Event("N4", "", "CREATE_FAILED", "a quota"), stack, Event("N3", "", "CREATE_FAILED", "no capacity"), stack),
    ]
    cause = lifecycle.cause_of(events, "CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS")
    assert cause and cause.reason == "a quota"
    assert lifecycle.cause_of(events[2:], "UPDATE_IN_PROGRESS") is None


def test_known_hosts_say_which_key_is_for_the_first_login(tmp_path: Path) -> None:
    pins = [Pin("n1", KEY, True), Pin("n2", KEY, False)]
    text = pins_text(pins, {"n2": ["198.51.100.2", "10.0.0.2"]})
    assert text == f"n1 {KEY} one-time\nn2,198.51.100.2,10.0.0.2 {KEY}\n"
    assert pins_in(text) == pins
    (tmp_path / "known_hosts").write_text(text)
    for name in ("n1", "10.0.0.2"):  # as ssh reads it
        argv = ["ssh-keygen", "-F", name, "-f", str(tmp_path / "known_hosts")]
        assert subprocess.run(argv, capture_output=True, text=True, check=False).returncode == 0


# --- what is not this user's -----------------------------------------------------------------------------------------


def left_alone(here: Controller) -> bool:
    return STACK in here.region.stacks and f"delete {STACK}" not in here.region.asked


@pytest.mark.parametrize("status", ["CREATE_COMPLETE", "ROLLBACK_COMPLETE", "CREATE_FAILED"])
@pytest.mark.parametrize("tags", [{}, {"torchfleet": "other"}])
def test_a_stack_that_has_the_name_by_chance_is_never_deleted(
    here: Controller, status: str, tags: dict[str, str]
) -> None:
    """It has no instances of the cluster, as one that has lost them all."""
    here.region.stacks[STACK] = Stack(f"{STACK}/id", STACK, status, "", {}, tags)
    for act in (here.present, here.absent):
        with pytest.raises(CloudError, match="stack torchfleet-demo is not of torchfleet") as refused:
            act()
        assert refused.value.code == "Stranger" and left_alone(here)


def test_a_cluster_of_another_user_of_the_account_is_not_deleted(here: Controller) -> None:
    here.present()
    other = Controller(here.files.directory.parents[1] / "elsewhere")
    other.region = here.region
    here.region.who = lambda: "bob"  # type: ignore[method-assign]
    with pytest.raises(
        CloudError, match=r"demo belongs to alice, its key is not here, .* -e cluster_owner=alice"
    ) as refused:
        other.absent()
    assert refused.value.code == "NotYours" and left_alone(here)
    here.region.running.clear()  # its lease is over: it would be made anew
    with pytest.raises(CloudError, match="demo belongs to alice"):
        other.present()
    with pytest.raises(CloudError, match="demo belongs to alice"):
        other.absent(owner="carol")
    assert left_alone(here)
    assert other.absent(owner="alice").changed and here.region.stacks == {}


def test_whoever_has_the_key_may_delete_under_any_name(here: Controller) -> None:
    here.present()
    here.region.who = lambda: "bob"  # type: ignore[method-assign]
    assert here.absent().changed


@pytest.mark.parametrize("act", ["present", "absent"])
def test_files_of_a_cluster_in_another_account_or_region_are_kept(here: Controller, act: str) -> None:
    """With other credentials AWS has no such cluster: it runs on, and without its key nobody reaches it."""
    made = "account 111111111111, region eu-central-1"
    here.files = dataclasses.replace(here.files, place=made)
    here.present()
    assert (here.files.directory / "known_hosts").read_text().startswith(f"# made in {made}\nn1,")
    before = {path.name: path.read_bytes() for path in here.files.directory.iterdir()}
    here.region, here.files = FakeRegion(), dataclasses.replace(here.files, place=made.replace("1111", "2222"))
    with pytest.raises(InputError, match=f"belongs to a cluster in {made}, and this is account 2222.*AWS_PROFILE"):
        getattr(here, act)()
    assert {path.name: path.read_bytes() for path in here.files.directory.iterdir()} == before
    here.files = dataclasses.replace(here.files, place=made)
    assert here.absent().changed and not here.files.directory.exists()


def test_a_directory_with_a_key_of_the_user_s_own_is_not_touched(here: Controller) -> None:
    here.files.directory.mkdir()
    for name in ("key", "known_hosts", "config"):  # as in ~/.ssh
        (here.files.directory / name).write_text("mine\n")
    with pytest.raises(InputError, match="exists and has no cluster's inventory"):
        here.present()
    here.absent()
    assert {path.read_text() for path in here.files.directory.iterdir()} == {"mine\n"}
    assert len(list(here.files.directory.iterdir())) == 3


def test_two_runs_do_not_change_a_cluster_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: a killed playbook's worker and the next run changed a host key, and nobody could log in."""
    monkeypatch.setenv("HOME", str(tmp_path))
    said: list[str] = []
    with alone("demo", said.append), alone("other", said.append):
        assert said == []
        with pytest.raises(CloudError, match="holds cluster demo") as error, alone("demo", said.append, seconds=0.1):
            pass
        assert error.value.code == "Busy" and len(said) == 1
    with alone("demo", said.append):
        assert len(said) == 1
