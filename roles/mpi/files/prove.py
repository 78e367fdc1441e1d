"""Prove that an MPI launcher works on this machine: ask it for its version, start two processes.

Usage: prove.py REQUEST PROOF, where REQUEST is JSON with path (bin/mpirun is in it), version (the one it must be, or
""), pattern (finds the version in what `mpirun --version` says), options and options_as_root (for starting processes),
variable (by which a process knows its rank) and perhaps components (which Open MPI must have). Prints the version and
leaves it in the file PROOF, or fails with one line that says what is wrong. Where that file is, the proof was given.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

SECONDS = 120


class UnprovenError(Exception):
    """It does not work."""


def run(argv, path):
    """Return what a program writes to stdout. UnprovenError if it cannot run, fails or does not end."""
    env = dict(os.environ, PATH=f"{path}/bin:{os.environ.get('PATH', os.defpath)}")
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UnprovenError(f"{' '.join(argv)} did not end within {SECONDS} s") from None
    except OSError as error:
        raise UnprovenError(f"{argv[0]} does not run: {error.strerror}") from None
    if done.returncode != 0:
        lines = (done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")).splitlines()
        said = " ".join(line.strip() for line in lines if line.strip(" -")) or "(nothing)"
        raise UnprovenError(f"{' '.join(argv)} ended with status {done.returncode} and said: {said[:300]}")
    return done.stdout.decode(errors="replace")


def find_version(request, mpirun):
    """Return the version of a launcher. UnprovenError if it is not the one asked for."""
    said = run([mpirun, "--version"], request["path"])
    match = re.search(request["pattern"], said)
    version = match.group(1) if match else ""
    if not version or version != (request["version"] or version):
        wanted = request["version"] or "a launcher of that kind"
        raise UnprovenError(f"{mpirun} should be {wanted}, but says: {' '.join(said.split())[:100]}")
    return version


def find_components(request):
    """UnprovenError unless all that was asked for got in: a build leaves out what it does not find."""
    wanted = request.get("components", [])
    said = run([f"{request['path']}/bin/ompi_info", "--parsable"], request["path"]) if wanted else ""
    missing = [name for name in wanted if name not in said]
    if missing:
        raise UnprovenError(f"{request['path']} was built without {', '.join(missing)}")


def start_two(request, mpirun):
    """Start two processes. UnprovenError unless they are rank 0 and rank 1."""
    as_root = request["options_as_root"] if os.getuid() == 0 else []
    argv = [mpirun, *as_root, *request["options"], "-n", "2", "printenv", request["variable"]]
    said = sorted(run(argv, request["path"]).split())
    if said != ["0", "1"]:
        raise UnprovenError(f"{' '.join(argv)} should start ranks 0 and 1, but says: {' '.join(said)[:100]}")


def prove(request):
    """Return the version of a launcher that works. UnprovenError if it does not."""
    mpirun = f"{request['path']}/bin/mpirun"
    version = find_version(request, mpirun)
    find_components(request)
    start_two(request, mpirun)
    return version


def main(request, proof):
    """Print the version and leave it as a proof."""
    if not proof.exists():
        proof.write_text(prove(request) + "\n", encoding="utf-8")
    print(proof.read_text(encoding="utf-8").strip())


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    except UnprovenError as error:
        sys.exit(str(error))
