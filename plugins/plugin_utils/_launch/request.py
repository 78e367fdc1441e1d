# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the user asked for: the arguments of `torchfleet.cluster.launch`, checked one by one before anything starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JOB_ID
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import (
    DEFAULT,
    LAUNCHERS,
    STARTED_BY_SLURMD,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifact_border import Limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifacts import (
    PATTERNS_MOST,
    pattern_parts,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.restarts import Rule
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.containers import PARTS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import (
    LEASE_SECONDS,
    LEAST_LEASE,
    MOST_LEASE,
    choice_of,
    parse_bytes,
    parse_environment,
    parse_exports,
    parse_flag,
    parse_names,
    parse_seconds,
    parse_text,
    parse_whole,
    parse_words,
    seconds_of,
    whole_of,
)

from .backends import BACKENDS
from .launcher_options import USUAL, LauncherOptions, parse_options
from .profiling import NO_PROFILE, Profile, parse_profile
from .restart_options import (
    RESTART_ON,
    parse_restart_by,
    parse_restart_on,
    with_rounds,
)

T = TypeVar("T")
Parser = Callable[[str, object], T]  # of the name and the value of an option; InputError
MOST_RESTARTS = 1000
HANG_LOOK = 60.0
COLLECT_FILES, COLLECT_BYTES = 10_000, 10 << 30  # of each node
MOST_FILES = 100_000  # of what may be asked for: the list of them is one message


@dataclass(frozen=True)
class Request:
    """The options of one job. `None` stands for "choose for me"."""

    workload: str
    workload_args: tuple[str, ...] = ()
    backend: str | None = None
    launcher: str = DEFAULT
    np: int | None = None
    ranks_per_node: int | None = None
    nodes: tuple[str, ...] = ()
    job_timeout: float | None = None
    job_env: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    vaulted: frozenset[str] = frozenset()  # names in job_env whose values come from a vault
    job_id: str | None = None
    runs_dir: str = "runs"
    show_ranks: tuple[int, ...] | None = (0,)  # None: all
    master_port: int | None = None
    options: LauncherOptions = USUAL
    grace: float | None = None
    lease: float = LEASE_SECONDS
    result_query: str | None = None
    fetch_limit: int = 1 << 30
    exclusive: bool = False
    sample: bool = True
    export: tuple[str, ...] = ()
    detach: bool = False
    queue: bool = False  # wait until the nodes are free
    queue_timeout: float | None = None  # seconds that it waits at most
    checkpoint_dir: str | None = None
    notice: float | None = None
    max_restarts: int = 0
    min_nodes: int | None = None  # with so many a job that lost nodes goes on; None: with as many ranks as it had
    restart_on: tuple[str, ...] = RESTART_ON
    requirements: str | None = None  # a file, or "none"; None: the one beside the script
    program_index_url: str = field(default="", repr=False)  # may have a password
    program_wheelhouse: str = ""
    program_wheelhouse_fill: bool = False
    program_keep: int = 10  # environments of programs that stay on a node; 0: all
    module: str = ""  # that `python -m` runs; `workload` is then the folder that has it, or empty if it is installed
    sha256: str | None = None  # of a workload that is an address
    python: str = ""  # an interpreter or environment on the nodes; empty: the proven one
    ship: bool = True
    data: str = ""  # a folder or file on the controller that ranks read; empty: none
    data_keep: int = 2  # data sets that stay on a node; 0: all
    collect: tuple[str, ...] = ()
    collect_files: int = COLLECT_FILES
    collect_limit: int = COLLECT_BYTES
    collect_every: float | None = None  # seconds between two collections while the job runs; None: at its end alone
    hang_look: float = HANG_LOOK  # seconds without a sign of life; 0: never
    hang_end: bool = False  # end a job in which two looks find the same hang
    profile: Profile = NO_PROFILE
    rdma: bool = True  # use it where the nodes have it
    container: Mapping[str, object] = field(default_factory=dict)  # those of containers.PARTS that are given

    @property
    def restart_rule(self) -> Rule:
        """Return when the job is started again."""
        return {"most": self.max_restarts, "states": list(self.restart_on)}

    @property
    def attempts_rule(self) -> Rule | None:
        """Return when a job that is over is started again; None: never."""
        return self.restart_rule if self.max_restarts and not self.options.rounds else None

    @property
    def collect_limits(self) -> Limits:
        """Return how much of what ranks write may come home from each node: nothing unless it was asked for."""
        return Limits(self.collect_files, self.collect_limit) if self.collect else Limits(0, 0)


class Given(dict[str, object]):
    """The options that were given, by name."""

    def read(self, name: str, parse: Parser[T], usual: T) -> T:
        """Return a checked option, what is usual if it was not given. InputError."""
        return parse(name, self[name]) if name in self else usual


def parse_request(arguments: Mapping[str, object], vaulted: frozenset[str] = frozenset()) -> Request:
    """Return the checked request. InputError names an argument that is wrong.

    `arguments` are plain values as they come from extra vars: numbers may be text, lists and dicts may be JSON text.
    `vaulted`: the names in job_env whose values come from a vault.
    """
    given = Given({name: value for name, value in arguments.items() if value is not None})
    module = parse_module(given.get("module"))
    workload = given.get("workload", "" if module else "mnist")
    if not isinstance(workload, str) or not (workload.strip() or module):
        raise InputError("workload", workload, "give a name from workloads/ or the path of a script")
    options = parse_options(given)
    max_restarts = parse_whole("max_restarts", given.get("max_restarts", 0), 0, MOST_RESTARTS) or 0
    restart_by = parse_restart_by(given, max_restarts)
    restart_on = parse_restart_on(given, restart_by)
    return replace(
        by_themselves(given, workload),
        module=module,
        vaulted=vaulted,
        options=with_rounds(options, restart_by, max_restarts, restart_on),
        master_port=parse_master_port(given.get("master_port"), options.ports),
        job_id=parse_job_id(given.get("job_id"), 100 - len("-r1000") if max_restarts else 100),
        max_restarts=max_restarts,
        restart_on=restart_on,
        min_nodes=parse_min_nodes(given.get("min_nodes"), max_restarts, given),
        notice=parse_notice(given),
        hang_end=parse_hang_end(given),
        queue=parse_queue(given),
        collect_every=parse_collect_every(given),
        python=parse_python(given.get("python"), given.get("requirements")),
        profile=parse_profile(given, parse_ranks("profile_ranks", given.get("profile_ranks", "all"))),
        container={part: given[part] for part in PARTS if part in given},
    )


def parse_module(value: object) -> str:
    """Return the name of a Python module, an empty text for None."""
    if value is None:
        return ""
    if not re.match(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", str(value)):
        raise InputError("module", value, "give a name as after python -m: -e module=package.train")
    return str(value)


def parse_python(value: object, requirements: object) -> str:
    """Return a path on the nodes, an empty text for None. InputError beside requirements, which make another one."""
    if value is None:
        return ""
    if not isinstance(value, str) or not value.startswith(("/", "~")) or "\0" in value:
        raise InputError("python", value, "give a path that all nodes have: -e python=/opt/conda/envs/train")
    if requirements not in (None, "none"):
        raise InputError("python", value, "give either python or requirements: nothing is installed into yours")
    return value


def parse_globs(name: str, value: object) -> tuple[str, ...]:
    """Return the globs of what ranks write that comes home; one text is split as a shell does."""
    patterns = parse_words(name, value)
    if len(patterns) > PATTERNS_MOST:
        raise InputError(name, len(patterns), f"give at most {PATTERNS_MOST} globs")
    for pattern in patterns:
        try:
            pattern_parts(pattern)
        except ValueError as error:
            raise InputError(name, pattern, f"{error}: -e collect='*.pt'") from None
    return patterns


def parse_master_port(value: object, ports: tuple[int, int] | None) -> int | None:
    """Return the wanted port of the rendezvous, None for None. It is one of those that a firewall lets through."""
    port = parse_whole("master_port", value, 1024, 65535)
    if port and ports and not ports[0] <= port <= ports[1]:
        allowed = "{}-{}".format(*ports)
        raise InputError("master_port", port, f"it is not in ports={allowed}: choose one of them, or leave it out")
    return port


def parse_job_id(value: object, most: int = 100) -> str | None:
    """Return a job id that is safe as a directory name, None for None. `most`: characters."""
    if value is None:
        return None
    text = str(value)
    if not JOB_ID.match(text) or ".." in text or text == "latest" or len(text) > most:
        allowed = f"use letters, digits, '.', '_' and '-', at most {most}, and not latest: -e job_id=first-try"
        raise InputError("job_id", text, allowed)
    return text


def parse_directory(name: str, value: object) -> str:
    """Return the absolute path of a directory on the nodes."""
    text = parse_text(name, value)
    if not text.startswith("/") or "\0" in text or ".." in text.split("/"):
        raise InputError(name, text, f"give the absolute path of a directory on the nodes: -e {name}=/data/checkpoints")
    return text


def parse_queue(given: Mapping[str, object]) -> bool:
    """Return whether the job waits until its nodes are free. InputError for what waits in no queue, or in another."""
    queue, launcher = parse_flag("queue", given.get("queue", False)), given.get("launcher")
    if given.get("queue_timeout") is not None and not queue:
        raise InputError("queue_timeout", given["queue_timeout"], "it is for jobs that wait: add -e queue=true")
    if queue and launcher in STARTED_BY_SLURMD:
        raise InputError("queue", True, f"{launcher} puts the job into the queue of Slurm: leave out queue")
    return queue


def parse_collect_every(given: Mapping[str, object]) -> float | None:
    """Return the seconds between two collections while a job runs, None for none. InputError without collect."""
    seconds = parse_every(given.get("collect_every"))
    if seconds and not given.get("collect"):
        raise InputError("collect_every", given["collect_every"], "say which files: add -e collect=GLOB")
    return seconds


def parse_every(value: object) -> float | None:
    """Return the seconds from the end of one collection to the next, None for none."""
    return None if value is None else seconds_of("collect_every", value, 300, 1.0)


def parse_notice(given: Mapping[str, object]) -> float | None:
    """Return how many seconds before job_timeout ranks are told that the end is near, None for never."""
    notice = parse_seconds("notice", given.get("notice"), 120)
    timeout = parse_seconds("job_timeout", given.get("job_timeout"), 3600)
    if notice and not (timeout and notice < timeout):
        raise InputError("notice", given["notice"], "it needs a longer job_timeout: -e job_timeout=3600 -e notice=120")
    return notice


def parse_hang_look(name: str, value: object) -> float:
    """Return the seconds without a sign of life after which a job is looked at; 0: never."""
    if not isinstance(value, bool) and str(value).strip() in ("0", "0.0"):
        return 0.0
    try:
        return seconds_of(name, value, HANG_LOOK)
    except InputError:
        raise InputError(name, value, "give seconds, or 0 for never: -e hang_look=300") from None


def parse_hang_end(given: Mapping[str, object]) -> bool:
    """Return whether a job that hangs is ended. InputError where it is not looked at."""
    ends = parse_flag("hang_end", given.get("hang_end", False))
    if ends and "hang_look" in given and not parse_hang_look("hang_look", given["hang_look"]):
        raise InputError("hang_end", True, "with hang_look=0 no job is looked at: -e hang_look=60")
    return ends


def parse_min_nodes(value: object, max_restarts: int, given: Mapping[str, object]) -> int | None:
    """Return with how many nodes a job goes on that has lost some, None for as many ranks as it had."""
    least = parse_whole("min_nodes", value, 1, None)
    if least and not max_restarts:
        raise InputError("min_nodes", value, "it is for jobs that are started again: add -e max_restarts=10")
    if least and parse_flag("detach", given.get("detach", False)):
        raise InputError("min_nodes", value, "the head starts a detached job again as it was planned: leave one out")
    return least


def parse_ranks(name: str, value: object) -> tuple[int, ...] | None:
    """Return a list of ranks, None for all of them."""
    if value == "all":
        return None
    items = re.split(r"[,\s]+", value.strip("[] ")) if isinstance(value, str) else value
    items = [items] if isinstance(items, int) and not isinstance(items, bool) else items
    texts = [str(item) for item in items] if isinstance(items, (list, tuple)) else ["?"]
    if not all(re.match(r"\d{1,9}\Z", text) for text in texts if text):
        raise InputError(name, value, f"give a list of ranks or the word all: -e {name}=0,1")
    return tuple(sorted({int(text) for text in texts if text}))


def parse_query(name: str, value: object) -> str:
    """Return a JMESPath expression that compiles."""
    import jmespath  # late, as all that is neither Python nor Ansible: ansible-test imports plugins without it

    try:
        jmespath.compile(parse_text(name, value))
    except jmespath.exceptions.JMESPathError as error:
        reason = str(error).splitlines()[0]
        raise InputError(name, value, f"not JMESPath ({reason}): -e result_query=state") from None
    return str(value)


def as_text(_name: str, value: object) -> str:
    """Return any value as text."""
    return str(value)


def choice(allowed: Iterable[str]) -> Parser[str]:
    """Return what takes one of some words."""
    return lambda name, value: choice_of(name, value, tuple(allowed))


def whole(least: int, most: int | None) -> Parser[int]:
    """Return what takes a whole number within limits; `most` None: without an upper one."""
    return lambda name, value: whole_of(name, value, least, most)


def seconds(example: float, least: float = 0.0, most: float = 1e9) -> Parser[float]:
    """Return what takes a time in seconds; `example` is what an error names."""
    return lambda name, value: seconds_of(name, value, example, least, most)


def by_themselves(given: Given, workload: str) -> Request:
    """Return the request with every option that depends on no other. InputError names one that is wrong."""
    usual = Request(workload)
    return replace(
        usual,
        workload_args=given.read("workload_args", parse_words, usual.workload_args),
        backend=given.read("backend", choice(BACKENDS), usual.backend),
        launcher=given.read("launcher", choice(LAUNCHERS), usual.launcher),
        np=given.read("np", whole(1, None), usual.np),
        ranks_per_node=given.read("ranks_per_node", whole(1, None), usual.ranks_per_node),
        nodes=given.read("nodes", parse_names, usual.nodes),
        job_timeout=given.read("job_timeout", seconds(3600), usual.job_timeout),
        job_env=given.read("job_env", lambda _name, value: parse_environment(value), usual.job_env),
        secret_names=given.read("secret_names", parse_names, usual.secret_names),
        runs_dir=given.read("runs_dir", parse_text, usual.runs_dir),
        show_ranks=given.read("show_ranks", parse_ranks, usual.show_ranks),
        grace=given.read("grace", seconds(60), usual.grace),
        lease=given.read("lease", seconds(LEASE_SECONDS, LEAST_LEASE, MOST_LEASE), usual.lease),
        result_query=given.read("result_query", parse_query, usual.result_query),
        fetch_limit=given.read("fetch_limit", parse_bytes, usual.fetch_limit),
        exclusive=given.read("exclusive", parse_flag, usual.exclusive),
        sample=given.read("sample", parse_flag, usual.sample),
        export=given.read("export", lambda _name, value: parse_exports(value), usual.export),
        detach=given.read("detach", parse_flag, usual.detach),
        queue_timeout=given.read("queue_timeout", seconds(3600), usual.queue_timeout),
        checkpoint_dir=given.read("checkpoint_dir", parse_directory, usual.checkpoint_dir),
        requirements=given.read("requirements", parse_text, usual.requirements),
        program_index_url=given.read("program_index_url", as_text, usual.program_index_url),
        program_wheelhouse=given.read("program_wheelhouse", as_text, usual.program_wheelhouse),
        program_wheelhouse_fill=given.read("program_wheelhouse_fill", parse_flag, usual.program_wheelhouse_fill),
        program_keep=given.read("program_keep", whole(0, 10_000), usual.program_keep),
        sha256=given.read("sha256", as_text, usual.sha256),
        ship=given.read("ship", parse_flag, usual.ship),
        data=given.read("data", parse_text, usual.data),
        data_keep=given.read("data_keep", whole(0, 10_000), usual.data_keep),
        collect=given.read("collect", parse_globs, usual.collect),
        collect_files=given.read("collect_files", whole(1, MOST_FILES), usual.collect_files),
        collect_limit=given.read("collect_limit", parse_bytes, usual.collect_limit),
        hang_look=given.read("hang_look", parse_hang_look, usual.hang_look),
        rdma=given.read("rdma", parse_flag, usual.rdma),
    )
