"""Enter on the terminal of ansible-playbook, seen from another session: terminals and processes are real."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.keyboard import Keyboard
from tests.driver import wait_until

# A shell on a terminal of its own. A line from the pipe brings the job or the shell to the front, as `fg` and Ctrl-Z,
# or takes the terminal away from both.
SHELL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
job = os.fork()
if not job:
    os.setpgid(0, 0)
    if sys.argv[3:]:
        os.dup2(os.open(sys.argv[3], os.O_RDWR | os.O_NOCTTY), 0)
    signal.pause()
os.setpgid(job, job)
if sys.argv[1] == "front":
    os.tcsetpgrp(0, job)
print(job, flush=True)
for line in os.fdopen(int(sys.argv[2])):
    if line == "away\\n":
        fcntl.ioctl(0, termios.TIOCNOTTY)
    else:
        os.tcsetpgrp(0, job if line == "front\\n" else os.getpgrp())
    print(line, end="", flush=True)
os.kill(job, signal.SIGKILL)
"""


class Shell:
    """A terminal with a shell in it, and a job that is in front or in the background."""

    def __init__(self, place: str, *stdin: str) -> None:
        self.window, self.inside = pty.openpty()
        read, self.orders = os.pipe()
        command = ["setsid", "--ctty", sys.executable, "-c", SHELL, place, str(read), *stdin]
        self.process = subprocess.Popen(command, stdin=self.inside, stdout=subprocess.PIPE, text=True, pass_fds=(read,))
        os.close(read)
        assert self.process.stdout
        self.job = int(self.process.stdout.readline())

    def bring(self, place: str) -> None:
        os.write(self.orders, f"{place}\n".encode())
        assert self.process.stdout and self.process.stdout.readline() == f"{place}\n"

    def type(self, text: str) -> None:
        """Type a text, and wait until it is there: the kernel hands it over a little later."""
        wanted = self.waiting() + len(text)
        os.write(self.window, text.encode())
        while self.waiting() < wanted:
            select.select([self.inside], [], [], 0.01)

    def waiting(self) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self.inside, termios.FIONREAD, bytes(4)))[0])

    def left(self) -> str:
        """Return what the next program reads."""
        text = b""
        while select.select([self.inside], [], [], 0)[0]:
            text += os.read(self.inside, 4096)
        return text.decode()

    def close(self) -> None:
        os.close(self.orders)
        self.process.wait()
        for descriptor in (self.window, self.inside):
            os.close(descriptor)


@pytest.fixture
def shell() -> Iterator[Callable[..., Shell]]:
    made: list[Shell] = []

    def start(*words: str) -> Shell:
        made.append(Shell(*words))
        return made[-1]

    yield start
    for each in made:
        each.close()


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_enter_is_noticed_once_and_taken_back_at_the_end(shell: Callable[..., Shell]) -> None:
    front = shell("front")
    before = opened()
    keyboard = Keyboard(front.job)
    assert keyboard.is_there and not keyboard.pressed()
    for _time in range(2):
        front.type("\n")
        assert keyboard.pressed() and not keyboard.pressed()
    keyboard.close()
    assert front.left() == "" and opened() == before


def test_each_of_two_jobs_of_one_terminal_notices_it(shell: Callable[..., Shell]) -> None:
    """Nothing is read before a job is over, and that one takes nothing from the other but what both have noticed."""
    front = shell("front")
    ends, stays = Keyboard(front.job), Keyboard(front.job)
    front.type("\n")
    assert ends.pressed() and stays.pressed()
    ends.close()
    assert not stays.pressed()
    front.type("\n")
    assert stays.pressed()
    stays.close()
    assert front.left() == ""


def test_what_is_typed_for_the_next_program_stays(shell: Callable[..., Shell]) -> None:
    """A line looks too, but only Enter alone is taken back, and only if nothing else waits."""
    front = shell("front")
    front.type("before\n")
    keyboard = Keyboard(front.job)
    assert not keyboard.pressed()
    for text in ("ls\n", "\n"):
        front.type(text)
        assert keyboard.pressed()
    keyboard.close()
    assert front.left() == "before\nls\n\n"


def test_what_is_typed_just_before_the_end_stays_too(shell: Callable[..., Shell]) -> None:
    front = shell("front")
    keyboard = Keyboard(front.job)
    front.type("\n")
    assert keyboard.pressed()
    front.type("ls\n")
    keyboard.close()
    assert front.left() == "\nls\n"


def test_in_the_background_nothing_is_opened(shell: Callable[..., Shell]) -> None:
    back = shell("back")
    before = opened()
    keyboard = Keyboard(back.job)
    assert not keyboard.is_there and opened() == before
    back.type("\n")
    assert not keyboard.pressed()
    keyboard.close()
    assert back.left() == "\n"


def test_what_is_typed_while_the_shell_is_in_front_is_the_shells(shell: Callable[..., Shell]) -> None:
    """Ctrl-Z, bg: the worker has another session, goes on, and would be let read it. Then fg."""
    moved = shell("front")
    keyboard = Keyboard(moved.job)
    moved.bring("back")
    moved.type("\n")
    assert not keyboard.pressed()
    moved.bring("front")
    assert not keyboard.pressed()
    moved.type("\n")
    assert keyboard.pressed()
    keyboard.close()
    assert moved.left() == "\n\n"


@pytest.mark.parametrize("mode", [termios.ECHO, termios.ICANON], ids=["a password", "an editor"])
def test_a_question_of_another_program_is_left_alone(shell: Callable[..., Shell], mode: int) -> None:
    front = shell("front")
    keyboard = Keyboard(front.job)
    modes = termios.tcgetattr(front.inside)
    modes[3] &= ~mode
    termios.tcsetattr(front.inside, termios.TCSANOW, modes)
    front.type("\n")
    assert not keyboard.pressed()
    keyboard.close()
    assert front.left() == "\n"


def test_a_terminal_that_is_gone_ends_it_quietly(shell: Callable[..., Shell]) -> None:
    front = shell("front")
    before = opened()
    keyboard = Keyboard(front.job)
    front.type("\n")
    os.close(front.window)
    front.window = os.open(os.devnull, os.O_RDONLY)
    assert not keyboard.pressed() and not keyboard.is_there
    keyboard.close()
    assert opened() == before


def test_a_playbook_that_is_gone_ends_it_quietly(shell: Callable[..., Shell]) -> None:
    front = shell("front")
    keyboard = Keyboard(front.job)
    os.close(front.orders)
    front.process.wait()
    front.orders = os.open(os.devnull, os.O_WRONLY)
    front.type("\n")

    def is_given_up() -> bool:
        assert not keyboard.pressed()
        return not keyboard.is_there

    wait_until(is_given_up)  # the kernel takes the terminal from the playbook's session a moment after its end


def test_a_playbook_that_loses_its_terminal_ends_it_quietly(shell: Callable[..., Shell]) -> None:
    """One that ends does so a moment before it is gone: then it was asked for ever."""
    front = shell("front")
    keyboard = Keyboard(front.job)
    front.bring("away")
    front.type("\n")
    assert not keyboard.pressed() and not keyboard.is_there


@pytest.mark.parametrize("stdin", ["null", "pipe", "file", "nobody's terminal"])
def test_without_a_terminal_of_its_own_nothing_is_opened(stdin: str, tmp_path: Path) -> None:
    """CI, nohup, a pipe; and a terminal that is not the controlling one, which no Ctrl-C comes from either."""
    window, inside = pty.openpty()
    (tmp_path / "file").write_text("\n\n")
    given = {"pipe": subprocess.PIPE, "nobody's terminal": inside}.get(stdin)
    if given is None:
        given = os.open(tmp_path / "file" if stdin == "file" else os.devnull, os.O_RDWR)
    playbook = subprocess.Popen(["sleep", "60"], stdin=given, start_new_session=True)
    before = opened()
    keyboard = Keyboard(playbook.pid)
    assert (keyboard.is_there, opened()) == (False, before)
    os.write(window, b"\n")
    assert not keyboard.pressed()
    keyboard.close()
    playbook.kill()
    playbook.communicate()
    for descriptor in {window, inside, given} - {subprocess.PIPE}:
        os.close(descriptor)


def test_a_stdin_that_is_not_the_terminal_in_front_is_not_opened(shell: Callable[..., Shell]) -> None:
    """train.yml </dev/null, and </dev/pts/3 of somebody else, who types there for another program."""
    window, inside = pty.openpty()
    for stdin in (os.devnull, os.ttyname(inside)):
        front = shell("front", stdin)
        while os.readlink(f"/proc/{front.job}/fd/0") != stdin:
            select.select([], [], [], 0.01)
        before = opened()
        keyboard = Keyboard(front.job)
        assert (keyboard.is_there, opened()) == (False, before), stdin
    os.close(window)
    os.close(inside)


def test_the_terminal_of_ansible_runner_has_no_user(
    shell: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWX_ISOLATED_DATA_DIR", "/x")
    assert not Keyboard(shell("front").job).is_there


def test_a_process_that_does_not_exist() -> None:
    keyboard = Keyboard(2**22 + 1)
    assert not keyboard.is_there and not keyboard.pressed()
    keyboard.close()
