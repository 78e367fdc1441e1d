# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The first process of a node container: it makes user and host key, and keeps sshd. Imports no file of ours.

The text of this file is a word of the container's command, so that no file has to lie on the machine for it. Its only
argument is a JSON object:

    birth      a word that is another one for every new container: a container that was only stopped keeps its keys
    user, uid  who logs in, with sudo for everything
    gids       groups of the machine that own its devices: an SSH login drops those that the engine gave
    port, listen    of sshd; no address means all
    key        the public key that opens the account
    env        variables of logins, beside those of the image
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from types import FrameType

HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
CONFIG = "/etc/ssh/torchfleet_node_config"
BIRTH = "/etc/ssh/torchfleet_node_birth"
KEYS = "/etc/ssh/torchfleet_node_keys"  # that open the account: its home may be one of the machine
MOUNTS = "/proc/self/mountinfo"  # proc(5)
SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED = ("sshd", "ssh", "ssh-keygen", "sudo")
# By package manager: the commands that install what is needed.
INSTALL = {
    "apt-get": [
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "openssh-server", "openssh-client", "sudo"],
    ],
    "dnf": [["dnf", "install", "-y", "-q", "openssh-server", "openssh-clients", "sudo"]],
}
# A package that starts its service at once would start it in the network of the machine.
POLICY = "/usr/sbin/policy-rc.d"
# What an image says about itself, and not about the programs in it.
NOT_FOR_LOGINS = ("HOME", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "TERM", "USER", "LOGNAME", "SHELL", "container")


class Unfit(Exception):
    """The image cannot be a node; the message is one line."""


def found(program: str) -> str:
    """Return the path of a program, nothing if there is none."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SBIN}") or ""


def look() -> dict[str, object]:
    """Return what the image has: its Python, what it lacks of a node, and by what that can be installed."""
    missing = [program for program in NEEDED if not found(program)]
    managers = [manager for manager in INSTALL if found(manager)]
    return {"python": list(sys.version_info[:2]), "missing": missing, "manager": (managers or [""])[0]}


def write(path: str, text: str, mode: int) -> None:
    """Write a file that has this mode from the beginning."""
    if os.path.lexists(path):
        os.unlink(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask is
        file.write(text)


def lines_of(path: str) -> list[str]:
    """Return the lines of a file, none if there is no file."""
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def install() -> None:
    """Install what is missing. Raise Unfit with the last line of the package manager if that fails."""
    lacks = look()
    if not lacks["missing"]:
        return
    silent = not os.path.exists(POLICY)
    if silent:
        write(POLICY, "#!/bin/sh\nexit 101\n", 0o755)
    try:
        for words in INSTALL.get(str(lacks["manager"]), []):
            done = subprocess.run(
                words,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode:
                said = done.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
                raise Unfit(f"{' '.join(words[:3])}: {said[-1]}")
    finally:
        if silent:
            os.unlink(POLICY)


def make_user(name: str, uid: int, gids: list[int]) -> str:
    """Make the user, its group and its groups of devices, and return its home.

    Our line comes first: images of Ubuntu have a user of their own with uid 1000, and the first line of a uid counts.
    Raise Unfit if the name is another user's.
    """
    users = lines_of("/etc/passwd")
    same = [line.split(":") for line in users if line.split(":")[0] == name]
    if same and same[0][2] != str(uid):
        raise Unfit(f"the image has a user {name} with uid {same[0][2]}: give that node_container_uid or another user")
    shell = found("bash") or "/bin/sh"
    line = ":".join(same[0]) if same else f"{name}:x:{uid}:{uid}::/home/{name}:{shell}"
    home, gid = line.split(":")[5], line.split(":")[3]
    write("/etc/passwd", "\n".join([line, *(other for other in users if other != line)]) + "\n", 0o644)
    shadow = [line for line in lines_of("/etc/shadow") if line.split(":")[0] != name]
    # `*` is "no password", while `!` is "locked": an sshd without PAM lets nobody in there.
    write("/etc/shadow", "\n".join([*shadow, f"{name}:*:19000:0:99999:7:::"]) + "\n", 0o600)
    write("/etc/group", "\n".join(groups_with(lines_of("/etc/group"), name, int(gid), gids)) + "\n", 0o644)
    return home


def groups_with(groups: list[str], name: str, gid: int, gids: list[int]) -> list[str]:
    """Return the lines of /etc/group with the user's own group, and the user in those of the devices."""
    rows = [line.split(":") for line in groups if line.count(":") == 3]
    rows = [row for row in rows if row[2].isdigit()]  # no number: a line for NIS (nsswitch.conf(5), compat)
    there = {row[2] for row in rows}
    if str(gid) not in there:
        rows.append([name, "x", str(gid), ""])
    rows += [[f"device{other}", "x", str(other), ""] for other in gids if str(other) not in there and other != gid]
    for row in rows:
        members = [member for member in row[3].split(",") if member]
        if int(row[2]) in gids and name not in members:
            row[3] = ",".join([*members, name])
    return [":".join(row) for row in rows]


def is_mounted(path: str) -> bool:
    """Whether a path lies on a mount of the container: its files are then those of the machine."""
    points = [line.split()[4].replace("\\040", " ") for line in lines_of(MOUNTS)]
    real = os.path.realpath(path)
    return any(point != "/" and (real + "/").startswith(point + "/") for point in points)


def make_home(home: str, uid: int) -> None:
    """Make the user's home, without keys that the image brought: they may be those of other clusters.

    What there is on a mount stays as it is. Raise Unfit if it is another user's.
    """
    ssh, there = os.path.join(home, ".ssh"), os.path.isdir(home)
    if there and is_mounted(home):
        owner = os.stat(home).st_uid
        if owner != uid:
            raise Unfit(f"{home} is on a mount, and of uid {owner}: give that node_container_uid or another user")
        return
    os.makedirs(ssh, mode=0o700, exist_ok=True)
    for path in (home, ssh):
        if not (there and is_mounted(path)):
            os.chown(path, uid, gid_of(uid))
    keys = os.path.join(ssh, "authorized_keys")
    if os.path.lexists(keys) and not is_mounted(keys):
        os.unlink(keys)


def gid_of(uid: int) -> int:
    """Return the group of a user: that of the first line with its uid."""
    return next(int(row[3]) for row in (line.split(":") for line in lines_of("/etc/passwd")) if row[2] == str(uid))


def make_host_key() -> None:
    """Make the host key, and remove those that the image brought: everybody who has the image knows them."""
    for name in os.listdir("/etc/ssh"):
        if name.startswith("ssh_host_"):
            os.unlink(os.path.join("/etc/ssh", name))
    comment = f"root@{os.uname().nodename}"
    subprocess.run([found("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", HOST_KEY], check=True)


def name_itself() -> None:
    """Have the node's own name lead to itself: sudo and PyTorch look it up."""
    name = os.uname().nodename
    if not any(name in line.split("#")[0].split()[1:] for line in lines_of("/etc/hosts")):
        with open("/etc/hosts", "a") as file:
            file.write(f"127.0.1.1 {name}\n")


def setenv_of(environment: dict[str, str], env: dict[str, str]) -> list[str]:
    """Return what sshd gives to logins, as NAME="value": by itself it keeps nothing of the image's variables."""
    kept = {name: value for name, value in environment.items() if name not in NOT_FOR_LOGINS}
    kept["PATH"] = ":".join(dict.fromkeys([*kept.get("PATH", "").split(":"), *SBIN.split(":")])).strip(":")
    return [f'{name}="{text}"' for name, text in {**kept, **env}.items() if not set('"\\\n\r') & set(name + text)]


def config_of(port: int, listen: list[str], variables: list[str], sftp: str) -> str:
    """Return the configuration of sshd. The first value of a keyword counts (sshd_config(5)), so ours stand first.

    Only the drop-ins that our roles write are read: the image's own may say another port, and ports add up, or let in
    whom nobody here knows.
    """
    addresses = [f"[{address}]" if ":" in address else address for address in listen]
    lines = [f"Port {port}", *(f"ListenAddress {address}:{port}" for address in addresses)]
    lines += [f"HostKey {HOST_KEY}", "PidFile /run/sshd.pid", f"AuthorizedKeysFile .ssh/authorized_keys {KEYS}"]
    lines += ["PasswordAuthentication no", "PermitRootLogin no", "UsePAM no", "X11Forwarding no"]
    lines += [f"Subsystem sftp {sftp}", *([f"SetEnv {' '.join(variables)}"] if variables else [])]
    return "\n".join([*lines, "Include /etc/ssh/sshd_config.d/*torchfleet*.conf"]) + "\n"


def be_born(given: dict[str, object]) -> None:
    """Make everything that a new container lacks."""
    install()
    name, uid = str(given["user"]), int(str(given["uid"]))
    gids = given["gids"] if isinstance(given["gids"], list) else []
    home = make_user(name, uid, [int(gid) for gid in gids])
    make_home(home, uid)
    write(KEYS, str(given["key"]) + "\n", 0o644)
    os.makedirs("/etc/sudoers.d", mode=0o750, exist_ok=True)
    write("/etc/sudoers.d/torchfleet_node", f"{name} ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    make_host_key()
    write(BIRTH, str(given["birth"]), 0o644)


def keep_sshd() -> int:
    """Run sshd until it or the container ends, and collect what orphans leave: this process is their parent."""
    sshd = subprocess.Popen([found("sshd"), "-D", "-e", "-f", CONFIG])

    def end(_number: int, _frame: FrameType | None) -> None:
        sshd.terminate()

    signal.signal(signal.SIGTERM, end)
    while True:
        pid, status = os.wait()
        if pid == sshd.pid:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0


def main(argument: str) -> int:
    """Be the first process of a node. `argument`: the JSON object of the top of this file."""
    given = json.loads(argument)
    try:
        if lines_of(BIRTH) != [given["birth"]]:
            be_born(given)
        name_itself()
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        env = setenv_of(dict(os.environ), given["env"])
        write(CONFIG, config_of(given["port"], given["listen"], env, "internal-sftp"), 0o600)
    except (Unfit, OSError, subprocess.CalledProcessError) as error:
        print(f"node: {error}", file=sys.stderr)
        return 1
    return keep_sshd()


if __name__ == "__main__":
    if sys.argv[1:] == ["look"]:
        print(json.dumps(look()))
    else:
        sys.exit(main(sys.argv[1]))
