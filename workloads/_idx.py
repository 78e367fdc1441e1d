"""Read IDX files, the format of MNIST: unsigned bytes in any number of dimensions, plain or gzip.

Source: Y. LeCun, C. Cortes, "The MNIST database of handwritten digits", section "The IDX file format": two zero bytes,
the type (8: unsigned byte), the number of dimensions, the dimensions (32 bit, big-endian), the data, last dimension
fastest.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from _basics import Mistake

UNSIGNED_BYTE = 8


class Array(NamedTuple):
    """The content of a file: `data` holds `prod(shape)` bytes, last dimension fastest."""

    shape: tuple[int, ...]
    data: bytes


class Images(NamedTuple):
    """A set of images [count, height, width] with as many labels [count], each 0 to 9."""

    images: Array
    labels: Array


def read_set(directory: Path, name: str) -> Images:
    """Read the MNIST set `name` ("train" or "t10k") under its standard names, each with or without `.gz`.

    Raises:
        Mistake: a file is absent or damaged, the set is empty, or the two files do not belong together.
    """
    images = read(_find(directory / f"{name}-images-idx3-ubyte"), dimensions=3)
    labels = read(_find(directory / f"{name}-labels-idx1-ubyte"), dimensions=1)
    if not images.data:
        raise Mistake(f"{directory}: the set {name!r} is empty")
    if images.shape[0] != labels.shape[0]:
        raise Mistake(f"{directory}: the set {name!r} has {images.shape[0]} images but {labels.shape[0]} labels")
    if max(labels.data) > 9:
        raise Mistake(f"{directory}: the set {name!r} has a label {max(labels.data)}, above 9")
    return Images(images, labels)


def read(path: Path, dimensions: int) -> Array:
    """Read one file of unsigned bytes.

    Raises:
        Mistake: the file cannot be read, is not IDX, has other dimensions, or is shorter or longer than it says.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            return _parse(stream.read(), dimensions)
    except (OSError, EOFError, zlib.error, ValueError) as problem:
        raise Mistake(f"{path}: {problem}") from problem


def _parse(content: bytes, dimensions: int) -> Array:
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, UNSIGNED_BYTE, dimensions))
    if content[:4] != magic or len(content) < header:
        raise ValueError(f"not an IDX file of bytes in {dimensions}-D: it starts with {content[:4].hex()!r}")
    shape = struct.unpack_from(f">{dimensions}I", content, offset=4)
    if len(content) - header != math.prod(shape):
        raise ValueError(f"damaged: {len(content) - header} bytes of data where {math.prod(shape)} should be")
    return Array(shape, content[header:])


def _find(path: Path) -> Path:
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    raise Mistake(f"{path} is absent, and so is {path.name}.gz")
