"""Command lines of every launcher beside Open MPI's and torchrun's usual ones, and what a user may change of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest
from nodes import Facts, facts_of_a_node, launcher

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._command import LaunchCommand, words_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers import render
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError

Planner = Callable[..., LaunchPlan]
JOB = "/home/me/.torchfleet/jobs/job"
WRAPPER = f"/usr/bin/python3 -I -S /home/me/.torchfleet/lib/d/torchfleet.py rank {JOB}"
PROGRAMS = {
    "openmpi": launcher("/l/bin/mpirun", "5.0.11"),
    "mpich": launcher("/l/bin/mpiexec", "5.0.2"),
    "intelmpi": launcher("/l/bin/mpiexec.hydra", "2021.18.1"),
    "torchrun": launcher("/v/bin/python", "2.13.0"),
    "srun": launcher("/usr/bin/srun", "22.05.8"),
    "sbatch": launcher("/usr/bin/sbatch", "22.05.8"),
}
MPICH = f"-n 4 -f {JOB}/hostfile -genvnone -wdir /"
INTEL = f"-n 4 -machinefile {JOB}/hostfile -genvnone -wdir /"
SSH = f"-launcher ssh -launcher-exec {JOB}/bin/torchfleet-agent -iface eth0"
ASKED = f"--nodes=2 --ntasks=4 --nodelist={JOB}/hostfile --distribution=arbitrary"
SRUN = f"--cpu-bind=none --mpi=none --chdir=/ --input=none {JOB}/bin/torchfleet-rank"


def two(plan_two: Planner, name: str, n2: Facts | None = None, **wish: object) -> LaunchCommand:
    n2 = {"hostname": "second", **(n2 or {})}
    return render(plan_two(n2=n2, launcher_facts=PROGRAMS[name], launcher=name, **wish))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mpich", f"/l/bin/mpiexec {MPICH} -bind-to none {SSH} torchfleet-rank"),
        ("intelmpi", f"/l/bin/mpiexec.hydra {INTEL} -genv I_MPI_PIN 0 {SSH} -branch-count 2 torchfleet-rank"),
        ("srun", f"/usr/bin/srun --job-name=job {ASKED} {SRUN}"),
        ("sbatch", f"/usr/bin/sbatch --job-name=job --wait {JOB}/batch.sh"),
    ],
)
def test_command_on_two_nodes(plan_two: Planner, name: str, line: str) -> None:
    assert shlex.join(two(plan_two, name).argv) == line


def test_host_files(plan_two: Planner) -> None:
    for name in ("mpich", "intelmpi"):
        assert two(plan_two, name).files == {"hostfile": "10.1.0.11:2\n10.1.0.12:2\n"}
    for name in ("srun", "sbatch"):
        assert two(plan_two, name).files["hostfile"] == "node\nnode\nsecond\nsecond\n"


def test_hydra_on_this_machine(plan: Planner) -> None:
    for name, words in (("mpich", f"{MPICH} -bind-to none"), ("intelmpi", f"{INTEL} -genv I_MPI_PIN 0")):
        command = render(plan(facts=facts_of_a_node(launcher=PROGRAMS[name]), launcher=name))
        line = f"{PROGRAMS[name]['path']} {words} -launcher fork {WRAPPER}".replace("-n 4", "-n 2")
        assert shlex.join(command.argv) == line
        assert command.files["hostfile"] == "localhost:2\n"


def test_the_batch_file(plan_two: Planner) -> None:
    command = two(plan_two, "sbatch")
    directives = "".join(f"#SBATCH {word}\n" for word in ASKED.split())
    assert command.files["batch.sh"] == (
        f"#!/bin/sh\n{directives}#SBATCH --output={JOB}/batch.out\n#SBATCH --chdir=/\n"
        f"exec /usr/bin/srun {ASKED} {SRUN}\n"
    )
    assert command.cancel == ("/usr/bin/scancel", "--quiet", "--name=job")


def test_slurm_needs_one_path(plan_two: Planner) -> None:
    with pytest.raises(InputError, match='n2 /tf"; srun needs one path on all nodes'):
        two(plan_two, "srun", n2={"home": "/tf"})


def test_torchruns_agents_may_negotiate(plan_two: Planner) -> None:
    made = two(plan_two, "torchrun", rendezvous="c10d")
    words = "--rdzv-backend c10d --rdzv-endpoint 10.1.0.11:23456 --rdzv-id job"
    for number, options in enumerate(made.on.values()):
        line = shlex.join(words_of(options))
        assert f"{words} --rdzv-conf is_host={1 - number}" in line and "--node-rank" not in line


def test_c10d_numbers_the_nodes_by_their_addresses(plan_two: Planner) -> None:
    smaller = {"fabric": {"nic": "eth1", "address": "10.1.0.100", "network": "10.1.0.0/24", "rdma": []}}
    made = plan_two(n2=smaller, launcher_facts=PROGRAMS["torchrun"], launcher="torchrun", rendezvous="c10d")
    assert [node.name for node in made.nodes] == ["n2", "n1"]  # as text "10.1.0.100" is less than "10.1.0.11"
    assert made.master_addr == "10.1.0.100"


@pytest.mark.parametrize(
    ("name", "wish", "words"),
    [
        ("openmpi", {"map_by": "node"}, "--map-by node"),
        ("mpich", {"map_by": "node"}, "-ppn 1"),
        ("openmpi", {"bind_to": "socket"}, "--bind-to package"),
        ("mpich", {"bind_to": "numa"}, "-bind-to numa"),
        ("intelmpi", {"bind_to": "core"}, "-genv I_MPI_PIN_DOMAIN core"),
        ("srun", {"bind_to": "socket"}, "--cpu-bind=sockets"),
        ("openmpi", {"ports": "20000-20099"}, "--mca btl_tcp_port_min_v4 20000 --mca btl_tcp_port_range_v4 100"),
        ("openmpi", {"ports": "20000-20099"}, "--prtemca oob_tcp_dynamic_ipv4_ports 20000-20063"),
    ],
)
def test_options(plan_two: Planner, name: str, wish: dict[str, str], words: str) -> None:
    assert words in shlex.join(two(plan_two, name, **wish).argv)


def test_ports_of_hydra_and_of_open_mpi_4(plan_two: Planner) -> None:
    for name, variable in (("mpich", "MPIEXEC_PORT_RANGE"), ("intelmpi", "I_MPI_PORT_RANGE")):
        setting = two(plan_two, name, ports="20000-20099").environment[0]
        assert (setting.name, setting.value) == (variable, "20000:20099")
    old = render(plan_two(launcher_facts=launcher("/l/mpirun", "4.1.4"), ports="20000-20099", bind_to="socket"))
    assert "--mca oob_tcp_dynamic_ipv4_ports 20000-20063" in shlex.join(old.argv)
    assert "--bind-to socket" in shlex.join(old.argv)


@pytest.mark.parametrize("wish", [{"map_by": "node"}, {"bind_to": "core"}])
def test_what_torchrun_does_not_know_is_refused(plan_two: Planner, wish: dict[str, str]) -> None:
    with pytest.raises(InputError, match="torchrun knows only"):
        two(plan_two, "torchrun", **wish)


def test_nodes_in_turn(plan_two: Planner) -> None:
    intel = two(plan_two, "intelmpi", map_by="node").files["hostfile"]
    assert intel == "10.1.0.11:1\n10.1.0.12:1\n" * 2
    assert two(plan_two, "srun", map_by="node").files["hostfile"] == "node\nsecond\nnode\nsecond\n"


def test_own_arguments_come_before_the_program(plan_two: Planner) -> None:
    for name in PROGRAMS:
        made = two(plan_two, name, launcher_args="--own 'a b'")
        for options in made.on.values():
            assert options[-2].words == ("--own", "a b") and options[-2].source == "user"
        assert made.warnings == ()


@pytest.mark.parametrize(
    ("name", "words", "gone"),
    [
        ("openmpi", "-bind-to core", "--bind-to none"),
        ("openmpi", "--mca btl_tcp_if_include eth9", "btl_tcp_if_include 10.1.0.0/24"),
        ("openmpi", "--mca oob_tcp_if_include eth9", "prte_if_include"),
        ("mpich", "-iface eth9", "-iface eth0"),
        ("intelmpi", "-genv I_MPI_PIN 1", "I_MPI_PIN 0"),
        ("srun", "--mpi=pmi2", "--mpi=none"),
    ],
)
def test_own_arguments_win_over_what_is_free(plan_two: Planner, name: str, words: str, gone: str) -> None:
    made = two(plan_two, name, launcher_args=words)
    assert gone not in shlex.join(made.argv) and words in shlex.join(made.argv)
    assert "launcher_args replaces" in made.warnings[0] and gone in made.warnings[0]


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("openmpi", "-np 9", "the plan places ranks: -e np="),
        ("openmpi", "--hostfile x", "this is the plan's own: --hostfile"),
        ("openmpi", "--map-by core", "this is the plan's own: --map-by slot"),
        ("openmpi", "--mca plm_rsh_agent ssh", "this is the plan's own"),
        ("mpich", "-hosts a", "the plan places ranks: -e nodes="),
        ("intelmpi", "-genvnone", "this is the plan's own"),
        ("torchrun", "--nproc-per-node=9", "the plan places ranks: -e ranks_per_node="),
        ("srun", "-N 9", "the plan places ranks: -e nodes="),
        ("sbatch", "--wait", "this is the plan's own"),
    ],
)
def test_own_arguments_do_not_place_ranks(plan_two: Planner, name: str, words: str, told: str) -> None:
    with pytest.raises(InputError, match="launcher_args") as caught:
        two(plan_two, name, launcher_args=words)
    assert told in str(caught.value)


def test_what_the_launcher_does_not_take_is_refused(plan_two: Planner) -> None:
    refused = {**PROGRAMS["mpich"], "refused": "-x y (unrecognized argument x)"}
    with pytest.raises(InputError, match=r"launcher_args.*unrecognized argument x.*mpich 5\.0\.2 does not take"):
        plan_two(launcher_facts=refused, launcher="mpich")


def test_everything_is_explained(plan_two: Planner) -> None:
    for name, program in PROGRAMS.items():
        made = plan_two(launcher_facts=program, launcher=name, ports="20000-20099")
        command = render(made)
        text = "\n".join(explain(made, command))
        for options in command.on.values():
            for option in options:
                assert f"# {option.reason} [{option.source}]" in text
        for file in command.files.values():
            assert all("  " + line in text for line in file.splitlines())


def test_mpich_does_not_look_at_slots_in_turn(plan_two: Planner) -> None:
    with pytest.raises(InputError, match="MPICH takes nodes in turn whatever their slots"):
        two(plan_two, "mpich", map_by="node", slots={"n1": 1}, np=3)
