"""A supervisor with more open files than select() takes, and what it starts: with as many as they would have had."""

from __future__ import annotations

import os
import select
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import ready
from tests.driver import wait_until
from tests.unit.supervisors import begin, order_of_one, supervisor

MANY = """if True:
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    open_files.raise_files()
    nothing = [os.open(os.devnull, os.O_RDONLY) for _number in range(1100)]
    def close_all_but(kept):
        pass
    from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import node_job
    node_job.close_all_but = close_all_but  # the guard too has its descriptors above
"""


def test_all_descriptors_are_above_1024(tmp_path: Path) -> None:
    """Reproduced before: `filedescriptor out of range in select()` from about 340 nodes on."""
    remote, job = supervisor(MANY), JobDir(str(tmp_path / "jobs" / "one"))
    begin(remote, order_of_one(tmp_path, ("/bin/sh", "-c", "ulimit -S -n; exec sleep 600")))
    output = Path(job.at("launcher.out"))
    wait_until(lambda: output.exists() and output.read_text())
    assert output.read_text() == "1024\n"
    frame = remote.channel.receive(60)
    assert frame is not None and frame["kind"] == "beat"
    remote.channel.send({"kind": "end", "reason": "cancelled", "detail": "enough"})
    while frame is not None and frame["kind"] != "over":
        frame = remote.channel.receive(60)
    assert frame is not None
    assert frame["report"]["launcher"]["pid"]
    remote.close()


def test_which_descriptors_are_ready() -> None:
    (quiet, there), (gone, here) = os.pipe(), os.pipe()
    assert ready([quiet, gone], 0) == set()
    os.close(here)
    assert ready([quiet, gone], None) == {gone}
    assert ready([there], 0, select.POLLOUT) == {there}
    for descriptor in (quiet, there, gone):
        os.close(descriptor)
