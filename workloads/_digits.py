"""Handwritten digits as tensors: MNIST from IDX files, or the 1,797 real digits that come with scikit-learn.

FashionMNIST has clothes in place of digits, in files of the same names.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from _basics import Mistake
from _idx import Array, read_set
from torch import Tensor
from torch.utils.data import TensorDataset

TEST_EVERY = 5  # Of scikit-learn's digits, which come in one set: 360 to test with, 1,437 to train with.


class Digits(NamedTuple):
    """What to train with and what to test with: images float32 [count, 1, height, width], labels int64 [count].

    All images are scaled alike, so that those to train with have mean 0 and deviation 1.
    """

    train: TensorDataset
    test: TensorDataset


def load(directory: Path | None, dataset: str) -> Digits:
    """Read the four files of a data set (MNIST or FashionMNIST), or take scikit-learn's digits without a directory.

    The files are in the directory itself, or below it where torchvision puts them.

    Raises:
        Mistake: a file is absent or damaged, the sets do not fit together, or scikit-learn is not installed.
    """
    if directory and (directory / dataset / "raw").is_dir():
        directory = directory / dataset / "raw"
    sets = _mnist(directory) if directory else _scikit_learn()
    deviation, mean = torch.std_mean(sets[0][0])
    return Digits(*(TensorDataset((images - mean) / deviation, labels) for images, labels in sets))


def _mnist(directory: Path) -> list[tuple[Tensor, Tensor]]:
    sets = [read_set(directory, name) for name in ("train", "t10k")]
    if sets[0].images.shape[1:] != sets[1].images.shape[1:]:
        raise Mistake(f"{directory}: images to train with and to test with differ in size")
    return [(_tensor(images).unsqueeze(1).float(), _tensor(labels).long()) for images, labels in sets]


def _tensor(array: Array) -> Tensor:
    return torch.frombuffer(bytearray(array.data), dtype=torch.uint8).reshape(array.shape)


def _scikit_learn() -> list[tuple[Tensor, Tensor]]:
    try:
        from sklearn.datasets import load_digits  # Here, because --data does without it.
    except ImportError as problem:
        raise Mistake("scikit-learn is not installed: install it, or give --data with MNIST's files") from problem
    digits = load_digits()
    images, labels = torch.from_numpy(digits.images).unsqueeze(1).float(), torch.from_numpy(digits.target).long()
    test = torch.arange(len(labels)) % TEST_EVERY == 0
    return [(images[~test], labels[~test]), (images[test], labels[test])]
