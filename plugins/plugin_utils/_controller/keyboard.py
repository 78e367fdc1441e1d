# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Notices that Enter is pressed on the terminal from which ansible-playbook was started.

A worker of Ansible has a session of its own, its stdin is /dev/null, and no terminal is its controlling one: there the
kernel answers tcgetpgrp() with ENOTTY, and would let a read take what is typed for the shell (no SIGTTIN). So the
terminal is opened by the stdin of ansible-playbook, who is in front stands in proc_pid_stat(5), and the bytes of the
whole lines that wait to be read are counted, but not read (FIONREAD, ioctl_tty(2)). What else was typed stays for the
program that reads next. No setting of the terminal is changed, so nothing is to be put back when we are killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import termios

LINE_MODES = termios.ICANON | termios.ECHO  # of the local modes: not an editor, nor a question for a password
ENTERS_MOST = 100  # that are taken back
NO_TERMINAL = 0  # a process's controlling terminal in proc_pid_stat(5)


class Keyboard:
    """The keyboard of one ansible-playbook. All methods are quiet if there is none, or once it is gone."""

    def __init__(self, process: int) -> None:
        """`process`: the pid of ansible-playbook. Its terminal is opened only if the process is in front there."""
        self.process = process
        self.terminal = -1  # a descriptor
        self.waiting = 0  # bytes of whole lines that nobody has read
        self.only_enters = False  # all of these are Enter alone
        try:
            if "AWX_ISOLATED_DATA_DIR" not in os.environ and self.is_in_front():  # ansible-runner's has no user
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
                self.terminal = os.open(f"/proc/{process}/fd/0", flags)
                self.waiting = self.count()
                self.only_enters = not self.waiting
        except OSError:
            self.let_go()

    @property
    def is_there(self) -> bool:
        """Whether there is a keyboard."""
        return self.terminal >= 0

    def pressed(self) -> bool:
        """Whether a line was ended with Enter since the last call, while ansible-playbook was in front."""
        if not self.is_there:
            return False
        try:
            count = self.count()
            new, self.waiting = count - self.waiting, count
            found = new > 0 and self.is_ours()
        except OSError:
            self.let_go()
            return False
        if new:
            self.only_enters = not count or (self.only_enters and found and new == 1)
        return found

    def close(self) -> None:
        """Take back what was Enter alone, unless more was typed: a question that comes next is not to be answered."""
        self.pressed()
        try:
            if self.is_there and self.only_enters and self.waiting and self.is_ours():
                for _enter in range(min(self.waiting, ENTERS_MOST)):
                    os.read(self.terminal, 1)
        except OSError:
            pass
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the terminal, which may be closed."""
        terminal, self.terminal = self.terminal, -1
        if terminal >= 0:
            os.close(terminal)

    def count(self) -> int:
        """Return the bytes of the whole lines that wait to be read. OSError: the terminal is gone."""
        (count,) = struct.unpack("i", fcntl.ioctl(self.terminal, termios.FIONREAD, bytes(4)))
        return int(count)

    def is_ours(self) -> bool:
        """Whether what is typed is for ansible-playbook, and comes by lines. OSError: the terminal is gone."""
        try:
            modes = termios.tcgetattr(self.terminal)[3]
        except termios.error as error:
            raise OSError(*error.args) from None
        return modes & LINE_MODES == LINE_MODES and self.is_in_front()

    def is_in_front(self) -> bool:
        """Whether its stdin is its controlling terminal, and its process group the one in front there.

        OSError if it has ended, or has lost its terminal: a process that ends loses that before its descriptors.
        """
        stdin = os.stat(f"/proc/{self.process}/fd/0")
        with open(f"/proc/{self.process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before ")" may hold anything
        group, device, front = (int(fields[place]) for place in (2, 4, 5))
        if device == NO_TERMINAL:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        return stat.S_ISCHR(stdin.st_mode) and device == number_of(stdin.st_rdev) and group == front


def number_of(device: int) -> int:
    """Return a device's number as in proc_pid_stat(5): the minor one in bits 0-7 and 20-31, the major one in 8-19."""
    major, minor = os.major(device), os.minor(device)
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12
