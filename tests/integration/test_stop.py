"""Ctrl-C and a closed terminal, whatever train.yml does at that moment: it answers, and says what it does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver import SCRIPTS, running
from tests.integration.fleet import Fleet
from tests.integration.terminal import Terminal

SLEEPER = str(SCRIPTS / "sleeper.py")
LAST_WORDS = ("job typed cancelled in ", " rank   host ", '["ended", "ended"]')


@pytest.fixture
def ended() -> Iterator[list[Terminal]]:
    """Ends each ansible-playbook that a test started."""
    made: list[Terminal] = []
    yield made
    for terminal in made:
        terminal.started.process.kill()
        terminal.started.process.wait()


def slow_launcher(fleet: Fleet) -> tuple[Path, Path]:
    """Return a launcher that takes a minute to say its version, and the file that it writes when it begins."""
    launcher, began = fleet.root / "mpirun", fleet.root / "began"
    launcher.write_text(f"#!/bin/sh\necho $$ > {began}.new; mv {began}.new {began}; exec sleep 60\n")
    launcher.chmod(0o700)
    return launcher, began


def test_ctrl_c_while_the_nodes_are_looked_at_starts_nothing_and_leaves_nothing(
    fleet: Fleet, ended: list[Terminal]
) -> None:
    launcher, began = slow_launcher(fleet)
    terminal = Terminal(fleet, workload=SLEEPER, torchfleet_mpirun=str(launcher))
    ended.append(terminal)
    terminal.started.wait_until(began.exists)
    asked = int(began.read_text())
    terminal.type("\x03")
    terminal.shows("stopped before the job was started: nothing of it is left")
    terminal.started.wait_until(lambda: not running(asked), 10)
    assert terminal.started.process.wait(30) != 0  # the launcher would have taken a minute
    assert not fleet.runs.exists()
    assert not (fleet.home / "jobs").exists()


def test_ctrl_c_while_the_head_is_called_ends_the_call(fleet: Fleet, ended: list[Terminal]) -> None:
    slow, began = slow_launcher(fleet)
    ssh = fleet.root / "ssh"  # to a head that does not answer; what Ansible asks it for itself is not meant
    ssh.write_text(f'#!/bin/sh\ncase "$*" in *supervise*|*base64*) exec {slow} ;; esac\n')
    ssh.chmod(0o700)
    host = f"{{n1: {{ansible_host: 192.0.2.1, ansible_ssh_executable: {ssh}}}}}"
    inventory = fleet.root / "silent.yml"
    inventory.write_text(f"head: {{hosts: {host}}}\nworkers: {{hosts: {{n1: }}}}\n")
    script = fleet.root / "project" / "train.py"
    script.parent.mkdir()
    script.touch()
    terminal = Terminal(fleet, "-i", str(inventory), workload=str(script))
    ended.append(terminal)
    terminal.started.wait_until(began.exists)
    calling = int(began.read_text())
    terminal.type("\x03")
    terminal.shows("stopped before the job was started: nothing of it is left")
    terminal.started.wait_until(lambda: not running(calling), 10)
    assert terminal.started.process.wait(30) != 0
    assert not fleet.runs.exists()


def test_ctrl_c_says_that_the_job_is_ended_and_how_it_ended(fleet: Fleet, ended: list[Terminal]) -> None:
    """All of it is there when ansible-playbook is gone; of Ansible's own display there is nothing any more."""
    terminal = Terminal(fleet, workload=SLEEPER, result_query="ranks[].state")
    ended.append(terminal)
    for rank in (0, 1):
        terminal.started.wait_for_output(rank, "up")
    terminal.type("\x03")
    terminal.shows(
        "ending job typed and fetching its files; interrupt again to leave that to: ansible-playbook clean.yml"
    )
    assert terminal.started.process.wait(30) != 0
    for words in (*LAST_WORDS, f"run: {terminal.started.run_dir}"):
        terminal.shows(words)
    assert terminal.text.count(b"job typed cancelled in ") == 1
    terminal.started.all_gone()
    assert terminal.started.result["state"] == "cancelled"


@pytest.mark.parametrize("flood", [False, True])
def test_the_last_words_after_sigint_are_in_a_pipe_too(fleet: Fleet, flood: bool) -> None:
    """Also where ansible-playbook has more to show than it ever will."""
    script = fleet.root / "words.py"
    lines = "while True: print('x' * 1000)\n" if flood else "import time; time.sleep(600)\n"
    script.write_text(f"print('up', flush=True)\n{lines}")
    reader, writer = os.pipe()
    given = {"workload": str(script), "job_id": "typed", "result_query": "ranks[].state"}
    started = fleet.start(stdout=writer, **given)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        for rank in (0, 1):
            started.wait_for_output(rank, "up")
        os.kill(started.process.pid, signal.SIGINT)
        said = pipe.read().decode()
    assert started.process.wait(30) != 0
    for words in (*LAST_WORDS, f"run: {started.run_dir}"):
        assert words in said, said[-2000:]
    started.all_gone()


def test_a_second_ctrl_c_leaves_the_run_to_clean(fleet: Fleet, ended: list[Terminal]) -> None:
    """The rank takes its time to save: it gets it, and the result waits on the head."""
    terminal = Terminal(fleet, workload=SLEEPER, workload_args=["--ignore-term"], grace=6)
    ended.append(terminal)
    for rank in (0, 1):
        terminal.started.wait_for_output(rank, "up")
    terminal.type("\x03")
    terminal.shows("interrupt again to leave that to: ansible-playbook clean.yml")  # so the first one was dealt with
    terminal.type("\x03")
    assert terminal.started.process.wait(10) != 0
    assert not (terminal.started.job_dir / "result.json").exists()  # the second one did not wait for the ranks
    terminal.started.wait_until((terminal.started.job_dir / "result.json").exists, 30)
    terminal.started.all_gone()
    assert not (terminal.started.run_dir / "result.json").exists()
    assert fleet.play("clean.yml").rc == 0
    assert terminal.started.result["state"] == "cancelled"


def test_a_closed_terminal_is_told_for_what_it_is(fleet: Fleet, ended: list[Terminal]) -> None:
    terminal = Terminal(fleet, workload=SLEEPER)
    ended.append(terminal)
    for rank in (0, 1):
        terminal.started.wait_for_output(rank, "up")
    terminal.close()
    assert terminal.started.process.wait(30) == -signal.SIGHUP
    terminal.started.all_gone()
    result = terminal.started.result
    assert result["state"] == "lost"
    assert "the terminal of ansible-playbook was closed" in result["first_failure"]["cause"]


def test_sigkill_in_a_terminal_that_stays_is_no_closed_terminal(fleet: Fleet, ended: list[Terminal]) -> None:
    terminal = Terminal(fleet, workload=SLEEPER)
    ended.append(terminal)
    terminal.started.wait_for_output(0, "up")
    terminal.started.process.kill()
    terminal.started.all_gone()
    assert "ansible-playbook was killed" in terminal.started.result["first_failure"]["cause"]
