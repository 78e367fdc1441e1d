"""The newest complete checkpoint: torn ones are passed over. Real ones are in integration/test_trainings.py."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks import checkpoints
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.checkpoints import newest

Make = Callable[[Path], Path]


def saved(path: Path, first: str = "archive/data.pkl") -> Path:
    """A file as torch.save writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(first, b"x" * 500)
        archive.writestr("archive/data/0", b"y" * 500)
    return path


def tensors(path: Path) -> Path:
    """A file of safetensors."""
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
    return path


def sharded(path: Path) -> Path:
    """A directory of torch.distributed.checkpoint."""
    path.mkdir()
    (path / "__0_0.distcp").write_bytes(b"part")
    (path / ".metadata").write_bytes(b"last")
    return path


def trainer(path: Path) -> Path:
    """A directory of Hugging Face's Trainer."""
    path.mkdir()
    saved(path / "optimizer.pt")
    (path / "trainer_state.json").write_text('{"global_step": 5}')
    return path


def at(path: Path, second: int) -> None:
    """Have everything at a path changed at that second."""
    for each in (*path.rglob("*"), path):
        os.utime(each, (second, second))


@pytest.mark.parametrize(
    ("make", "name", "tear"),
    [
        (saved, "step2.pt", "step2.pt"),
        (
            saved,
            "lightning_logs/version_0/checkpoints/epoch=1.ckpt",
            "lightning_logs/version_0/checkpoints/epoch=1.ckpt",
        ),
        (tensors, "model.safetensors", "model.safetensors"),
        (trainer, "checkpoint-20", "checkpoint-20/trainer_state.json"),
    ],
)
def test_a_torn_one_is_passed_over(tmp_path: Path, make: Make, name: str, tear: str) -> None:
    at(saved(tmp_path / "step1.pt"), 100)
    at(make(tmp_path / name), 200)
    assert newest(str(tmp_path)) == str(tmp_path / name)
    torn = tmp_path / tear
    torn.write_bytes(torn.read_bytes()[:-3])
    os.utime(torn, (200, 200))
    assert newest(str(tmp_path)) == str(tmp_path / "step1.pt")


def test_a_directory_of_all_ranks_is_complete_when_its_metadata_is_newest(tmp_path: Path) -> None:
    first, second = sharded(tmp_path / "step-1"), sharded(tmp_path / "step-2")
    at(first, 100)
    at(second, 200)
    assert newest(str(tmp_path)) == str(second)
    os.utime(second / "__0_0.distcp", (300, 300))  # another one was begun in its place
    assert newest(str(tmp_path)) == str(first)
    (second / ".metadata").unlink()
    saved(second / "extra.pt")  # a part of one that was not finished
    assert newest(str(tmp_path)) == str(first)


def test_a_directory_of_the_trainer_is_complete_when_it_has_its_state(tmp_path: Path) -> None:
    at(trainer(tmp_path / "checkpoint-10"), 100)
    later = trainer(tmp_path / "checkpoint-9")
    assert newest(str(tmp_path)) == str(later)  # by time: another run counts from 0
    (later / "trainer_state.json").unlink()
    assert newest(str(tmp_path)) == str(tmp_path / "checkpoint-10")


def test_a_file_of_a_newer_kind_of_zip_fails_no_rank(tmp_path: Path) -> None:
    """Reproduced before: its reader raised NotImplementedError, and no rank began."""
    path = saved(tmp_path / "model.pt")
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 6] = 99  # the version that is needed to read it
    path.write_bytes(content)
    assert newest(str(tmp_path)) == ""


def test_what_is_no_checkpoint_is_none(tmp_path: Path) -> None:
    saved(tmp_path / "data.zip", "notes.txt")
    saved(tmp_path / "step3.pt.partial")
    (tmp_path / "log.txt").write_text("epoch 1\n")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    os.mkfifo(tmp_path / "pipe.pt")
    elsewhere = saved(tmp_path.parent / f"{tmp_path.name}-elsewhere.pt")
    (tmp_path / "latest.pt").symlink_to(elsewhere)
    assert newest(str(tmp_path)) == newest(str(tmp_path / "missing")) == ""
    elsewhere.unlink()


def test_a_directory_with_too_much_in_it_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "ENTRIES_MOST", 2)
    for number in range(9):
        saved(tmp_path / f"deep/{number}/x.pt")
    assert newest(str(tmp_path)) == ""
    left = [3]
    for number in range(9):
        saved(tmp_path / f"wide/{number}.pt")
    assert len(list(checkpoints.candidates(str(tmp_path), left, checkpoints.DEPTH))) <= 3 and left == [0]
