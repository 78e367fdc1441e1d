"""Files of a job across nodes: what ranks wrote comes home, from nodes that differ in user, home and port."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.driver import SCRIPTS
from tests.lab.cluster import Cluster


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
