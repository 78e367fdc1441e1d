"""Look at a machine on which packages of a vendor are wanted (`look`), or prove the vendor's repositories (`prove`).

Usage: packages.py look REQUEST, or packages.py prove REQUEST DIRECTORY (as root; the keyrings lie there). REQUEST is
JSON with what role vendor_packages is given, without `vendor_packages_`, and its `repositories` as they are on each
system and machine. Prints one line of JSON:
  look: {"refusals": [why it cannot be done, ready to be shown], "system", "machine", "family": deb or rpm, "headers":
        [packages that belong to the running kernel], "versions": {package: version of those installed}, "missing":
        [packages], "moves": the first of them is there, in another branch, "unheld": [packages], "unlike": [packages,
        each with the version that another one has], "interrupted": an installation of whatever package was, "ready":
        nothing is left to do}, and changes nothing. Root acts on it, once the controller has checked it
        (plugin_utils/_software/vendor.py).
  prove: {"error": "" or what is wrong, ready to be shown}: apt is tried in DIRECTORY, and nothing else is changed.
"""

import fnmatch
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

FAMILIES = {
    "debian": "deb",
    "ubuntu": "deb",
    "rhel": "rpm",
    "centos": "rpm",
    "rocky": "rpm",
    "almalinux": "rpm",
    "ol": "rpm",
}
OS_RELEASE = Path("/etc/os-release")
APT = Path("/etc/apt")
VERSIONLOCK = Path("/etc/dnf/plugins/versionlock.list")
REMOVES = {"deb": "apt purge", "rpm": "dnf remove"}
ELSEWHERE = "in the inventory (not with -e) give this machine accelerators: [], and the others theirs"
EPEL = "https://dl.fedoraproject.org/pub/epel/epel-release-latest-{release}.noarch.rpm"


def ask(*argv):
    """Return what a program writes to stdout, without its line end; nothing if it is not there."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.decode(errors="replace").rstrip("\n")


def text_of(path):
    """Return what a file holds; nothing if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- the system -----------------------------------------------------------------------------------------------------


def read_system():
    """Return the distribution with its version (debian12, ubuntu2404, rhel9), and its family (deb, rpm or none)."""
    told = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text_of(OS_RELEASE), re.MULTILINE))
    name, version = told.get("ID", "linux"), told.get("VERSION_ID", "")
    family = FAMILIES.get(name, "")
    if family == "rpm":
        return "rhel" + version.split(".")[0], family
    return name + version.replace(".", ""), family


# --- the packages ---------------------------------------------------------------------------------------------------


def installed(family, names):
    """Return {package: version} of those that are installed whole, and which are held. Names may be globs."""
    if family == "rpm":
        versions = {name: version for each in names for name, version in installed_rpms(each)}
        locked = text_of(VERSIONLOCK)
        return versions, {name for name in versions if re.search(rf"\b{re.escape(name)}-", locked)}
    form = "${Package} ${db:Status-Want} ${db:Status-Status} ${Version}\\n"
    rows = [line.split() for line in ask("dpkg-query", "--show", "--showformat", form, *names).splitlines()]
    rows = [row for row in rows if len(row) == 4 and row[2] == "installed"]
    return {row[0]: row[3] for row in rows}, {row[0] for row in rows if row[1] == "hold"}


def installed_rpms(name):
    """Return (package, version) of those of a name, which only with --all may be a pattern: else nothing is found."""
    every = ["--all"] if set("*?[") & set(name) else []
    said = ask("rpm", "--query", *every, "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\\n", name).splitlines()
    rows = [line.split() for line in said]
    return [(row[0] if every else name, row[1]) for row in rows if len(row) == 2]  # else it says that there is none


def upstream(version):
    """Return a version without epoch and revision."""
    return version.rpartition(":")[2].rpartition("-")[0] or version.rpartition(":")[2]


def is_of(branch, version):
    """Say whether a version belongs to a branch: 580.95.05-1 to 580."""
    return not branch or (upstream(version) + ".").startswith(branch + ".")


def offered(names, *options):
    """Return the versions of each package that apt can install, newest first."""
    found = {name: [] for name in names}
    for line in ask("apt-cache", *options, "madison", *names).splitlines():
        name, version = [word.strip() for word in line.split("|")][:2]
        found[name].append(version)
    return found


def exactly(name, version):
    """Return what apt or dnf calls a package in a version, of which only the upstream part is told."""
    fitting = [each for each in offered([name])[name] if upstream(each) == version]
    return f"{name}={(fitting or [version + '-*'])[0]}"


def was_interrupted():
    """Say whether an installation of any package was; apt refuses to work then."""
    return bool(ask("dpkg", "--audit")) or any(Path("/var/lib/dpkg/updates").glob("[0-9]*"))


# --- what is in the way ---------------------------------------------------------------------------------------------


def in_the_way(request, family, own):
    """Return what is said of each thing that another installation left. Our own may be of another branch."""
    said = []
    for conflict in request["conflicts"]:
        branch = conflict.get("branch", "")
        found, _held = installed(family, [conflict["package"]]) if "package" in conflict else ({}, None)
        found = {name: version for name, version in found.items() if name not in request["first"]}
        others = [name for name, version in found.items() if not branch or not (own or is_of(branch, version))]
        remove = REMOVES.get(family, "")
        if others:
            said.append(conflict["says"].format(seen=f"{others[0]} {found[others[0]]}", remove=remove))
        if "file" in conflict and Path(conflict["file"]).exists():
            said.append(conflict["says"].format(seen=conflict["file"], remove=remove))
    return said


def same_repository(repositories):
    """Return a file of apt, not ours, that names one of the repositories: apt refuses two keys for one. Or nothing."""
    ours = {file for made in repositories for file in made["files"]}
    others = [path for path in sorted((APT / "sources.list.d").glob("*")) if str(path) not in ours]
    for path in [APT / "sources.list", *others]:
        lines = [line for line in text_of(path).splitlines() if not line.lstrip().startswith("#")]
        words = {word.rstrip("/") for line in lines for word in line.split()}
        if words & {made["address"].rstrip("/") for made in repositories}:
            return str(path)
    return ""


def no_key(repositories):
    """Return the first repository that has no address or no key on this system. Or nothing."""
    lacking = [
        made["name"] for made in repositories if not (made["address"] and made["suite"] and made["fingerprints"])
    ]
    return lacking[0] if lacking else ""


def lacks_of_dnf(request, answer):
    """Return (is broken, what to say) of what packages take that dnf does not bring of itself. It is looked for before
    anything is changed: it would fail when the driver is on the machine."""
    if answer["family"] != "rpm":
        return []
    plugin, epel = "python3-dnf-plugin-versionlock", EPEL.format(release=answer["system"][len("rhel") :])
    there, _held = installed("rpm", [plugin, "dkms", "epel-release"])
    name = request["names"][0] if request["names"] else ""
    return [
        (
            request["hold"] and plugin not in there,
            f"versions are held by dnf's plugin versionlock, which is not here: dnf install {plugin}",
        ),
        (
            request["builds_modules"] and not {"dkms", "epel-release"} & set(there),
            f"dkms, which builds the modules, is in EPEL, which is not enabled here: dnf install {epel}",
        ),
        (
            answer["moves"],
            f"{name} {answer['versions'].get(name)} is installed, and another branch is not moved to on this system: "
            f"dnf remove '*nvidia*'; dnf module reset nvidia-driver; dnf versionlock clear; then run this again",
        ),
    ]


def rules(request, answer, own):
    """Return (is broken, what to say) of every rule."""
    free_mb = shutil.disk_usage("/usr").free // 10**6
    made = made_for(request, answer)
    twice, lacking = same_repository(made if answer["family"] == "deb" else []), no_key(made)
    return [
        (lacking, f"there is no repository {lacking} for {answer['system']}: {ELSEWHERE}"),
        (twice, f"{twice} names the same repository with another key: remove that file, or the package it came with"),
        (
            request["builds_modules"] and request["secure_boot"] and not request["modules_signed"],
            "Secure Boot is on, and the kernel would not load the modules that are built here: enroll a key for them "
            "(mokutil --import) and set {role}_secure_boot_signed=true, or switch Secure Boot off in the firmware",
        ),
        (
            free_mb < request["disk_mb"],
            f"the packages need {{disk_mb}} MB in /usr, where {free_mb} MB are free: make room",
        ),
        *((True, says) for says in in_the_way(request, answer["family"], own)),
        *lacks_of_dnf(request, answer),
    ]


def refusals(request, answer, own):
    """Return what is wrong, each ready to be shown."""
    system, machine = answer["system"], answer["machine"]
    if system not in request["systems"] or machine not in request["machines"]:
        allowed = f"{', '.join(request['systems'])} on {' and '.join(request['machines'])}"
        says = [f"got {system} on {machine}; there are packages for {allowed}: {ELSEWHERE}"]
    else:
        says = [line.format(**request) for broken, line in rules(request, answer, own) if broken]
    return [f"{request['role']}: {line}" for line in says]


# --- look -----------------------------------------------------------------------------------------------------------


def made_for(request, answer):
    """Return the repositories as they are here; none on a system that there are no packages for."""
    return request["repositories"].get(f"{answer['system']} {answer['machine']}", [])


def of_the_kernel(request, family):
    """Return the packages of the running kernel that are wanted: headers, and modules that Ubuntu packages apart."""
    headers = {"deb": "linux-headers-", "rpm": "kernel-devel-"}.get(family, "") + platform.release()
    more = f"linux-modules-extra-{platform.release()}"
    wanted = [headers] if request["headers"] and family else []
    return wanted + ([more] if request["modules_extra"] and family == "deb" and offered([more])[more] else [])


def look(request):
    """Return the answer of `look`."""
    system, family = read_system()
    first = request["first"] if family == "deb" else []
    wanted = [*first, *request["names"], *request["alike"]]
    kernel = of_the_kernel(request, family)
    there, held = installed(family, [*wanted, *request["alike"].values(), *kernel])
    versions = {name: version for name, version in there.items() if name not in kernel}
    bare = {name: upstream(version) for name, version in versions.items()}
    pairs = [(name, bare.get(name), bare[other]) for name, other in request["alike"].items() if other in bare]
    moving = [
        name for name in request["names"][:1] if not is_of(request["branch"], versions.get(name, request["branch"]))
    ]
    answer = {
        "system": system,
        "machine": platform.machine(),
        "family": family,
        "headers": [name for name in kernel if name not in there],
        "versions": versions,
        "missing": [name for name in wanted if name not in versions or name in moving],
        "moves": bool(moving),
        "unlike": [exactly(name, version) for name, has, version in pairs if has != version],
        "unheld": [name for name in request["hold"] if name in wanted and name not in held],
        "interrupted": was_interrupted(),
    }
    stale = family == "deb" and is_stale(made_for(request, answer))
    answer["ready"] = not (stale or any(answer[name] for name in ("headers", "missing", "unlike", "unheld")))
    own = request["names"][:1] != [] and request["names"][0] in held
    return dict(answer, refusals=[] if answer["ready"] else refusals(request, answer, own))


def is_stale(repositories):
    """Say whether a keyring is missing or a file is not as it should be."""
    files = {path: text for made in repositories for path, text in made["files"].items()}
    keyrings = all(Path(made["keyring"]).is_file() for made in repositories)
    return not keyrings or any(text_of(path) != text for path, text in files.items())


# --- prove ----------------------------------------------------------------------------------------------------------


def options(directory):
    """Return the options that keep apt to a directory, and make it take no excuse."""
    places = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": f"{directory}/sources",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": f"{directory}/none",
        "Dir::State::lists": f"{directory}/lists",
        "Dir::State::status": f"{directory}/status",
        "Dir::Cache": f"{directory}/cache",
        "APT::Update::Error-Mode": "any",
    }
    return [word for name, value in places.items() for word in ("--option", f"{name}={value}")]


def lay_out(request, directory):
    """Make what apt works with there: the repositories with their keyrings, and a system without a package."""
    for name in ("sources", "none", "lists", "cache"):
        (directory / name).mkdir()
    directory.chmod(0o755)  # apt fetches as a user of its own
    (directory / "status").write_text("", encoding="utf-8")
    for made in made_for(request, look(request)):
        (text,) = [text for path, text in made["files"].items() if path.endswith(".sources")]
        text = text.replace(made["keyring"], f"{directory}/{made['name']}.gpg")
        (directory / "sources" / f"{made['name']}.sources").write_text(text, encoding="utf-8")


def lacks(request, directory):
    """Return what the repositories do not have of what is wanted."""
    wanted = [*request["first"], *request["names"], *request["alike"], *request["alike"].values()]
    there = offered(wanted, *options(directory))
    said = [name for name in dict.fromkeys(wanted) if not there[name]]
    for name, other in request["alike"].items():
        chosen = [upstream(version) for version in there[other] if is_of(request["branch"], version)][:1]
        if there[name] and chosen and chosen[0] not in map(upstream, there[name]):
            said.append(f"{name} {chosen[0]}, which is the version of {other}")
    return said


def prove(request, directory):
    """Return the answer of `prove`."""
    lay_out(request, directory)
    argv = ["apt-get", *options(directory), "update"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    said = [line for line in done.stdout.decode(errors="replace").splitlines() if fnmatch.fnmatch(line, "[EW]: *")]
    addresses = " and ".join(made["address"] for made in made_for(request, look(request)))
    if done.returncode != 0:
        says = f"apt does not trust or reach {addresses}: {'; '.join(said)}"
    else:
        missing = lacks(request, directory)
        says = f"{addresses} has no {', '.join(missing)}: set another version" if missing else ""
    return {"error": f"{request['role']}: nothing was changed, for {says}" if says else ""}


if __name__ == "__main__":
    if sys.argv[1] == "look":
        print(json.dumps(look(json.loads(sys.argv[2]))))
    else:
        print(json.dumps(prove(json.loads(sys.argv[2]), Path(sys.argv[3]))))
