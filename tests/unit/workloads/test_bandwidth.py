import argparse

import pytest
from _bandwidth import algorithm_bandwidth, bus_bandwidth, iterations, size, size_list, sizes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("512", 512), ("1K", 1024), ("256M", 256 * MIB), ("256m", 256 * MIB), ("2G", 2048 * MIB)],
)
def test_size_reads_powers_of_1024(text, expected):
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "K", "0", "0M", "-1", "1.5M", "1KB", "1 K", "1T", "²", "one"])
def test_size_refuses_anything_else(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        size(text)


def test_sizes_grow_by_the_factor_and_stop_at_the_largest():
    assert sizes(1024, 256 * MIB, 4) == [1024 * 4**power for power in range(10)]
    assert sizes(1024, 5000, 2) == [1024, 2048, 4096]
    assert sizes(1024, 1024, 4) == [1024]


def test_large_sizes_are_repeated_less():
    assert [iterations(bytes_) for bytes_ in (1024, MIB, 16 * MIB, 256 * MIB, 4096 * MIB)] == [200, 200, 64, 4, 4]


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75), (16, 1.875)])
def test_bus_bandwidth_follows_nccl_tests(ranks, factor):
    assert algorithm_bandwidth(10**9, seconds=0.5) == 2
    assert bus_bandwidth(10**9, 0.5, ranks) == pytest.approx(2 * factor)


def test_a_list_of_sizes():
    assert size_list("1K,3M") == [1024, 3 * MIB]
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        size_list("1K,,2K")
