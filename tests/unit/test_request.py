"""What the user may ask for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.launcher_options import (
    LauncherOptions,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request, parse_request


def test_nothing_given_is_a_whole_request() -> None:
    request = parse_request({})
    assert (request.workload, request.launcher, request.backend, request.np) == ("mnist", "openmpi", None, None)
    assert (request.show_ranks, request.runs_dir, request.job_timeout) == ((0,), "runs", None)


# Every option that depends on no other: what is typed, and what the request then has.
ALONE: dict[str, tuple[object, object]] = {
    "workload_args": ("--a 1", ("--a", "1")),
    "backend": ("gloo", "gloo"),
    "launcher": ("mpich", "mpich"),
    "np": ("3", 3),
    "ranks_per_node": ("3", 3),
    "nodes": ("n1,n2", ("n1", "n2")),
    "job_timeout": ("90", 90.0),
    "job_env": ({"A": 1}, {"A": "1"}),
    "secret_names": ("TOKEN", ("TOKEN",)),
    "runs_dir": ("/r", "/r"),
    "show_ranks": ("1", (1,)),
    "grace": ("7", 7.0),
    "lease": ("70", 70.0),
    "result_query": ("state", "state"),
    "fetch_limit": ("2K", 2048),
    "exclusive": ("true", True),
    "sample": ("false", False),
    "export": ("prometheus", ("prometheus",)),
    "detach": ("true", True),
    "checkpoint_dir": ("/c", "/c"),
    "requirements": ("none", "none"),
    "program_index_url": ("https://i", "https://i"),
    "program_wheelhouse": ("/w", "/w"),
    "program_wheelhouse_fill": ("true", True),
    "program_keep": ("0", 0),
    "sha256": ("00", "00"),
    "ship": ("false", False),
    "data": ("/d", "/d"),
    "data_keep": ("0", 0),
    "collect": ("*.pt", ("*.pt",)),
    "collect_files": ("5", 5),
    "collect_limit": ("2K", 2048),
    "hang_look": ("0", 0.0),
    "rdma": ("false", False),
}
TOGETHER = {"workload", "module", "vaulted", "options", "master_port", "job_id", "max_restarts", "restart_on", "notice"}
TOGETHER |= {"min_nodes", "hang_end", "queue", "queue_timeout", "collect_every", "python", "profile", "container"}


@pytest.mark.parametrize("name", ALONE)
def test_an_option_is_read_by_its_name(name: str) -> None:
    typed, value = ALONE[name]
    assert parse_request({name: typed}) == dataclasses.replace(parse_request({}), **{name: value}) != parse_request({})


def test_those_are_all_options() -> None:
    assert {field.name for field in dataclasses.fields(Request)} == ALONE.keys() | TOGETHER


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--a 1", ("--a", "1")),
        ("--name 'two words' --x=\"q\"", ("--name", "two words", "--x=q")),
        (["--a", 1, 2.5, True], ("--a", "1", "2.5", "true")),
        ("", ()),
        ([], ()),
    ],
)
def test_workload_args(given: Any, words: tuple[str, ...]) -> None:
    assert parse_request({"workload_args": given}).workload_args == words


@pytest.mark.parametrize(("given", "number"), [(2, 2), ("2", 2), (" 16 ", 16)])
def test_np_is_a_number_or_its_text(given: Any, number: int) -> None:
    assert parse_request({"np": given}).np == number


@pytest.mark.parametrize(
    ("given", "ranks"),
    [("all", None), ([0, 1], (0, 1)), ("0,3", (0, 3)), ("[2, 1]", (1, 2)), (1, (1,)), ([], ()), ("2", (2,))],
)
def test_show_ranks(given: Any, ranks: tuple[int, ...] | None) -> None:
    assert parse_request({"show_ranks": given}).show_ranks == ranks


def test_environment_values_become_texts() -> None:
    given = {"A": 1, "B": 2.5, "C": True, "D": "x\n$(y)"}
    assert parse_request({"job_env": given}).job_env == {"A": "1", "B": "2.5", "C": "true", "D": "x\n$(y)"}
    assert parse_request({"job_env": '{"A": "1"}'}).job_env == {"A": "1"}


SECONDS = [
    ("lease", "abc", "from 5 to 3600, or leave it out: -e lease=60"),
    ("lease", "3", "from 5 to 3600, or leave it out: -e lease=60"),
    ("grace", "-1", "greater than 0, or leave it out: -e grace=60"),
    ("job_timeout", "2h", "greater than 0, or leave it out: -e job_timeout=3600"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), SECONDS)
def test_seconds_that_cannot_be_name_the_bounds_of_their_own(name: str, value: str, allowed: str) -> None:
    """Reproduced before: lease=abc was told that any number greater than 0 would do."""
    with pytest.raises(InputError) as caught:
        parse_request({name: value})
    assert str(caught.value) == f'{name}: got "{value}"; give seconds {allowed}'


MISTAKES = [
    *[("np", value) for value in (0, -1, "0", "two", 2.5, True, [2], "1e3", "9" * 30)],
    *[("job_timeout", value) for value in (0, -1, "soon", "nan", "inf", False, [1])],
    *[("master_port", value) for value in (0, 80, 65536, "http")],
    *[("exclusive", value) for value in ("", "maybe", 1, [True])],
    *[("job_id", value) for value in ("", ".hidden", "a/b", "a..b", "a b", "a\n", "ä", "x" * 101, "-o", "latest")],
    *[
        ("job_env", value)
        for value in ("A=1", ["A"], {"A B": 1}, {"": 1}, {"1": 1}, {"A=B": 1}, {"A-B": 1}, {"A\n": 1})
    ],
    *[("job_env", {"A": value}) for value in (None, [1], {"b": 1}, "nul\0")],
    *[
        ("job_env", {name: 1})
        for name in ("RANK", "MASTER_PORT", "TORCHFLEET_BACKEND", "OMPI_COMM_WORLD_RANK", "TORCHFLEET_JOB_ID")
    ],
    *[("workload_args", value) for value in ("'open", {"a": 1}, [["nested"]], ["nul\0"], 5)],
    *[("show_ranks", value) for value in ("none", [-1], [True], {"a": 1}, 1.5)],
    *[("backend", value) for value in ("", "tcp", "rccl", 1)],
    *[("launcher", value) for value in ("", "mpirun", "slurm", "hydra")],
    *[("workload", value) for value in ("", " ", 3, ["a"])],
    *[("ports", value) for value in ("", "20000", "20000-20000", "80-90", "30000-20000", 20000, "1-2")],
    *[("map_by", value) for value in ("", "core", 1)],
    *[("bind_to", value) for value in ("", "hwthread")],
    *[("rendezvous", value) for value in ("", "etcd")],
    *[("launcher_args", value) for value in ("'open", {"a": 1})],
    *[("runs_dir", value) for value in ("", "nul\0", 3)],
    *[("result_query", value) for value in ("ranks[?", "", 3)],
]


@pytest.mark.parametrize(("name", "value"), MISTAKES)
def test_mistakes_are_named(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        parse_request({name: value})
    text = str(caught.value)
    assert text.startswith(name)
    assert "\n" not in text
    assert len(text) < 400


def test_the_rendezvous_is_within_the_ports() -> None:
    given = {"ports": "20000-20999", "master_port": "20999"}
    assert parse_request(given).master_port == 20999
    with pytest.raises(InputError, match="master_port: got 29400; it is not in ports=20000-20999: choose one of them"):
        parse_request({**given, "master_port": 29400})


def test_true_and_false_as_people_type_them() -> None:
    for value in (True, "true", "True", "yes"):
        assert parse_request({"exclusive": value}).exclusive
    for value in (False, "false", "no"):
        assert not parse_request({"exclusive": value}).exclusive
    assert not parse_request({}).exclusive


def test_options_of_the_launcher() -> None:
    given = {"map_by": "node", "bind_to": "core", "ports": "20000-20999", "launcher_args": "--mca a 'b c'"}
    options = parse_request({**given, "rendezvous": "c10d"}).options
    assert options == LauncherOptions("node", "core", (20000, 20999), "c10d", ("--mca", "a", "b c"))
    assert parse_request({}).options == LauncherOptions("slot", "none", None, "static", ())
    assert (options.source("map_by"), LauncherOptions().source("map_by")) == ("user", "default")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"queue_timeout": 60}, "queue_timeout: got 60; it is for jobs that wait: add -e queue=true"),
        ({"queue": True, "queue_timeout": 0}, "queue_timeout: got 0; give seconds greater than 0"),
        ({"queue": "maybe"}, 'queue: got "maybe"'),
        ({"queue": True, "launcher": "sbatch"}, "sbatch puts the job into the queue of Slurm: leave out queue"),
    ],
)
def test_what_cannot_wait_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_request(given)
    assert told in str(caught.value)


def test_a_job_waits_if_it_is_asked_to() -> None:
    assert (parse_request({}).queue, parse_request({}).queue_timeout) == (False, None)
    found = parse_request({"queue": "true", "queue_timeout": "90", "detach": True})
    assert (found.queue, found.queue_timeout) == (True, 90.0)
