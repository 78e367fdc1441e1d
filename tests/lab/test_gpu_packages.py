"""Drivers on real nodes, from signed repositories of packages that hold nothing: what is refused, and what waits for a
reboot.

A node has no GPU: a tree of sysfs tells of one. All refusals are tried in one run of Ansible, each as a play would end.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.driver import REPO
from tests.lab.gpu_stubs import DRIVER, NEXT_DRIVER, STUBS
from tests.lab.lab import Lab, ansible
from tests.lab.listing import listing

MOST_BANNERS = 12  # of role cuda, from bare to installed: each is a line that people read, and time on every machine
FACTS = {"gather_facts": True, "gather_subset": ["!all", "!min", "env", "platform", "python"]}
# A name, the node, the role, its variables (sysfs_root is below the stubs), and what is said.
CASES: list[tuple[str, str, str, dict[str, Any], str]] = [
    (
        "Secure Boot",
        "n1",
        "cuda",
        {"sysfs_root": "h100-secure"},
        r"cuda: Secure Boot is on, and the kernel would not load the modules that are built here: enroll a key for "
        r"them \(mokutil --import\) and set cuda_secure_boot_signed=true, or switch Secure Boot off in the firmware",
    ),
    (
        "no space",
        "n1",
        "cuda",
        {"sysfs_root": "h100", "disk_mb": 10**9},
        r"cuda: the packages need 1000000000 MB in /usr, where \d+ MB are free: make room",
    ),
    (
        "another module",
        "n1",
        "cuda",
        {"sysfs_root": "h100-old-module"},
        rf"cuda: n1 has to be rebooted \(module nvidia 575.57.08 is loaded, and the library is {DRIVER}\): say "
        r"-e cuda_allow_reboot=true, which reboots one machine after the other, or reboot it and run this again",
    ),
    (
        "old GPUs, new toolkit",
        "n1",
        "cuda",
        {"sysfs_root": "v100"},
        r"cuda_toolkit: got 13.0; CUDA 13 does not support 10de:1db6, which is older than Turing: "
        r"set cuda_toolkit=12.6",
    ),
    (
        "old GPUs, open modules",
        "n1",
        "cuda",
        {"sysfs_root": "v100", "driver": "open"},
        r"cuda_driver: got open; the open kernel modules do not drive 10de:1db6, which is older than Turing: "
        r"set cuda_driver=proprietary",
    ),
    (
        "another key",
        "n1",
        "cuda",
        {"sysfs_root": "h100", "repository": {"keys": {"deb": {"fingerprint": "AB" * 20}}}},
        rf"cuda: nothing was changed: file://{STUBS}/key.gpg is not the key that is known: it has the key "
        rf"[0-9A-F]{{40}}, but not {'AB' * 20}",
    ),
    (
        "a repository that is not signed",
        "n1",
        "cuda",
        {"sysfs_root": "h100", "repository": {"address": f"file:{STUBS}/unsigned"}},
        rf"cuda: nothing was changed: apt cannot read or verify file:{STUBS}/unsigned: .*is not signed.*",
    ),
    (
        "a repository signed by somebody else",
        "n1",
        "rocm",
        {"sysfs_root": "mi300x", "repository": {"address": f"file:{STUBS}/other"}},
        rf"rocm: nothing was changed: apt cannot read or verify .*file:{STUBS}/other: .*NO_PUBKEY.*",
    ),
    (
        "a branch that there is not",
        "n1",
        "cuda",
        {"sysfs_root": "h100", "branch": "599"},
        rf"cuda: nothing was changed: file:{STUBS}/cuda has no nvidia-driver-pinning-599: set another version",
    ),
    (
        "a branch whose packages have other names",
        "n1",
        "cuda",
        {"sysfs_root": "h100", "branch": "570"},
        r"cuda_branch: got 570; give 580 or newer: of older branches NVIDIA's packages have other names "
        r"\(nvidia-fabricmanager-570\)",
    ),
    (
        "a kind of GPU that there is not",
        "n1",
        "rocm",
        {"sysfs_root": "mi300x", "targets": ["gfx999"]},
        r"rocm: nothing was changed: .* has no amdrocm10.0-gfx999: set another version",
    ),
    ("no GPU", "n1", "cuda", {"sysfs_root": "none"}, "nothing said"),
    ("no GPU", "n1", "rocm", {"sysfs_root": "none"}, "nothing said"),
    (
        "other drivers",
        "n2",
        "cuda",
        {"sysfs_root": "h100"},
        r"cuda: /etc/apt/sources.list.d/cuda.list names the same repository with another key: remove that file, or "
        r"the package it came with; cuda: /usr/bin/nvidia-uninstall: the driver was installed by NVIDIA's .run file, "
        r"so packages would conflict with it: run nvidia-uninstall --silent, then run this again; "
        r"cuda: nvidia-driver 525.147.05-7 is "
        r"installed from another source: remove it \(apt purge '\*nvidia\*'\), or set cuda_branch to its branch",
    ),
    (
        "amdgpu-install",
        "n2",
        "rocm",
        {"sysfs_root": "mi300x"},
        r"rocm: amdgpu-install 6.4.60400-1 is installed, whose repositories would be mixed with these: remove it \("
        r"apt purge amdgpu-install\), and run this again",
    ),
    (
        "another system",
        "n2",
        "rocm",
        {"sysfs_root": "mi300x", "os_release": "none"},
        r"rocm: got alpine320 on \w+; there are packages for debian12, debian13, ubuntu2204, ubuntu2404 on x86_64: "
        r"in the inventory \(not with -e\) give this machine accelerators: \[\], and the others theirs",
    ),
]


class Drivers:
    """Two nodes with repositories, a lockfile that names them, and a place for playbooks. `before`: all files there."""

    def __init__(self, lab: Lab, place: Path) -> None:
        self.lab, self.place = lab, place
        self.before: dict[str, set[str]] = {}
        self.said = place / "said"
        self.said.mkdir()

    def play(self, book: Path | str, *words: str, **given: Any) -> tuple[int, str]:
        done = ansible("ansible-playbook", "-i", str(self.lab.inventory), str(book), *words, "-e", json.dumps(given))
        return done.returncode, done.stdout + done.stderr

    def stubs(self, state: str) -> None:
        given = {"gpu_stubs_state": state, "gpu_stubs_directory": str(self.place / "stubs")}
        status, said = self.play(REPO / "tests/lab/gpu_stubs.yml", **given)
        assert status == 0, said

    def locked(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.place / "stubs/versions.yml").read_text())[name])

    def variables(self, role: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of a role, whose repository may differ from that of the lockfile in a part."""
        shipped = dict(
            yaml.safe_load((REPO / "versions.yml").read_text())[role]["repository"], **self.locked(role)["repository"]
        )
        wanted = {"disk_mb": 10, **given, "sysfs_root": f"{STUBS}/roots/{given['sysfs_root']}"}
        wanted.pop("os_release", None)
        if "repository" in given:
            keys = {"deb": {**shipped["keys"]["deb"], **given["repository"].get("keys", {}).get("deb", {})}}
            wanted["repository"] = {**shipped, **given["repository"], "keys": keys}
        return {f"{role}_{name}": value for name, value in wanted.items()}

    def book(self, name: str, tasks: list[dict[str, Any]], hosts: str = "head:workers") -> Path:
        path = self.place / f"{name}.yml"
        path.write_text(yaml.safe_dump([{"hosts": hosts, **FACTS, "tasks": tasks}]))
        return path

    def attempt(self, number: int) -> dict[str, Any]:
        """Return the tasks that try a case and note what it ends with."""
        _name, node, role, given, _says = CASES[number]
        note = [
            {"ansible.builtin.copy": {"dest": f"{self.said}/{number}", "content": words}, "delegate_to": "localhost"}
            for words in ("nothing said", "{{ ansible_failed_result.msg }}")
        ]
        run = {
            "ansible.builtin.include_role": {"name": f"torchfleet.cluster.{role}"},
            "vars": self.variables(role, given),
        }
        block: dict[str, Any] = {
            "when": f"inventory_hostname == '{node}'",
            "block": [run, note[0]],
            "rescue": [note[1]],
        }
        if "os_release" in given:
            file = f"{STUBS}/roots/{given['os_release']}/os-release"
            there = "/usr/lib/os-release"
            swap = [["cp", "--backup=simple", "--suffix=.real", file, there], ["mv", f"{there}.real", there]]
            before, after = ({"ansible.builtin.command": {"argv": argv}, "become": True} for argv in swap)
            block.update(block=[before, *block["block"]], always=[after])
        return block

    def state(self, node: str) -> str:
        """Return what tells whether something was changed on a node."""
        files = "find /etc/apt /etc/systemd/system /tmp/torchfleet-* -type f -exec sha256sum {} + 2>/dev/null"
        return self.lab.root(node, "sh", "-c", f"cat /var/lib/dpkg/status; {files} | sort")

    def packages(self, node: str, *patterns: str) -> set[str]:
        """Return name, version and what is wanted (hold) of the packages that are known to dpkg."""
        form = "${Package} ${Version} ${db:Status-Want}\n"
        return set(self.lab.root(node, "dpkg-query", "--show", f"--showformat={form}", *patterns).splitlines())


@pytest.fixture(scope="module")
def drivers(two_nodes: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    made = Drivers(two_nodes, tmp_path_factory.mktemp("drivers"))
    made.stubs("present")
    made.before = {node: listing(two_nodes, node, contents=False) for node in ("n1", "n2")}
    yield made
    made.stubs("absent")
    for node in ("n1", "n2"):
        two_nodes.root(node, "rm", "-rf", STUBS)


@pytest.fixture(scope="module")
def refused(drivers: Drivers) -> Drivers:
    """The same, after all cases were tried. On n2 other drivers were installed before."""
    root = drivers.lab.root
    pool = f"{STUBS}/distribution/pool"
    root("n2", "sh", "-c", f"dpkg --install {pool}/nvidia-driver_* {pool}/amdgpu-install_*")
    root("n2", "sh", "-c", "echo > /usr/bin/nvidia-uninstall")
    root("n2", "sh", "-c", f"echo 'deb file:{STUBS}/cuda/ /' > /etc/apt/sources.list.d/cuda.list")
    try:
        before = [drivers.state(node) for node in ("n1", "n2")]
        book = drivers.book("refused", [drivers.attempt(number) for number in range(len(CASES))])
        status, said = drivers.play(book, torchfleet_versions=str(drivers.place / "stubs/versions.yml"))
        assert status == 0, said
        assert [drivers.state(node) for node in ("n1", "n2")] == before
    finally:
        root("n2", "rm", "-f", "/usr/bin/nvidia-uninstall", "/etc/apt/sources.list.d/cuda.list")
        root("n2", "dpkg", "--purge", "nvidia-driver", "amdgpu-install")
    return drivers


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case[2]}: {case[0]}" for case in CASES])
def test_it_is_refused_in_a_line_and_nothing_was_changed(refused: Drivers, number: int) -> None:
    said = (refused.said / str(number)).read_text()
    assert re.fullmatch(CASES[number][4], said), said


@pytest.fixture
def plain(drivers: Drivers) -> Iterator[str]:
    """A user of n1 who may not become root."""
    root = drivers.lab.root
    root("n1", "useradd", "--create-home", "--shell", "/bin/bash", "nosudo")
    root("n1", "cp", "-r", "/home/fleet/.ssh", "/home/nosudo/.ssh")
    root("n1", "chown", "-R", "nosudo:", "/home/nosudo/.ssh")
    yield "nosudo"
    root("n1", "userdel", "--force", "--remove", "nosudo", check=False)


def test_a_user_who_cannot_become_root_is_told_so_and_check_mode_needs_no_root(drivers: Drivers, plain: str) -> None:
    given = {"torchfleet_versions": str(drivers.place / "stubs/versions.yml"), "ansible_user": plain}
    given |= {"cuda_disk_mb": 10, "cuda_sysfs_root": f"{STUBS}/roots/h100-new", "cuda_toolkit": ""}
    book = drivers.book("nosudo", [{"ansible.builtin.import_role": {"name": "torchfleet.cluster.cuda"}}], hosts="n1")
    before = drivers.state("n1")
    status, output = drivers.play(book, **given)
    assert status == 2
    assert (
        "cuda: packages are installed as root, and there is no way to become root (Missing sudo password): give the "
        "password with -K, or let n1 be reached by a user who may use sudo"
    ) in " ".join(output.split())
    _status, output = drivers.play(book, "--check", "--diff", **given)
    assert re.search(
        r"msg: would install linux-headers-\S+ nvidia-driver-pinning-580, nvidia-open, ", " ".join(output.split())
    )
    assert (
        "would load module nvidia, or ask for a reboot (-e cuda_allow_reboot=true allows it) if modprobe fails: "
        "module nvidia none is loaded, and nvidia-open would be installed"
    ) in " ".join(output.split())
    assert "+nvidia-open, to be installed, held\n" in output and "+Signed-By: /etc/apt/keyrings/" in output
    assert drivers.state("n1") == before


SOME = {
    "role": "some",
    "systems": ["debian12"],
    "machines": {"x86_64": "x86_64", "aarch64": "sbsa"},
    "first": ["some-pinning-1"],
    "packages": ["some-driver"],
    "same_version": {"some-manager": "some-driver"},
    "hold": ["some-pinning-1", "some-driver", "some-manager"],
    "branch": "1",
    "kernel_headers": True,
}


def test_packages_come_in_the_versions_that_belong_together(drivers: Drivers) -> None:
    """apt knows nothing of the distribution, whose package the driver depends on, and would not look: the headers are
    there. The newest manager of the branch is of another driver. A second run needs no root. Somebody installed one
    of the packages before."""
    root = drivers.lab.root
    root(
        "n2", "sh", "-c", f"dpkg --install {STUBS}/distribution/pool/linux-headers-* {STUBS}/some/pool/some-pinning-1_*"
    )
    root("n2", "sh", "-c", "rm -rf /var/lib/apt/lists && mkdir /var/lib/apt/lists")
    repository = {
        "name": "torchfleet-some",
        "address": f"file:{STUBS}/some",
        "suite": "/",
        "keys": drivers.locked("cuda")["repository"]["keys"],
        "pin": 'Package: some-none\nPin: origin ""\nPin-Priority: 600\n',
    }
    task = {"torchfleet.cluster.vendor_packages": {**SOME, "repositories": [repository]}, "become": True}
    book = drivers.book("some", [task], hosts="n2")
    for change, given in (("changed=1", {}), ("changed=0", {"ansible_become": False})):
        status, output = drivers.play(book, **given)
        assert status == 0 and change in output, output
    assert drivers.packages("n2", "some-pinning-*", "some-driver", "some-manager") == {
        "some-pinning-1 1-1 hold",
        "some-driver 1.5-1 hold",
        "some-manager 1:1.5-2 hold",
    }
    sources = root("n2", "cat", "/etc/apt/sources.list.d/torchfleet-some.sources")
    assert "\nSigned-By: /etc/apt/keyrings/torchfleet-some.gpg\n" in sources
    assert root("n2", "cat", "/etc/apt/preferences.d/torchfleet-some").startswith("Package: some-none\n")


def refuse_under_a_job(drivers: Drivers, typed: list[str], given: dict[str, Any]) -> None:
    """Neither is another driver installed while a job runs there, nor is the machine rebooted."""
    root = drivers.lab.root
    program = "env TORCHFLEET_JOB_ID=one TORCHFLEET_JOB_DIR=/tmp/one sleep 600"
    held = f"echo $$ >/tmp/one/pid; exec flock /tmp/one/lock {program} >/dev/null 2>&1"
    begin = f"mkdir /tmp/one; setsid sh -c {shlex.quote(held)} </dev/null >/dev/null 2>&1 &"
    root("n1", "runuser", "-u", "fleet", "--", "sh", "-c", begin)
    end = "wait for its end, or end it: ansible-playbook clean.yml -e job_id=one"
    try:
        before = drivers.packages("n1", "*")
        for suffers, more in (
            ("these packages would change under it", {}),
            ("would be ended by the reboot", {"cuda_branch": "580", "cuda_allow_reboot": True}),
        ):
            status, said = drivers.play(*typed, **{**given, **more})
            assert status == 2
            assert f"cuda: job one of fleet runs here, and {suffers}: {end}" in " ".join(said.split())
        assert drivers.packages("n1", "*") == before
        root("n1", "sh", "-c", "! flock --nonblock /tmp/one/lock true")  # it still runs
    finally:
        root("n1", "sh", "-c", "kill -- -$(cat /tmp/one/pid); rm -r /tmp/one")


def test_a_reboot_is_asked_for_and_another_branch_is_moved_to(drivers: Drivers) -> None:
    """Everything is installed by then. The next run says the same and changes nothing; the other branch comes whole."""
    typed = shlex.split("""setup.yml -e '{"accelerators": ["cuda"]}' --tags accelerators --limit n1""")
    given = {"torchfleet_versions": str(drivers.place / "stubs/versions.yml")}
    given |= {"cuda_disk_mb": 10, "cuda_sysfs_root": f"{STUBS}/roots/h100-new", "cuda_toolkit": ""}
    for change in ("changed=[1-9]", "changed=0"):
        status, said = drivers.play(*typed, **given)
        assert status == 2
        banners = re.findall(r"^TASK \[.*cuda.*", said, re.MULTILINE)
        assert len(banners) <= MOST_BANNERS, banners
        assert f"cuda: n1 has to be rebooted (module nvidia none is loaded, and {DRIVER} is installed): say" in said
        assert re.search(rf"^n1 .*{change}", said, re.MULTILINE), said
    assert {f"nvidia-open {DRIVER}-1 hold", "nvidia-driver-pinning-580 1-1 install"} <= drivers.packages(
        "n1", "nvidia-*"
    )
    given |= {"cuda_sysfs_root": f"{STUBS}/roots/h100-nouveau", "cuda_branch": "590"}
    refuse_under_a_job(drivers, typed, given)
    _status, said = drivers.play(*typed, **given)
    assert f"(nouveau is loaded, and conflicts with nvidia {NEXT_DRIVER}): say" in said
    there = drivers.packages("n1", "nvidia-*")
    assert {f"nvidia-open {NEXT_DRIVER}-1 hold", "nvidia-driver-pinning-590 1-1 install"} <= there


def test_a_driver_for_older_gpus_and_none_at_all(drivers: Drivers) -> None:
    book = drivers.book("kinds", [{"ansible.builtin.import_role": {"name": "torchfleet.cluster.cuda"}}], hosts="n2")
    given = {"torchfleet_versions": str(drivers.place / "stubs/versions.yml"), "cuda_disk_mb": 10}
    status, said = drivers.play(book, **given, cuda_driver="none", cuda_sysfs_root=f"{STUBS}/roots/h100")
    assert status == 0, said
    there = {line for line in drivers.packages("n2", "*") if line.startswith(("nvidia", "cuda"))}
    assert there == {"cuda-toolkit-13-0 13.0.2-1 hold"}
    given |= {"cuda_sysfs_root": f"{STUBS}/roots/v100", "cuda_toolkit": "12.6"}
    _status, said = drivers.play(book, **given)
    assert f"(module nvidia none is loaded, and {DRIVER} is installed): say -e cuda_allow_reboot=true" in said
    there = drivers.packages("n2", "nvidia-*", "cuda-*")
    assert {f"cuda-drivers {DRIVER}-1 hold", "cuda-toolkit-12-6 12.6.2-1 hold"} <= there
    assert not any(line.startswith(f"nvidia-open {DRIVER}") for line in there)


def test_drivers_go_and_what_was_there_before_stays(drivers: Drivers) -> None:
    """Drivers of several branches were installed by then. A package that was there before is held no more."""
    roles = [{"ansible.builtin.include_role": {"name": "torchfleet.cluster.cuda"}, "vars": {"cuda_state": "absent"}}]
    some = {"torchfleet.cluster.uninstall": {"role": "some"}, "become": True}
    book = drivers.book("gone", [*roles, some])
    for changed in (True, False):
        status, said = drivers.play(book)
        assert status == 0 and len(re.findall(r"^n[12] .*changed=[1-9]", said, re.MULTILINE)) == 2 * changed, said
    there = {node: listing(drivers.lab, node, contents=False) for node in ("n1", "n2")}
    assert there["n1"] == drivers.before["n1"]
    mine = {line for line in there["n2"] - drivers.before["n2"] if not re.search("linux-headers|some-pinning-1", line)}
    assert (mine, drivers.before["n2"] - there["n2"]) == (set(), set())
    known = drivers.packages("n2", "some-*")  # also names that others provided, of state unknown
    assert {line for line in known if not line.endswith("unknown")} == {"some-pinning-1 1-1 install"}
