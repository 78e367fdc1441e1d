"""What a rank knows of itself, and what its program is told."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank import (
    identify,
    misplaced,
    rank_environment,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_variables import VARIABLES

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPENMPI = {
    f"OMPI_COMM_WORLD_{name}": value
    for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "1210", strict=True)
}


def test_identity_of_a_rank() -> None:
    both = {**TORCHRUN, **OPENMPI}  # one launcher under another, or a shell with leftovers: the outer names are stale
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    assert identify(started_by("torchrun"), both) == (3, 4, 1, 2)
    assert identify(started_by("openmpi"), both) == (1, 2, 1, 0)
    assert identify(started_by("srun"), {**both, **slurm}) == (1, 2, 0, 1)
    with pytest.raises(LookupError, match="OMPI_COMM_WORLD_RANK"):
        identify(started_by("openmpi"), TORCHRUN)


def started_by(launcher: str) -> dict[str, Any]:
    placement = [{"rank": rank, "local_rank": 0, "host": host} for rank, host in enumerate("ab")]
    return {"launcher": {"name": launcher}, "host": "b", "ranks": [1], "placement": placement}


def test_a_misplaced_rank_is_noticed() -> None:
    order = {
        "world_size": 2,
        "host": "a",
        "placement": [{"rank": rank, "local_rank": rank, "host": "a"} for rank in (0, 1)],
    }
    assert misplaced(order, (1, 2, 1, 2)) == ""
    assert "world size is 1, planned 2" in misplaced(order, (0, 1, 0, 1))  # Open MPI 5 and ORTE names
    assert "planned" in misplaced(order, (1, 2, 0, 1))
    assert "planned" in misplaced({**order, "host": "b"}, (1, 2, 1, 2))


def test_rank_environment_serves_both_kinds_of_script() -> None:
    order = {
        **started_by("openmpi"),
        "job_id": "one",
        "environment": {"A": "b"},
        "master_addr": "10.0.0.1",
        "master_port": 1234,
        "restarts": 0,
        "tmpdir": "",
        "path_first": "/v/bin",
    }
    told = rank_environment(order, (3, 4, 1, 2), {"TMPDIR": "/launcher's", "PATH": "/bin", "RANK": "9"})
    assert {name: told[name] for name in TORCHRUN} == TORCHRUN
    assert told["OMPI_COMM_WORLD_RANK"] == "3" and told["OMPI_COMM_WORLD_LOCAL_SIZE"] == "2"
    assert (told["MASTER_ADDR"], told["MASTER_PORT"], told["A"]) == ("10.0.0.1", "1234", "b")
    assert told["PATH"] == "/v/bin:/bin" and "TMPDIR" not in told
    assert (told["GROUP_RANK"], told["NODE_RANK"], told["GROUP_WORLD_SIZE"], told["ROLE_RANK"]) == ("1", "1", "2", "3")
    assert told["TORCHELASTIC_RUN_ID"] == "one" and "TORCHELASTIC_USE_AGENT_STORE" not in told  # there is no agent
    assert rank_environment({**order, "path_first": ""}, (3, 4, 1, 2), {"PATH": "/bin"})["PATH"] == "/bin"
    assert set(VARIABLES) <= set(told)
    agent = {"GROUP_RANK": "0", "ROLE_RANK": "2", "TORCHELASTIC_RUN_ID": "agent's"}  # it may count nodes otherwise
    told = rank_environment({**order, "launcher": {"name": "torchrun"}}, (3, 4, 1, 2), agent)
    assert {name: told[name] for name in agent} == agent and told["NODE_RANK"] == "0"
    again = {**order, "launcher": {"name": "torchrun"}, "restarts": 2}  # new agents, which count from 0
    told = rank_environment(again, (3, 4, 1, 2), {**agent, "TORCHELASTIC_RESTART_COUNT": "0"})
    assert told["TORCHELASTIC_RESTART_COUNT"] == "2" and told["TORCHELASTIC_RUN_ID"] == "agent's"
    own = {**order, "tmpdir": "/node's", "environment": {"TMPDIR": "/mine", "PATH": "/only"}}
    told = rank_environment(own, (0, 1, 0, 1), {})
    assert (told["TMPDIR"], told["PATH"]) == ("/mine", "/only")
