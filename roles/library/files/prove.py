"""Prove that a communication library is there, in the version and with the parts that were asked for.

Usage: prove.py REQUEST PROOF, where REQUEST is JSON with path (where it was installed), name, version (the one it must
be, or ""), header (which tells the version) and macro (the beginning of the names that tell it there), loads (files of
the library) and parts (patterns of files below its directory of libraries, one for everything it must be able to do).
Loads the library, prints the version and leaves it in the file PROOF, unless that is empty, or fails with one line that
says what is wrong.
"""

import ctypes
import json
import re
import sys
from pathlib import Path


class UnprovenError(Exception):
    """It is not what was asked for."""


def find_prefix(request):
    """Return the directory with include/ and lib/: a wheel has it among its packages."""
    path = Path(request["path"])
    packaged = sorted(path.glob(f"lib/python3*/site-packages/lib{request['name']}"))
    for prefix in [path, *packaged]:
        if (prefix / request["header"]).is_file():
            return prefix
    raise UnprovenError(f"{path} has no {request['header']}")


def find_version(request, prefix):
    """Return the version that the header tells. UnprovenError if it is not the one asked for."""
    text = (prefix / request["header"]).read_text(encoding="utf-8")
    names = [f"{request['macro']}_{part}" for part in ("MAJOR", "MINOR")]
    found = [re.search(rf"^#\s*define\s+{name}\s+(\d+)", text, re.MULTILINE) for name in names]
    version = ".".join(match.group(1) if match else "?" for match in found)
    if request["version"] and request["version"].split(".")[:2] != version.split("."):
        raise UnprovenError(f"{prefix} should be {request['name']} {request['version']}, but is {version}")
    return version


def find_parts(request, prefix):
    """UnprovenError unless the library loads and has all its parts: a build leaves out what it does not find."""
    places = [prefix / "lib", *prefix.glob("lib/*-linux-gnu"), prefix / "lib64"]
    missing = [part for part in request["parts"] if not any(any(place.glob(part)) for place in places)]
    if missing:
        raise UnprovenError(f"{prefix} was built without {', '.join(missing)}")
    for library in [next(place.glob(name)) for name in request["loads"] for place in places if any(place.glob(name))]:
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise UnprovenError(f"{library} cannot be loaded: {error}") from None


def main(request, proof):
    """Print the version and leave it as a proof."""
    prefix = find_prefix(request)
    version = find_version(request, prefix)
    find_parts(request, prefix)
    if proof:
        Path(proof).write_text(version + "\n", encoding="utf-8")
    print(version)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]), sys.argv[2])
    except UnprovenError as error:
        sys.exit(str(error))
