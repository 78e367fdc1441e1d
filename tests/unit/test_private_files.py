"""Files of a job that its user alone may read, on the nodes and on the controller, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.node_job import NodeJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.secrets import take
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import make_run_dir, point_latest
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from tests.driver import wait_until
from tests.unit.supervisors import begin, order_of_one, supervisor


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(top: Path) -> list[str]:
    """Return what others may read, write or enter at or below a directory; links have no mode of their own."""
    found = [path for path in (top, *top.rglob("*")) if not path.is_symlink()]
    return [f"{path.name} {path.stat().st_mode & 0o777:o}" for path in found if path.stat().st_mode & 0o077]


def test_nobody_else_enters_the_directory_of_a_job(tmp_path: Path) -> None:
    """It holds the sockets of the job, its output and its environment."""
    job = NodeJob(order_of_one(tmp_path, secret_names=["HF_TOKEN"]), {"HF_TOKEN": "s3cret"})
    place = Path(job.job.path)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert {oct(path.stat().st_mode & 0o777) for path in place.glob("*.json")} == {"0o600"}
    assert {path.name for path in place.rglob("*.pipe")} == {"stdout.pipe", "stderr.pipe"}
    assert not [path for path in place.rglob("*.pipe") if path.stat().st_mode & 0o077]
    assert (place / "bin" / "torchfleet-rank").stat().st_mode & 0o077 == 0
    private = Path(job.private_tmp)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    job.unstage()
    assert not private.exists() and not place.exists()


def test_a_secret_is_in_no_file_of_a_job(tmp_path: Path) -> None:
    job = NodeJob(order_of_one(tmp_path, secret_names=["HF_TOKEN"], environment={"A": "shown"}), {"HF_TOKEN": "s3cret"})
    files = [path for path in Path(job.job.path).rglob("*") if path.is_file()]
    texts = {path.name: path.read_bytes() for path in files}
    assert b"HF_TOKEN" in texts["order.json"] and b"shown" in texts["order.json"]
    assert [name for name, text in texts.items() if b"s3cret" in text] == []
    job.unstage()


def test_no_secret_is_handed_out_when_a_job_is_over(tmp_path: Path) -> None:
    """Its supervisor lives on until its files are fetched, and so may a program that it left."""
    job = NodeJob(order_of_one(tmp_path, secret_names=["HF_TOKEN"]), {"HF_TOKEN": "s3cret"})
    assert job.keeper is not None
    job.keeper.start()
    assert take(job.job.path, ["HF_TOKEN"]) == {"HF_TOKEN": "s3cret"}
    job.clean_up()
    with pytest.raises(OSError):
        take(job.job.path, ["HF_TOKEN"])
    job.unstage()


def test_what_a_launcher_says_is_for_its_user_alone(tmp_path: Path) -> None:
    remote = supervisor("os.umask(0)")
    begin(remote, order_of_one(tmp_path, command=("/bin/sh", "-c", "echo $TMPDIR; exec sleep 600")))
    said = tmp_path / "jobs" / "one" / "launcher.out"
    wait_until(lambda: said.exists() and said.stat().st_size)
    assert stat.S_IMODE(said.stat().st_mode) == 0o600
    private = Path(said.read_text().strip())  # for what it writes itself, its sockets above all
    assert private.name.startswith("torchfleet-") and stat.S_IMODE(private.stat().st_mode) == 0o700
    remote.channel.send({"kind": "end", "reason": "cancelled", "detail": "enough"})
    while remote.answer(60)["kind"] != "over":
        pass
    remote.close()


def test_a_run_is_its_users_alone(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    make_run_dir(run_dir, {"plan.json": "{}\n", "command.txt": "mpirun\n"})
    for name in ("result.json", "ranks/0/stdout"):
        Session.store({"name": name, "first": True, "data": b"said"}, run_dir)
    assert [entry for entry in open_to_others(run_dir) if not entry.startswith(("ranks ", "0 "))] == []


def test_a_file_that_the_user_called_latest_stays(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "latest").write_text("mine")
    point_latest(tmp_path / "one")
    assert (tmp_path / "latest").read_text() == "mine"
    (tmp_path / "latest").unlink()
    for name in ("one", "two"):
        (tmp_path / name).mkdir(exist_ok=True)
        point_latest(tmp_path / name)
        assert os.readlink(tmp_path / "latest") == name
