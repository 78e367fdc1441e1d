# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A run as event files of TensorBoard: records of TFRecord, with events as protobuf, both written by hand.

The formats: tensorflow/core/lib/io/record_writer.h, and event.proto and summary.proto of tensorboard/compat/proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from .run import Run

POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), its bits reversed
MASK = 0xA282EAD8  # record_writer.h: kMaskDelta
VERSION = b"brain.Event:2"
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # kinds of fields
LARGEST_FLOAT = 3.4e38
STEP_MOST = (1 << 63) - 1
RANKS_MOST = 64  # that have a file


def table() -> tuple[int, ...]:
    """Return the remainders of CRC-32C by byte."""
    rows = []
    for byte in range(256):
        row = byte
        for _bit in range(8):
            row = (row >> 1) ^ POLYNOMIAL if row & 1 else row >> 1
        rows.append(row)
    return tuple(rows)


TABLE = table()


def masked(data: bytes) -> int:
    """Return the masked CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


def record(body: bytes) -> bytes:
    """Return a record: length, its checksum, body, its checksum."""
    length = struct.pack("<Q", len(body))
    return length + struct.pack("<I", masked(length)) + body + struct.pack("<I", masked(body))


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, kind: int, data: bytes) -> bytes:
    """Return one field of a message."""
    return varint(number << 3 | kind) + (varint(len(data)) if kind == BYTES else b"") + data


def event(at: float, step: int, name: str, value: float) -> bytes:
    """Return an event with one value. `at`: seconds since the epoch."""
    inside = field(1, BYTES, name.encode(errors="replace")) + field(2, FLOAT, struct.pack("<f", fitting(value)))
    summary, count = field(1, BYTES, inside), field(2, VARINT, varint(min(step, STEP_MOST)))
    return field(1, DOUBLE, struct.pack("<d", at)) + count + field(5, BYTES, summary)


def fitting(value: float) -> float:
    """Return a value that fits into 32 bits; NaN stays."""
    return max(-LARGEST_FLOAT, min(LARGEST_FLOAT, value)) if value == value else value  # noqa: PLR0124


def file_of(start: float, events: Iterable[bytes]) -> bytes:
    """Return a file of events."""
    head = field(1, DOUBLE, struct.pack("<d", start)) + field(3, BYTES, VERSION)
    return b"".join(map(record, [head, *events]))


def event_files(run: Run) -> dict[str, bytes]:
    """Return the files of a run by name: what each rank reported, and what was read of each node.

    A step is the n-th report of its name by its rank; of what was read of a node, the seconds since the job began.
    """
    events: dict[str, list[tuple[float, bytes]]] = {}
    for name, ranks in run.series.items():
        for rank, points in list(ranks.items())[:RANKS_MOST]:
            rows = events.setdefault(f"rank{rank}", [])
            rows += [(at, event(at, step, name, value)) for step, (at, value) in enumerate(points, 1)]
    for taken in [row for row in run.taken if row.host in run.hosts][:RANKS_MOST]:
        rows = events.setdefault(f"node-{taken.host}", [])
        for name, series in taken.usage["series"].items():
            for place, value in enumerate(series["mean"]):
                at = taken.usage["began"] + (place + 0.5) * taken.usage["bucket"]
                if value is not None:
                    rows.append((at, event(at, max(0, round(at - run.start)), f"usage/{name}", value)))
    where = f"events.out.tfevents.{max(0, int(run.start))}.torchfleet"
    return {
        f"{name}/{where}": file_of(run.start, (row for _at, row in sorted(rows, key=lambda found: found[0])))
        for name, rows in events.items()
        if rows
    }
