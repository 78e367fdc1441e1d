"""What a node answers before a job is planned: its ports, torch, GPUs, and the jobs that run on it."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    JobDir,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import gpu_vendors, launcher_programs

ME = pwd.getpwuid(os.getuid()).pw_name


def test_the_port_of_the_rendezvous_is_one_of_the_ports() -> None:
    """Reproduced before: with ports=24000-24999 it was 22465, and a firewall stopped every job of several nodes."""
    for _time in range(50):
        port = survey.free_port(None, [24000, 24999])
        assert port and 24499 <= port <= 24999  # launchers take the lower ones first
    assert survey.free_port(None, None) in survey.PORTS


def test_a_range_is_searched_to_its_end() -> None:
    with socket.socket() as one:
        one.bind(("", 0))
        taken = one.getsockname()[1]
        assert survey.free_port(taken, [taken, taken]) is None
    assert survey.free_port(None, [taken, taken]) == taken


def job_of(home: Path, job_id: str, host: str = "n1") -> JobDir:
    """Return a job that has a rank on this host of it, which is n1."""
    job = JobDir(str(home / "jobs" / job_id))
    job.create([0])
    job.write("order.json", {"host": "n1", "placement": [{"rank": 0, "local_rank": 0, "host": host}]})
    return job


def of_home(home: Path) -> list[dict[str, str]]:
    """Return the running jobs of a home that a survey tells of; the machine may have others."""
    told = survey.job_state(str(home))
    return sorted((row for row in told["running"] if row["job_id"] in told["jobs"]), key=str)


def test_jobs_that_run_here_are_told_with_their_owner(tmp_path: Path) -> None:
    job_of(tmp_path, "over")
    runs, staged = job_of(tmp_path, "runs"), JobDir(str(tmp_path / "jobs" / "staged"))
    launches = job_of(tmp_path, "launches", host="n2")  # this machine is the head only
    staged.create([0])
    held = [job.lock() for job in (runs, staged, launches)]
    assert of_home(tmp_path) == [{"job_id": name, "owner": ME, "own_home": True} for name in ("runs", "staged")]
    for descriptor in held:
        os.close(descriptor)
    assert of_home(tmp_path) == []


def test_a_job_of_another_home_is_known_by_its_mark(tmp_path: Path) -> None:
    far, odd = job_of(tmp_path / "far", "theirs"), job_of(tmp_path / "far", "odd")
    held, held_too = far.lock(), odd.lock()
    sleep = [sys.executable, "-c", "print(flush=True); input()"]
    started = []
    for job_id, job in (("theirs", far), ("bad id\n", odd)):
        marks = {"TORCHFLEET_JOB_ID": job_id, "TORCHFLEET_JOB_DIR": job.path}
        process = subprocess.Popen(
            sleep, env={**os.environ, **marks}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout and process.stdout.readline()
        started.append(process)
    here = survey.running_jobs(str(tmp_path / "near"), [])
    assert {"job_id": "theirs", "owner": ME, "own_home": False} in here and all(
        row["job_id"] != "bad id\n" for row in here
    )
    assert [row for row in survey.running_jobs(str(tmp_path / "far"), [far]) if row["job_id"] == "theirs"] == [
        {"job_id": "theirs", "owner": ME, "own_home": True}
    ]
    os.close(held)
    assert "theirs" not in {row["job_id"] for row in survey.running_jobs(str(tmp_path / "near"), [])}  # a leftover
    for process in started:
        process.communicate("\n")
    os.close(held_too)


def test_a_job_that_is_over_has_no_ranks_though_its_files_are_still_fetched(tmp_path: Path) -> None:
    """Its lock is held until they are home: with many files that takes long, and others may use the node."""
    job = job_of(tmp_path, "one")
    held = job.lock()
    assert {"job_id": "one", "owner": ME, "own_home": True} in survey.running_jobs(str(tmp_path), [job])
    job.note_over()
    assert job.running() and {"job_id": "one", "owner": ME, "own_home": True} not in survey.running_jobs(
        str(tmp_path), [job]
    )
    os.close(held)


@pytest.mark.parametrize("order", ["[]", "7", '{"host": 3}', '{"host": "n1", "placement": [3, null]}', "{"])
def test_an_odd_order_stops_no_survey(tmp_path: Path, order: str) -> None:
    job = JobDir(str(tmp_path / "jobs" / "odd"))
    job.create([0])
    Path(job.at("order.json")).write_text(order)
    held = job.lock()
    assert {row["job_id"] for row in of_home(tmp_path)} <= {"odd"}
    os.close(held)


def test_survey_reads_and_changes_nothing(tmp_path: Path) -> None:
    request = {
        "home": str(tmp_path / "home"),
        "python": "",
        "launcher": "openmpi",
        "launcher_path": "/none",
        "launcher_args": [],
        "backend": "",
        "port": None,
        "ports": None,
    }
    facts = survey.survey(request)
    assert (facts["python"], facts["torch"], facts["launcher"]["version"]) == ("", None, "")
    assert facts["cores"] >= 1 and facts["free_bytes"] > 0 and facts["port"] in survey.PORTS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--mca coll_ucc_enable 1", "--mca coll_ucc_enable 1 (there is no coll ucc: it has basic, tuned)"),
        ("-mca pml ucx -mca coll tuned,ucc", "-mca coll tuned,ucc (there is no coll ucc: it has basic, tuned)"),
        ("--mca coll ^ucc --mca coll_tuned_priority 9", ""),
        ("--mca plm_ssh_agent false --mca plm isolated --map-by ppr:1:node", ""),  # of PRRTE, which is not asked
        ("--mca coll", ""),
    ],
)
def test_a_component_that_open_mpi_does_not_have(tmp_path: Path, words: str, told: str) -> None:
    info = tmp_path / "ompi_info"
    parts = ("coll:basic", "coll:tuned", "pml:ob1", "pml:ucx")
    info.write_text("#!/bin/sh\n" + "".join(f"echo mca:{part}:version:mca:2.1.0\n" for part in parts))
    info.chmod(0o755)
    assert launcher_programs.missing_component(str(tmp_path / "mpirun"), words.split()) == told
    assert launcher_programs.missing_component("/nowhere/mpirun", words.split()) == ""


def test_our_own_backends_are_known_without_importing_torch(tmp_path: Path) -> None:
    packages = tmp_path / "backends/lib/python3.11/site-packages"
    for name in ("torchfleet_backends-0.1.0.dist-info", "torchfleet_backends/oneccl"):
        (packages / name).mkdir(parents=True)
    python = str(tmp_path / "pytorch/bin/python")  # there is none: it cannot be asked
    assert survey.backends(python, "ccl") == ["ccl"] == survey.backends(python, "")
    assert survey.backends(python, "mpi") == ["ccl"]


def test_torch_is_read_without_importing_it(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "torch"
    package.mkdir(parents=True)
    text = "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.13.0+cu130'\n"
    (package / "version.py").write_text(text + "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    found = survey.torch_build(str(tmp_path / "bin" / "python"))
    assert found == {"version": "2.13.0+cu130", "cuda": "13.0", "hip": "", "xpu": ""}


def test_accelerators_by_their_device_files(tmp_path: Path) -> None:
    for name in ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for node, gpu in (("0", "0"), ("1", "48221")):
        path = tmp_path / "sys/class/kfd/kfd/topology/nodes" / node
        path.mkdir(parents=True)
        (path / "gpu_id").write_text(gpu + "\n")
    for node, kind in (("renderD128", "0x030000"), ("renderD129", "0x038000")):  # of the processor; a GPU Max
        path = tmp_path / "sys/class/drm" / node / "device"
        path.mkdir(parents=True)
        (path / "vendor").write_text("0x8086\n")
        (path / "class").write_text(f"{kind}\n")
    assert gpu_vendors.accelerators(str(tmp_path)) == {"nvidia": 2, "amd": 1, "intel": 1}


@pytest.mark.parametrize(
    ("choice", "lost"),
    [
        (None, ""),
        ({"address": "127.0.0.1"}, ""),
        ({"address": "192.0.2.77"}, "192.0.2.77"),
        ({"address": "2001:db8::77"}, "2001:db8::77"),
        ({"address": "127.0.0.1", "daemons": {"address": "192.0.2.78"}}, "192.0.2.78"),
        ({"address": 5, "daemons": "no"}, ""),
    ],
)
def test_an_address_that_is_gone_since_setup(choice: dict[str, Any] | None, lost: str) -> None:
    assert survey.lost_address(choice) == lost
