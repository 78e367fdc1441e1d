"""Staging a job on a node leaves all of it or nothing, whatever the node's locale is."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job import node_job
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.node_job import NodeJob
from tests.unit.supervisors import COLLECTIONS, PACKAGE, order_of_one

STAGE = f"""
import json, sys
sys.path.insert(0, {str(COLLECTIONS)!r})
from {PACKAGE}.node_job.node_job import NodeJob
NodeJob(**json.load(sys.stdin))
"""


def test_a_legacy_locale_takes_any_text(tmp_path: Path) -> None:
    """Reproduced before: a UnicodeEncodeError left half a job behind."""
    order = order_of_one(tmp_path, programs={"torchfleet-rank": ["/ä\udcff"]})
    files = {"command.txt": "cd '/data/ä☃'\n"}
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", STAGE],
        input=json.dumps({"order": order, "secrets": {}, "files": files}),
        env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "TMPDIR": os.environ["TMPDIR"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    job = tmp_path / "jobs" / "one"
    assert (job / "command.txt").read_bytes() == "cd '/data/ä☃'\n".encode()
    assert "/ä".encode() + b"\xff" in (job / "bin" / "torchfleet-rank").read_bytes()


def test_nothing_is_left_of_a_job_that_cannot_be_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()

    def refused(*_given: object) -> None:
        raise ValueError("a text that cannot be written")

    monkeypatch.setattr(node_job, "OutputFollower", refused)
    with pytest.raises(ValueError, match="cannot be written"):
        NodeJob(order_of_one(tmp_path), {})
    assert os.listdir(tmp_path / "jobs") == [] == os.listdir(tmp_path / "tmp")


def test_an_order_is_not_changed_by_who_stages_it(tmp_path: Path) -> None:
    order = order_of_one(tmp_path, secret_names=["A"])
    before = copy.deepcopy(order)
    job = NodeJob(order, {"A": "s3cret"})
    assert order == before == job.job.read("order.json")
    assert job.staging == job.job.staging()
    job.unstage()
