# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers on this node: which engine starts an image, what is in the image, and their end."""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from typing import NamedTuple, Sequence, TypedDict

from ..basics.bootstrap import ENTRY, OLDEST
from ..basics.job_directory import JOB_ID, JobDir, jobs, unique
from ..basics.open_files import BEFORE
from ..processes import processes
from ..software.engine_commands import DEVICES, HOME_LABEL, LIMITS, Box, Mount, words_of
from ..software.engines import DIRECTORY, ENGINES, USED, fitting, form_of, own_mounts, without_doubles
from ..software.launcher_programs import on_search_path
from ..types.forms import BadFrame, Form
from ..types.reasons import ImageFlaw, Unseen
from ..types.records import ContainerFacts, ImageFacts
from ..wire import node_form
from ..wire.node_form import GROUPS_MOST
from ..wire.protocol import SurveyRequest, WantedContainer
from .image_paths import path_id
from .inside import engine_environment, monitor_of
from .user_namespaces import reason_for

START_SECONDS = 120.0  # for an image to start and to be looked at: importing torch takes seconds
END_SECONDS = 20.0  # for an engine to end a container
ANSWER_BYTES = 1 << 20  # of what an engine or an image says, the last are kept
SAID_MOST = 64 << 20  # bytes; then it is ended
HINT = re.compile(r"See '.*--help'|tar: Exiting with failure")  # what Docker, Podman and tar say after an error
NAMED_ERROR = re.compile(r"error:|^\[?(error|fatal)\b", re.IGNORECASE)  # as engines begin what went wrong
LOOK_NAME = re.compile(r"torchfleet-look-([0-9]{1,10})\.")  # of a container, with the pid of who looks
NO_PYTHON, OLD_PYTHON = 87, 86  # exit statuses of the two below
NO_COMMAND = 127  # of podman and docker: the image has no such program (podman-run, "Exit Status"); of /bin/sh too
FLAWS = {
    NO_COMMAND: ImageFlaw.NO_SHELL,
    NO_PYTHON: ImageFlaw.NO_PYTHON,
    OLD_PYTHON: ImageFlaw.OLD_PYTHON,
}
FIND_PYTHON = f'command -v "$0" >/dev/null || exit {NO_PYTHON}; exec "$0" "$@"'
CHECK_PYTHON = f"""import os, sys
if sys.version_info < {OLDEST}:
    sys.stderr.write("it is Python %d.%d" % sys.version_info[:2])
    sys.exit({OLD_PYTHON})
os.execv(sys.executable, [sys.executable, "-I", "-S"] + sys.argv[1:])
"""
NAME = re.compile(r"torchfleet-[A-Za-z0-9][A-Za-z0-9._-]{0,140}\Z")  # of a container of ours
IMAGE_FACTS: Form[ImageFacts] = Form(
    {
        name: node_form.FACTS[name]
        for name in (
            *("interpreter", "glibc", "python", "python_wanted", "torch", "gpu_targets", "launcher", "backends"),
            *("accelerators", "activation"),
        )
    }
)


def look(wanted: WantedContainer, request: SurveyRequest, home: str) -> tuple[ContainerFacts, ImageFacts | None]:
    """Return what this node makes of an image, and what is in it: None if it has a flaw."""
    found = nothing_found(wanted)
    read_only = any(mode for _here, _there, mode in wanted["mounts"])
    fits = fitting(wanted["engine"], wanted["image"], read_only)
    found["engine"], found["image"], flaw, said = image_of_node(fits, wanted["image"])
    if flaw != ImageFlaw.NONE:
        return {**found, "flaw": flaw, "said": said}, None
    return look_inside(wanted, request, home, found)


def image_of_node(
    engines: Sequence[str], image: str, seconds: float = START_SECONDS
) -> tuple[str, str, ImageFlaw, str]:
    """Return the first of the engines that is here, the image's id, what is wrong, and what the engine said.

    `seconds`: for each question to the engine, at most three.
    """
    there = [name for name in engines if name in ENGINES and on_search_path(ENGINES[name].program)]
    if not there:
        return "", "", ImageFlaw.NO_ENGINE, ""
    missing = [name for name in ENGINES[there[0]].helpers if not on_search_path(name)]
    if missing:
        return there[0], "", ImageFlaw.ENGINE_FAILED, f"it needs {', '.join(missing)}, which is not there"
    found, flaw, said = image_id(there[0], image, seconds)
    return (there[0], found, *reason_for(there[0], flaw, said))


def nothing_found(wanted: WantedContainer) -> ContainerFacts:
    """Return what is known of an image without looking at it."""
    variables = os.path.join(wanted["image"], "ch", "environment")
    return {
        "engine": "",
        "image": "",
        "devices": [name for name, path in DEVICES.items() if os.path.exists(path)],
        "limits": limits(),
        "gid": os.getgid(),
        "groups": sorted({*os.getgroups()} - {os.getgid()})[:GROUPS_MOST],
        "user_home": os.path.expanduser("~"),
        "has_environment": form_of(wanted["image"]) == DIRECTORY and os.path.isfile(variables),
        "flaw": ImageFlaw.NONE,
        "said": "",
    }


def limits() -> dict[str, list[int]]:
    """Return soft and hard limits of this node, -1 for none, as an engine may give them."""
    found = {name: list(resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))) for name in LIMITS}
    found["nofile"] = list([*BEFORE, found["nofile"]][0])  # that of programs, not of this supervisor
    try:
        with open("/proc/sys/kernel/pid_max") as file:
            most = int(file.read())
    except (OSError, ValueError):
        return found
    # Podman lowers its own limit to that (podman 4.3.1), and who is not root in full may not raise it again.
    found["nproc"] = [most if value < 0 else min(value, most) for value in found["nproc"]]
    return found


def image_id(engine: str, image: str, seconds: float = START_SECONDS) -> tuple[str, ImageFlaw, str]:
    """Return what tells an image from all others, what is wrong with it, and what the engine said."""
    row = ENGINES[engine]
    if not row.identify:
        return path_id(image)
    rc, _out, err = ask(row.works, seconds) if row.works else (0, "", "")
    if rc:
        return "", ImageFlaw.ENGINE_FAILED, error_line(err)
    rc, _out, err = ask([*row.exists, image], seconds)
    if rc:
        return "", ImageFlaw.NO_IMAGE if rc == 1 else ImageFlaw.ENGINE_FAILED, error_line(err)
    rc, out, err = ask([*row.identify, image], seconds)
    found = out.strip().rpartition(":")[2]  # Docker's have their algorithm before them
    if rc or not re.match(r"[0-9a-f]{12,80}\Z", found):
        return "", ImageFlaw.ENGINE_FAILED, error_line(err)
    return found, ImageFlaw.NONE, ""


def look_inside(
    wanted: WantedContainer, request: SurveyRequest, home: str, found: ContainerFacts
) -> tuple[ContainerFacts, ImageFacts | None]:
    """Start the image and ask what is in it."""
    name = f"torchfleet-look-{unique()}-{os.urandom(4).hex()}"
    # A look changes nothing, whatever is in the image: what is in our home is code that runs outside of it, and keys.
    own = [mount._replace(read_only=mount.here == home) for mount in own_mounts(home, os.environ.get("TMPDIR", ""))]
    mounts = [*own, *map(mount_of, wanted["mounts"])]
    box = box_of(found, wanted, name, home, mounts)
    asked = json.dumps({**request, "home": home, "container": None})
    python = ["/bin/sh", "-c", FIND_PYTHON, request["python"] or "python3", "-I", "-S", "-c", CHECK_PYTHON]
    argv = [*words_of(ENGINES[found["engine"]].parts(box)), *python, os.path.join(sys.path[0], ENTRY), "facts", asked]
    rc, out, err = fenced(argv, START_SECONDS)
    if rc:
        end_containers(found["engine"], [name])
        flaw, said = reason_for(found["engine"], FLAWS.get(rc, ImageFlaw.NOT_STARTED), error_line(err))
        return {**found, "flaw": flaw, "said": said}, None
    try:
        inner = IMAGE_FACTS(json.loads(out[-ANSWER_BYTES:].splitlines()[-1]))
    except (BadFrame, ValueError, IndexError, RecursionError):
        return {**found, "flaw": ImageFlaw.NOT_STARTED, "said": "its answer is not that of our check"}, None
    return found, inner


def mount_of(row: Sequence[str]) -> Mount:
    """Return a mount that the user wants: here, there, and `ro` or an empty text."""
    return Mount(row[0], row[1], row[2] == "ro")


def box_of(
    found: ContainerFacts, wanted: WantedContainer, name: str, home: str, mounts: Sequence[Mount], job_id: str = ""
) -> Box:
    """Return what a container of an image is started for."""
    return Box(
        image=found["image"] if ENGINES[found["engine"]].identify else wanted["image"],
        name=name,
        home=home,
        mounts=without_doubles(mounts),
        devices=found["devices"],
        uid=os.getuid(),
        gid=found["gid"],
        groups=found["groups"],
        limits=found["limits"],
        args=wanted["args"],
        job_id=job_id,
        user_home=found["user_home"],
        has_environment=found["has_environment"],
        code=sys.path[0],
    )


def ask(argv: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Return status, stdout and stderr of an engine; status 125 and why where it does not run, end, or stop to talk."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=engine_environment(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        return 125, "", str(error)
    with process:
        try:
            out, err = said_by(process, time.monotonic() + seconds)
        except TimeoutError as error:
            return 125, "", f"{argv[0]}: {error}"
        finally:
            end_below(process.pid)
            end_group(process.pid)
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def fenced(argv: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Return what ask() does, of a program that is not trusted: nothing that it started lives on."""
    return ask([sys.executable, "-I", "-S", os.path.join(sys.path[0], ENTRY), "fenced", *argv], seconds)


def said_by(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """Return the end of what a program says on stdout and stderr, when it has ended. TimeoutError if it goes on."""
    said = {stream.fileno(): b"" for stream in (process.stdout, process.stderr) if stream}
    first, second = said
    waiting, total = set(said), 0
    while waiting:
        ended = has_ended(process.pid)  # what it left may hold the pipes for ever
        found = select.select(list(waiting), [], [], 0.1)[0]
        for descriptor in found:
            block = os.read(descriptor, 65536)
            waiting -= set() if block else {descriptor}
            said[descriptor], total = (said[descriptor] + block)[-ANSWER_BYTES:], total + len(block)
        if total > SAID_MOST:
            raise TimeoutError(f"it said more than {SAID_MOST >> 20} MiB")
        if ended and not found:
            break
        if time.monotonic() > deadline:
            raise TimeoutError("it did not end in time")
    while not has_ended(process.pid):
        if time.monotonic() > deadline:
            raise TimeoutError("it did not end in time")
        time.sleep(0.02)
    return said[first], said[second]


def has_ended(pid: int) -> bool:
    """Whether a child has ended. Nobody else gets its number until it is waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def end_below(pid: int) -> None:
    """End what is below a program, in sessions of its own too. A program that has ended has nothing below it."""
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        found = processes.descendants(pid)
        if not found:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: it may start others as fast
            for process in found:
                processes.send(process, number)
        time.sleep(0.005)


def end_group(pid: int) -> None:
    """End a program, and what it left in its process group: ch-run leaves in the image's hands what comes of it."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def error_line(text: str) -> str:
    """Return the first line in which a program names an error, else its last one, for people."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not HINT.match(line)]
    named = [line for line in lines if NAMED_ERROR.search(line)]
    return [*named[:1], *lines[-1:], "it said nothing"][0][:300]


def note_use(home: str, engine: str) -> None:
    """Note that a job uses an engine here: clean.yml asks no others for containers. OSError."""
    os.makedirs(os.path.join(home, USED), mode=0o700, exist_ok=True)
    with open(os.open(os.path.join(home, USED, engine), os.O_WRONLY | os.O_CREAT, 0o600), "w"):
        pass


def end_containers(engine: str, names: Sequence[str]) -> None:
    """End containers and remove their records; one that is not there is no error."""
    removal = ENGINES[engine].removal
    if removal and names:
        ask([*removal, *names], END_SECONDS)


class UnseenEngine(TypedDict):
    """An engine that jobs used here and that did not list its containers."""

    engine: str
    code: Unseen
    said: str  # for people


class Left(NamedTuple):
    """What jobs left in engines, as far as these tell it."""

    containers: list[tuple[str, str]]  # engine and name
    unseen: list[UnseenEngine]


def left(home: str) -> Left:
    """Return each container of this home whose job, or whose look at an image, is over."""
    found: Left = Left([], [])
    for engine, row in ENGINES.items():
        if not row.listing or not os.path.exists(os.path.join(home, USED, engine)):
            continue
        rc, out, err = ask([*row.listing, f"label={HOME_LABEL}={home}"], END_SECONDS)
        if rc:
            code = Unseen.ENGINE_FAILED if on_search_path(row.program) else Unseen.NO_ENGINE
            found.unseen.append({"engine": engine, "code": code, "said": error_line(err)})
            continue
        rows = [words for words in map(str.split, out.splitlines()) if words and is_left(home, *words)]
        found.containers.extend((engine, words[0]) for words in rows)
    return found


def is_left(home: str, name: str, job: str = "", *_more: str) -> bool:
    """Whether a container is one of ours that nobody looks after. A label of its image may say anything of a look."""
    look = LOOK_NAME.match(name)
    if look:
        return processes.read(int(look.group(1))) is None
    return bool(NAME.match(name) and JOB_ID.match(job)) and not JobDir(os.path.join(home, "jobs", job)).running()


def monitors(home: str) -> list[tuple[processes.Process, str]]:
    """Return the engine's own process above each container whose job nobody looks after, with the job's id.

    It has no mark: Podman starts it with an environment of its own. What escaped in the container stays below it, and
    is there also when the container's first process is gone, and with it the container's record.
    """
    found = []
    for job in jobs(home):
        process = monitor_of(job)
        if process and not job.running():
            found.append((process, job.job_id))
    return found


def end_left(home: str, dry_run: bool = False) -> tuple[list[str], list[UnseenEngine]]:
    """Remove the containers of jobs that nobody looks after.

    Return the names of those that are gone, and the engines of which that is not known.
    """
    rows, unseen = left(home)
    if not rows or dry_run:
        return [name for _engine, name in rows], unseen
    for engine, name in rows:
        end_containers(engine, [name])
    stay, unseen = left(home)
    unknown = [row["engine"] for row in unseen]
    return [name for engine, name in rows if (engine, name) not in stay and engine not in unknown], unseen
