"""Files of a job across nodes that differ in user, home and port: what ranks wrote comes home, data sets are laid."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver import SCRIPTS
from tests.lab.cluster import Cluster, Job


def test_what_ranks_wrote_comes_home_from_each_node(cluster: Cluster) -> None:
    """Also after a failure. What was shipped does not come back; links are not followed."""
    job = cluster.play(workload=str(SCRIPTS / "writes.py"), workload_args=["3"], collect=["out", "*.txt", "no*"])
    assert job.process.returncode != 0 and job.result["state"] == "failed", job.output
    listing = json.loads((job.run_dir / "artifacts.json").read_text())
    hosts = {row["rank"]: row["host"] for row in job.result["ranks"]}
    models = {(row["host"], row["path"]) for row in listing["files"] if row["path"].endswith(".pt")}
    # A rank may be ended before it has written: that of rank 0, which fails, is there.
    assert (hosts[0], "out/model-0.pt") in models
    assert models <= {(host, f"out/model-{rank}.pt") for rank, host in hosts.items()}
    for row in listing["files"]:
        content = (job.run_dir / "artifacts" / row["host"] / row["path"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (row["bytes"], row["sha256"])
    assert not any(row["path"].endswith(".py") for row in listing["files"])
    assert listing["left_out"] == {hosts[0]: {"link": 1}} and listing["unmatched"] == ["no*"]
    whole = cluster.train(workload=str(SCRIPTS / "writes.py"), collect=["out/*.pt"])
    listing = json.loads((whole.run_dir / "artifacts.json").read_text())
    assert {(row["host"], row["path"]) for row in listing["files"]} == {
        (row["host"], f"out/model-{row['rank']}.pt") for row in whole.result["ranks"]
    }


def test_nothing_is_shipped_where_nodes_share_a_file_system(cluster: Cluster, tmp_path: Path) -> None:
    """Two nodes have the script at its path, as if they shared it; with a third that has another file it is refused."""
    script, name = tmp_path / "main.py", str(tmp_path / "main.py")
    script.write_text("import os\nprint(os.getcwd(), __file__)\n")
    for node, text in (("n1", script.read_text()), ("n2", script.read_text()), ("n3", "another file")):
        cluster.lab.root(node, "mkdir", "-p", str(tmp_path))
        cluster.lab.root(node, "sh", "-c", 'printf %s "$1" > "$2"', "sh", text, name)
    refused = cluster.play(workload=name, ship=False)
    assert refused.process.returncode != 0
    assert f'workload: got "{name}"; it is not on n4; it is another file on n3: with ship=false' in refused.output
    job = cluster.train(workload=name, ship=False, nodes="n1,n2")
    assert [job.stdout(rank) for rank in range(4)] == [f"{tmp_path} {name}\n"] * 4


READS = """
import hashlib, os, sys
root = os.environ["TORCHFLEET_DATA"]
for name in sorted(os.listdir(root)):
    print(name, hashlib.sha256(open(os.path.join(root, name), "rb").read()).hexdigest(), root, flush=True)
"""
MIB = 1 << 20


def reading(folder: Path) -> dict[str, str]:
    """Return the options of a job that reads the data set in a folder."""
    (folder / "program").mkdir()
    (folder / "program" / "reads.py").write_text(READS)
    return {"workload": str(folder / "program" / "reads.py"), "data": str(folder / "set")}


def counted(cluster: Cluster, node: str, direction: str) -> int:
    """Return the bytes that came to a node by any NIC (rx), or left it (tx)."""
    counters = f"cat /sys/class/net/[!l]*/statistics/{direction}_bytes"
    return sum(map(int, cluster.lab.root(node, "sh", "-c", counters).split()))


def read_by_all(job: Job, files: dict[str, bytes]) -> None:
    """Assert that each rank read these files."""
    expected = [f"{name} {hashlib.sha256(data).hexdigest()}" for name, data in sorted(files.items())]
    for row in job.result["ranks"]:
        assert [line.rpartition(" ")[0] for line in job.stdout(row["rank"]).splitlines()] == expected


def write_files(folder: Path, **sizes: int) -> dict[str, bytes]:
    """Write random files into a folder; return their content by name."""
    folder.mkdir(exist_ok=True)
    files = {name: os.urandom(size) for name, size in sizes.items()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files


def laid(cluster: Cluster, given: dict[str, str], files: dict[str, bytes]) -> dict[str, float]:
    """Train with a data set that is new; return the bytes that each node sent, in sizes of it.

    All of it came to each node, and once: to the head from the controller.
    """
    size = sum(map(len, files.values()))
    before = {node: (counted(cluster, node, "rx"), counted(cluster, node, "tx")) for node in cluster.lab.hosts()}
    job = cluster.train(**given)
    read_by_all(job, files)
    assert f"{size:,} bytes were sent from here" in job.output
    came = {node: (counted(cluster, node, "rx") - rx) / size for node, (rx, _tx) in before.items()}
    assert all(1 < share < 1.3 for share in came.values()), came
    return {node: (counted(cluster, node, "tx") - tx) / size for node, (_rx, tx) in before.items()}


@pytest.fixture
def any_to_any(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose nodes log in to each other until the test is over."""
    for wanted in (True, False):
        done = cluster.play("setup.yml", "--tags", "ssh_mesh", ssh_mesh_any_to_any=wanted)
        assert done.process.returncode == 0, done.output
        if wanted:
            yield cluster


def test_a_data_set_goes_on_from_node_to_node(any_to_any: Cluster, tmp_path: Path) -> None:
    files = write_files(tmp_path / "set", a=24 * MIB)
    left = laid(any_to_any, reading(tmp_path), files)
    assert left["n1"] < 2.3 and left["n2"] > 1, left  # n2 sent it on to n4


def test_a_data_set_is_laid_on_all_nodes_once(cluster: Cluster, tmp_path: Path) -> None:
    """train.yml -e data=: over the controller's link once; a second start sends nothing; a damaged file is mended."""
    given, files = reading(tmp_path), write_files(tmp_path / "set", a=24 * MIB, b=17, c=0)
    left = laid(cluster, given, files)
    assert left["n1"] > 3 and left["n2"] < 0.3, left  # only the head has a key

    again = cluster.train(**given)
    read_by_all(again, files)
    assert "is there: " in again.output and "were sent from here" not in again.output

    path = again.stdout(0).split()[2] + "/b"
    cluster.lab.root("n2", "sh", "-c", f"chmod u+w {path}; printf damaged > {path}")
    mended = cluster.train(**given)
    read_by_all(mended, files)
    assert "to be copied to n2: " in mended.output and "copied in" in mended.output
    assert ", 0 bytes were sent from here" in mended.output  # the head has it


def test_a_data_set_that_was_interrupted_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    given, files = reading(tmp_path), write_files(tmp_path / "set", a=3 * 64 * MIB, b=17)
    arrived = "find .torchfleet/data -name a -size +65M | grep ."
    job = cluster.start(**given)
    job.wait_until(lambda: cluster.lab.ssh("n1", arrived, check=False).returncode == 0, 120)
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(60) != 0 and not job.run_dir.exists()
    rest = cluster.train(**given)
    read_by_all(rest, files)
    sent = re.search(r"copied in \S+ s, ([\d,]+) bytes were sent from here", rest.output)
    assert sent and int(sent.group(1).replace(",", "")) <= 2 * 64 * MIB + 17, rest.output


def test_a_node_without_room_for_a_data_set_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Before anything is sent: n3 has no part of it."""
    files = write_files(tmp_path, a=2 * MIB)
    place = "/srv/torchfleet/data"
    cluster.lab.root("n4", "sh", "-c", f"mkdir -p {place} && mount -t tmpfs -o size=1m tmpfs {place}")
    try:
        refused = cluster.play(data=str(tmp_path / "a"))
    finally:
        cluster.lab.root("n4", "sh", "-c", f"umount {place}; rmdir --ignore-fail-on-non-empty {place}")
    assert refused.process.returncode != 0
    said = (
        f'data: got "{tmp_path}/a"; n4 has 1,048,576 bytes free in /srv/torchfleet, and {len(files["a"]):,} are needed'
    )
    assert said in refused.output
    assert cluster.lab.ssh("n3", "find .torchfleet/data -name a -size 2M | grep .", check=False).returncode
