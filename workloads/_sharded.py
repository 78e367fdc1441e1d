"""Checkpoints in the format of torch.distributed.checkpoint: a directory, written by all ranks at the same time.

Each rank writes its part if all nodes share the directory, else rank 0 writes all: the format is the same, and either
is read by any number of ranks, sharded or not. A directory is whole if its manifest has the digests of its files. It is
written beside its place and renamed; the whole one before it stays, as `<name>.previous`.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from _basics import Mistake, prepare
from _common import Rank, complain, from_rank_zero, say
from _sealed import before, foreign, located, sync_directory
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

MANIFEST = "manifest.json"
SIGN = r"\.[0-9a-f]{16}"  # by which ranks find out whether they see the same directory


class ShardedCheckpoints:
    """The checkpoint of a model and its optimizer, beside a few numbers. All ranks call each method."""

    def __init__(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, rank: Rank) -> None:
        self.path, self.model, self.optimizer, self.rank = located(path, os.environ), model, optimizer, rank
        self.shared = True

    def prepare(self) -> None:
        """Find out whether the place can be written and is ours, and whether all ranks see it. Raise Mistake if not."""
        from_rank_zero(self._claim)
        sign = self.path / f".{from_rank_zero(lambda: secrets.token_hex(8))}"
        from_rank_zero(sign.touch)
        seen = torch.tensor(float(sign.exists()), device=self.rank.device)
        dist.all_reduce(seen, dist.ReduceOp.MIN)
        self.shared = bool(seen)
        from_rank_zero(sign.unlink)

    def state(self) -> dict[str, Any]:
        """Return what training changes, as tensors and DTensors by name."""
        taken = StateDictOptions(full_state_dict=not self.shared, cpu_offload=not self.shared)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=taken)
        return {"model": model, "optimizer": optimizer}

    def save(self, numbers: dict[str, Any]) -> None:
        """Write the checkpoint, with numbers (JSON). Raise Mistake, on every rank, if it cannot be written."""
        partial, state = self.path.with_name(f"{self.path.name}.partial"), self.state()
        from_rank_zero(lambda: shutil.rmtree(partial, ignore_errors=True))
        if self.shared:
            self._attempt(lambda: dcp.save(state, checkpoint_id=partial))
        else:
            from_rank_zero(lambda: self._attempt(lambda: alone(dcp.save, state, partial)))
        from_rank_zero(lambda: self._attempt(lambda: self._finish(partial, numbers)))

    def load(self) -> dict[str, Any] | None:
        """Load the newest whole checkpoint into the model and its optimizer; return its numbers, None if there is none.

        Raises:
            Mistake: there are directories, and none is a whole checkpoint.
        """
        path = from_rank_zero(self._newest)
        if path is None:
            return None
        numbers: dict[str, Any] = from_rank_zero(lambda: json.loads((path / MANIFEST).read_text())["numbers"])
        state = self.state()
        if self.shared:
            dcp.load(state, checkpoint_id=path)
        else:
            state = from_rank_zero(lambda: alone(dcp.load, state, path))
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts, options=StateDictOptions(full_state_dict=not self.shared))
        return numbers

    def _claim(self) -> None:
        prepare(self.path / "x")
        other = foreign(self.path, MANIFEST, SIGN)
        if other:  # the whole directory is replaced by each checkpoint
            raise Mistake(f"{self.path} has {other} and is no checkpoint: give a directory of its own, or a new one")

    def _attempt(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except (OSError, RuntimeError, dcp.api.CheckpointException) as problem:
            raise Mistake(f"cannot write {self.path}: {str(problem).partition(chr(10))[0]}") from problem

    def _finish(self, partial: Path, numbers: dict[str, Any]) -> None:
        manifest = {"numbers": numbers, "files": digests(partial)}
        with (partial / MANIFEST).open("w") as stream:
            json.dump(manifest, stream)
            stream.flush()
            os.fsync(stream.fileno())
        sync_directory(partial)
        if whole(self.path):
            shutil.rmtree(before(self.path), ignore_errors=True)
            self.path.replace(before(self.path))
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        partial.replace(self.path)
        sync_directory(self.path.parent)

    def _newest(self) -> Path | None:
        there = [path for path in (self.path, before(self.path)) if (path / MANIFEST).exists()]
        for path in there:
            if whole(path):
                say(f"going on from {path}")
                return path
            complain(f"{path} is damaged: not loaded")
        if there:
            raise Mistake(f"{there[0]} is damaged or not a checkpoint, and there is no whole one before it")
        say(f"no checkpoint at {self.path} yet: training starts from the beginning")
        return None


def alone(function: Callable[..., Any], state: dict[str, Any], path: Path) -> dict[str, Any]:
    """Have one rank save or load all, and return it. The warning that it is alone is not for users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        function(state, checkpoint_id=path, no_dist=True)
    return state


def digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file but the manifest and a left SIGN, by name, and have them on the disk."""
    found = {}
    for path in sorted(directory.iterdir()):
        if path.name != MANIFEST and not re.fullmatch(SIGN, path.name):
            with path.open("rb") as stream:
                found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
                os.fsync(stream.fileno())
    return found


def whole(directory: Path) -> bool:
    """Tell whether a directory holds what its manifest says."""
    try:
        return bool(json.loads((directory / MANIFEST).read_text())["files"] == digests(directory))
    except (OSError, ValueError, KeyError, TypeError):
        return False
