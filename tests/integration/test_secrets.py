"""A secret is in the environment of the ranks, and nowhere else: searched for in all that a run writes and says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from test_jobs_apart import TwoNodes

from tests.driver import REPO, SCRIPTS
from tests.integration.fleet import Fleet

SCRIPT = str(SCRIPTS / "secrets.py")
VALUES = {"ALPHA": "hush-one-4711", "BETA": "hush two\n4712", "GAMMA": "hush-three-4713", "HF_TOKEN": "hush-four-4714"}
PASSWORD = "open sesame"


def vault(fleet: Fleet, *words: str) -> str:
    """Run ansible-vault with the password of the test."""
    password = fleet.root / "password"
    password.write_text(PASSWORD)
    command = ["ansible-vault", *words, "--vault-password-file", str(password)]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True, timeout=60).stdout


def files_with_secrets(fleet: Fleet) -> tuple[Path, Path]:
    """Return two files for -e @file: values vaulted, named, with a usual name; the second is a vault as a whole."""
    one, other = fleet.root / "one.yml", fleet.root / "other.yml"
    inline = vault(fleet, "encrypt_string", VALUES["ALPHA"], "--name", "ALPHA")
    lines = [f"GAMMA: {VALUES['GAMMA']}", f"HF_TOKEN: {VALUES['HF_TOKEN']}", 'BETA: "{{ beta }}"', "OPEN: seen"]
    lines += inline.splitlines()
    one.write_text("secret_names: [GAMMA]\njob_env:\n" + "".join(f"  {line}\n" for line in lines))
    other.write_text(json.dumps({"beta": VALUES["BETA"]}))
    vault(fleet, "encrypt", str(other))
    return one, other


def play(fleet: Fleet, *words: str, **given: object) -> subprocess.CompletedProcess[str]:
    one, other = files_with_secrets(fleet)
    temporary = fleet.root / "tmp"
    temporary.mkdir(exist_ok=True)
    extra = json.dumps(fleet.variables(workload=SCRIPT, workload_args=list(VALUES), **given))
    command = ["ansible-playbook", "-vvv", "train.yml", "-e", extra, "-e", f"@{one}", "-e", f"@{other}", *words]
    command += ["--vault-password-file", str(fleet.root / "password")]
    environ = {**os.environ, "TMPDIR": str(temporary), "ANSIBLE_LOG_PATH": str(fleet.root / "ansible.log")}
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=120, env=environ)
    one.unlink()
    return done


PIECES = [piece for value in VALUES.values() for piece in value.splitlines()]


def assert_nowhere(fleet: Fleet, text: str, pieces: list[str] = PIECES) -> None:
    """No value is in this text, nor in any file of the nodes' homes, the run, or what is temporary."""
    found = [piece for piece in pieces if piece in text]
    assert not found, text
    for path in fleet.root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name != "password":
            content = path.read_bytes()
            assert not [piece for piece in pieces if piece.encode() in content], path


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun"])
def test_a_secret_is_with_the_ranks_alone(fleet: Fleet, launcher: str) -> None:
    done = play(fleet, launcher=launcher, job_id="one")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nowhere(fleet, done.stdout + done.stderr)
    for rank in (0, 1):
        told = json.loads((fleet.runs / "one" / "ranks" / str(rank) / "stdout").read_text())
        assert told["sha"] == {name: sha(value) for name, value in VALUES.items()}
        assert told["above"] and not any(told["above"])  # wrapper, launcher, guard: none has it in its environment
    command = (fleet.runs / "one" / "command.txt").read_text()
    assert "left out, because they are secret: ALPHA, BETA, GAMMA, HF_TOKEN" in command
    plan = json.loads((fleet.runs / "one" / "plan.json").read_text())
    shown = {row["name"]: row["value"] for row in plan["environment"]["localhost"] if row["source"] == "user"}
    assert shown == {**dict.fromkeys(VALUES, "(hidden)"), "OPEN": "seen"}
    assert not list((fleet.root / "tmp").glob("torchfleet-*"))
    assert not (fleet.home / "jobs" / "one" / "secrets").exists()


def test_check_shows_names_only(fleet: Fleet) -> None:
    done = play(fleet, "--check")
    assert done.returncode == 0, done.stdout
    assert_nowhere(fleet, done.stdout + done.stderr)
    for name in VALUES:
        assert f"{name}='(hidden)'" in done.stdout


def test_a_wrong_value_is_not_told(fleet: Fleet) -> None:
    done = play(fleet, "-e", json.dumps({"job_env": {"HF_TOKEN": [VALUES["HF_TOKEN"]]}}))
    assert done.returncode != 0
    assert "HF_TOKEN" in done.stdout and "a list" in done.stdout
    assert VALUES["HF_TOKEN"] not in done.stdout + done.stderr


def test_a_secret_that_is_no_variable_is_refused(fleet: Fleet) -> None:
    done = play(fleet, "-e", json.dumps({"secret_names": ["GAMA"]}))
    assert done.returncode != 0
    assert 'secret_names: got "GAMA"' in done.stdout, done.stdout


def test_each_node_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the head to another node: a secret of that node alone, and one of all."""
    nodes = TwoNodes(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    inventory = json.loads(nodes.inventory.read_text())
    hosts = inventory["all"]["children"]["workers"]["hosts"]
    for name, host in hosts.items():
        host["torchfleet_env"] = {"NODE_KEY": f"hush-{name}-4715"}
    nodes.inventory.write_text(json.dumps(inventory))
    script = nodes.project(train=(SCRIPTS / "secrets.py").read_text())
    names = ["NODE_KEY", "HF_TOKEN"]
    given = {"job_env": {"HF_TOKEN": VALUES["HF_TOKEN"]}, "workload_args": names, "job_id": "one"}
    nodes.train(workload=str(script), **given)
    nodes.inventory.unlink()
    told = [json.loads((nodes.runs / "one" / "ranks" / str(rank) / "stdout").read_text()) for rank in (0, 1)]
    for number, node in enumerate(nodes.homes):
        values = {"NODE_KEY": f"hush-{node}-4715", "HF_TOKEN": VALUES["HF_TOKEN"]}
        assert told[number]["sha"] == {name: sha(value) for name, value in values.items()}
        assert not any(told[number]["above"])
        assert_nowhere(nodes, "", ["hush"])


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
