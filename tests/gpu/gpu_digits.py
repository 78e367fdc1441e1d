"""Digits to train on where there is neither scikit-learn nor a network: shifted and noisy, as MNIST's files."""

from __future__ import annotations

import random
import struct
from pathlib import Path

SIDE, SCALE = 28, 4
# Of 3 x 5, row by row.
GLYPHS = ("75557", "22222", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717")


def digit(number: int, dice: random.Random) -> bytes:
    """Return an image of a digit, a byte per pixel."""
    pixels = bytearray(dice.randrange(48) for _pixel in range(SIDE * SIDE))
    left, top = dice.randrange(2, SIDE - 3 * SCALE - 2), dice.randrange(1, SIDE - 5 * SCALE - 1)
    ink = [int(bit) for row in GLYPHS[number] for bit in f"{int(row):03b}"]
    for place in (place for place, inked in enumerate(ink) if inked):
        for row in range(SCALE):
            start = (top + place // 3 * SCALE + row) * SIDE + left + place % 3 * SCALE
            pixels[start : start + SCALE] = bytes(dice.randrange(160, 256) for _pixel in range(SCALE))
    return bytes(pixels)


def write(directory: Path, train: int = 2000, test: int = 500) -> None:
    """Write so many digits to train and to test with."""
    directory.mkdir(parents=True, exist_ok=True)
    dice = random.Random(1)
    for name, count in (("train", train), ("t10k", test)):
        labels = bytes(number % 10 for number in range(count))
        images = b"".join(digit(label, dice) for label in labels)
        head = struct.pack(">4I", 0x803, count, SIDE, SIDE)
        (directory / f"{name}-images-idx3-ubyte").write_bytes(head + images)
        (directory / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)
