"""Vendors' keys, as they are published: binary, armored, one behind the other; and what is no key of theirs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.openpgp import (
    KeyFileError,
    armored,
    keyring,
    keys,
)


class Gpg:
    """A keyring of gpg in a directory of its own, as a vendor has one."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self.env = {**os.environ, "GNUPGHOME": str(home)}

    def run(self, *words: str) -> bytes:
        argv = ["gpg", "--batch", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback", *words]
        return subprocess.run(argv, env=self.env, capture_output=True, check=True).stdout

    def make(self, name: str, kind: str = "ed25519") -> str:
        """Make a key. Return its fingerprint."""
        self.run("--quick-generate-key", name, kind, "sign", "never")
        lines = self.run("--with-colons", "--list-keys", f"={name}").decode().splitlines()
        return next(line.split(":")[9] for line in lines if line.startswith("fpr"))

    def export(self, *names: str) -> bytes:
        return self.run("--export", *names)

    def armor(self, *names: str) -> bytes:
        return self.run("--armor", "--export", *names)


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpg]:
    made = Gpg(tmp_path_factory.mktemp("gpg") / "home")
    yield made
    subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=made.env, check=True)


@pytest.fixture(scope="module")
def made(gpg: Gpg) -> tuple[str, str]:
    """The fingerprints of a vendor's key, with a subkey, and of one of somebody else."""
    vendor, other = gpg.make("Vendor", "rsa2048"), gpg.make("Other")
    gpg.run("--quick-add-key", vendor, "rsa2048", "sign", "never")
    return vendor, other


FORMS: dict[str, Callable[[Gpg, str], bytes]] = {
    "binary": lambda gpg, key: gpg.export(key),
    "armored": lambda gpg, key: gpg.armor(key),
    "armored, line ends of Windows": lambda gpg, key: gpg.armor(key).replace(b"\n", b"\r\n"),
    "binary, then the same armored": lambda gpg, key: gpg.export(key) + gpg.armor(key),
    "another, then armored": lambda gpg, key: gpg.armor("Other") + gpg.armor(key),
    "armored, then another": lambda gpg, key: gpg.armor(key) + gpg.export("Other"),
    "all in one": lambda gpg, key: gpg.export(),
    "words before it": lambda gpg, key: b"The key of our packages:\n\n" + gpg.armor(key),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_key_is_what_gpg_would_export(gpg: Gpg, made: tuple[str, str], form: str) -> None:
    """With its subkey, and without any other key."""
    data = keyring(FORMS[form](gpg, made[0]), [made[0]])
    assert data == gpg.export(made[0])
    assert data.count(b"Vendor") == 1 and b"Other" not in data


def test_several_keys_in_the_order_they_are_named(gpg: Gpg, made: tuple[str, str]) -> None:
    vendor, other = made
    spaced = " ".join(other[at : at + 4] for at in range(0, 40, 4)).lower()
    assert keyring(gpg.export(), [spaced, vendor]) == gpg.export(other) + gpg.export(vendor)


def test_gpg_takes_it_and_knows_its_subkey(gpg: Gpg, made: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "keyring.gpg").write_bytes(keyring(FORMS["binary, then the same armored"](gpg, made[0]), [made[0]]))
    listed = gpg.run("--show-keys", "--with-colons", str(tmp_path / "keyring.gpg")).decode().splitlines()
    assert [line.split(":")[0] for line in listed if line[:3] in ("pub", "sub")] == ["pub", "sub"]


def test_another_key_is_refused_and_named(gpg: Gpg, made: tuple[str, str]) -> None:
    vendor, other = made
    with pytest.raises(KeyFileError, match=rf"^it has the key {other}, but not {vendor}$"):
        keyring(gpg.export(other), [vendor])
    with pytest.raises(KeyFileError, match=r"but not a key that was named$"):
        keyring(gpg.export(other), [])


@pytest.mark.parametrize("data", [b"", b"<html>404</html>", b"\x1f\x8b\x08", b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"])
def test_what_is_no_key(data: bytes) -> None:
    with pytest.raises(KeyFileError, match=r"^it has no key, but not A{40}$"):
        keyring(data, ["A" * 40])


@pytest.mark.parametrize("data", [b"\x80", b"\xff\xff\xff", b"\x9b\x01\x02", b"\xc6\xe0\x01", bytes(range(128, 256))])
def test_what_only_begins_like_one(data: bytes) -> None:
    with pytest.raises(KeyFileError, match=r"^it is no OpenPGP key$|^it ends too early$"):
        keyring(data, ["A" * 40])


def test_a_key_of_another_version_is_passed_over(gpg: Gpg, made: tuple[str, str]) -> None:
    later = b"\x98\x02\x06\x00" + b"\x88\x01\x06"
    assert keys(later + gpg.export(made[0]) + later) == {made[0]: gpg.export(made[0])}


@pytest.mark.parametrize("fingerprint", ["3BF863CC", "A4B469963BF863CC", "", "G" * 40])
def test_an_id_is_no_fingerprint(fingerprint: str) -> None:
    with pytest.raises(KeyFileError, match="is no fingerprint, which has 40 hexadecimal digits"):
        keyring(b"", [fingerprint])


def test_a_key_that_was_cut_off_is_refused_wherever_it_was(gpg: Gpg, made: tuple[str, str]) -> None:
    """Or it is whole, without what was cut off: then the cut was between two packets."""
    whole = gpg.export(made[0])
    ends = 0
    for end in range(1, len(whole)):
        try:
            assert keys(whole[:end]) == {made[0]: whole[:end]}
        except KeyFileError as error:
            assert str(error) == "it ends too early"
            ends += 1
    assert ends > len(whole) - 10


def test_armor_of_ours_is_that_of_gpg(gpg: Gpg, made: tuple[str, str]) -> None:
    """rpm reads no other form. gpg may write a line with its version below the first."""
    ours, theirs = armored(keyring(gpg.export(made[0]), [made[0]])), gpg.armor(made[0]).decode()
    assert [line for line in theirs.splitlines() if ": " not in line] == ours.splitlines()
    assert keyring(ours.encode(), [made[0]]) == gpg.export(made[0])


def test_damaged_armor_is_refused(gpg: Gpg, made: tuple[str, str]) -> None:
    lines = gpg.armor(made[0]).splitlines(keepends=True)
    swapped = b"".join([*lines[:3], lines[4], lines[3], *lines[5:]])
    for text in (swapped, b"".join(lines).replace(lines[3], b"!!!!\n")):
        with pytest.raises(KeyFileError, match=r"^its armored text is damaged$"):
            keyring(text, [made[0]])
