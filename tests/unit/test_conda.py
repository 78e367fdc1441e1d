"""What a conda environment sets when it is activated: read by bash, as conda does."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import conda
from tests.driver import running


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    place = tmp_path / "envs" / "train"
    (place / "conda-meta").mkdir(parents=True)
    (place / "etc/conda/activate.d").mkdir(parents=True)
    return place


def add(prefix: Path, name: str, text: str) -> None:
    (prefix / "etc/conda/activate.d" / name).write_text(text)


def test_stored_variables_and_scripts_in_the_order_of_their_names(prefix: Path) -> None:
    state = {"env_vars": {"STORED": "1", "GONE": "***unset***", "BAD": 7}}
    (prefix / "conda-meta/state").write_text(json.dumps(state))
    add(prefix, "b.sh", 'export FLAGS="$FLAGS -b $STORED"; echo noise; cd /; PATH=/nowhere:$PATH')
    add(prefix, "a.sh", "export FLAGS=$CONDA_PREFIX ESCAPE=$'\\e[2J' 'LINES=x\ny'; unset HOME")
    add(prefix, "c.fish", "set -x FISH 1")
    assert conda.activated(str(prefix)) == {
        "kind": "conda",
        "prefix": str(prefix),
        "failed": 0,
        "variables": {
            "CONDA_PREFIX": str(prefix),
            "CONDA_DEFAULT_ENV": "train",
            "CONDA_SHLVL": "1",
            "STORED": "1",
            "FLAGS": f"{prefix} -b 1",
        },
    }


@pytest.mark.parametrize("text", ["exit 3", "sleep 600", "kill -9 $$"])
def test_a_script_that_fails_or_does_not_end_sets_nothing(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(conda, "SECONDS", 0.5)
    add(prefix, "a.sh", f"export A=1\n{text}")
    found = conda.activated(str(prefix))
    assert (found["failed"], "A" in found["variables"], found["variables"]["CONDA_SHLVL"]) == (1, False, "1")


def test_nothing_that_a_script_starts_stays(prefix: Path, tmp_path: Path) -> None:
    add(prefix, "a.sh", f"sleep 600 & echo $! >{tmp_path}/pid; export A=1")
    assert conda.activated(str(prefix))["variables"]["A"] == "1"
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while running(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not running(pid)


def test_a_script_may_say_as_much_as_it_likes(prefix: Path) -> None:
    add(prefix, "a.sh", "head -c 3000000 /dev/zero; for i in $(seq 400); do export V$i=1; done")
    found = conda.activated(str(prefix))
    assert len(found["variables"]) == conda.MOST
