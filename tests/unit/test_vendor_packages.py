"""Module vendor_packages: what a repository is on each system, what is installed or in the way, and what root runs."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.torchfleet.cluster.plugins.action.vendor_packages import ActionModule
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import (
    apt,
    dnf,
    ledger,
    packages,
    repositories,
    vendor,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.openpgp import KeyFileError
from ansible_collections.torchfleet.cluster.plugins.modules import vendor_packages as module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.vendor import announcement, answer_of

REPO = Path(__file__).parents[2]
VERSIONS = yaml.load((REPO / "versions.yml").read_text(), Loader=yaml.BaseLoader)


def request_for(**given: Any) -> vendor.Request:
    """Return what a role would ask for."""
    empty: dict[str, Any] = {name: [] for name in ("first", "packages", "hold", "conflicts", "repositories")}
    words = {"role": "some", "systems": ["debian12"], "machines": {"x86_64": "x86_64", "aarch64": "sbsa"}}
    flags = ("kernel_headers", "kernel_modules_extra", "builds_modules", "secure_boot", "modules_signed")
    more = {"same_version": {}, "dnf_commands": {}, "branch": "", "disk_mb": 0, **dict.fromkeys(flags, False)}
    request: vendor.Request = {**empty, **words, **more, **given}  # type: ignore[typeddict-item]
    return request


def refused(request: vendor.Request) -> list[str]:
    return vendor.refusals(request, vendor.look(request))


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Debian 12, an apt directory of its own, and packages in the file `dpkg`."""
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (tmp_path / "dpkg").write_text("")
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    monkeypatch.setattr(packages, "OS_RELEASE", tmp_path / "os-release")
    monkeypatch.setattr(vendor, "APT", tmp_path / "apt")
    monkeypatch.setattr(vendor, "was_interrupted", lambda: False)
    monkeypatch.setattr(vendor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(packages, "ask", lambda *argv: (tmp_path / "dpkg").read_text() if "--show" in argv else "")
    return tmp_path


def test_the_options_are_those_that_are_documented() -> None:
    told = {name: {**option, "no_log": None} for name, option in documented("vendor_packages").items()}
    for option in (*told.values(), *module.OPTIONS.values()):
        option.pop("no_log", None)
    assert {
        name: {key: value for key, value in option.items() if key != "options"} for name, option in told.items()
    } == {
        name: {key: value for key, value in option.items() if key != "options"}
        for name, option in module.OPTIONS.items()
    }
    assert set(vendor.Request.__annotations__) == set(module.OPTIONS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('ID=ubuntu\nVERSION_ID="24.04"\n', ("ubuntu2404", "deb")),
        ("ID=debian\nVERSION_ID=13\n", ("debian13", "deb")),
        ('ID="rocky"\nVERSION_ID="9.4"\n', ("rhel9", "rpm")),
        ("ID=arch\n", ("arch", "")),
        ("", ("linux", "")),
    ],
)
def test_the_system(system: Path, text: str, says: tuple[str, str]) -> None:
    (system / "os-release").write_text(text)
    assert packages.read_system() == says


# --- repositories ---------------------------------------------------------------------------------------------------

CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
AMD, ROCM = "https://repo.radeon.com", "https://stable.repo.amd.com/rocm/core/packages"


@pytest.mark.parametrize(
    ("role", "entry", "name", "says"),
    [
        ("cuda", "repository", "debian12", (f"{CUDA}/debian12/x86_64/", "/", "EB693B3035CD5710")),
        ("cuda", "repository", "debian13", (f"{CUDA}/debian13/x86_64/", "/", "02182E60104FCDC2")),
        ("amdgpu", "repository", "debian12", (f"{AMD}/amdgpu/9/ubuntu", "jammy", "CA8BB4727A47B4D0")),
        ("rocm", "repository", "ubuntu2404", (f"{ROCM}/ubuntu2404/", "stable", "D0F004A0025A1145")),
        ("rocm", "classic", "ubuntu2404", (f"{AMD}/rocm/apt/9", "noble", "CA8BB4727A47B4D0")),
    ],
)
def test_what_the_lockfile_says_is_made_out_for_a_system(
    role: str, entry: str, name: str, says: tuple[str, str, str]
) -> None:
    made = repositories.repository_for({**VERSIONS[role][entry], "version": "9"}, "some", name, "x86_64")
    assert (made["address"], made["suite"], made["fingerprints"][0][:16]) == says
    assert len(made["fingerprints"][0]) == 40 and "{" not in made["key"] + made["address"]
    text = made["files"][f"/etc/apt/sources.list.d/torchfleet-{'amdgpu' if role == 'amdgpu' else role}.sources"]
    assert f"\nSigned-By: {made['keyring']}\n" in text
    assert ("Components:" in text) == (role != "cuda")
    assert (f"/etc/apt/preferences.d/{made['name']}" in made["files"]) == (entry == "classic")


def test_dnf_trusts_no_other_key_than_the_one_that_was_checked() -> None:
    made = repositories.repository_for(VERSIONS["cuda"]["repository"], "cuda", "rhel9", "x86_64")
    assert made["fingerprints"] == ["610C7B14E068A878070DA4E99CD0A493D42D0685"]
    ((path, text),) = made["files"].items()
    assert path == "/etc/yum.repos.d/torchfleet-cuda.repo"
    assert text.splitlines()[1:] == [
        "[torchfleet-cuda]",
        "name=torchfleet.cluster.cuda",
        f"baseurl={CUDA}/rhel9/x86_64/",
        "gpgcheck=1",
        "gpgkey=file:///etc/pki/rpm-gpg/torchfleet-cuda",
        "skip_if_unavailable=0",
    ]


def test_a_mirror_has_its_key_too() -> None:
    told = {**VERSIONS["cuda"]["repository"], "address": "https://mirror.example/{system}/{machine}/"}
    made = repositories.repository_for(told, "cuda", "ubuntu2404", "sbsa")
    assert made["key"] == "https://mirror.example/ubuntu2404/sbsa/3bf863cc.pub"


def test_a_system_without_a_repository_is_refused(system: Path) -> None:
    (system / "os-release").write_text("ID=debian\nVERSION_ID=11\n")
    given = {"repositories": [VERSIONS["amdgpu"]["repository"]], "systems": ["debian11"], "packages": ["driver"]}
    (only,) = refused(request_for(**given))
    assert only.startswith("some: there is no repository torchfleet-amdgpu for debian11: in the inventory")


# --- what is left to do ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("", {"missing": ["driver", "manager"], "wrong_version": [], "not_held": ["driver"]}),
        (
            "driver hold installed 1:580.95.05-1\n",
            {"missing": ["manager"], "wrong_version": ["manager=580.95.05-*"], "not_held": []},
        ),
        (
            "driver install installed 580.95.05-1\nmanager hold installed 580.95.06-1\n",
            {"missing": [], "wrong_version": ["manager=580.95.05-*"], "not_held": ["driver"]},
        ),
        (
            "driver hold unpacked 580.95.05-1\n",
            {"missing": ["driver", "manager"], "wrong_version": [], "not_held": ["driver"]},
        ),
        (
            "driver hold installed 580.95.05-1\nmanager hold installed 2:580.95.05-7\n",
            {"missing": [], "wrong_version": [], "not_held": []},
        ),
    ],
)
def test_what_is_left_to_do(system: Path, rows: str, says: dict[str, list[str]]) -> None:
    (system / "dpkg").write_text(rows)
    seen = vendor.look(request_for(packages=["driver"], same_version={"manager": "driver"}, hold=["driver"]))
    assert {name: list(seen[name]) for name in says} == says  # type: ignore[literal-required]
    assert bool(vendor.left_to_do(seen)) == any(says.values())


def test_a_keyring_and_the_files_of_a_repository_belong_to_it(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOURCES", "PREFERENCES", "KEYRINGS"):
        monkeypatch.setattr(repositories, name, str(system / "apt"))
    (system / "dpkg").write_text("driver install installed 1-1\n")
    told = {**VERSIONS["cuda"]["repository"], "pin": "Package: *"}
    request = request_for(packages=["driver"], repositories=[told])
    paths = vendor.look(request)["stale"]
    assert [Path(path).name for path in paths] == ["torchfleet-cuda.sources", "torchfleet-cuda", "torchfleet-cuda.gpg"]
    (made,) = vendor.look(request)["repositories"]
    for path, text in {**made["files"], made["keyring"]: ""}.items():
        Path(path).write_text(text)
    assert vendor.left_to_do(vendor.look(request)) == []
    Path(paths[0]).write_text("other")
    assert vendor.look(request)["stale"] == paths[:1]


@pytest.mark.parametrize(
    ("version", "is_of"), [("580.95.05-1", True), ("3:580-1", True), ("5800.1-1", False), ("590.1-1", False)]
)
def test_a_branch_is_no_beginning_of_a_number(version: str, is_of: bool) -> None:
    assert packages.is_of("580", version) == is_of


def test_another_branch_is_left_to_do_until_the_driver_is_of_it(system: Path) -> None:
    """Also where the package that chooses it came, and then the run ended."""
    (system / "dpkg").write_text("pinning-590 hold installed 1-1\ndriver hold installed 580.95.05-1\n")
    seen = vendor.look(request_for(first=["pinning-590"], packages=["driver"], branch="590"))
    assert (seen["missing"], seen["changes_branch"]) == (["driver"], True)


def test_what_would_change_is_shown(system: Path) -> None:
    (system / "dpkg").write_text("driver hold installed 580.95.05-1\nother install installed 1-1\n")
    request = request_for(packages=["driver", "other", "more"], hold=["driver", "more"])
    state = vendor.look(request)
    (diff,) = vendor.difference(vendor.snapshot(request, state), vendor.planned(request, state))
    assert diff["before"] == "driver 580.95.05-1, held\nother 1-1\n"
    assert diff["after"] == "driver 580.95.05-1, held\nmore, to be installed, held\nother 1-1\n"


# --- what is refused ------------------------------------------------------------------------------------------------


def test_nothing_is_in_the_way_of_what_is_installed(system: Path) -> None:
    """Not even what would be refused before: it went well."""
    (system / "dpkg").write_text("driver hold installed 1-1\n")
    assert refused(request_for(packages=["driver"], disk_mb=10**9)) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"disk_mb": 10**9}, "some: the packages need 1000000000 MB in /usr, where "),
        ({"systems": ["ubuntu2404"]}, "some: got debian12 on x86_64; there are packages for ubuntu2404 on "),
        ({"machines": {"aarch64": "sbsa"}}, "some: got debian12 on x86_64; there are packages for debian12 on aarch64"),
        ({"builds_modules": True, "secure_boot": True}, "some: Secure Boot is on, and the kernel would not load"),
        ({"conflicts": [{"file": "/", "package": None, "says": "{seen}: no"}]}, "some: /: no"),
    ],
)
def test_what_is_refused(system: Path, given: dict[str, Any], says: str) -> None:
    (only,) = refused(request_for(packages=["driver"], **given))
    assert only.startswith(says) and "\n" not in only


@pytest.mark.parametrize(
    ("rows", "branch", "says"),
    [
        ("driver hold installed 1.5-1\n", "2", []),  # ours, which moves to another branch
        ("driver install installed 1.5-1\n", "2", ["some: driver 1.5-1: no"]),
        ("driver install installed 1.5-1\n", "1", []),
        ("driver hold installed 1.5-1\n", "", ["some: driver 1.5-1: no"]),
        ("driver-pinning install installed 1-1\n", "2", []),  # of an installation that was interrupted
    ],
)
def test_a_driver_of_another_branch_is_in_the_way_unless_it_is_ours(
    system: Path, rows: str, branch: str, says: list[str]
) -> None:
    (system / "dpkg").write_text(rows)
    conflict = {"package": "driver*", "branch": branch, "says": "{seen}: no"}
    wanted = {"first": ["driver-pinning"], "packages": ["driver", "more"], "hold": ["driver"]}
    assert refused(request_for(**wanted, conflicts=[conflict])) == says


def test_modules_that_the_site_signs_may_be_built(system: Path) -> None:
    flags = dict.fromkeys(("builds_modules", "secure_boot", "modules_signed"), True)
    assert refused(request_for(packages=["driver"], **flags)) == []


@pytest.mark.parametrize("text", ["deb file:/some/ /\n", "Types: deb\nURIs: file:/some\nSuites: /\n"])
def test_the_same_repository_with_another_key_is_refused(system: Path, text: str) -> None:
    file = system / "apt/sources.list.d/theirs.list"
    file.write_text(text)
    keys = {"any": {"url": "file:/key", "fingerprint": "A" * 40}}
    ours = {"name": "ours", "address": "file:/some", "suite": "/", "keys": keys}
    request = request_for(packages=["driver"], repositories=[ours])
    (only,) = refused(request)
    assert only.startswith(f"some: {file} names the same repository with another key: remove")
    file.write_text(f"# {text.splitlines()[0]}")
    assert refused(request) == []


# --- what root runs -------------------------------------------------------------------------------------------------


class Root:
    """Notes what is run. `dpkg` is what dpkg-query says after each program; `fail` answers for those that fail."""

    def __init__(self, system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.system, self.ran, self.dpkg = system, [], {}
        self.failures: dict[str, packages.Done] = {}
        self.written: dict[str, bytes] = {}
        monkeypatch.setattr(packages, "run_once", self.run)
        for where in (apt, dnf):
            monkeypatch.setattr(where, "write", lambda path, data: self.written.update({str(path): data}))
            monkeypatch.setattr(where, "fetch_keyring", lambda url, fingerprints: b"key of " + url.encode())
        monkeypatch.setattr(dnf, "armored", lambda data: data.decode() + "\n")
        monkeypatch.setattr(apt, "content", lambda path: self.written[path])

    ran: list[str]
    dpkg: dict[str, str]

    def run(self, argv: tuple[str, ...]) -> packages.Done:
        line = " ".join(argv)
        self.ran.append(re.sub(r"/tmp/torchfleet-\w+", "TRIAL", line))
        for part, rows in self.dpkg.items():
            if part in line:
                (self.system / "dpkg").write_text(rows)
        return next((done for part, done in self.failures.items() if part in line), packages.Done(0, "", ""))

    def short(self) -> list[str]:
        """Return what was run, without the options that each installation has."""
        return [line.replace(" ".join(apt.INSTALL), "INSTALL") for line in self.ran]


@pytest.fixture
def root(system: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    madison = "\n".join(f"{name} | {version} | -" for name, version in OFFERED)
    showing = packages.ask

    def ask(*argv: str) -> str:
        if argv[0] == "apt-cache":
            return "\n".join(row for row in madison.splitlines() if row.split()[0] in argv)
        return showing(*argv)

    monkeypatch.setattr(packages, "ask", ask)
    monkeypatch.setattr(vendor.platform, "release", lambda: "6.1")
    return Root(system, monkeypatch)


OFFERED = (
    *(("pinning", "1-1"), ("driver", "580.95.05-1"), ("driver", "570.1-1")),
    *(("manager", "580.126-1"), ("manager", "580.95.05-2")),
)
REPOSITORY = {
    "name": "theirs",
    "address": "file:/theirs",
    "suite": "/",
    "keys": {"any": {"url": "file:/key", "fingerprint": "AB" * 20}},
    "pin": "Package: *\n",
}
DRIVER = {
    "first": ["pinning"],
    "packages": ["driver"],
    "same_version": {"manager": "driver"},
    "hold": ["driver", "manager"],
    "branch": "580",
    "repositories": [REPOSITORY],
}


def install(**given: Any) -> vendor.State:
    """Install as the module does, after its look."""
    request = request_for(**DRIVER, **given)
    return module.install(request, vendor.look(request))


def test_apt_installs_in_order_after_the_repositories_were_tried(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    monkeypatch.setattr(vendor, "was_interrupted", lambda: True)
    monkeypatch.setattr(vendor, "stale_files", lambda repositories: [])
    pinning, headers = "pinning install installed 1-1\n", "linux-headers-6.1 install installed 1-1\n"
    driver = "driver install installed 580.95.05-1\n"
    root.dpkg = {
        "linux-headers-6.1": headers,
        "pinning": headers + pinning,
        " driver": headers + pinning + driver,
        "manager=": headers + pinning + driver + "manager install installed 580.95.05-2\n",
        "apt-mark": headers
        + pinning
        + (driver + "manager install installed 580.95.05-2\n").replace(" install ", " hold "),
    }
    after = install(kernel_headers=True)
    assert root.short() == [
        "apt-get --option=Dir::Etc::sourcelist=/dev/null --option=Dir::Etc::sourceparts=TRIAL/sources "
        "--option=Dir::Etc::preferences=/dev/null --option=Dir::Etc::preferencesparts=TRIAL/none "
        "--option=Dir::State::lists=TRIAL/lists --option=Dir::State::status=TRIAL/status "
        "--option=Dir::Cache=TRIAL/cache --option=APT::Update::Error-Mode=any update",
        "dpkg --force-confdef --force-confold --configure -a",
        "apt-get update",
        "INSTALL linux-headers-6.1",
        "apt-get update --option=Dir::Etc::sourcelist=/etc/apt/sources.list.d/theirs.sources "
        "--option=Dir::Etc::sourceparts=/dev/null --option=APT::Get::List-Cleanup=0 "
        "--option=APT::Update::Error-Mode=any",
        "INSTALL pinning",
        "INSTALL driver",
        "INSTALL --allow-downgrades manager=580.95.05-2",
        "apt-mark hold driver manager",
    ]
    assert set(apt.INSTALL) >= {"--yes", "--allow-change-held-packages", "--option=DPkg::Lock::Timeout=300"}
    assert set(apt.INSTALL) >= {f"--option=Dpkg::Options::=--force-{word}" for word in ("confdef", "confold")}
    assert after["versions"]["manager"] == "580.95.05-2" and vendor.left_to_do(after) == []
    assert [path for path in root.written if "/etc/" in path] == [
        "/etc/apt/keyrings/theirs.gpg",
        "/etc/apt/sources.list.d/theirs.sources",
        "/etc/apt/preferences.d/theirs",
    ]
    assert root.written["/etc/apt/keyrings/theirs.gpg"] == b"key of file:/key"
    assert ledger.holds() == {"driver": {"some"}, "manager": {"some"}}


def test_a_role_that_wants_a_held_package_takes_part_in_the_hold(root: Root) -> None:
    """A hold of the user's is none of ours."""
    (root.system / "dpkg").write_text("driver hold installed 580.95.05-1\nmanager hold installed 580.95.05-2\n")
    ledger.note_holds("some", ["driver", "manager"])
    other = {**request_for(**DRIVER), "role": "other"}
    assert vendor.look(other)["not_held"] == ["driver", "manager"]
    ledger.note_holds("other", ["driver"])
    assert vendor.look(other)["not_held"] == ["manager"]
    ledger.LEDGER.unlink()
    assert vendor.look(other)["not_held"] == []


def of_etc(root: Root) -> list[str]:
    """Return what was written outside the directory for trials."""
    return [path for path in root.written if path.startswith("/etc")]


def test_a_repository_that_apt_does_not_trust_changes_nothing(root: Root) -> None:
    root.failures["TRIAL"] = packages.Done(100, "", "W: odd\nErr:1 x\nE: not   signed\n")
    root.failures = {"Dir::State::status": root.failures.pop("TRIAL")}
    request = request_for(**DRIVER)
    with pytest.raises(packages.PackageError) as caught:
        apt.install(request, vendor.look(request))
    assert str(caught.value) == ("nothing was changed: apt cannot read or verify file:/theirs: W: odd; E: not signed")
    assert len(root.ran) == 1 and of_etc(root) == []


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ({"packages": ["driver", "more"]}, "more"),
        ({"packages": ["driver"], "branch": "570"}, "manager 570.1, which is the version of driver"),
    ],
)
def test_what_a_repository_does_not_have_changes_nothing(root: Root, given: dict[str, Any], lacks: str) -> None:
    request = request_for(**{**DRIVER, **given})
    with pytest.raises(packages.PackageError) as caught:
        apt.install(request, vendor.look(request))
    assert str(caught.value) == f"nothing was changed: file:/theirs has no {lacks}: set another version"
    assert len(root.ran) == 1 and of_etc(root) == []


@pytest.mark.parametrize("manager", [apt, dnf])
def test_another_key_changes_nothing(root: Root, monkeypatch: pytest.MonkeyPatch, manager: Any) -> None:
    def fetch(url: str, fingerprints: Any) -> bytes:
        raise KeyFileError(f"{url} is not the key that is known: no")

    monkeypatch.setattr(manager, "fetch_keyring", fetch)
    request = request_for(**DRIVER)
    with pytest.raises(packages.PackageError) as caught:
        manager.install(request, vendor.look(request))
    assert str(caught.value) == "nothing was changed: file:/key is not the key that is known: no"
    assert root.ran == [] and of_etc(root) == []


def test_the_first_error_of_apt_is_in_the_message(root: Root) -> None:
    root.failures["install"] = packages.Done(100, "Reading...", "W: x\nE: Unable to locate  it\nE: more\n")
    request = request_for(**DRIVER)
    with pytest.raises(packages.PackageError) as caught:
        apt.install(request, vendor.look(request))
    assert str(caught.value) == "pinning could not be installed: E: Unable to locate it; E: more"


def test_headers_that_the_distribution_does_not_have_come_with_advice(root: Root) -> None:
    root.failures["linux-headers"] = packages.Done(100, "", "E: Unable to locate package linux-headers-6.1\n")
    request = request_for(**DRIVER, kernel_headers=True)
    with pytest.raises(packages.PackageError) as caught:
        apt.install(request, vendor.look(request))
    assert str(caught.value) == (
        "linux-headers-6.1 could not be installed: E: Unable to locate package linux-headers-6.1; "
        "boot a kernel of the distribution, or set some_kernel_headers=false"
    )


def test_a_package_that_did_not_come_is_named(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    with pytest.raises(packages.PackageError, match="after the installation this is not as it should be: pinning, dri"):
        install()


def test_root_is_needed_for_an_installation_alone(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    with pytest.raises(packages.PackageError, match="packages are installed as root"):
        install()
    assert root.ran == []


def test_a_branch_is_changed_as_a_whole(root: Root) -> None:
    """apt leaves alone what is installed, unless the branch changes."""
    (root.system / "dpkg").write_text("driver hold installed 580.1-1\nmore hold installed 1-1\n")
    apt.install_packages(["driver", "more"], everything=False)
    apt.install_packages(["driver", "more"], everything=True)
    assert root.short() == ["INSTALL driver more"]
    (root.system / "dpkg").write_text("driver hold installed 570.1-1\n")
    request = request_for(**DRIVER)
    apt.install(request, vendor.look(request))
    assert {"INSTALL pinning", "INSTALL driver"} <= set(root.short())


LOCKED = packages.Done(100, "", "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt)\n")


def test_a_program_waits_for_the_lock_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [LOCKED, LOCKED, packages.Done(0, "", "")]
    monkeypatch.setattr(packages, "run_once", lambda argv: answers.pop(0))
    monkeypatch.setattr(packages, "RETRY_SECONDS", 0)
    assert packages.run("apt-get", "update").status == 0 and answers == []
    monkeypatch.setattr(packages, "LOCK_SECONDS", -1)
    answers = [LOCKED]
    assert packages.run("apt-get", "update") == LOCKED


def test_another_failure_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [packages.Done(100, "", "E: the repository is blocked\n")]
    monkeypatch.setattr(packages, "run_once", lambda argv: answers.pop(0))
    assert packages.run("apt-get", "update").status == 100


def test_a_service_that_a_package_starts_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEBIAN_FRONTEND", raising=False)
    done = packages.run(
        "sh", "-c", 'sleep 60 & echo $! >"$0"; echo out; echo E: bad >&2; exit 3', str(tmp_path / "pid")
    )
    assert (done.status, done.stdout, done.reason()) == (3, "out\n", "E: bad")
    packages.run("kill", (tmp_path / "pid").read_text().strip())
    assert packages.run("env").stdout.splitlines().count("DEBIAN_FRONTEND=noninteractive") == 1
    assert packages.run("torchfleet-no-such-program").status == 127


# --- what a node answers --------------------------------------------------------------------------------------------


def wanted() -> dict[str, Any]:
    """Return the options of a task."""
    given: dict[str, Any] = {**DRIVER, "repositories": [VERSIONS["cuda"]["repository"]]}
    return dict(request_for(**given))


def answer(**other: Any) -> dict[str, Any]:
    """Return what the module answers where the driver is installed and the rest is not."""
    seen: dict[str, Any] = {"changed": True, "headers": ["linux-headers-6.1"], "versions": {"driver": "580.95.05-1"}}
    seen |= {"missing": ["pinning", "manager"], "wrong_version": ["manager=580.95.05-*"], "not_held": ["driver"]}
    texts = {"before_header": "packages", "after_header": "packages", "before": "a\n", "after": "a\x1b[2J\nb\n"}
    return {**seen, "diff": [texts], **other}


def test_what_the_module_answers_is_taken(
    system: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The module itself, in check mode, with the options of the task as Ansible gives it."""
    (system / "dpkg").write_text("driver install installed 580.95.05-1\n")
    told = answered(wanted(), monkeypatch, capsys)
    found = answer_of("n2", wanted(), told)
    assert found["wrong_version"] == ["manager=580.95.05-*"] and found["missing"] == ["pinning", "manager"]
    assert found["versions"] == {"driver": "580.95.05-1"} and found["changed"] is True
    assert [diff["after_header"] for diff in found["diff"]] == [
        "packages",
        "/etc/apt/sources.list.d/torchfleet-cuda.sources",
    ]


def answered(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """Return what the module prints in check mode."""
    from ansible.module_utils import basic
    from ansible.module_utils.testing import patch_module_args

    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    monkeypatch.setattr(module, "job_refusal", lambda *_words: "")  # a job of another test may run here
    with patch_module_args({**options, "_ansible_check_mode": True}), pytest.raises(SystemExit):
        module.main()
    return dict(json.loads(capsys.readouterr().out))


def test_check_mode_says_what_would_be_installed() -> None:
    found = answer_of("n2", wanted(), answer())
    assert announcement(found) == (
        "would install linux-headers-6.1, pinning, manager, manager=580.95.05-* and hold driver"
    )
    only_files = answer(headers=[], missing=[], wrong_version=[], not_held=[])
    assert announcement(answer_of("n2", wanted(), only_files)) == "would write the repositories again"


def test_what_is_shown_of_a_difference_obeys_no_terminal() -> None:
    (diff,) = answer_of("n2", wanted(), answer())["diff"]
    assert "\x1b" not in diff["after"] and diff["after"].endswith("\nb\n")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("headers", ["nmap"]),
        ("headers", ["linux-headers-1 --option=DPkg::Pre-Invoke::=id"]),
        ("missing", ["driver", "sudo-ldap"]),
        ("not_held", ["--version"]),
        ("wrong_version", ["manager=1 /tmp/evil.deb"]),
        ("wrong_version", ["/tmp/manager=1.deb"]),
        ("wrong_version", ["driver=1"]),
        ("versions", {"driver": "1\n2"}),
        ("versions", {"bash": "1"}),
        ("diff", [{"before": 7}]),
        ("changed", "no"),
    ],
)
def test_a_node_answers_about_what_was_asked_for_alone(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f'answer of n2: got "packages, {field}'):
        answer_of("n2", wanted(), answer(**{field: value}))


def test_what_is_no_answer_is_refused() -> None:
    for value in (None, [], "x", {}, "x" * (2 << 20)):
        with pytest.raises(InputError, match="answer of n2"):
            answer_of("n2", wanted(), value)


class Become:
    """Stands for the plugin that becomes root."""


class Connection:
    become: Any = Become()

    def set_become_plugin(self, plugin: Any) -> None:
        self.become = plugin


class Task:
    action, delegate_to, check_mode = "torchfleet.cluster.vendor_packages", None, False

    def __init__(self, args: dict[str, Any], check_mode: bool) -> None:
        self.args, self.check_mode = args, check_mode

    def copy(self) -> Task:
        return Task(self.args, self.check_mode)


class Node(ActionModule):
    """The action, on a node that gives these answers. `ran`: whether in check mode, whether as root, the options."""

    def __init__(self, *answers: dict[str, Any], check_mode: bool = False, uid: Any = "0\n") -> None:
        self._task, self._connection, self.uid = Task(wanted(), check_mode), Connection(), uid
        self.answers, self.ran = list(answers), []

    ran: list[tuple[bool, bool, dict[str, Any]]]

    def _execute_module(self, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self.ran.append((self._task.check_mode, self._connection.become is not None, module_args))
        return self.answers.pop(0)

    def _low_level_execute_command(self, command: str) -> dict[str, Any]:
        assert command == "id -u" and self._connection.become is not None
        if isinstance(self.uid, Exception):
            raise self.uid
        return {"rc": 0, "stdout": self.uid, "stderr": ""}

    def result(self) -> dict[str, Any]:
        return self.act(wanted(), {"inventory_hostname": "n2"})


DONE = answer(headers=[], missing=[], wrong_version=[], not_held=[], diff=[])


def test_where_nothing_is_left_to_do_nobody_becomes_root() -> None:
    node = Node({**DONE, "changed": False})
    assert node.result() == {"changed": False, "diff": [], "versions": {"driver": "580.95.05-1"}}
    assert [run[:2] for run in node.ran] == [(True, False)]
    assert (node._task.check_mode, isinstance(node._connection.become, Become)) == (False, True)


def test_files_keys_and_addresses_are_the_controllers_own() -> None:
    """The user of a node prints the answer to the look. What root does there is in the options of the task alone."""
    evil = {"name": "x", "keyring": "/etc/cron.d/x", "files": {"/etc/sudoers.d/me": "me ALL=(ALL) NOPASSWD: ALL\n"}}
    node = Node(answer(repositories=[evil], hold=["bash"], role="x"), DONE)
    assert node.result()["changed"] is True
    assert [run[:2] for run in node.ran] == [(True, False), (False, True)]
    assert node.ran[1][2] == wanted()


@pytest.mark.parametrize("field", ["missing", "headers", "not_held"])
def test_root_installs_what_was_asked_for_alone(field: str) -> None:
    node = Node(answer(**{field: ["sudo-ldap"]}))
    with pytest.raises(InputError, match=f'answer of n2: got "packages, {field}"'):
        node.result()
    assert len(node.ran) == 1


def test_what_a_node_answers_after_the_installation_is_checked_too() -> None:
    with pytest.raises(InputError, match='answer of n2: got "packages, versions"'):
        Node(answer(), {**DONE, "versions": {"bash": "1"}}).result()


def test_check_mode_needs_no_root_and_changes_nothing() -> None:
    node = Node(answer(), check_mode=True)
    result = node.result()
    assert result["changed"] is True and result["msg"].startswith("would install linux-headers-6.1, pinning")
    assert [run[:2] for run in node.ran] == [(True, False)]


@pytest.mark.parametrize(
    ("uid", "why"),
    [(AnsibleError("Missing sudo password"), "Missing sudo password"), ("1000\n", "user 1000")],
)
def test_where_nobody_can_become_root_a_line_says_so(uid: Any, why: str) -> None:
    node = Node(answer(), uid=uid)
    assert node.result() == {
        "failed": True,
        "msg": f"some: packages are installed as root, and there is no way to become root ({why}): "
        "give the password with -K, or let n2 be reached by a user who may use sudo",
    }
    assert len(node.ran) == 1


def test_a_node_that_is_lost_is_unreachable_and_no_matter_of_root() -> None:
    with pytest.raises(AnsibleConnectionFailure):
        Node(answer(), uid=AnsibleConnectionFailure("gone")).result()


def test_a_refusal_is_what_the_task_fails_with() -> None:
    node = Node({"failed": True, "msg": "some: no"})
    assert node.result() == {"failed": True, "msg": "some: no"}


# --- machines with rpm: what rpm 4.16 and 4.19 print ----------------------------------------------------------------

RPMS = {"nvidia-driver": "550.90.07-1.el9", "nvidia-driver-cuda": "550.90.07-1.el9"}
EVERYTHING = {"dkms": "3.1.6-1.el9", "python3-dnf-plugin-versionlock": "4.3.0-20.el9", "epel-release": "9-9.el9"}


def rpm(there: dict[str, str]) -> Callable[..., str]:
    """Return what answers in place of rpm, as it does: a name that is no pattern, or with --all a pattern."""

    def ask(*argv: str) -> str:
        if argv[0] == "apt-cache":
            return ""
        assert argv[:2] == ("rpm", "--query"), argv
        name = argv[-1]
        found = {each for each in there if "--all" in argv and fnmatch.fnmatch(each, name)} | ({name} & set(there))
        absent = "" if "--all" in argv else f"package {name} is not installed"
        return "\n".join(f"{each} {there[each]}" for each in sorted(found)) or absent

    return ask


@pytest.fixture
def rocky(system: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Rocky Linux 9 with the packages of a dict."""
    (system / "os-release").write_text('ID="rocky"\nVERSION_ID="9.4"\n')
    there = dict(EVERYTHING)
    monkeypatch.setattr(packages, "ask", rpm(there))
    monkeypatch.setattr(packages, "VERSIONLOCK", system / "versionlock.list")
    return there


def for_rocky(**given: Any) -> vendor.Request:
    return request_for(packages=["driver"], hold=["driver"], systems=["rhel9"], builds_modules=True, **given)


def test_rocky_with_all_that_dnf_takes_is_accepted(rocky: dict[str, str]) -> None:
    seen = vendor.look(for_rocky())
    assert (seen["family"], refused(for_rocky()), seen["missing"]) == ("rpm", [], ["driver"])


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        (
            ["python3-dnf-plugin-versionlock"],
            "some: versions are held by dnf's plugin versionlock, which is not installed: "
            "dnf install python3-dnf-plugin-versionlock",
        ),
        (
            ["dkms", "epel-release"],
            "some: dkms, which builds the kernel modules, is in EPEL, which is not enabled: "
            "-e some_epel=true takes dkms alone from it; or: dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-9.noarch.rpm",
        ),
    ],
)
def test_what_dnf_takes_is_asked_for_before_anything_is_changed(
    rocky: dict[str, str], lacks: list[str], says: str
) -> None:
    for name in lacks:
        del rocky[name]
    assert refused(for_rocky()) == [says]


@pytest.mark.parametrize(("release", "key"), [("9", "FF8AD1344597106E"), ("10", "7D8D15CBFC4E6268")])
def test_epel_is_taken_for_dkms_alone_and_on_no_debian(
    rocky: dict[str, str], system: Path, release: str, key: str
) -> None:
    for name in ("dkms", "epel-release"):
        del rocky[name]
    given = {**for_rocky(repositories=[VERSIONS["epel"]["repository"]]), "systems": [f"rhel{release}", "debian12"]}
    (system / "os-release").write_text(f'ID="almalinux"\nVERSION_ID="{release}.1"\n')
    seen = vendor.look(given)
    assert vendor.refusals(given, seen) == []
    (repository,) = seen["repositories"]
    assert repository["fingerprints"][0].startswith(key)
    text = repository["files"]["/etc/yum.repos.d/torchfleet-epel.repo"]
    assert f"baseurl=https://dl.fedoraproject.org/pub/epel/{release}/Everything/$basearch/\n" in text
    assert "\ngpgcheck=1\n" in text and "\nincludepkgs=dkms\n" in text
    assert vendor.repositories_on(given, "debian12", "x86_64") == []


def test_a_driver_from_elsewhere_is_seen_by_a_pattern(rocky: dict[str, str]) -> None:
    """`rpm -q` takes no pattern: it says "package nvidia-driver* is not installed", and ends well enough."""
    rocky.update(RPMS)
    conflict = {"package": "nvidia-driver*", "branch": "580", "says": "{seen} is installed: {remove} '*nvidia*'"}
    (only,) = refused(for_rocky(conflicts=[conflict]))
    assert only == "some: nvidia-driver 550.90.07-1.el9 is installed: dnf remove '*nvidia*'"


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("driver-0:580.95.05-1.el9.*", {"driver"}),
        ("driver-manager-0:580.95.05-1.el9.*", set()),
        ("some-driver-0:1.5-1.*", set()),
        ("!driver-0:580.95.05-1.el9.*", set()),
    ],
)
def test_a_version_is_held_by_a_line_of_its_own(rocky: dict[str, str], system: Path, line: str, held: set[str]) -> None:
    rocky["driver"] = "580.95.05-1.el9"
    (system / "versionlock.list").write_text(f"\n# Added lock on Wed Nov 25 16:10:01 2026\n{line}\n")
    assert packages.installed("rpm", ["driver"])[1] == held


def test_keys_that_rpm_trusts_are_told_apart(rocky: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = "gpg-pubkey 350d275d-6279464b\ngpg-pubkey d42d0685-62589a51\nbash 5.1.8-9.el9"
    monkeypatch.setattr(packages, "ask", lambda *_argv: said)
    assert packages.every_package() == {"gpg-pubkey-350d275d-6279464b", "gpg-pubkey-d42d0685-62589a51", "bash"}


def test_another_branch_is_not_moved_to_with_dnf(rocky: dict[str, str]) -> None:
    rocky["driver"] = "575.57.08-1.el9"
    (only,) = refused(for_rocky(branch="580"))
    assert only.startswith("some: driver 575.57.08-1.el9 is installed, and another branch cannot replace it")
    assert "dnf module reset nvidia-driver" in only


def test_dnf_installs_in_order(rocky: dict[str, str], system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(system, monkeypatch)
    request = request_for(
        **{**DRIVER, "systems": ["rhel9"]}, dnf_commands={"rhel9": [["module", "enable", "nvidia-driver:580-open"]]}
    )
    state = vendor.look(request)
    rocky.update({"driver": "580.95.05-1.el9", "manager": "580.126-1.el9"})  # as dnf will have installed them
    dnf.install(request, state)
    assert [line.replace(" ".join(dnf.DNF), "DNF") for line in root.ran] == [
        "rpm --import /etc/pki/rpm-gpg/theirs",
        "DNF module enable nvidia-driver:580-open",
        "DNF install driver",
        "DNF install manager-580.95.05-*",
        "DNF versionlock add driver manager",
    ]
    assert list(root.written) == ["/etc/pki/rpm-gpg/theirs", "/etc/yum.repos.d/theirs.repo"]
    assert root.written["/etc/pki/rpm-gpg/theirs"] == b"key of file:/key\n"


def test_no_claim_is_made_of_what_ansible_cannot_manage() -> None:
    """ansible-core 2.19 runs with Python 3.8 or newer there, and dnf's library of RHEL 8 is for its Python 3.6."""
    said = [REPO / "README.md", *(REPO / "docs").glob("*.md"), *(REPO / "roles").glob("*/README.md")]
    said += (REPO / "roles").rglob("*.yml")
    claims = [path for path in said if re.search(r"rhel8|RHEL 8, ", path.read_text())]
    assert claims == []


def test_packages_are_not_asked_for_by_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """dpkg-query without names lists every package of the system."""
    monkeypatch.setattr(packages, "ask", lambda *_argv: pytest.fail("it asked"))
    assert packages.installed("deb", []) == ({}, set())


def test_an_address_with_an_unknown_name_in_it_is_refused() -> None:
    entry = {"name": "cuda", "address": "https://mirror.example/{arch}", "keys": {}}
    with pytest.raises(packages.PackageError, match="address of repository cuda: 'arch' is unknown; use"):
        repositories.repository_for(entry, "cuda", "debian12", "x86_64")
