"""A signed apt repository of packages that hold next to nothing, with the names and dependencies of a vendor's.

A repository has a suite ("/" for a flat one), a component, packages, and `signed`, which is false for one that is not.
A package has name and version, and may have depends, conflicts, provides, replaces and files: text by path. What is in
a bin directory can be run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

RELATIONS = ("depends", "conflicts", "provides", "replaces")


class Signer:
    """A key of its own."""

    def __init__(self, home: Path) -> None:
        self.env = {**os.environ, "GNUPGHOME": str(home)}
        if not home.is_dir():
            home.mkdir(mode=0o700, parents=True)
            self.gpg("--passphrase", "", "--quick-generate-key", "torchfleet stub", "ed25519", "sign", "never")

    def gpg(self, *words: str) -> bytes:
        argv = ["gpg", "--batch", "--quiet", "--yes", *words]
        return subprocess.run(argv, env=self.env, capture_output=True, check=True).stdout

    def end_agent(self) -> None:
        """End the process that gpg left behind."""
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=self.env, check=True)

    def fingerprint(self) -> str:
        lines = self.gpg("--with-colons", "--list-keys").decode().splitlines()
        return next(line.split(":")[9] for line in lines if line.startswith("fpr"))

    def published(self) -> bytes:
        """Return the key in the form that needs most care: binary, and armored behind it."""
        return self.gpg("--export") + self.gpg("--armor", "--export")


def control(package: dict[str, Any]) -> str:
    """Return the control file of a package."""
    fields = {"Package": package["name"], "Version": package["version"], "Architecture": "all"}
    fields["Maintainer"] = "torchfleet <nobody@example.org>"
    fields |= {name.capitalize(): package[name] for name in RELATIONS if package.get(name)}
    fields["Description"] = "stands in for a vendor's package in tests"
    return "".join(f"{name}: {text}\n" for name, text in fields.items())


def build(package: dict[str, Any], pool: Path) -> Path:
    """Build a package."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "root")
        (root / "DEBIAN").mkdir(parents=True, mode=0o755)
        root.chmod(0o755)
        (root / "DEBIAN/control").write_text(control(package))
        for path, text in package.get("files", {}).items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if file.parent.name == "bin" else 0o644)
        deb = pool / f"{package['name']}_{package['version']}_all.deb"
        argv = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(deb)]
        subprocess.run(argv, capture_output=True, check=True)
    return deb


def stanza(package: dict[str, Any], deb: Path, top: Path) -> str:
    """Return what stands in Packages of it."""
    data = deb.read_bytes()
    sums = f"Filename: {deb.relative_to(top)}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    return control(package) + sums


def release(told: dict[str, Any], index: Path, base: Path) -> str:
    """Return the Release file."""
    data = index.read_bytes()
    lines = ["Origin: repo.radeon.com", "Label: stub", f"Suite: {told['suite']}", "Date: Sun, 01 Nov 2026 00:00:00 UTC"]
    lines += ["Architectures: all amd64 arm64", f"Components: {told.get('component') or 'main'}", "SHA256:"]
    return "\n".join([*lines, f" {hashlib.sha256(data).hexdigest()} {len(data)} {index.relative_to(base)}", ""])


def make(top: Path, told: dict[str, Any], signer: Signer) -> None:
    """Make a repository."""
    pool, base, index = top / "pool", top, top / "Packages"
    if told["suite"] != "/":
        base = top / "dists" / told["suite"]
        index = base / told["component"] / "binary-all/Packages"
    for directory in (pool, index.parent):
        directory.mkdir(parents=True, exist_ok=True)
    index.write_text("\n".join(stanza(package, build(package, pool), top) for package in told["packages"]))
    if index.parent != base:
        index = also_for_machines(index)
    (base / "Release").write_text(release(told, index, base))
    if told.get("signed", True):
        (base / "InRelease").write_bytes(signer.gpg("--clearsign", "--output", "-", str(base / "Release")))


def also_for_machines(index: Path) -> Path:
    """Put the list of packages where apt of this architecture looks for it."""
    machine = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    other = index.parent.with_name(f"binary-{machine}") / "Packages"
    other.parent.mkdir(exist_ok=True)
    other.write_text(index.read_text())
    return other


def make_all(directory: Path, repositories: dict[str, dict[str, Any]]) -> str:
    """Make repositories below directory/public, and their key. Return its fingerprint.

    The key is made once and stays in directory/gnupg; public/key.gpg is what a vendor would publish.
    """
    signer = Signer(directory / "gnupg")
    public = directory / "public"
    for path, told in repositories.items():
        make(public / path, told, signer)
    (public / "key.gpg").write_bytes(signer.published())
    fingerprint = signer.fingerprint()
    signer.end_agent()
    return fingerprint
