"""How `make gpu` judges a machine and ends. Its commands are small ones here, for no GPU is."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import pytest

from tests.gpu import gpu_machine, gpu_transcript, prove
from tests.gpu.gpu_machine import Machine, Missing
from tests.gpu.gpu_steps import Step

MACHINE = Machine(sys.executable, "nvidia", "cuda", 1, "NVIDIA L4", "2.13.0", "nccl", sklearn=True)
GOOD = Step("good", (sys.executable, "-c", "import os; print('said', os.environ['MINE'])"), "said 7", env={"MINE": "7"})
BAD = Step("bad", (sys.executable, "-c", "import sys; print('oh'); sys.exit(4)"))
LEFT_OUT = Step("other", (), left_out="it is not there")


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine about which there is nothing to say."""
    monkeypatch.setattr(prove, "facts", lambda _machine: ["1 of NVIDIA: L4"])
    monkeypatch.setattr(prove, "problems", lambda _machine: [])
    monkeypatch.setattr(prove, "findings", lambda: iter([("warning", "warning TF-X: odd")]))


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize(("steps", "well"), [([GOOD, LEFT_OUT], True), ([GOOD, BAD], False)])
def test_all_is_well_if_every_step_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Step], well: bool
) -> None:
    monkeypatch.setattr(prove, "steps", lambda _machine, _scratch: iter(steps))
    found, text = prove.prove(MACHINE, tmp_path)
    assert found == well
    assert "> said 7" in text and "> warning TF-X: odd" in text
    titles = [line for line in text if line.startswith("# ")]
    assert titles[1:3] == ["# what setup.yml and train.yml would refuse", "# the rules of verify.yml"]
    assert titles[4].startswith("# other: left out" if well else "# bad: it ended with status 4, not 0 (")


@pytest.mark.usefixtures("sound")
def test_an_error_of_a_rule_fails_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "steps", lambda _machine, _scratch: iter([GOOD]))
    monkeypatch.setattr(prove, "findings", lambda: iter([("error", "error TF-GPU-ECC: 3 uncorrected")]))
    assert not prove.prove(MACHINE, tmp_path)[0]
    monkeypatch.setattr(prove, "findings", lambda: iter([]))
    monkeypatch.setattr(prove, "problems", lambda _machine: ["PyTorch has no code for sm_70"])
    well, text = prove.prove(MACHINE, tmp_path)
    assert not well and "> PyTorch has no code for sm_70" in text


def test_a_step_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "STEP_SECONDS", 0.5)
    started = time.monotonic()
    child = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '600'])"
    assert prove.play(Step("slow", (sys.executable, "-c", child)), tmp_path)[0] is None
    assert time.monotonic() - started < 120


def test_the_status_says_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "vendor_here", lambda: "")
    assert prove.main() == prove.NO_GPU

    def none(_vendor: str, _given: str) -> Machine:
        raise Missing("no PyTorch")

    monkeypatch.setattr(prove, "vendor_here", lambda: "nvidia")
    monkeypatch.setattr(prove, "look", none)
    assert prove.main() == prove.NO_TORCH
    monkeypatch.setattr(prove, "look", lambda _vendor, _given: dataclasses.replace(MACHINE))
    monkeypatch.setattr(prove, "REPO", tmp_path)
    monkeypatch.setattr(gpu_transcript, "DIRECTORY", tmp_path)
    for well, status in ((True, 0), (False, prove.FAILED)):
        monkeypatch.setattr(prove, "prove", lambda _machine, _scratch, well=well: (well, ["# x", "> y"]))
        assert prove.main() == status
        written = (tmp_path / "gpu-nvidia-l4-x1.txt").read_text()
        assert written == f"# x\n> y\n# {'all is well' if well else 'NOT all is well'}\n"


def test_what_would_be_refused_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "ask", lambda _python: {"torch": ["sm_80"], "gpus": ["sm_70"]})
    assert gpu_machine.problems(MACHINE) == ["PyTorch has no code for sm_70"]
    without = dataclasses.replace(MACHINE, kind="xpu", backend="gloo")
    assert gpu_machine.problems(without) == ["PyTorch 2.13.0 has no NCCL"]
