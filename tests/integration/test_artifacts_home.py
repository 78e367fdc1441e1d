"""What ranks wrote is in the run on the controller, whatever became of the job."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.driver import REPO, SCRIPTS
from tests.integration.fleet import Fleet

ALL = {"config.txt", "log-0.txt", "log-1.txt", "out/model-0.pt", "out/model-1.pt"}


def train(fleet: Fleet, folder: Path, **given: object) -> subprocess.CompletedProcess[str]:
    """Run writes.py as a person does who types the command in that folder: there the ranks work."""
    extra = json.dumps(fleet.variables(workload=str(SCRIPTS / "writes.py"), job_id="one", np=2, **given))
    argv = ["ansible-playbook", "-i", str(REPO / "inventory" / "hosts.yml"), str(REPO / "train.yml"), "-e", extra]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("status", [0, 3])
def test_models_come_home(fleet: Fleet, status: int) -> None:
    """Also after a failure; what was there before the job stays, and links are not followed."""
    folder = fleet.root / "folder"
    (folder / "out").mkdir(parents=True)
    (folder / "old.txt").write_text("of another job")
    time.sleep(3)  # file systems keep coarse times: a file that is younger counts as the job's
    done = train(fleet, folder, workload_args=[str(status)], collect=["out", "*.txt", "*.nothing"])
    assert (done.returncode == 0) == (status == 0), done.stdout
    listing = json.loads((fleet.runs / "one" / "artifacts.json").read_text())
    paths = {row["path"] for row in listing["files"]}
    assert {"config.txt", "log-0.txt", "out/model-0.pt"} <= paths <= ALL
    assert paths == ALL or status  # rank 1 may be ended before it has written
    for row in listing["files"]:
        content = (fleet.runs / "one" / "artifacts" / "localhost" / row["path"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (row["bytes"], row["sha256"])
    assert listing["left_out"] == {"localhost": {"link": 1}} and listing["unmatched"] == ["*.nothing"]
    assert f"collected: {len(paths)} files" in done.stdout
    assert "collect: '*.nothing' matches nothing that the job wrote" in done.stdout
