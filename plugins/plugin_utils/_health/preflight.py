# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight: findings from the inventory and the facts of all nodes, before anything is changed. Pure.

preflight_rules.py has the rules (severity, why, source, mend).
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.survey import PORTS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import shorten

from .drift import Drift, drift_findings
from .findings import Finding, found
from .preflight_rules import RULES

Facts = Mapping[str, Any]
GB, MB = 10**9, 10**6
ARCHITECTURES = ("x86_64", "aarch64")  # for which PyTorch and the MPI wheels exist
LEAST_LIBC = (2, 28)  # manylinux_2_28: PyTorch's wheels since 2.6
LEAST_HOME = 250 * MB  # if PyTorch is not installed there: an MPI, our code, a job's files
LEAST_SHM = 16 * MB  # one launcher's session and a few ranks
LEAST_MEMORY = 400 * MB  # of a rank that has imported PyTorch
LEAST_PORTS = 100  # of the ports that a job may choose
LEAST_FILES = 16384  # 4096 is the kernel's own limit, if neither systemd nor limits.conf raised it
LEAST_PROCESSES = 1024
SHARED_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.sshfs", "9p")


@dataclass(frozen=True)
class Target:
    """A host of the inventory, as Ansible reaches it. An empty text leaves the choice to the SSH client."""

    name: str
    address: str
    port: str = ""
    user: str = ""
    head: bool = False
    worker: bool = True
    slots: int | None = None
    may_ask_password: bool = False  # a become password is known

    @property
    def words(self) -> dict[str, str]:
        """Return the words for a rule's mend, among them the SSH command that repeats what Ansible tried."""
        where = f"{f'-p {self.port} ' if self.port else ''}{f'{self.user}@' if self.user else ''}{self.address}"
        return {
            "name": self.name,
            "address": self.address,
            "user": self.user,
            "login": f"ssh {where}",
            "copy_key": f"ssh-copy-id {where}",
            "known_as": self.address if self.port in ("", "22") else f"[{self.address}]:{self.port}",
        }


@dataclass(frozen=True)
class Clock:
    """How far a node's clock is ahead of the controller's, and the uncertainty of that, both in seconds."""

    offset: float
    uncertainty: float


@dataclass(frozen=True)
class Answer:
    """The answer of a node: facts, or an error of the connection (`problem`) or on the node (`failure`)."""

    facts: Facts | None = None
    clock: Clock | None = None
    problem: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Limits:
    """The thresholds that a user can set; each is a variable of the role."""

    min_disk_gb: float = 3.0
    min_tmp_mb: float = 200
    min_shm_mb: float = 256
    max_clock_offset: float = 5.0
    python_min: str = "3.11"
    python_max: str = "3.14"
    supported_os: tuple[str, ...] = ("debian 12", "debian 13")
    needs_root: bool = False
    compiles: bool = False  # a backend is compiled on nodes that do not have it yet


@dataclass(frozen=True)
class Case:
    """One node that answered, with everything that its findings depend on."""

    target: Target
    facts: Facts
    clock: Clock | None
    limits: Limits
    count: int  # of all nodes

    def found(self, name: str, seen: str, /, **words: object) -> Finding:
        """Return a finding on this node."""
        return found(
            RULES, name, [self.target.name], seen, **{**self.target.words, **type_there([self.facts]), **words}
        )


def type_there(facts: Iterable[Facts]) -> dict[str, str]:
    """Return the commands for a rule's mend, in the form for these nodes' distribution, or for any if they differ."""
    systems = {fact["system"]["os"] for fact in facts}
    return distribution.words(systems.pop() if len(systems) == 1 else "")


def clock_of(said: str, sent: float, received: float) -> dict[str, float] | None:
    """Return offset and uncertainty of a clock from the output of `date +%s.%N` and our own times around the call.

    `date` ran between `sent` and `received`, so the offset is between `said - received` and `said - sent`.
    A `date` without %N gives no fraction of the second. Return None if the output is not a time.
    """
    match = re.match(r"(\d{1,12})(?:\.(\d{1,12}))?(?!\d)", said, re.ASCII)
    if not match:
        return None
    second, fraction = float(match[1]), float(f"0.{match[2]}") if match[2] else None
    least = second + (fraction or 0.0) - received
    most = second + (1.0 if fraction is None else fraction) - sent
    return {"offset": (least + most) / 2, "uncertainty": (most - least) / 2}


def judge(targets: Sequence[Target], answers: Mapping[str, Answer], limits: Limits, drift: Drift) -> list[Finding]:
    """Return all findings, also of nodes that did not answer. `answers` by node name."""
    findings = list(inventory_findings(targets))
    cases = []
    for target in targets:
        answer = answers[target.name]
        if answer.facts is None:
            findings.append(silence(target, answer))
        else:
            cases.append(Case(target, answer.facts, answer.clock, limits, len(targets)))
    for case in cases:
        findings += [finding for rule in NODE_RULES for finding in rule(case)]
    findings += twins({case.target.name: case.facts for case in cases})
    findings += without_compiler(cases)
    return findings + drift_findings(drift, before_setup=True)


# --- the inventory (after the checks of hostvars.cluster_from_hostvars and cluster.check_cluster) ---------------------


def inventory_findings(targets: Sequence[Target]) -> Iterator[Finding]:
    """Yield findings about names and addresses that are valid one by one, but not together."""
    labels = defaultdict(list)
    for target in targets:
        if not re.fullmatch(r"[\d.]+", target.name):
            labels[target.name.split(".")[0].lower()].append(target.name)
        if len(targets) > 1 and is_loopback(target.address):
            yield found(
                RULES, "TF-ADDRESS-LOOPBACK", [target.name], f"ansible_host is {target.address}", **target.words
            )
    for label, names in labels.items():
        if len(names) > 1:
            yield found(RULES, "TF-NAME-FIRST-LABEL", names, f"the names begin with the same label, {label}")


def is_loopback(address: str) -> bool:
    """Whether an address or name means the machine itself on every machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


# --- nodes that gave no facts ------------------------------------------------------------------------------------

# Messages of OpenSSH's client (ssh/clientloop.c, sshconnect.c) and of Ansible, the most specific first.
SAYINGS = (
    (r"Failed to create temporary directory", "TF-ANSIBLE-TMP"),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed", "TF-HOST-KEY-CHANGED"),
    (r"Host key verification failed|No .* host key is known", "TF-HOST-KEY-UNKNOWN"),
    (r"Permission denied|Too many authentication failures|no such identity", "TF-SSH-KEY"),
    (r"Could not resolve hostname", "TF-NAME-UNKNOWN"),
    (r"Connection refused", "TF-SSH-PORT"),
    (r"timed out|No route to host|Network is unreachable|Host is down", "TF-UNREACHABLE"),
    (r"Connection (closed|reset)|kex_exchange_identification|banner exchange", "TF-SSH-CLOSED"),
    (r"requires a minimum of Python|future feature annotations", "TF-PYTHON-OLD"),
    (r"interpreter \S+ was not found|python\S*: (not found|No such file)|No python interpreters found", "TF-NO-PYTHON"),
    (r"No space left on device|No usable temporary directory", "TF-DISK-TMP"),
)
PREFACE = r"^(Task failed: |Failed to connect to the host via ssh: |Data could not be sent.*?: )+"  # of Ansible
GOODBYE = r"(Shared connection|Connection) to .* closed"  # of ssh, after the messages of the remote program


def has_reason(text: str) -> bool:
    """Return whether a text contains a known message of SSH or Ansible."""
    return any(re.search(says, text, re.IGNORECASE) for says, _name in SAYINGS)


def silence(target: Target, answer: Answer) -> Finding:
    """Return why a node has no facts, from the most specific line that SSH or the failed module printed."""
    text = answer.problem or answer.failure
    lines = [line.strip(" @\r") for line in text.splitlines() if line.strip(" @\r") and not re.match(GOODBYE, line)]
    telling = [(name, line) for says, name in SAYINGS for line in lines if re.search(says, line, re.IGNORECASE)]
    last = lines[-1] if lines else "no reason was given"
    name, line = telling[0] if telling else ("TF-UNREACHABLE" if answer.problem else "TF-NO-ANSWER", last)
    words = {**target.words, **type_there([])}
    return found(RULES, name, [target.name], shorten(re.sub(PREFACE, "", line), 160), **words)


# --- rules for one node --------------------------------------------------------------------------------------------


def operating_system(case: Case) -> Iterator[Finding]:
    """Linux with a C library and a processor that have wheels; a distribution that was tested."""
    system = case.facts["system"]
    libc = re.fullmatch(r"glibc (\d+)\.(\d+).*", system["libc"])
    if system["kernel"] != "Linux" or not libc or (int(libc[1]), int(libc[2])) < LEAST_LIBC:
        yield case.found("TF-OS-UNSUPPORTED", f"{system['kernel']}, {system['libc'] or 'a C library other than glibc'}")
    if system["arch"] not in ARCHITECTURES:
        yield case.found("TF-ARCH-UNSUPPORTED", system["arch"])
    name = f"{system['os']} {system['os_version']}".strip()
    if not any(name == known or name.startswith((f"{known} ", f"{known}.")) for known in case.limits.supported_os):
        yield case.found("TF-OS-UNTESTED", system["os_name"] or name or "it has no /etc/os-release", os=name)


def python(case: Case) -> Iterator[Finding]:
    """An interpreter for the ranks' environment, on workers."""
    about, limits = case.facts["python"], case.limits
    if not case.target.worker:
        return
    if not about["version"]:
        yield case.found("TF-PYTHON-TORCH", f"{about['path']} cannot be run", **vars(limits))
    elif not number(limits.python_min) <= number(about["version"])[:2] <= number(limits.python_max):
        yield case.found("TF-PYTHON-TORCH", f"Python {about['version']} at {about['path']}", **vars(limits))
    elif not about["venv"]:
        yield case.found("TF-NO-VENV", f"{about['path']} has no module venv", path=about["path"])


def number(version: str) -> tuple[int, ...]:
    """Return (3, 11, 2) of "3.11.2"."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


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
    """Room in /tmp."""
    place, need = case.facts["tmp"], case.limits.min_tmp_mb * MB
    if place["free"] < need or place["free_inodes"] == 0 or not place["writable"]:
        seen = f"{size(place['free'])} free in {place['near']}; needed: {size(need)}"
        yield case.found("TF-DISK-TMP", seen if place["writable"] else f"{place['near']} is not writable")


def shared_memory(case: Case) -> Iterator[Finding]:
    """Room in /dev/shm, which launchers, NCCL and DataLoader workers use."""
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


def clock(case: Case) -> Iterator[Finding]:
    """A clock whose offset exceeds the limit by more than the uncertainty."""
    if case.clock and abs(case.clock.offset) - case.clock.uncertainty > case.limits.max_clock_offset:
        side = "ahead of" if case.clock.offset > 0 else "behind"
        seen = f"{abs(case.clock.offset):.1f} s {side} the controller, give or take {case.clock.uncertainty:.1f} s"
        yield case.found("TF-CLOCK-SKEW", f"{seen}; allowed: {case.limits.max_clock_offset:g} s")


def own_name(case: Case) -> Iterator[Finding]:
    """A host name that resolves to a loopback address, or to none: Gloo gives the address to other ranks."""
    name, addresses = case.facts["host"]["name"], case.facts["host"]["addresses"]
    if case.count > 1 and not addresses:
        seen = "the lookup timed out" if addresses is None else "no address"
        yield case.found("TF-HOSTNAME-UNRESOLVED", f"{name}: {seen}", hostname=name)
    elif case.count > 1 and any(is_loopback(address) for address in addresses):
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


def firewall(case: Case) -> Iterator[Finding]:
    """A firewall, which may block connections between nodes."""
    if case.count > 1 and case.facts["firewall"]:
        yield case.found("TF-FIREWALL", "; ".join(case.facts["firewall"]))


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
    *(clock, own_name, ports, firewall, logins, ssh_client, gpu_drivers),
)


def size(count: float) -> str:
    """Return "1.5 GB", "64 MB"."""
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"


# --- rules for all nodes together ----------------------------------------------------------------------------------


def twins(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Yield what several nodes share but must not: the machine itself, its keys, ids, names and home."""
    known = set(shared_by(facts, lambda fact: [fact["host"]["network"]]).values())
    for names in known:
        yield found(RULES, "TF-SAME-MACHINE", names, "the same boot, network namespace and interfaces")
    for name, value_of, seen in (
        ("TF-SAME-HOST-KEY", lambda fact: fact["host"]["host_keys"], "the same host key of sshd, {}"),
        ("TF-SAME-MACHINE-ID", lambda fact: [fact["host"]["machine_id"]], "the same /etc/machine-id"),
        ("TF-SAME-HOSTNAME", lambda fact: [fact["host"]["name"]], "the same host name, {}"),
        ("TF-HOME-SHARED", shared_home, "the same home on a shared file system, {}"),
    ):
        by_names = {names: value for value, names in shared_by(facts, value_of).items() if names not in known}
        for names, value in by_names.items():
            yield found(RULES, name, names, seen.format(value), **type_there([facts[each] for each in names]))


def without_compiler(cases: Sequence[Case]) -> Iterator[Finding]:
    """Yield each kind of machine of which none can build a backend: one of each kind builds it for the others."""
    kinds = defaultdict(list)
    for case in cases:
        if case.target.worker and case.limits.compiles:
            system, version = case.facts["system"], case.facts["python"]["version"]
            kinds[system["os"], system["os_version"], system["arch"], version].append(case)
    for kind in kinds.values():
        if not any(can_build(case) for case in kind):
            lacks = ["g++"] * (not kind[0].facts["compiler"]) + ["Python.h"] * (not kind[0].facts["python"]["headers"])
            names = [case.target.name for case in kind]
            why = "installing it needs root" if installs(kind[0].facts) else "torchfleet installs it only with apt"
            words = {"name": names[0], **type_there([kind[0].facts])}
            yield found(RULES, "TF-NO-COMPILER", names, f"missing: {' and '.join(lacks)}; {why}", **words)


def can_build(case: Case) -> bool:
    """Whether a machine has a built backend, can build one, or can become root to install the build tools."""
    facts = case.facts
    has_tools = facts["compiler"] and facts["python"]["headers"]
    root = facts["user"]["sudo"] in ("root", "yes") or case.target.may_ask_password
    return bool(has_tools or facts["backends"] or (root and installs(facts)))


def installs(facts: Facts) -> bool:
    """Whether the roles can install packages of this distribution."""
    return distribution.family(facts["system"]["os"]) == "deb"


def shared_by(facts: Mapping[str, Facts], values_of: Callable[[Facts], Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return each value that several nodes share, with these nodes."""
    nodes = defaultdict(list)
    for name, fact in facts.items():
        for value in values_of(fact):
            nodes[value].append(name)
    return {value: tuple(names) for value, names in nodes.items() if value and len(names) > 1}


def shared_home(fact: Facts) -> list[str]:
    """Return source and path of a home on a file system that other machines may mount too, else nothing."""
    place = fact["home"]
    return [f"{place['source']} at {place['path']}"] if place["kind"] in SHARED_FILE_SYSTEMS else []
