# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""On the head: starts srun, hands it what the controller sends, and takes the job back when the controller is silent.

A job that still waits in Slurm's queue has no node of ours that could notice. srun itself does not notice either: one
whose input has ended waits on, and runs. This file is sent as it is and imports nothing of ours.
Arguments: the lease and the time that ranks have to end, in seconds, the command that cancels the job as JSON, and the
command line of srun.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import subprocess
import sys
import time

NO_PROGRAM = 127  # exit status: srun is not there, as shells say it
OTHER = 254  # in place of 255, which is ssh's own: srun has it for an option that it does not know
REFUSED = 78  # nothing was started (EX_CONFIG of sysexits.h)
# A shell may have these for other jobs. They take the output elsewhere, part lines, or choose nodes; what stands for
# them on the command line is the plan's (srun(1), input environment variables).
OF_OTHERS = (
    *("SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_UNBUFFEREDIO", "SLURM_EXPORT_ENV"),
    *("SRUN_EXPORT_ENV", "SLURM_HOSTFILE", "SLURM_DISTRIBUTION", "SLURM_IMMEDIATE", "SLURM_SRUN_MULTI"),
)
TICK_SECONDS = 0.5
CANCEL_SECONDS = 60.0  # for Slurm to end a job that was cancelled
AGAIN_SECONDS = 2.0  # until it is cancelled once more: srun may have asked for it only after we did
BLOCK = 1 << 16


def main() -> None:
    """Exit with the status of srun."""
    lease, patience, cancel, argv = float(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_given: None)  # who sends it closes our input too, or is silent from now on
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    refuse_within_a_job()
    environment = {name: value for name, value in os.environ.items() if name not in OF_OTHERS}
    try:
        srun = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0, env=environment)
    except OSError as error:
        sys.stderr.write(f"{argv[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()  # Python 3.8 keeps it back
        os._exit(NO_PROGRAM)
    left = follow(srun, lease)
    if left is not None:
        take_back(srun, cancel, 0.0 if left else patience)
    os._exit(min(srun.returncode, OTHER) if srun.returncode >= 0 else 128 - srun.returncode)


def refuse_within_a_job() -> None:
    """Exit if we are in a job of Slurm: srun would start a step of it, which has no name in the queue."""
    number = os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID")
    if number:
        why = "srun would start a step of it, and no job of its own: type it in a shell that is in no job"
        sys.stderr.write(f"this shell is in job {number} of Slurm (salloc, sbatch), and {why}\n")
        sys.stderr.flush()  # Python 3.8 keeps it back
        os._exit(REFUSED)


def follow(srun: subprocess.Popen[bytes], lease: float) -> int | None:
    """Hand srun what comes until it has ended.

    If the controller is gone before, return how many bytes srun has not read: a job that waits reads none, and all that
    comes first is more than a pipe takes.
    """
    to_srun = srun.stdin.fileno() if srun.stdin else -1
    os.set_blocking(to_srun, False)  # of a job that waits srun reads nothing
    waiting, heard, closed = bytearray(), time.monotonic(), False
    while srun.poll() is None:
        if closed or time.monotonic() - heard > lease:
            return len(waiting)
        found, writable, _other = select.select([0], [to_srun] if waiting else [], [], TICK_SECONDS)
        if found:
            data = os.read(0, BLOCK)
            waiting += data
            heard, closed = time.monotonic(), not data
        if writable:
            try:
                del waiting[: os.write(to_srun, waiting)]
            except BlockingIOError:
                continue
            except OSError:  # it reads nothing any more
                waiting.clear()
    return None


def take_back(srun: subprocess.Popen[bytes], cancel: list[str], patience: float) -> None:
    """End the job: its nodes learn it by the end of their input. What is there after `patience` seconds Slurm ends."""
    if srun.stdin:
        srun.stdin.close()
    if ends(srun, patience):
        return
    until = time.monotonic() + CANCEL_SECONDS
    while time.monotonic() < until:
        end(cancel)
        if ends(srun, AGAIN_SECONDS):
            return
    srun.terminate()  # it takes its job back itself, if it can
    if not ends(srun, AGAIN_SECONDS):
        srun.kill()
        srun.wait()


def ends(srun: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether srun ends in so many seconds."""
    try:
        srun.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def end(cancel: list[str]) -> None:
    """Run the command that cancels the job. Root and operators could cancel one of that name of others too."""
    try:
        words = [*cancel, f"--user={own_user()}"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SCANCEL_")}  # they filter too
        nothing = subprocess.DEVNULL
        subprocess.run(words, stdin=nothing, stdout=nothing, timeout=CANCEL_SECONDS, check=False, env=kept)
    except (OSError, subprocess.TimeoutExpired):
        pass


def own_user() -> str:
    """Return the name of the user that we are, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


if __name__ == "__main__":
    main()
