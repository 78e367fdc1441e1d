"""A job on nodes that Slurm brings: what was asked for, srun's command line, what Slurm's programs say, who ends it."""

from __future__ import annotations

import getpass
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.bootstrap import HEADER
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import EndReason
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled import slurm_entry, submit
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import FIRST, REFUSED
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import LogReader, lines_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.place import NoPlace
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.slurm_entry import InputLease, nodes_in
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import words_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import program_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import entry
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import folder_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled import slurm
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.slurm import Slurm, SlurmCode, SlurmError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.slurm_job import (
    SUBMIT,
    SlurmJob,
    entry_words,
    jobs_there,
    on_slurm,
    parcel_of,
    python_words,
    take_away,
    too_old,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.targets import parse_target

# What the real programs said, on nodes of the lab.
RECORDED = json.loads((Path(__file__).parent / "recorded" / "slurm" / "22.05.8.json").read_text())
HEAD = Node(name="login", address="login.example.org", launcher_paths={"srun": ""}, interpreter="/usr/bin/python3")


def recorded(*argv: str) -> dict[str, Any]:
    """Return what a command line said that begins or ends with these words."""
    found = [row for row in RECORDED if set(argv) <= set(row["argv"])]
    assert found, argv
    return dict(found[0])


def made(tmp_path: Path, job_id: str = "demo", **given: Any) -> SlurmJob:
    (tmp_path / "train.py").write_text("print('hello')\n")
    script = str(tmp_path / "train.py")
    given = {"target": "slurm", "workload": script, **given}
    request = parse_request(given)
    program = program_of(request, script, shipped=True, local=False)
    job = Job(job_id, "/runs/demo", program, entry(), "0123456789ab", owner="alice@desk")
    return on_slurm(given, request, HEAD, ("ssh", "--", "login.example.org"), "me")(job, folder_of(script))


# --- what was asked for ---


@pytest.mark.parametrize(
    ("given", "nodes", "ranks", "cores"),
    [
        ({}, 1, 1, 1),
        ({"slurm_nodes": 2, "ranks_per_node": 4}, 2, 4, 4),
        ({"slurm_nodes": "2", "slurm_gpus": "8", "slurm_cpus": 64}, 2, 8, 64),
        ({"np": 8, "ranks_per_node": 4}, 2, 4, 4),
    ],
)
def test_how_many(tmp_path: Path, given: dict[str, Any], nodes: int, ranks: int, cores: int) -> None:
    asked = made(tmp_path, **given).asked
    assert (asked.nodes, asked.ranks, asked.cores) == (nodes, ranks, cores)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"slurm_nodes": 0}, "slurm_nodes: got 0"),
        ({"np": 7, "slurm_nodes": 2}, "np: got 7; torchrun needs as many ranks in each of the nodes; .*-e np=6"),
        ({"nodes": "n1"}, "nodes: .*-e slurm_nodes=2"),
        ({"launcher": "srun"}, "launcher: got .srun.; target=slurm starts ranks with torchrun"),
        ({"queue": True}, "queue: .*slurm_start_timeout"),
        ({"detach": True}, "detach: .*tmux"),
        ({"slurm_args": "-N3"}, "slurm_args: got .-N3.; the plan decides that: -e slurm_nodes=2"),
        ({"slurm_args": "--output=x"}, "slurm_args: .*our code on the nodes needs it as it is"),
        ({"slurm_args": "--clusters=b"}, "slurm_args: .*log in to a head of that cluster"),
        ({"slurm_args": "--gres=gpu:a100:4"}, "it asks for 4 GPUs of each node, and slurm_gpus for 0: -e slurm_gpus=4"),
        ({"slurm_args": "--gpus-per-node=a100:2", "slurm_gpus": 4}, "it asks for 2 GPUs .*-e slurm_gpus=2"),
        ({"slurm_args": "-p gpu"}, "slurm_args: got .gpu.; write each option and its value as one word"),
        ({"python": "~/venv/bin/python"}, "python: .*whole path on the nodes"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        made(tmp_path, **given)
    assert "\n" not in str(error.value)


def test_options_of_slurm_and_of_pods_are_refused_elsewhere() -> None:
    for given, why in (
        ({"slurm_nodes": 2}, "add -e target=slurm"),
        ({"target": "kubernetes", "slurm_args": "-x"}, "add -e target=slurm"),
        ({"target": "slurm", "pods": 2}, "add -e target=kubernetes"),
    ):
        with pytest.raises(InputError, match=why):
            parse_target(given)
    assert parse_target({"target": "slurm", "slurm_nodes": 2}) == "slurm"


# --- the command line ---


def test_one_srun_starts_our_entry_once_on_each_node(tmp_path: Path) -> None:
    job = made(tmp_path, slurm_nodes=2, ranks_per_node=2, slurm_gpus=4, slurm_args="--partition=gpu --time=2:00:00")
    words = list(words_of(job.options))
    assert words[0] == "srun" and words[1] == "--job-name=torchfleet-demo-0123456789ab"
    wanted = ["--comment=torchfleet alice@desk", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    wanted += ["--gpus-per-node=4", "--label", "--input=all", "--kill-on-bad-exit=0", "--wait=0", "--chdir=/"]
    assert set(wanted) <= set(words) and {"--partition=gpu", "--time=2:00:00"} <= set(words)
    assert all(option.reason for option in job.options)
    text = "\n".join(job.lines)
    assert "--partition=gpu" in text and "# slurm_args [user]" in text and "command on login, which starts" in text
    assert job.argv[:3] == ["ssh", "--", "login.example.org"] and len(job.argv) == 4  # one word for the shell there
    assert job.plan.master_addr == FIRST and 20_000 <= job.plan.master_port < 30_000


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("--gres=gpu:a100:4", False),
        ("--gres=nvme:1,gres/gpu:2,gpu:2", False),
        ("--gpus-per-node=h100:4", False),
        ("--gres=nvme:2", True),
    ],
)
def test_gpus_of_a_kind_are_asked_for_by_the_option_that_names_it(tmp_path: Path, word: str, ours: bool) -> None:
    """Beside it ours would ask for them once more; a disk of a node is no GPU."""
    words = list(words_of(made(tmp_path, slurm_gpus=4, slurm_args=word).options))
    assert word in words and ("--gpus-per-node=4" in words) == ours


def test_where_our_files_will_lie_stands_on_no_command_line(tmp_path: Path) -> None:
    """Users of a login node see all of these: one of them could make that directory on the nodes before us."""
    job = made(tmp_path)
    assert job.plan.head.home.startswith("/tmp/torchfleet-slurm-")
    assert job.plan.head.home.rpartition("-")[2] not in " ".join(words_of(job.options))
    with zipfile.ZipFile(io.BytesIO(job.parcel[HEADER:])) as packed:
        assert packed.read("home").decode() == job.plan.head.home


def test_secrets_come_by_the_input_and_stand_on_no_command_line(tmp_path: Path) -> None:
    job = made(tmp_path, job_env={"TOKEN": "hush-hush"}, secret_names=["TOKEN"])
    assert "hush-hush" not in " ".join([*job.argv, *job.lines, json.dumps(job.order["nodes"])])
    with zipfile.ZipFile(io.BytesIO(job.parcel[HEADER:])) as packed:
        assert packed.read("files-secret/TOKEN") == b"hush-hush"
        assert {"files/entry.py", "files/order.json", "files/runtime.zip"} <= set(packed.namelist())


def test_a_line_is_one_that_slurm_does_not_tear() -> None:
    """Its daemon sends 1,024 bytes of a line at most, and srun ends each piece as if it were a line."""
    frame = {"kind": "output", "name": "ranks/0/stdout", "first": True, "cut": 0, "content": "A" * 100_000}
    lines = list(lines_of(frame, 999_999_000, slurm_entry.PART_CHARACTERS))
    assert len(lines) > 100 and max(map(len, lines)) < 1000
    reader = LogReader()
    reader.number = 999_998_999
    assert [dict(found) for found in reader.take("".join(f"{line}\n" for line in lines).encode())] == [frame]


# --- on a node ---


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-2]", ["n1", "n2"]),
        ("gpu[001-003,007],login1", ["gpu001", "gpu002", "gpu003", "gpu007", "login1"]),
        ("r[1-2]n[09-10]-x", ["r1n09-x", "r1n10-x", "r2n09-x", "r2n10-x"]),
        ("", []),
    ],
)
def test_a_list_of_nodes_is_read_as_slurm_writes_it(text: str, names: list[str]) -> None:
    assert nodes_in(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a]", "n[1-999999999]", "n[1-400]x[1-400]", "n 1", "n[1-99999],m[1-9]"])
def test_a_list_that_is_none_is_refused_at_once(text: str) -> None:
    with pytest.raises(NoPlace):
        nodes_in(text)


def test_the_first_node_looks_for_its_nic_on_the_way_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own name it may know itself as 127.0.1.1 (Debian), and loopback carries nothing."""
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-3]")
    made = slurm_entry.SlurmEntry("/x/files", "/x")
    assert made.peers(FIRST, 0, 3) == ("n1", "n2")
    assert made.peers(FIRST, 2, 3) == ("n1", "n1")
    with pytest.raises(NoPlace, match="has 3, and the plan 2"):
        made.peers(FIRST, 0, 2)


def test_the_lease_is_the_input() -> None:
    asked: list[str] = []
    out, into = os.pipe()
    lease = InputLease(60.0, lambda: asked.append("end"), out)
    assert not lease.is_over()
    os.write(into, slurm_entry.BEAT)
    assert not lease.is_over() and not asked
    os.write(into, slurm_entry.END)
    assert not lease.is_over() and asked == ["end"]
    lease.seconds = -1.0  # a controller that is silent
    assert lease.is_over()
    lease.seconds = 60.0
    os.close(into)
    assert lease.is_over()
    os.close(out)


@pytest.mark.parametrize("trouble", ["directory", "input"])
def test_an_entry_that_cannot_begin_tells_the_controller(tmp_path: Path, trouble: str) -> None:
    """The other nodes would wait for it, and srun goes on."""
    home = tmp_path / "home"
    if trouble == "directory":
        home.mkdir()
    data = parcel_of({}, {}, str(home)) if trouble == "directory" else b"000000000003abc"
    argv = [*entry_words(sys.executable), "version"]
    done = subprocess.run(argv, input=data, capture_output=True, check=False)
    (frame,) = LogReader().take(done.stdout)
    assert done.returncode == REFUSED and frame["kind"] == "ending" and frame["reason"] == EndReason.NOT_STARTED
    assert f"our files cannot be laid into {home if trouble == 'directory' else '/tmp'}: " in frame["detail"]


def test_what_a_killed_entry_left_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "torchfleet-slurm-own"
    old, new, other = (tmp_path / name for name in ("torchfleet-slurm-old", "torchfleet-slurm-new", "torchfleet-abc"))
    for folder in (home, old, new, other):
        folder.mkdir()
        os.utime(folder, (time.time(), time.time() - (10 if folder == new else 5000)))
    (tmp_path / "torchfleet-slurm-link").symlink_to(other)
    with monkeypatch.context() as patched:
        patched.setattr(slurm_entry.os, "geteuid", lambda: os.getuid() + 1)
        slurm_entry.sweep(str(home))
    assert old.exists(), "it is another user's, also for root"
    slurm_entry.sweep(str(home))
    assert [folder.exists() for folder in (home, old, new, other)] == [True, False, True, True]


# --- what Slurm's programs say ---


class Recorded(Slurm):
    """A head whose programs say what was recorded, and that notes what it is asked."""

    def __init__(self) -> None:
        super().__init__("login")
        self.asked: list[tuple[str, ...]] = []
        self.gone = False

    def run(self, program: str, *words: str) -> str:
        self.asked.append((program, *words))
        if program == "scancel":
            self.gone = True
        text = str(recorded("squeue", "--me")["stdout"])
        named = [word.partition("=")[2] for word in words if word.startswith("--name=")]
        return "" if self.gone else "".join(f"{row}\n" for row in text.splitlines() if not named or named[0] in row)


def test_jobs_of_ours_are_told_by_name_and_comment() -> None:
    rows = {row.number: row for row in Recorded().jobs()}
    assert [(row.state, row.reason) for row in rows.values()][-1] == ("RUNNING", "")
    by_id = {row.job_id: row for row in rows.values() if row.job_id}
    assert set(by_id) == {"demo", "later", "three"}  # without our comment, or our name, a job is of others
    assert by_id["later"].owner == "bob|ops@desk" and by_id["three"].reason == "PartitionNodeLimit"


@pytest.mark.parametrize("line", ["", "x", "1|RUNNING", "1;2|R|r|n|c", "12345678901234567890|R|r|n|c", "-1|R|r|n|c"])
def test_a_line_that_is_no_row_is_none(line: str) -> None:
    assert slurm.row_of(line) is None


def test_a_reason_that_is_a_sentence_is_for_people_only() -> None:
    """Slurm has sentences for the commonest: nodes are down, drained or reserved."""
    row = slurm.row_of("7|PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-2]|n|c")
    assert row and (row.reason, row.told) == ("", "ReqNodeNotAvail, UnavailableNodes:n[1-2]")
    word = slurm.row_of("7|PENDING|Resources|n|c")
    assert word and word.reason == word.told == "Resources"


def test_what_a_row_has_is_bounded() -> None:
    row = slurm.row_of("7|\x1b[2J|a b|" + "n" * 9000 + "|c")
    assert row is None or (row.state, row.reason) == ("", "")


def test_clean_ends_the_named_job_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled import slurm_job

    monkeypatch.setattr(slurm_job, "owner", lambda: "alice@desk")
    head = Recorded()
    assert jobs_there(head, "") == ([], ["three", "demo"])
    taken, going = jobs_there(head, "demo")
    assert [row.job_id for row in taken] == ["demo"] and going == []
    assert [row.job_id for row in jobs_there(head, "later").taken] == ["later"]  # started elsewhere: it was named
    with pytest.raises(InputError, match=r"job_id: got .old.; Slurm has no such job of yours"):
        jobs_there(head, "old")  # of another kind: clean.yml of the nodes ends it
    assert take_away(head, taken[0].name) == []
    numbers = recorded("squeue", "--name=torchfleet-demo-0123456789ab")["stdout"].split("|")[0]
    assert ("scancel", "--quiet", numbers) in head.asked


class Shared(Recorded):
    """A head on which several people are one user, and another one's job has the id of ours."""

    def run(self, program: str, *words: str) -> str:
        theirs = "77|RUNNING|None|torchfleet-demo-777777777777|torchfleet bob@desk\n"
        return super().run(program, *words) + (theirs if program == "squeue" and "--me" in words else "")


def test_clean_spares_the_job_of_another_person_with_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled import slurm_job

    monkeypatch.setattr(slurm_job, "owner", lambda: "alice@desk")
    assert [row.number for row in jobs_there(Shared(), "demo").taken] == ["30"]


def test_a_job_that_stays_is_looked_at_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a login to the head. What is left is told."""
    head, pauses = Recorded(), list[float]()
    monkeypatch.setattr(head, "cancel", lambda numbers: None)
    monkeypatch.setattr(time, "monotonic", lambda: sum(pauses))
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert take_away(head, "torchfleet-demo-0123456789ab")[0].startswith("job 30 is left in Slurm, RUNNING")
    assert pauses[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("state", "over"),
    [("RUNNING", False), ("PENDING", False), ("COMPLETING", False), ("TIMEOUT", True), ("BOOT_FAIL", True)],
)
def test_a_job_whose_nodes_did_not_boot_is_over(state: str, over: bool) -> None:
    row = slurm.row_of(f"17|{state}|None|torchfleet-demo-0123456789ab|torchfleet me@here")
    assert row and row.is_over == over


def test_squeue_is_asked_for_own_jobs_only() -> None:
    """Names are seen by all users of a cluster: a job of theirs with our name would be taken for ours."""
    head = Recorded()
    take_away(head, "torchfleet-demo-0123456789ab")
    assert head.asked and all("--me" in words for words in head.asked if words[0] == "squeue")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--partition=none",), "srun: error: invalid partition specified: none"),
        (("--bogus",), "srun: unrecognized option '--bogus'"),
        (("--mem=900G",), "srun: error: Memory specification can not be satisfied"),
    ],
)
def test_the_first_error_line_of_srun_is_told(words: tuple[str, ...], said: str) -> None:
    assert slurm.error_line(recorded("srun", *words)["stderr"].encode()) == said


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("squeue: not found", "squeue: not found"),
        ("slurm_load_jobs error: Unable to contact slurm controller\n", "slurm_load_jobs error: Unable"),
        ("alice@login: Permission denied (publickey).\r\n", "alice@login: Permission denied (publickey)."),
        ("", "All use is logged."),
    ],
)
def test_the_banner_of_a_login_node_is_not_its_error(said: str, told: str) -> None:
    assert slurm.error_line(f"**** Welcome ****\r\n\r\nAll use is logged.\r\n{said}".encode()).startswith(told)


@pytest.mark.parametrize("program", ["squeue", "scancel"])
def test_variables_of_the_user_hide_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """SQUEUE_STATES=PENDING left out a job that ran, and it was said to be over."""
    stand_in = tmp_path / program
    stand_in.write_text(f"#!/bin/sh\nenv >{tmp_path}/seen\n")
    stand_in.chmod(0o700)
    monkeypatch.setenv("SLURM_CONF", "/etc/x")  # where Slurm is: that stays
    for name in slurm.OF_OTHERS[program]:
        monkeypatch.setenv(name, "x")
    Slurm("here", srun=str(tmp_path / "srun")).run(program)
    seen = (tmp_path / "seen").read_text()
    assert f"{program.upper()}_" not in seen and "SLURM_CONF=/etc/x" in seen


def test_a_head_without_slurm_is_said_to_be_none() -> None:
    with pytest.raises(SlurmError, match=r"target: got .slurm.; no squeue on here .*torchfleet_srun") as error:
        Slurm("here", srun="/opt/none/srun").jobs()
    assert error.value.code == SlurmCode.NO_PROGRAM.value


# --- above srun, on the head ---


class Above:
    """The program that starts srun, with another program in its place."""

    def __init__(self, tmp_path: Path, code: str, lease: float = 60.0, patience: float = 60.0) -> None:
        self.cancelled = tmp_path / "cancelled"
        note = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
        cancel = json.dumps([sys.executable, "-c", note, str(self.cancelled)])
        words = python_words(sys.executable, SUBMIT.read_text())
        argv = [*words, str(lease), str(patience), cancel, sys.executable, "-c", code]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def put(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()


READS = "import sys; print(len(sys.stdin.buffer.read(300_000)), flush=True); sys.exit(3)"
# A job in the queue: srun reads nothing, and ends when the job is cancelled.
WAITS = "import os, sys, time\nwhile not os.path.exists({!r}): time.sleep(0.05)"


def test_what_the_controller_sends_comes_to_srun(tmp_path: Path) -> None:
    above = Above(tmp_path, READS)
    above.put(b"x" * 300_000)
    out = above.process.stdout.read() if above.process.stdout else b""
    above.process.wait()
    assert (out, above.process.returncode, above.cancelled.exists()) == (b"300000\n", 3, False)


@pytest.mark.parametrize("gone", ["closed", "silent"])
def test_a_job_in_the_queue_is_cancelled_when_the_controller_is_gone(tmp_path: Path, gone: str) -> None:
    above = Above(tmp_path, WAITS.format(str(tmp_path / "cancelled")), lease=60.0 if gone == "closed" else 0.5)
    above.put(b"x" * 300_000)
    if gone == "closed" and above.process.stdin:
        above.process.stdin.close()
    assert above.process.wait() == 0
    assert above.cancelled.read_text() == f"--user={getpass.getuser()}"  # root could cancel those of others


def test_a_job_that_srun_asks_for_after_it_was_cancelled_is_cancelled_again(tmp_path: Path) -> None:
    """A controller that goes in the first second, or a slurmctld that is busy: scancel found nothing, and says nothing.

    Without srun such a job would wait, and hold its nodes, with nobody to end it.
    """
    file = str(tmp_path / "cancelled")
    late = f"import os, time\nwhile not os.path.exists({file!r}): time.sleep(0.05)\nos.remove({file!r})\n"
    above = Above(tmp_path, late + WAITS.format(file))
    above.put(b"x" * 300_000)
    if above.process.stdin:
        above.process.stdin.close()
    assert above.process.wait(40) == 0


def test_variables_of_the_user_do_not_narrow_what_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANCEL_STATE", "RUNNING")
    told = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(os.environ.get('SCANCEL_STATE', 'none'))"
    submit.end([sys.executable, "-c", told])
    assert (tmp_path / "seen").read_text() == "none"


@pytest.mark.parametrize(
    ("code", "status"), [("import sys; sys.exit(255)", 254), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_status_of_srun_is_not_taken_for_that_of_ssh(tmp_path: Path, code: str, status: int) -> None:
    assert Above(tmp_path, code).process.wait() == status


def test_a_python_that_is_too_old_on_the_head_says_so() -> None:
    """It could not read the program: so it is asked before."""
    words = python_words(sys.executable, "this is no program", too_old("login"))
    done = subprocess.run(
        [*words[:-1], words[-1].replace("(3,8)", "(9,9)")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, too_old("login") + "\n")
    assert "ansible_python_interpreter" in done.stderr


def test_variables_for_other_jobs_do_not_reach_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those of the user's shell the rest do: partition, account, slurm.conf."""
    for name in ("SLURM_UNBUFFEREDIO", "SLURM_STDOUTMODE", "SLURM_PARTITION"):
        monkeypatch.setenv(name, "x")
    above = Above(tmp_path, "import os; print(*sorted(name for name in os.environ if name.startswith('SLURM_')))")
    assert above.process.communicate()[0] == b"SLURM_PARTITION\n"


def test_in_a_job_of_slurm_no_other_one_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has not the name by which the job is followed, cancelled and cleaned."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    words = python_words(sys.executable, SUBMIT.read_text())
    done = subprocess.run([*words, "1", "1", "[]", "touch", str(tmp_path / "x")], capture_output=True, check=False)
    assert done.returncode == REFUSED and done.stderr.startswith(b"this shell is in job 4711 of Slurm")
    assert not (tmp_path / "x").exists()


def test_a_head_without_srun(tmp_path: Path) -> None:
    words = python_words(sys.executable, SUBMIT.read_text())
    done = subprocess.run([*words, "1", "1", "[]", "/opt/none/srun"], capture_output=True, text=True, check=False)
    assert done.returncode == slurm.NO_PROGRAM
    assert re.fullmatch(r"/opt/none/srun cannot be started: .*\n", done.stderr)


def test_secrets_of_ranks_lie_on_no_node_once_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "files-secret").mkdir()
    (tmp_path / "files-secret/TOKEN").write_text("hush-hush")
    node = object.__new__(slurm_entry.SlurmEntry)
    node.source = str(tmp_path / "files")
    assert node.secrets() == {"TOKEN": "hush-hush"} and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("signalled", "asked", "told"),
    [
        ("", False, (EndReason.RANK_FAILED, "rank 1 failed")),
        ("SIGTERM", False, (EndReason.CANCELLED, "SIGTERM to node n2")),
        (slurm_entry.BY_CONTROLLER, True, (EndReason.RANK_FAILED, "rank 1 failed")),
    ],
)
def test_a_rank_that_dies_of_slurms_signal_did_not_fail(
    signalled: str, asked: bool, told: tuple[EndReason, str]
) -> None:
    """Slurm sends it to all processes of the job; what our controller asks for is no signal."""
    node = object.__new__(slurm_entry.SlurmEntry)
    node.signalled, node.asked = signalled, asked
    job: Any = SimpleNamespace(order={"host": "n2"})
    ending = node.ending(job, {"kind": "ending", "reason": EndReason.RANK_FAILED, "detail": "rank 1 failed"})
    assert (ending["reason"], ending["detail"]) == told
