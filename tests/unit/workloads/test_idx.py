import gzip
import struct

import pytest
from _basics import Mistake
from _idx import Array, read, read_set


def encoded(shape, data, magic=None):
    return (magic or bytes((0, 0, 8, len(shape)))) + struct.pack(f">{len(shape)}I", *shape) + bytes(data)


def write(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(params=["", ".gz"], ids=["plain", "gzip"])
def path(request, tmp_path):
    return tmp_path / f"file{request.param}"


@pytest.mark.parametrize(("shape", "data"), [((3,), b"abc"), ((2, 1, 3), b"abcdef"), ((0,), b""), ((0, 28, 28), b"")])
def test_read_gives_shape_and_data(path, shape, data):
    assert read(write(path, encoded(shape, data)), len(shape)) == Array(shape, data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x08", "not an IDX file"),
        (b"\0\0\x08\x01\0\0", "not an IDX file"),
        (b"<html>" + bytes(20), "not an IDX file .* it starts with '3c68746d'"),
        (encoded((3,), b"abc", magic=b"\0\0\x0d\x01"), "not an IDX file"),
        (encoded((1, 3), b"abc"), "not an IDX file of bytes in 1-D: it starts with '00000802'"),
        (encoded((3,), b"ab"), "damaged: 2 bytes of data where 3 should be"),
        (encoded((3,), b"abcd"), "damaged: 4 bytes of data where 3 should be"),
        (encoded((0xFFFFFFFF,), b"abcd"), "damaged: 4 bytes of data where 4294967295 should be"),
    ],
)
def test_a_damaged_file_is_a_mistake_of_one_line(path, content, message):
    with pytest.raises(Mistake, match=message) as mistake:
        read(write(path, content), dimensions=1)
    assert str(mistake.value).startswith(f"{path}: ")
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize("spoil", [lambda whole: whole[:-9], lambda whole: whole[:12] + b"\xff" * 9, lambda _: b"IDX"])
def test_a_damaged_gzip_file_is_a_mistake(tmp_path, spoil):
    path = tmp_path / "file.gz"
    path.write_bytes(spoil(gzip.compress(encoded((300,), bytes(300)))))
    with pytest.raises(Mistake, match=str(path)):
        read(path, dimensions=1)


def mnist(directory, images=((2, 1, 2), b"abcd"), labels=((2,), b"\x00\x09"), suffix=""):
    write(directory / f"train-images-idx3-ubyte{suffix}", encoded(*images))
    write(directory / f"train-labels-idx1-ubyte{suffix}", encoded(*labels))
    return directory


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_set_has_images_and_labels(tmp_path, suffix):
    images, labels = read_set(mnist(tmp_path, suffix=suffix), "train")
    assert images == Array((2, 1, 2), b"abcd")
    assert labels == Array((2,), b"\x00\x09")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": ((0, 28, 28), b""), "labels": ((0,), b"")}, "is empty"),
        ({"labels": ((3,), bytes(3))}, "2 images but 3 labels"),
        ({"labels": ((2,), b"\x00\x0a")}, "a label 10, above 9"),
    ],
)
def test_a_set_that_does_not_fit_together_is_a_mistake(tmp_path, changes, message):
    with pytest.raises(Mistake, match=message):
        read_set(mnist(tmp_path, **changes), "train")


def test_an_absent_set_is_a_mistake_that_names_both_files(tmp_path):
    with pytest.raises(Mistake, match=r"/t10k-images-idx3-ubyte is absent, and so is t10k-images-idx3-ubyte\.gz"):
        read_set(mnist(tmp_path), "t10k")
