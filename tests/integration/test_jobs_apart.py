"""Jobs do not disturb each other: two nodes with homes of their own on this machine, for real but for the way there.

The way is a program `ssh` that runs the command here; tests/lab has real nodes and a real sshd.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import INSTALLED, Fleet, Played
from tests.unit.laid_runtime import share_runtime

SSH = """#!/bin/sh
# ssh -F <config> -o <option> <host> <command>
for command; do :; done
exec /bin/sh -c "$command"
"""
READER = """
import os, time
rank = os.environ["RANK"]
print("up", flush=True)
while not os.path.exists(os.environ["STOP"]):
    time.sleep(0.02)
print(open("model.txt").read(), flush=True)
import late
print(late.WORD, os.getcwd(), flush=True)
"""


class TwoNodes(Fleet):
    """A fleet of two nodes; each has a home of its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.homes = {"n1": self.home, "n2": root / "home2"}
        for name in ("pytorch", "openmpi"):
            self.homes["n2"].mkdir(exist_ok=True)
            (self.homes["n2"] / name).symlink_to(INSTALLED / name)
        (self.home / "ssh").mkdir()
        (self.home / "ssh" / "config").touch()
        (root / "bin").mkdir()
        (root / "bin" / "ssh").write_text(SSH)
        (root / "bin" / "ssh").chmod(0o755)
        self.inventory = root / "hosts.json"
        common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "slots": 1}
        hosts = {
            name: {**common, "ansible_host": f"127.0.0.{number}", "torchfleet_home": str(home)}
            for number, (name, home) in enumerate(self.homes.items(), 1)
        }
        groups = {"head": {"hosts": {"n1": None}}, "workers": {"hosts": hosts}}
        self.inventory.write_text(json.dumps({"all": {"children": groups}}))

    def variables(self, **given: Any) -> dict[str, Any]:
        return {"runs_dir": str(self.runs), "launcher": "torchrun", **given}

    def play(self, playbook: str = "train.yml", **given: Any) -> Played:
        return super().play(playbook, **{"inventory": self.inventory, **given})

    def train(self, **given: Any) -> Played:
        played = self.play(**given)
        assert played.rc == 0, played.stdout
        return played

    def project(self, **files: str) -> Path:
        """Write a folder with a script; return the script."""
        folder = self.root / "project"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return folder / "train.py"


def plain(shown: str) -> str:
    """Return what was shown without colours and line ends."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", shown).split())


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_lib: Path) -> TwoNodes:
    made = TwoNodes(tmp_path)
    share_runtime(runtime_lib, *made.homes.values())
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return made


def test_a_running_job_keeps_its_code_while_another_of_its_folder_runs(two: TwoNodes) -> None:
    """Reproduced before: the first job read the second one's files, and imported its modules."""
    script = two.project(train=READER, late="WORD = 'first'\n")
    (script.parent / "model.txt").write_text("version A")
    monkey = {"STOP": str(two.root / "stop")}
    first = two.start(workload=str(script), job_env=monkey, job_id="first", inventory=two.inventory)
    for node, rank in (("n1", 0), ("n2", 1)):
        said = two.homes[node] / "jobs" / "first" / "ranks" / str(rank) / "stdout"
        first.wait_until(lambda said=said: said.exists() and "up" in said.read_text(), 60)
    (script.parent / "model.txt").write_text("version B")
    two.project(late="WORD = 'second'\n")
    second = two.train(workload=str(script), job_env={"STOP": "/"}, job_id="second")
    assert second.output(1).split()[:4] == ["up", "version", "B", "second"]
    (two.root / "stop").touch()
    assert first.process.wait(60) == 0, first.log.read_text()
    for rank, home in enumerate(two.homes.values()):
        told = (first.run_dir / "ranks" / str(rank) / "stdout").read_text().split()
        assert told == ["up", "version", "A", "first", f"{home}/jobs/first/src"]


def test_what_a_program_wrote_beside_itself_is_not_lost(two: TwoNodes) -> None:
    """clean.yml keeps it and says where; the next run of the folder does not see it."""
    script = two.project(
        train="import os\nopen('own-' + os.environ['RANK'], 'x').write('weights')\nprint(sorted(os.listdir('.')))\n"
    )
    for job_id in ("one", "two"):
        two.train(workload=str(script), job_id=job_id)
    two.train(workload=str(two.project(train="print('wrote nothing')\n")), job_id="three")
    cleaned = two.play("clean.yml")
    told = plain(cleaned.stdout)
    for home, rank in zip(two.homes.values(), "01", strict=True):
        for job_id in ("one", "two"):
            tree = home / "jobs" / job_id / "src"
            assert f"1 file, 7 bytes in {tree}" in told
            assert (tree / f"own-{rank}").read_text() == "weights"
        assert not (home / "jobs" / "three").exists()
    assert two.play("clean.yml", drop_outputs=True).rc == 0
    assert [list((home / "jobs").iterdir()) for home in two.homes.values()] == [[], []]


def test_what_is_not_shipped_is_said(two: TwoNodes) -> None:
    script = two.project(train="print('up')\n")
    (script.parent / "data").symlink_to(two.root)
    (script.parent / "checkpoints").mkdir()
    told = plain(two.train(workload=str(script)).stdout)
    assert f"warning: not shipped from {script.parent}: 2 " in told and "the first is 'checkpoints'" in told


def test_a_job_beside_another_is_told_or_refused(two: TwoNodes) -> None:
    """Reproduced before: two jobs shared the cores and GPUs of a node without a word."""
    wait = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists(os.environ['STOP']): time.sleep(0.02)\n"
    monkey = {"STOP": str(two.root / "stop")}
    first = two.start(
        workload=str(two.project(train=wait)), job_env=monkey, job_id="first", nodes="n2", inventory=two.inventory
    )
    said = two.homes["n2"] / "jobs" / "first" / "ranks" / "0" / "stdout"
    first.wait_until(lambda: said.exists() and "up" in said.read_text(), 60)
    quick = str(two.project(quick="pass").with_name("quick.py"))
    beside = plain(two.train(workload=quick, job_id="second").stdout)
    assert re.search(r"warning: job first of \S+ also runs on (n1 )?n2: both jobs share cores and GPUs", beside), beside
    refused = two.play(workload=quick, job_id="third", exclusive="true")
    assert refused.rc != 0 and refused.msg.startswith('exclusive: got "true"; job ')
    assert "runs on n" in refused.msg and "wait for its end, or " in refused.msg and "\n" not in refused.msg
    (two.root / "stop").touch()
    assert first.process.wait(60) == 0, first.log.read_text()


def test_what_is_shipped_and_what_comes_home(two: TwoNodes) -> None:
    """.torchfleetignore and collect on two nodes; a controller that was killed has what ranks wrote by clean.yml."""
    write = "import os, pathlib\npathlib.Path('own-' + os.environ['RANK']).write_text('weights')\n"
    script = two.project(train=write + "print(sorted(os.listdir('.')))\n")
    (script.parent / "big.ckpt").write_text("x")
    (script.parent / "kept.txt").write_text("x")
    (script.parent / ".torchfleetignore").write_text("*.ckpt\n")
    played = two.train(workload=str(script), job_id="one", collect="*")
    assert "left out: 1 by .torchfleetignore; 1 hidden" in plain(played.stdout)
    assert played.output(0).strip() == "['kept.txt', 'own-0', 'train.py']"
    listing = json.loads((two.runs / "one" / "artifacts.json").read_text())
    assert [(row["host"], row["path"]) for row in listing["files"]] == [("n1", "own-0"), ("n2", "own-1")]
    assert (two.runs / "one" / "artifacts" / "n2" / "own-1").read_text() == "weights"
    checked = two.play(check=True, workload=str(script))
    assert "left out: 1 by .torchfleetignore; 1 hidden" in plain(checked.stdout)

    for home in two.homes.values():
        (home / "jobs" / "one" / "fetched").unlink()  # the controller was killed before it had the files
    shutil.rmtree(two.runs / "one" / "artifacts")
    (two.runs / "one" / "fetched.json").unlink()
    cleaned = two.play("clean.yml")
    assert "collected: 2 files" in plain(cleaned.stdout), cleaned.stdout
    assert (two.runs / "one" / "artifacts" / "n2" / "own-1").read_text() == "weights"


def test_nothing_is_shipped_where_nodes_share_the_folder(two: TwoNodes) -> None:
    """As the homes of this machine do. Ranks work in the folder, and no copy is made."""
    script = two.project(train="import os\nprint(os.getcwd(), __file__)\n")
    played = two.train(workload=str(script), ship="false", show_ranks="all")
    assert [played.output(rank) for rank in (0, 1)] == [f"{script.parent} {script}\n"] * 2
    assert "shipped from" not in played.stdout
    assert not list(two.root.glob("home*/jobs/*/src"))


READS = """
import os
root = os.environ["TORCHFLEET_DATA"]
found = {}
for folder, _folders, names in os.walk(root):
    for name in names:
        path = os.path.join(folder, name)
        found[os.path.relpath(path, root)] = open(path).read()
print(root, sorted(found.items()), flush=True)
"""


def test_a_data_set_is_laid_on_both_nodes_once(two: TwoNodes) -> None:
    """Ranks find it, a second start sends nothing, --check changes nothing, and the oldest data set goes."""
    script = two.project(train=READS)
    data = two.root / "set"
    (data / "train").mkdir(parents=True)
    (data / "train" / "a.txt").write_text("one")
    (data / "labels.txt").write_text("two")
    given = {"workload": str(script), "data": str(data)}
    checked = plain(two.play(check=True, **given).stdout)
    assert f"data {data}: 2 files, 6 bytes, to be copied to n1 n2:" in checked and "TORCHFLEET_DATA=" in checked
    assert not list(two.root.glob("home*/data"))
    played = two.train(**given)
    for rank, name in enumerate(("n1", "n2")):
        root, found = played.output(rank).strip().split(" ", 1)
        assert Path(root).parent.parent == two.homes[name] / "data"
        assert found == "[('labels.txt', 'two'), ('train/a.txt', 'one')]"
    assert re.search(rf"data {data}: copied in \S+ s, 6 bytes were sent from here", plain(played.stdout))
    again = plain(two.train(**given, job_id="again").stdout)
    assert f"data {data}: 2 files, 6 bytes, is there:" in again and "were sent from here" not in again
    (data / "labels.txt").write_text("three")
    other = plain(two.train(**given, job_id="other", data_keep=1).stdout)
    assert "5 bytes were sent" not in other and "8 bytes were sent from here" in other
    assert [len(list((home / "data").glob("*/files"))) for home in two.homes.values()] == [1, 1]


def test_a_data_set_on_one_machine_is_used_where_it_is(fleet: Fleet) -> None:
    (fleet.root / "set").mkdir()
    (fleet.root / "set" / "labels.txt").write_text("two")
    script = fleet.root / "train.py"
    script.write_text(READS)
    given = {"workload": str(script), "np": 1, "data": str(fleet.root / "set")}
    played = fleet.play(**given)
    assert played.output(0) == f"{fleet.root}/set [('labels.txt', 'two')]\n"
    assert f"data {fleet.root}/set: used where it is (TORCHFLEET_DATA)" in plain(played.stdout)
    assert not (fleet.home / "data").exists()
    refused = fleet.play(**{**given, "data": str(fleet.root / "nothing")})
    assert refused.rc != 0 and refused.msg == (
        f'data: got "{fleet.root}/nothing"; cannot be read (No such file or directory): '
        "give a folder or a file on this machine"
    )
