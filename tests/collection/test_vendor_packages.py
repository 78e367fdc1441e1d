"""The program behind the role vendor_packages: what a repository is on each system, what is there or in the way."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import vendor
from tests.programs import load

REPO = Path(__file__).parents[2]
VERSIONS = yaml.load((REPO / "versions.yml").read_text(), Loader=yaml.BaseLoader)


packages = load(REPO / "roles/vendor_packages/files/packages.py")


def request_for(**given: Any) -> dict[str, Any]:
    """Return what a role would ask for."""
    empty: dict[str, Any] = {name: [] for name in ("first", "names", "hold", "conflicts")} | {"repositories": {}}
    words = {"role": "some", "systems": ["debian12"], "machines": {"x86_64": "x86_64", "aarch64": "sbsa"}, "alike": {}}
    flags = dict.fromkeys(("headers", "modules_extra", "builds_modules", "secure_boot", "modules_signed"), False)
    return {**empty, **words, **flags, "branch": "", "disk_mb": 0, **given}


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Debian 12, an apt directory of its own, and packages in the file `dpkg`."""
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (tmp_path / "dpkg").write_text("")
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    monkeypatch.setattr(packages, "OS_RELEASE", tmp_path / "os-release")
    monkeypatch.setattr(packages, "APT", tmp_path / "apt")
    monkeypatch.setattr(packages, "was_interrupted", lambda: False)
    monkeypatch.setattr(packages.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(packages, "ask", lambda *argv: (tmp_path / "dpkg").read_text() if "--show" in argv else "")
    return tmp_path


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


CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
AMD, ROCM = "https://repo.radeon.com", "https://stable.repo.amd.com/rocm/core/packages"


@pytest.mark.parametrize(
    ("role", "entry", "name", "family", "says"),
    [
        ("cuda", "repository", "debian12", "deb", (f"{CUDA}/debian12/x86_64/", "/", "EB693B3035CD5710")),
        ("cuda", "repository", "debian13", "deb", (f"{CUDA}/debian13/x86_64/", "/", "02182E60104FCDC2")),
        ("cuda", "repository", "rhel9", "rpm", (f"{CUDA}/rhel9/x86_64/", "/", "610C7B14E068A878")),
        ("amdgpu", "repository", "debian12", "deb", (f"{AMD}/amdgpu/9/ubuntu", "jammy", "CA8BB4727A47B4D0")),
        ("rocm", "repository", "ubuntu2404", "deb", (f"{ROCM}/ubuntu2404/", "stable", "D0F004A0025A1145")),
        ("rocm", "classic", "ubuntu2404", "deb", (f"{AMD}/rocm/apt/9", "noble", "CA8BB4727A47B4D0")),
    ],
)
def test_what_the_lockfile_says_is_made_out_for_a_system(
    system: Path, role: str, entry: str, name: str, family: str, says: tuple[str, str, str]
) -> None:
    told = {**VERSIONS[role][entry], "version": "9"}
    assert vendor.family_of(name) == family
    made = vendor.repositories_for([told], "some", [name], {"x86_64": "x86_64"})[f"{name} x86_64"][0]
    assert (made["address"], made["suite"], made["fingerprints"][0][:16]) == says
    assert len(made["fingerprints"][0]) == 40 and "{" not in made["key"] + made["address"]
    text = made["files"][f"/etc/apt/sources.list.d/torchfleet-{'amdgpu' if role == 'amdgpu' else role}.sources"]
    assert f"\nSigned-By: {made['keyring']}\n" in text
    assert ("Components:" in text) == (role != "cuda")
    assert (f"/etc/apt/preferences.d/{made['name']}" in made["files"]) == (entry == "classic")


def test_a_mirror_has_its_key_too() -> None:
    told = {**VERSIONS["cuda"]["repository"], "address": "https://mirror.example/{system}/{machine}/"}
    made = vendor.repositories_for([told], "cuda", ["ubuntu2404"], {"aarch64": "sbsa"})["ubuntu2404 aarch64"][0]
    assert made["key"] == "https://mirror.example/ubuntu2404/sbsa/3bf863cc.pub"


def test_another_system_has_no_repository(system: Path) -> None:
    made = vendor.repository_for(VERSIONS["amdgpu"]["repository"], "some", "debian11", "x86_64")
    assert packages.no_key([made]) == "torchfleet-amdgpu"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("", {"missing": ["driver", "manager"], "unlike": [], "unheld": ["driver"]}),
        (
            "driver hold installed 1:580.95.05-1\n",
            {"missing": ["manager"], "unlike": ["manager=580.95.05-*"], "unheld": []},
        ),
        (
            "driver install installed 580.95.05-1\nmanager hold installed 580.95.06-1\n",
            {"missing": [], "unlike": ["manager=580.95.05-*"], "unheld": ["driver"]},
        ),
        ("driver hold unpacked 580.95.05-1\n", {"missing": ["driver", "manager"], "unlike": [], "unheld": ["driver"]}),
        (
            "driver hold installed 580.95.05-1\nmanager hold installed 2:580.95.05-7\n",
            {"missing": [], "unlike": [], "unheld": []},
        ),
    ],
)
def test_what_is_left_to_do(system: Path, rows: str, says: dict[str, list[str]]) -> None:
    (system / "dpkg").write_text(rows)
    seen = packages.look(request_for(names=["driver"], alike={"manager": "driver"}, hold=["driver"]))
    assert {name: seen[name] for name in says} == says
    assert seen["ready"] == (not any(says.values()))


@pytest.mark.parametrize(
    ("version", "is_of"), [("580.95.05-1", True), ("3:580-1", True), ("5800.1-1", False), ("590.1-1", False)]
)
def test_a_branch_is_no_beginning_of_a_number(version: str, is_of: bool) -> None:
    assert packages.is_of("580", version) == is_of


def test_another_branch_is_left_to_do_until_the_driver_is_of_it(system: Path) -> None:
    """Also where the package that chooses it came, and then the run ended."""
    (system / "dpkg").write_text("pinning-590 hold installed 1-1\ndriver hold installed 580.95.05-1\n")
    seen = packages.look(request_for(first=["pinning-590"], names=["driver"], branch="590"))
    assert (seen["missing"], seen["moves"], seen["ready"]) == (["driver"], True, False)


def test_nothing_is_in_the_way_of_what_is_installed(system: Path) -> None:
    """Not even what would be refused before: it went well."""
    (system / "dpkg").write_text("driver hold installed 1-1\n")
    assert packages.look(request_for(names=["driver"], disk_mb=10**9))["refusals"] == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"disk_mb": 10**9}, "some: the packages need 1000000000 MB in /usr, where "),
        ({"systems": ["ubuntu2404"]}, "some: got debian12 on x86_64; there are packages for ubuntu2404 on "),
        ({"builds_modules": True, "secure_boot": True}, "some: Secure Boot is on, and the kernel would not load"),
        ({"conflicts": [{"file": "/", "says": "{seen}: no"}]}, "some: /: no"),
    ],
)
def test_what_is_refused(system: Path, given: dict[str, Any], says: str) -> None:
    (only,) = packages.look(request_for(names=["driver"], **given))["refusals"]
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
    wanted = {"first": ["driver-pinning"], "names": ["driver", "more"], "hold": ["driver"]}
    seen = packages.look(request_for(**wanted, conflicts=[conflict]))
    assert seen["refusals"] == says


def test_modules_that_the_site_signs_may_be_built(system: Path) -> None:
    flags = dict.fromkeys(("builds_modules", "secure_boot", "modules_signed"), True)
    assert packages.look(request_for(names=["driver"], **flags))["refusals"] == []


@pytest.mark.parametrize("text", ["deb file:/some/ /\n", "Types: deb\nURIs: file:/some\nSuites: /\n"])
def test_the_same_repository_with_another_key_is_refused(system: Path, text: str) -> None:
    file = system / "apt/sources.list.d/theirs.list"
    file.write_text(text)
    keys = {"any": {"url": "file:/key", "fingerprint": "A" * 40}}
    ours = {"name": "ours", "address": "file:/some", "suite": "/", "keys": keys}
    made = vendor.repositories_for([ours], "some", ["debian12"], {"x86_64": "x86_64"})
    (only,) = packages.look(request_for(names=["driver"], repositories=made))["refusals"]
    assert only.startswith(f"some: {file} names the same repository with another key: remove")
    file.write_text(f"# {text.splitlines()[0]}")
    assert packages.look(request_for(names=["driver"], repositories=made))["refusals"] == []


# --- what root does on a node, as the user there cannot choose it ----------------------------------------------------


def wanted() -> dict[str, Any]:
    """Return a request as the controller makes it."""
    told = {**VERSIONS["cuda"]["repository"], "pin": "Package: *"}
    made = vendor.repositories_for([told], "cuda", ["debian12"], {"x86_64": "x86_64"})
    alike = {"manager": "driver"}
    return request_for(first=["pinning"], names=["driver"], alike=alike, hold=["driver"], repositories=made)


def test_what_a_machine_says_is_what_the_program_there_prints(system: Path) -> None:
    (system / "dpkg").write_text("driver install installed 580.95.05-1\n")
    request = wanted()
    seen = packages.look(request)
    found = vendor.answer_of("n2", request, json.dumps(seen))
    assert found == {**seen, "repositories": request["repositories"]["debian12 x86_64"]}
    assert found["unlike"] == ["manager=580.95.05-*"] and found["missing"] == ["pinning", "manager"]


def test_files_keys_and_addresses_are_the_controllers_own(system: Path) -> None:
    """The user of a node prints the answer; root writes there what stands in it."""
    request = wanted()
    evil = {"name": "x", "keyring": "/etc/cron.d/x", "files": {"/etc/sudoers.d/me": "me ALL=(ALL) NOPASSWD: ALL\n"}}
    told = {**packages.look(request), "repositories": [evil]}
    (made,) = vendor.answer_of("n2", request, json.dumps(told))["repositories"]
    assert sorted(made["files"]) == [
        "/etc/apt/preferences.d/torchfleet-cuda",
        "/etc/apt/sources.list.d/torchfleet-cuda.sources",
    ]
    assert made["keyring"] == "/etc/apt/keyrings/torchfleet-cuda.gpg"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("headers", ["nmap"]),
        ("headers", ["linux-headers-1 --option=DPkg::Pre-Invoke::=id"]),
        ("missing", ["driver", "sudo-ldap"]),
        ("unheld", ["--version"]),
        ("unlike", ["manager=1 /tmp/evil.deb"]),
        ("unlike", ["/tmp/manager=1.deb"]),
        ("unlike", ["driver=1"]),
        ("versions", {"driver": "1\n2"}),
        ("versions", {"bash": "1"}),
        ("system", "debian12/../../x"),
        ("family", "sh"),
        ("ready", "no"),
    ],
)
def test_root_installs_what_was_asked_for_alone(system: Path, field: str, value: Any) -> None:
    request = wanted()
    told = json.dumps({**packages.look(request), field: value})
    with pytest.raises(InputError, match=f'answer of n2: got "packages, {field}"'):
        vendor.answer_of("n2", request, told)


def test_what_is_no_answer_is_refused() -> None:
    for text in ("", "[]", "{", "[" * 100_000, "x" * (2 << 20)):
        with pytest.raises(InputError, match="answer of n2"):
            vendor.answer_of("n2", wanted(), text)


# --- machines with rpm: what rpm 4.16 and 4.19 print ----------------------------------------------------------------

RPMS = {"nvidia-driver": "550.90.07-1.el9", "nvidia-driver-cuda": "550.90.07-1.el9"}
EVERYTHING = {"dkms": "3.1.6-1.el9", "python3-dnf-plugin-versionlock": "4.3.0-20.el9", "epel-release": "9-9.el9"}


def rpm(there: dict[str, str]) -> Any:
    """Return what answers in place of rpm, as it does: a name that is no pattern, or with --all a pattern."""

    def ask(*argv: str) -> str:
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


def for_rocky(**given: Any) -> dict[str, Any]:
    return request_for(names=["driver"], hold=["driver"], systems=["rhel9"], builds_modules=True, **given)


def test_rocky_with_all_that_dnf_takes_is_accepted(rocky: dict[str, str]) -> None:
    seen = packages.look(for_rocky())
    assert (seen["family"], seen["refusals"], seen["missing"]) == ("rpm", [], ["driver"])


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        (
            ["python3-dnf-plugin-versionlock"],
            "some: versions are held by dnf's plugin versionlock, which is not here: "
            "dnf install python3-dnf-plugin-versionlock",
        ),
        (
            ["dkms", "epel-release"],
            "some: dkms, which builds the modules, is in EPEL, which is not enabled here: "
            "dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-9.noarch.rpm",
        ),
    ],
)
def test_what_dnf_takes_is_asked_for_before_anything_is_changed(
    rocky: dict[str, str], lacks: list[str], says: str
) -> None:
    for name in lacks:
        del rocky[name]
    assert packages.look(for_rocky())["refusals"] == [says]


def test_a_driver_from_elsewhere_is_seen_by_a_pattern(rocky: dict[str, str]) -> None:
    """`rpm -q` takes no pattern: it says "package nvidia-driver* is not installed", and ends well enough."""
    rocky.update(RPMS)
    conflict = {"package": "nvidia-driver*", "branch": "580", "says": "{seen} is installed: {remove} '*nvidia*'"}
    (only,) = packages.look(for_rocky(conflicts=[conflict]))["refusals"]
    assert only == "some: nvidia-driver 550.90.07-1.el9 is installed: dnf remove '*nvidia*'"


def test_another_branch_is_not_moved_to_with_dnf(rocky: dict[str, str]) -> None:
    rocky["driver"] = "575.57.08-1.el9"
    (only,) = packages.look(for_rocky(branch="580"))["refusals"]
    assert only.startswith("some: driver 575.57.08-1.el9 is installed, and another branch is not moved to")
    assert "dnf module reset nvidia-driver" in only


def test_no_claim_is_made_of_what_ansible_cannot_manage() -> None:
    """ansible-core 2.19 runs with Python 3.8 or newer there, and dnf's library of RHEL 8 is for its Python 3.6."""
    said = [REPO / "README.md", *(REPO / "docs").glob("*.md"), *(REPO / "roles").glob("*/README.md")]
    said += (REPO / "roles").rglob("*.yml")
    claims = [path for path in said if re.search(r"rhel8|RHEL 8, ", path.read_text())]
    assert claims == []
