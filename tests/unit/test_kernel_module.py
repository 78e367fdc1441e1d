"""The kernel module of a driver that is installed: whether a reboot can help, and whether a job is in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import kernel_module, packages
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.kernel_module import Driver
from tests.unit.file_tree import tree

DRIVER = Driver("cuda", "nvidia", "nvidia-open", "module nvidia none is loaded, and 580.95 is installed")
BOOTED = 1_700_000_000


@pytest.mark.parametrize(("installed", "useless"), [(BOOTED - 60, True), (BOOTED + 60, False), (0, False)])
def test_a_reboot_after_the_installation_did_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: int, useless: bool
) -> None:
    """Before, such a machine was rebooted by every run."""
    dkms = tmp_path / "bin" / "dkms"
    root = tree(tmp_path, proc__stat=f"cpu 1\nbtime {BOOTED}\n", bin__dkms="#!/bin/sh\necho nvidia/580.95: added\n")
    dkms.chmod(0o755)
    monkeypatch.setenv("PATH", f"{dkms.parent}:/usr/bin:/bin")
    if installed:
        there = tmp_path / "var/lib/dpkg/info/nvidia-open:amd64.list"
        there.parent.mkdir(parents=True)
        there.touch()
        os.utime(there, (installed, installed))
    told = kernel_module.useless_reboot(DRIVER, "FATAL: Module nvidia not found", root)
    assert bool(told) is useless and "\n" not in told
    if useless:
        assert told.startswith("cuda: a reboot does not help: the machine has booted since nvidia-open was installed")
        assert "(modprobe says FATAL: Module nvidia not found; dkms status: nvidia/580.95: added)" in told


@pytest.mark.parametrize(("loaded", "tried"), [("nvidia", False), ("nouveau", False), ("amdgpu", True)])
def test_a_module_is_loaded_where_nothing_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: str, tried: bool
) -> None:
    root = tree(tmp_path, **{f"sys__module__{loaded}__version": "1"}, bin__modprobe="#!/bin/sh\ntest $1 = nvidia\n")
    (tmp_path / "bin/modprobe").chmod(0o755)
    monkeypatch.setattr(packages, "PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert kernel_module.load("nvidia", root) == (tried, "")


@pytest.mark.parametrize(("may_reboot", "reboot"), [(True, "reboot the machine"), (False, "ask for a reboot (-e cuda")])
def test_check_mode_tells_what_would_be_done(tmp_path: Path, may_reboot: bool, reboot: str) -> None:
    told = kernel_module.outlook(DRIVER, may_reboot, str(tmp_path))
    assert told.startswith(f"would load module nvidia, or {reboot}") and told.endswith(f": {DRIVER.reason}")
    (tmp_path / "sys/module/nouveau").mkdir(parents=True)
    assert kernel_module.outlook(DRIVER, may_reboot, str(tmp_path)).startswith(f"would {reboot}")


def test_what_modprobe_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, bin__modprobe="#!/bin/sh\necho 'modprobe: FATAL: no module' $1 >&2\nexit 1\n")
    (tmp_path / "bin/modprobe").chmod(0o755)
    monkeypatch.setattr(packages, "PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert kernel_module.load("nvidia", root) == (False, "modprobe: FATAL: no module nvidia")


@pytest.mark.parametrize("name", ["x;touch pwn #", "", "other"])
def test_a_mark_that_no_job_of_ours_has_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Reproduced before: any user could keep a machine from its reboot, with a command of theirs in the sentence."""
    job = JobDir(str(tmp_path / "one"))
    job.create([])
    held = job.lock()
    this = processes.read(os.getpid())
    monkeypatch.setattr(processes, "marked", lambda: [(this, processes.Mark(name, job.path))])
    try:
        assert kernel_module.job_refusal("cuda", "would be ended by the reboot") == ""
    finally:
        os.close(held)


def test_a_job_of_anybody_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobDir(str(tmp_path / "one"))
    job.create([])
    held = job.lock()
    marks = {processes.JOB_VARIABLE: "one", processes.JOB_DIR_VARIABLE: job.path}
    rank = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, **marks})
    every = processes.marked
    monkeypatch.setattr(processes, "marked", lambda: [row for row in every() if row[0].pid == rank.pid])
    try:
        told = kernel_module.job_refusal("cuda", "would be ended by the reboot")
        assert told.startswith("cuda: job one of ") and told.endswith(
            " runs here, and would be ended by the reboot: wait for its end, or end it: "
            "ansible-playbook clean.yml -e job_id=one"
        )
        os.close(held)
        assert kernel_module.job_refusal("cuda", "would be ended by the reboot") == ""  # what it left is no job
    finally:
        rank.communicate(b"\n")
