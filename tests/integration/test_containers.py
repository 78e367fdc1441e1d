"""The wrappers of docs/containers.md, word for word, on a machine without our Python. The tools are stand-ins."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.driver import REPO, SCRIPTS
from tests.integration.fleet import INSTALLED, Fleet

PAGE = (REPO / "docs" / "containers.md").read_text()
WRAPPERS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TOOLS = {re.findall(r"apptainer|podman|conda", text)[0]: text for text in WRAPPERS}
TRAIN = """
import os, signal, sys, time
print(os.environ["RANK"], os.environ["WORLD_SIZE"], repr(os.environ["ODD"]), sys.argv[1:], flush=True)
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
if "wait" in sys.argv:
    signal.signal(signal.SIGTERM, save)
    print("up", flush=True)
    time.sleep(600)
sys.exit(3 * ("fail" in sys.argv))
"""
CONDA = 'conda() { [ "$1 $2" = "activate train" ] && export PATH="@/envs/train/bin:$PATH"; }\n'


@pytest.fixture
def wrapper(fleet: Fleet, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the wrapper of a tool that lies beside its train.py, on a machine that has the tool and not our Python."""
    (fleet.home / "pytorch").unlink()
    place, conda, tools = fleet.root / "project", fleet.root / "conda", fleet.root / "tools"
    for directory in (place, conda / "etc" / "profile.d", conda / "envs" / "train" / "bin", tools):
        directory.mkdir(parents=True)
    (conda / "etc" / "profile.d" / "conda.sh").write_text(CONDA.replace("@", str(conda)))
    (conda / "envs" / "train" / "bin" / "python").symlink_to(INSTALLED / "pytorch" / "bin" / "python")
    for tool in ("apptainer", "podman"):
        (tools / tool).symlink_to(SCRIPTS / "apptainer")
    (place / "train.py").write_text(TRAIN)
    script = place / "run.sh"
    script.write_text(TOOLS[request.param].replace("/opt/conda", str(conda)))
    script.chmod(0o755)
    monkeypatch.setenv("TOOL_PATH", f"{conda}/envs/train/bin:{os.environ['PATH']}")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return script


@pytest.mark.parametrize("wrapper", TOOLS, indirect=True)
def test_a_wrapper_is_a_good_rank(fleet: Fleet, wrapper: Path) -> None:
    """Its program has the whole environment and its arguments, and its exit status is the rank's."""
    words, odd = ["a  b", "$x"], 'a "b\n'
    played = fleet.play(workload=str(wrapper), np=2, workload_args=words, job_env={"ODD": odd})
    assert played.rc == 0, played.stdout
    for rank in (0, 1):
        assert played.output(rank) == f"{rank} 2 {odd!r} {words}\n"
        assert played.output(rank, "stderr") == ""
    failed = fleet.play(workload=str(wrapper), np=2, workload_args=["fail"], job_env={"ODD": ""})
    assert failed.result["first_failure"]["cause"] == "exit status 3"


@pytest.mark.parametrize(
    ("wrapper", "how"),
    [("apptainer", "cancelled"), ("podman", "cancelled"), ("podman", "timed_out"), ("conda", "timed_out")],
    indirect=["wrapper"],
)
def test_what_a_wrapper_started_may_save_and_leaves_nothing(fleet: Fleet, wrapper: Path, how: str) -> None:
    """Before a job that took too long is ended, Python programs are asked for their stacks by a signal.

    Reproduced before, with podman: it handed that on, and the program in the container died of it.
    """
    limit = {"job_timeout": 20} if how == "timed_out" else {}
    job = fleet.start(workload=str(wrapper), np=2, workload_args=["wait"], job_env={"ODD": ""}, **limit)
    for rank in (0, 1):
        job.wait_for_output(rank, "up")
    if how == "cancelled":
        job.process.send_signal(signal.SIGINT)
    assert job.process.wait(60) != 0
    assert job.result["state"] == how
    told = [(job.run_dir / "ranks" / str(rank) / "stdout").read_text().split() for rank in (0, 1)]
    assert [words[-1] for words in told] == ["saved", "saved"]
    assert fleet.alive(job.job_id) == []
