"""The lockfile: one line changes a version, and nothing is fetched without a checksum."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.versions_file import entry, read_lock

SHIPPED = str(Path(__file__).parents[2] / "versions.yml")
SUM = "0123456789abcdef" * 4


def own(path: Path, text: str) -> str:
    file = path / "own.yml"
    file.write_text(text)
    return str(file)


def test_every_source_that_is_shipped_has_a_checksum_of_its_version() -> None:
    lock = read_lock(SHIPPED)
    names = [name for name, told in lock.items() if "source" in told]
    assert names
    for name in names:
        told = entry(lock, f"{name}.source")
        assert told["version"] in told["url"] and told["url"].startswith("https://") and len(told["sha256"]) == 64


def test_a_line_of_the_users_own_changes_a_version(tmp_path: Path) -> None:
    lock = read_lock(SHIPPED, own(tmp_path, "openmpi: {version: 5.0.10}"))
    told = entry(lock, "openmpi.source")
    assert told["url"].endswith("openmpi-5.0.10.tar.bz2") and told["sha256"].startswith("0acecc4f")
    assert entry(lock, "ucx.version") == entry(read_lock(SHIPPED), "ucx.version")


def test_what_is_fetched_has_the_name_of_its_project(tmp_path: Path) -> None:
    """Forges call every archive v1.2.3.tar.gz: two of them would be one file."""
    source = f"source: {{url: 'https://forge.example/v{{version}}.tar.gz', sha256: {{1.2: {SUM}}}}}"
    lock = read_lock(SHIPPED, own(tmp_path, f"ucx: {{version: 1.2, {source}}}"))
    assert entry(lock, "ucx.source")["file"] == "ucx-v1.2.tar.gz"
    assert entry(lock, "openmpi.source")["file"].startswith("openmpi-")


def test_a_version_is_text(tmp_path: Path) -> None:
    """6.10 is no 6.1."""
    lock = read_lock(SHIPPED, own(tmp_path, f"openmpi: {{version: 6.10, source: {{sha256: {{6.10: {SUM}}}}}}}"))
    assert entry(lock, "openmpi.version") == "6.10"
    assert entry(lock, "openmpi.source")["sha256"] == SUM


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (
            "openmpi: {version: 9.9}",
            "openmpi.source",
            'openmpi.version: got "9.9"; its checksum is not known: add the ',
        ),
        ("openmpi: {version: 9.9, source: {sha256: {9.9: abc}}}", "openmpi.source", "its checksum is not known"),
        ("openmpy: {version: 1}", "openmpi.version", 'torchfleet_versions: got "openmpy"; '),
        ("- openmpi", "openmpi.version", "give a file like versions.yml: openmpi: {version: 5.0.10}"),
        ("openmpi: [", "openmpi.version", "give a YAML file that can be read: while parsing"),
        ("{}", "openmpi.revision", "versions.yml has no such entry"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, name: str, says: str) -> None:
    with pytest.raises(InputError) as refusal:
        entry(read_lock(SHIPPED, own(tmp_path, text)), name)
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    told = r"torchfleet_versions: got .*give a YAML file that can be read: .*No such file"
    with pytest.raises(InputError, match=told):
        read_lock(SHIPPED, str(tmp_path / "none.yml"))
