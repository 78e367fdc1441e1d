"""What a hostile node may send, and what becomes of it: nothing gets past the border that no honest one would send."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.remote_node import (
    Clock,
    RemoteNode,
    own_ranks_report,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.metrics import OwnRows
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.supervisor import Supervisor
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifact_border import Limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.fetched_files import (
    files_of,
    may_be_fetched,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.file_desk import FileDesk
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import forms
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames as frames_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import node_form, record_forms
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import PIPE_BUF, Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.frames import (
    FROM_HEAD,
    FROM_NODE,
    BadFrame,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import ConnectionLost, RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import run_directory, runtime_archive
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import session as session_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.brought_home import BroughtHome
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import Folder

SURVEY: dict[str, Any] = {
    **dict.fromkeys(("home", "cwd", "tmpdir", "interpreter", "python", "python_wanted"), "/home/mpi"),
    **{
        "cores": 2,
        "uid": 1000,
        "accelerators": {"nvidia": 0, "amd": 0},
        "torch": None,
        "hostname": "n2",
        "machine": "x86_64",
    },
    **{"nics": ["lo", "eth0"], "backends": [], "free_bytes": 1, "port": 20000, "jobs": ["a"], "leftovers": []},
    "running": [{"job_id": "a", "owner": "alice", "own_home": True}],
    "launcher": {"path": "/usr/bin/mpirun", "version": "5", "wanted": "", "said": "", "refused": ""},
    "fabric": {"nic": "eth0", "address": "10.0.0.2", "network": "10.0.0.0/24", "rdma": []},
}
LONG = "x" * 100_000
HOSTILE_FACTS: list[dict[str, Any]] = [
    {"cores": 10**9},
    {"cores": True},
    {"script": "0" * 63},
    {"accelerators": {"nvidia": 10**9}},
    {"accelerators": {"other": 1}},
    {"gpu_targets": {"torch": ["sm_90; rm"], "gpus": []}},
    {"gpu_targets": {"torch": [], "gpus": ["gfx942"] * 257}},
    {"gpu_targets": ["sm_90"]},
    {"port": 0},
    {"port": "22"},
    {"hostname": "n[1-9];id"},
    {"machine": "x86_64; id"},
    {"nics": ["eth0\nHost *"]},
    {"nics": "eth0"},
    {"home": "relative"},
    {"home": "/a\nb"},
    {"home": "/" + LONG},
    {"jobs": ["../x"]},
    {"launcher": []},
    {"program": {"path": "/h", "content": "x; rm", "kind": "a"}},
    {"program": {"path": "/h", "content": ""}},
    {"activation": {"kind": "sh", "prefix": "/h", "failed": 0, "variables": {}}},
    {"activation": {"kind": "venv", "prefix": "/h\n", "failed": 0, "variables": {}}},
    {"activation": {"kind": "conda", "prefix": "/h", "failed": 0, "variables": {"A=B": "x"}}},
    {"activation": {"kind": "conda", "prefix": "/h", "failed": 0, "variables": {"A": "x\x1b[2J"}}},
    {"launcher": {"path": "mpirun", "version": "", "wanted": "", "said": ""}},
    {"fabric": {"nic": "eth0", "address": "*", "network": "10.0.0.0/24"}},
    {"fabric": {"nic": "eth0", "address": "10.0.0.2\nn3", "network": "10.0.0.0/24"}},
    {"fabric": {"nic": "eth0", "address": "0.0.0.0", "network": "10.0.0.0/24"}},
    {"fabric": {"nic": "eth0", "address": "10.0.0.2", "network": "everywhere"}},
    {"fabric": [1]},
    {"running": [{"job_id": "a; rm -r /", "owner": "alice", "own_home": True}]},
    {"running": [{"job_id": "a", "owner": "alice", "own_home": "yes"}]},
    {"running": [{"job_id": "a"}]},
    {"running": [{"job_id": "a", "owner": "b", "own_home": True}] * 1001},
    {"leftovers": [{"pid": "1", "job_id": "a", "command": "b"}]},
]


def wire(accepted: Any) -> tuple[Channel, int]:
    """Return a channel and the descriptor at its other end, where anything may be written."""
    (here_in, there_out), (_there_in, here_out) = os.pipe(), os.pipe()
    return Channel(here_in, here_out, accepted=accepted), there_out


def sent(raw: bytes, accepted: Any = FROM_HEAD) -> Channel:
    channel, there = wire(accepted)
    threading.Thread(target=lambda: (os.write(there, raw), os.close(there)), daemon=True).start()
    return channel


def frame(kind: str, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def test_an_honest_survey_passes() -> None:
    found = frames_module.checked(
        {"kind": "survey", "facts": SURVEY, "nodes": {"n3": {"unreachable": "no"}}}, FROM_HEAD
    )
    unsaid = {"gpu_targets": {"torch": [], "gpus": []}, "clock_offset": 0.0, "lost_address": "", "slurm": None}
    late = {"data": None, "program": None, "activation": None, "script": "", "container": None, "glibc": True}
    assert found["facts"] == {**SURVEY, **unsaid, **late}
    assert found["nodes"] == {"n3": {"unreachable": "no"}}


@pytest.mark.parametrize("lie", HOSTILE_FACTS, ids=lambda lie: str(lie)[:40])
def test_a_survey_that_lies_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(BadFrame, match="survey"):
        frames_module.checked({"kind": "survey", "facts": {**SURVEY, **lie}}, FROM_NODE)


@pytest.mark.parametrize(
    "raw",
    [
        b"no json\n",
        b"[1]\n",
        b'"text"\n',
        b"{}\n",
        b'{"kind": 1}\n',
        b'{"kind": "beat", "size": -1}\n',
        b'{"kind": "file", "name": "a", "first": true, "size": 1000000000000}\n',
        b'{"kind": "clock", "time": NaN}\n',
        b'{"kind": "clock", "time": 1e999}\n',
        b'{"kind": "clock", "time": "now"}\n',
        b'{"kind": "clock", "time": true}\n',
        b"[" * 100_000 + b"\n",
        b'{"kind": "__init__"}\n',
        b'{"kind": "serve"}\n',
        b'{"kind": "over", "report": []}\n',
        b'{"kind": "over", "report": {"records": {"../1": {}}, "lines": {}, "leftovers": [], "launcher": {}}}\n',
        b'{"kind": "line", "rank": -1, "stream": "stdout", "text": "", "skipped": 0}\n',
        b'{"kind": "launcher_exited", "rc": 1e3, "text": ""}\n',
        b'{"kind": "ending", "reason": "lost\\nx", "detail": ""}\n',
        b'{"kind": "ending", "reason": "because", "detail": ""}\n',
    ],
)
def test_what_is_no_frame_ends_the_conversation(raw: bytes) -> None:
    channel = sent(raw, FROM_NODE)
    with pytest.raises(EOFError):
        channel.receive(5)
    assert channel.lost and channel.protocol_error and "\n" not in channel.protocol_error


def test_a_line_without_end_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "LINE_BYTES", 1 << 16)
    channel, there = wire(FROM_NODE)

    def flood() -> None:
        try:
            while True:
                os.write(there, b"x" * 65536)
        except BrokenPipeError:
            pass

    threading.Thread(target=flood, daemon=True).start()
    with pytest.raises(EOFError, match="without an end"):
        channel.receive(20)
    assert len(channel.buffer) < (4 << 20)
    channel.close()


def test_random_json_never_gets_past_the_border_unchecked() -> None:
    """Whatever values the fields have, a frame is refused or has the fields it must have, each printable."""
    chance = random.Random(7)
    values: list[Any] = [None, True, -1, 0, 1, 2.5, "", "a", "\x1b[2J", "a\nb", [], [1], {}, {"a": 1}, LONG, [[[]]]]

    def texts(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        return [text for item in items for text in texts(item)]

    for accepted in (FROM_HEAD, FROM_NODE):
        for kind, reader in accepted.items():
            fields = get_type_hints(reader)["return"].__annotations__.keys() - {"kind", "data"}
            for _try in range(200):
                given = {"kind": kind, **{name: chance.choice(values) for name in fields}}
                try:
                    found = frames_module.checked(given, accepted)
                except BadFrame:
                    continue
                assert found.keys() - {"data"} == {"kind", *fields}
                assert all(frames_module.printable(text) == text for text in texts(found))


class Head:
    """A session with a head that answers what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *frames: tuple[str, bytes, dict[str, Any]]) -> None:
        self.sent: list[str] = []
        raw = b"".join(
            frame(kind, **{**fields, **({"size": len(data)} if data else {})}) + data for kind, data, fields in frames
        )
        session = object.__new__(Session)
        session.head, session.home = Node("n1", "n1"), "/home"
        session.remote = object.__new__(RemoteProcess)
        session.remote.channel = sent(raw)
        session.remote.stderr_tail, session.remote.stderr_reader = b"", threading.Thread(target=int)
        session.remote.stderr_reader.start()
        monkeypatch.setattr(session.remote.channel, "send_bytes", lambda data: self.sent.append(str(data[:200])))
        self.session = session


def brings(name: str, data: bytes = b"data") -> tuple[str, bytes, dict[str, Any]]:
    return "file", data, {"name": name, "first": True}


@pytest.mark.parametrize(
    "name",
    [
        "../escaped",
        "/tmp/torchfleet-absolute",
        "ranks/0/../../../escaped",
        "ranks/7/stdout",
        "ranks/00/stdout",
        "plan.json",
        "launcher.n9.out",
        "ranks/0/stdout/x",
        "",
    ],
)
def test_only_files_of_the_job_come_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    run_dir = tmp_path / "runs" / "one"
    run_dir.mkdir(parents=True)
    head = Head(monkeypatch, brings(name), ("fetched", b"", {"missing": []}))
    with pytest.raises(HeadLost, match="invalid answer from head n1"):
        head.session.fetch("one", run_dir, [(0, "n1")], 1 << 30)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one", "runs"]
    assert not any('"kind": "received"' in text for text in head.sent)


@pytest.mark.parametrize("name", ["artifacts/../../escaped", "artifacts/n9/a", "artifacts/n1/./a"])
def test_only_what_ranks_wrote_comes_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    run_dir = tmp_path / "runs" / "one"
    run_dir.mkdir(parents=True)
    head = Head(monkeypatch, brings(name), ("fetched", b"", {"missing": []}))
    with pytest.raises(HeadLost, match="invalid answer from head n1: it sent no artifact"):
        head.session.fetch("one", run_dir, [(0, "n1")], 1 << 30, artifacts=BroughtHome({"n1"}, Limits(9, 99)))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one", "runs"]


def test_what_ranks_wrote_comes_home_and_is_no_part_of_fetch_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"path": "a", "bytes": 5, "sha256": hashlib.sha256(b"12345").hexdigest()}
    told = {"host": "n1", "files": [row], "left_out": {}, "unmatched": [], "refused": ""}
    files = [brings("artifacts/n1/a", b"12345"), ("artifacts", b"", told), ("fetched", b"", {"missing": []})]
    head = Head(monkeypatch, *files)
    home = BroughtHome({"n1"}, Limits(9, 99))
    assert head.session.fetch("one", tmp_path, [(0, "n1")], 1, artifacts=home) == []
    assert (tmp_path / "artifacts" / "n1" / "a").read_text() == "12345"
    assert json.loads((tmp_path / "artifacts.json").read_text())["files"] == [{"host": "n1", **row}]
    assert any('"received"}' in text for text in head.sent)
    told["files"] = [{**row, "path": "a/b"}]  # where there was a file is a directory now, and the other way round
    head = Head(monkeypatch, brings("artifacts/n1/a/b", b"12345"), *files[1:])
    assert head.session.fetch("one", tmp_path, [(0, "n1")], 1, artifacts=BroughtHome({"n1"}, Limits(9, 99))) == []
    assert (tmp_path / "artifacts" / "n1" / "a" / "b").read_text() == "12345"
    told["files"] = [row]
    head = Head(monkeypatch, *files)
    assert head.session.fetch("one", tmp_path, [(0, "n1")], 1, artifacts=BroughtHome({"n1"}, Limits(9, 99))) == []
    told["files"] = [{**row, "sha256": "f" * 64}]
    head = Head(monkeypatch, *files)
    home = BroughtHome({"n1"}, Limits(9, 99))
    assert head.session.fetch("one", tmp_path, [(0, "n1")], 1, artifacts=home) == ["n1: a has another checksum"]
    assert not any('"received"}' in text for text in head.sent)  # it stays on the nodes
    assert json.loads((tmp_path / "artifacts.json").read_text())["files"] == [{"host": "n1", **row}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifacts", "artifacts.json", "fetched.json"]


def test_no_link_is_followed_and_the_limit_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(secret)
    head = Head(monkeypatch, brings("metrics.jsonl"), ("fetched", b"", {"missing": []}))
    with pytest.raises(OSError, match="symbolic"):
        head.session.fetch("one", tmp_path, [(0, "n1")], 1 << 30)
    assert secret.read_text() == "mine"
    files = [brings("ranks/0/stdout", b"12345"), brings("result.json", b"{}"), ("fetched", b"", {"missing": []})]
    head = Head(monkeypatch, *files)
    assert head.session.fetch("one", tmp_path, [(0, "n1")], 4) == ["all nodes: 3 bytes more than fetch_limit"]
    assert (tmp_path / "result.json").exists() and not (tmp_path / "ranks/0/stdout").exists()
    assert not any('"received"}' in text for text in head.sent)  # the files stay on the nodes


@pytest.mark.parametrize("placement", [None, [(rank, "n1") for rank in range(4)]])
def test_a_run_has_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: Any) -> None:
    """Reproduced before: a head could fill the controller's disk with ten million empty files."""
    monkeypatch.setattr(session_module, "FILES_MOST", 3)
    monkeypatch.setattr(session_module, "ATTEMPTS_MOST", 0)
    files = [brings(f"ranks/{rank}/stdout", b"x") for rank in range(3)] * 2
    head = Head(monkeypatch, *files, ("fetched", b"", {"missing": []}))
    assert head.session.fetch("one", tmp_path, placement, 1 << 30) == []
    (tmp_path / "fetched.json").unlink()
    head = Head(monkeypatch, *files, brings("attempts/0/ranks/3/stdout"), ("fetched", b"", {"missing": []}))
    (told,) = head.session.fetch("one", tmp_path, placement, 1 << 30)
    assert told == "n1: it sends more than 3 files"
    assert not (tmp_path / "attempts").exists() and not (tmp_path / "fetched.json").exists()
    assert not any('"received"}' in text for text in head.sent)  # the files stay on the nodes


def test_only_what_the_folder_has_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("")
    folder = Folder(str(tmp_path), {"a.py": ("0", False)})
    head = Head(monkeypatch, ("wanted", b"", {"wanted": ["0", "../../../etc/passwd"]}))
    with pytest.raises(HeadLost, match=r"asks for '../../../etc/passwd'"):
        head.session.ship(folder, ["n1"])
    assert len(head.sent) == 1  # the question; no file


def test_a_linked_file_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: it was announced, and then not sent."""
    (tmp_path / "real.txt").write_text("content")
    (tmp_path / "link.txt").symlink_to("real.txt")
    head = Head(monkeypatch, ("wanted", b"", {"wanted": ["0"]}), ("files_checked", b"", {"reason": ""}))
    head.session.ship(Folder(str(tmp_path), {"link.txt": ("0", False)}), ["n1"])
    assert "content" in head.sent[1]


def test_a_result_of_another_job_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    planned = [(0, "n1"), (1, "n2")]
    rows = [{"rank": 0, "host": "n1"}, {"rank": 1, "host": "n2"}]
    result = {"job_id": "one", "ranks": rows, "placement": rows}
    assert head.session.believed(result, "one", planned) == result
    for lie in ({"job_id": "two"}, {"ranks": rows[:1]}, {"ranks": rows[::-1]}, {"placement": []}):
        with pytest.raises(HeadLost, match="another job"):
            head.session.believed({**result, **lie}, "one", planned)


def test_a_node_sends_files_and_records_of_its_own_ranks_only() -> None:
    assert may_be_fetched("ranks/3/stdout", {3}) and may_be_fetched("launcher.out", ())
    for name in ("ranks/4/stdout", "ranks/3/../4/stdout", "result.json", "launcher.n1.out", "/ranks/3/stdout"):
        assert not may_be_fetched(name, {3})
    report = {"records": {"0": {"host": "n1"}, "1": {"host": "n2"}}, "lines": {}}
    assert own_ranks_report("n2", report)["records"] == {"1": {"host": "n2"}}


def test_what_lies_in_a_ranks_place_is_not_followed_nor_waited_for(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0, 1])
    os.mkdir(job.at("ranks", "evil"))
    os.mkfifo(job.rank(0, "stdout"))
    os.symlink("/etc/passwd", job.rank(0, "stderr"))
    Path(job.rank(1, "stdout")).write_text("fine")
    channel, there = wire(None)
    (got, out) = os.pipe()
    sender = Channel(there, out)
    for name in files_of(job):
        sender.send_file(name, job.at(name))
    os.close(out)
    receiver, names = Channel(got, channel.outgoing), []
    while True:
        try:
            found = receiver.receive(5)
        except EOFError:
            break
        assert found is not None
        names.append(found["name"])
    assert names == ["ranks/1/stdout"]


def test_a_run_directory_is_one_that_this_controller_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "elsewhere" / "one"
    run_dir.mkdir(parents=True)
    with pytest.raises(InputError, match="no plan"):
        run_directory.noted_run("one", str(run_dir))
    (run_dir / "plan.json").write_text(json.dumps({"job_id": "one", "placement": [{"rank": 0, "host": "n1"}]}))
    assert run_directory.noted_run("one", str(run_dir)) == (run_dir, [(0, "n1")])
    with pytest.raises(InputError):
        run_directory.noted_run("two", str(run_dir))
    with monkeypatch.context() as another, pytest.raises(InputError, match="no plan"):
        another.setattr(os, "getuid", lambda: 12345)  # another user of the controller laid it there, for the head
        run_directory.noted_run("one", str(run_dir))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "one").symlink_to(run_dir)
    with pytest.raises(InputError, match="no plan"):  # who made the link may lead it elsewhere
        run_directory.noted_run("one", str(tmp_path / "linked" / "one"))
    (run_dir / "plan.json").unlink()
    os.mkfifo(run_dir / "plan.json")
    with pytest.raises(InputError, match="no plan"):  # without waiting for a writer
        run_directory.noted_run("one", str(run_dir))
    noted = tmp_path / "runs" / "two"
    noted.mkdir(parents=True)
    (noted / "plan.json").write_text(json.dumps({"job_id": "two", "placement": []}))
    assert run_directory.noted_run("two", "/home/me/.ssh")[0] == noted


def test_a_runtime_that_was_changed_is_laid_anew(tmp_path: Path) -> None:
    def start() -> bytes:
        command = bootstrap.bootstrap(sys.executable, str(tmp_path / "home"), runtime_archive.digest())
        parcel = bootstrap.parcel(runtime_archive.archive())
        done = subprocess.run(command, input=parcel, capture_output=True, timeout=30, check=False)
        return done.stdout + done.stderr

    assert b"wanted" in start() and b"here" in start()
    library = tmp_path / "home" / "lib"
    entry = library / runtime_archive.digest() / "torchfleet.py"
    honest = entry.read_text()
    entry.write_text("print('PWNED')")
    assert b"wanted" in start() and entry.read_text() == honest
    assert [path.name for path in library.iterdir()] == [runtime_archive.digest()]
    (tmp_path / "home").rename(tmp_path / "disk")
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    assert b"here" in start()  # a home may be a link to another disk
    (tmp_path / "disk").chmod(0o777)
    assert b"is not yours alone" in start()


def test_a_link_says_why_it_ended_and_is_not_held_up_by_errors() -> None:
    remote = RemoteProcess(["sh", "-c", "echo 'This account is not available'"])
    with pytest.raises(ConnectionLost, match="This account is not available"):
        remote.greet(bytes)
    remote.close()
    flood = "import sys; sys.stderr.write('e' * 300000 + '\\n\\x1b[2Jlast'); sys.stderr.flush(); sys.stdin.read()"
    remote = RemoteProcess([sys.executable, "-c", flood])
    remote.channel.close()
    assert remote.process.wait(20) == 0
    assert remote.failure_text() == "[2Jlast"


def test_an_offer_that_does_not_fit_is_dropped() -> None:
    channel, _there = wire(None)
    channel.offer({"kind": "line", "text": "x" * PIPE_BUF})  # would wait for a reader
    assert channel.receive(0) is None


@pytest.mark.parametrize("error", [OSError(38, "ENOSYS"), PermissionError(1, "EPERM"), OSError(24, "EMFILE")])
def test_a_process_is_ended_where_pidfd_open_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    process = processes.read(child.pid)
    assert process is not None

    def refused(_pid: int) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert not processes.send(process._replace(started=process.started - 1), signal.SIGKILL)  # a later one of that pid
    assert processes.send(process._replace(state="?"), signal.SIGKILL)
    assert child.wait(20) == -signal.SIGKILL


def test_which_signals_a_process_catches() -> None:
    script = "import signal, sys; signal.signal(signal.SIGUSR2, print); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert processes.catches(child.pid, signal.SIGUSR2) and not processes.catches(child.pid, signal.SIGUSR1)
        child.kill()


def test_a_command_line_is_one_printable_line() -> None:
    words = [sys.executable, "-c", "print(flush=True); input()", "\x1b]0;T\a\nrun: /etc"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        shown = processes.command_of(child.pid)
        child.kill()
    assert shown.isprintable() and "run: /etc" in shown


@pytest.mark.parametrize(("given", "size"), [("500M", 500 << 20), ("2g", 2 << 30), (1000, 1000)])
def test_sizes(given: Any, size: int) -> None:
    assert parse_request({"fetch_limit": given}).fetch_limit == size


@pytest.mark.parametrize("given", ["0", "-1", "much", True, "1.5G"])
def test_sizes_that_are_none(given: Any) -> None:
    with pytest.raises(InputError, match="fetch_limit"):
        parse_request({"fetch_limit": given})


@pytest.mark.parametrize(
    "lie",
    [
        {"refused": 7},
        {"version": ["5"]},
    ],
)
def test_a_launcher_is_told_in_texts(lie: dict[str, Any]) -> None:
    with pytest.raises(BadFrame, match="a text was expected"):
        node_form.facts({**SURVEY, "launcher": {**SURVEY["launcher"], **lie}})


def test_what_a_plan_reads_of_a_node_is_there_whatever_the_node_leaves_out() -> None:
    facts = node_form.facts({**SURVEY, "launcher": {"path": ""}, "torch": {"version": "2"}})
    assert facts["launcher"] == {"path": "", "version": "", "wanted": "", "said": "", "refused": ""}
    assert facts["torch"] == {"version": "2", "cuda": "", "hip": "", "xpu": ""}
    for lie in ({"rdma": [{"device": "a b"}]}, {"rdma": 7}, {"rejected": [7]}):
        with pytest.raises(BadFrame):
            node_form.facts({**SURVEY, "fabric": {**SURVEY["fabric"], **lie}})


RECORD: dict[str, Any] = {
    **{"rank": 2, "local_rank": 0, "host": "n2", "wrapper_pid": 1, "cpus": [0], "started": 1.0},
    **{"pid": 2, "ended": 2.0, "rc": 0, "signal": None, "finished": False, "error": "", "ended_by_us": False},
    "error_code": "",
}


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        ("clock", {"time": -1e12}),
        ("clock", {"time": 1e12}),
        ("over", {"rc": -1}),
        ("over", {"started": -1e12}),
        ("over", {"ended": 1e12}),
        ("over", {"started_tick": -1e12}),
        ("over", {"ended_tick": 1e12}),
        ("over", {"cpus": [0] * 65536}),
        ("over", {"error_code": "because"}),
    ],
)
def test_what_a_node_says_fits_what_the_head_makes_of_it(kind: str, lie: dict[str, Any]) -> None:
    """Reproduced before: the controller refused the result, or the survey of all nodes, and blamed the head."""
    report = {"records": {"2": {**RECORD, **lie}}, "lines": {}, "leftovers": [], "launcher": {}, "metrics": []}
    sender = sent(frame(kind, **(lie if kind == "clock" else {"report": report})), FROM_NODE)
    with pytest.raises(EOFError, match="was expected"):
        sender.receive(1)


def test_an_end_has_a_time() -> None:
    """Reproduced before: the head's supervisor died of a KeyError, and the head was blamed."""
    assert record_forms.record(RECORD) == {**RECORD, "leftovers": []}
    for lie in ({"rc": 0}, {"error": "its wrapper died"}, {"error_code": "wrapper_died"}):
        with pytest.raises(BadFrame, match="to have a time"):
            record_forms.record(
                {**{name: RECORD[name] for name in RECORD if name not in ("rc", "ended", "error")}, **lie}
            )
    with pytest.raises(BadFrame, match="to have a time"):
        record_forms.launcher({"pid": 1, "rc": 137, "unasked": True})


@pytest.mark.parametrize(
    ("value", "passed"), [(3.2e15, 3.2e15), (1 << 80, str(1 << 80)), (-7, -7), ("a\x1b[2J", "a[2J"), (1e-300, 1e-300)]
)
def test_a_metric_of_any_size_passes(value: Any, passed: Any) -> None:
    """Reproduced before: a program that reported 3e15 FLOP/s had its node taken for hostile."""
    assert frames_module.metric(value) == passed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, []])
def test_what_is_no_metric(value: Any) -> None:
    with pytest.raises(BadFrame):
        frames_module.metric(value)


def test_many_small_values_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "VALUES_MOST", 1000)
    for raw in (
        b'{"kind": "beat", "x": [' + b"[]," * 999 + b"[]]}",
        b'{"kind": "beat", "x": [' + b"{}," * 999 + b"1]}",
    ):
        with pytest.raises(BadFrame, match="more than 1,000 values"):
            frames_module.parse(raw)


def test_a_number_of_too_many_digits_is_none_on_any_python() -> None:
    with pytest.raises(ValueError, match="digits"):
        frames_module.short_whole("9" * 5000)
    assert frames_module.short_whole("-12") == -12


def test_a_long_line_is_read_once_however_slowly_its_data_come(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    parse = frames_module.parse
    monkeypatch.setattr(frames_module, "parse", lambda line: read.append(len(line)) or parse(line))
    channel, there = wire(None)
    os.write(there, b'{"kind": "file", "size": 3}\n')
    for _byte in range(2):
        os.write(there, b"x")
        assert channel.receive(0.05) is None
    os.write(there, b"x" + frame("beat"))
    assert channel.receive(5) == {"kind": "file", "data": b"xxx"}
    assert channel.receive(5) == {"kind": "beat"} and len(read) == 2


def test_blank_lines_without_end_are_no_greeting() -> None:
    """Reproduced before: they were read for ever."""
    remote = RemoteProcess(["sh", "-c", "yes ''"])
    with pytest.raises(ConnectionLost, match="prints too much"):
        remote.greet(bytes)
    remote.close()


def test_a_node_that_talks_without_end_has_its_turn_and_no_more() -> None:
    """Reproduced before: the head read it for ever, and let the leases of the other nodes end."""
    peer = object.__new__(RemoteNode)
    peer.channel, there = wire(FROM_NODE)
    peer.report, peer.lost, peer.last_received = None, "", 0.0
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            try:
                os.write(there, frame("placed") * 1000)
            except OSError:
                return

    os.write(there, frame("placed") * 100)  # some is there before the first look
    threading.Thread(target=flood, daemon=True).start()
    started = time.monotonic()
    assert len(peer.messages()) > 1
    assert time.monotonic() - started < 10
    stop.set()
    peer.channel.close()


def test_a_node_that_beats_on_and_never_ends_is_lost() -> None:
    peer = object.__new__(RemoteNode)
    peer.channel, _there = wire(FROM_NODE)
    peer.report, peer.lost, peer.lease, peer.grace, peer.end_by = None, "", 10.0, 0.5, math.inf
    peer.last_received = time.monotonic() + 3600
    peer.send({"kind": "all_placed"})
    assert peer.end_by == math.inf
    peer.send({"kind": "all_done"})
    assert 35 < peer.end_by - time.monotonic() <= 41
    peer.end_by = 0.0
    peer.beat()
    assert peer.lost == "it did not end its part within 41 s"


def test_bytecode_is_no_part_of_the_runtime(tmp_path: Path) -> None:
    """Reproduced before: of two that started at once, one saw the other's half-written bytecode, and failed."""
    for _time in range(2):
        command = bootstrap.bootstrap(sys.executable, str(tmp_path / "home"), runtime_archive.digest())
        parcel = bootstrap.parcel(runtime_archive.archive())
        done = subprocess.run(command, input=parcel, capture_output=True, timeout=30, check=False)
        (modules,) = (tmp_path / "home" / "lib").glob("*/_runtime")
        (modules / "__pycache__").mkdir(exist_ok=True)
        (modules / "__pycache__" / "main.cpython-311.pyc.140000000").touch()
    assert b"here" in done.stdout
    (modules / "__init__.pyc").touch()  # which would be run in place of what is ours
    done = subprocess.run(command, input=parcel, capture_output=True, timeout=30, check=False)
    assert b"wanted" in done.stdout and not (modules / "__init__.pyc").exists()


class Sends:
    """A node that is asked for its files, and sends what a test says. What is passed on is kept."""

    def __init__(self, *frames: tuple[str, bytes, dict[str, Any]]) -> None:
        self.desk, self.passed = object.__new__(FileDesk), list[tuple[str, int]]()
        self.lost = self.gone = False
        self.desk.channel = self  # type: ignore[assignment]
        self.peer = object.__new__(RemoteNode)
        self.peer.name, self.peer.remote, self.peer.answer_seconds = "n2", object.__new__(RemoteProcess), 60.0
        whole = ((kind, data, {**fields, **({"size": len(data)} if data else {})}) for kind, data, fields in frames)
        self.peer.remote.channel = sent(
            b"".join(frame(kind, **fields) + data for kind, data, fields in whole), FROM_NODE
        )

    def send(self, frame: dict[str, Any]) -> None:
        self.passed.append((frame["name"], len(frame["data"])))
        self.lost = self.gone

    def fetched(self, limit: int, restarts: int = 0) -> str:
        """Return what is said against the node, or nothing."""
        try:
            self.desk.forward_files(self.peer, [1], limit, restarts=restarts)
        except ConnectionLost as lost:
            return str(lost)
        return ""


def test_a_node_sends_what_its_own_ranks_wrote_only() -> None:
    told = {"host": "n2", "files": [], "left_out": {}, "unmatched": [], "refused": ""}
    honest = Sends(("file", b"x", {"name": "artifacts/n2/a", "first": True}), FETCHED)
    honest.desk.forward_files(honest.peer, [1], 10, Limits(1, 1))
    assert honest.passed == [("artifacts/n2/a", 1)]
    for name, limits in (("artifacts/n1/a", Limits(1, 1)), ("artifacts/n2/a", Limits(1, 0)), ("artifacts/n2/a", None)):
        lying = Sends(("file", b"x", {"name": name, "first": True}), FETCHED)
        with pytest.raises(ConnectionLost, match="it sent no artifact of the job"):
            lying.desk.forward_files(lying.peer, [1], 10, limits)
        assert lying.passed == []
    lying = Sends(("artifacts", b"", {**told, "host": "n1"}), FETCHED)
    with pytest.raises(ConnectionLost, match="it sent no artifact of the job"):
        lying.desk.forward_files(lying.peer, [1], 10, Limits(1, 1))


FETCHED: tuple[str, bytes, dict[str, Any]] = ("fetched", b"", {"missing": []})
MORE: tuple[str, bytes, dict[str, Any]] = ("file", b"12345", {"name": "ranks/1/stdout", "first": False})


def test_a_node_that_sends_on_and_on_is_cut_off() -> None:
    honest = Sends(brings("ranks/1/stdout"), MORE, brings("metrics.jsonl", b""), FETCHED)
    assert honest.fetched(9) == "" and honest.passed == [
        ("ranks/1/stdout", 4),
        ("ranks/1/stdout", 5),
        ("metrics.jsonl", 0),
    ]
    endless = Sends(brings("ranks/1/stdout"), MORE, MORE, MORE, MORE, FETCHED)
    assert endless.fetched(10) == "it sent more than 10 bytes (fetch_limit), and did not end"
    assert [size for _name, size in endless.passed] == [4, 5]
    for idle in (brings("ranks/1/stdout"), ("file", b"", {"name": "ranks/1/stdout", "first": False})):
        assert "'ranks/1/stdout' more than once" in Sends(brings("ranks/1/stdout"), idle, FETCHED).fetched(10)
    assert Sends(("placed", b"", {}), FETCHED).fetched(10) == "it answered fetch with placed"
    nobody_hears = Sends(brings("ranks/1/stdout"), MORE, FETCHED)
    nobody_hears.gone = True
    assert nobody_hears.fetched(100) == "the controller is gone" and len(nobody_hears.passed) == 1


def test_a_head_that_sends_on_and_on_is_not_heard_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RESULT_BYTES", 1000)
    endless = ("file", b"x" * 100, {"name": "result.json", "first": False})
    head = Head(monkeypatch, *[endless] * 50)
    (missing,) = head.session.fetch("one", tmp_path, [(0, "n1"), (1, "n2")], 10)
    assert missing == "n1: it sends more than 10 bytes (fetch_limit), and does not end"
    assert (tmp_path / "result.json").stat().st_size < 1000


def test_an_address_of_a_node_is_in_its_network() -> None:
    for address in ("127.0.0.1", "10.0.1.2", "2001:db8::1"):
        with pytest.raises(BadFrame, match="an address in its network"):
            node_form.fabric({"nic": "eth0", "address": address, "network": "10.0.0.0/24"})


def test_a_node_that_tells_too_much_of_itself_does_not_silence_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers are one frame of the head's: with this one it would be too long, and the head would be blamed."""
    supervisor, peer = object.__new__(Supervisor), object.__new__(RemoteNode)
    peer.clock, peer.remote = Clock(0.0, 0.0, 0.0), object.__new__(RemoteProcess)
    monkeypatch.setattr(supervisor, "reach", lambda _other, _home: peer, raising=False)
    for facts, told in ((SURVEY, SURVEY), ({**SURVEY, "more": ["x" * 10_000] * 200}, None)):
        raw = frame("survey", facts=facts)
        peer.remote.channel = sent(raw, FROM_NODE)
        monkeypatch.setattr(peer.remote.channel, "send_bytes", lambda _data: None)
        found = supervisor.survey_node({"host": "n2", "request": {}}, "/home")
        if told:
            assert found["cores"] == told["cores"]
        else:
            assert found == {"unreachable": "its facts are larger than 1 MiB"}


def test_a_node_reports_for_its_own_ranks_only() -> None:
    rows = [
        b'{"loss": 1, "rank": 1}',
        b'{"loss": 0, "rank": 0}',
        b'{"rank": 1, "rank": 0}',
        b"EVIL",
        b"[1]",
        b'{"rank": true}',
    ]
    rows += [b'{"loss": NaN, "rank": 1}', b"[" * 100_000, b'{"loss": 2, "rank": 1}']
    own = OwnRows({1})
    text = b"\n".join(rows) + b"\n"
    got = b"".join(own.take(text[begin : begin + 7]) for begin in range(0, len(text), 7))
    assert got == b'{"loss": 1, "rank": 1}\n{"loss": 2, "rank": 1}\n'
    with pytest.raises(ValueError, match="without an end"):
        own.take(b"x" * (1 << 20))
    sends = Sends(brings("metrics.jsonl", b"\n".join(rows[:2]) + b"\n"), FETCHED)
    assert sends.fetched(1000) == "" and sends.passed == [("metrics.jsonl", len(rows[0]) + 1)]
    earlier = "attempts/0/metrics.jsonl"  # each file has its own rows that are not whole yet
    sends = Sends(brings("metrics.jsonl", rows[0][:9]), brings(earlier, b"\n".join(rows[:2]) + b"\n"), FETCHED)
    assert sends.fetched(1000, 1) == "" and sends.passed == [("metrics.jsonl", 0), (earlier, len(rows[0]) + 1)]


def test_a_leftover_of_another_node_is_as_the_result_has_it() -> None:
    assert record_forms.LEFTOVER({"pid": 1, "command": "a"}) == {"pid": 1, "command": "a", "ended": None}
    with pytest.raises(BadFrame, match="SIGTERM, SIGKILL"):
        record_forms.LEFTOVER({"pid": 1, "command": "a", "ended": "by n3"})


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["lists", "objects"])
def test_what_is_kept_as_it_came_is_bounded_in_depth(make: Any) -> None:
    """It goes on to the controller and into result.json, which programs with less patience read."""
    value: Any = "text"
    for _level in range(forms.DEPTH - 1):
        value = make(value)
    assert forms.plain(value) == value
    with pytest.raises(BadFrame, match="nested too deep"):
        forms.plain(make(value))
