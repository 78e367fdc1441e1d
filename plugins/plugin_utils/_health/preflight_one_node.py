# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight of each node by itself: one function per rule, from its facts to findings. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.survey import PORTS
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.interpreter import number

from .findings import Finding
from .preflight_inventory import is_loopback
from .preflight_types import Case
from .prerequisites import LEAST_FILES, LEAST_PROCESSES
from .standalone import is_supported

GB, MB = 10**9, 10**6
ARCHITECTURES = ("x86_64", "aarch64")  # for which PyTorch and the MPI wheels exist
LEAST_LIBC = (2, 28)  # manylinux_2_28: PyTorch's wheels since 2.6
# The first release of each distribution whose Python runs our modules and whose sshd reads drop-ins (OpenSSH 8.2).
OLDEST_RELEASES = {
    **dict.fromkeys(("rhel", "centos", "rocky", "almalinux", "ol"), "9"),
    "debian": "11",
    "ubuntu": "20.04",
}
LEAST_HOME = 250 * MB  # if PyTorch is not installed there: an MPI, our code, a job's files
LEAST_SHM = 16 * MB  # one launcher's session and a few ranks
LEAST_MEMORY = 400 * MB  # of a rank that has imported PyTorch
LEAST_PORTS = 100  # of the ports that a job may choose


def operating_system(case: Case) -> Iterator[Finding]:
    """Linux with a C library and a processor for which there are wheels; a tested distribution."""
    system = case.facts["system"]
    libc = re.fullmatch(r"glibc (\d+)\.(\d+).*", system["libc"])
    if system["kernel"] != "Linux" or not libc or (int(libc[1]), int(libc[2])) < LEAST_LIBC:
        yield case.found("TF-OS-UNSUPPORTED", f"{system['kernel']}, {system['libc'] or 'a C library other than glibc'}")
    if system["arch"] not in ARCHITECTURES:
        yield case.found("TF-ARCH-UNSUPPORTED", system["arch"])
    name = f"{system['os']} {system['os_version']}".strip()
    known = any(name == each or name.startswith((f"{each} ", f"{each}.")) for each in case.limits.supported_os)
    oldest = OLDEST_RELEASES.get(system["os"], "")
    if number(system["os_version"]) < number(oldest):
        yield case.found("TF-OS-OLD", system["os_name"] or name, oldest=oldest)
    elif not known:
        yield case.found("TF-OS-UNTESTED", system["os_name"] or name or "it has no /etc/os-release", os=name)


def python(case: Case) -> Iterator[Finding]:
    """An interpreter for the ranks' environment, on workers."""
    about, limits = case.facts["python"], case.limits
    if not case.target.worker:
        return
    if not about["version"]:
        yield case.found("TF-PYTHON-TORCH", f"{about['path']} cannot be run", **vars(limits))
    elif not is_supported(about["version"], limits.python_min, limits.python_max):
        yield case.found("TF-PYTHON-TORCH", f"Python {about['version']} at {about['path']}", **vars(limits))
    elif not about["venv"]:
        yield case.found("TF-NO-VENV", f"{about['path']} has no module venv", path=about["path"])


def root(case: Case) -> Iterator[Finding]:
    """Root, if preflight_needs_root says that setup needs it."""
    state = case.facts["user"]["sudo"]
    if case.limits.needs_root and (state == "missing" or (state == "no" and not case.target.may_ask_password)):
        seen = "sudo is not installed" if state == "missing" else "sudo asks for a password, or refuses this user"
        yield case.found("TF-NO-SUDO", f"{case.facts['user']['name']}: {seen}", user=case.facts["user"]["name"])


def home(case: Case) -> Iterator[Finding]:
    """A home that is writable, allows programs to run, has enough space, and belongs to this node and user only."""
    place, limits = case.facts["home"], case.limits
    words = {"home": place["path"], "near": place["near"], "user": case.facts["user"]["name"]}
    where = f"{place['near']} ({place['kind']} of {place['source']})"
    to_install = case.target.worker and not case.facts["versions"]["torch"]
    need = max(limits.min_disk_gb * GB, LEAST_HOME) if to_install else LEAST_HOME
    if place["read_only"]:
        yield case.found("TF-HOME-READONLY", f"{where} is mounted read-only", **words)
    elif not place["writable"]:
        yield case.found("TF-HOME-READONLY", f"{words['user']} cannot write to {where}", **words)
    elif place["free"] < need or place["free_inodes"] == 0:
        inodes = " and no inodes" if place["free_inodes"] == 0 else ""
        yield case.found(
            "TF-DISK-HOME", f"{size(place['free'])}{inodes} free in {where}; needed: {size(need)}", **words
        )
    if place["noexec"]:
        yield case.found("TF-HOME-NOEXEC", f"{where} is mounted noexec", **words)
    for each in place["loose"] if place["writable"] else ():
        seen = {"owner": "{} belongs to another user", "everybody": "every user can write to {}"}[each["why"]]
        yield case.found("TF-HOME-LOOSE", seen.format(each["path"]), **{**words, "loose": each["path"]})


def temporary(case: Case) -> Iterator[Finding]:
    """Free space in /tmp."""
    place, need = case.facts["tmp"], case.limits.min_tmp_mb * MB
    if place["free"] < need or place["free_inodes"] == 0 or not place["writable"]:
        seen = f"{size(place['free'])} free in {place['near']}; needed: {size(need)}"
        yield case.found("TF-DISK-TMP", seen if place["writable"] else f"{place['near']} is not writable")


def shared_memory(case: Case) -> Iterator[Finding]:
    """Free space in /dev/shm, which launchers, NCCL and DataLoader workers use."""
    place = case.facts["shm"]
    seen = f"{size(place['free'])} of {size(place['size'])} free in /dev/shm"
    if place["free"] < LEAST_SHM:
        yield case.found("TF-SHM-FULL", f"{seen}; needed: {size(LEAST_SHM)}")
    elif place["size"] < case.limits.min_shm_mb * MB:
        yield case.found("TF-SHM-SMALL", f"{seen}; recommended: {size(case.limits.min_shm_mb * MB)}")


def memory(case: Case) -> Iterator[Finding]:
    """Memory for the ranks: the machine's or the control group's limit, whichever is less."""
    facts = case.facts["memory"]
    limit = facts["limit"] or facts["total"]
    need = LEAST_MEMORY * (case.target.slots or 1)
    if case.target.worker and min(limit, facts["total"]) < need:
        whose = "the control group of this session" if limit < facts["total"] else "the machine"
        seen = f"{whose} has {size(min(limit, facts['total']))} (swap: {size(facts['swap'])})"
        yield case.found("TF-MEMORY-LOW", f"{seen}; {case.target.slots or 1} ranks need {size(need)}")


def limits_of_the_session(case: Case) -> Iterator[Finding]:
    """ulimit -l, -Hn, -u of an SSH session: with limits.conf and systemd, other sessions may have other limits."""
    facts = case.facts["limits"]
    if case.facts["rdma"] and facts["memlock"] is not None:
        devices = ", ".join(case.facts["rdma"])
        yield case.found("TF-MEMLOCK", f"ulimit -l is {facts['memlock'] >> 10} KiB; RDMA devices: {devices}")
    if facts["nofile"] is not None and facts["nofile"] < LEAST_FILES:
        yield case.found("TF-NOFILE", f"ulimit -Hn is {facts['nofile']}; recommended: {LEAST_FILES}")
    if facts["nproc"] is not None and facts["nproc"] < LEAST_PROCESSES and case.facts["user"]["uid"] != 0:
        yield case.found("TF-NPROC", f"ulimit -u is {facts['nproc']}; recommended: {LEAST_PROCESSES}")


def rdma_libraries(case: Case) -> Iterator[Finding]:
    """RDMA devices, and the libraries that open them."""
    missing = case.facts["prerequisites"]["missing"].get("rdma")
    if case.facts["rdma"] and missing:
        devices = ", ".join(case.facts["rdma"])
        yield case.found("TF-RDMA-LIBRARIES", f"{', '.join(missing)} missing; RDMA devices: {devices}")


def clock(case: Case) -> Iterator[Finding]:
    """A clock that is wrong."""
    if case.clock and case.clock_is_wrong:
        side = "ahead of" if case.clock.offset > 0 else "behind"
        seen = f"{abs(case.clock.offset):.1f} s {side} the controller, give or take {case.clock.uncertainty:.1f} s"
        yield case.found("TF-CLOCK-SKEW", f"{seen}; allowed: {case.limits.max_clock_offset:g} s")


def own_name(case: Case) -> Iterator[Finding]:
    """A host name that resolves to a loopback address, or to none: Gloo gives the address to other ranks."""
    name, addresses = case.facts["host"]["name"], case.facts["host"]["addresses"]
    if case.count > 1 and not addresses:
        seen = "the lookup timed out" if addresses is None else "no address"
        yield case.found("TF-HOSTNAME-UNRESOLVED", f"{name}: {seen}", hostname=name)
    elif case.count > 1 and addresses and any(is_loopback(address) for address in addresses):
        yield case.found("TF-HOSTNAME-LOOPBACK", f"{name} is {', '.join(addresses)}", hostname=name)


def ports(case: Case) -> Iterator[Finding]:
    """Free ports for jobs, which outgoing connections do not use."""
    facts = case.facts["ports"]
    free = len(PORTS) - len(facts["listening"])
    span = f"{PORTS.start}-{PORTS.stop - 1}"
    if free < LEAST_PORTS:
        yield case.found("TF-PORTS-BUSY", f"{free} of the ports {span} are free")
    first, last = facts["local_range"] or (0, 0)
    if first < PORTS.stop and last >= PORTS.start:
        yield case.found("TF-PORT-RANGE", f"outgoing connections use {first}-{last}, jobs listen on {span}")


# What opens a firewall for one other node, by kind.
OPEN_BY_HAND = {
    "firewalld": "firewall-cmd --permanent --zone=trusted --add-source=ADDRESS; firewall-cmd --reload",
    "ufw": "ufw allow from ADDRESS",
    "nftables": "nft insert rule FAMILY TABLE CHAIN ip saddr ADDRESS accept, and the same in /etc/nftables.conf",
    "iptables": "iptables -I INPUT -s ADDRESS -j ACCEPT, and keep it: netfilter-persistent save",
}


def firewall(case: Case) -> Iterator[Finding]:
    """A firewall, which may block connections between nodes."""
    if case.count > 1 and case.facts["firewall"]:
        there = case.facts["firewall"]
        by_hand = "; ".join(dict.fromkeys(OPEN_BY_HAND[each["kind"]] for each in there))
        yield case.found(
            "TF-FIREWALL", "; ".join(f"{each['kind']}: {each['where']}" for each in there), by_hand=by_hand
        )


def logins(case: Case) -> Iterator[Finding]:
    """An sshd that accepts all other nodes at once, as a test of all pairs needs."""
    about = case.facts["sshd"]
    begin = number(about["max_startups"])[:1]
    if begin and begin[0] < case.count:
        seen = f"MaxStartups {about['max_startups']} ({about['from']}), for {case.count} nodes"
        yield case.found("TF-MAXSTARTUPS", seen, count=case.count, full=max(100, 2 * case.count))


def ssh_client(case: Case) -> Iterator[Finding]:
    """The head logs in to the workers."""
    if case.count > 1 and case.target.head and not case.facts["ssh"]:
        yield case.found("TF-NO-SSH", "ssh is not on the search path")


def gpu_drivers(case: Case) -> Iterator[Finding]:
    """A driver for each GPU that jobs could use; for NVIDIA, of the same version as its library."""
    gpus = case.facts["accelerators"]["gpus"]
    idle = [gpu for gpu in gpus if gpu["driver"] in ("", "nouveau")]  # nouveau is for screens only
    if case.target.worker and idle:
        yield case.found("TF-GPU-NO-DRIVER", f"{len(idle)} of {len(gpus)}: {idle[0]['model'] or idle[0]['id']}")
    module = case.facts["versions"]["driver"].partition("nvidia ")[2]
    library = case.facts["versions"]["driver_library"]
    if module and library and module != library:
        yield case.found("TF-NVIDIA-MISMATCH", f"kernel module {module}, library {library}")


NODE_RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    *(operating_system, python, root, home, temporary, shared_memory, memory, limits_of_the_session),
    *(rdma_libraries, clock, own_name, ports, firewall, logins, ssh_client, gpu_drivers),
)


def size(count: float) -> str:
    """Return "1.5 GB", "64 MB"."""
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"
