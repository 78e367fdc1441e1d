"""Role storage with the NFS of a real kernel, server and clients, on three machines: `make storage`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.storage.machines import Machines

SECONDS = 3600
FACTS = {"ansible.builtin.setup": {"gather_subset": ["!all", "!min", "env", "platform", "python"]}}
ROLES = [{"ansible.builtin.include_role": {"name": f"torchfleet.cluster.{name}"}} for name in ("fabric", "storage")]
OPTIONS = ("-e", "storage_server=n1")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    place = tmp_path_factory.mktemp("storage")
    made = Machines(place, 3)
    for name, tasks in (("both", [FACTS, *ROLES]), ("storage", [FACTS, ROLES[1]])):
        play = {"name": name, "hosts": "head:workers", "gather_facts": False, "tasks": tasks}
        (place / f"{name}.yml").write_text(yaml.safe_dump([play]))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.mark.timeout(SECONDS)
def test_shared_storage(machines: Machines) -> None:
    """From nothing to a shared directory, through the death of the server, and away again."""
    storage = machines.place / "storage.yml"
    sets_up(machines, storage)
    lets_only_nodes_mount(machines)
    survives_the_server(machines)
    goes_away(machines, storage)


def sets_up(machines: Machines, storage: Path) -> None:
    machines.said("n2", "sudo install -d /shared; sudo touch /shared/mine")
    status, said = machines.play(machines.place / "both.yml", *OPTIONS)
    assert status != 0 and "n2: /shared is not empty, and not by this role" in said
    machines.said("n2", "sudo rm -r /shared")
    status, said = machines.play(storage, *OPTIONS, "--check")
    assert status == 0 and "install | Write the units of the mount" in said, said
    assert machines.ssh("n2", "ls /etc/systemd/system/shared.mount").returncode != 0
    status, said = machines.play(storage, *OPTIONS)
    assert status == 0, said
    assert "storage : proof | Compare" in said
    for name in ("n2", "n3"):
        options = machines.said(name, "findmnt --noheadings --types nfs4 --output OPTIONS --mountpoint /shared").split(
            ","
        )
        assert {"vers=4.2", "hard", "noatime", "nconnect=4", "nosuid", "nodev"} <= set(options)
    machines.said("n3", "echo written on n3 >/shared/file")
    assert [machines.said(name, "cat /shared/file") for name in ("n1", "n2")] == ["written on n3"] * 2
    assert machines.said("n1", "ls -A /shared /srv/torchfleet").count("file") == 2
    status, said = machines.play(storage, *OPTIONS)
    assert status == 0 and said.count("changed=0") == 3, said


def lets_only_nodes_mount(machines: Machines) -> None:
    """Root of a node is nobody (root_squash), and the kernel of the server knows no other clients than the nodes."""
    assert machines.ssh("n2", "sudo touch /shared/of-root").returncode != 0
    told = machines.said("n1", "sudo exportfs -s").splitlines()
    assert [line.split("(")[0].split() for line in told] == [
        ["/srv/torchfleet", machines.address(name)] for name in ("n2", "n3")
    ]
    assert all("root_squash" in line for line in told)


def survives_the_server(machines: Machines) -> None:
    """A program waits for the server, and goes on when it is back, which exports again without our help."""
    machines.said("n1", "sync")
    machines.cut_power("n1")
    write = "dd if=/dev/zero of=/shared/late bs=1k count=4 && sync /shared/late; echo $? >/tmp/status"
    machines.said("n2", f"({write}) </dev/null >/dev/null 2>&1 &")
    assert machines.ssh("n2", "cat /tmp/status").returncode != 0  # neither written nor failed
    machines.start("n1")
    machines.wait("n1")
    assert (
        machines.said("n2", "for i in $(seq 240); do [ -s /tmp/status ] && break; sleep 1; done; cat /tmp/status")
        == "0"
    )
    assert machines.said("n1", "stat --format %s /shared/late") == "4096"


def goes_away(machines: Machines, storage: Path) -> None:
    absent = ("-e", "storage_state=absent")
    machines.said("n3", "(cd /shared && exec sleep 3000) </dev/null >/dev/null 2>&1 & sleep 1")
    status, said = machines.play(storage, *absent)
    assert status != 0 and "storage: n3: the mount is in use (shared.mount)" in said
    machines.said("n3", "kill $(pgrep -x sleep)")
    status, said = machines.play(storage, *absent)
    assert status == 0, said
    for name in machines.names:
        left = machines.said(name, "ls -d /shared /etc/systemd/system/shared.* /etc/exports.d/* 2>/dev/null; true")
        left += machines.said(
            name, "dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' | grep nfs; true"
        )
        assert left == "", name
    assert machines.said("n1", "cat /srv/torchfleet/file") == "written on n3"
