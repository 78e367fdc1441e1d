"""Firewalls that let in SSH and nothing else, on two real nodes; a third machine stays outside.

One lab for all of them. Only the first is set up whole, but for the proof, which test_old_python.py has behind such
firewalls; of the others, the steps that connect nodes.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.combinations import combined
from tests.lab.lab import Lab, ansible

NODES = ("n1", "n2")
PORT = 25000  # at which nobody listens: who gets through is refused by the kernel
CONNECT = (
    "import socket, sys; s = socket.socket(); s.settimeout(1); sys.exit(s.connect_ex(tuple(sys.argv[1:2]) + (%d,)))"
)

NFTABLES = """flush ruleset
table inet filter {
	chain input {
		type filter hook input priority filter; policy %s;
		iif "lo" accept
		ct state established,related accept
		tcp dport 22 accept
		%s
	}
}
"""
LOAD = "systemctl enable nftables && systemctl restart nftables"
IPTABLES = (
    "iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT && iptables -A INPUT -i lo -j ACCEPT && "
    "iptables -A INPUT -p tcp --dport 22 -j ACCEPT && iptables -A INPUT -j REJECT --reject-with icmp-host-prohibited"
)


@dataclass(frozen=True)
class Kind:
    """A firewall: how it is closed, what shows its rules, what a run without the option says.

    `again`: has it read what it keeps, as at the next boot; empty where nothing is kept by itself.
    """

    close: str
    rules: str
    told: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    again: str = ""


REPEATED = "nftables-reject"  # nftables as in nftables-drop, and refused as by iptables
STATELESS = "nft -s list ruleset"
DROPPED, REJECTED = "a firewall drops it", "a firewall rejects it"
KINDS = {
    "nftables-drop": Kind(
        LOAD,
        STATELESS,
        (DROPPED, "nftables, /etc/nftables.conf drops"),
        (("/etc/nftables.conf", NFTABLES % ("drop", "")),),
    ),
    "nftables-reject": Kind(
        LOAD,
        STATELESS,
        (REJECTED, "nftables, /etc/nftables.conf drops"),
        (("/etc/nftables.conf", NFTABLES % ("accept", "reject with icmpx admin-prohibited")),),
    ),
    "iptables-reject": Kind(IPTABLES, "iptables -S; ip6tables -S", (REJECTED, "none that can be seen without root")),
    "ufw": Kind(
        "ufw allow 22/tcp && ufw --force enable",
        "ufw status verbose; cat /etc/ufw/user*.rules",
        (DROPPED, "ufw, "),
        again="ufw reload",
    ),
    "firewalld": Kind(
        "systemctl start firewalld && firewall-cmd --state",
        "firewall-cmd --list-all-zones; firewall-cmd --permanent --list-all-zones",
        (REJECTED, "firewalld, "),
        again="firewall-cmd --reload",
    ),
}
RESET = """
ufw --force reset && rm -f /etc/ufw/*.rules.20*
firewall-cmd --state && systemctl stop firewalld
rm -rf /etc/firewalld/zones/*
systemctl disable --now nftables
systemctl stop 'torchfleet-firewall-*'
rm -rf /etc/torchfleet /etc/systemd/system/torchfleet-firewall-* /etc/systemd/system/*.wants/torchfleet-firewall-*
systemctl daemon-reload
rm -f /etc/nftables.conf
nft flush ruleset
rm -rf /home/fleet/.torchfleet/fabric.*
"""


@dataclass
class Bed:
    """Two nodes with firewalls, and a third machine."""

    lab: Lab
    inventory: Path

    def play(self, *words: str) -> str:
        """Run setup.yml and return what it printed, white space folded, after its exit status."""
        done = ansible("ansible-playbook", "-i", str(self.inventory), "setup.yml", *words)
        return f"status {done.returncode}: {' '.join((done.stdout + done.stderr).split())}"

    def role(self, **variables: object) -> str:
        """Run the role firewall alone."""
        play = [{"hosts": "head:workers", "gather_facts": False, "roles": ["torchfleet.cluster.firewall"]}]
        path = self.inventory.parent / "firewall.yml"
        path.write_text(json.dumps(play))
        done = ansible("ansible-playbook", "-i", str(self.inventory), str(path), "-e", json.dumps(variables))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def train(self, job_id: str, **given: object) -> set[str]:
        """Run a job that must succeed, and return where its ranks ran."""
        runs = self.inventory.parent / "runs"
        extra = json.dumps({"job_id": job_id, "runs_dir": str(runs), "job_timeout": 60, **given})
        done = ansible("ansible-playbook", "-i", str(self.inventory), "train.yml", "-e", extra)
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((runs / job_id / "result.json").read_text())
        assert result["state"] == "succeeded"
        return {row["host"] for row in result["ranks"]}

    def do(self, script: str, *names: str) -> list[str]:
        return [self.lab.root(name, "sh", "-c", script, check=False) for name in names or NODES]

    def close(self, kind: Kind, *names: str) -> None:
        for path, text in kind.files:
            self.do(f"printf %s '{text}' >{path}", *names)
        assert [
            line for line in self.do(f"({kind.close}) >/dev/null && echo closed", *names) if "closed" not in line
        ] == []

    def connect(self, one: str, two: str) -> int:
        """Return the errno of a connection from one machine to another."""
        argv = ["python3", "-c", CONNECT % PORT, self.lab.address(two)]
        return self.lab.network(one, *argv, check=False).returncode


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    directory = tmp_path_factory.mktemp("firewalls") / "inventory"
    packages = ["nftables", "iptables", "ufw", "firewalld"]
    lab = Lab(f"fw{os.getpid()}", directory, nodes=3, install=True, image="bare", packages=packages)
    try:
        lab.up()
        inventory = yaml.safe_load(lab.inventory.read_text())
        del inventory["all"]["children"]["workers"]["hosts"]["n3"]
        two = directory / "two.yml"
        two.write_text(yaml.safe_dump(inventory))
        bed = Bed(lab, two)
        bed.do("systemctl disable firewalld", *NODES)
        yield bed
    finally:
        lab.down()


@pytest.fixture
def bed(machines: Bed) -> Iterator[Bed]:
    machines.do(RESET)
    yield machines
    machines.do(RESET)


def changed(stdout: str) -> list[str]:
    return [line.split()[0] for line in stdout.splitlines() if " changed=" in line and " changed=0 " not in line]


@pytest.mark.parametrize("name", [*(kind for kind in KINDS if kind != REPEATED), *combined(REPEATED)])
def test_a_closed_firewall_is_named_opened_and_closed_again(bed: Bed, name: str) -> None:
    kind = KINDS[name]
    bed.close(kind)
    before = bed.do(kind.rules)
    blocked = [bed.connect("n1", "n2"), bed.connect("n3", "n2")]
    assert errno.ECONNREFUSED not in blocked, blocked

    said = bed.play("--tags", "preflight,ssh_mesh,fabric")
    assert said.startswith("status 2: "), said
    for words in (*kind.told, "TF-FABRIC-FIREWALL", "setup.yml -e firewall_open=true", "n1 -> n2, n2 -> n1"):
        assert words in said, (words, said)

    whole = name == "nftables-drop"
    steps = ("--skip-tags", "verify") if whole else ("--tags", "preflight,firewall,ssh_mesh,fabric")
    said = bed.play("-e", "firewall_open=true", *steps)
    assert said.startswith("status 0: "), said
    assert bed.connect("n1", "n2") == bed.connect("n2", "n1") == errno.ECONNREFUSED
    bed.do(kind.again or "true")
    assert bed.connect("n1", "n2") == bed.connect("n2", "n1") == errno.ECONNREFUSED
    assert bed.connect("n3", "n2") == blocked[1]
    assert changed(bed.role(firewall_open=True)) == []
    if whole:
        require_training_after_a_reboot(bed)

    assert changed(bed.role(firewall_state="absent")) == list(NODES)
    assert bed.do(kind.rules) == before
    assert bed.do("ls /etc/torchfleet /etc/systemd/system/torchfleet*", *NODES) == ["", ""]
    assert bed.connect("n1", "n2") == blocked[0]


def require_training_after_a_reboot(bed: Bed) -> None:
    """All that a job needs comes back with the machines: the rules, the mesh, host files, the chosen network.

    Nothing is set up anew. The firewall is closed at boot, before anybody can log in.
    """
    bed.lab.reboot(*NODES)
    assert bed.connect("n1", "n2") == bed.connect("n2", "n1") == errno.ECONNREFUSED
    assert bed.connect("n3", "n2") != errno.ECONNREFUSED
    assert bed.train("after", workload="message_passing") == set(NODES)


def test_rules_of_nftables_survive_what_loads_it_anew(bed: Bed) -> None:
    bed.close(KINDS["nftables-drop"])
    bed.role(firewall_open=True)
    count = "nft list ruleset | grep -c 'comment \"torchfleet:'"
    done = "while systemctl list-jobs --no-legend 'torchfleet-firewall-*' | grep -q .; do sleep 0.1; done"
    for verb in ("reload", "restart"):
        assert bed.do(f"systemctl {verb} nftables; {done}; {count}", "n2") == ["1\n"], verb
    bed.role(firewall_state="absent")


def test_a_firewall_of_one_node_is_that_one_s(bed: Bed) -> None:
    """It lets one direction through."""
    bed.close(KINDS["nftables-drop"], "n2")
    said = bed.play("--tags", "preflight,ssh_mesh,fabric")
    assert f": n1 -> n2: no answer within 2 s, though the machine answers on the link: {DROPPED}" in said, said
    assert "a firewall stops it (n2: nftables, " in said and "n1: nftables" not in said


def test_a_part_of_the_ports_is_open(bed: Bed) -> None:
    text = NFTABLES % ("drop", "tcp dport 20000-20499 accept")
    bed.close(Kind(LOAD, STATELESS, (), (("/etc/nftables.conf", text),)))
    said = bed.play("--tags", "preflight,fabric", "-e", "torchfleet_ports=20000-20999")
    assert "port 20000 is open, port 20999 is not: no answer within 2 s" in said, said
    assert "TF-FABRIC-FIREWALL" in said
    assert bed.play("--tags", "preflight,fabric", "-e", "torchfleet_ports=20000-20499").startswith("status 0: ")
    program = bed.inventory.parent / "here.py"  # without gloo, which takes any port
    program.write_text("import os\nprint('here is', os.uname().nodename)\n")
    for launcher in ("openmpi", "torchrun"):  # daemons that connect to the head, and a rendezvous
        given = {"workload": str(program), "launcher": launcher, "torchfleet_ports": "20000-20499"}
        assert bed.train(launcher, **given) == set(NODES), launcher


def test_a_cut_link_is_no_firewall_and_the_firewall_that_was_opened_is_closed_again(bed: Bed) -> None:
    kind = KINDS["nftables-drop"]
    bed.close(kind)
    bed.lab.network("n2", "ip", "neigh", "flush", "all", check=False)
    bed.lab.network("n1", "ip", "neigh", "flush", "all", check=False)
    try:
        for name in NODES:  # ARP too, as a cable would; Ansible's own machine is still answered
            other = bed.lab.address("n2" if name == "n1" else "n1")
            rules = f"table arp cut {{ chain c {{ type filter hook input priority 0; arp saddr ip {other} drop; }}; }}"
            bed.do(f"nft '{rules}'", name)
        before = bed.do(kind.rules)
        network = ipaddress.ip_network(f"{bed.lab.address('n1')}/24", strict=False)
        given = json.dumps({"firewall_open": True, "fabric_subnet": str(network)})
        said = bed.play("--tags", "preflight,fabric", "-e", given)
        assert said.startswith("status 2: ") and "narrowed | Change the firewall" in said, said
        assert bed.do(kind.rules) == before
        assert bed.do("ls /etc/torchfleet /etc/systemd/system/torchfleet*", *NODES) == ["", ""]
        assert "nor on the link: a cut link, or a machine that is off" in said or "no answer on the link" in said, said
        assert "TF-FABRIC-FIREWALL" not in said
    finally:
        bed.do("nft delete table arp cut")
