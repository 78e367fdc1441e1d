"""Firewalls: what their own programs print, recorded from real ones, and the commands that open and close them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._firewall import (
    boot,
    firewalld,
    iptables,
    look,
    manage,
    nftables,
    ufw,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._firewall.rules import Change, Command, Grant, mark_of

RECORDED = Path(__file__).parent / "recorded/firewalls"
NFT, FIREWALLD_NFT = ((RECORDED / name).read_text() for name in ("nft-1.0.6.json", "nft-1.0.6-firewalld.json"))
STATUS, ADDED = ((RECORDED / f"ufw-0.36-{name}.txt").read_text() for name in ("status", "added"))
IPTABLES, OF_UFW = ((RECORDED / f"iptables-1.8.9{name}.txt").read_text() for name in ("", "-ufw"))
RUNNING, KEPT = ((RECORDED / f"firewalld-1.3-{name}.txt").read_text() for name in ("running", "permanent"))

OURS = mark_of("fwlab-b435188b")  # the cluster whose rules were there when these were recorded
THREE = [f"10.203.{net}.{host}" for net in (71, 72) for host in (11, 12, 13)]
SAME = [Grant(THREE)]
PAIR = [Grant(["10.0.0.2", "10.0.0.3", "fd00::2"]), Grant(["192.0.2.7"], 2222)]
OTHER = mark_of("other")


def argv(change: Change) -> list[str]:
    return [" ".join(command.argv) for command in change.commands]


# --- nftables ---------------------------------------------------------------------------------------------------------


def test_nftables_has_rules_in_the_very_chain_that_drops() -> None:
    change = nftables.plan(NFT, PAIR, OTHER)
    assert change.before == [] and change.commands == []
    assert [line.rpartition(" comment ")[0] for line in change.files["nft"].splitlines()] == [
        "insert rule inet filter input ip saddr { 10.0.0.2/31 } accept",
        "insert rule inet filter input ip6 saddr { fd00::2 } accept",
        "insert rule inet filter input ip saddr { 192.0.2.7 } tcp dport 2222 accept",
    ]


def test_nftables_leaves_the_chains_of_others_alone() -> None:
    """A program that looks after its own chains removes what it does not know, or refuses to list it."""
    of_iptables = ruleset(policy="drop", table="filter", name="INPUT")
    assert nftables.plan(of_iptables, PAIR, OTHER).files
    assert nftables.plan(of_iptables, PAIR, OTHER, ["iptables"]).files == {}
    assert nftables.plan(FIREWALLD_NFT, PAIR, OTHER, ["firewalld"]).files == {}
    assert "firewalld" in nftables.plan(FIREWALLD_NFT, PAIR, OTHER).files["nft"]


def test_nftables_that_is_as_wanted_stays() -> None:
    change = nftables.plan(NFT, SAME, OURS, ["iptables"])
    assert change.before and not change.needed


def test_nftables_rules_that_are_not_wanted_go_and_no_others() -> None:
    change = nftables.plan(NFT, [], OURS, ["iptables"])
    assert change.needed and change.files == {}
    (command,) = change.commands
    assert [line.split()[:5] for line in command.stdin.splitlines()] == [["delete", "rule", "inet", "filter", "input"]]
    assert not nftables.plan(NFT, [], OTHER).needed
    assert not nftables.plan(NFT, [], mark_of("fwlab")).needed  # a name that only begins alike


def ruleset(*expressions: Sequence[dict[str, Any]], policy: str = "accept", **chain: Any) -> str:
    place = {"family": "inet", "table": "t"}
    place.update({key: chain.pop(key) for key in list(chain) if key in place})
    rows: list[dict[str, Any]] = [
        {"chain": {**place, "name": "c", "type": "filter", "hook": "input", "policy": policy, **chain}},
        {"chain": {**place, "name": "inner"}},
        {"rule": {**place, "chain": "inner", "handle": 9, "expr": [{"drop": None}]}},
    ]
    rows += [{"rule": {**place, "chain": "c", "handle": 1, "expr": list(expression)}} for expression in expressions]
    return json.dumps({"nftables": rows})


INVALID = {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "invalid"}}
PORT = {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 80}}


@pytest.mark.parametrize(
    ("text", "is_closed", "is_opened"),
    [
        (ruleset(policy="drop"), True, True),
        (ruleset([{"counter": {}}, {"reject": {}}]), True, True),
        (ruleset([{"jump": {"target": "inner"}}]), True, True),
        (ruleset([PORT, {"jump": {"target": "inner"}}]), False, True),
        (ruleset([PORT, {"drop": None}]), False, True),
        (ruleset([INVALID, {"drop": None}]), False, False),
        (ruleset([{"accept": None}]), False, False),
        (ruleset(policy="drop", hook="forward"), False, False),
        (ruleset(policy="drop", name="two words"), False, False),  # it would need quotes, whose rules differ
        ("", False, False),
    ],
)
def test_what_nftables_drops(text: str, is_closed: bool, is_opened: bool) -> None:
    assert bool(nftables.found(text, [])) is is_closed
    assert bool(nftables.plan(text, PAIR, OTHER).files) is is_opened


def test_a_firewall_that_lets_nothing_out_is_opened_on_that_side() -> None:
    added = nftables.plan(ruleset(policy="drop", hook="output"), PAIR, OTHER).files["nft"]
    assert "ip daddr { 10.0.0.2/31 } accept" in added and "tcp sport 2222" in added


# --- iptables ---------------------------------------------------------------------------------------------------------


def test_iptables_has_rules_before_all_others() -> None:
    change = iptables.plan("iptables", IPTABLES, PAIR, OTHER)
    assert [line.partition(" -m comment")[0] for line in change.files["iptables-restore"].splitlines()] == [
        "*filter",
        "-I INPUT -s 10.0.0.2/31",
        "-I INPUT -s 192.0.2.7 -p tcp -m tcp --dport 2222",
        "COMMIT",
    ]
    assert iptables.plan("ip6tables", IPTABLES, PAIR, OTHER).after == ["ip6tables INPUT -s fd00::2"]


def test_iptables_rules_are_removed_as_they_are_printed() -> None:
    rule = f'-A INPUT -s 10.0.0.2/32 -m comment --comment "{OTHER}:12345678" -j ACCEPT\n'
    change = iptables.plan("iptables", IPTABLES + rule, [], OTHER)
    assert change.commands == [
        Command(
            ("iptables-restore", "--noflush"),
            f"*filter\n-D INPUT -s 10.0.0.2/32 -m comment --comment {OTHER}:12345678 -j ACCEPT\nCOMMIT\n",
        )
    ]


@pytest.mark.parametrize(
    ("text", "is_closed"),
    [
        (IPTABLES, True),
        (OF_UFW, True),
        ("-P INPUT ACCEPT\n-A INPUT -m limit --limit 3/min -j LOG\n-A INPUT -j REJECT\n", True),
        ("-P INPUT ACCEPT\n-N X\n-A X -j DROP\n-A INPUT -j X\n", True),
        ("-P INPUT ACCEPT\n-A INPUT -s 10.9.9.9/32 -j DROP\n", False),
        ("-P INPUT ACCEPT\n-P FORWARD DROP\n", False),
        ("", False),
    ],
)
def test_what_iptables_drops(text: str, is_closed: bool) -> None:
    assert bool(iptables.found("iptables", text)) is is_closed


# --- ufw --------------------------------------------------------------------------------------------------------------


def test_ufw_adds_what_is_lacking_and_deletes_what_is_not_wanted() -> None:
    assert not ufw.plan(STATUS, ADDED, SAME, OURS).needed
    change = ufw.plan(STATUS, ADDED, [Grant(["10.203.71.12", "10.203.71.13"]), Grant(["10.0.0.2"], 22)], OURS)
    assert argv(change) == [
        "ufw delete allow from 10.203.72.11",
        "ufw delete allow from 10.203.72.12/31",
        f"ufw prepend allow from 10.0.0.2 to any port 22 proto tcp comment {OURS}",
    ]
    assert all("10.203.71.11" not in line for line in change.before)  # an administrator has allowed that one
    assert ufw.plan(STATUS, ADDED, [], OTHER).commands == []


def test_ufw_that_filters_nothing_gets_no_rules() -> None:
    assert ufw.plan("Status: inactive\n", "", PAIR, OTHER).after == []
    assert ufw.found("Status: active\nDefault: allow (incoming), allow (outgoing)\n") == []
    out = ufw.plan("Status: active\nDefault: deny (incoming), reject (outgoing)\n", "", PAIR[1:], OTHER)
    assert out.after == [
        "ufw allow from 192.0.2.7 to any port 2222 proto tcp",
        "ufw allow out to 192.0.2.7 from any port 2222 proto tcp",
    ]


# --- firewalld --------------------------------------------------------------------------------------------------------


def test_firewalld_has_rules_in_every_zone_in_use_running_and_permanent() -> None:
    assert not firewalld.plan(RUNNING, KEPT, "public", SAME, OURS).needed
    change = firewalld.plan(RUNNING, KEPT, "public", [Grant(["10.0.0.2"], 22)], OTHER)
    rule = f'priority="{firewalld.priority_of(OTHER)}" family="ipv4" source address="10.0.0.2"'
    rule = f'rule {rule} port port="22" protocol="tcp" accept'
    assert argv(change) == [
        f"firewall-cmd{kept} --zone={zone} --add-rich-rule={rule}"
        for kept in (" --permanent", "")
        for zone in ("public", "work")
    ]


def test_firewalld_opens_for_the_new_before_it_closes_to_the_old() -> None:
    """A job that runs meanwhile loses no connection, also if the second command fails."""
    first, second = argv(Change([], [], firewalld.changes((), "public", ["old", "same"], ["same", "new"])))
    assert (first, second) == (
        "firewall-cmd --zone=public --add-rich-rule=new",
        "firewall-cmd --zone=public --remove-rich-rule=old",
    )


def test_firewalld_rules_of_others_stay() -> None:
    change = firewalld.plan(RUNNING, KEPT, "public", [], OURS)
    assert change.after == [] and all("--remove-rich-rule=" in line for line in argv(change))
    assert all(f'priority="{firewalld.priority_of(OURS)}"' in line for line in change.before)
    assert firewalld.plan(RUNNING, KEPT, "public", [], OTHER).commands == []


def test_a_zone_that_accepts_all_needs_no_rule() -> None:
    text = "trusted (active)\n  target: ACCEPT\n  rich rules: \n\nhome (default, active)\n  target: default\n"
    assert {line.partition(":")[0] for line in firewalld.plan(text, "", "home", PAIR, OTHER).after} == {
        "--permanent home",
        "home",
    }


# --- the unit that adds rules after a boot ----------------------------------------------------------------------------


def test_rules_come_back_after_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "DIRECTORY", str(tmp_path / "etc/torchfleet/firewall"))
    monkeypatch.setattr(boot, "UNITS", str(tmp_path / "units"))
    (tmp_path / "units").mkdir()
    wanted = boot.files(OTHER, {"nft": "insert rule x\n"}, {"nft": "/usr/sbin/nft"})
    boot.write(wanted, {})
    assert boot.present(OTHER) == wanted
    assert {os.stat(path).st_mode & 0o777 for path in wanted} == {0o600}  # whom it lets in is root's to know
    unit = (tmp_path / "units/torchfleet-firewall-other.service").read_text()
    assert f"ExecStart=/usr/sbin/nft -f {tmp_path}/etc/torchfleet/firewall/other.nft" in unit.splitlines()
    boot.write({}, wanted)
    assert boot.present(OTHER) == {} and not (tmp_path / "etc/torchfleet").exists()


# --- all of them ------------------------------------------------------------------------------------------------------


def told(answers: dict[str, str]) -> look.Ask:
    return lambda program, words: answers.get(" ".join([program, *words]), "")


@pytest.mark.parametrize(
    ("answers", "kinds"),
    [
        ({}, []),
        ({"nft -j -a list ruleset": NFT}, ["nftables"]),
        (
            {"iptables -S": IPTABLES, "iptables -S INPUT": IPTABLES, "nft -j -a list ruleset": NFT},
            ["iptables", "nftables"],
        ),
    ],
)
def test_firewalls_by_what_root_sees(tmp_path: Path, answers: dict[str, str], kinds: list[str]) -> None:
    assert [each.kind for each in look.look(told(answers), str(tmp_path))] == kinds


def test_firewalls_by_their_files(tmp_path: Path) -> None:
    """Without root nobody can ask a firewall."""
    rules = "table inet filter {\n chain input {\n  type filter hook input priority 0; policy drop;\n }\n}\n"
    for name, text in (("ufw/ufw.conf", "ENABLED=yes\n"), ("nftables.conf", rules)):
        (tmp_path / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "etc" / name).write_text(text)
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/comm").write_text("firewalld\n")
    assert [each.kind for each in look.look(told({}), str(tmp_path))] == ["ufw", "firewalld"]
    wants = tmp_path / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir(parents=True)
    (wants / "nftables.service").symlink_to("/lib/systemd/system/nftables.service")
    found = look.look(told({}), str(tmp_path))
    assert [each.kind for each in found] == ["ufw", "firewalld", "nftables"]
    assert found[-1].where == "/etc/nftables.conf drops input"


def test_one_change_of_many_loads_all_rules_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit adds the rules of nftables and iptables alike: what is there must have been removed before."""
    ran: list[Command] = []
    answers = {"nft -j -a list ruleset": NFT, "iptables -S": IPTABLES}
    monkeypatch.setattr(manage, "ask", told(answers))
    monkeypatch.setattr(manage, "run", lambda command: str(ran.append(command) or ""))
    monkeypatch.setattr(manage, "SYSTEMD", "/none")
    done = manage.apply(SAME, OURS, check=True)
    assert done["changed"] and not ran and "10.203.71.11" in done["diff"]["after"]
    manage.apply(SAME, OURS, check=False)
    assert [command.argv[0] for command in ran] == ["nft", "iptables-restore", "nft"]
    assert ran[0].stdin.startswith("delete rule inet filter input handle ")


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(manage.NotChanged, match="cat /none: cat: /none: No such file"):
        manage.run(Command(("cat", "/none")))
    with pytest.raises(manage.NotChanged, match="no-such-program: "):
        manage.run(Command(("no-such-program",)))
    assert manage.ask("no-such-program", ()) == ""


def test_a_firewall_is_asked_with_the_programs_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PATH of a user, which sudo may keep, decides nothing, and no language changes what they print."""
    monkeypatch.setenv("PATH", "/usr/bin:/home/me/bin")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert {f"PATH={manage.PATH}", "LC_ALL=C.UTF-8"} <= set(manage.run(Command(("/usr/bin/env",))).splitlines())


def test_a_unit_is_taken_out_before_its_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else systemd keeps a link to a unit that is no more, and cannot stop it."""
    unit, did = boot.unit_of(OTHER), list[object]()
    monkeypatch.setattr(manage, "ask", lambda program, words: str(did.append((program, *words)) or ""))
    monkeypatch.setattr(manage, "run", lambda command: str(did.append(command.argv) or ""))
    monkeypatch.setattr(boot, "write", lambda wanted, _there: did.append([*wanted]))
    manage.keep(OTHER, {"/f": "x"}, {}, anew=False)
    assert did == [("systemctl", "disable", "--now", unit), [], ("systemctl", "daemon-reload")]
    did.clear()
    manage.keep(OTHER, {}, {"/f": "x"}, anew=True)
    add = [("systemctl", "daemon-reload"), ("systemctl", "enable", unit), ("systemctl", "restart", unit)]
    assert did == [["/f"], *add]
