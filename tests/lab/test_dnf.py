"""dnf and rpm for real, on a node that says it is Rocky Linux 9: Debian has both programs, and dnf's versionlock.

The packages hold nothing. They come from signed repositories on the node, as those of a distribution and of a vendor.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.lab.lab import Lab, ansible

REPOSITORIES = "/srv/repositories"
SCRIPT = (Path(__file__).parent / "rpm_repository.py").read_text()
# Debian keeps rpm's database in root's home, where nobody else can ask it; its plugin `local` is not RHEL's.
PREPARE = """
printf 'ID="rocky"\\nID_LIKE="rhel centos fedora"\\nVERSION_ID="9.4"\\n' >/etc/os-release
mkdir -p /etc/rpm /etc/yum.repos.d /etc/pki/rpm-gpg
echo '%_dbpath /var/lib/rpm' >/etc/rpm/macros
printf '[main]\\nenabled=0\\n' >/etc/dnf/plugins/local.conf
echo '9' >/etc/dnf/vars/releasever
rpm --import REPOSITORIES/distribution.key
printf '[distribution]\\nname=distribution\\nbaseurl=file://REPOSITORIES/distribution\\ngpgcheck=1\\n' \\
    >/etc/yum.repos.d/distribution.repo
""".replace("REPOSITORIES", REPOSITORIES)
STATE = """
rpm --query --all | sort
find /etc/yum.repos.d /etc/pki /etc/dnf /var/lib/torchfleet -type f -exec sha256sum {} + 2>/dev/null | sort
systemctl list-unit-files --no-legend --plain
"""


def package(name: str, version: str = "1", **more: str) -> dict[str, str]:
    return {"name": name, "version": version, **more}


def repositories() -> dict[str, Any]:
    """Return what the node offers, in the form of rpm_repository.py."""
    plain = ["libibverbs", "rdma-core", "perftest", "libibverbs-utils", "openssh-clients"]
    plain += ["some-library", "python3-dnf-plugin-versionlock", "gcc-c++", "python3-devel"]
    version, _dash, release = os.uname().release.partition("-")
    kernel = package("kernel-devel", version, release=release.replace("-", ".") or "1")
    some = [package("some-driver", version, requires="some-library") for version in ("1.5", "2.0")]
    some += [package("some-manager", version) for version in ("1:1.5", "1.9", "2.0")]
    some += [package("some-kmod", requires="dkms")]
    zlib = package("zlib-ng-compat-devel", provides="zlib-devel")
    return {
        "distribution": {
            "signer": "distribution",
            "packages": [*map(package, plain), package("chrony", unit="chronyd.service"), kernel, zlib],
        },
        "epel": {"signer": "epel", "packages": [package("dkms"), package("some-library", "9")]},
        "some": {"signer": "vendor", "packages": some},
        "next": {"signer": "vendor", "packages": [package("some-driver", "2.5")]},
        "unsigned": {"signer": "", "packages": some[:1]},
        "foreign": {"signer": "other", "packages": some[:1]},
    }


class Node(NamedTuple):
    """The node, and what its keys are called."""

    lab: Lab
    fingerprints: dict[str, str]

    def root(self, script: str) -> str:
        return self.lab.root("n1", "sh", "-c", script)

    def module(self, name: str, **given: Any) -> dict[str, Any]:
        """Run a module as root, and return what it returns."""
        words = ["-i", str(self.lab.inventory), "n1", "--become", "-m", f"torchfleet.cluster.{name}"]
        done = ansible("ansible", *words, "-a", json.dumps(given))
        assert "=>" in done.stdout, done.stdout + done.stderr
        found: dict[str, Any] = yaml.safe_load(done.stdout[done.stdout.index("=>") + 2 :])
        return found

    def vendor(self, repository: str = "some", **given: Any) -> dict[str, Any]:
        """Install the packages of the vendor."""
        key = {
            "url": f"file://{REPOSITORIES}/vendor.key",
            "fingerprint": self.fingerprints["vendor"],
            **given.pop("key", {}),
        }
        entry = {"name": "torchfleet-some", "address": f"file://{REPOSITORIES}/{repository}", "suite": "/"}
        entries = [{**entry, "keys": {"rpm": key}}, *([self.epel()] if given.pop("epel", False) else [])]
        return self.module("vendor_packages", **{**SOME, "repositories": entries, **given})

    def epel(self) -> dict[str, Any]:
        """Return EPEL as versions.yml has it, but for where it is and who signs it."""
        locked = yaml.safe_load((Path(__file__).parents[2] / "versions.yml").read_text())["epel"]["repository"]
        key = {"url": f"file://{REPOSITORIES}/epel.key", "fingerprint": self.fingerprints["epel"]}
        return {**locked, "address": f"file://{REPOSITORIES}/epel", "keys": {"rpm": key}}


SOME: dict[str, Any] = {
    "role": "some",
    "systems": ["rhel9"],
    "machines": {"x86_64": "x86_64", "aarch64": "sbsa"},
    "packages": ["some-driver"],
    "same_version": {"some-manager": "some-driver"},
    "hold": ["some-driver", "some-manager"],
    "dnf_commands": {"rhel9": [["makecache"]], "rhel10": [["no-such-command"]]},
}
OURS = ("torchfleet-some", "some-driver", "some-manager")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    packages = ["createrepo-c", "dnf", "dnf-plugins-core", "gpg", "gpg-agent", "rpm"]
    directory = tmp_path_factory.mktemp("dnf") / "inventory"
    lab = Lab(f"d{os.getpid()}", directory, nodes=1, install=True, image="bare", packages=packages)
    try:
        lab.up()
        argv = lab.ssh_argv("n1", "python3", "-c", shlex.quote(SCRIPT), REPOSITORIES, user="root")
        made = subprocess.run(argv, input=json.dumps(repositories()), capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        lab.root("n1", "sh", "-ec", PREPARE)
        yield Node(lab, json.loads(made.stdout))
    finally:
        lab.down()


def test_prerequisites_come_by_dnf_and_go(node: Node) -> None:
    before = node.root(STATE)
    switches = {"rdma": "true", "clock": "true", "ssh_client": "true", "limits": "false", "logins": "false"}
    done = node.module("prerequisites", **switches)
    wanted = ["libibverbs", "rdma-core", "perftest", "libibverbs-utils", "chrony", "openssh-clients"]
    assert done["changes"] == [*(f"{name} installed" for name in wanted), "chronyd.service turned on"], done
    assert node.root("systemctl is-active chronyd; systemctl is-enabled chronyd").split() == ["active", "enabled"]
    assert node.module("prerequisites", **switches)["changed"] is False
    assert node.module("uninstall", role="prerequisites", files=[])["changed"] is True
    assert node.root(STATE) == before


def test_a_compiler_comes_by_dnf_where_something_is_built_and_goes(node: Node) -> None:
    before = node.root(STATE)
    given = {"role": "some", "names": ["no-such-package"], "hint": "do without"}
    rpms = ["gcc-c++", "python3-devel", "zlib-devel"]
    done = node.module("system_packages", **given, rpm_names=rpms)
    assert (done["changed"], done["missing"]) == (True, rpms), done
    assert node.module("system_packages", **given, rpm_names=rpms)["changed"] is False  # also of zlib-ng-compat-devel
    assert "some: no-such-package could not be installed: " in node.module(
        "system_packages", **given, rpm_names=["no-such-package"]
    )["msg"].replace("no-such-package: ", "")
    assert node.module("uninstall", role="some", files=[])["changed"] is True
    assert node.root(STATE) == before


def test_what_is_not_as_it_should_be_is_refused_and_leaves_nothing(node: Node) -> None:
    plugin = "python3-dnf-plugin-versionlock"
    assert f"which is not installed: dnf install {plugin}" in node.vendor()["msg"]
    node.root(f"dnf --assumeyes install {plugin} some-library")
    before = node.root(STATE)
    conflict = {"package": "some-lib*", "says": "{seen} is in the way: {remove} it"}
    assert node.vendor(conflicts=[conflict])["msg"] == "some: some-library 1-1 is in the way: dnf remove it"
    said = node.vendor(key={"fingerprint": "AB" * 20})["msg"]
    assert said.startswith("some: nothing was changed: ") and f"but not {'AB' * 20}" in said
    assert node.root(STATE) == before
    for repository, why in (
        ("unsigned", "is not signed"),
        ("foreign", "GPG"),
        ("nowhere", "Failed to download metadata for repo 'torchfleet-some'"),
    ):
        refused = node.vendor(repository)
        assert why in refused["msg"], refused
        node.module("uninstall", role="some", files=[])
        assert node.root(STATE) == before, repository


def test_a_vendor_s_packages_come_in_one_version_and_are_held(node: Node) -> None:
    before = node.root(STATE)
    done = node.vendor()
    assert done["changed"] and done["versions"] == {"some-driver": "2.0-1", "some-manager": "2.0-1"}
    assert node.vendor()["changed"] is False
    node.root("sed -i 's,/some$,/next,' /etc/yum.repos.d/torchfleet-some.repo && dnf --assumeyes --refresh upgrade")
    assert node.root("rpm --query some-driver").strip() == "some-driver-2.0-1.noarch"
    said = node.vendor(branch="3")["msg"]
    assert "some-driver 2.0-1 is installed, and another branch cannot replace it on this system" in said
    assert node.module("uninstall", role="some", files=[])["changed"] is True
    after = node.root(STATE)
    assert after == before, after
    # What was there before stays, and is free again; also if the user has lifted the hold.
    both = {"packages": ["some-driver", "some-library"], "hold": ["some-driver", "some-library"]}
    assert node.vendor(**both)["changed"]
    node.root("dnf --assumeyes versionlock delete some-library")
    assert "some-library" not in node.root("cat /etc/dnf/plugins/versionlock.list")
    removed = node.module("uninstall", role="some", files=[])
    assert removed["changed"] is True and "hold of some-library" in removed["removed"], removed
    assert node.root(STATE) == before


def test_dkms_comes_from_epel_on_request_and_nothing_else_does(node: Node) -> None:
    before = node.root(STATE)
    kmod = {"packages": ["some-kmod"], "same_version": {}, "hold": ["some-kmod"], "builds_modules": True}
    assert "is in EPEL, which is not enabled: -e some_epel=true takes dkms alone from it" in node.vendor(**kmod)["msg"]
    assert node.root(STATE) == before
    done = node.vendor(**kmod, epel=True)
    assert done["changed"] and done["versions"] == {"some-kmod": "1-1"}, done
    node.root("dnf --assumeyes upgrade")
    assert node.root("rpm --query dkms some-library").split() == ["dkms-1-1.noarch", "some-library-1-1.noarch"]
    assert node.vendor(**kmod, epel=True)["changed"] is False
    assert node.module("uninstall", role="some", files=[])["changed"] is True
    assert node.root(STATE) == before
