"""What the workloads train on: pictures and speech from files, and damaged ones."""

from __future__ import annotations

import math
import pickle
import struct
import wave
from pathlib import Path

import pytest

from tests.integration.test_workloads import WORKLOADS, mistaken, start

SMALL = ["--arch", "resnet18", "--width", "4", "--num_epochs", "1", "--batch_size", "8"]
NETWORKS = """
import torch
from _resnet import ARCHITECTURES, resnet
with torch.device("meta"):
    for name in ARCHITECTURES:
        network = resnet(name, 1000, 224)
        shape = tuple(network(torch.zeros(2, 3, 224, 224)).shape)
        print(name, sum(part.numel() for part in network.parameters()), shape)
"""
# A pickle as CIFAR-10's are: a dictionary of bytes, with a NumPy array; and one that would run a program.
CIFAR = """
import pickle, sys, numpy
from pathlib import Path
numbers = numpy.arange(20 * 3072).reshape(20, 3072).astype(numpy.uint8)
told = {b"data": numbers, b"labels": [number % 10 for number in range(20)]}
for name in ("data_batch_1", "test_batch"):
    Path(sys.argv[1], name).write_bytes(pickle.dumps(told, protocol=2))
"""
SAME = """
import sys, torch
from pathlib import Path
from _images import load
one, other = (load(Path(place), 32).train[list(range(20))] for place in sys.argv[1:])
print(torch.equal(one[0], other[0]), torch.equal(one[1], other[1]), one[1].tolist() == list(range(10)) * 2)
"""


class Evil:
    """Asks the one that reads it for a program."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("open('evil', 'w').close()",)


def code(text: str, *words: object) -> str:
    done = start("-c", text, *words, PYTHONPATH=str(WORKLOADS))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_networks_have_the_sizes_of_torchvisions() -> None:
    """Parameters as its documentation gives them for 1,000 classes."""
    sizes = {"resnet18": 11689512, "resnet50": 25557032, "resnet101": 44549160, "resnet152": 60192808}
    assert code(NETWORKS).splitlines() == [f"{name} {count} (2, 1000)" for name, count in sizes.items()]


def test_both_versions_of_cifar_are_the_same_pictures(tmp_path: Path) -> None:
    binary, python = tmp_path / "binary", tmp_path / "python"
    for place in (binary, python):
        place.mkdir()
    content = b"".join(
        bytes([number % 10]) + bytes((number * 3072 + at) % 256 for at in range(3072)) for number in range(20)
    )
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (binary / name).write_bytes(content)
    code(CIFAR, python)
    assert code(SAME, binary, python) == "True True True\n"
    words = [*SMALL, "--model_dir", str(tmp_path / "saved"), "--amp", "--channels_last"]
    trained = start(WORKLOADS / "resnet.py", "--data", python, *words)
    assert trained.returncode == 0 and "images_per_s=" in trained.stdout, trained.stderr
    (binary / "test_batch.bin").write_bytes(content[:-1])
    mistaken(start(WORKLOADS / "resnet.py", "--data", binary), "test_batch.bin is damaged or not of CIFAR-10")


def test_folders_of_pictures(tmp_path: Path) -> None:
    """Of any size, in colours and in grey; each directory is a class."""
    npy = "import numpy, sys; numpy.save(sys.argv[1], numpy.full((9, 12, 3), 250, numpy.uint8))"
    for part in ("train", "val"):
        for label, value in (("dark", 10), ("light", 240)):
            place = tmp_path / part / label
            place.mkdir(parents=True)
            for number in range(4):
                side = 8 + number
                header = b"P6\n# made by a test\n%d %d\n255\n" % (side, side + 2)
                (place / f"{number}.ppm").write_bytes(header + bytes([value + number] * 3 * side * (side + 2)))
            (place / "grey.pgm").write_bytes(b"P5 8 8 255\n" + bytes([value] * 64))
    code(npy, tmp_path / "train" / "light" / "x.npy")
    told = code(
        "import sys; from pathlib import Path; from _images import load\n"
        "train = load(Path(sys.argv[1]), 8).train\n"
        "pictures, labels = train[list(range(len(train)))]\n"
        "print(tuple(pictures.shape), labels.tolist(), [round(float(picture.mean())) for picture in pictures])\n",
        tmp_path,
    )
    assert told == f"(11, 3, 8, 8) {[0] * 5 + [1] * 6} {[-2] * 5 + [2] * 6}\n"
    words = ["--data", tmp_path, *SMALL, "--model_dir", tmp_path / "saved", "--image_size", "8", "--workers", "1"]
    done = start(WORKLOADS / "resnet.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    broken = tmp_path / "val" / "dark" / "0.ppm"
    broken.write_bytes(b"P6 8 8 255\nshort")
    assert "0.ppm is damaged, or no picture" in start(WORKLOADS / "resnet.py", *words, "--resume").stderr
    broken.rename(broken.with_suffix(".jpg"))
    mistaken(start(WORKLOADS / "resnet.py", *words), r"val: \*\.jpg needs Pillow, which is not installed; \.ppm, \.pgm")


REFUSED = """
import sys
from pathlib import Path
from _basics import Mistake
from _images import load
from llm import read_text
for place in map(Path, sys.argv[1:]):
    try:
        load(place, 32) if place.is_dir() else read_text([place], 128)
    except Mistake as mistake:
        print(mistake)
"""


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path) -> None:
    """A pickle that asks for a program gets none; directories without pictures, and texts that are short or absent."""
    for name in ("pickle", "empty", "half/train"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "pickle" / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(), b"labels": [1]}, protocol=2))
    (tmp_path / "a.txt").write_text("too short")
    told = code(REFUSED, *(tmp_path / name for name in ("pickle", "empty", "half", "a.txt", "b.txt"))).splitlines()
    neither = "neither CIFAR-10 (data_batch_1.bin or data_batch_1) nor folders train and val"
    assert told == [
        f"{tmp_path}/pickle/data_batch_1 is damaged or not of CIFAR-10",
        f"{tmp_path}/empty: {neither}",
        f"{tmp_path}/half: {neither}",
        "9 bytes of text: --context 128 takes 1300 at least",
        f"{tmp_path}/b.txt: No such file or directory",
    ]
    assert not Path("evil").exists()


# Starts the workload of its arguments with the data of this rank, as if `-e data=` had laid them.
OWN_DATA = """
import os, runpy, sys
sys.argv = sys.argv[1:]
os.environ["TORCHFLEET_DATA"] = os.path.join(os.environ["PLACE"], os.environ["RANK"])
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("workload", "what"), [("resnet", "pictures"), ("tacotron2", "speech"), ("llm", "text"), ("mnist", "digits")]
)
def test_ranks_with_different_data_are_refused(tmp_path: Path, workload: str, what: str) -> None:
    """They would take another number of steps, and wait for each other until the job is ended from outside."""
    driver = tmp_path / "driver.py"
    driver.write_text(OWN_DATA)
    for rank in range(2):
        made = tmp_path / str(rank)
        for name in ("train/dark", "val/dark"):
            (made / name).mkdir(parents=True)
            (made / name / f"{rank}.pgm").write_bytes(b"P5 8 8 255\n" + bytes(64))
        (made / "metadata.csv").write_text(f"one|one\ntwo|{'two' * (rank + 1)}\n")
        for name in ("train", "t10k"):
            (made / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 2, 8, 8) + bytes([0, rank] * 64))
            (made / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 2) + bytes(2))
        (made / "text.txt").write_text("some text " * 200)
    done = start(driver, WORKLOADS / f"{workload}.py", ranks=2, PLACE=str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.count(f"rank 1 has read other {what} than rank 0: give --data with") == 1, done.stderr


def speech(directory: Path, name: str, rate: int = 22050) -> None:
    """Write a second of a tone, as LJSpeech has its clips."""
    with wave.open(str(directory / "wavs" / f"{name}.wav"), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(rate)
        samples = (round(9000 * math.sin(at * 440 * 2 * math.pi / 22050)) for at in range(8192))
        stream.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))


def test_speech_in_ljspeechs_format(tmp_path: Path) -> None:
    """The mel spectrogram of a tone has its maximum where the tone is; training on such a folder goes."""
    (tmp_path / "wavs").mkdir()
    for name in ("LJ001-0001", "LJ001-0002", "LJ001-0003"):
        speech(tmp_path, name)
    rows = tmp_path / "metadata.csv"
    rows.write_text("LJ001-0001|No. 1|Number one.\nLJ001-0002|Two\nLJ001-0003|3|Three, naïve\n", encoding="utf-8")
    told = code(
        "import sys; from pathlib import Path; from _speech import LJSpeech, bank, hertz, mel\n"
        "import torch\n"
        "clip = LJSpeech(Path(sys.argv[1])).clip(0)\n"
        "edges = hertz(torch.linspace(mel(0.0), mel(8000.0), 82))\n"
        "loud = clip.mel.mean(dim=0).argmax()\n"
        "print(tuple(clip.mel.shape), len(clip.text), bool(edges[loud] < 440 < edges[loud + 2]))\n",
        tmp_path,
    )
    assert told == "(32, 80) 12 True\n"
    words = ["--data", tmp_path, "--width", "8", "--num_epochs", "1", "--checkpoint", tmp_path / "x.pt"]
    done = start(WORKLOADS / "tacotron2.py", *words)
    assert done.returncode == 0 and "diagonal=" in done.stdout, done.stderr
    speech(tmp_path, "LJ001-0003", rate=16000)
    assert "16000 Hz, 1 channels, 16 bit" in start(WORKLOADS / "tacotron2.py", *words).stderr
    rows.write_text("../LJ001-0001|one\nLJ001-0002|two\n")
    mistaken(start(WORKLOADS / "tacotron2.py", *words), r"metadata\.csv: row 1 is not id\|text")
