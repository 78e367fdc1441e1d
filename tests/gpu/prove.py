"""`make gpu`: runs what needs a GPU on a machine that has one, and keeps a transcript in tests/transcripts.

It needs no network and no Ansible: PyTorch is that of GPU_PYTHON, or one that lies on the machine. Exit status: 0 all
is well, 1 something is not, 2 there is a GPU and no PyTorch that sees it, 3 there is no GPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import gpu_health, gpus, versions
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.facts_types import (
    GpuFacts,
    GpuHealth,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.gpu_rules import gpu_findings
from tests.gpu import gpu_digits
from tests.gpu.gpu_machine import REPO, Machine, Missing, facts, look, problems, vendor_here
from tests.gpu.gpu_steps import Step, fault, steps, told
from tests.gpu.gpu_transcript import names_here, path_for, section

FAILED, NO_TORCH, NO_GPU = 1, 2, 3
STEP_SECONDS = 900
OUTPUT_BYTES = 8 << 20  # of one step; what comes before is not looked at
SHOWN = 15  # last lines of a step that failed


def findings() -> Iterator[tuple[str, str]]:
    """Yield severity and text of what verify's rules for GPUs find on this machine."""
    release = os.uname().release
    here = GpuFacts(
        accelerators=gpus.survey(),
        gpu_health=cast(GpuHealth, gpu_health.gpu_health()),
        versions={"driver": versions.driver(), "kernel": release},
    )
    for found in gpu_findings("this machine", here, None):
        # A container may be given some of the machine's GPUs only.
        severity = "warning" if found.id == "TF-GPU-UNUSABLE" else found.severity
        yield severity, f"{severity} {found.id}: {found.seen}; {found.title}: {found.mend}"


def play(step: Step, scratch: Path) -> tuple[int | None, str]:
    """Run a step; return its status (None: it ran out of time) and what it printed."""
    log = scratch / "output"
    with log.open("wb") as output:
        process = subprocess.Popen(
            step.argv,
            cwd=REPO,
            env={**os.environ, "OMP_NUM_THREADS": "4", "GLOO_SOCKET_IFNAME": "lo", **step.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(STEP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    with log.open("rb") as output:
        output.seek(max(0, log.stat().st_size - OUTPUT_BYTES))
        return status, output.read().decode(errors="replace")


def prove(machine: Machine, scratch: Path) -> tuple[bool, list[str]]:
    """Run everything. Return whether all is well, and the transcript."""
    names = names_here(REPO=REPO, SCRATCH=scratch, PYTHON=Path(machine.python))
    text = section(f"make gpu, {time.strftime('%Y-%m-%d', time.gmtime())}", facts(machine), names)
    wrong, seen = problems(machine), list(findings())
    text += section("what setup.yml and train.yml would refuse", wrong or ["nothing"], names)
    text += section("the rules of verify.yml", [line for _severity, line in seen] or ["nothing found"], names)
    well = not wrong and not any(severity == "error" for severity, _line in seen)
    if not machine.sklearn:
        gpu_digits.write(scratch / "digits")
    for step in steps(machine, scratch):
        if step.left_out:
            text += section(f"{step.name}: left out", [step.left_out], names)
            print(f"{step.name}: left out: {step.left_out}", flush=True)
            continue
        started = time.monotonic()
        status, output = play(step, scratch)
        problem = fault(step, status, output)
        came = f"{problem or 'as it must be'} ({time.monotonic() - started:.0f} s)"
        print(f"{step.name}: {came}", flush=True)
        if problem:
            print(*output.splitlines()[-SHOWN:], sep="\n")
        text += section(f"{step.name}: {came}", told(output), names)
        well = well and not problem
    return well, text


def main() -> int:
    """Return the exit status."""
    vendor = vendor_here()
    if not vendor:
        print("make gpu: there is no GPU on this machine: nothing was run (status 3)", file=sys.stderr)
        return NO_GPU
    try:
        machine = look(vendor, os.environ.get("GPU_PYTHON", ""))
    except Missing as missing:
        print(f"make gpu: {missing}", file=sys.stderr)
        return NO_TORCH
    with tempfile.TemporaryDirectory(prefix="torchfleet-gpu-") as scratch:
        well, text = prove(machine, Path(scratch))
    path = path_for(machine.vendor, machine.model, machine.count)
    path.write_text("\n".join([*text, f"# {'all is well' if well else 'NOT all is well'}", ""]))
    print(f"make gpu: {'all is well' if well else 'NOT all is well'}; transcript: {path.relative_to(REPO)}")
    return 0 if well else FAILED


if __name__ == "__main__":
    sys.exit(main())
