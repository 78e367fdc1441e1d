"""The lab as far as it can be thought out without a machine: what is refused, and what follows from the options."""

from __future__ import annotations

import ipaddress
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import directory, faults, host, lifecycle, spec
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.image import node_tag
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.spec import Lab, parse_disturbance, parse_lab

SUBNETS = [ipaddress.IPv4Network("10.200.1.0/24"), ipaddress.IPv4Network("10.200.2.0/24")]
FILES = Path(__file__).parents[2] / "roles/lab/files"


def lab_options(**changed: Any) -> dict[str, Any]:
    """Return what the module is given."""
    common: dict[str, Any] = {
        "name": "lab",
        "nodes": 2,
        "head_only": False,
        "nics": 2,
        "subnets": [],
        "release": "bookworm",
    }
    common |= {
        "image": "tools",
        "packages": [],
        "mirror": "",
        "user": "fleet",
        "slots": 2,
        "shm_mb": 256,
        "overrides": {},
        "mounts": [],
    }
    common |= {"state": "present", "node": "", "nic": "", "rate": "", "directory": "/nowhere", "ca_bundle": ""}
    return {**common, "context": str(FILES), "pip_config": False, **changed}


@pytest.fixture
def lab() -> Lab:
    overrides = {"n2": {"user": "other", "port": 2222, "slots": 1, "hostname": "w.example", "release": "trixie"}}
    return parse_lab(lab_options(overrides=overrides, mounts=["/a", "/b:/c"]), SUBNETS)


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "Lab"}, "lab_name: got 'Lab'; give at most 30 of a-z, 0-9 and -, beginning with a letter"),
        ({"name": "../etc"}, "lab_name: got '../etc'; give at most 30"),
        ({"name": "x" * 31}, "lab_name: got 'xxx"),
        ({"nodes": 0}, "lab_nodes: got 0; give 1 to 200"),
        ({"nodes": 201}, "lab_nodes: got 201; give 1 to 200"),
        ({"nodes": 1, "head_only": True}, "lab_nodes: got 1; give 2 to 200"),
        ({"nics": 0}, "lab_nics: got 0; give 1 to 8"),
        ({"shm_mb": 0}, "lab_shm_mb: got 0; give 1 to 1048576"),
        ({"release": "sid"}, "lab_release: got 'sid'; give bullseye, bookworm, trixie"),
        ({"user": "a b"}, "lab_user: got 'a b'; give a user name"),
        ({"slots": 0}, "lab_slots: got 0; give 1 to 1024"),
        ({"packages": ["openssh-server-"]}, "lab_packages: got 'openssh-server-'; give names of Debian packages"),
        ({"packages": ["-o=x"]}, "lab_packages: got '-o=x'"),
        ({"mirror": "debian"}, "lab_mirror: got 'debian'; give an address such as http"),
        ({"mounts": ["here"]}, "lab_mounts: got 'here'; give /path/here or /path/here:/path/there"),
        ({"mounts": ["/a:/b:rw"]}, "lab_mounts: got '/a:/b:rw'"),
        ({"overrides": {"n3": {}}}, "lab_overrides: there is no node 'n3'; give n1 to n2"),
        ({"overrides": {"n2": None}}, "lab_overrides: got None for n2; give a mapping of any of release, user, port"),
        ({"overrides": {"n2": {"name": "x"}}}, "lab_overrides: got {'name': 'x'} for n2; give a mapping"),
        ({"overrides": {"n2": {"port": 0}}}, "lab_overrides: port of n2: got 0; give 1 to 65535"),
        ({"overrides": {"n2": {"port": "ssh"}}}, "lab_overrides: port of n2: got 'ssh'"),
        ({"overrides": {"n2": {"slots": 0}}}, "lab_overrides: slots of n2: got 0; give 1 to 1024"),
        (
            {"overrides": {"n2": {"release": "sid"}}},
            "lab_overrides: release of n2: got 'sid'; give bullseye, bookworm, trixie",
        ),
        ({"overrides": {"n2": {"hostname": "a_b"}}}, "lab_overrides: hostname of n2: got 'a_b'; give letters"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_lab(lab_options(**change))
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("subnets", "says"),
    [
        (["10.1.0.0/24"], "lab_subnets: got 1 for 2 NICs; give one for each, or none"),
        (["10.1.0.0/24", "x"], "lab_subnets: got 'x' (Expected 4 octets"),
        (["10.1.0.1/24", "10.1.1.0/24"], "lab_subnets: got '10.1.0.1/24' (10.1.0.1/24 has host bits set)"),
        (["10.1.0.0/25", "10.1.1.0/24"], "lab_subnets: 10.1.0.0/25 is too small; give networks of /24 or larger"),
        (["10.1.0.0/16", "10.1.1.0/24"], "lab_subnets: 10.1.1.0/24 is given twice"),
    ],
)
def test_subnets_are_refused_in_one_line(subnets: list[str], says: str) -> None:
    with pytest.raises(ValueError) as refused:
        spec.parse_subnets(subnets, 2)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"state": "cut"}, "lab_node: got ''; give n1, n2 or all"),
        ({"state": "cut", "node": "n3"}, "lab_node: got 'n3'; give n1, n2 or all"),
        ({"state": "cut", "node": "n1", "nic": "eth7"}, "lab_nic: got 'eth7'; give eth0 or eth1"),
        ({"state": "pause", "node": "n1", "nic": "eth0"}, "lab_nic: pause applies to whole nodes; leave lab_nic out"),
        ({"state": "shape", "node": "n1"}, "lab_rate: got ''; give a whole number and kbit, mbit or gbit"),
        ({"state": "shape", "node": "n1", "rate": "1.5gbit"}, "lab_rate: got '1.5gbit'; give a whole number"),
        ({"state": "shape", "node": "n1", "rate": "0mbit"}, "lab_rate: got '0mbit'"),
        ({"state": "cut", "node": "n1", "rate": "1mbit"}, "lab_rate: leave it out with cut"),
    ],
)
def test_a_disturbance_is_refused_in_one_line(lab: Lab, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_disturbance(lab_options(**given), ["n1", "n2"], lab.networks)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize("change", [{"mounts": ["/no/such"]}, {"ca_bundle": "/no/such"}], ids=str)
def test_what_is_not_here_cannot_be_read_there(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^lab_{next(iter(change))}: there is no .*/no/such"):
        lifecycle.present(lab_options(**change), check=True)


def test_missing_tools_are_named_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a fresh machine: nothing of it is installed, and the plan says so before anything is done."""
    monkeypatch.setattr(host.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = lifecycle.present(lab_options(), check=True)
    assert plan["packages"] == list(host.TOOLS.values())
    packages = "podman runc iptables mmdebstrap util-linux iproute2 nftables openssh-client"
    assert f"; type: apt install --no-install-recommends {packages}, or add -e lab_install=true" in plan["msg"]
    with pytest.raises(ValueError, match=r"^not installed: podman, runc, "):
        lifecycle.present(lab_options(), check=False)


def test_a_plain_user_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "geteuid", lambda: 1000)
    for verb in (lifecycle.present, lifecycle.absent):
        with pytest.raises(ValueError, match=r"^a lab needs root on this machine: ansible-playbook -b "):
            verb(lab_options(), check=False)


# --- what follows --------------------------------------------------------------------------------------------------


def test_the_inventory_is_a_cluster(lab: Lab) -> None:
    text = spec.inventory(lab)
    assert text.startswith("---\n# ")
    inventory = yaml.safe_load(text)["all"]
    assert inventory["children"]["head"] == {"hosts": {"n1": None}}
    assert inventory["children"]["workers"]["hosts"] == {
        "n1": {"ansible_host": "10.200.1.11", "ansible_user": "fleet", "slots": 2},
        "n2": {"ansible_host": "10.200.1.12", "ansible_user": "other", "slots": 1, "ansible_port": 2222},
    }
    assert "StrictHostKeyChecking=yes" in inventory["children"]["workers"]["vars"]["ansible_ssh_common_args"]


def test_a_head_that_only_launches_is_no_worker() -> None:
    inventory = yaml.safe_load(spec.inventory(parse_lab(lab_options(nodes=3, head_only=True), SUBNETS)))["all"]
    head, workers = (inventory["children"][group] for group in ("head", "workers"))
    assert head["hosts"] == {"n1": {"ansible_host": "10.200.1.11", "ansible_user": "fleet", "slots": 2}}
    assert list(workers["hosts"]) == ["n2", "n3"]
    assert head["vars"] == workers["vars"]


def test_host_keys_are_known_under_every_address_and_port(lab: Lab) -> None:
    keys = {"n1": ["ssh-ed25519 A", "ecdsa B"], "n2": ["ssh-ed25519 C"]}
    assert spec.known_hosts(lab, keys).splitlines() == [
        "n1,10.200.1.11,10.200.2.11 ssh-ed25519 A",
        "n1,10.200.1.11,10.200.2.11 ecdsa B",
        "[n2]:2222,[10.200.1.12]:2222,[10.200.2.12]:2222 ssh-ed25519 C",
    ]


def test_a_node_is_started_as_it_was_asked_for(lab: Lab) -> None:
    argv = spec.run_argv(lab, lab.nodes[1], "image", "ssh-ed25519 K", ["--ulimit", "x"])
    assert argv[:4] == ["run", "--detach", "--name", "lab-n2"]
    assert argv[-3:] == ["--ulimit", "x", "image"]
    pairs = list(itertools.pairwise(argv))
    for pair in [
        ("--hostname", "w.example"),
        ("--label", "torchfleet.lab=lab"),
        ("--network", "lab-0:interface_name=eth0,ip=10.200.1.12,mac=02:6c:0a:c8:01:0c"),
        ("--network", "lab-1:interface_name=eth1,ip=10.200.2.12,mac=02:6c:0a:c8:02:0c"),
        ("--volume", "/a:/a:ro"),
        ("--volume", "/b:/c:ro"),
        ("--env", "LAB_USER=other"),
        ("--env", "LAB_PORT=2222"),
        ("--env", "LAB_ADDRESS=10.200.1.12"),
    ]:
        assert pair in pairs
    assert "--pids-limit=-1" in argv  # podman's own limit is 2048: some ranks of PyTorch


def test_a_name_of_a_node_is_not_answered_with_any_of_its_addresses(lab: Lab) -> None:
    """As podman's DNS does: which NIC a job takes would be chance."""
    argv = spec.network_argv(lab, lab.networks[0])
    assert "--disable-dns" in argv and argv[-1] == "lab-0"


def test_healing_takes_back_all_of_a_cut(lab: Lab) -> None:
    network = lab.networks[1]
    made = [line.split()[1] for line in spec.cut_rules(network).splitlines() if line.startswith("chain ")]
    gone = [line.rpartition(" ")[2] for line in spec.heal_rules(network).splitlines()]
    assert made == gone and len(made) == 2


@pytest.mark.parametrize(
    ("change", "variable"),
    [
        ({}, ""),
        ({"slots": 7}, ""),
        ({"nodes": 3}, ""),
        ({"nics": 1}, "lab_nics"),
        ({"shm_mb": 64}, "lab_shm_mb"),
        ({"mounts": ["/a"]}, "lab_mounts"),
        ({"user": "other"}, "lab_user"),
        ({"overrides": {"n1": {"port": 2222}}}, "lab_overrides"),
        ({"overrides": {"n1": {"hostname": "x"}}}, "lab_overrides"),
    ],
    ids=str,
)
def test_a_changed_option_is_told_by_its_variable(change: dict[str, Any], variable: str) -> None:
    def shape(given: dict[str, Any]) -> str:
        made = parse_lab(given, SUBNETS[: given["nics"]])
        return spec.shape(made, made.nodes[0], "image", "key")

    assert spec.difference(shape(lab_options()), shape(lab_options(**change))) == variable


def test_free_subnets_are_free_and_the_same_for_a_name() -> None:
    first = spec.free_subnets("lab", 3, [])
    assert first == spec.free_subnets("lab", 3, [])
    assert all(subnet.prefixlen == 24 and subnet.subnet_of(spec.POOL) for subnet in first)
    assert len(set(first)) == 3
    second = spec.free_subnets("lab", 2, first[:1])
    assert second == first[1:]
    assert spec.free_subnets("other", 1, []) != first[:1]
    assert spec.free_subnets("lab", 0, []) == []
    with pytest.raises(ValueError, match=r"^lab_subnets: no 1 free /24 in 10.192.0.0/12"):
        spec.free_subnets("lab", 1, [spec.POOL])


def test_an_image_has_another_name_when_anything_in_it_is_another(tmp_path: Path) -> None:
    for name in ("Containerfile", "init"):
        (tmp_path / name).write_text((FILES / name).read_text())
    tag = node_tag("bookworm", lab_options(context=str(tmp_path)))
    assert tag == node_tag("bookworm", lab_options())
    others = [
        node_tag("trixie", lab_options()),
        node_tag("bookworm", lab_options(packages=["gcc"])),
        node_tag("bookworm", lab_options(image="bare")),
        node_tag("bookworm", lab_options(mirror="http://mirror/debian")),
    ]
    (tmp_path / "init").write_text("#!/bin/sh\n")
    others.append(node_tag("bookworm", lab_options(context=str(tmp_path))))
    assert len({tag, *others}) == 6


def test_a_cut_names_its_nic_and_spares_this_machine(lab: Lab) -> None:
    rules = spec.cut_rules(lab.networks[1])
    assert 'iifname "eth1" ip saddr != 10.200.2.1 drop' in rules
    assert 'oifname "eth1" ip daddr != 10.200.2.1 drop' in rules
    assert "eth0" not in rules
    for direction in ("iifname", "oifname"):  # or nodes would still meet over link-local addresses
        assert f'{direction} "eth1" meta nfproto ipv6 drop' in rules


def test_a_fast_rate_gets_a_larger_bucket() -> None:
    """One that is smaller than what the kernel hands over in a tick would slow the link further (tc-tbf(8))."""
    assert spec.shape_argv("eth0", "200mbit")[-3] == "131072"
    assert spec.shape_argv("eth0", "10gbit")[-3] == "5000000"


def test_pip_finds_packages_where_this_machine_does(tmp_path: Path) -> None:
    index = tmp_path / "index/simple"
    wheels = tmp_path / "wheels"
    for path in (index, wheels):
        path.mkdir(parents=True)
    said = {
        "global.index-url": "https://me:secret@mirror/simple",
        "global.extra-index-url": f"file://{index} https://me:secret@mirror/simple https://other/simple",
        "global.find-links": "/of/the/file",
        ":env:.find-links": str(wheels),
        ":env:.cert": "/etc/ca.crt",
        "install.no-deps": "1",
    }
    settings = host.parse_pip_config("\n".join(f"{name}={value!r}" for name, value in said.items()))
    assert settings == {"extra-index-url": f"file://{index} https://other/simple", "find-links": str(wheels)}
    assert host.directories(settings) == [str(tmp_path / "index"), str(wheels)]


# As `podman ps --all --format json` and `podman network ls --format json` of 4.3.1 tell it, less what is not looked at.
CONTAINERS: list[dict[str, Any]] = [
    {"Names": ["lab-n10"], "Pid": 7, "State": "running", "Labels": {"torchfleet.lab": "lab", "torchfleet.node": "n10"}},
    {"Names": ["lab-n9"], "Pid": 0, "State": "exited", "Labels": {"torchfleet.lab": "lab", "torchfleet.node": "n9"}},
    {"Names": ["lab2-n1"], "Pid": 9, "State": "running", "Labels": {"torchfleet.lab": "lab2", "torchfleet.node": "n1"}},
    {"Names": ["lab-n2"], "Pid": 8, "State": "running", "Labels": None},
]
NETWORKS: list[dict[str, Any]] = [
    {"name": "lab-1", "labels": {"torchfleet.lab": "lab"}, "subnets": [{"subnet": "10.200.2.0/24"}]},
    {"name": "lab-0", "labels": {"torchfleet.lab": "lab"}, "subnets": [{"subnet": "10.200.1.0/24"}]},
    {"name": "podman", "subnets": [{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}]},
]


@pytest.fixture
def seen() -> lifecycle.Seen:
    for row in CONTAINERS[:3]:
        row["Labels"]["torchfleet.shape"] = "{}"
    return lifecycle.Seen("lab", CONTAINERS, NETWORKS)


def test_a_lab_knows_its_own_by_their_labels(seen: lifecycle.Seen, lab: Lab) -> None:
    assert list(seen.nodes) == ["n9", "n10"]
    assert seen.networks == lab.networks
    assert seen.strangers == {"lab2-n1", "lab-n2", "podman"}
    assert seen.running == 2
    assert seen.subnets == ["10.200.2.0/24", "10.200.1.0/24", "10.88.0.0/16"]


def test_what_is_in_the_way_is_named(seen: lifecycle.Seen, lab: Lab, tmp_path: Path) -> None:
    images = dict.fromkeys(spec.RELEASES, "image")
    with pytest.raises(
        ValueError, match=r"^lab_name: lab-n2 exists and is not part of lab 'lab'; give another lab_name"
    ):
        lifecycle.refuse_others(lab, seen, images, str(tmp_path))
    (tmp_path / "hosts.yml").write_text("all:\n")
    with pytest.raises(ValueError, match=r"^lab_name: .* exists and has no lab's inventory; give another lab_name"):
        lifecycle.refuse_others(lab, seen, images, str(tmp_path))


def test_a_lab_with_fewer_nodes_is_another_lab(seen: lifecycle.Seen, lab: Lab, tmp_path: Path) -> None:
    seen.strangers = set()
    with pytest.raises(ValueError, match=r"^lab_nodes: lab 'lab' exists with another value; give that"):
        lifecycle.refuse_others(lab, seen, dict.fromkeys(spec.RELEASES, "image"), str(tmp_path))


def test_a_subnet_that_this_machine_uses_is_not_taken(seen: lifecycle.Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.networks = ()
    routes = [{"dst": "default"}, {"dst": "10.200.7.0/25"}]
    monkeypatch.setattr(lifecycle, "run", lambda *_argv, **_more: json.dumps(routes))
    for taken in ("10.200.7.0/24", "10.88.0.0/16"):  # a route, and a network of podman's
        with pytest.raises(ValueError, match=f"^lab_subnets: {taken} is in use on this machine; give another"):
            lifecycle.choose_subnets(lab_options(nics=1, subnets=[taken]), seen)
    free = lifecycle.choose_subnets(lab_options(nics=1, subnets=["10.200.8.0/24"]), seen)
    assert free == [ipaddress.IPv4Network("10.200.8.0/24")]


@pytest.fixture
def nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be root on a machine without a lab."""
    monkeypatch.setattr(host, "refuse_without_root", lambda: None)
    monkeypatch.setattr(lifecycle, "look", lambda lab: lifecycle.Seen(lab, [], []))


def test_files_of_the_users_own_are_not_removed_with_a_lab(tmp_path: Path, nothing_there: None) -> None:
    for name in (*directory.FILES, "notes.txt"):
        (tmp_path / name).write_text("mine\n")
    assert lifecycle.absent(lab_options(directory=str(tmp_path)), check=False)["changed"] is False
    assert len(list(tmp_path.iterdir())) == len(directory.FILES) + 1
    (tmp_path / "hosts.yml").write_text(f"{spec.HEADER}all:\n")  # which a lab wrote
    assert lifecycle.absent(lab_options(directory=str(tmp_path)), check=True)["changed"] is True
    assert lifecycle.absent(lab_options(directory=str(tmp_path)), check=False)["changed"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_half_a_pair_of_keys_is_made_anew(tmp_path: Path) -> None:
    """A run may be interrupted between the two files; ssh-keygen would ask whether to overwrite the one."""
    place = tmp_path / "lab"
    key = directory.make_key(str(place), "lab")
    assert key.startswith("ssh-ed25519 ") and directory.make_key(str(place), "lab") == key
    (place / "key.pub").unlink()
    assert directory.make_key(str(place), "lab") not in ("", key)


@pytest.mark.parametrize("state", ["cut", "heal", "shape", "pause"])
def test_a_node_that_does_not_run_is_not_disturbed(state: str) -> None:
    for found in ("running", "paused"):
        faults.require_running(state, [lifecycle.Container("lab-n2", "{}", found, 1)])
    with pytest.raises(ValueError, match=r"^lab_node: lab-n2 is exited; start it with lab_state=restart"):
        faults.require_running(state, [lifecycle.Container("lab-n2", "{}", "exited", 0)])
    faults.require_running("kill", [lifecycle.Container("lab-n2", "{}", "exited", 0)])


def test_a_shape_survives_being_a_label(lab: Lab) -> None:
    shape = spec.shape(lab, lab.nodes[1], "image", "key")
    container = lifecycle.Container("lab-n2", shape, "running", 1)
    assert (container.addresses, container.port) == ({"eth0": "10.200.1.12", "eth1": "10.200.2.12"}, 2222)
    assert json.loads(shape)["lab_mounts"] == [["/a", "/a"], ["/b", "/c"]]


def test_limits_that_nodes_share_are_raised_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 32 nodes knows the 31 others and its gateway: more than the 1024 neighbours of a kernel."""
    kernel = {host.INOTIFY: 128, host.NEIGHBOURS: 1024}
    for name, value in kernel.items():
        (tmp_path / name).write_text(str(value))
    monkeypatch.setattr(host, "path_of", lambda name: str(tmp_path / name))
    assert host.raise_limits(4, 2, check=False) == []
    assert len(host.raise_limits(32, 1, check=True)) == 2
    assert (tmp_path / host.NEIGHBOURS).read_text() == "1024"
    said = host.raise_limits(32, 1, check=False)
    assert said[1] == f"{host.NEIGHBOURS} is 4096 now, was 1024, until this machine boots again"
    assert host.raise_limits(32, 1, check=False) == []
