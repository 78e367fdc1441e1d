# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a training program needs beside torch, read from the file in which its author wrote that down.

Names, versions and markers are those of PEP 508, read by `packaging`. Of pip's own format (pip's documentation,
"Requirements File Format") those options are taken that mean the same on every machine; the others are refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .package_locks import canonical
from .uv_lock import locked_packages

FILES = ("uv.lock", "requirements.txt", "pyproject.toml")  # beside a script; the first that is there
NONE = "none"  # in place of a file: the proven environment as it is
MOST_BYTES = 4 << 20
MOST_FILES = 20  # that one names with -r
TORCH = "torch"
HASH = re.compile(r"sha256:[0-9a-f]{64}\Z")
OPTION = "requirements"
WHEELS = "put its wheel into a directory: -e program_wheelhouse=DIRECTORY"


@dataclass(frozen=True)
class Asked:
    """One requirement. `where`: file and line, for messages. `hashes`: "sha256:..." of each file that will do."""

    text: str
    where: str
    hashes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the canonical name of the package."""
        return canonical(re.split(r"[^A-Za-z0-9._-]", self.text, maxsplit=1)[0])


@dataclass(frozen=True)
class Requirements:
    """What one file asks for. `torch`: what it says of torch, which is never installed for it."""

    file: str
    packages: tuple[Asked, ...]
    torch: tuple[Asked, ...] = ()
    index_url: str = ""

    @property
    def locked(self) -> bool:
        """Whether every package has its checksums."""
        return any(asked.hashes for asked in self.packages)


def file_for(folder: Path, given: str | None, runs_python: bool) -> str:
    """Return the file that says what a program needs, an empty text for none. InputError for one that is not there.

    `given`: what the user wrote. Without it the file in the folder of a Python program counts; others bring their own.
    """
    if given == NONE:
        return ""
    if given is None:
        beside = [folder / name for name in FILES] if runs_python else []
        return next((str(path) for path in beside if path.is_file() and says_something(path)), "")
    path = Path(given).expanduser().absolute()
    if not path.is_file():
        raise InputError(OPTION, given, f"no such file; give one of the kinds {', '.join(FILES)}, or {NONE}")
    return str(path)


def says_something(path: Path) -> bool:
    """Whether a file is about packages: a pyproject.toml often has the settings of tools alone."""
    return path.name != "pyproject.toml" or "project" in toml_of(path)


def read_requirements(file: str) -> Requirements:
    """Return what a file asks for. InputError for what cannot be had on every node alike."""
    path, index = Path(file), list[str]()
    if path.name == "uv.lock":
        locked = locked_packages(toml_of(path), file, TORCH)
        asked = [Asked(one_requirement(text, path.name), path.name, hashes) for text, hashes in locked]
    elif path.suffix == ".toml":
        asked = [parsed(text, f"{path.name} dependencies") for text in dependencies(toml_of(path), file)]
    else:
        asked = list(lines_of(path, index, [path]))
    if len(set(index)) > 1:
        raise InputError(OPTION, file, f"it names {len(set(index))} indexes, and only one is searched: keep one")
    packages = tuple(each for each in asked if each.name != TORCH)
    found = Requirements(file, packages, tuple(each for each in asked if each.name == TORCH), "".join(index[:1]))
    check_hashes(found)
    return found


def check_hashes(found: Requirements) -> None:
    """InputError where some packages have checksums and others have not, or no exact version: pip refuses both."""
    for asked in found.packages if found.locked else ():
        if not asked.hashes or "==" not in asked.text.partition(";")[0]:
            what = "exact version" if asked.hashes else "checksum"
            raise InputError(
                OPTION,
                f"{asked.text} ({asked.where})",
                f"this package has no {what}, but others in the file have checksums: give it to all, or to none",
            )


def text_of(path: Path) -> str:
    """Return the text of a file. InputError if it cannot be read, or is no text."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(OPTION, str(path), f"it has more than {MOST_BYTES >> 20} MiB: that is no list of packages")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise InputError(OPTION, str(path), f"{reason}; give a file that can be read, or {NONE}") from None


def toml_of(path: Path) -> Mapping[str, object]:
    """Return the content of a TOML file. InputError if it is none."""
    try:
        return tomllib.loads(text_of(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(OPTION, str(path), f"not TOML ({error}): -e requirements={NONE} goes without it") from None


def dependencies(content: Mapping[str, object], file: str) -> list[str]:
    """Return the dependencies of a pyproject.toml (PEP 621). InputError where they are made by a build."""
    project = content.get("project")
    if not isinstance(project, Mapping):
        raise InputError(OPTION, file, "it has no table [project]: write a requirements.txt")
    if "dependencies" in project.get("dynamic", ()):
        raise InputError(OPTION, file, "its dependencies are dynamic: write them down, or a requirements.txt")
    found = project.get("dependencies", [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InputError(OPTION, file, "project.dependencies is not a list of texts: write one, or a requirements.txt")
    return found


# --- pip's format -----------------------------------------------------------------------------------------------------


def lines_of(path: Path, index: list[str], seen: list[Path]) -> Iterator[Asked]:
    """Yield what a requirements file and those that it names ask for, and add to `index` the indexes that it names."""
    for number, line in logical_lines(text_of(path)):
        where = f"{path.name} line {number}"
        if not line.startswith("-"):
            yield one_line(line, where)
            continue
        option, value = option_of(line, where)
        if option in ("-r", "--requirement"):
            other = (path.parent / value).resolve()
            if len(seen) >= MOST_FILES or other in seen:
                raise InputError(OPTION, f"{line} ({where})", "these files name each other, or are too many")
            seen.append(other)
            yield from lines_of(other, index, seen)
        elif option in ("-i", "--index-url"):
            index.append(plain_url(value, where))
        else:
            raise InputError(OPTION, f"{line} ({where})", advice_on(option))


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that says something: continued lines as one, without comments."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if begun else number
        begun += line if line.lstrip().startswith("#") and not begun else line.rstrip("\r")
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        plain = re.sub(r"(^|\s)#.*$", "", begun).strip()
        begun = ""
        if plain:
            yield first, plain


def option_of(line: str, where: str) -> tuple[str, str]:
    """Return option and value of a line. InputError where there is no value."""
    option, _equals, value = re.sub(r"[=\s]\s*", "=", line, count=1).partition("=")
    if not option.startswith("--") and len(option) > 2:  # -rother.txt
        option, value = option[:2], option[2:] + value
    if not value and option in ("-r", "--requirement", "-i", "--index-url"):
        raise InputError(OPTION, f"{line} ({where})", "the option has no value: give it one, or leave it out")
    return option, value.strip().strip("\"'")


def advice_on(option: str) -> str:
    """Return what to do where an option is not taken."""
    known = {
        "--extra-index-url": "two indexes are never searched together; remove the line: torch is installed, and "
        "torchvision and torchaudio come from the index of its build (for others: -e program_index_url=URL)",
        "--find-links": "name a directory on this machine: -e program_wheelhouse=DIRECTORY",
        "-e": f"an editable package is on no other node; {WHEELS}",
        "-c": "write the versions into the requirements themselves",
    }
    short = {"-f": "--find-links", "--editable": "-e", "--constraint": "-c"}.get(option, option)
    return known.get(short, "this option of pip is not taken; remove it: its other lines are")


def plain_url(url: str, where: str) -> str:
    """Return the address of an index. InputError for one with a password, which others could read in the file."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise InputError(OPTION, f"an index with a password ({where})", "give it as -e @file: program_index_url")
    return url


def one_line(line: str, where: str) -> Asked:
    """Return the requirement of a line, with its checksums."""
    text, *options = re.split(r"\s+(?=--)", line)
    hashes = []
    for word in options:
        option, _separator, value = re.sub(r"[=\s]\s*", "=", word, count=1).partition("=")
        if option != "--hash" or not HASH.match(value.strip()):
            raise InputError(
                OPTION, f"{word} ({where})", "remove it: of options after a package only --hash=sha256:... is taken"
            )
        hashes.append(value.strip())
    return parsed(text, where, tuple(hashes))


def parsed(text: str, where: str, hashes: tuple[str, ...] = ()) -> Asked:
    """Return a requirement in one spelling. InputError for what is none, and for a path or an address."""
    from packaging.requirements import InvalidRequirement, Requirement  # late: ansible-test imports plugins without it

    try:
        found = Requirement(text)
    except InvalidRequirement:
        kind = "a path or an address" if re.search(r"[/\\]|\.whl$", text) else "no requirement"
        raise InputError(
            OPTION, f"{text} ({where})", f"{kind}; {WHEELS if 'path' in kind else 'write name==version'}"
        ) from None
    if found.url:
        raise InputError(OPTION, f"{text} ({where})", f"the file at an address may change; {WHEELS}")
    extras = (
        f"[{','.join(sorted(map(canonical, found.extras)))}]" if found.extras and not hashes else ""
    )  # with hashes all are listed
    marker = f" ; {found.marker}" if found.marker else ""
    return Asked(f"{canonical(found.name)}{extras}{found.specifier}{marker}", where, hashes)


def one_requirement(text: str, where: str) -> str:
    """Return a requirement as it is. InputError for what is none, such as one with a second line: options, to pip."""
    parsed(text, where)
    return text


# --- torch ------------------------------------------------------------------------------------------------------------


def refuse_other_torch(found: Requirements, proven: Mapping[str, str]) -> None:
    """InputError if a file asks for a torch that the nodes do not have. `proven`: its version by node."""
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion, Version

    for asked in found.torch:
        requirement = Requirement(asked.text)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        for node, version in proven.items():
            try:
                fits = requirement.specifier.contains(Version(version), prereleases=True)
            except InvalidVersion:
                fits = False
            if not fits:
                change = "change the file, or the cluster: setup.yml -e pytorch_version=VERSION"
                raise InputError(
                    OPTION, f"{asked.text} ({asked.where})", f"torch {version} is proven on {node}; {change}"
                )
