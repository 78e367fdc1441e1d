"""Pictures with labels: made up, CIFAR-10 (its binary or its Python files), or folders of picture files.

Every set gives batches by their indices, as float32 [count, 3, size, size] with mean 0 and deviation 1, about.
"""

import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from _basics import Mistake, OwnMistake
from torch import Tensor

CIFAR_SIDE = 32
CIFAR_BYTES = 3 * CIFAR_SIDE**2
# Of ImageNet, by channel; those of CIFAR are near.
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
NOISES = 61  # pictures of noise that the made-up ones share: making noise for each would be what is measured
PNM = re.compile(rb"(P[56])(?:\s+|#[^\n]*\n)+(\d+)(?:\s+|#[^\n]*\n)+(\d+)(?:\s+|#[^\n]*\n)+(\d+)\s")
# What the pickle of a NumPy array asks for. Nothing else is given: a pickle may ask for any function.
ARRAY_NAMES = {"_reconstruct", "ndarray", "dtype"}


class Set(Protocol):
    """Pictures of one size, with labels below `classes`."""

    size: int
    classes: int

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return pictures float32 [count, 3, size, size] and labels int64 [count]."""

    def content(self) -> Iterator[Any]:
        """Yield bytes and arrays that are the same where the set is the same."""


class Sets(NamedTuple):
    """What to train with and what to test with."""

    train: Set
    test: Set


class Synthetic:
    """Pictures that are made up: one coarse pattern for each class, under noise. Learnable, and the same everywhere."""

    def __init__(self, count: int, size: int, classes: int, seed: int, part: int) -> None:
        self.count, self.size, self.classes = count, size, classes
        shared = torch.Generator().manual_seed(seed)
        coarse = torch.randn(classes, 3, 4, 4, generator=shared)
        self.patterns = torch.nn.functional.interpolate(coarse, size=(size, size), mode="nearest")
        own = torch.Generator().manual_seed(seed * 1_000_003 + part)
        self.noises = torch.randn(NOISES, 3, size, size, generator=own)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        numbers = torch.tensor(indices)
        labels = numbers % self.classes
        return (self.patterns[labels] + self.noises[numbers % NOISES]) / 2**0.5, labels

    def content(self) -> Iterator[Any]:
        """Yield nothing: all ranks have the same options."""
        yield from ()


class Arrays:
    """Pictures in memory: uint8 [count, 3, size, size]."""

    def __init__(self, pictures: Tensor, labels: Tensor, classes: int) -> None:
        self.pictures, self.labels, self.classes = pictures, labels, classes
        self.size = int(pictures.shape[-1])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return normal(self.pictures[indices]), self.labels[indices]

    def content(self) -> Iterator[Any]:
        """Yield all of them."""
        yield from (self.pictures.numpy(), self.labels.numpy())


class Folder:
    """Picture files in one directory for each class, read when they are asked for."""

    def __init__(self, directory: Path, size: int) -> None:
        names = sorted(path.name for path in directory.iterdir() if path.is_dir())
        self.files = [
            (path, label) for label, name in enumerate(names) for path in sorted((directory / name).iterdir())
        ]
        self.size, self.classes = size, len(names)
        if not self.files:
            raise Mistake(f"{directory}: no directories with pictures, one for each class")
        for suffix in {path.suffix.lower() for path, _label in self.files}:
            reader(suffix, directory)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        chosen = [self.files[index] for index in indices]
        pictures = torch.stack([normal(fitted(read_picture(path), self.size)) for path, _label in chosen])
        return pictures, torch.tensor([label for _path, label in chosen])

    def content(self) -> Iterator[Any]:
        """Yield the names: reading all files would take as long as an epoch."""
        yield from (f"{path.parent.name}/{path.name}\n".encode() for path, _label in self.files)


def normal(pictures: Tensor) -> Tensor:
    """Return pictures of bytes as floats with mean 0 and deviation 1, about."""
    return (pictures.float() / 255 - MEAN) / DEVIATION


def load(directory: Path, size: int) -> Sets:
    """Read CIFAR-10 in a directory, or the folders `train` and `val` (or `test`) in it.

    Raises:
        Mistake: it holds neither, a file is damaged, or there is nothing here that reads such pictures.
    """
    for words, read in (("data_batch_{}.bin", cifar_binary), ("data_batch_{}", cifar_python)):
        if (directory / words.format(1)).is_file():
            names = [words.format(number) for number in range(1, 6)]
            return Sets(
                cifar([directory / name for name in names if (directory / name).exists()], read),
                cifar([directory / words.replace("data", "test").replace("_{}", "")], read),
            )
    test = next((directory / name for name in ("val", "test") if (directory / name).is_dir()), None)
    if test is None or not (directory / "train").is_dir():
        raise Mistake(f"{directory}: neither CIFAR-10 (data_batch_1.bin or data_batch_1) nor folders train and val")
    made = Sets(Folder(directory / "train", size), Folder(test, size))
    if made.test.classes > made.train.classes:
        raise Mistake(f"{test} has {made.test.classes} classes, {directory / 'train'} {made.train.classes}")
    return made


def cifar(paths: list[Path], read: Callable[[bytes], tuple[Any, Any]]) -> Arrays:
    """Read CIFAR-10's files, one after the other. Raise Mistake if one is damaged."""
    pictures, labels = [], []
    for path in paths:
        try:
            here, told = read(path.read_bytes())
        except OSError as problem:
            raise Mistake(f"{path}: {problem.strerror}") from problem
        except Exception as problem:  # a damaged pickle can raise anything
            raise Mistake(f"{path} is damaged or not of CIFAR-10") from problem
        pictures.append(torch.from_numpy(here.copy()).reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE))
        labels.append(torch.from_numpy(told.copy()).long())
        if len(labels[-1]) != len(pictures[-1]) or not len(told) or not 0 <= told.min() <= told.max() < 10:
            raise Mistake(f"{path} is damaged: it has labels that are not 0 to 9, or not one for each picture")
    return Arrays(torch.cat(pictures), torch.cat(labels), classes=10)


def cifar_binary(content: bytes) -> tuple[Any, Any]:
    """Return pictures and labels of the binary version: records of a label and 3,072 bytes."""
    records = numpy.frombuffer(content, numpy.uint8).reshape(-1, 1 + CIFAR_BYTES)
    return records[:, 1:], records[:, 0]


class ArraysOnly(pickle.Unpickler):
    """Reads what CIFAR-10's Python version holds (dictionaries, lists, numbers, NumPy's arrays), and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what builds an array. Raise UnpicklingError for all else."""
        if (module, name) == ("_codecs", "encode"):  # by which Python 3 writes bytes for Python 2
            return lambda text, _encoding: text.encode("latin-1")
        if module.partition(".")[0] != "numpy" or name not in ARRAY_NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} has no place there")
        return numpy.empty(0).__reduce__()[0] if name == "_reconstruct" else getattr(numpy, name)


def cifar_python(content: bytes) -> tuple[Any, Any]:
    """Return pictures and labels of the Python version: a pickled dictionary."""
    import io

    found = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    return numpy.ascontiguousarray(found[b"data"], numpy.uint8), numpy.array(found[b"labels"])


def read_picture(path: Path) -> Tensor:
    """Read a picture as uint8 [3, height, width]. Raise OwnMistake if it is damaged."""
    try:
        return reader(path.suffix.lower(), path)(path)
    except Mistake:
        raise
    except Exception as problem:  # of damaged files, whatever their reader raises
        raise OwnMistake(f"{path} is damaged, or no picture of three colours or grey: {problem}") from problem


def reader(suffix: str, where: Path) -> Callable[[Path], Tensor]:
    """Return what reads files of such a name. Raise Mistake if nothing here does."""
    if suffix in (".ppm", ".pgm"):
        return read_pnm
    if suffix == ".npy":
        return read_npy
    try:
        import PIL.Image  # noqa: F401
    except ImportError as problem:
        told = f"{where}: *{suffix} needs Pillow, which is not installed; .ppm, .pgm and .npy need nothing"
        raise Mistake(told) from problem
    return read_by_pillow


def read_pnm(path: Path) -> Tensor:
    """Read a PPM or PGM file of one byte for each value (netpbm's manuals "ppm" and "pgm")."""
    content = path.read_bytes()
    header = PNM.match(content)
    if not header or int(header[4]) > 255:
        raise ValueError("not a binary PPM or PGM of bytes")
    channels, width, height = (3 if header[1] == b"P6" else 1), int(header[2]), int(header[3])
    data = bytearray(content[header.end() :])
    return coloured(torch.frombuffer(data, dtype=torch.uint8).reshape(height, width, channels))


def read_npy(path: Path) -> Tensor:
    """Read a NumPy file: uint8 [height, width, 3], or [height, width]."""
    found = numpy.load(path, allow_pickle=False)
    if found.dtype != numpy.uint8:
        raise ValueError(f"{found.dtype}, not uint8")
    return coloured(torch.from_numpy(found).reshape(*found.shape[:2], -1))


def read_by_pillow(path: Path) -> Tensor:
    """Read a file of any kind that Pillow knows."""
    from PIL import Image

    with Image.open(path) as picture:
        return coloured(torch.from_numpy(numpy.array(picture.convert("RGB"))))


def coloured(picture: Tensor) -> Tensor:
    """Return [height, width, 1 or 3] as [3, height, width]."""
    if picture.shape[-1] not in (1, 3):
        raise ValueError(f"{picture.shape[-1]} channels")
    return picture.permute(2, 0, 1).expand(3, -1, -1)


def fitted(picture: Tensor, size: int) -> Tensor:
    """Return the square in the middle of a picture, scaled to a size."""
    _channels, height, width = picture.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = picture[:, top : top + side, left : left + side]
    if side == size:
        return square
    scaled = torch.nn.functional.interpolate(square[None].float(), size=(size, size), mode="area")
    return scaled[0].round().to(torch.uint8)
