"""The main job, for real: every workload under every launcher, scripts as people have them, and what a run leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.driver import REPO, SCRIPTS
from tests.integration.fleet import Fleet, Played

LAUNCHERS = ("openmpi", "torchrun")


def succeeded(played: Played) -> dict:
    """Return the result of a run that must have gone well, and hold it to the schema."""
    assert played.rc == 0, played.stdout
    result = played.result
    assert result["state"] == "succeeded"
    assert result["first_failure"] is None
    assert result["silent_ranks"] == []
    assert result["leftovers"] == {"localhost": []}
    return result


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_message_passing(fleet: Fleet, launcher: str) -> None:
    played = fleet.play(workload="message_passing", launcher=launcher, show_ranks="all")
    result = succeeded(played)
    assert result["launcher"]["name"] == launcher
    assert [row["state"] for row in result["ranks"]] == ["succeeded", "succeeded"]
    assert "rank 0 sent to rank 1" in played.output(0)
    assert "rank 1 received from rank 0" in played.output(1)
    assert "[1@localhost] rank 1 received from rank 0" in played.stdout


def test_pi(fleet: Fleet) -> None:
    result = succeeded(fleet.play(workload="pi", workload_args="--intervals 1000000"))
    assert abs(result["metrics"]["pi"] - 3.141592653589793) < 1e-10


def test_mnist_trains_the_digits(fleet: Fleet) -> None:
    """The main job, to the promised accuracy; and from a checkpoint to the very place where it was after that epoch."""
    checkpoint = fleet.root / "digits.pt"
    whole = fleet.play(workload="mnist")
    result = succeeded(whole)
    assert result["metrics"]["accuracy"] >= 0.97
    assert result["metrics"]["epoch"] <= 20
    rows = [json.loads(line) for line in (whole.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert {"time", "rank", "epoch", "epochs", "loss"} <= set(rows[0])
    epochs = {row["epoch"]: row for row in rows if {"epoch", "accuracy"} <= set(row)}
    for words in (["--epochs", "2"], ["--epochs", "3", "--resume"]):
        words += ["--checkpoint", str(checkpoint), "--target-accuracy", "0"]
        reached = succeeded(fleet.play(workload="mnist", workload_args=words))["metrics"]
    assert (reached["accuracy"], reached["loss"]) == (epochs[3]["accuracy"], epochs[3]["loss"])


def test_all_reduce_bench(fleet: Fleet) -> None:
    table = fleet.root / "bench.json"
    arguments = ["--max-bytes", "64K", "--iterations", "3", "--json", str(table)]
    assert succeeded(fleet.play(workload="all_reduce_bench", workload_args=arguments))["metrics"]["busbw_gbps"] > 0
    rows = json.loads(table.read_text())["rows"]
    assert rows[0]["busbw_gbps"] == pytest.approx(rows[0]["algbw_gbps"])  # 2(n-1)/n is 1 for two ranks


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("script", ["seed_mpirun.py", "seed_torchrun.py"])
def test_scripts_of_the_seeds_run_unchanged(fleet: Fleet, script: str, launcher: str) -> None:
    played = fleet.play(workload=str(SCRIPTS / script), launcher=launcher, workload_args="--backend=gloo")
    succeeded(played)
    assert "Rank 0 sent data to Rank 1" in played.output(0)
    assert "Rank 1 has received data from rank 0" in played.output(1)


NASTY = {
    "SPACES": "a  b ",
    "QUOTES": 'it\'s "quoted"',
    "NEWLINE": "one\ntwo",
    "SEMICOLON": "a;touch /tmp/injected",
    "DOLLAR": "$(touch /tmp/injected) `id` ${HOME}",
    "EQUALS": "a=b=c",
    "EMPTY": "",
    "UMLAUT": "ä☃",
    "LONG": "x" * 100_000,
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_arguments_and_environment_arrive_unharmed(fleet: Fleet, launcher: str) -> None:
    words = [value for value in NASTY.values() if len(value) < 100]
    played = fleet.play(workload=str(SCRIPTS / "tell.py"), workload_args=words, job_env=NASTY, launcher=launcher)
    succeeded(played)
    for rank in (0, 1):
        told = json.loads(played.output(rank))
        assert told["argv"] == words
        assert {name: told["env"].get(name) for name in NASTY} == NASTY
        assert told["env"]["RANK"] == told["env"]["OMPI_COMM_WORLD_RANK"] == str(rank)
        assert told["env"]["LOCAL_RANK"] == told["env"]["OMPI_COMM_WORLD_LOCAL_RANK"] == str(rank)
        assert told["env"]["WORLD_SIZE"] == told["env"]["LOCAL_WORLD_SIZE"] == "2"
        assert told["env"]["MASTER_ADDR"] == "127.0.0.1"
        assert told["env"]["TMPDIR" if "TMPDIR" in os.environ else "HOME"] == os.environ.get(
            "TMPDIR", os.environ["HOME"]
        )
        assert told["cwd"] == str(REPO)
    assert not Path("/tmp/injected").exists()
    command = (played.run_dir / "command.txt").read_text()
    assert "touch" not in command


def test_the_users_pythonpath_stays(fleet: Fleet) -> None:
    """The exit hook in front of PYTHONPATH is gone before the program's first line."""
    script = fleet.root / "own.py"
    (fleet.root / "lib").mkdir()
    (fleet.root / "lib" / "sitecustomize.py").write_text("import os\nos.environ['OWN_HOOK'] = 'ran'\n")
    script.write_text("import os\nprint(os.environ['PYTHONPATH'], os.environ['OWN_HOOK'])\n")
    played = fleet.play(workload=str(script), job_env={"PYTHONPATH": str(fleet.root / "lib")})
    succeeded(played)
    assert played.output(0).split() == [str(fleet.root / "lib"), "ran"]


def test_a_program_that_is_no_python(fleet: Fleet) -> None:
    played = fleet.play(workload="/bin/echo", workload_args="hello  world")
    succeeded(played)
    assert played.output(1) == "hello world\n"


def test_death_in_teardown_is_no_failure(fleet: Fleet) -> None:
    played = fleet.play(workload=str(SCRIPTS / "teardown.py"))
    result = succeeded(played)
    assert [row["signal"] for row in result["ranks"]] == [6, 6]
    assert "finished, then died of signal 6 at exit; it counts as succeeded" in played.stdout


ABORTS = "import os\nclass Abort:\n  def __del__(self): os.abort()\nkeep = Abort()\n"
TRAPS = {
    "a fork that leaves with 0": "import os, sys\nif os.fork() == 0: sys.exit(0)\nos.wait()\nos.abort()\n",
    "a status without sys.exit": ABORTS + "raise SystemExit(3)\n",
    "a status by exit": ABORTS + "exit(3)\n",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_death_that_only_looks_like_teardown_is_a_failure(fleet: Fleet, trap: str) -> None:
    script = fleet.root / "trap.py"
    script.write_text(TRAPS[trap])
    played = fleet.play(workload=str(script), np=1)
    assert played.rc != 0
    assert played.result["state"] == "failed"


def test_names_left_in_the_shell_do_no_harm(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    succeeded(fleet.play(workload="message_passing"))


def test_the_ranks_have_their_own_python_first(fleet: Fleet) -> None:
    script = fleet.root / "shell.sh"
    script.write_text("#!/bin/sh\npython -c 'import torch; print(torch.__version__)'; echo $TMPDIR\n")
    script.chmod(0o755)
    played = fleet.play(workload=str(script), job_env={"TMPDIR": str(fleet.root)})
    succeeded(played)
    assert played.output(0).split()[1] == str(fleet.root)


def test_the_log_that_is_named_has_the_words(fleet: Fleet) -> None:
    script = fleet.root / "quiet.py"
    script.write_text("import os\nprint('out of luck', flush=True)\nos._exit(5)\n")
    played = fleet.play(workload=str(script), np=1)
    failure = played.result["first_failure"]
    assert failure["message"] == "out of luck"
    assert Path(failure["log"]).read_text() == "out of luck\n"
    page = (played.run_dir / "report.html").read_text()
    assert "Rank 0 on localhost failed first" in page and "out of luck" in page


def test_check_mode_tells_and_starts_nothing(fleet: Fleet) -> None:
    played = fleet.play(workload="pi", np=2, job_env={"MY_TOKEN": "hush", "PLAIN": "seen"}, check=True)
    assert played.rc == 0, played.stdout
    for text in ("rank 1  localhost  local rank 1", "localhost slots=2", "GLOO_SOCKET_IFNAME=lo", "--bind-to none",
                 "a rank bound to one core trains many times slower", "PLAIN=seen"):  # fmt: skip
        assert text in played.stdout
    assert "hush" not in played.stdout
    assert not fleet.runs.exists()
    assert not (fleet.home / "jobs").exists()


def test_result_query_prints_that_part(fleet: Fleet) -> None:
    query = "ranks[?rc!=`0`].[rank,host,last_line]"
    played = fleet.play(workload=str(SCRIPTS / "fail.py"), workload_args="1 raise", result_query=query)
    assert played.rc != 0
    assert '[[0, "localhost", "up"], [1, "localhost", "ValueError: the loss is not a number"]]' in played.stdout


def test_ranks_that_are_not_where_they_should_be_run_nothing(fleet: Fleet) -> None:
    """What Open MPI 5 did with Kubeflow's ORTE names: each process a world of its own, and exit status 0."""
    launcher = fleet.root / "mpirun"
    alone = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"
    launcher.write_text(
        "#!/bin/bash\nif [ $1 = --version ]; then echo 'mpirun (Open MPI) 5.0.11'; exit; fi\n"
        f'while [ "$1" != -I ]; do last=$1; shift; done\nexport {alone}\n"$last" "$@" & "$last" "$@" & wait\n'
    )
    launcher.chmod(0o755)
    played = fleet.play(workload=str(SCRIPTS / "tell.py"), torchfleet_mpirun=str(launcher))
    assert played.rc != 0
    failure = played.result["first_failure"]
    assert failure["cause"] == "placement: world size is 1, planned 2"
    assert not (played.run_dir / "ranks" / "0" / "stdout").exists()


def test_what_a_run_leaves(fleet: Fleet) -> None:
    played = fleet.play(workload=str(SCRIPTS / "tell.py"), job_id="kept", job_env={"API_TOKEN": "hush"}, np="1")
    result = succeeded(played)
    run_dir = fleet.runs / "kept"
    assert (fleet.runs / "latest").resolve() == run_dir
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    expected = {
        "plan.json",
        "command.txt",
        "metrics.jsonl",
        "result.json",
        "fetched.json",
        "launcher.out",
        "report.html",
    }
    assert names - {"usage.json"} == expected | {f"ranks/0/{name}" for name in ("stdout", "stderr", "record.json")}
    assert result["world_size"] == 1
    assert result["placement"][0]["cpus"] == sorted(os.sched_getaffinity(0))
    reports = [path for path in run_dir.rglob("*") if path.is_file() and path.name != "stdout"]
    assert not [path for path in reports if "hush" in path.read_text()]
    assert {path.stat().st_mode & 0o077 for path in reports} == {0}
    assert not list((fleet.home / "jobs" / "kept").glob("ranks/*"))


def test_what_a_rank_took_of_its_node_is_in_the_result(fleet: Fleet) -> None:
    """One that keeps a core busy, partly in a child, shows what it says itself; the sampler is no leftover."""
    played = fleet.play(workload=str(SCRIPTS / "burn.py"), np="1")
    result = succeeded(played)
    own = json.loads(played.output(0))
    (row,) = result["ranks"]
    assert own["cpu"] <= row["cpu_seconds"] < own["cpu"] + 1.0 and row["peak_bytes"] >= own["peak"]
    node = result["usage"]["nodes"]["localhost"]
    assert node["cpu_seconds"] == row["cpu_seconds"] and node["samples"] > 1
    assert node["cpu_efficiency"] == pytest.approx(row["cpu_seconds"] / result["seconds"] / node["cores"], rel=1e-2)
    assert played.run_dir is not None
    usage = json.loads((played.run_dir / "usage.json").read_text())["nodes"]["localhost"]
    cpu = [cores for cores in usage["series"]["cpu"]["mean"] if cores is not None]
    assert 0.2 < sum(cpu) * usage["bucket"] < own["cpu"] + 2.0
    assert max(filter(None, usage["series"]["memory"]["most"])) >= own["peak"] * 0.9
    assert re.search(r"^used on localhost: CPU \d+% of \d+ cores?, memory ", played.stdout, re.MULTILINE)
    assert "What the ranks took" in (played.run_dir / "report.html").read_text()


def test_command_txt_can_be_pasted(fleet: Fleet) -> None:
    played = fleet.play(workload="pi")
    succeeded(played)
    text = (played.run_dir / "command.txt").read_text()
    pasted = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert pasted.returncode == 0, pasted.stderr
    assert "torchfleet: " in pasted.stdout and "pi=3.14159" in pasted.stdout


def test_a_pasted_command_is_no_job_of_ours(fleet: Fleet) -> None:
    """clean.yml must not take what a person runs by hand for a leftover."""
    played = fleet.play(workload=str(SCRIPTS / "tell.py"), np=1)
    text = (played.run_dir / "command.txt").read_text()
    pasted = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert not [name for name in json.loads(pasted.stdout)["env"] if name.startswith("TORCHFLEET_JOB_")]


def test_a_taken_port_is_not_used(fleet: Fleet) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        played = fleet.play(workload="message_passing", master_port=port)
        succeeded(played)
        assert f"master_port {port} is taken" in " ".join(played.stdout.split())


CONNECTED = """
import json, os, sys, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
def port(address):
    return int(address.rpartition(":")[2], 16)
def ports(pid):
    owned = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            owned.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass
    rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/{pid}/net/{name}").readlines()[1:]]
    own = [(port(row[1]), port(row[2]), row[3]) for row in rows if f"socket:[{row[9]}]" in owned]
    here = {local for local, _remote, _state in own}
    return [local for local, remote, state in own if state == "01" and remote not in here and (local, 0, "0A") in own]
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
found, pid = [int(os.environ["MASTER_PORT"])], parent(os.getpid())
while "torch.distributed.run" in open(f"/proc/{pid}/cmdline").read() or pid == os.getppid():
    found += ports(pid)
    pid = parent(pid)
print(json.dumps(found))
dist.barrier()
"""


@pytest.mark.parametrize(("launcher", "rendezvous"), [("openmpi", None), ("torchrun", "static"), ("torchrun", "c10d")])
def test_the_rendezvous_is_within_the_ports(fleet: Fleet, launcher: str, rendezvous: str | None) -> None:
    """That of the ranks, and that of torchrun's agent: where others are connected to it.

    With c10d it listens at a random port too, which only itself is connected to.
    """
    script = fleet.root / "connected.py"
    script.write_text(CONNECTED)
    options = {"launcher": launcher, "rendezvous": rendezvous, "ports": "24000-24099"}
    played = fleet.play(workload=str(script), **{name: value for name, value in options.items() if value})
    succeeded(played)
    found = json.loads(played.output(0))
    assert len(found) >= (2 if launcher == "torchrun" else 1)
    assert all(24000 <= port <= 24099 for port in found), found


def test_a_second_inventory_host_is_the_head(fleet: Fleet, tmp_path: Path) -> None:
    inventory = tmp_path / "named.yml"
    inventory.write_text(
        "all:\n  children:\n    head: {hosts: {node1: }}\n    workers: {hosts: {node1: {slots: 3}}}\n"
        "  vars: {ansible_connection: local, ansible_python_interpreter: '{{ ansible_playbook_python }}'}\n"
    )
    played = fleet.play(workload="/bin/true", inventory=inventory)
    assert played.rc == 0, played.stdout
    assert [row["host"] for row in played.result["ranks"]] == ["node1"] * 3


def test_a_run_is_silent_where_the_program_is(fleet: Fleet) -> None:
    played = fleet.play(workload=str(SCRIPTS / "tell.py"))
    succeeded(played)
    assert played.output(0, "stderr") == ""
    assert (played.run_dir / "launcher.out").read_text() == ""
