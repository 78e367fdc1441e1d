"""What runs in a pod, without a cluster: from the files of the ConfigMap to the result of its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import LogReader
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import program_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import digest, entry
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import folder_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled import pod_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.outcome import result_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_files import files_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import job_in_pods
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_kinds import KINDS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_request import parse_pods

PYTHON = Path.home() / ".torchfleet" / "pytorch" / "bin" / "python"
SCRIPT = """import os, sys, time
print(os.environ["SECRET_WORD"][:4], os.environ.get("JOB_COMPLETION_INDEX"), os.environ["WORLD_SIZE"], flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]) if os.environ["RANK"] == "1" else 0)
"""


class Pod:
    """One pod's directories, and its process."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch, *args: str) -> None:
        source, home = place / "files", place / "home"
        secret = place / "files-secret"
        for folder in (source, home, secret, place / "program"):
            folder.mkdir()
        kinds = {"indexed": KINDS["indexed"]._replace(home=str(home))}
        monkeypatch.setattr(pod_request, "KINDS", kinds)
        script = place / "program" / "train.py"
        script.write_text(SCRIPT)
        given: dict[str, Any] = {
            "pod_image": "x",
            "ranks_per_node": 2,
            "pod_output": "1M",
            "job_env": {"SECRET_WORD": "hush-hush"},
        }
        request = parse_request({**given, "workload": str(script), "workload_args": list(args)})
        program = program_of(request, str(script), shipped=True, local=False)
        job, folder_files = Job("apod", str(place / "run"), program, entry(), "abc"), folder_of(str(script))
        self.made = job_in_pods(request, parse_pods(given, request), job, folder_files, "me")
        for name, data in files_of(self.made.order, folder_files, self.made.pods).items():
            (source / name).write_bytes(data)
        (secret / "SECRET_WORD").write_text("hush-hush")
        self.started = time.time()
        self.process = subprocess.Popen(
            [PYTHON, "-I", "-S", source / "entry.py", source, home, digest()],
            env={**os.environ, "JOB_COMPLETION_INDEX": "0", "RANK": "0", "WORLD_SIZE": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def result(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the result of its log, and the frames."""
        log = self.process.communicate()[0]
        found = [dict(frame) for frame in LogReader().take(log)]
        assert found and found[-1]["kind"] == "over", log.decode()
        order = self.made.order["job"]
        ending = next((frame for frame in found if frame["kind"] == "ending"), None)
        end = {"at": time.time(), "host": "tf-apod-0", **ending} if ending else None
        reports = {"tf-apod-0": found[-1]["report"]}
        return dict(result_of(order, reports, end, self.started)), found  # type: ignore[arg-type]


def test_a_pod_runs_its_ranks_and_tells_their_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = Pod(tmp_path, monkeypatch, "0", "0")
    result, found = pod.result()
    assert pod.process.returncode == 0
    assert result["state"] == "succeeded" and result["world_size"] == 2
    lines = [frame["text"] for frame in found if frame["kind"] == "line"]
    assert lines == ["hush 0 2"]  # the number of the pod stays, WORLD_SIZE is that of ranks
    assert {"ranks/0/stdout", "ranks/1/stdout"} <= {frame["name"] for frame in found if frame["kind"] == "output"}


def test_a_pod_ends_all_when_a_rank_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = Pod(tmp_path, monkeypatch, "1", "3")
    result, _found = pod.result()
    assert pod.process.returncode == 1
    assert result["state"] == "failed" and result["first_failure"]["rank"] == 1
    assert result["first_failure"]["cause"] == "exit status 3"


def test_a_pod_that_is_asked_to_end_tells_its_records_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes does it: SIGTERM to the first process of the container."""
    pod = Pod(tmp_path, monkeypatch, "600", "0")
    line, out = b"", pod.process.stdout
    while out and b'"line"' not in line:
        line = out.readline()
        assert line
    pod.process.send_signal(signal.SIGTERM)
    rest = pod.process.communicate()[0].decode()
    assert '"reason": "cancelled"' in rest and '"kind": "over"' in rest
    marked = subprocess.run(["pgrep", "-f", str(tmp_path / "home")], capture_output=True, text=True, check=False)
    assert marked.stdout == "", sys.platform
