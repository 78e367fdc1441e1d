"""What a node says of its launchers and ports before a job is planned."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import slurm_programs
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launcher_programs import (
    find_launcher,
    refusal,
)
from tests.driver import wait_until

HAS = "mca:coll:tuned:version:5.0.11\nmca:coll:basic:version:5.0.11\nmca:pml:ob1:version:5.0.11\n"


@pytest.fixture
def mpirun(tmp_path: Path) -> Path:
    """Return an Open MPI of two programs that takes whatever it is given, and has some components."""
    (tmp_path / "ompi_info").write_text(f"#!/bin/sh\ncat <<'END'\n{HAS}END\n")
    (tmp_path / "mpirun").write_text('#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.11"\nexit 0\n')
    for name in ("ompi_info", "mpirun"):
        (tmp_path / name).chmod(0o755)
    return tmp_path / "mpirun"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--mca", "coll_ucc_enable", "1"), "there is no coll ucc: it has basic, tuned"),
        (("--mca", "pml", "ucx"), "there is no pml ucx: it has ob1"),
        (("--mca", "coll", "tuned,hcoll"), "there is no coll hcoll: it has basic, tuned"),
        (("--mca", "coll", "tuned,basic"), ""),
        (("--mca", "pml", "^ucx"), ""),
        (("--mca", "btl_tcp_if_include", "eth0"), ""),
    ],
)
def test_a_component_that_open_mpi_lacks_is_named(mpirun: Path, words: tuple[str, ...], says: str) -> None:
    """Of some it says nothing itself: the job runs, slower, and nobody knows."""
    found = find_launcher("openmpi", str(mpirun), "/none")
    assert found["version"] == "5.0.11"
    said = refusal("openmpi", found, words)
    assert says in said and bool(said) == bool(says)


def test_slurm_is_found_where_its_srun_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchfleet_srun names srun, also for sbatch. The daemon is in a place that is in nobody's search path."""
    monkeypatch.setattr(slurm_programs, "running", lambda: iter(()))
    monkeypatch.setattr(slurm_programs, "SBIN", ())
    monkeypatch.setenv("PATH", "")
    for name in ("bin/srun", "bin/sbatch", "sbin/slurmd"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\necho slurm-wlm 22.05.8\n")
        program.chmod(0o755)
    found = find_launcher("sbatch", str(tmp_path / "bin/srun"), "/none")
    assert (found["path"], found["version"]) == (str(tmp_path / "bin/sbatch"), "22.05.8")
    there = {"slurmd": str(tmp_path / "sbin/slurmd"), "version": "22.05.8", "srun": str(tmp_path / "bin/srun")}
    assert slurm_programs.slurm_programs(found["path"]) == there
    assert slurm_programs.slurm_programs("") == {"slurmd": "", "version": "", "srun": ""}


def test_what_another_user_calls_slurmd_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can start a process of that name by any path; ours, or root's, would run what lies there."""
    (tmp_path / "slurmd").symlink_to("/bin/sleep")
    tmp_path.chmod(0o777)
    with subprocess.Popen([str(tmp_path / "slurmd"), "60"]) as process:
        try:
            wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "slurmd\n")
            assert str(tmp_path / "slurmd") not in slurm_programs.running()
            assert slurm_programs.is_safe("/bin/sh") and not slurm_programs.is_safe("sh")
            monkeypatch.setattr(slurm_programs, "is_safe", lambda _program: True)
            assert str(tmp_path / "slurmd") in slurm_programs.running()
        finally:
            process.kill()
    (tmp_path / "slurmd").unlink()
    (tmp_path / "slurmd").write_bytes(b"#!/bin/sh\nprintf 'slurm 22.05.8\\n\\377'\n")
    (tmp_path / "slurmd").chmod(0o755)
    assert slurm_programs.version_of(str(tmp_path / "slurmd")) == "22.05.8"


def test_a_launcher_that_does_not_take_an_option_is_quoted(mpirun: Path) -> None:
    found = find_launcher("openmpi", str(mpirun), "/none")
    mpirun.write_text("#!/bin/sh\necho 'unrecognized option' >&2\nexit 1\n")
    assert refusal("openmpi", found, ("--bogus",)) == "--bogus (unrecognized option)"
    assert refusal("openmpi", found, ()) == ""


def test_a_job_does_not_meet_where_other_tools_do_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun by hand left on its default port would take the ranks of this job for its own (pytorch#126510)."""
    monkeypatch.setattr(survey, "port_is_free", lambda _port: True)
    assert {survey.free_port(None, (29499, 29501)) for _try in range(200)} <= {29499, 29501}
    assert survey.free_port(None, (29500, 29500)) is None
    assert survey.free_port(29500, None) == 29500
