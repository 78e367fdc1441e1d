"""What is done to a job, its nodes and its controller: one function for each kind, which a row of rows.py fills in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.driver import command, family, parent, pids, wait_until
from tests.faults.bed import AWAY, Bed
from tests.lab.cluster import SLURM, Job, is_daemon
from tests.lab.lab import namespace

JOBS = "/home/fleet/.torchfleet/jobs"
SAVED = 6.0
GROUPS = Path("/sys/fs/cgroup")  # of this machine, version 1


class Cell(Protocol):
    """What a deed needs of the cell that it is done in."""

    bed: Bed
    job: Job
    launcher: str
    before: set[int]  # torchfleet's own processes that were there already


Deed = Callable[[Cell], None]


def nothing(_cell: Cell) -> None:
    """Leave all as it is."""


def all_of(*deeds: Deed) -> Deed:
    """Return a deed that does several at once."""

    def do(cell: Cell) -> None:
        for deed in deeds:
            deed(cell)

    return do


def as_root(node: str, *argv: str) -> Deed:
    """Return what runs a program on a node as root; it may fail."""

    def do(cell: Cell) -> None:
        cell.bed.lab.root(node, *argv, check=False)

    return do


# --- processes -----------------------------------------------------------------------------------------------------


def tell(*nodes: str) -> Deed:
    """Have the rank of the row do what it is there for."""
    return lambda cell: cell.bed.tell(cell.job.job_id, "go", *nodes)


def program(cell: Cell, node: str) -> int:
    """Return the pid of the program of the rank on a node."""
    return cell.job.programs(node, "steady.py")[0]


def part(cell: Cell, node: str, what: str) -> int:
    """Return the pid of a part of the job. On the head a launcher is its own daemon."""
    if what == "rank":
        return program(cell, node)
    if what == "wrapper":
        return parent(program(cell, node))
    mine = cell.bed.supervisors(node) - cell.before
    supervisor = next(pid for pid in mine if parent(pid) not in mine)
    guard = next(pid for pid in mine if parent(pid) == supervisor)
    if what == "launcher":
        alive = cell.job.alive(node)
        above = parent(parent(program(cell, node)))
        if node != "n1" and "".join(command(above)[:1]).startswith("slurmstepd"):  # root's, without the job's mark
            return above
        return next(pid for pid in alive if (parent(pid) == guard if node == "n1" else is_daemon(command(pid))))
    return supervisor if what == "supervisor" else guard


def signal_part(node: str, what: str, number: int) -> Deed:
    """Signal a part of the job on a node: rank, wrapper, launcher (its daemon on a worker), guard or supervisor."""
    return lambda cell: os.kill(part(cell, node, what), number)


def kill_both(node: str) -> Deed:
    """Kill guard and supervisor of a node at once: the guard is stopped first, so that it cannot notice."""

    def do(cell: Cell) -> None:
        guard, supervisor = part(cell, node, "guard"), part(cell, node, "supervisor")
        os.kill(guard, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        os.kill(guard, signal.SIGKILL)

    return do


def go_on(node: str, name: str) -> Deed:
    """Have programs of a node that are called so go on after SIGSTOP."""

    def do(cell: Cell) -> None:
        spaces = cell.bed.spaces(node)
        for pid in pids():
            if namespace(pid) in spaces and "".join(command(pid)[:1]).startswith(name):
                os.kill(pid, signal.SIGCONT)

    return do


def kill_link(node: str) -> Deed:
    """Kill the head's ssh to a node."""

    def do(cell: Cell) -> None:
        supervisor = part(cell, "n1", "supervisor")
        ours = [pid for pid in pids() if parent(pid) == supervisor and command(pid)[:1] == ["ssh"]]
        os.kill(next(pid for pid in ours if node in command(pid)), signal.SIGKILL)

    return do


# --- the controller ------------------------------------------------------------------------------------------------


def signal_controller(number: int) -> Deed:
    return lambda cell: cell.job.process.send_signal(number)


def signal_controllers(number: int) -> Deed:
    """Signal all of them."""

    def do(cell: Cell) -> None:
        for pid in family(cell.job.process.pid):
            os.kill(pid, number)

    return do


# --- nodes and networks --------------------------------------------------------------------------------------------


def to_node(what: str, node: str) -> Deed:
    """Cut, heal, pause, resume, kill or restart a node."""

    def do(cell: Cell) -> None:
        cell.bed.lab.disturb(what, node)

    return do


def restart(node: str) -> Deed:
    """Start a node again after a power cut."""

    def do(cell: Cell) -> None:
        if cell.bed.lab.states()[node] != "running":
            cell.bed.lab.restart(node)
        cell.bed.cluster.wait_for_sshd(node)
        cell.bed.wake()

    return do


def wait(seconds: float) -> Deed:
    return lambda _cell: time.sleep(seconds)


TRIES = "net.ipv4.tcp_retries2"  # of a packet that nobody takes, until the kernel gives its connection up
FEW, USUAL = 5, 15  # which take some 13 seconds, and 15 minutes: ip-sysctl.rst of the kernel


def cut_controller(cell: Cell) -> None:
    """Drop what the head and this machine send each other; look into nodes from outside all the same.

    Only the kernel tells the head: a controller that is stopped is silent too, and its job goes on.
    """
    cell.bed.lab.network("n1", "sysctl", "-w", f"{TRIES}={FEW}")
    address = cell.bed.lab.address("n1").rpartition(".")[0] + ".1"
    chains = (("in", "input", "saddr"), ("out", "output", "daddr"))
    rules = [
        f"chain {name} {{ type filter hook {hook} priority -10; ip {end} {address} drop; }}"
        for name, hook, end in chains
    ]
    cell.bed.lab.network("n1", "nft", f"table inet {AWAY} {{ {'; '.join(rules)}; }}")


def heal_controller(cell: Cell) -> None:
    cell.bed.lab.network("n1", "sysctl", "-w", f"{TRIES}={USUAL}")
    cell.bed.mend_nodes()


def restart_sshd(*nodes: str) -> Deed:
    """Restart the SSH server of nodes: connections that are there stay."""
    return all_of(*[as_root(node, "systemctl", "restart", "ssh") for node in nodes])


# --- Slurm ---------------------------------------------------------------------------------------------------------


def until_saved(cell: Cell) -> None:
    """Wait until slurmctld has written what it knows of the job, if it knows it: 5 s at most (Slurm, state_save.c).

    Else it forgets the job when it is killed, and gives its number to the next one.
    """
    if cell.launcher in SLURM:
        time.sleep(SAVED)


def wake(cell: Cell) -> None:
    """Have all daemons of Slurm run."""
    cell.bed.wake()


def kill_service(node: str, name: str, whom: str = "main") -> Deed:
    """Kill a daemon of the system, `main` or with `all` that it started; systemd leaves these dead."""

    def do(cell: Cell) -> None:
        cell.bed.lab.root(node, "systemctl", "kill", "--signal=SIGKILL", f"--kill-who={whom}", name)

    return do


def in_slurm(*argv: str) -> Deed:
    """Run a command of Slurm's as root, with the numbers that it has for the job."""

    def do(cell: Cell) -> None:
        cell.bed.lab.root("n1", *argv, *cell.bed.queued(cell.job.job_id))

    return do


# --- disks and memory ----------------------------------------------------------------------------------------------


MOUNT = """mkdir -p "$1" && mount -t tmpfs -o size=$2,uid=$(id -u fleet),mode=$3 none "$1"
[ $2 != 64k ] || dd if=/dev/zero of="$1/full" bs=4k 2>/dev/null"""


def small_disk(node: str, where: str, size: str) -> Deed:
    """Mount a small disk for the user; one of 64k is full."""
    return as_root(node, "sh", "-c", MOUNT, "sh", where, size, "0700" if where == JOBS else "1777")


def unmount(node: str, where: str) -> Deed:
    return as_root(node, "umount", "-l", where)


def squat(node: str) -> Deed:
    """Have another user take the directories that launchers make below /tmp."""
    names = ("ompi.{node}.{uid}", "prte.{node}.{uid}", "pmix.{node}.{uid}", "hydra.{uid}")

    def do(cell: Cell) -> None:
        uid = cell.bed.lab.root(node, "id", "-u", "fleet").strip()
        paths = [f"/tmp/{name.format(node=node, uid=uid)}" for name in names]
        cell.bed.lab.root(node, "install", "-d", "-m", "0700", "-o", "root", *paths)

    return do


def unsquat(node: str) -> Deed:
    return as_root(node, "sh", "-c", "rm -rf /tmp/ompi.* /tmp/prte.* /tmp/pmix.* /tmp/hydra.*")


def group(cell: Cell, kind: str, node: str, *settings: tuple[str, str]) -> Path:
    """Put the program of a node's rank into a control group of its own."""
    place = GROUPS / kind / f"faults-{cell.job.job_id}"
    place.mkdir(exist_ok=True)
    for name, value in settings:
        (place / name).write_text(value)
    (place / "cgroup.procs").write_text(str(program(cell, node)))
    return place


def short_of_memory(node: str) -> Deed:
    """Let the rank of a node have 32 MiB more, and have it take more: the kernel kills it."""

    def do(cell: Cell) -> None:
        group(cell, "memory", node, ("memory.limit_in_bytes", str(32 << 20)))
        tell()(cell)

    return do


def freeze(node: str) -> Deed:
    """Have the kernel hold the rank of a node in state D: no signal ends it."""

    def do(cell: Cell) -> None:
        place = group(cell, "freezer", node)
        (place / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (place / "freezer.state").read_text().strip() == "FROZEN")

    return do


def remove_groups(cell: Cell) -> None:
    """Thaw what was frozen, and remove the groups when nothing is in them any more."""
    for kind in ("freezer", "memory"):
        place = GROUPS / kind / f"faults-{cell.job.job_id}"
        if place.exists():
            if kind == "freezer":
                (place / "freezer.state").write_text("THAWED")
            wait_until(partial(is_empty, place), 20.0)
            place.rmdir()


def is_empty(group: Path) -> bool:
    """Whether no process is in a control group."""
    return not (group / "cgroup.procs").read_text()
