"""Programs that nobody here wrote, unchanged, each in a fresh environment that train.yml makes: `make compat`.

On two nodes with two ranks each. Their packages, with exact versions, come from the index that pip is configured with.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_variables import VARIABLES
from tests.compat.rows import FRAMEWORKS, PLACE, ROWS, Framework, Outcome, Row, record
from tests.driver import REPO
from tests.lab.cluster import Cluster, Job
from tests.lab.lab import Lab

NODES, RANKS = 2, 2  # and so many ranks on each
HOME = "/home/fleet/.torchfleet"
SECONDS = 900


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes as Debian installs them: the name of each leads to 127.0.1.1. With a compiler, for DeepSpeed."""
    root = tmp_path_factory.mktemp("compat")
    options = {"nodes": NODES, "nics": 2, "install": True, "image": "bare", "packages": ["g++", "libpython3-dev"]}
    lab = Lab(f"f{os.getpid()}", root / "inventory", **options)
    try:
        lab.up()
        for node in lab.hosts():
            hosts = f"127.0.1.1 {node}\n{lab.read(node, '/etc/hosts')}"
            lab.root(node, "sh", "-c", 'printf %s "$1" >/etc/hosts', "sh", hosts)
        made = Cluster(lab, root)
        done = made.play("setup.yml", "--skip-tags", "verify", mpis=["openmpi", "mpich"])
        assert done.process.returncode == 0, done.log.read_text()
        yield made
    finally:
        lab.down()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheels that the index lacks, as docs/frameworks.md says how to build them."""
    place = tmp_path_factory.mktemp("wheels")
    names = [f"{each.package}=={each.version}" for each in FRAMEWORKS.values() if not each.wheel]
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), *names]
    subprocess.run(argv, env={**os.environ, "DS_BUILD_OPS": "0"}, check=True)
    return place


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Framework], Path]:
    """Return a function that returns the unpacked source package of a framework: tests are in no wheel."""
    place = tmp_path_factory.mktemp("sources")

    def source_of(framework: Framework) -> Path:
        named = f"{framework.package}-{framework.version}"
        if not (place / named).exists():
            words = ["--quiet", "--no-deps", "--no-binary", framework.package, "--dest", str(place)]
            wanted = f"{framework.package}=={framework.version}"
            subprocess.run([sys.executable, "-m", "pip", "download", *words, wanted], check=True)
            with tarfile.open(place / f"{named}.tar.gz") as archive:
                archive.extractall(place, filter="data")
        return place / named

    return source_of


def options_for(framework: Framework, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what train.yml is told for any program of a framework."""
    given: dict[str, Any] = {"backend": "gloo", "job_env": dict(framework.env)}
    if framework.requirements:
        given["requirements"] = str(framework.requirements)
    if not framework.wheel:
        given |= {"program_wheelhouse": str(request.getfixturevalue("wheels")), "program_wheelhouse_fill": True}
    return given


def trained(pair: Cluster, count: int, **given: Any) -> Job:
    """Run a job that must succeed, on so many nodes."""
    names = [f"n{number}" for number in range(1, count + 1)]
    job = pair.train(nodes=",".join(names), **given)
    assert [row["host"] for row in job.result["ranks"]] == [name for name in names for _rank in range(RANKS)]
    return job


CASES = [(row, launcher) for row in ROWS for launcher in FRAMEWORKS[row.framework].launchers]


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(("row", "launcher"), CASES, ids=[f"{row.name}-{launcher}" for row, launcher in CASES])
def test_it_runs_unchanged(pair: Cluster, request: pytest.FixtureRequest, row: Row, launcher: str) -> None:
    """And the framework itself takes each rank for what it is, among all of them."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    record(row, launcher, Outcome(False, day))
    nodes = 1 if row.why_one else NODES
    framework = FRAMEWORKS[row.framework]
    own = str(REPO / "torch_backends" / "tests")
    place = {"here": str(PLACE), "own": own, "there": f"/var/tmp/{pair.lab.name}-{row.name}-{launcher}"}
    if any("{source}" in text for text in row.start.values()):
        place["source"] = str(request.getfixturevalue("sources")(framework))
    start = {name: text.format(**place) for name, text in row.start.items()}
    job = trained(pair, nodes, launcher=launcher, **start, **options_for(framework, request))
    said = [(job.run_dir / "ranks" / str(rank) / row.stream).read_text() for rank in range(nodes * RANKS)]
    for rank, text in enumerate(said):
        where = {"rank": rank, "size": nodes * RANKS, "local": rank % RANKS}
        for pattern in row.shows if rank else (*row.shows, *row.first):
            assert re.search(pattern.format(**where), text, re.MULTILINE), (rank, pattern, text)
    if row.same:
        found = [re.search(row.same, text, re.MULTILINE) for text in said]
        assert len({match and match[1] for match in found}) == 1 and found[0], said
    record(row, launcher, Outcome(True, day, job.result["launcher"]["version"], round(job.result["seconds"], 1)))


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("name", "launcher"),
    [(name, launcher) for name, row in FRAMEWORKS.items() for launcher in row.launchers],
)
def test_it_finds_its_place_by_our_variables(
    pair: Cluster, request: pytest.FixtureRequest, name: str, launcher: str
) -> None:
    """By its own code, which looks at the variables that the documentation says, and no others of ours."""
    framework = FRAMEWORKS[name]
    words = [name, str(NODES), str(RANKS), *VARIABLES]
    script = str(PLACE / "detection" / "detect.py")
    given = {"requirements": "none", **options_for(framework, request)}
    job = trained(pair, NODES, launcher=launcher, workload=script, workload_args=words, **given)
    for rank in range(NODES * RANKS):
        told = json.loads(job.stdout(rank).splitlines()[-1])
        rank_seen, size, local_rank = told["found"]
        assert (rank_seen, size) == (rank, NODES * RANKS)
        assert local_rank in (rank % RANKS, None)
        assert set(framework.reads) == set(told["read"])


@pytest.mark.parametrize("name", [name for name, row in FRAMEWORKS.items() if row.requirements])
def test_its_environment_is_the_pinned_one_on_both_nodes(pair: Cluster, name: str) -> None:
    framework = FRAMEWORKS[name]
    about = f"{framework.package.replace('-', '_')}-{framework.version}.dist-info"
    for node in pair.lab.hosts():
        found = pair.lab.root(node, "sh", "-c", f"ls -d {HOME}/programs/*/lib/python3*/site-packages/{about}")
        assert found.splitlines()
