"""Makes signed RPM repositories of packages that hold nothing, with rpmbuild and createrepo_c. It runs on a lab node.

Reads a JSON object from stdin: by name of the repository, `packages` (name, version, and perhaps release,
requires, provides, and unit, which is one of systemd) and `signer`,
the name of a key or nothing. Each repository is made below the directory that the only argument names, and so is
SIGNER.key, which a vendor would publish. Prints {signer: fingerprint}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SPEC = """Name: {name}
Epoch: {epoch}
Version: {version}
Release: {release}
Summary: stands in for a vendor's package in tests
License: GPL-3.0-or-later
BuildArch: noarch
{more}
%description
Nothing.
%install
{install}
%files
{files}
"""
UNITS = "/usr/lib/systemd/system"


def run(*argv: str, **more: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True, **more)
    return done.stdout


def make_key(home: str, name: str, top: Path) -> str:
    """Make a key, export it, and return its fingerprint. RSA: rpm of RHEL 8 and 9 knows no newer kind for sure."""
    gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--yes")
    run(*gpg, "--passphrase", "", "--quick-generate-key", name, "rsa2048", "sign", "never")
    (top / f"{name}.key").write_text(run(*gpg, "--armor", "--export", name))
    lines = run(*gpg, "--with-colons", "--list-keys", name).splitlines()
    return next(line.split(":")[9] for line in lines if line.startswith("fpr"))


def build(package: dict[str, str], where: Path) -> None:
    epoch, _colon, version = package["version"].rpartition(":")
    unit = package.get("unit", "")
    more = [f"{word.title()}: {package[word]}\n" for word in ("requires", "provides") if package.get(word)]
    place, service = f"%{{buildroot}}{UNITS}", "[Service]\\nExecStart=/usr/bin/sleep infinity\\n"
    text = SPEC.format(
        name=package["name"],
        epoch=epoch or 0,
        version=version,
        release=package.get("release", "1"),
        more="".join(more),
        install=f"mkdir -p {place}\nprintf '{service}[Install]\\nWantedBy=multi-user.target\\n' >{place}/{unit}"
        * bool(unit),
        files=f"{UNITS}/{unit}" * bool(unit),
    )
    with tempfile.TemporaryDirectory() as work:
        spec = Path(work, "package.spec")
        spec.write_text(text)
        run("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {work}", "--define", f"_rpmdir {where}", str(spec))


def main() -> None:
    top = Path(sys.argv[1])
    told = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as home:  # short: the agent's socket lies there
        signers = sorted({each["signer"] for each in told.values() if each["signer"]})
        top.mkdir(parents=True)
        found = {name: make_key(home, name, top) for name in signers}
        for name, each in told.items():
            (top / name).mkdir()
            for package in each["packages"]:
                build(package, top / name)
            files = [str(path) for path in (top / name).rglob("*.rpm")]
            if each["signer"]:
                words = (
                    "--define",
                    f"_gpg_name {each['signer']}",
                    "--define",
                    f"_gpg_path {home}",
                    "--define",
                    "__gpg /usr/bin/gpg",
                )
                run("rpmsign", "--addsign", *words, *files, env={**os.environ, "GNUPGHOME": home})
            run("createrepo_c", "--quiet", str(top / name))
        run("gpgconf", "--homedir", home, "--kill", "all")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
