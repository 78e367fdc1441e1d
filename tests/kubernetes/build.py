"""The programs of a Kubernetes cluster, built from Debian's own source package: no other source is on its mirrors.

Version 1.20.2 is the last that Debian 12 has with an API server. The build takes some ten minutes of two cores, once:
what it makes stays in `~/.cache/torchfleet/kubernetes`. Nothing is installed on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CACHE = Path.home() / ".cache" / "torchfleet" / "kubernetes"
SOURCE = CACHE / "gopath" / "src" / "k8s.io" / "kubernetes"
TOOLS = CACHE / "tools"
BUILT = SOURCE / "_output" / "local" / "bin" / "linux" / "amd64"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
MIRROR = "http://deb.debian.org/debian"
# Go, what the build calls, kubectl, and a reflect2 that Go 1.18 and newer does not panic in.
PACKAGES = (
    *("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev"),
    *("rsync", "libpopt0", "jq", "libjq1", "libonig5", "kubernetes-client"),
)
VERSION = """KUBE_GIT_COMMIT=faecb196815e248d3ecfb03c680a4507229c2a56
KUBE_GIT_TREE_STATE=archive
KUBE_GIT_VERSION=v1.20.2
KUBE_GIT_MAJOR=1
KUBE_GIT_MINOR=20
"""


def run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command; its output is shown."""
    subprocess.run(argv, cwd=cwd, env=env, check=True)


def apt(*words: str, cwd: Path) -> None:
    """Run apt-get with lists of its own: those of this machine may be of another release, and have no sources."""
    place = CACHE / "apt"
    (place / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (place / "sources.list").write_text(f"deb {MIRROR} bookworm main\ndeb-src {MIRROR} bookworm main\n")
    options = {
        "Dir::Etc::sourcelist": place / "sources.list",
        "Dir::Etc::sourceparts": "/nonexistent",
        "Dir::State::lists": place / "lists",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
    }
    run("apt-get", "--quiet", *(f"-o{name}={value}" for name, value in options.items()), *words, cwd=cwd)


def fetch() -> None:
    """Fetch the source and the packages that the build needs, and unpack them."""
    for name in ("src", "debs"):
        (CACHE / name).mkdir(parents=True, exist_ok=True)
    apt("update", cwd=CACHE)
    apt("source", "--download-only", "kubernetes", cwd=CACHE / "src")
    apt("download", *PACKAGES, cwd=CACHE / "debs")
    for package in sorted((CACHE / "debs").glob("*.deb")):
        run("dpkg-deb", "--extract", package, TOOLS)
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    original = next((CACHE / "src").glob("*.orig.tar.gz"))
    run("tar", "--extract", "--file", original, "--directory", SOURCE, "--strip-components=1")
    run("tar", "--extract", "--file", next((CACHE / "src").glob("*.debian.tar.xz")), "--directory", SOURCE)
    patches = SOURCE / "debian" / "patches"
    for patch in (patches / "series").read_text().split():
        run("patch", "--strip=1", "--silent", f"--input={patches / patch}", cwd=SOURCE)
    newer, vendored = (place / "github.com/modern-go/reflect2" for place in (TOOLS / GOCODE, SOURCE / "vendor"))
    shutil.rmtree(vendored)
    shutil.copytree(newer, vendored, ignore=shutil.ignore_patterns("go.mod"))


GOCODE = Path("usr/share/gocode/src")


def build() -> Path:
    """Return the directory of the programs, built unless they are there."""
    if not all((BUILT / name).exists() for name in PROGRAMS):
        fetch()
        version = CACHE / "version.sh"
        version.write_text(VERSION)
        root = TOOLS / "usr/lib/go-1.19"
        path = os.pathsep.join([str(root / "bin"), str(TOOLS / "usr/bin"), os.environ["PATH"]])
        run(
            *("make", "GOLDFLAGS=-s -w", f"WHAT={' '.join(f'cmd/{name}' for name in PROGRAMS)}"),
            cwd=SOURCE,
            env={
                **{"PATH": path, "HOME": str(CACHE), "GOROOT": str(root), "GOPATH": str(CACHE / "gopath")},
                **{
                    "GO111MODULE": "off",
                    "CGO_ENABLED": "0",
                    "GOCACHE": str(CACHE / "gocache"),
                    "GOFLAGS": "-tags=providerless,dockerless",
                },
                **{"LD_LIBRARY_PATH": str(TOOLS / "usr/lib/x86_64-linux-gnu"), "LC_ALL": "C.UTF-8"},
                **{"KUBE_GIT_VERSION_FILE": str(version), "SOURCE_DATE_EPOCH": "1610000000"},
            },
        )
        shutil.rmtree(CACHE / "gocache", ignore_errors=True)  # a gigabyte that nothing needs any more
    return BUILT


if __name__ == "__main__":
    print(build())
