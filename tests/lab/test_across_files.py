"""Files of a job across nodes: what ranks wrote comes home, from nodes that differ in user, home and port."""

from __future__ import annotations

import hashlib
import json

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
