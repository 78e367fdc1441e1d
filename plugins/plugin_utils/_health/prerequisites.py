# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What role prerequisites does on a node as root, from the node's facts and the role's switches. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.prerequisites import MANAGERS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .findings import Finding
from .preflight_types import Case

SWITCHES = ("rdma", "limits", "clock", "logins", "ssh_client")
SETTINGS = ("auto", "true", "false")
LEAST_FILES = 16384  # 4096 is the kernel's own limit, if neither systemd nor limits.conf raised it
LEAST_PROCESSES = 1024
FILES, PROCESSES = 65536, 32768  # what the limits are raised to
CHRONY = {"deb": "chrony", "rpm": "chronyd"}  # what its unit is called
PYTHON_FINDINGS = ("TF-PYTHON-TORCH", "TF-NO-VENV")
MENDED_AS_ROOT = "setup.yml does this as root (role prerequisites)"
MENDED_BY_PYTHON = "setup.yml brings a Python of its own to all nodes, without root (role prerequisites)"


@dataclass(frozen=True)
class Work:
    """What is to be done. Empty parts are not touched."""

    packages: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)  # of our file, all of them
    logins: str = ""  # MaxStartups
    time_unit: str = ""  # to turn on
    mends: frozenset[str] = frozenset()  # ids of preflight's findings
    required: tuple[str, ...] = ()  # switches whose work must not be left

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.packages or self.limits or self.logins or self.time_unit)

    @property
    def summary(self) -> str:
        """The work in words."""
        parts = [f"install {', '.join(self.packages)}"] * bool(self.packages)
        parts += [f"turn on {self.time_unit}.service"] * bool(self.time_unit)
        limits = " ".join(f"{name}={value}" for name, value in self.limits.items())
        parts += [f"set the limits {limits}"] * bool(limits)
        parts += [f"set MaxStartups {self.logins} of sshd"] * bool(self.logins)
        return "; ".join(parts)

    def order(self, case: Case) -> dict[str, object]:
        """Return what the module on the node is told."""
        return {
            "manager": case.facts["prerequisites"]["manager"],
            "packages": list(self.packages),
            "limits": dict(self.limits),
            "logins": self.logins,
            "time_unit": self.time_unit,
            "wait_for_clock": case.clock_is_wrong,
            "required": list(self.required),
        }


def parse_switches(given: Mapping[str, object]) -> dict[str, str]:
    """Return the switches by name, each auto, true or false. InputError for any other value."""
    switches = {name: str(given.get(name, "auto")).lower() for name in (*SWITCHES, "python")}
    for name, value in switches.items():
        if value not in SETTINGS:
            raise InputError(f"prerequisites_{name}", given[name], f"give one of {', '.join(SETTINGS)}")
    return switches


def work_on(case: Case, switches: Mapping[str, str]) -> Work:
    """Return what is to be done on a node."""
    works = []
    for name, part in PARTS.items():
        if switches[name] != "false":
            work = part(case, switches[name] == "true")
            forced = (name,) if switches[name] == "true" and not work.is_empty else ()
            works.append(replace(work, required=(*work.required, *forced)))
    return Work(
        packages=tuple(dict.fromkeys(package for work in works for package in work.packages)),
        limits=next((work.limits for work in works if work.limits), {}),
        logins=next((work.logins for work in works if work.logins), ""),
        time_unit=next((work.time_unit for work in works if work.time_unit), ""),
        mends=frozenset(name for work in works for name in work.mends),
        required=tuple(dict.fromkeys(name for work in works for name in work.required)),
    )


def is_surely_root(case: Case) -> bool:
    """Whether it is known that the role can become root on a node."""
    return case.facts["user"]["sudo"] in ("root", "yes") or case.target.may_ask_password


def can_become_root(case: Case) -> bool:
    """Whether the role may be root on a node. Where sudo was not tried, nothing says that it will not be."""
    return is_surely_root(case) or case.facts["user"]["sudo"] == "not tried"


def mended_by_setup(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return a node's findings; those that the role mends are no errors and no warnings."""
    switches = case.limits.prerequisites
    work = work_on(case, switches) if switches and can_become_root(case) else Work()
    own_python = switches.get("python", "false") != "false"
    found = []
    for finding in findings:
        if finding.id in work.mends:
            otherwise = "" if is_surely_root(case) else f"; where nobody can become root: {finding.mend}"
            found.append(replace(finding, severity="info", mend=MENDED_AS_ROOT + otherwise))
        elif finding.id in PYTHON_FINDINGS and own_python:
            found.append(replace(finding, severity="info", mend=MENDED_BY_PYTHON))
        else:
            found.append(finding)
    return found


# --- the parts --------------------------------------------------------------------------------------------------------


def rdma(case: Case, forced: bool) -> Work:
    """The libraries through which programs use RDMA devices, where there are any, and what verify tests them by."""
    missing = case.facts["prerequisites"]["missing"]
    packages = (*missing.get("rdma", ()), *missing.get("rdma_tools", ()))
    if not packages or not (forced or case.facts["rdma"]):
        return Work()
    return Work(packages=packages, mends=frozenset({"TF-RDMA-LIBRARIES"}))


def limits(case: Case, forced: bool) -> Work:
    """Limits of a login that are too low. What our file has already stays in it."""
    there = case.facts["prerequisites"]["limits"]
    lacking = dict(low_limits(case, forced))
    if all(there.get(name) == value for name, (value, _finding) in lacking.items()):
        return Work()
    wanted = {**there, **{name: value for name, (value, _finding) in lacking.items()}}
    return Work(limits=wanted, mends=frozenset(finding for _value, finding in lacking.values()))


def low_limits(case: Case, forced: bool) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each limit that is too low, what it should be, and the finding about it."""
    limit = case.facts["limits"]
    if limit["memlock"] is not None and (forced or case.facts["rdma"]):
        yield "memlock", ("unlimited", "TF-MEMLOCK")
    if limit["nofile"] is not None and limit["nofile"] < (FILES if forced else LEAST_FILES):
        yield "nofile", (str(FILES), "TF-NOFILE")
    if limit["nproc"] is not None and limit["nproc"] < LEAST_PROCESSES and case.facts["user"]["uid"] != 0:
        yield "nproc", (str(PROCESSES), "TF-NPROC")


def clock(case: Case, forced: bool) -> Work:
    """A time service where none runs and the clock is wrong: one that is installed, or chrony."""
    about = case.facts["prerequisites"]
    if about["time_service"]["runs"] or not (forced or case.clock_is_wrong):
        return Work()
    installed = about["time_service"]["installed"]
    packages = () if installed else tuple(about["missing"]["clock"])
    if not installed and not packages:
        return Work()
    required = ("clock",) if case.clock_is_wrong else ()
    unit = installed or CHRONY[MANAGERS[about["manager"]]]
    return Work(packages=packages, time_unit=unit, mends=frozenset({"TF-CLOCK-SKEW"}), required=required)


def logins(case: Case, _forced: bool) -> Work:
    """An sshd that accepts all other nodes at once. What our file has already is not written again."""
    begins = [first_number(case.facts["sshd"]["max_startups"]), first_number(case.facts["prerequisites"]["logins"])]
    if begins[0] is None or begins[0] >= case.count or (begins[1] or 0) >= case.count:
        return Work()
    startups = f"{case.count}:30:{max(100, 2 * case.count)}"
    return Work(logins=startups, mends=frozenset({"TF-MAXSTARTUPS"}))


def first_number(startups: str) -> int | None:
    """Return the number of logins from which on sshd drops some; None if it is not known."""
    found = re.match(r"\d{1,9}", startups)
    return int(found.group()) if found else None


def ssh_client(case: Case, forced: bool) -> Work:
    """An SSH client on the head."""
    missing = case.facts["prerequisites"]["missing"]["ssh_client"]
    needed = case.target.head and case.count > 1 and not case.facts["ssh"]
    if not missing or not (forced or needed):
        return Work()
    return Work(tuple(missing), mends=frozenset({"TF-NO-SSH"}), required=("ssh_client",) if needed else ())


PARTS = {"rdma": rdma, "limits": limits, "clock": clock, "logins": logins, "ssh_client": ssh_client}
