"""Looking at ranks: what their files and processes tell, whoever wrote them; nothing is ended by it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks import look_note
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks.look_note import (
    LOOK_SIGNAL,
    PIPE,
    RECORDER,
    STACKS,
    TELL_SIGNAL,
    WHOLE,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks import (
    asking,
    busy_program,
    last_look,
    looking,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.evidence import (
    ALL_EVIDENCE,
    FRAMES_MOST,
    GROUPS_MOST,
    THREADS_MOST,
    read_recorder,
    read_stacks,
)
from tests.driver import parent, pids, running, wait_until

PROGRAM = """
import sys, threading, time
def others():
    time.sleep(600)
def waits():
    print("up", flush=True)
    time.sleep(600)
threading.Thread(target=others, daemon=True).start()
waits()
"""
Order = Any


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    made = JobDir(str(tmp_path / "jobs" / "one"))
    made.create([0, 1])
    return made


ORDER: Order = {"host": "n1", "ranks": [0, 1]}


def record(job: JobDir, rank: int, pid: int) -> None:
    """Write the record of a rank whose program runs; this process counts as its wrapper."""
    row = {"rank": rank, "local_rank": rank, "host": "n1", "wrapper_pid": os.getpid(), "pid": pid, "cpus": []}
    job.write(f"ranks/{rank}/record.json", {**row, "started": 1.0})


@contextlib.contextmanager
def rank_0(job: JobDir, hook: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Python with the hook, as the wrapper of rank 0 does, and wait for its first line."""
    code = f"import os, sys\nos.environ['TORCHFLEET_EXIT_NOTE'] = f'{{os.getpid()}}:{job.rank(0, 'exit')}'\n"
    code += "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    argv, env = [sys.executable, "-S", "-c", code, program], {**own, "PYTHONPATH": str(hook)}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "up\n"
            record(job, 0, process.pid)
            yield process
        finally:
            process.kill()


@pytest.fixture
def started(job: JobDir, hook: Path) -> Iterator[subprocess.Popen[str]]:
    """Rank 0: a Python that waits."""
    with rank_0(job, hook, PROGRAM) as process:
        yield process


def test_a_python_tells_where_it_is_and_goes_on(job: JobDir, started: subprocess.Popen[str]) -> None:
    def asleep() -> list[Any] | None:  # until then it may be on its way to its sleep, or write the last answer
        found = looking.look(job, ORDER, seconds=0.1)
        return found if (found[0]["state"], found[0]["moved"]) == ("S", False) else None

    row, other = wait_until(asleep)
    assert ALL_EVIDENCE([row, other]) == [row, other]
    assert (row["status"], row["python"], row["wrote"]) == ("running", True, False)
    assert [frame["function"] for frame in row["threads"][0]] == ["waits", "<module>"]  # the main thread is the first
    assert row["threads"][1][0]["function"] == "others"
    assert (other["status"], other["threads"], other["pid"]) == ("absent", [], 0)
    assert started.poll() is None and running(started.pid)


STAYS_IN_C = """
import ctypes
library = ctypes.CDLL(None)
library.__cxa_atexit(library.pause, None, None)  # as an MPI that ends itself when the process does
print("up", flush=True)
"""


def test_a_program_that_has_ended_while_its_process_stays_is_done(job: JobDir, hook: Path) -> None:
    with rank_0(job, hook, STAYS_IN_C) as process:

        def done() -> Any:
            row = looking.look(job, ORDER, seconds=0.1)[0]
            return row if row["done"] and not row["python"] else None

        row = wait_until(done)
        assert (row["status"], row["rc"], row["threads"]) == ("running", None, []) and running(process.pid)


COMPILES = """
import subprocess, sys, time
code = "import os; os.fork() and os.wait(); open('/proc/self/comm', 'w').write('cc1plus')\\nwhile True: pass"
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
print("up", flush=True)
try:
    child.wait(600)
finally:
    child.kill()
"""


def test_a_program_that_a_rank_has_started_and_that_is_busy_is_told(
    job: JobDir, hook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy_program, "LEAST_SHARE", 0.0)  # this machine may be busy, too
    with rank_0(job, hook, COMPILES) as process:

        def compiling() -> list[str] | None:  # before that Python itself is busy, with its start
            found = looking.look(job, ORDER, asks=False, seconds=0.2)[0]["busy"]
            return found if "cc1plus" in found[:1] else None

        busy = wait_until(compiling)
        assert len(busy) == 2 and busy_program.builds(busy)
        for child in [pid for pid in pids() if process.pid in (parent(pid), parent(parent(pid)))]:
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: looking.look(job, ORDER, asks=False, seconds=0.0)[0]["busy"] == [])


def test_who_may_not_be_asked_gets_nothing(job: JobDir, started: subprocess.Popen[str]) -> None:
    before = looking.size_of(job.rank(0, STACKS))
    row = looking.look(job, ORDER, asks=False, seconds=0.1)[0]
    assert (row["threads"], row["status"], looking.size_of(job.rank(0, STACKS))) == ([], "running", before)
    os.kill(started.pid, signal.SIGSTOP)
    wait_until(lambda: looking.look(job, ORDER, seconds=0.0)[0]["state"] == "T")
    assert looking.size_of(job.rank(0, STACKS)) == before  # no answer comes when it goes on, either
    os.kill(started.pid, signal.SIGCONT)


def test_what_a_python_executes_in_its_place_is_sent_nothing(job: JobDir, hook: Path) -> None:
    """It is the same process, and had our handler when the look began."""
    program = "import os\nprint('up', flush=True)\ninput()\nos.execvp('sleep', ['sleep', '600'])"
    with rank_0(job, hook, program) as process:
        assert process.stdin
        first = looking.look_once(job, ORDER, True, set())
        assert first[0].asked and first[0].threads
        process.stdin.write("\n")
        process.stdin.flush()
        wait_until(lambda: looking.processes.command_of(process.pid) == "sleep 600")
        assert looking.moved_since(job, first, set()) == set()
        assert process.poll() is None and running(process.pid)


RUNS, HOLDS, IN_C = "while True: sum(range(99))", "ctypes.PyDLL(None).sleep(600)", "sum(range(10**14))"


@pytest.mark.parametrize(
    ("thread", "does", "signals"),
    [
        (True, RUNS, []),
        (True, HOLDS, [LOOK_SIGNAL]),
        (False, RUNS, [TELL_SIGNAL]),
        (True, IN_C, [LOOK_SIGNAL]),
        (False, IN_C, [TELL_SIGNAL, LOOK_SIGNAL]),
        (False, "time.sleep(600)", [TELL_SIGNAL]),
    ],
    ids=["runs", "GIL", "in C", "runs, no thread of ours", "in C, no thread of ours", "sleeps, no thread of ours"],
)
def test_stacks_are_written_with_the_gil_if_it_can_be_had(
    job: JobDir, hook: Path, thread: bool, does: str, signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that change while they are read end the program, about once in a thousand times."""
    program = f"""
import ctypes, time, _torchfleet_look_note
def works():
    {does}
if {thread}:
    _torchfleet_look_note.start_recorder({job.rank(0)!r})
print("up", flush=True)
input()
works()
"""
    sent: list[int] = []
    send, send_to_thread = asking.processes.send, asking.send_to_thread
    monkeypatch.setattr(asking.processes, "send", lambda *to: [sent.append(to[-1]), send(*to)][1])
    monkeypatch.setattr(asking, "send_to_thread", lambda *to: [sent.append(to[-1]), send_to_thread(*to)][1])
    with rank_0(job, hook, program) as process:
        wait_until(lambda: bool(asking.our_thread(process.pid)) == thread)
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()

        def functions() -> list[str]:
            sent.clear()
            threads = looking.look_once(job, ORDER, True, set())[0].threads
            return [frame["function"] for frames in threads for frame in frames]

        wait_until(lambda: functions() == ["works", "<module>"])
        assert sent == signals
        assert process.poll() is None


def test_an_answer_that_comes_in_pieces_is_waited_for(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a stack would be another one than that of the look before, and its rank at work."""
    monkeypatch.setattr(looking, "QUIET_SECONDS", 60.0)
    path, sizes = Path(job.rank(0, STACKS)), {0: 0}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MAIN[:60])

    def go_on() -> None:
        time.sleep(0.2)
        with path.open("ab") as file:
            file.write(MAIN[60:].encode() + WHOLE)

    with ThreadPoolExecutor() as pool:
        pool.submit(go_on)
        looking.await_stacks(job, [0], sizes, 60.0)
    assert sizes == {0: len(MAIN) + len(WHOLE)}


def test_stacks_are_written_at_once_and_nothing_else_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sizes = tmp_path / STACKS, []
    path.touch()
    dump = look_note.faulthandler.dump_traceback
    monkeypatch.setattr(
        look_note.faulthandler, "dump_traceback", lambda file: [dump(file), sizes.append(path.stat().st_size)]
    )
    look_note.write_stacks(str(path))
    assert sizes == [0] and path.read_bytes().endswith(WHOLE) and [*tmp_path.iterdir()] == [path]
    assert read_stacks(path.read_text())[0][0]["function"] == "<lambda>"


def test_who_computes_is_not_sent_what_reads_frames_that_change(job: JobDir, started: subprocess.Popen[str]) -> None:
    """It has not used the CPU in which it would have come to its next step, or another thread of it runs."""
    process = asking.processes.read(started.pid)
    assert process
    at_work = process._replace(state="R")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking.processes, "read", lambda _pid: at_work)
        patch.setattr(asking, "cpu_of_main", lambda _pid: asking.IN_C)
        assert not asking.ask_in_c(at_work, 1) and not asking.is_in_c(at_work, 1) and asking.is_in_c(at_work, 0)
        patch.setattr(asking, "state_of_thread", lambda *_thread: "R")
        assert not asking.ask_in_c(at_work, 0)
    assert asking.cpu_of_main(started.pid) > 0 and asking.state_of_thread(started.pid, str(started.pid)) in "SR"


def test_a_program_without_our_handler_is_sent_nothing(job: JobDir) -> None:
    """The signal would end it."""
    with subprocess.Popen(["sleep", "600"]) as process:
        record(job, 0, process.pid)
        row = looking.look(job, ORDER, seconds=0.1)[0]
        assert (row["python"], row["threads"], row["command"]) == (False, [], "sleep 600")
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("name", [STACKS, RECORDER, PIPE])
@pytest.mark.parametrize("what", ["link", "pipe", "directory", "device"])
def test_what_lies_in_place_of_an_answer_is_not_followed_nor_waited_for(
    job: JobDir, started: subprocess.Popen[str], tmp_path: Path, name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "ANSWER_SECONDS", 0.05 if name == STACKS else looking.ANSWER_SECONDS)
    place, secret = Path(job.rank(0, name)), tmp_path / "secret"
    secret.write_text('  File "secret", line 1 in me\n' * 1000)
    if place.exists():
        place.unlink()
    if what == "link":
        place.symlink_to(secret)
    elif what == "pipe":
        os.mkfifo(place)
    elif what == "directory":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    row = looking.look(job, ORDER, seconds=0.0)[0]
    assert row["groups"] == [] and not any("secret" in str(frames) for frames in row["threads"])
    assert started.poll() is None and secret.read_text().startswith("  File")


STACK = 'Thread 0x00007f [x] (most recent call first):\n  File "/a/other.py", line 2 in run\n\n'
MAIN = """Current thread 0x00008f (most recent call first):
  File "/a/t.py", line ??? in f
  File "/a/t.py", line 9 in <module>
"""


def test_stacks_are_read_with_the_main_thread_first() -> None:
    ours = STACK.replace("other.py", "_torchfleet_look_note.py")
    threads = read_stacks(ours + STACK + "Thread 0x0 (most recent call first):\n  <no Python frame>\n\n" + MAIN)
    assert [[frame["function"] for frame in frames] for frames in threads] == [["f", "<module>"], ["run"]]
    assert threads[0][0] == {"file": "/a/t.py", "line": 0, "function": "f"}


@pytest.mark.parametrize(
    "text",
    ["", "\n\0\xff", '  File "x", line 1 in y\n' * 9, "Thread 0x1 (most recent call first):\n" * 99, "F" * 100000],
)
def test_what_is_no_stack_is_none(text: str) -> None:
    assert read_stacks(text) == []


def test_threads_in_one_place_stand_once_so_that_none_hides_another() -> None:
    """As those of a backend's many groups: faulthandler begins with the newest thread, which the main one waits for."""
    waits = STACK.replace("run", "waits_for_others")
    names = [[frame["function"] for frame in frames] for frames in read_stacks(waits + STACK * 2 * THREADS_MOST + MAIN)]
    assert names == [["f", "<module>"], ["run"], ["waits_for_others"]]


LONG_FRAME = f'  File "{"d/" * 900}x.py", line 1 in {"f" * 900}\n'


def test_stacks_are_bounded() -> None:
    head, _line, _rest = STACK.partition("\n")
    deep = "".join(f'{head}\n  File "/{n}.py", line 1 in f\n' + LONG_FRAME * 2 * FRAMES_MOST for n in range(99))
    threads = read_stacks(deep)
    assert len(threads) == THREADS_MOST and {len(frames) for frames in threads} == {FRAMES_MOST}
    assert ALL_EVIDENCE([]) == [] and all(len(frame["file"]) <= 300 for frames in threads for frame in frames)


def entry(
    sequence: Any, at: float, retired: Any = True, name: str = "gloo:all_reduce", **changed: Any
) -> dict[str, Any]:
    row = {"process_group": ["0", "default_pg"], "collective_seq_id": sequence, "profiling_name": name}
    return {**row, "time_created_ns": int(at * 1e9), "retired": retired, "is_p2p": False, **changed}


def test_a_flight_recorder_tells_the_last_collective_of_each_group() -> None:
    rows = [entry(1, 100), entry(2, 103), entry(3, 104), entry(1, 104.5, process_group=["1", "undefined"])]
    rows += [entry(4, 106, retired=False, name="gloo:barrier"), entry(9, 107, is_p2p=True)]
    first, second = read_recorder(json.dumps({"entries": rows}).encode(), 116.0)
    assert (first["name"], first["sequence"], first["operation"], first["open"]) == ("0 default_pg", 4, "barrier", True)
    assert (first["seconds"], first["longest"]) == (10.0, 2.0)  # the first pause does not count: the program came up
    assert (second["sequence"], second["open"], second["longest"]) == (1, False, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\xff", b"[]", b"{}", b"3", b"[" * 100000, b'{"entries": 3}', b'{"entries": [1, null, {}]}',
        json.dumps({"entries": [entry("x", 1)]}).encode(), json.dumps({"entries": [entry(1 << 99, 1)]}).encode(),
        json.dumps({"entries": [entry(1, 1, retired="no")]}).encode(),
        json.dumps({"entries": [entry(1, 1, process_group=[1, 2])]}).encode(),
        json.dumps({"entries": [entry(True, 1)]}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_recorder_tells_nothing(text: bytes) -> None:
    assert read_recorder(text, 1.0) == []


def test_a_flight_recorder_tells_the_tensors_of_the_last_collectives() -> None:
    """By elements and type: a shape is no other size. What a program may write there is bounded."""
    tensors: list[tuple[Any, Any, str]] = [
        ([[8]], ["Float"], "8 Float"),
        ([[2, 4], [3]], ["Float", "Long"], "11 Float+Long"),
        ([[]], ["Float"], "1 Float"),  # a scalar
        ([], [], ""),
        ("8", ["Float"], ""),
        ([[True]], ["Float"], ""),
        ([[8]], [3], ""),
        ([[1 << 40, 1 << 40]], ["x" * 999], f"{1 << 62} " + "x" * 80),
        ([[1 << 70]], ["Float"], ""),
        ([[-(10**3000), 10**3000]], ["Float"], ""),  # reproduced before: whoever looked at the job died of it
    ]
    for sizes, types, told in tensors:
        rows = [entry(number, 100, input_sizes=sizes, input_dtypes=types) for number in range(9)]
        (found,) = read_recorder(json.dumps({"entries": rows}).encode(), 116.0)
        assert [call["sequence"] for call in found["recent"]] == [5, 6, 7, 8]
        assert found["recent"][-1]["operation"] == "all_reduce" and found["recent"][-1]["tensor"] == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"bytes": 48}, "48 bytes"),
        ({"bytes": 0}, ""),  # a barrier
        ({"bytes": -1}, ""),
        ({"bytes": True}, ""),
        ({"bytes": "48"}, ""),
        ({"bytes": 1 << 70}, ""),
        ({"bytes": 48, "input_sizes": [[8]], "input_dtypes": ["Float"]}, "8 Float"),
        ({"bytes": 48, "output_sizes": [[12]], "output_dtypes": ["Float"]}, "12 Float"),
        ({"bytes": 48, "output_sizes": "12", "output_dtypes": ["Float"]}, ""),
        ({"bytes": 0, "output_sizes": [[0]], "output_dtypes": []}, ""),
    ],
)
def test_the_records_of_our_own_backends_tell_types_or_bytes(given: dict[str, Any], told: str) -> None:
    """As torch_backends/csrc/record.cpp writes them: bytes alone where there are several types."""
    rows = [entry(1, 100, name="mpi:all_reduce", process_group=["0", "mpi"], **given)]
    (found,) = read_recorder(json.dumps({"entries": rows}).encode(), 116.0)
    assert found["recent"][-1]["tensor"] == told


def test_several_recorders_are_read() -> None:
    """PyTorch's has nothing of backend mpi, which has its own."""
    own = entry(7, 100, retired=False, name="mpi:barrier", process_group=["0", "mpi"])
    texts = [json.dumps({"entries": rows}).encode() for rows in ([entry(2, 90)], [own], [], [], [entry(9, 99)])]
    assert [(group["name"], group["sequence"]) for group in read_recorder(b"\0".join(texts), 116.0)] == [
        ("0 default_pg", 2),
        ("0 mpi", 7),
    ]
    assert len(read_recorder(b"\0".join([b"", b"nonsense", texts[1]]), 116.0)) == 1


def test_a_recorder_is_bounded() -> None:
    rows = [entry(1, 1, process_group=[str(number)], name="o" * 999) for number in range(999)]
    found = read_recorder(json.dumps({"entries": rows}).encode(), 1.0)
    assert len(found) == GROUPS_MOST and all(len(group["operation"]) <= 100 for group in found)


def test_a_look_waits_for_another_one(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "OTHERS_SECONDS", 0.05)
    with looking.alone(job):
        before = time.monotonic()
        assert len(looking.look(job, ORDER, seconds=0.0)) == 2  # not for ever
        assert time.monotonic() - before >= 0.05


def test_the_look_before_the_end_does_not_wait_for_another_one(
    job: JobDir, started: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reproduced before: of a job that was ended while it was looked at by itself, nobody was named."""
    monkeypatch.setattr(looking, "OTHERS_SECONDS", 1e9)
    monkeypatch.setattr(last_look, "MOST_SECONDS", 60.0)  # this machine may be busy
    with looking.alone(job):
        last_look.note_evidence(job, ORDER)
        assert [bool(row["threads"]) for row in last_look.noted_evidence(job)] == [True, False]
        assert len(looking.look(job, ORDER, asks=False, seconds=0.0)) == 2  # it asks nobody
    assert started.poll() is None


@pytest.mark.parametrize("written", [None, "text", [1], [{"rank": 0}], {"rank": 0}])
def test_evidence_that_a_program_changed_is_none(job: JobDir, written: object) -> None:
    job.write(last_look.FILE, written)
    assert last_look.noted_evidence(job) == []


def test_the_last_look_is_kept_for_the_result(job: JobDir, started: subprocess.Popen[str]) -> None:
    last_look.note_evidence(job, ORDER)
    noted = last_look.noted_evidence(job)
    assert [row["rank"] for row in noted] == [0, 1] and noted[0]["threads"]
    at_end: Any = {"reason": "timed_out", "detail": "job_timeout of 9 s", "at": 1.0}
    assert last_look.verdict_at_end(at_end, noted, {0: "n1", 1: "n1"}) is None  # nobody waits for another
    assert last_look.verdict_at_end({**at_end, "reason": "lost"}, noted, {0: "n1"}) is None
    assert started.poll() is None
