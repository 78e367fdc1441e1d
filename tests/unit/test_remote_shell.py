"""What a launcher starts on other nodes through us."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import remote_shell


def test_a_daemon_is_looked_for_where_it_lies_on_its_node() -> None:
    command = "PRTE_PREFIX=/home/a/ompi;export PRTE_PREFIX;/home/a/ompi/bin/prted -x /home/a/ompi2"
    there = "PRTE_PREFIX=/srv/o;export PRTE_PREFIX;/srv/o/bin/prted -x /home/a/ompi2"
    names = {"launcher_prefix": "/home/a/ompi", "nic": "eth0"}, {"launcher_prefix": "/srv/o", "nic": "ib0"}
    assert remote_shell.localized(command, *names) == there
    proxy = '"/home/a/ompi/bin/hydra_pmi_proxy" --control-port 10.0.0.1:1 --iface eth0 --pgid 0 --x eth0'
    assert remote_shell.localized(proxy, *names) == (
        '"/srv/o/bin/hydra_pmi_proxy" --control-port 10.0.0.1:1 --iface ib0 --pgid 0 --x eth0'
    )
