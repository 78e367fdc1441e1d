"""The role fabric on two real nodes, in one topology after the other: the right NIC on every node, or a reason.

Wherever a network must not be taken it is the better one to look at (a larger MTU), so that the rule under test alone
decides. Nodes are changed and put back from outside, in milliseconds; what a test costs is one run of the role.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import fabric_environment
from tests.lab.lab import Lab, ansible
from tests.unit.nets import Sysfs

HOME = "/home/fleet/.torchfleet"
PLAY = [{"name": "Fabric", "hosts": "head:workers", "gather_facts": False, "roles": ["torchfleet.cluster.fabric"]}]
# Puts back whatever a test did to a node: its own two NICs as the lab made them, and nothing else.
RESET = """
for name in $(ls /sys/class/net | grep -vxE 'lo|eth0|eth1|ens9'); do ip link del "$name" 2>/dev/null || true; done
if [ -e /sys/class/net/ens9 ]; then ip link set ens9 down; ip link set ens9 name eth1; fi
nft delete table inet trial 2>/dev/null || true
nft delete table arp cut 2>/dev/null || true
for number in 0 1; do
  tc qdisc del dev eth$number root 2>/dev/null || true
  ethtool -K eth$number tso on gso on gro on >/dev/null
  ip addr flush dev eth$number scope global
  ip link set eth$number up mtu 1500
  ip route flush dev eth$number
done
ip addr add {eth0}/24 dev eth0
ip addr add {eth1}/24 dev eth1
ip route replace default via {gateway} dev eth0
printf '127.0.0.1 localhost\\n{eth0} {node}\\n' >/etc/hosts
rm -rf {home}/fabric.json {home}/fabric.env /tmp/sys
install -d -o fleet -g fleet -m 755 {home}
"""


@dataclass
class Nodes:
    """Two nodes, and what the last run of the role said."""

    lab: Lab
    play: Path
    pids: dict[str, int]
    addresses: dict[str, dict[str, str]]
    said: str = field(default="")

    def do(self, script: str, *names: str) -> None:
        """Run a script as root on nodes (all if none is named), with the addresses of the node and of the other one."""
        for name in names or self.pids:
            other = next(each for each in self.pids if each != name)
            gateway = self.addresses[name]["eth0"].rpartition(".")[0] + ".1"
            script_of_node = script
            own = {**self.addresses[name], "node": name, "number": name[1:], "gateway": gateway, "home": HOME}
            own.update(other0=self.addresses[other]["eth0"], other1=self.addresses[other]["eth1"])
            for word, value in own.items():
                script_of_node = script_of_node.replace(f"{{{word}}}", value)
            self.enter(name, "sh", "-ec", script_of_node)

    def enter(self, name: str, *argv: str, stdin: bytes = b"") -> str:
        words = ["nsenter", "--target", str(self.pids[name]), "--mount", "--uts", "--net", "--pid", *argv]
        done = subprocess.run(words, input=stdin, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def run(self, *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run the role."""
        extra = json.dumps(variables)
        done = ansible("ansible-playbook", "-i", str(self.lab.inventory), str(self.play), "-e", extra, *words)
        self.said = done.stdout + done.stderr
        return done

    def take(self, *nics: str, **variables: Any) -> None:
        """Run the role, which must publish a NIC on each node: the same, if one is given."""
        assert self.run(**variables).returncode == 0, self.said
        fabrics = [self.fabric(name) for name in self.pids]
        assert [fabric["nic"] for fabric in fabrics] == [nics[0], nics[-1]], fabrics[0]["why"]

    def refusal(self, **variables: Any) -> str:
        """Run the role, and return the one line by which it refused."""
        assert self.run(**variables).returncode != 0, self.said
        assert "Traceback" not in self.said
        (line,) = [line for line in self.said.splitlines() if line.startswith("[ERROR]: ")]
        return line

    def fabric(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.enter(name, "cat", f"{HOME}/fabric.json")))

    def reason(self, name: str, address: str) -> str:
        """Return why an address of a node was not taken."""
        (row,) = [row for row in self.fabric(name)["rejected"] if row["address"].split("/")[0] == address]
        return str(row["reason"])

    def network(self, nic: str) -> str:
        return self.addresses["n1"][nic].rpartition(".")[0] + ".0/24"

    def agents(self) -> list[str]:
        """Return the Python programs that listen on nodes: agents that are left."""
        rows = [row for name in self.pids for row in self.enter(name, "ss", "-Htlnp").splitlines()]
        return [row for row in rows if "python" in row]


def pid_of(container: str) -> int:
    argv = ["podman", "inspect", "--format", "{{.State.Pid}}", container]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def of_lab(two_nodes: Lab, tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    play = tmp_path_factory.mktemp("nics") / "play.yml"
    play.write_text(json.dumps(PLAY))
    pids = {name: pid_of(f"{two_nodes.name}-{name}") for name in ("n1", "n2")}
    addresses = {name: {f"eth{number}": two_nodes.address(name, number) for number in (0, 1)} for name in pids}
    return Nodes(two_nodes, play, pids, addresses)


@pytest.fixture
def nodes(of_lab: Nodes) -> Iterator[Nodes]:
    """The nodes, as the lab made them, before and after the test."""
    of_lab.do(RESET)
    yield of_lab
    of_lab.do(RESET)


def filtered(rules: str) -> str:
    """Return the script that applies rules to what comes in. What comes from this machine must stay open."""
    return f"nft 'table inet trial {{ chain in {{ type filter hook input priority 0; {rules} }}; }}'"


FIRST_IS_WORSE = "ip link set eth0 mtu 1400"


# --- one network is right ---------------------------------------------------------------------------------------------


def test_a_good_pair(nodes: Nodes) -> None:
    """Checked first, then done, then nothing to do; as a user without any privilege; nothing runs on afterwards."""
    nodes.do("ip link set eth1 down")
    assert nodes.run("--check").returncode == 0, nodes.said
    assert "changed=1" in nodes.said
    assert "no" in nodes.enter("n1", "sh", "-c", f"test -e {HOME}/fabric.json || echo no")
    nodes.take("eth0")
    assert "down" in nodes.reason("n2", nodes.addresses["n2"]["eth1"])
    assert nodes.run().returncode == 0
    assert nodes.said.count("changed=0") == 2
    assert (
        nodes.enter("n1", "stat", "-c", "%U %a", f"{HOME}/fabric.json", f"{HOME}/fabric.env").split()
        == ["fleet", "644"] * 2
    )
    assert nodes.agents() == []


def test_a_shell_takes_the_environment(nodes: Nodes) -> None:
    nodes.do("ip link set eth1 down")
    nodes.take("eth0")
    script = f"set -a; . {HOME}/fabric.env; env -0"
    rows = dict(row.split("=", 1) for row in nodes.enter("n1", "env", "-i", "sh", "-c", script).split("\0") if row)
    assert fabric_environment(nodes.fabric("n1")).items() <= rows.items()
    assert rows["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_a_dead_second_nic(nodes: Nodes) -> None:
    nodes.do(FIRST_IS_WORSE)
    nodes.do(filtered("iifname eth1 drop;"), "n2")
    nodes.take("eth0")
    told = nodes.reason("n1", nodes.addresses["n1"]["eth1"])
    assert "n1 -> n2, n2 -> n1: no answer within 2 s" in told


def test_a_network_that_is_open_in_one_direction_only(nodes: Nodes) -> None:
    nodes.do(FIRST_IS_WORSE)
    nodes.do(filtered("iifname eth1 ct state new drop;"), "n2")
    nodes.take("eth0")
    assert nodes.reason("n1", nodes.addresses["n1"]["eth1"]).startswith("n1 -> n2: no answer")


BRIDGE = """ip link add docker0 mtu 9000 type bridge; ip link add port mtu 9000 type veth peer inside mtu 9000
ip link set port master docker0 up; ip link set inside up; ip addr add {} dev docker0; ip link set docker0 up"""


@pytest.mark.parametrize(("carrier", "word"), [("up", "another node has the same address"), ("down", "no carrier")])
def test_docker0_twins(nodes: Nodes, carrier: str, word: str) -> None:
    nodes.do("ip link set eth1 down")
    nodes.do(BRIDGE.replace("{}", "172.17.0.1/16") + f"; ip link set inside {carrier}")
    nodes.take("eth0")
    assert word in nodes.reason("n2", "172.17.0.1")


def test_bridges_that_are_not_joined(nodes: Nodes) -> None:
    """Not the same address, so only trying tells: one subnet, two networks."""
    nodes.do("ip link set eth1 down")
    nodes.do(BRIDGE.replace("{}", "172.18.0.{number}/16"))
    nodes.take("eth0")
    assert "n1 -> n2, n2 -> n1: no answer" in nodes.reason("n1", "172.18.0.1")


def test_a_vpn(nodes: Nodes) -> None:
    """Point to point, with a /32: here each node is even the other end of the other one."""
    nodes.do("ip link set eth1 down; ip link add vpn0 mtu 9000 type veth peer vpn1; ip link set vpn1 up")
    nodes.do("ip addr add 10.8.0.{number}/32 dev vpn0; ip link set vpn0 up")
    nodes.take("eth0")
    assert nodes.reason("n1", "10.8.0.1").startswith("/32")


def test_the_own_name_is_127_0_1_1(nodes: Nodes) -> None:
    nodes.do("ip link set eth1 down; printf '127.0.0.1 localhost\\n127.0.1.1 {node}\\n' >/etc/hosts")
    nodes.take("eth0")
    assert "/etc/hosts" in nodes.reason("n2", "127.0.1.1")


def test_an_asymmetric_route(nodes: Nodes) -> None:
    """It works, over the wrong NIC."""
    nodes.do(FIRST_IS_WORSE)
    nodes.do("ip route add {other1}/32 via {other0} dev eth0", "n1")
    nodes.take("eth0")
    assert nodes.reason("n2", nodes.addresses["n2"]["eth1"]).startswith("n1 -> n2: leaves over eth0, not over eth1")


def test_full_packets_are_lost(nodes: Nodes) -> None:
    nodes.do(FIRST_IS_WORSE + "; ip link set eth1 mtu 9000; ethtool -K eth1 tso off gso off gro off >/dev/null")
    nodes.do(filtered("iifname eth1 meta length > 1500 drop;"), "n2")
    nodes.take("eth0")
    assert "n1 -> n2, n2 -> n1: small packets pass, full ones do not" in nodes.reason(
        "n1", nodes.addresses["n1"]["eth1"]
    )


def test_only_the_second_nic_works(nodes: Nodes) -> None:
    """Neither the default route nor the way of Ansible matter then."""
    nodes.do(filtered("iifname eth0 ip saddr {other0} drop;"))
    nodes.take("eth1")
    assert nodes.fabric("n1")["why"] == "the only network that connects all nodes"


# --- several would do -------------------------------------------------------------------------------------------------


def test_two_usable_networks(nodes: Nodes) -> None:
    nodes.take("eth0")
    assert nodes.reason("n2", nodes.addresses["n2"]["eth1"]).endswith("Ansible reaches the nodes by it")
    assert nodes.run().returncode == 0
    assert nodes.said.count("changed=0") == 2
    assert "measure | Start the measurements" not in nodes.said
    assert nodes.agents() == []


def test_a_slow_link(nodes: Nodes) -> None:
    nodes.do(FIRST_IS_WORSE)
    nodes.do("tc qdisc replace dev eth1 root tbf rate 20mbit burst 32kb latency 100ms", "n2")
    nodes.take("eth0")
    assert "faster, as measured" in nodes.reason("n1", nodes.addresses["n1"]["eth1"])


def test_a_low_mtu_on_one_node(nodes: Nodes) -> None:
    nodes.do("ip link set eth0 mtu 1280", "n2")
    nodes.take("eth1")
    assert nodes.reason("n1", nodes.addresses["n1"]["eth0"]).endswith("larger MTU")
    assert nodes.fabric("n1")["mtu"] == 1500


def test_names_differ(nodes: Nodes) -> None:
    nodes.do("ip link set eth1 down; ip link set eth1 name ens9; ip link set ens9 up", "n2")
    nodes.do(filtered("iifname eth0 ip saddr {other0} drop;"))
    nodes.take("eth1", "ens9")
    assert "GLOO_SOCKET_IFNAME=ens9\n" in nodes.enter("n2", "cat", f"{HOME}/fabric.env")
    assert f"PRTE_MCA_prte_if_include={nodes.network('eth1')}\n" in nodes.enter("n2", "cat", f"{HOME}/fabric.env")


def test_ipv6_beside_ipv4_is_left_alone(nodes: Nodes) -> None:
    nodes.do(FIRST_IS_WORSE + "; ip addr flush dev eth1 scope global; ip addr add fd92::{number}/64 dev eth1 nodad")
    nodes.take("eth0")
    assert "IPv4" in nodes.reason("n1", "fd92::1")


def test_ipv6_alone_is_taken(nodes: Nodes) -> None:
    nodes.do("ip addr flush dev eth1 scope global; ip addr add fd92::{number}/64 dev eth1 nodad")
    nodes.do(filtered("iifname eth0 ip saddr {other0} drop;"))
    nodes.take("eth1")
    assert nodes.fabric("n2")["address"] == "fd92::2"


def test_rdma(nodes: Nodes, tmp_path: Path) -> None:
    """No machine here has any: sysfs is a tree of the test's, the rest is real."""
    for number, name in enumerate(nodes.pids, 1):
        tree = Sysfs(tmp_path / name / "sys")
        for nic in ("eth0", "eth1"):
            tree.nic(nic, speed="100000")
        port = tree.port("mlx5_0")
        tree.gid(port, 1, "fe80::1", "RoCE v2", "eth1")
        tree.gid(port, 2, nodes.addresses[name]["eth1"], "IB/RoCE v1", "eth1")
        tree.gid(port, 2 + number % 2, nodes.addresses[name]["eth1"], "RoCE v2", "eth1")
        send_tree(nodes, name, tmp_path / name / "sys")
    nodes.take("eth1", fabric_sysfs_root="/tmp/sys", fabric_nccl_gid="always")
    found = [nodes.fabric(name)["rdma"] for name in nodes.pids]
    assert [[(port["device"], port["gid_index"]) for port in ports] for ports in found] == [
        [("mlx5_0", 3)],
        [("mlx5_0", 2)],
    ]
    assert "NCCL_IB_GID_INDEX=3\n" in nodes.enter("n1", "cat", f"{HOME}/fabric.env")


def test_a_rail_that_fails_between_two_nodes_is_named(nodes: Nodes, tmp_path: Path) -> None:
    """The other rail, the logins' network, works. Here TCP carries the test, as where there is no perftest."""
    for name in nodes.pids:
        tree = Sysfs(tmp_path / name / "sys")
        for at in (0, 1):
            tree.nic(f"eth{at}", speed="100000")
            tree.gid(tree.port(f"mlx5_{at}"), 3, nodes.addresses[name][f"eth{at}"], "RoCE v2", f"eth{at}")
        send_tree(nodes, name, tmp_path / name / "sys")
    nodes.take("eth0", fabric_sysfs_root="/tmp/sys")
    nodes.do("ethtool -K eth1 tso off gso off gro off >/dev/null")
    nodes.do(filtered("iifname eth1 meta length > 1400 drop;"), "n2")
    found = verified(nodes, tmp_path)
    assert {row["id"] for row in found} == {"TF-RAIL-MTU"}
    assert found[0]["seen"].startswith("mlx5_1:1 of n1 -> mlx5_1:1 of n2: small packets pass, full ones do not")
    nodes.do("nft 'table arp cut { chain i { type filter hook input priority 0; iifname eth1 drop; }; }'", "n2")
    nodes.do("ip neigh flush dev eth1")
    found = verified(nodes, tmp_path)
    assert {(row["id"], *row["nodes"]) for row in found} == {("TF-RAIL-LINK", "n1", "n2"), ("TF-RAIL-LINK", "n2", "n1")}


def send_tree(nodes: Nodes, name: str, tree: Path) -> None:
    """Lay a tree on a node, as /tmp/sys."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(tree, "sys")
    nodes.enter(name, "tar", "-x", "-C", "/tmp", stdin=packed.getvalue())


def verified(nodes: Nodes, place: Path) -> list[dict[str, Any]]:
    """Return what role verify finds of links and rails between the nodes. Nothing else of a cluster is there."""
    play = place / "verify.yml"
    play.write_text(json.dumps([{**PLAY[0], "roles": ["torchfleet.cluster.verify"]}]))
    report = place / "verify.json"
    told = {"verify_report": str(report), "verify_baseline": str(place / "baseline.json"), "verify_launchers": []}
    replace(nodes, play=play).run(fabric_sysfs_root="/tmp/sys", **told)
    rows = json.loads(report.read_text())["findings"]
    of_links = ("TF-RAIL-", "TF-VERIFY-LINK", "TF-VERIFY-FIREWALL", "TF-VERIFY-MTU")
    return [row for row in rows if row["id"].startswith(of_links) and row["severity"] == "error"]


# --- what the user asks for -------------------------------------------------------------------------------------------


def test_a_subnet_is_asked_for(nodes: Nodes) -> None:
    nodes.take("eth1", fabric_subnet=nodes.network("eth1"))
    nodes.take("eth0")


def test_a_nic_is_asked_for_on_one_node(nodes: Nodes) -> None:
    nodes.take("eth1", fabric_nic="{{ 'eth1' if inventory_hostname == 'n2' else '' }}")
    assert nodes.fabric("n1")["why"] == "asked for: fabric_nic of n2 is eth1"


def test_what_is_asked_for_does_not_reach(nodes: Nodes) -> None:
    nodes.take("eth0")
    nodes.do(filtered("iifname eth1 drop;"), "n2")
    told = nodes.refusal(fabric_subnet=nodes.network("eth1"))
    assert f"fabric_subnet is {nodes.network('eth1')}" in told
    assert "n1 -> n2, n2 -> n1: no answer" in told
    assert nodes.fabric("n1")["nic"] == "eth0"
    assert nodes.agents() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fabric_subnet": "10.99.0.0/24"}, ["fabric_subnet", "n1 has no address in it", "(eth1)"]),
        ({"fabric_nic": "eth7"}, ["fabric_nic of n1", "give one of eth0, eth1"]),
        ({"fabric_ports": "29099-29000"}, ["fabric_ports", "29000-29099"]),
    ],
)
def test_what_is_asked_for_is_not_there(nodes: Nodes, options: dict[str, str], words: list[str]) -> None:
    assert nodes.run(**options).returncode != 0
    assert [word for word in words if word not in nodes.said] == []
    assert nodes.agents() == []


# --- nothing does -----------------------------------------------------------------------------------------------------


def test_no_network_joins_the_nodes(nodes: Nodes) -> None:
    nodes.do("ip link set eth1 down", "n2")
    nodes.do(filtered("iifname eth0 ip saddr {other0} drop;"), "n1")
    told = nodes.refusal()
    assert f"{nodes.network('eth0')}: n1 -> n2, n2 -> n1: no answer" in told
    assert f"no usable address in {nodes.network('eth1')} on n2" in told
    assert "the NIC is down" in told
    assert nodes.enter("n1", "ls", HOME) == nodes.enter("n2", "ls", HOME)
    assert nodes.agents() == []


def test_a_firewall_that_leaves_some_ports_open(nodes: Nodes) -> None:
    nodes.do("ip link set eth1 down")
    nodes.do(filtered("tcp dport 29000-29009 accept; ip saddr {other0} ct state new drop;"))
    assert "firewall" in nodes.refusal()
    nodes.take("eth0", fabric_ports="29000-29009")


def test_a_home_that_cannot_be_written(nodes: Nodes) -> None:
    nodes.do("ip link set eth1 down")
    nodes.do("chown root {home}", "n2")
    assert f"{HOME} cannot be written: Permission denied; set torchfleet_home of this node" in nodes.refusal()
    nodes.do("chown fleet {home}", "n2")
    nodes.take("eth0")


def test_a_part_of_the_cluster_is_no_cluster(nodes: Nodes) -> None:
    assert nodes.run("--limit", "n1").returncode != 0
    assert "--limit" in nodes.said


def test_one_node_needs_no_network(nodes: Nodes, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    hosts = {"localhost": {**local, "torchfleet_home": str(tmp_path / "home")}}
    inventory.write_text(json.dumps({"all": {"children": {"head": {"hosts": hosts}, "workers": {"hosts": hosts}}}}))
    done = ansible("ansible-playbook", "-i", str(inventory), str(nodes.play))
    assert done.returncode == 0, done.stdout + done.stderr
    fabric = json.loads((tmp_path / "home/fabric.json").read_text())
    assert (fabric["nic"], fabric["network"]) == ("lo", "127.0.0.0/8")
