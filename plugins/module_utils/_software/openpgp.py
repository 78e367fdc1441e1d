# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The OpenPGP keys in a file that a vendor publishes: apt wants the binary form, and nodes have no gpg.

A file may be binary, armored text, or one behind the other. Keys are of version 4 (RFC 4880), as all vendors' are.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator

ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(.*?)\n?-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL
)
PUBLIC_KEY = 6  # tags of packets
OF_A_KEY = {2, 13, 14, 17}  # signature, user id, public subkey, user attribute


class KeyFileError(Exception):
    """The file does not hold what is wanted. The text is one line."""


def keyring(data: bytes, fingerprints: Iterable[str]) -> bytes:
    """Return the keys with these fingerprints and their subkeys as a binary keyring. KeyFileError if one is missing."""
    wanted = [normal(fingerprint) for fingerprint in fingerprints]
    there = keys(data)
    missing = [fingerprint for fingerprint in wanted if fingerprint not in there]
    if missing or not wanted:
        has = f"the key {', '.join(there)}" if there else "no key"
        raise KeyFileError(f"it has {has}, but not {', '.join(missing) or 'a key that was named'}")
    return b"".join(there[fingerprint] for fingerprint in dict.fromkeys(wanted))


def normal(fingerprint: str) -> str:
    """Return a fingerprint without spaces, in capitals. KeyFileError if it is none: short ids are forged."""
    plain = "".join(fingerprint.split()).upper()
    if not re.fullmatch("[0-9A-F]{40}", plain):
        raise KeyFileError(f"{fingerprint} is no fingerprint, which has 40 hexadecimal digits")
    return plain


def keys(data: bytes) -> dict[str, bytes]:
    """Return the keys of a file by fingerprint. KeyFileError if it is none, or ends too early."""
    found: dict[str, bytes] = {}
    for part in parts(data):
        fingerprint = ""
        for tag, body, whole in packets(part):
            if tag == PUBLIC_KEY:
                fingerprint = fingerprint_of(body)
                found[fingerprint] = whole
            elif fingerprint in found and tag in OF_A_KEY:
                found[fingerprint] += whole
    found.pop("", None)
    return found


def fingerprint_of(body: bytes) -> str:
    """Return the fingerprint of a public key's packet; nothing if the key is of another version than 4."""
    if body[:1] != b"\x04":
        return ""
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()


def parts(data: bytes) -> Iterator[bytes]:
    """Yield the runs of packets of a file, armored or not."""
    end = 0
    for armor in ARMOR.finditer(data):
        yield from binary(data[end : armor.start()])
        yield unarmored(armor.group(1))
        end = armor.end()
    yield from binary(data[end:])


def binary(data: bytes) -> Iterator[bytes]:
    """Yield what lies beside armor if it is packets, whose first bit is set. Text is allowed there, and a line end."""
    start = data.lstrip(b"\r\n") if data[:1] in (b"\r", b"\n") else data
    if start[:1] >= b"\x80":
        yield start


def unarmored(text: bytes) -> bytes:
    """Return what armored text holds. KeyFileError if it was damaged."""
    _headers, gap, rest = (b"\n" + text.replace(b"\r", b"")).partition(b"\n\n")
    lines = [line.strip() for line in rest.split(b"\n") if line.strip()] if gap else []
    checksum = lines.pop()[1:] if lines and len(lines[-1]) == 5 and lines[-1][:1] == b"=" else b""
    try:
        data = base64.b64decode(b"".join(lines), validate=True)
        if checksum and base64.b64decode(checksum, validate=True) != crc24(data):
            raise KeyFileError("its armored text is damaged")
    except binascii.Error:
        raise KeyFileError("its armored text is damaged") from None
    return data


def armored(data: bytes) -> str:
    """Return a binary keyring as armored text, which is all that rpm reads."""
    lines = base64.b64encode(data).decode()
    body = "\n".join(lines[start : start + 64] for start in range(0, len(lines), 64))
    checksum = base64.b64encode(crc24(data)).decode()
    begin, end = (f"-----{word} PGP PUBLIC KEY BLOCK-----" for word in ("BEGIN", "END"))
    return f"{begin}\n\n{body}\n={checksum}\n{end}\n"


def crc24(data: bytes) -> bytes:
    """Return the checksum of armored text."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _bit in range(8):
            crc = (crc << 1) ^ (0x1864CFB if crc & 0x800000 else 0)
    return crc.to_bytes(3, "big")


def packets(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, body and all bytes of each packet. KeyFileError where it is no packet."""
    while data:
        tag, head, length = header(data)
        if head + length > len(data):
            raise KeyFileError("it ends too early")
        yield tag, data[head : head + length], data[: head + length]
        data = data[head + length :]


def header(data: bytes) -> tuple[int, int, int]:
    """Return the tag of a packet, the length of its header and that of its body. Both formats are in use."""
    first = data[0]
    if not first & 0x80:
        raise KeyFileError("it is no OpenPGP key")
    if first & 0x40:
        return (first & 0x3F, *new_length(data))
    size = (1, 2, 4, 0)[first & 3]
    if not size:
        raise KeyFileError("it is no OpenPGP key")  # a packet without a length is never part of one
    return (first >> 2) & 0xF, 1 + size, number(data[1 : 1 + size], size)


def new_length(data: bytes) -> tuple[int, int]:
    """Return the length of a header of the new format, and that of its body."""
    first = number(data[1:2], 1)
    if first < 192:
        return 2, first
    if first < 224:
        return 3, ((first - 192) << 8) + number(data[2:3], 1) + 192
    if first == 255:
        return 6, number(data[2:6], 4)
    raise KeyFileError("it is no OpenPGP key")  # only data, and no key, comes in parts


def number(data: bytes, size: int) -> int:
    """Return a number. KeyFileError if the file ends in it."""
    if len(data) < size:
        raise KeyFileError("it ends too early")
    return int.from_bytes(data, "big")
