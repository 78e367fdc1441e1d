# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The two kinds of sshd on a node: one of the user's own, which we keep running, and the system's.

sshd writes its PID file whenever it reads its configuration: at start and after SIGHUP. So a configuration that is
newer than that file has not been read yet. SIGHUP does not end sessions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import Callable

from .files import MeshFailed, put, take_away
from .survey import SBIN, SSHD_CONFIG, sshd_settings
from .work import Service

PATIENCE = 10.0  # seconds in which sshd has to answer after a start
UNITS = "/etc/systemd/system"


def refusal(config: str, program: str = "") -> str:
    """Return sshd's error about a configuration, or ""."""
    sshd = program or shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SBIN}") or "sshd"
    done = subprocess.run([sshd, "-t", "-f", config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return "; ".join(done.stdout.decode(errors="replace").split("\n")).strip("; ") if done.returncode else ""


def drop_in_refusal(drop_in: str) -> str:
    """Return the error of the system's sshd about its configuration with this file, or ""."""
    with tempfile.NamedTemporaryFile("w", prefix="torchfleet-sshd-") as whole:
        whole.write(f"Include {drop_in}\nInclude {SSHD_CONFIG}\n")
        whole.flush()
        return refusal(whole.name)


def pid_in(path: str, mark: str) -> int | None:
    """Return the process that a PID file names, if it runs and its command line has the mark."""
    try:
        with open(path) as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return pid if os.fsencode(mark) in file.read() else None
    except (OSError, ValueError):
        return None


def is_unread(pid_file: str, files: list[str]) -> bool:
    """Whether any of the files was changed after sshd read its configuration."""
    read_at = os.stat(pid_file).st_mtime_ns
    return any(os.path.exists(path) and os.stat(path).st_mtime_ns > read_at for path in files)


def wait_for(condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds; return whether it did in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def answers(port: int) -> bool:
    """Whether an SSH server listens on this port here."""
    for address in ("127.0.0.1", "::1"):
        try:
            with socket.create_connection((address, port), timeout=2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            continue
    return False


def hang_up(pid: int, pid_file: str) -> bool:
    """Make sshd read its configuration again; return whether it still runs after that."""
    before = os.stat(pid_file).st_mtime_ns
    os.kill(pid, signal.SIGHUP)

    def done() -> bool:
        try:
            return os.stat(pid_file).st_mtime_ns > before
        except FileNotFoundError:
            return not os.path.exists(f"/proc/{pid}")

    return wait_for(done) and os.path.exists(f"/proc/{pid}")


# --- an sshd of the user's own --------------------------------------------------------------------------------------


class OwnSshd:
    """The sshd of this user: `service` is what own_service() of plugin_utils/_ssh/files.py says about it."""

    def __init__(self, service: Service, dry_run: bool) -> None:
        self.service = service
        self.dry_run = dry_run
        self.config = service["config"]
        self.place = os.path.dirname(self.config)
        self.pid_file = os.path.join(self.place, "sshd.pid")
        self.changes: list[str] = []

    def pid(self) -> int | None:
        return pid_in(self.pid_file, self.config)

    def keep(self) -> list[str]:
        """Make it run with its configuration, and return the changes."""
        user_unit = os.path.expanduser(f"~/.config/systemd/user/{self.service['unit']}")
        if self.service["kind"] != "user" and os.path.exists(user_unit):
            self.drop_unit(["systemctl", "--user"], user_unit)
        if self.service["kind"] == "none":
            return self.stop()
        self.reread()
        if self.service["kind"] == "plain" and not self.pid():
            self.start()
        elif self.service["kind"] == "user":
            written = put(user_unit, self.service["unit_text"], 0o644, self.dry_run)
            self.changes += ["unit written"] * written
            self.run_unit(["systemctl", "--user"], written)
        return self.changes

    def stop(self) -> list[str]:
        """End it, unless root's systemd runs it, whose unit has to be removed first. Open sessions remain."""
        pid = self.pid()
        if pid is None or os.path.exists(os.path.join(UNITS, self.service["unit"])):
            return self.changes
        if not self.dry_run:
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not os.path.exists(f"/proc/{pid}"))
        self.changes.append("sshd stopped")
        return self.changes

    def reread(self) -> None:
        """Make a running sshd read its new configuration."""
        pid = self.pid()
        key = os.path.join(self.place, "ssh_host_ed25519_key")
        if pid is None or not is_unread(self.pid_file, [self.config, key, f"{key}-cert.pub"]):
            return
        self.changes.append("sshd reloaded")
        if not self.dry_run and hang_up(pid, self.pid_file):
            self.require_answer()

    def start(self) -> None:
        """Start it as a daemon. Raise MeshFailed if it does not answer."""
        self.changes.append("sshd started")
        if self.dry_run:
            return
        self.require_port()
        argv = [self.service["program"], "-f", self.config, "-E", os.path.join(self.place, "sshd.log")]
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(argv, cwd="/", check=False, **quiet)  # type: ignore[call-overload]
        self.require_answer()

    def run_unit(self, systemctl: list[str], unit_changed: bool) -> None:
        """Run it as a systemd unit, also after a reboot."""
        if unit_changed and not self.dry_run:
            say(systemctl, "daemon-reload")
        unit = self.service["unit"]
        shown = say(systemctl, "show", "--property=MainPID,UnitFileState", unit, strict=False)
        facts = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        main = int(facts.get("MainPID", "0") or 0)
        if main and main == self.pid() and facts.get("UnitFileState") == "enabled":
            return
        self.changes.append("sshd started by systemd")
        if self.dry_run:
            return
        pid = self.pid()
        if pid is not None and pid != main:
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not os.path.exists(f"/proc/{pid}"))
        if not main:
            self.require_port()
        say(systemctl, "enable", unit)
        say(systemctl, "restart", unit)
        self.require_answer()

    def drop_unit(self, systemctl: list[str], path: str) -> None:
        """Remove a unit."""
        self.changes.append("unit removed")
        if not self.dry_run:
            say(systemctl, "disable", "--now", os.path.basename(path), strict=False)
            take_away(path, dry_run=False)
            with contextlib.suppress(OSError):
                os.removedirs(os.path.dirname(path))  # as long as they are empty
            say(systemctl, "daemon-reload", strict=False)

    def require_port(self) -> None:
        """Raise MeshFailed if the port is unavailable."""
        port = self.service["port"]
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                why = "needs root" if error.errno == errno.EACCES else "is used by another program"
                raise MeshFailed(f"port {port} {why}: give another ssh_mesh_port (1024 to 65535)") from None

    def require_answer(self) -> None:
        """Raise MeshFailed with its last output if it does not answer with its own host key."""
        if wait_for(lambda: self.pid() is not None and answers(self.service["port"])):
            return
        log = os.path.join(self.place, "sshd.log")
        try:
            with open(log, errors="replace") as file:
                last = file.read().strip().splitlines()[-1]
        except (OSError, IndexError):
            last = f"see journalctl --unit {self.service['unit']}"
        raise MeshFailed(f"sshd does not answer on port {self.service['port']}: {last}")


def say(systemctl: list[str], *words: str, strict: bool = True) -> str:
    """Run systemctl and return its output. With `strict`, raise MeshFailed if it fails."""
    where = {**os.environ, "XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}
    done = subprocess.run(
        [*systemctl, *words], env=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = done.stdout.decode(errors="replace")
    if strict and done.returncode:
        raise MeshFailed(f"{' '.join([*systemctl, *words])}: {text.strip()}")
    return text


# --- the system's sshd ----------------------------------------------------------------------------------------------


def require_include(config: str, setting: str) -> None:
    """Raise MeshFailed if the system's sshd does not read drop-ins. `setting`: what to set to false otherwise."""
    settings = sshd_settings(SSHD_CONFIG)
    if os.path.dirname(config) not in " ".join(settings.get("include", [])):
        raise MeshFailed(
            f"{SSHD_CONFIG} includes no drop-ins: make 'Include {os.path.dirname(config)}/*.conf' its first line, "
            f"or set {setting}: false"
        )


def require_no_authority(setting: str) -> None:
    """Raise MeshFailed if the system's sshd trusts another authority: for one user it takes one list of authorities.

    Ours would hide it, and lock out who logs in as this user by it. `setting`: what to set to false otherwise.
    """
    there = sshd_settings(SSHD_CONFIG).get("trustedusercakeys", ["none"])[0]
    if there != "none":
        raise MeshFailed(
            f"sshd trusts the authorities in {there} (TrustedUserCAKeys), which ours would hide for this user: "
            f"set {setting}: false"
        )


def reload_system(files: list[str], removed: bool, dry_run: bool) -> list[str]:
    """Make the system's sshd read our files if it has not yet; return the changes.

    With socket activation no sshd runs, and each new connection reads them anyway.
    """
    pid_file = sshd_settings(SSHD_CONFIG).get("pidfile", ["/run/sshd.pid"])[0]
    pid = pid_in(pid_file, "sshd")
    if pid is None or not (removed or is_unread(pid_file, files)):
        return []
    if not dry_run:
        wrong = refusal(SSHD_CONFIG)
        if wrong:
            raise MeshFailed(f"sshd was not reloaded, because it refuses its configuration: {wrong}")
        if not hang_up(pid, pid_file):
            raise MeshFailed("sshd did not restart after a reload: see systemctl status ssh (or sshd)")
    return ["the system's sshd reloaded"]
