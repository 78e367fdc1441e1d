# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The form of what a node tells of itself before a job: its facts, its network, and what runs there."""

from __future__ import annotations

import ipaddress
import re

from ..basics.job_directory import JOB_ID
from ..software import conda
from ..software.engine_commands import DEVICES, LIMITS
from ..software.engines import ENGINES
from ..software.gpu_targets import MOST as TARGETS_MOST
from ..software.gpu_targets import TARGET
from ..software.gpu_vendors import BUILDS, USABLE
from ..types.forms import (
    BadFrame,
    Check,
    Form,
    address,
    coded,
    either,
    flag,
    like,
    listed,
    mapped,
    network,
    number,
    one_line,
    one_of,
    optional,
    path,
    shaped,
    short,
    whole,
    words,
)
from ..types.reasons import ImageFlaw
from ..types.records import AnyFacts, ContainerFacts, Fabric, FabricSeat, NodeFacts, Port, RunningJob

CPUS_MOST = 1 << 13  # of a node: as many as Linux has
ROWS = 1000  # of running jobs, of leftovers, of metrics
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
NIC = re.compile(r"[A-Za-z0-9_.:@-]{1,15}\Z")  # IFNAMSIZ; "@" as in macvlan0@eth0

HOST = like(NAME, "the name of a host")
PORT: Form[Port] = Form(
    {
        "device": like(NAME, "the name of a device"),
        "port": whole(0, 255),
        "gid_index": optional(whole(0, 1 << 16)),
        "netdev": optional(like(re.compile(r"[A-Za-z0-9_.:@-]{0,15}\Z"), "the name of a NIC")),
    },
    {"address": optional(address), "rate_gbit": optional(number)},
)
SEAT: Form[FabricSeat] = Form(
    {"nic": like(NIC, "the name of a NIC"), "address": address, "network": network}, {"same_name": flag}
)
CHOICE: Form[Fabric] = shaped(
    {"nic": like(NIC, "the name of a NIC"), "address": address, "network": network},
    {
        "rdma": listed(PORT, 64),
        "rejected": listed(Form({"nic": short, "reason": short, "code": either(short, "")}), 4096),
        "rdma_off": short,
        "nccl_gid": short,
        "other_rdma": short,
        "daemons": SEAT,
    },
)


def fabric(value: object) -> Fabric:
    """Return the choice of role fabric for a node: its address is one of the network, not loopback or another's."""
    found = CHOICE(value)
    for seat in (found, *([found["daemons"]] if "daemons" in found else [])):
        if ipaddress.ip_address(seat["address"]) not in ipaddress.ip_network(seat["network"]):
            raise BadFrame("an address in its network was expected")
    return found


TARGETS = listed(like(TARGET, "the target of a GPU"), TARGETS_MOST)
RUNNING_JOB: Form[RunningJob] = Form({"job_id": like(JOB_ID, "a job id"), "owner": short, "own_home": flag})
RUNNING = listed(RUNNING_JOB, ROWS)
ACTIVATION: dict[str, Check] = {
    "kind": one_of("conda", "venv"),
    "prefix": path,
    "failed": whole(0, 10_000),
    "variables": mapped(like(conda.NAME, "the name of a variable"), one_line, conda.MOST),
}
GROUPS_MOST = 256  # of a user, as words of a command line
IMAGE_ID = like(re.compile(r"[A-Za-z0-9:]{0,100}\Z"), "the id of an image")
CONTAINER: Form[ContainerFacts] = Form(
    {
        "engine": one_of("", *ENGINES),
        "image": IMAGE_ID,
        "devices": listed(one_of(*DEVICES), len(DEVICES)),
        "limits": mapped(one_of(*LIMITS), listed(whole(-1, (1 << 63) - 1), 2), len(LIMITS)),
        "gid": whole(0, (1 << 32) - 1),
        "groups": listed(whole(0, (1 << 32) - 1), GROUPS_MOST),
        "user_home": path,
        "has_environment": flag,
        "flaw": coded(ImageFlaw),
        "said": short,
    }
)
FACTS: dict[str, Check] = {
    "home": path,
    "cwd": path,
    "tmpdir": path,
    "interpreter": path,
    "glibc": either(flag, True),
    "python": path,
    "python_wanted": words,
    "cores": whole(1, CPUS_MOST),
    "uid": whole(0, (1 << 32) - 1),
    "accelerators": mapped(one_of(*USABLE), whole(0, 64), len(USABLE)),
    "fabric": optional(fabric),
    "torch": optional(Form(dict.fromkeys(("version", *BUILDS), either(short, "")))),
    "gpu_targets": either(Form({"torch": TARGETS, "gpus": TARGETS}), {"torch": [], "gpus": []}),
    "hostname": either(like(re.compile(r"[A-Za-z0-9_.-]{0,255}\Z"), "the name of a host"), ""),
    "machine": either(like(re.compile(r"[A-Za-z0-9_]{0,32}\Z"), "what uname names a processor"), ""),
    "nics": listed(like(NIC, "the name of a NIC"), 4096),
    "launcher": Form({"path": path, **dict.fromkeys(("version", "wanted", "said", "refused"), either(words, ""))}),
    "slurm": optional(Form(dict.fromkeys(("slurmd", "version", "srun"), either(short, "")))),
    "backends": listed(words, 64),
    "free_bytes": whole(0, 1 << 62),
    "data": optional(Form({"whole": flag, "missing": whole(-1, 1 << 62), "free": whole(0, 1 << 62)})),
    "script": either(like(re.compile(r"([0-9a-f]{64})?\Z"), "a digest"), ""),
    "port": optional(whole(1, 65535)),
    "jobs": listed(like(JOB_ID, "a job id"), 100_000),
    "running": RUNNING,
    "leftovers": listed(Form({"pid": whole(0, 1 << 31), "job_id": short, "command": short}), 10_000),
    "clock_offset": either(number, 0.0),
    "lost_address": either(short, ""),
    "activation": optional(Form(ACTIVATION)),
    "container": optional(CONTAINER),
    "program": optional(
        Form({"path": path, "content": like(re.compile(r"[0-9a-f]{0,64}\Z"), "a digest"), "kind": short})
    ),
}
ALL_FACTS: Form[NodeFacts] = shaped(FACTS)


def facts(value: object) -> AnyFacts:
    """Return the facts of a node, or `unreachable` with the reason."""
    if isinstance(value, dict) and "unreachable" in value:
        return {"unreachable": words(value["unreachable"])}
    return ALL_FACTS(value)
