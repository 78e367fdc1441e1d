"""The small parts: wire, rank wrapper, job directory, survey, runtime, inventory, run directory, view."""

from __future__ import annotations

import io
import itertools
import math
import os
import re
import subprocess
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import (
    gpu_vendors,
    launcher_programs,
    processes,
    survey,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.channel import BLOCK, Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.guard import Guard
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.job_directory import (
    BALLAST_BYTES,
    JOB_ID,
    JobDir,
    jobs,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.rank import (
    identify,
    misplaced,
    rank_environment,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    to_plain,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import run_directory, runtime_archive
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import (
    View,
    answer,
    describe,
    fraction,
    rank_table,
)


def wire() -> tuple[Channel, Channel]:
    """Return both ends of a wire."""
    (here_in, there_out), (there_in, here_out) = os.pipe(), os.pipe()
    return Channel(here_in, here_out), Channel(there_in, there_out)


def test_frames_and_bytes_arrive_in_order() -> None:
    here, there = wire()
    here.send("one", text="ä\n☃")
    here.send("two", b"raw\n{}\0", name="x")
    first, second = there.receive(1), there.receive(1)
    assert first is not None and (first["kind"], first["text"], first["data"]) == ("one", "ä\n☃", b"")
    assert second is not None and (second["kind"], second["data"]) == ("two", b"raw\n{}\0")
    assert there.receive(0) is None


def test_a_dead_peer_ends_receiving_and_is_noted_when_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = wire()
    os.close(there.incoming)
    os.close(there.outgoing)
    with pytest.raises(EOFError):
        here.receive(1)
    here.send("nobody listens")
    assert here.lost


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1])
def test_files_cross_the_wire(tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    here, there = wire()
    child = os.fork()
    if child == 0:
        here.send_file("name", str(source))
        os._exit(0)
    os.close(here.outgoing)
    received, firsts = b"", []
    while True:
        try:
            frame = there.receive(5)
        except EOFError:
            break
        assert frame is not None
        received += frame["data"]
        firsts.append(frame["first"])
    os.waitpid(child, 0)
    assert received == source.read_bytes()
    assert firsts == [True] + [False] * (len(firsts) - 1) and firsts


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPENMPI = {
    f"OMPI_COMM_WORLD_{name}": value
    for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "1210", strict=True)
}


def test_identity_of_a_rank() -> None:
    both = {**TORCHRUN, **OPENMPI}  # one launcher under another, or a shell with leftovers: the outer names are stale
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    assert identify(started_by("torchrun"), both) == (3, 4, 1, 2)
    assert identify(started_by("openmpi"), both) == (1, 2, 1, 0)
    assert identify(started_by("srun"), {**both, **slurm}) == (1, 2, 0, 1)
    with pytest.raises(LookupError, match="OMPI_COMM_WORLD_RANK"):
        identify(started_by("openmpi"), TORCHRUN)


def started_by(launcher: str) -> dict[str, Any]:
    placement = [{"rank": rank, "local_rank": 0, "host": host} for rank, host in enumerate("ab")]
    return {"launcher": {"name": launcher}, "host": "b", "placement": placement}


def test_a_misplaced_rank_is_noticed() -> None:
    order = {
        "world_size": 2,
        "host": "a",
        "placement": [{"rank": rank, "local_rank": rank, "host": "a"} for rank in (0, 1)],
    }
    assert misplaced(order, (1, 2, 1, 2)) == ""
    assert "world size is 1, planned 2" in misplaced(order, (0, 1, 0, 1))  # Open MPI 5 and ORTE names
    assert "planned" in misplaced(order, (1, 2, 0, 1))
    assert "planned" in misplaced({**order, "host": "b"}, (1, 2, 1, 2))


def test_rank_environment_serves_both_kinds_of_script() -> None:
    order = {
        **started_by("openmpi"),
        "job_id": "one",
        "environment": {"A": "b"},
        "master_addr": "10.0.0.1",
        "master_port": 1234,
        "tmpdir": "",
        "path_first": "/v/bin",
    }
    told = rank_environment(order, (3, 4, 1, 2), {"TMPDIR": "/launcher's", "PATH": "/bin", "RANK": "9"})
    assert {name: told[name] for name in TORCHRUN} == TORCHRUN
    assert told["OMPI_COMM_WORLD_RANK"] == "3" and told["OMPI_COMM_WORLD_LOCAL_SIZE"] == "2"
    assert (told["MASTER_ADDR"], told["MASTER_PORT"], told["A"]) == ("10.0.0.1", "1234", "b")
    assert told["PATH"] == "/v/bin:/bin" and "TMPDIR" not in told
    assert (told["GROUP_RANK"], told["NODE_RANK"], told["GROUP_WORLD_SIZE"], told["ROLE_RANK"]) == ("1", "1", "2", "3")
    assert told["TORCHELASTIC_RUN_ID"] == "one" and "TORCHELASTIC_USE_AGENT_STORE" not in told  # there is no agent
    assert rank_environment({**order, "path_first": ""}, (3, 4, 1, 2), {"PATH": "/bin"})["PATH"] == "/bin"
    own = {**order, "tmpdir": "/node's", "environment": {"TMPDIR": "/mine", "PATH": "/only"}}
    told = rank_environment(own, (0, 1, 0, 1), {})
    assert (told["TMPDIR"], told["PATH"]) == ("/mine", "/only")


def test_job_directory(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0, 1])
    assert (tmp_path / "jobs" / "one" / "ballast").stat().st_size == BALLAST_BYTES
    with pytest.raises(FileExistsError):
        JobDir(job.path).create([0])
    job.claim_end("rank_failed", "first")
    job.claim_end("cancelled", "second")
    assert job.read("end.json")["detail"] == "first"
    assert not job.running()
    lock = job.lock()
    assert job.running()
    os.close(lock)
    assert [found.job_id for found in jobs(str(tmp_path))] == ["one"]
    assert jobs(str(tmp_path / "none")) == []


def test_two_threads_may_both_end_a_job(tmp_path: Path) -> None:
    """The supervisor does while it buries a dead guard beside: neither may trip over the other's note."""
    for number in range(50):
        job = JobDir(str(tmp_path / str(number)))
        job.create([])
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda reason, job=job: job.claim_end(reason), "abcd"))
        assert job.read("end.json")["reason"] in "abcd"


def test_survey_reads_and_changes_nothing(tmp_path: Path) -> None:
    request = {
        "home": str(tmp_path / "home"),
        "python": "",
        "launcher": "openmpi",
        "launcher_path": "/none",
        "launcher_args": [],
        "backend": "",
        "port": None,
        "ports": None,
    }
    facts = survey.survey(request)
    assert (facts["python"], facts["torch"], facts["launcher"]["version"]) == ("", None, "")
    assert facts["cores"] >= 1 and facts["free_bytes"] > 0 and facts["port"] in survey.PORTS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--mca coll_ucc_enable 1", "--mca coll_ucc_enable 1 (there is no coll ucc: it has basic, tuned)"),
        ("-mca pml ucx -mca coll tuned,ucc", "-mca coll tuned,ucc (there is no coll ucc: it has basic, tuned)"),
        ("--mca coll ^ucc --mca coll_tuned_priority 9", ""),
        ("--mca plm_ssh_agent false --mca plm isolated --map-by ppr:1:node", ""),  # of PRRTE, which is not asked
        ("--mca coll", ""),
    ],
)
def test_a_component_that_open_mpi_lacks(tmp_path: Path, words: str, told: str) -> None:
    info = tmp_path / "ompi_info"
    parts = ("coll:basic", "coll:tuned", "pml:ob1", "pml:ucx")
    info.write_text("#!/bin/sh\n" + "".join(f"echo mca:{part}:version:mca:2.1.0\n" for part in parts))
    info.chmod(0o755)
    assert launcher_programs.lacking_component(str(tmp_path / "mpirun"), words.split()) == told
    assert launcher_programs.lacking_component("/nowhere/mpirun", words.split()) == ""


def test_our_own_backends_are_known_without_importing_torch(tmp_path: Path) -> None:
    packages = tmp_path / "backends/lib/python3.11/site-packages"
    for name in ("torchfleet_backends-0.1.0.dist-info", "torchfleet_backends/oneccl"):
        (packages / name).mkdir(parents=True)
    python = str(tmp_path / "pytorch/bin/python")  # there is none: it cannot be asked
    assert survey.backends(python, "ccl") == ["ccl"] == survey.backends(python, "")
    assert survey.backends(python, "mpi") == ["ccl"]


def test_torch_is_read_without_importing_it(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "torch"
    package.mkdir(parents=True)
    text = "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.13.0+cu130'\n"
    (package / "version.py").write_text(text + "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    found = survey.torch_build(str(tmp_path / "bin" / "python"))
    assert found == {"version": "2.13.0+cu130", "cuda": "13.0", "hip": ""}


def test_accelerators_by_their_device_files(tmp_path: Path) -> None:
    for name in ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for node, gpu in (("0", "0"), ("1", "48221")):
        path = tmp_path / "sys/class/kfd/kfd/topology/nodes" / node
        path.mkdir(parents=True)
        (path / "gpu_id").write_text(gpu + "\n")
    assert gpu_vendors.accelerators(str(tmp_path)) == {"nvidia": 2, "amd": 1}


def test_the_runtime_is_whole_and_repeatable() -> None:
    digest, data = runtime_archive.digest(), runtime_archive.archive()
    runtime_archive.digest.cache_clear()
    runtime_archive.sources.cache_clear()
    assert (runtime_archive.digest(), runtime_archive.archive()) == (digest, data)
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {"torchfleet.py", "hook/sitecustomize.py", f"{runtime_archive.PACKAGE}/rank.py"} <= set(names)
    assert not [name for name in names if "lab" in name]


def test_inventory_to_cluster() -> None:
    hostvars: dict[str, Any] = {
        "h": {"ansible_connection": "local", "ansible_python_interpreter": "auto_silent"},
        "w": {
            "ansible_host": "10.0.0.2",
            "slots": "8",
            "torchfleet_home": "/data/tf",
            "torchfleet_python": "/c/python",
        },
    }
    cluster = cluster_from_hostvars({"head": ["h"], "workers": ["h", "w"]}, hostvars)
    assert (cluster.head.local, cluster.head.interpreter, cluster.head.slots) == (True, "python3", None)
    assert (cluster.workers[1].address, cluster.workers[1].slots) == ("10.0.0.2", 8)
    assert (cluster.workers[1].home, cluster.workers[1].python) == ("/data/tf", "/c/python")


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ({}, "group head needs one host"),
        ({"head": [], "workers": ["h"]}, "group head needs one host"),
        ({"head": ["h", "w"], "workers": ["h"]}, "group head needs one host"),
        ({"head": ["h"]}, "group workers needs hosts"),
    ],
)
def test_groups_that_are_missing(groups: dict[str, list[str]], text: str) -> None:
    with pytest.raises(InputError, match=text):
        cluster_from_hostvars(groups, {"h": {}, "w": {}})


def test_to_plain_leaves_no_foreign_types() -> None:
    class Tagged(str):
        pass

    plain = to_plain({Tagged("a"): [Tagged("b"), 1, 1.5, True, None, (2,)]})
    assert plain == {"a": ["b", 1, 1.5, True, None, [2]]}
    assert type(next(iter(plain))) is str and type(plain["a"][0]) is str and plain["a"][3] is True


def test_workloads_are_found_by_name_or_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "_helper.py").touch()
    assert run_directory.find_workload("train", tmp_path) == str(tmp_path / "train.py")
    assert run_directory.find_workload(str(tmp_path / "train.py"), tmp_path / "none") == str(tmp_path / "train.py")
    for name, text in (("_helper", "give one of train, or"), ("none.py", "no such"), (str(tmp_path), "not a file")):
        with pytest.raises(InputError, match=text):
            run_directory.find_workload(name, tmp_path)


def test_a_workload_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)  # root, as in CI, may read everything
    with pytest.raises(InputError, match=r"cannot be read: chmod \+r"):
        run_directory.find_workload(str(tmp_path / "mine.py"), tmp_path / "none")


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-this-name/x.py", "/dev/null/x.py"])
def test_paths_that_cannot_be_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="workload"):
        run_directory.find_workload(name, tmp_path)
    if name != "/dev/null/x.py":
        with pytest.raises(InputError, match="runs_dir"):
            run_directory.check_run_dir(name, "job")


def test_run_directory(tmp_path: Path) -> None:
    run_dir = run_directory.check_run_dir(str(tmp_path / "runs"), "one")
    run_directory.make_run_dir(run_dir, {"plan.json": "{}"})
    assert (tmp_path / "runs" / "latest" / "plan.json").read_text() == "{}"
    assert run_dir.stat().st_mode & 0o777 == 0o700
    with pytest.raises(InputError, match="is there already"):
        run_directory.check_run_dir(str(tmp_path / "runs"), "one")
    second = run_directory.check_run_dir(str(tmp_path / "runs"), "two")
    run_directory.make_run_dir(second, {})
    assert (tmp_path / "runs" / "latest").resolve() == second
    run_directory.remove_run_dir(second)
    assert not second.exists() and not (tmp_path / "runs" / "latest").is_symlink()


def test_nobody_can_be_in_the_way_of_the_link_to_the_latest_run(tmp_path: Path) -> None:
    """Reproduced before: in a directory for all, somebody who had taken `.latest.<pid>` had the job refused."""
    taken = tmp_path / f".latest.{os.getpid()}"
    taken.mkdir()
    run_directory.make_run_dir(tmp_path / "one", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [taken.name, "latest", "one"]
    assert os.readlink(tmp_path / "latest") == "one"


@pytest.mark.parametrize(
    ("text", "home"),
    [
        ('{"missing": []}', True),
        ('{"missing": ["n2: gone"]}', False),
        ("", False),
        ("[]", False),
        ('{"missing": 0}', False),
    ],
)
def test_a_run_is_home_when_nothing_is_missing(tmp_path: Path, text: str, home: bool) -> None:
    assert not run_directory.is_fetched(tmp_path)
    (tmp_path / "fetched.json").write_text(text)
    assert run_directory.is_fetched(tmp_path) is home


def test_job_ids_are_new_and_valid() -> None:
    ids = {run_directory.new_job_id("/x/my naïve train$(script).py") for _ in range(50)}
    assert len(ids) == 50
    assert all(JOB_ID.match(name) for name in ids)


class Screen:
    def __init__(self, terminal: bool) -> None:
        self.text = ""
        self.view = View(self.write, ["n1", "n2"], terminal, 100)

    def write(self, text: str, newline: bool, _keep: bool) -> None:
        self.text += text + ("\n" if newline else "")

    def report(self, **values: Any) -> None:
        self.view.show({"kind": "report", "rank": 0, "values": values})


def test_plain_view_has_lines_only() -> None:
    screen = Screen(terminal=False)
    screen.view.show({"kind": "line", "rank": 1, "text": "hello", "skipped": 3})
    screen.report(epoch=1, epochs=2, step=1, steps=4, loss=0.5)
    screen.report(epoch=1, epochs=2, step=2, steps=4, loss=0.4)  # too soon after the first
    screen.report(epoch=2, epochs=2, step=4, steps=4, loss=0.1, samples_per_s=5123.4)
    screen.report(accuracy=0.98)
    assert screen.text.splitlines() == [
        "[1@n2] ... 3 lines are only in the file",
        "[1@n2] hello",
        "[0@n1] epoch 1/2  step 1/4  loss 0.5",
        "[0@n1] epoch 2/2  step 4/4  loss 0.1  5,123 samples/s",
        "[0@n1] accuracy 0.98",
    ]


def test_terminal_view_keeps_a_bar_below_the_lines() -> None:
    screen = Screen(terminal=True)
    screen.report(epoch=1, epochs=2, step=1, steps=4, loss=0.5)
    screen.view.last_drawn = 0.0  # as if some time had passed
    screen.report(epoch=1, epochs=2, step=2, steps=4, loss=0.5)
    drawn = screen.text
    screen.view.last_drawn = time.monotonic() + 60.0  # as if no time had passed
    screen.report(epoch=1, epochs=2, step=3, steps=4, loss=0.5)  # at once: not drawn
    assert screen.text == drawn
    assert "25%" in screen.text and "epoch 1/2" in screen.text and re.search(r"ETA \d+ s", screen.text)
    assert "\n" not in screen.text
    screen.view.show({"kind": "line", "rank": 0, "text": "hello", "skipped": 0})
    assert "\r\x1b[K[0@n1] hello\n" in screen.text
    screen.view.close()
    assert screen.text.endswith("\r\x1b[K")


def test_fraction_of_the_work() -> None:
    assert fraction({"epoch": 2, "epochs": 4, "step": 1, "steps": 2}) == 0.375
    assert fraction({"epoch": 4, "epochs": 4}) == 1.0
    assert fraction({"step": 1, "steps": 4}) == 0.25
    assert fraction({"loss": 1}) is None
    assert fraction({"step": "x", "steps": 4}) is None


ODD = [0, 1, -1, 1e-300, 1e308, -1e308, 1e16, math.inf, -math.inf, math.nan, 10**4000, True, "nan", "5/nan"]


@pytest.mark.parametrize("terminal", [True, False])
def test_odd_progress_is_shown_in_a_line(terminal: bool) -> None:
    """Reproduced before: step=1/1e-300 filled 300 columns with a percentage, and 1e308 with digits."""
    for values in itertools.product(ODD, repeat=4):
        for names in (("step", "steps"), ("epoch", "epochs"), ("epoch", "epochs", "step", "steps")):
            done = fraction(dict(zip(names, values, strict=False)))
            assert done is None or 0.0 <= done <= 1.0
    for step, steps in itertools.product(ODD, repeat=2):
        screen = Screen(terminal)
        for first in (0, step):
            screen.view.last_drawn = screen.view.last_shown = 0.0
            screen.report(step=first, steps=steps, loss=step, samples_per_s=steps)
        shown = screen.text.replace("\r\x1b[K", "\n").splitlines()
        assert all(len(line) < 100 for line in shown), shown
        assert not any(re.search(r"\d{4,}%|-\d+%|nan%|ETA (inf|nan|-)|\d{17}", line) for line in shown), shown
    assert (
        describe({"loss": 1e308, "seen": 10**4000, "samples_per_s": 1e15})
        == "loss 1e+308  seen 1.000e+4000  1e+15 samples/s"
    )


def test_describe() -> None:
    assert describe({"loss": 0.123456, "accuracy": 0.9722, "samples_per_s": 12345.6, "device": "cpu"}) == (
        "loss 0.1235  accuracy 0.9722  12,346 samples/s  device cpu"
    )


def test_a_query_that_does_not_fit_says_so() -> None:
    assert answer("state", {"state": "failed"}) == '"failed"'
    assert answer("length(rc)", {"rc": 0}).startswith("result_query: ")


def test_table_of_many_ranks_shows_what_went_wrong() -> None:
    rows = [
        {"rank": n, "host": "n", "state": "succeeded", "rc": 0, "seconds": 1.0, "last_line": "x"} for n in range(40)
    ]
    rows[17] = {**rows[17], "state": "failed", "rc": 1, "last_line": "[rank17]: ValueError: " + "long " * 50}
    text = rank_table(rows, 80)
    assert "[rank17]: ValueError" in text and "39 more ranks" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_an_agent_that_dies_after_its_launcher_is_no_leftover(tmp_path: Path) -> None:
    order = {"placement": [], "host": "n1", "job_timeout": None, "private_tmp": str(tmp_path)}
    guard = Guard(
        JobDir(str(tmp_path)), {**order, "launcher": {"name": "openmpi"}}, from_supervisor=-1, to_supervisor=-1
    )
    with subprocess.Popen(["sleep", "60"]) as orphan:
        try:
            assert orphan.pid in [process.pid for process in guard.foreign()]
            started = processes.identity(orphan.pid)["started"]
            (tmp_path / f"shell.{orphan.pid}.{started - 1}").touch()  # of an earlier process with that pid
            guard.launchers = guard.launcher_tree()
            assert orphan.pid in [process.pid for process in guard.foreign()]
            (tmp_path / f"shell.{orphan.pid}.{started}").touch()
            guard.launchers = guard.launcher_tree()
            assert orphan.pid not in [process.pid for process in guard.foreign()]
        finally:
            orphan.kill()


@pytest.mark.parametrize(
    ("launcher", "at_once"), [("openmpi", True), ("torchrun", True), ("srun", False), ("sbatch", False)]
)
def test_job_timeout_begins_when_ranks_are_there(tmp_path: Path, launcher: str, at_once: bool) -> None:
    """Under Slurm a job may wait in the queue for longer than that."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    places = [{"rank": rank, "local_rank": rank, "host": "n1"} for rank in (0, 1)]
    order = {"placement": places, "host": "n1", "launcher": {"name": launcher}, "job_timeout": 5.0}
    guard = Guard(job, order, from_supervisor=-1, to_supervisor=os.open(os.devnull, os.O_WRONLY))
    assert (guard.deadline is not None) == at_once
    assert guard.check_ranks() is None and (guard.deadline is not None) == at_once
    start = {"rank": 1, "local_rank": 1, "host": "n1", "wrapper_pid": os.getpid(), "cpus": [0], "started": time.time()}
    job.write("ranks/1/record.json", start)  # one of them is enough: the other may never come
    assert guard.check_ranks() is None and guard.deadline is not None
    first = guard.deadline
    assert guard.check_ranks() is None and guard.deadline == first
    assert Guard(job, {**order, "job_timeout": None}, from_supervisor=-1, to_supervisor=-1).deadline is None
