"""Per-rank files are byte-exact whatever a rank writes, in bounded memory. The view may drop lines, files never."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.driver import SCRIPTS, pids
from tests.integration.fleet import Fleet

EXPECTED = {
    "million": b"".join(b"line %d of a million\n" % number for number in range(1_000_000)),
    "binary": bytes(range(256)) * 4096,
    "long": b"x" * (50 << 20),
    "no-newline": b"first\nno newline at the end",
    "killed": b"whole\nhalf a li",
}
MEMORY_LIMIT = 100 << 20


def memory_of_ours(seen: dict[str, int]) -> None:
    """Keep the peak memory of each part of ours (supervisor, guard, wrapper) by what it is, not that of a launcher.

    Those of lab nodes are other tests'.
    """
    for pid in pids():
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/status").read_text()
            became = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")  # a wrapper's child turns into the program
        except OSError:
            continue
        script = next((number for number, word in enumerate(words) if word.endswith(b"/torchfleet.py")), 0)
        if words != became or b"python" not in words[0] or not script or "VmHWM:" not in status:  # a zombie has none
            continue
        part = words[script + 1].decode()
        seen[part] = max(seen.get(part, 0), int(status.partition("VmHWM:")[2].split()[0]) * 1024)


@pytest.mark.parametrize("what", EXPECTED)
def test_files_are_byte_exact(fleet: Fleet, what: str) -> None:
    started = fleet.start(workload=str(SCRIPTS / "output.py"), workload_args=[what])
    seen: dict[str, int] = {}
    while started.process.poll() is None:
        memory_of_ours(seen)
        time.sleep(0.01)
    assert (started.process.returncode == 0) == (what != "killed"), started.log.read_text()
    written = (started.run_dir / "ranks" / "0" / "stdout").read_bytes()
    assert len(written) == len(EXPECTED[what])
    assert hashlib.sha256(written).digest() == hashlib.sha256(EXPECTED[what]).digest()
    assert {"supervise", "rank"} <= set(seen) and max(seen.values()) < MEMORY_LIMIT, seen
    assert started.log.stat().st_size < 1 << 20  # the view is a courtesy


def test_memory_of_the_controller(fleet: Fleet) -> None:
    """ansible-playbook itself stays small too while 50 MB come home."""
    started = fleet.start(workload=str(SCRIPTS / "output.py"), workload_args=["long"])
    peak = 0
    while started.process.poll() is None:
        for pid in pids():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if f"PPid:\t{started.process.pid}\n" in status and "VmHWM:" in status:
                peak = max(peak, int(status.partition("VmHWM:")[2].split()[0]) * 1024)
        time.sleep(0.01)
    assert 0 < peak < MEMORY_LIMIT


def test_reports_are_never_dropped(fleet: Fleet) -> None:
    """Amid a flood of lines that the view drops, every report reaches metrics.jsonl."""
    script = fleet.root / "flood.py"
    report = "print(f'torchfleet: step={n + 1}/200 loss={1 / (n + 1):.3f}')"
    script.write_text("for n in range(200):\n    " + report + "\n    print('noise\\n' * 5000, end='')\n")
    played = fleet.play(workload=str(script), np=1)
    assert played.rc == 0, played.stdout
    rows = [json.loads(line) for line in (played.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 201))
    assert played.result["metrics"] == {"step": 200, "steps": 200, "loss": 0.005}
    assert "lines are only in the file" in played.stdout


def test_a_reader_who_comes_late_has_the_last_words(fleet: Fleet) -> None:
    """Two ranks fill every pipe and queue on the way; what the job came to is shown all the same."""
    script = fleet.root / "floods.py"
    script.write_text("for n in range(200_000):\n    print('line', n, 'x' * 100)\n")
    reader, writer = os.pipe()
    given = {"workload": str(script), "show_ranks": "all", "result_query": "ranks[].state"}
    started = fleet.start(stdout=writer, **given)
    os.close(writer)
    started.wait_until((started.run_dir / "result.json").exists, 60)
    with os.fdopen(reader) as late:
        said = late.read()
    assert started.process.wait(30) == 0
    for words in (
        "job job-0: 2 ranks",
        "job job-0 succeeded in ",
        " rank   host ",
        "run: ",
        '["succeeded", "succeeded"]',
    ):
        assert words in said, said[-2000:]


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun"])
def test_a_stream_that_is_opened_anew_loses_nothing(fleet: Fleet, launcher: str) -> None:
    """`echo text > /dev/stderr` opens it with O_TRUNC, and not to append."""
    script = fleet.root / "run.sh"
    script.write_text(
        "#!/bin/bash\nfor n in 1 2 3; do echo out $n; echo error $n >&2; done\n"
        "echo again > /dev/stdout\necho again > /dev/stderr\necho out 4; echo error 4 >&2\n"
        'echo more > /proc/self/fd/1\npython3 -c \'open("/dev/stderr", "w").write("python")\'\n'
    )
    script.chmod(0o700)
    played = fleet.play(workload=str(script), launcher=launcher)
    assert played.rc == 0, played.stdout
    for rank in (0, 1):
        assert played.output(rank) == "out 1\nout 2\nout 3\nagain\nout 4\nmore\n"
        assert played.output(rank, "stderr") == "error 1\nerror 2\nerror 3\nagain\nerror 4\npython"
    for line in ("out 1", "error 1", "out 4", "error 4", "more"):
        assert f"] {line}\n" in played.stdout


def test_output_of_a_daemon_that_outlives_its_rank(fleet: Fleet) -> None:
    """It keeps the pipe open: nobody waits for it, and what it writes is in the file, though it is more than a pipe."""
    script = fleet.root / "run.sh"
    script.write_text(
        "#!/bin/bash\n"
        'cd "$TORCHFLEET_JOB_DIR/ranks/0"\n'
        "[ $RANK = 1 ] && until tail -1 stdout | grep -q end; do sleep 0.1; done\n[ $RANK = 1 ] && exit\n"
        'setsid sh -c "until grep -q rc record.json; do sleep 0.1; done;'
        ' seq 100000; echo end; sleep 600" &\necho rank\n'
    )
    script.chmod(0o700)
    played = fleet.play(workload=str(script), job_timeout=60)
    assert played.rc == 0, played.stdout
    assert played.output(0).split() == ["rank", *map(str, range(1, 100001)), "end"]
    assert "sleep 600" in [row["command"] for row in played.result["leftovers"]["localhost"]]


def test_a_program_whose_wrapper_is_killed_loses_no_output(fleet: Fleet) -> None:
    script = fleet.root / "words.py"
    script.write_text(
        "import signal, sys, time\n"
        "def last(*_):\n    print('x' * 1000)\n    print('last words', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, last)\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    started = fleet.start(workload=str(script))
    started.wait_for_output(1, "up")
    os.kill(started.record(1)["wrapper_pid"], signal.SIGKILL)
    assert started.process.wait(40) != 0
    assert started.result["first_failure"]["cause"] == "its wrapper died"
    assert started.brought_home(1) == ["up", "x" * 1000, "last words"]
