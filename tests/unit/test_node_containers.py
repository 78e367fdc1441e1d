"""Node containers as far as files and texts go: options, command lines, devices, the first process, the inventory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import directory as files
from ansible_collections.torchfleet.cluster.plugins.module_utils._node_container import (
    bases,
    devices,
    engine,
    entry,
    lifecycle,
    shape,
)
from ansible_collections.torchfleet.cluster.plugins.modules import node_container
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._node_container import members

REPO = Path(__file__).parents[2]
PODMAN = engine.Engine("podman", rootless=False)
MINE = {shape.CLUSTER_LABEL: "nodes", shape.HOST_LABEL: "n1"}


def options(**changed: Any) -> dict[str, Any]:
    """Return the options of the module with their defaults, as a task gives them."""
    return {name: option.get("default") for name, option in documented("node_container").items()} | {
        "host": "n1",
        **changed,
    }


def wanted(**changed: Any) -> shape.Wanted:
    return shape.wanted_of(options(**changed), own_uid=0)


def container(made_of: str = "{}", running: bool = True, **labels: str) -> engine.Container:
    return engine.Container("id", "nodes-n1", running, {**MINE, shape.SHAPE_LABEL: made_of, **labels})


# --- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"cluster": "My"}, "node_container_cluster: got 'My'; give at most 30 of a-z, 0-9 and -"),
        ({"host": "-x"}, "node_container_host: got '-x'; give a name"),
        ({"image": "--privileged"}, "node_container_image: got '--privileged'; give the name of an image"),
        ({"image": "a b"}, "node_container_image: got 'a b'"),
        ({"user": "root"}, "node_container_user: got 'root'; give a user name of a-z, 0-9, - and _ but root"),
        ({"uid": -1}, "node_container_uid: got -1; give 0 to"),
        ({"port": 65536}, "node_container_port: got 65536; give 0 to 65535"),
        ({"listen": ["eth0"]}, "node_container_listen: got 'eth0'; give IP addresses, or none"),
        ({"shm_size": "lots"}, "node_container_shm_size: got 'lots'; give a size such as 8g, or host"),
        ({"devices": ["nvidia"]}, "node_container_devices: got 'nvidia'; give auto, paths such as /dev/kfd, or names"),
        ({"mounts": ["data"]}, "node_container_mounts: got 'data'; give /path/here, /here:/there or /here:/there:rw"),
        ({"mounts": ["/a:/b:/c"]}, "node_container_mounts: got '/a:/b:/c'"),
        ({"env": {"A B": "1"}}, "node_container_env: got the name 'A B'; give letters, digits and _"),
        ({"env": {"A": 'x"'}}, "node_container_env: A has a quote, a backslash or a line end"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as caught:
        wanted(**changed)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_the_uid_is_that_of_who_asks_and_never_root() -> None:
    assert [shape.wanted_of(options(), own_uid=uid).uid for uid in (0, 1234)] == [1000, 1234]
    assert shape.wanted_of(options(uid=77), own_uid=1234).uid == 77


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("/data", ("/data", "/data", "ro")),
        ("/data:/in", ("/data", "/in", "ro")),
        ("/data:/in:rw", ("/data", "/in", "rw")),
        ("/data:rw", ("/data", "/data", "rw")),
    ],
)
def test_a_mount_is_read_only_unless_it_says_rw(text: str, parts: tuple[str, str, str]) -> None:
    assert wanted(mounts=[text]).mounts == (parts,)


def test_the_module_has_the_defaults_of_the_role_and_of_its_documentation() -> None:
    role = yaml.safe_load((REPO / "roles/node_container/defaults/main.yml").read_text())
    known = documented("node_container")
    same = {name.removeprefix("node_container_"): value for name, value in role.items()}
    assert {name: known[name].get("default") for name in same if name in known} == {
        name: value for name, value in same.items() if name in known
    }
    assert known["base"]["choices"] == list(bases.BASES)


# --- command lines -------------------------------------------------------------------------------------------------


def test_the_command_line_of_a_node() -> None:
    asked = wanted(mounts=["/data:/in:rw"], args=["--memory=1g"], image="img")
    words = shape.run_words(asked, "img", ["--device", "/dev/kfd"], '{"a": 1}', ["-c", "code"])
    assert words == [
        *("run", "--detach", "--name", "nodes-n1", "--hostname", "n1", "--network", "host", "--user", "0:0"),
        *("--shm-size", "8g", "--cap-add=SYS_PTRACE", "--cap-add=SYS_NICE"),
        *("--security-opt=label=disable", "--pids-limit=-1"),
        *("--label", "torchfleet.node_container=nodes", "--label", "torchfleet.node_container.host=n1"),
        *("--label", 'torchfleet.node_container.shape={"a": 1}', "--volume", "/etc/ssh", "--device", "/dev/kfd"),
        *("--volume", "/data:/in:rw", "--memory=1g", "--entrypoint", "python3", "img", "-c", "code"),
    ]
    assert "--ipc" in shape.run_words(wanted(shm_size="host"), "img", [], "{}", [])


def test_a_container_that_was_made_with_another_value_is_refused() -> None:
    made_of = shape.shape(wanted(), 2222, "sha", [])
    lifecycle.refuse_difference(wanted(), container(made_of), shape.shape(wanted(), 2222, "sha", []))
    lifecycle.refuse_difference(wanted(), container(made_of), shape.shape(wanted(), 2222, "", []))  # in check mode
    for changed, option in (
        (shape.shape(wanted(shm_size="host"), 2222, "sha", []), "node_container_shm_size"),
        (shape.shape(wanted(), 2223, "sha", []), "node_container_port"),
        (shape.shape(wanted(), 2222, "other", []), "node_container_image"),
        (shape.shape(wanted(), 2222, "sha", ["--device", "/dev/kfd"]), "node_container_devices, or what the machine"),
        (shape.shape(wanted(key="another"), 2222, "sha", []), "node_container_directory"),
    ):
        with pytest.raises(engine.EngineFailed, match=f"^{option}.* exists with another value; .*container_state=abs"):
            lifecycle.refuse_difference(wanted(), container(made_of), changed)


def test_a_container_of_others_is_in_the_way_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their labels may be ours, as of an image that was made of a node: then the name is another one."""
    monkeypatch.setattr(engine.Engine, "container", lambda _self, _name: container(**{shape.CLUSTER_LABEL: "other"}))
    with pytest.raises(engine.EngineFailed, match="nodes-n1 on n1 is not a node of this cluster; give another name"):
        lifecycle.own(PODMAN, wanted())
    removed: list[str] = []
    monkeypatch.setattr(lifecycle, "engines_of", lambda _wanted, _node: ([PODMAN], []))
    monkeypatch.setattr(engine.Engine, "containers", lambda *_given: [container()._replace(name="somebody")])
    monkeypatch.setattr(engine.Engine, "remove", lambda _self, name: removed.append(name))
    assert lifecycle.absent(options(), check=False)["changed"] is False and removed == []
    monkeypatch.setattr(engine.Engine, "containers", lambda *_given: [container()])
    assert lifecycle.absent(options(), check=True)["changed"] is True and removed == []
    assert lifecycle.absent(options(), check=False)["changed"] is True and removed == ["id"]


def test_what_the_engine_prints_is_checked() -> None:
    row = {"Id": "a", "Name": "/nodes-n1", "State": {"Running": True}, "Config": {"Labels": None}}
    assert engine.described(json.dumps([row])) == [engine.Container("a", "nodes-n1", True, {})]
    for wrong in ("", "{}x", "[1]", '[{"Id": "a"}]'):
        with pytest.raises(engine.EngineFailed, match="container inspect printed something else"):
            engine.described(wrong)


# --- bad input -----------------------------------------------------------------------------------------------------


def test_a_machine_without_engine_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        engine.EngineFailed, match="neither podman nor docker is installed on n1; type: apt-get install"
    ):
        engine.engine_of("auto", "n1")
    with pytest.raises(engine.EngineFailed, match=r"docker is not installed on n1; type: .* docker\.io"):
        engine.engine_of("docker", "n1")
    assert engine.engines_of("auto", "n1") == ([], [])


def stand_in(place: Path, name: str, script: str) -> None:
    """Put a program of an engine's name into a directory."""
    (place / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / name).chmod(0o755)


def absent(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the module to its end, and return what it printed."""
    with patch_module_args({"state": "absent", "host": "n1"}), pytest.raises(SystemExit):
        node_container.main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_engine_that_does_not_work_is_not_one_that_has_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(engine.shutil, "which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else "")
    stand_in(tmp_path, "podman", "echo Error: database is locked >&2; exit 125")
    found = absent(capsys)
    assert (found["failed"], found["code"]) == (True, "engine_failed")
    assert found["msg"] == "node_container_engine: on n1, could not look with podman (Error: database is locked)"
    stand_in(tmp_path, "docker", "")
    found = absent(capsys)
    assert (found.get("failed"), found["changed"]) == (None, False)
    assert found["msg"] == "no nodes-n1 was found on n1; could not look with podman (Error: database is locked)"
    stand_in(tmp_path, "podman", '[ "$2" = --all ] && exit 125; exit 0')  # it breaks after the first look
    found = absent(capsys)
    assert (found["failed"], found["code"]) == (True, "engine_failed")


@pytest.mark.parametrize(
    ("does", "told"), [("exec sleep 600", "it did not end in time"), ("exec yes", "it said more than 64 MiB")]
)
def test_an_image_that_never_answers_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str, told: str
) -> None:
    """Only the engine's program is ended by that: its container is removed by its name."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(engine, "LOOK_SECONDS", 60.0 if "more" in told else 1.0)
    stand_in(tmp_path, "podman", f'echo "$*" >>{tmp_path}/asked; [ "$1" = run ] || exit 0; {does}')
    with pytest.raises(engine.EngineFailed, match=f"node_container_image: img does not run: podman: {told}"):
        engine.first_python(PODMAN, "img", [], "code")
    started, removed = (tmp_path / "asked").read_text().splitlines()
    assert removed == f"rm --force {started.split()[3]}"
    assert "--network none" in started  # what an image does before it is known is nobody's traffic


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces is 0.*sysctl -w user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1, or run the playbook with -b"),
        ("user/max_user_namespaces", "15000", ""),
    ],
)
def test_a_kernel_without_user_namespaces_is_named(tmp_path: Path, path: str, value: str, told: str) -> None:
    place = tmp_path / "proc/sys" / path
    place.parent.mkdir(parents=True)
    place.write_text(value + "\n")
    if not told:
        engine.refuse_without_user_namespaces("n1", str(tmp_path))
        return
    with pytest.raises(engine.EngineFailed, match=f"^node_container_engine: user namespaces are off on n1 .*{told}"):
        engine.refuse_without_user_namespaces("n1", str(tmp_path))


def test_podman_of_a_user_gives_no_other_uid() -> None:
    mine = engine.Engine("podman", rootless=True)
    with pytest.raises(engine.EngineFailed, match=r"^node_container_uid: got 999999; podman of user"):
        lifecycle.refuse_user(wanted(uid=999999), mine)
    lifecycle.refuse_user(wanted(uid=999999), engine.Engine("docker", rootless=True))  # whose daemon is root's


def test_a_mount_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Docker alone would make an empty directory of root's."""
    with pytest.raises(engine.EngineFailed, match=f"^node_container_mounts: there is no {tmp_path}/data on n1"):
        lifecycle.refuse_mounts(wanted(mounts=[f"{tmp_path}/data:/data"]))


@pytest.mark.parametrize(
    ("seen", "may_install", "told"),
    [
        ({"python": [3, 7], "missing": [], "manager": ""}, True, "has Python 3.7; give an image with Python 3.8"),
        ({"python": ["3", {}], "missing": []}, True, "has Python 3.{}; give an image with Python 3.8"),
        ({"python": [3, 8], "missing": ["sshd"], "manager": "dnf"}, False, "lacks sshd; say -e node_container_install"),
        ({"python": [3, 8], "missing": ["sshd"], "manager": ""}, True, "lacks sshd, and has neither apt-get nor dnf"),
    ],
)
def test_an_image_that_cannot_be_a_node(
    monkeypatch: pytest.MonkeyPatch, seen: dict[str, Any], may_install: bool, told: str
) -> None:
    monkeypatch.setattr(lifecycle, "first_python", lambda *_given: seen)
    with pytest.raises(engine.EngineFailed, match=f"^node_container_image: img {told}"):
        lifecycle.lacks_packages(PODMAN, "img", wanted(), may_install)
    fits = {"python": [3, 12], "missing": [], "manager": ""}
    monkeypatch.setattr(lifecycle, "first_python", lambda *_given: fits)
    assert lifecycle.lacks_packages(PODMAN, "img", wanted(), may_install) is False


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_is_in_use_is_refused_and_a_free_one_is_found(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here = wanted(port=taken, listen=["127.0.0.1"])
    told = f"^node_container_port: {taken} is in use on n1; give another one, or 0 for the first free one from 2222"
    with pytest.raises(engine.EngineFailed, match=told):
        lifecycle.port_of(here, None)
    assert "cannot be had at 192.0.2.7" in lifecycle.why_taken(taken, ["192.0.2.7"])
    monkeypatch.setattr(shape, "FIRST_PORT", taken)
    assert taken < lifecycle.port_of(here._replace(port=0), None) < taken + shape.PORTS
    monkeypatch.setattr(shape, "PORTS", 1)
    with pytest.raises(engine.EngineFailed, match="are all in use on n1; give one"):
        lifecycle.port_of(here._replace(port=0), None)
    made_of = shape.shape(here, taken, "", [])
    assert lifecycle.port_of(here._replace(port=0), container(made_of)) == taken  # it is the one who has it
    with pytest.raises(engine.EngineFailed, match=f"^node_container_port: {taken} is in use on n1"):
        lifecycle.port_of(here._replace(port=0), container(made_of, running=False))


def test_a_module_fails_with_the_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with patch_module_args({"host": "n1"}), pytest.raises(SystemExit):
        node_container.main()
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] is True and told["msg"].startswith("node_container_engine: neither podman nor docker")


# --- devices -------------------------------------------------------------------------------------------------------


def machine(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("nvidia.com/gpu" if "cdi" in path else "")
    return root


@pytest.mark.parametrize(
    ("there", "engine_name", "words"),
    [
        ([], "podman", []),
        (["dev/nvidiactl", "etc/cdi/nvidia.yaml"], "podman", ["--device", "nvidia.com/gpu=all"]),
        (["dev/nvidiactl", "var/run/cdi/nvidia.json"], "docker", ["--device", "nvidia.com/gpu=all"]),
        (["dev/nvidiactl", "usr/bin/nvidia-container-runtime"], "docker", ["--gpus", "all"]),
        (["dev/kfd", "dev/dri/renderD128"], "podman", ["--device", "/dev/kfd", "--device", "/dev/dri"]),
        (
            ["dev/dri/renderD128", "dev/dri/by-path/x"],
            "docker",
            ["--device", "/dev/dri", "--volume", "/dev/dri/by-path:/dev/dri/by-path:ro"],
        ),
        (["dev/infiniband/uverbs0"], "podman", ["--device", "/dev/infiniband"]),
    ],
)
def test_a_node_gets_what_its_machine_has(tmp_path: Path, there: list[str], engine_name: str, words: list[str]) -> None:
    root = machine(tmp_path, *there)
    assert devices.devices_of(["auto"], engine_name, "n1", str(root)).words == words
    assert devices.devices_of([], engine_name, "n1", str(root)) == ([], [])


def test_gpus_that_no_container_would_get_are_named(tmp_path: Path) -> None:
    root = str(machine(tmp_path, "dev/nvidiactl", "usr/bin/nvidia-container-runtime"))
    with pytest.raises(devices.NoDevice, match=r"n1 has NVIDIA GPUs and no CDI .* type: sudo nvidia-ctk cdi generate"):
        devices.devices_of(["auto"], "podman", "n1", root)
    with pytest.raises(devices.NoDevice, match="there is no /dev/none on n1; give what is there, or auto"):
        devices.devices_of(["/dev/none"], "podman", "n1", root)
    assert devices.devices_of(["nvidia.com/gpu=1"], "podman", "n1", root).words == ["--device", "nvidia.com/gpu=1"]


def test_the_groups_of_devices_go_along_by_number(tmp_path: Path) -> None:
    machine(tmp_path, "dev/kfd", "dev/dri/renderD128", "dev/dri/card0")
    for name, gid, mode in (("dri/renderD128", 105, 0o660), ("dri/card0", 44, 0o660), ("kfd", 0, 0o660)):
        os.chmod(tmp_path / "dev" / name, mode)
        os.chown(tmp_path / "dev" / name, -1, gid)
    assert devices.devices_of(["auto"], "podman", "n1", str(tmp_path)).gids == [44, 105]
    assert devices.devices_of(["/dev/kfd"], "podman", "n1", str(tmp_path)).gids == []


# --- the first process -----------------------------------------------------------------------------------------------


def test_a_user_of_a_device_is_in_its_group_and_the_image_keeps_its_own() -> None:
    there = ["root:x:0:", "video:x:44:someone", "ubuntu:x:1000:", "a broken line", "+:::"]
    assert entry.groups_with(there, "fleet", 1000, [44, 105]) == [
        "root:x:0:",
        "video:x:44:someone,fleet",
        "ubuntu:x:1000:",
        "device105:x:105:fleet",
    ]
    assert entry.groups_with([], "fleet", 1001, []) == ["fleet:x:1001:"]


def test_the_first_line_of_a_uid_counts_so_ours_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of Ubuntu 24.04 have a user of their own with uid 1000: getpwuid() would call ours by that name."""
    texts = {"/etc/passwd": "root:x:0:0::/root:/bin/sh\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n"}
    written: dict[str, str] = {}
    monkeypatch.setattr(entry, "lines_of", lambda path: texts.get(path, "").splitlines())
    monkeypatch.setattr(entry, "write", lambda path, text, _mode: written.update({path: text}))
    assert entry.make_user("fleet", 1000, []) == "/home/fleet"
    first, *others = written["/etc/passwd"].splitlines()
    assert first.startswith("fleet:x:1000:1000::/home/fleet:") and others == texts["/etc/passwd"].splitlines()
    assert written["/etc/shadow"].splitlines()[-1].startswith("fleet:*:")
    with pytest.raises(entry.Unfit, match="the image has a user ubuntu with uid 1000: give that node_container_uid"):
        entry.make_user("ubuntu", 1001, [])


def test_what_a_node_keeps_to_itself_is_roots_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration of sshd has the variables of logins, among them what is secret."""
    modes: dict[str, int] = {}
    monkeypatch.setattr(entry, "write", lambda path, _text, mode: modes.update({path: mode}))
    monkeypatch.setattr(entry, "lines_of", lambda _path: [])
    monkeypatch.setattr(entry.os, "makedirs", lambda *_words, **_more: None)
    monkeypatch.setattr(entry, "keep_sshd", lambda: 0)
    for name in ("install", "make_home", "make_host_key", "name_itself"):
        monkeypatch.setattr(entry, name, lambda *_words: None)
    given = {"birth": "b", "user": "fleet", "uid": 1000, "gids": [], "port": 2222, "listen": [], "key": "k"}
    assert entry.main(json.dumps({**given, "env": {"TOKEN": "s3cret"}})) == 0
    assert modes[entry.CONFIG] == modes["/etc/shadow"] == 0o600
    assert modes["/etc/sudoers.d/torchfleet_node"] == 0o440  # sudo reads no other


def test_host_keys_that_an_image_brought_are_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    brought = ["ssh_host_rsa_key", "ssh_host_ed25519_key.pub", "sshd_config"]
    monkeypatch.setattr(entry.os, "listdir", lambda path: brought if path == "/etc/ssh" else [])
    monkeypatch.setattr(entry.os, "unlink", done.append)
    monkeypatch.setattr(entry, "found", lambda name: name)
    monkeypatch.setattr(entry.subprocess, "run", lambda argv, check: done.append(argv[-1] if check else ""))
    entry.make_host_key()
    assert done == ["/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_ed25519_key.pub", entry.HOST_KEY]


@pytest.fixture
def owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Make `/data` a mount of this machine's folder; return who is made the owner of what."""
    found: dict[str, int] = {}
    monkeypatch.setattr(entry.os, "chown", lambda path, uid, _gid: found.update({path: uid}))
    monkeypatch.setattr(entry, "gid_of", lambda uid: uid)
    (tmp_path / "mounts").write_text(f"1 0 0:1 / / rw\n2 1 0:2 /x {tmp_path}/da\\040ta rw\n")
    monkeypatch.setattr(entry, "MOUNTS", str(tmp_path / "mounts"))
    return found


def test_a_home_of_the_machine_stays_as_it_is(tmp_path: Path, owners: dict[str, int]) -> None:
    """As with `node_container_mounts=/home:/home:rw`: its user would be shut out of the machine."""
    home = tmp_path / "da ta" / "me"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "authorized_keys").write_text("mine\n")
    entry.make_home(str(home), os.getuid())
    with pytest.raises(entry.Unfit, match=f"{home} is on a mount, and of uid {os.getuid()}: give that node_container"):
        entry.make_home(str(home), os.getuid() + 1)
    assert (home / ".ssh" / "authorized_keys").read_text() == "mine\n" and owners == {}
    new = tmp_path / "da ta" / "new"
    entry.make_home(str(new), 1234)
    assert owners == {str(new): 1234, str(new / ".ssh"): 1234}


def test_keys_that_an_image_brought_open_nothing(tmp_path: Path, owners: dict[str, int]) -> None:
    home = tmp_path / "data" / "fleet"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "authorized_keys").write_text("another cluster's\n")
    entry.make_home(str(home), 1234)
    assert not (home / ".ssh" / "authorized_keys").exists() and set(owners.values()) == {1234}
    assert f"AuthorizedKeysFile .ssh/authorized_keys {entry.KEYS}" in entry.config_of(2222, [], [], "internal-sftp")


def test_logins_have_the_variables_of_the_image() -> None:
    image = {"PATH": "/opt/conda/bin:/bin", "HOME": "/root", "HOSTNAME": "x", "LD_LIBRARY_PATH": "/l", "BAD": 'a"b'}
    assert entry.setenv_of(image, {"MINE": "1"}) == [
        'PATH="/opt/conda/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin"',
        'LD_LIBRARY_PATH="/l"',
        'MINE="1"',
    ]


def test_the_configuration_of_sshd() -> None:
    text = entry.config_of(2222, ["10.0.0.1", "fd00::1"], ['A="1"'], "internal-sftp")
    lines = text.splitlines()
    assert lines[:3] == ["Port 2222", "ListenAddress 10.0.0.1:2222", "ListenAddress [fd00::1]:2222"]
    assert {"PasswordAuthentication no", "PermitRootLogin no", 'SetEnv A="1"'} < set(lines)
    assert lines[-1] == "Include /etc/ssh/sshd_config.d/*torchfleet*.conf"  # the image's may open another port


def test_the_first_process_is_one_file_that_needs_nothing_of_ours() -> None:
    text = lifecycle.source()
    assert "ansible_collections" not in text and "from ." not in text
    assert len(text) < 100_000  # one word of a command line may have 131,072 bytes (MAX_ARG_STRLEN)


def test_a_start_that_fails_removes_what_it_made_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may not have shown a node that is there: then the name is in use, and the files are its own."""
    given: list[str] = []
    there = {"birth": "another"}

    def refuse(_self: engine.Engine, *words: str) -> str:
        given.extend(words)
        raise engine.EngineFailed("the name is in use")

    removed: list[str] = []
    plan = lifecycle.Plan(PODMAN, None, "img", 2222, False, devices.Devices([], []), "{}", [])
    monkeypatch.setattr(engine.Engine, "do", refuse)
    monkeypatch.setattr(engine.Engine, "container", lambda *_: container(**{shape.BIRTH_LABEL: there["birth"]}))
    monkeypatch.setattr(engine.Engine, "remove", lambda _self, name: removed.append(name))
    with pytest.raises(engine.EngineFailed, match="the name is in use"):
        lifecycle.start(wanted(), plan)
    assert removed == []
    monkeypatch.setattr(lifecycle.uuid, "uuid4", lambda: lifecycle.uuid.UUID(int=7))
    there["birth"] = lifecycle.uuid.UUID(int=7).hex
    with pytest.raises(engine.EngineFailed, match="the name is in use"):
        lifecycle.start(wanted(), plan)
    assert removed == ["id"] and f"{shape.BIRTH_LABEL}={there['birth']}" in given
    assert shape.BIRTH_LABEL in " ".join(shape.COMMIT_WORDS)


@pytest.mark.parametrize("says", ["[1]", "[[1, 2, 3]]", "7", "[" * 200_000, "\xff"])
def test_what_an_image_says_of_itself_is_checked(monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    monkeypatch.setattr(engine.Engine, "look", lambda *_given: engine.Done(0, says, "its last line"))
    with pytest.raises(engine.EngineFailed, match="img does not run: its last line"):
        engine.first_python(PODMAN, "img", [], "")


def test_output_that_is_no_text_is_shown_all_the_same() -> None:
    assert engine.Engine("printf", rootless=False).try_to(r"a\377\n").said == "a\ufffd"


def test_no_image_is_kept_of_a_node_that_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "engine_of", lambda _wanted, _node: PODMAN)
    monkeypatch.setattr(engine.Engine, "container", lambda *_given: container())
    kept: list[str] = []
    monkeypatch.setattr(engine.Engine, "do", lambda _self, *words: kept.append(words[0]))
    for status, told in ((255, "it cannot be told whether keys are in ~fleet/.torchfleet/ssh"), (0, "has keys of")):
        monkeypatch.setattr(engine.Engine, "look", lambda *_given, s=status: engine.Done(s, "", "no"))
        with pytest.raises(engine.EngineFailed, match=told):
            lifecycle.built(options(), check=False)
    done = subprocess.run([sys.executable, "-c", lifecycle.THERE, "/nothing"], check=False)
    assert kept == [] and done.returncode == lifecycle.NOTHING_THERE
    monkeypatch.setattr(engine.Engine, "look", lambda *_given: engine.Done(done.returncode, "", ""))
    lifecycle.built(options(), check=False)
    assert kept == ["commit"]


# --- images --------------------------------------------------------------------------------------------------------


def test_an_image_of_our_own_that_is_not_there_is_not_looked_for_in_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[str] = []
    monkeypatch.setattr(engine.Engine, "image", lambda _self, _name: "")
    monkeypatch.setattr(engine.Engine, "do", lambda _self, *words: pulled.append(" ".join(words)))
    with pytest.raises(engine.EngineFailed, match=r"there is no localhost/torchfleet-worker:cpu on n1; .*=built"):
        given = options(image="localhost/torchfleet-worker:cpu")
        lifecycle.image_of(given, shape.wanted_of(given, 0), PODMAN, check=False)
    given = options(image="docker.io/intel/deep-learning:2024.0-py3.10")
    asked = shape.wanted_of(given, 0)
    assert lifecycle.image_of(given, asked, PODMAN, check=True) == given["image"] and pulled == []
    assert lifecycle.image_of(given, asked, PODMAN, check=False) == given["image"]
    assert pulled == [f"pull {given['image']}"]
    assert lifecycle.image_of(options(), wanted(), PODMAN, check=True) == ""


def test_an_image_is_there_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    plan = lifecycle.Plan(PODMAN, None, "img", 2222, False, devices.Devices([], []), "{}", [])
    monkeypatch.setattr(lifecycle, "engine_of", lambda _wanted, _node: PODMAN)
    monkeypatch.setattr(lifecycle, "plan_of", lambda _given, _wanted, _engine, check: asked.append(check) or plan)
    monkeypatch.setattr(lifecycle, "start", lambda *_given: pytest.fail("it was started"))
    for digest, check, changed, told in (
        ("", False, True, "image img is there now on n1"),
        ("", True, True, "image img would be had on n1"),
        ("sha", False, False, "image img is there on n1"),
    ):
        monkeypatch.setattr(engine.Engine, "image", lambda _self, _name, digest=digest: digest)
        assert lifecycle.prepared(options(image="img"), check) == {"changed": changed, "msg": told}
    assert asked == [False, True, False]


@pytest.mark.parametrize("base", list(bases.BASES))
def test_every_base_has_an_image_of_its_own(base: str) -> None:
    assert bases.node_image(base).startswith(f"localhost/torchfleet-node:{base}-")
    assert wanted(image=bases.BASES[base].image).image == bases.BASES[base].image


# --- the inventory ---------------------------------------------------------------------------------------------------

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFDA4IoERMRItbLKQRXS1WL61KsbGU8wFeYEJ8Q4ZjxY"
TOLD = {"port": 2222, "user": "fleet", "python": "/usr/bin/python3", "host_keys": [KEY]}


def test_the_inventory_says_how_every_node_is_reached() -> None:
    nodes = {
        "n1": members.member_of("n1", {"ansible_host": "10.0.0.1"}, TOLD),
        "n2": members.member_of(
            "n2",
            {"ansible_host": "10.0.0.2", "slots": 8, "ansible_ssh_common_args": "-J me@gate"},
            {**TOLD, "port": 22, "python": "/opt/conda/bin/python3"},
        ),
    }
    written = members.texts(nodes, "n1", ["n2"])
    assert written["hosts.yml"].startswith(members.HEADER)
    groups = yaml.safe_load(written["hosts.yml"])["all"]["children"]
    assert groups["head"]["hosts"] == {
        "n1": {"ansible_host": "10.0.0.1", "ansible_user": "fleet", "ansible_port": 2222}
    }
    assert groups["workers"]["hosts"]["n2"] == {
        "ansible_host": "10.0.0.2",
        "ansible_user": "fleet",
        "slots": 8,
        "ansible_python_interpreter": "/opt/conda/bin/python3",
        "ansible_ssh_extra_args": "-J me@gate",
    }
    assert groups["head"]["vars"] == groups["workers"]["vars"]
    assert written["known_hosts"].splitlines() == [f"[n1]:2222,[10.0.0.1]:2222 {KEY}", f"n2,10.0.0.2 {KEY}"]
    both = yaml.safe_load(members.texts(nodes, "n1", ["n1", "n2"])["hosts.yml"])["all"]["children"]
    assert both["head"] == {"hosts": {"n1": None}} and set(both["workers"]["hosts"]) == {"n1", "n2"}
    odd = {name: members.member_of(name, {"ansible_host": "10.0.0.1"}, TOLD) for name in ("1", "no", "2026-01-01")}
    both = yaml.safe_load(members.texts(odd, "1", list(odd))["hosts.yml"])["all"]["children"]
    assert list(both["head"]["hosts"]) == ["1"] and list(both["workers"]["hosts"]) == list(odd)


@pytest.mark.parametrize(
    "lie",
    [
        {"port": "22"},
        {"port": 70000},
        {"user": "x -oProxyCommand=y"},
        {"python": "/usr/bin/python3; id"},
        {"host_keys": [f"@cert-authority * {KEY}"]},
        {"host_keys": [f"{KEY}\nevil {KEY}"]},
        {"host_keys": []},
        {"host_keys": [KEY] * 9},
    ],
)
def test_what_no_node_container_tells_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^answer of n1: got "):
        members.member_of("n1", {}, {**TOLD, **lie})


def test_a_machine_whose_address_is_no_address_is_refused() -> None:
    assert members.member_of("localhost", {}, TOLD)[0].addresses == ("127.0.0.1",)
    with pytest.raises(InputError, match=r"^ansible_host of n1: "):
        members.member_of("n1", {"ansible_host": "me@there"}, TOLD)


def test_the_key_and_the_files_are_private_and_nothing_of_others_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "nodes"
    files.make_key(str(place), "nodes")
    assert (place / "key").stat().st_mode & 0o777 == 0o600
    files.write(str(place / "hosts.yml"), members.HEADER)
    (place / "notes.txt").touch()
    files.remove_files(files.files_of(str(place), members.HEADER), str(place))
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
    (place / "hosts.yml").write_text("---\nall:\n")
    assert not files.is_ours(str(place), members.HEADER) and files.files_of(str(place), members.HEADER) == []
