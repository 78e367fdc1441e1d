"""Machines with a kernel of their own, of Debian's package user-mode-linux: the kernel below lab nodes has no NFS.

Each is some processes of this machine, with a disk that is thrown away, on a bridge of their own. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.image import BASE
from tests.driver import REPO
from tests.lab.lab import ENVIRONMENT

CACHE = REPO / ".cache" / "storage"
PACKAGES = ("nfs-kernel-server", "nfs-common")  # fetched, and not installed: that is the role's part
BRIDGE, NETWORK = "tfstore", "10.93.77"
BOOT_SECONDS = 600
# What a machine does first: its address and name, of the kernel's command line.
FIRST = r"""#!/bin/sh -e
name=$(sed 's/.*tfname=\([a-z0-9]*\).*/\1/' /proc/cmdline)
hostname "$name"
printf '127.0.0.1 localhost %s\n' "$name" >/etc/hosts
ip link set vec0 up
ip addr add "$(sed 's/.*tfaddr=\([0-9.]*\).*/\1/' /proc/cmdline)/24" dev vec0
"""
UNIT = """[Unit]
Before=ssh.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/first
[Install]
WantedBy=multi-user.target
"""
FINISH = """set -e
useradd --create-home --shell /bin/bash fleet
echo 'fleet ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/fleet
systemctl enable first
systemctl mask systemd-binfmt.service proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount
echo '/dev/ubda / ext4 defaults 0 1' >/etc/fstab
apt-get --yes --quiet --no-install-recommends --download-only install "$@"
"""


def run(*argv: str | Path, cwd: Path | None = None, check: bool = True) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def build() -> None:
    """Make the disk that all machines begin with, unless it is there: Debian 12, and the kernel's modules."""
    if (CACHE / "base.ext4").exists():
        return
    shutil.rmtree(CACHE, ignore_errors=True)
    CACHE.mkdir(parents=True)
    root = CACHE / "root"
    run("apt-get", "--quiet", "download", "user-mode-linux", cwd=CACHE)
    run("dpkg-deb", "--extract", *CACHE.glob("user-mode-linux_*.deb"), CACHE / "uml")
    keep = [f"--skip=cleanup/apt{part}" for part in ("", "/lists", "/cache")]
    run("mmdebstrap", "--quiet", "--variant=minbase", "--include", ",".join((*BASE, "kmod")), *keep, "bookworm", root)
    modules = root / "usr/lib/modules"
    shutil.copytree(CACHE / "uml/usr/lib/uml/modules", modules, dirs_exist_ok=True)
    (root / "usr/local/sbin/first").write_text(FIRST)
    (root / "usr/local/sbin/first").chmod(0o755)
    (root / "etc/systemd/system/first.service").write_text(UNIT)
    shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
    run("chroot", root, "sh", "-c", FINISH, "sh", *PACKAGES)
    (root / "etc/resolv.conf").unlink()
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", CACHE / "key")
    (root / "home/fleet/.ssh").mkdir()
    shutil.copyfile(CACHE / "key.pub", root / "home/fleet/.ssh/authorized_keys")
    run("chroot", root, "chown", "-R", "fleet:", "/home/fleet")
    run("truncate", "--size", "2G", CACHE / "draft")
    run("mkfs.ext4", "-q", "-d", root, CACHE / "draft")
    shutil.rmtree(root)
    (CACHE / "draft").rename(CACHE / "base.ext4")


class Machines:
    """n1, n2 ... with an inventory; n1 is the head. All are workers."""

    def __init__(self, place: Path, count: int) -> None:
        self.place, self.names = place, [f"n{number}" for number in range(1, count + 1)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.inventory = place / "hosts.yml"
        self.known = place / "known_hosts"

    def address(self, name: str) -> str:
        return f"{NETWORK}.{10 + int(name[1:])}"

    def up(self) -> None:
        build()
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for name in self.names:
            run("ip", "tuntap", "add", f"{BRIDGE}{name}", "mode", "tap")
            run("ip", "link", "set", f"{BRIDGE}{name}", "master", BRIDGE, "up")
            self.start(name)
        workers = {name: {"ansible_host": self.address(name)} for name in self.names}
        ssh = f"-o UserKnownHostsFile={self.known} -o StrictHostKeyChecking=accept-new"
        shared = {"ansible_user": "fleet", "ansible_ssh_private_key_file": str(CACHE / "key"), "slots": 1}
        groups = {"head": {"hosts": {"n1": None}}, "workers": {"hosts": workers}}
        given = {"vars": {**shared, "ansible_ssh_common_args": ssh}, "children": groups}
        self.inventory.write_text(yaml.safe_dump({"all": given}))
        for name in self.names:
            self.wait(name)

    def start(self, name: str) -> None:
        """Start a machine with the disk it has."""
        argv: list[Any] = [CACHE / "uml/usr/bin/linux.uml", "mem=384M", f"umid=torchfleet-{os.getpid()}-{name}"]
        argv += ["root=/dev/ubda", "rw", f"tfname={name}", f"tfaddr={self.address(name)}"]
        argv += [f"ubd0={self.place / name}.cow,{CACHE / 'base.ext4'}", "con=null", "con0=null,fd:1"]
        argv += [f"vec0:transport=tap,ifname={BRIDGE}{name},depth=128,gro=1"]
        with (self.place / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def cut_power(self, name: str) -> None:
        """End a machine at once, with all its processes."""
        process = self.processes.pop(name)
        os.killpg(process.pid, 9)
        process.wait()

    def wait(self, name: str) -> None:
        end = time.monotonic() + BOOT_SECONDS
        while self.ssh(name, "true").returncode != 0:
            assert time.monotonic() < end, (self.place / f"{name}.log").read_text(errors="replace")[-3000:]
            assert self.processes[name].poll() is None
            time.sleep(1)

    def ssh(self, name: str, *words: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command line on a machine as its user."""
        options = [f"UserKnownHostsFile={self.known}", "StrictHostKeyChecking=accept-new", "ConnectTimeout=5"]
        argv: list[Any] = ["ssh", "-i", CACHE / "key", *(f"-o{option}" for option in options)]
        argv += [f"fleet@{self.address(name)}", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=seconds)

    def said(self, name: str, *words: str) -> str:
        done = self.ssh(name, *words)
        assert done.returncode == 0, f"{name}: {words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def play(self, playbook: str | Path, *words: str) -> tuple[int, str]:
        """Run a playbook. Return its status and what it says, with single spaces."""
        argv: list[Any] = ["ansible-playbook", "-i", self.inventory, playbook, *words]
        done = subprocess.run(argv, cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def down(self) -> None:
        for name in list(self.processes):
            self.cut_power(name)
        for name in self.names:
            run("ip", "link", "delete", f"{BRIDGE}{name}", check=False)
        run("ip", "link", "delete", BRIDGE, check=False)
