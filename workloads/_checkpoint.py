"""The checkpoints of all ranks, and the notice that a job's time is nearly over.

A checkpoint that is torn, by a crash or a full disk, is never loaded: the one before is (`_sealed`). What a program is
told about its time stands in the environment (docs/workloads.md):
- TORCHFLEET_CHECKPOINT_DIR: relative paths of checkpoints are below it,
- TORCHFLEET_RESTART_COUNT: above 0, the program goes on from its checkpoint without being told to.
- SIGUSR1 is the notice: the program saves after its step and exits with status 75, "run me again".
"""

import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _basics import Mistake, prepare
from _common import Rank, complain, from_rank_zero, say
from _sealed import located, newest, replace, restarted

RUN_ME_AGAIN = os.EX_TEMPFAIL  # 75: "the user is invited to retry" (sysexits.h)
# Steps between two looks for the notice: on an accelerator a look waits until its steps are done.
STEPS_BETWEEN = {"cpu": 1}
STEPS_BETWEEN_ELSE = 8


class Checkpoints:
    """The checkpoint at a path, which rank 0 reads and writes for all ranks. `keys`: what each one must hold.

    All ranks call each method, and each raises a Mistake on all of them.
    """

    def __init__(self, path: Path, keys: Collection[str]) -> None:
        self.path, self.keys = located(path, os.environ), set(keys)

    def prepare(self) -> None:
        """Find out, before the work, whether the file can be written."""
        from_rank_zero(lambda: prepare(self.path))

    def save(self, states: dict[str, Any]) -> None:
        """Write what rank 0 gives."""
        from_rank_zero(lambda: self._write(states))

    def load(self) -> dict[str, Any] | None:
        """Return the newest whole checkpoint; None if there is none yet.

        Raises:
            Mistake: there are files, and none is a whole checkpoint of this program.
        """
        return from_rank_zero(self._read)

    def _write(self, states: dict[str, Any]) -> None:
        try:
            replace(self.path, lambda stream: torch.save(states, stream))
        except (OSError, RuntimeError) as problem:  # torch tells of a stream that fails by RuntimeError
            raise Mistake(f"cannot write {self.path}: {str(problem).partition(chr(10))[0]}") from problem

    def _read(self) -> dict[str, Any] | None:
        path, damaged = newest(self.path)
        if path is None and damaged:
            raise Mistake(f"{damaged[0]} is damaged or not a checkpoint, and there is no whole one before it")
        if path is None:
            say(f"no checkpoint at {self.path} yet: training starts from the beginning")
            return None
        for other in damaged:
            complain(f"{other} is damaged or not a checkpoint: {path} is loaded, the one before it")
        try:
            states = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as problem:  # A file made by others can make the unpickler raise anything.
            raise Mistake(f"{path} is damaged or not a checkpoint") from problem
        if not isinstance(states, dict) or set(states) != self.keys:
            raise Mistake(f"{path} is not a checkpoint of this program")
        say(f"going on from {path}")
        return states


def resumes(asked: bool) -> bool:
    """Tell whether to go on from a checkpoint: because the user says so, or because the job was run again."""
    return asked or restarted(os.environ)


class Notice:
    """Whether a rank was told (SIGUSR1) to save and to end. Made first of all: before, the signal ends the program."""

    def __init__(self) -> None:
        self._came = False
        signal.signal(signal.SIGUSR1, self._take)

    def _take(self, _number: int, _frame: object) -> None:
        self._came = True

    def agreed(self, rank: Rank, step: int = 0) -> bool:
        """Tell whether any rank was told so; all ranks call this after a step, with its number, and agree."""
        if step % STEPS_BETWEEN.get(rank.device.type, STEPS_BETWEEN_ELSE):
            return False
        came = torch.tensor(float(self._came), device=rank.device)
        dist.all_reduce(came)
        return bool(came)
