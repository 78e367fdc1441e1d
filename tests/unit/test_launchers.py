"""Command lines of every launcher, and what a user may change of them."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand, words_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import Facts, facts_of_a_node, launcher

Planner = Callable[..., LaunchPlan]
PROGRAMS = {
    "openmpi": launcher("/l/bin/mpirun", "5.0.11"),
    "mpich": launcher("/l/bin/mpiexec", "5.0.2"),
    "intelmpi": launcher("/l/bin/mpiexec.hydra", "2021.18.1"),
    "torchrun": launcher("/v/bin/python", "2.13.0"),
    "srun": launcher("/usr/bin/srun", "22.05.8"),
    "sbatch": launcher("/usr/bin/sbatch", "22.05.8"),
}


def two(plan_two: Planner, name: str, n2: Facts | None = None, **options: Any) -> LaunchCommand:
    n2 = {"hostname": "second", **(n2 or {})}
    return render(plan_two(n2=n2, launcher_facts=PROGRAMS[name], launcher=name, **options))


def test_a_job_is_taken_back_from_slurm(plan_two: Planner) -> None:
    for name in ("srun", "sbatch"):
        find, cancel = two(plan_two, name).cancel
        assert find[0] == "/usr/bin/squeue" and {"--name=torchfleet-job-0123456789ab", "--user=1000"} <= {*find}
        assert cancel == ("/usr/bin/scancel", "--quiet")


def test_slurm_needs_one_path(plan_two: Planner) -> None:
    with pytest.raises(InputError, match='n2 /tf"; srun needs the same on all nodes: set it to one path'):
        two(plan_two, "srun", n2={"home": "/tf"})


@pytest.mark.parametrize(
    ("name", "there", "lack"),
    [
        ("srun", {"slurmd": "/usr/sbin/slurmd", "version": "22.05.3", "srun": ""}, ""),
        ("srun", {"slurmd": "/usr/sbin/slurmd", "version": "23.02.1", "srun": ""}, ""),  # a newer daemon takes it
        ("srun", {"slurmd": "/opt/sbin/slurmd", "version": "", "srun": ""}, ""),
        ("srun", {"slurmd": "/s/slurmd", "version": f"{'9' * 5000}.1", "srun": ""}, ""),  # int() refuses so many digits
        ("srun", {"slurmd": "", "version": "", "srun": "/usr/bin/srun"}, "no slurmd"),
        (
            "srun",
            {"slurmd": "/opt/sbin/slurmd", "version": "21.08.8", "srun": ""},
            "/opt/sbin/slurmd 21.08.8, which is older",
        ),
        ("sbatch", {"slurmd": "/s/slurmd", "version": "22.05.8", "srun": "/usr/bin/srun"}, ""),
        (
            "sbatch",
            {"slurmd": "/s/slurmd", "version": "22.05.8", "srun": ""},
            "no srun instead of /usr/bin/srun, which the batch file starts",
        ),
    ],
)
def test_a_worker_that_cannot_start_what_slurm_asks_for_is_named(
    plan_two: Planner, name: str, there: Facts, lack: str
) -> None:
    if not lack:
        two(plan_two, name, n2={"slurm": there})
        return
    with pytest.raises(InputError) as caught:
        two(plan_two, name, n2={"slurm": there})
    assert f"/usr/bin/{name} 22.05.8 on n1, and on n2: {lack}; install Slurm's packages there" in str(caught.value)


def test_slurm_takes_no_more_ranks_than_cores(plan_two: Planner) -> None:
    with pytest.raises(InputError, match="n2 has 2 ranks and 1 of them"):
        two(plan_two, "sbatch", n2={"cores": 1})


def test_a_batch_file_brings_its_list_of_nodes(plan_two: Planner, tmp_path: Path) -> None:
    """It starts on a worker where the head runs no ranks, and hung there: only the head had the list."""
    head = facts_of_a_node(launcher=PROGRAMS["sbatch"])
    plan = plan_two(n2={"hostname": "second"}, launcher="sbatch", launcher_facts=PROGRAMS["sbatch"])
    places = tuple(place for place in plan.placement if place.host == "n2")
    made = render(dataclasses.replace(plan, nodes=plan.nodes[1:], placement=places))
    assert (list(made.on), made.files["hostfile"]) == (["n1"], "second\nsecond\n")
    jobs, _exec, words = made.files["batch.sh"].partition("exec ")
    here = jobs.replace(f"{head['home']}/jobs/job", str(tmp_path))
    listed = re.search(r"--nodelist=(\S+)", words)
    assert listed and listed.group(1) == f"{head['home']}/jobs/job/hostfile"
    subprocess.run(["/bin/sh", "-c", here], check=True)
    assert (tmp_path / "hostfile").read_text() == made.files["hostfile"]
    (tmp_path / "hostfile").unlink()
    tmp_path.rmdir()
    done = subprocess.run(["/bin/sh", "-c", here + "echo started"], capture_output=True, text=True, check=False)
    assert (done.returncode != 0, done.stdout) == (True, "")  # without a list no srun


def test_a_batch_file_says_where_its_output_goes(plan_two: Planner) -> None:
    """sbatch reads its lines as a shell would, and replaces what follows a percent sign."""
    home = "/d/my $(id) %u"
    made = two(plan_two, "sbatch", n1={"home": home}, n2={"home": home})
    assert f"#SBATCH --output='{home.replace('%', '%%')}/jobs/job/launcher.out'\n" in made.files["batch.sh"]


def test_slurm_knows_no_node_without_a_name(plan_two: Planner) -> None:
    with pytest.raises(InputError, match="n2 has no host name"):
        two(plan_two, "srun", n2={"hostname": ""})


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


@pytest.mark.parametrize("options", [{"map_by": "node"}, {"bind_to": "core"}])
def test_what_torchrun_does_not_know_is_refused(plan_two: Planner, options: dict[str, str]) -> None:
    with pytest.raises(InputError, match="torchrun knows only"):
        two(plan_two, "torchrun", **options)


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
        ("openmpi", "-np 9", "the plan decides that: -e np="),
        ("openmpi", "--hostfile x", "remove it: the plan has --hostfile"),
        ("openmpi", "--map-by core", "remove it: the plan has --map-by slot"),
        ("openmpi", "--mca plm_rsh_agent ssh", "remove it: the plan has "),
        ("mpich", "-hosts a", "the plan decides that: -e nodes="),
        ("intelmpi", "-genvnone", "remove it: the plan has "),
        ("torchrun", "--nproc-per-node=9", "the plan decides that: -e ranks_per_node="),
        ("torchrun", "--max-restarts=3", "the plan decides that: -e max_restarts="),
        ("torchrun", "--max_restarts 3", "the plan decides that: -e max_restarts="),
        ("srun", "-N 9", "the plan decides that: -e nodes="),
        ("sbatch", "--wait", "remove it: the plan has "),
    ],
)
def test_own_arguments_do_not_replace_what_the_plan_decides(
    plan_two: Planner, name: str, words: str, told: str
) -> None:
    with pytest.raises(InputError, match="launcher_args") as caught:
        two(plan_two, name, launcher_args=words)
    assert told in str(caught.value)


def test_what_the_launcher_does_not_take_is_refused(plan_two: Planner) -> None:
    refused = {**PROGRAMS["mpich"], "refused": "-x y (unrecognized argument x)"}
    with pytest.raises(InputError, match=r"launcher_args.*unrecognized argument x.*mpich 5\.0\.2 does not take"):
        plan_two(launcher_facts=refused, launcher="mpich")


NVIDIA, AMD = {"accelerators": {"nvidia": 2, "amd": 0}}, {"accelerators": {"nvidia": 0, "amd": 2}}


@pytest.mark.parametrize(
    ("name", "context"), [("openmpi", ": --np 2"), ("mpich", ": -wdir / -n 2"), ("intelmpi", ": -wdir / -n 2")]
)
def test_each_vendor_has_an_app_context(plan_two: Planner, name: str, context: str) -> None:
    command = two(plan_two, name, n1=NVIDIA, n2=AMD, launcher_args="--verbose")
    assert command.options[1].words[1] == "2"
    assert shlex.join(command.argv).endswith(f" --verbose torchfleet-rank {context} torchfleet-rank")
    assert "2 ranks on nodes with NVIDIA GPUs, 2 ranks on nodes with AMD GPUs" in command.options[-1].reason
    alike = two(plan_two, name, n1=AMD, n2=AMD)
    assert alike.options[1].words[1] == "4" and ":" not in alike.argv


def test_ranks_that_take_nodes_in_turn_have_one_app_context(plan_two: Planner) -> None:
    command = two(plan_two, "openmpi", n1=NVIDIA, n2=AMD, map_by="node")
    assert command.options[1].words[1] == "4" and ":" not in command.argv


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
    with pytest.raises(InputError, match="MPICH in turn ignores slots"):
        two(plan_two, "mpich", map_by="node", slots={"n1": 1}, np=3)


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_torchrun_meets_within_the_ports(plan_two: Planner, rendezvous: str) -> None:
    made = plan_two(
        **{"launcher": "torchrun", "launcher_facts": PROGRAMS["torchrun"], "ports": "24000-24999"},
        **{"rendezvous": rendezvous, "n1": {"port": 24500}, "n2": {"port": 24501}},
    )
    assert made.master_port == 24500
    assert "24500" in " ".join(render(made).argv) and "24501" not in " ".join(render(made).argv)
    assert [text for text in made.warnings if text.startswith("ports")] == [
        "ports: gloo and NCCL take any port: open the firewalls for the nodes: setup.yml -e firewall_open=true"
    ]


def test_what_carries_mpi_keeps_to_the_ports(plan_two: Planner) -> None:
    """And not to that of the rendezvous."""
    made = plan_two(ports="24000-24999", n1={"port": 24500})
    for node in made.nodes:
        found = {setting.name: setting.value for setting in node.environment}
        names = ("FI_TCP_PORT_LOW_RANGE", "FI_TCP_PORT_HIGH_RANGE", "UCX_TCP_PORT_RANGE")
        assert [found[name] for name in names] == ["24000", "24499", "24000-24499"]
    assert not {"UCX_TCP_PORT_RANGE"} & {setting.name for node in plan_two().nodes for setting in node.environment}


def test_openmpi_over_ipv6_keeps_to_the_ports_too(plan_two: Planner) -> None:
    for version, kind in (("4.1.4", "--mca"), ("5.0.11", "--prtemca")):
        made = plan_two(launcher_facts=launcher("/l/bin/mpirun", version), ports="24000-24099", n1={"port": 24099})
        for address, versions in (("10.1.0.11", [4]), ("fd00::11", [4, 6])):
            words = " ".join(render(dataclasses.replace(made, master_addr=address)).argv)
            found = [number for number in (4, 6) if f"{kind} oob_tcp_dynamic_ipv{number}_ports 24000-24063" in words]
            assert found == versions
            texts = [f"--mca btl_tcp_port_min_v{each} 24000 --mca btl_tcp_port_range_v{each} 99" for each in (4, 6)]
            assert [text in words for text in texts] == [number in versions for number in (4, 6)]


def test_slurm_takes_ports_of_its_own(plan_two: Planner) -> None:
    made = plan_two(launcher="srun", launcher_facts=PROGRAMS["srun"], ports="24000-24999")
    assert "ports: srun uses SrunPortRange of slurm.conf; if that is not set, any port" in made.warnings


@pytest.mark.parametrize(
    ("rendezvous", "first", "last"), [(24057, 24000, 24056), (24099, 24000, 24098), (24001, 24002, 24099)]
)
def test_the_launcher_leaves_the_port_of_the_rendezvous_alone(
    plan_two: Planner, rendezvous: int, first: int, last: int
) -> None:
    """Reproduced before: mpirun's daemon had listened there when rank 0 wanted to."""
    options = {"ports": "24000-24099", "n1": {"port": rendezvous}}
    words = two(plan_two, "openmpi", **options).argv
    assert words[words.index("btl_tcp_port_min_v4") + 1] == str(first)
    assert words[words.index("btl_tcp_port_range_v4") + 1] == str(last - first + 1)
    assert words[words.index("oob_tcp_dynamic_ipv4_ports") + 1] == f"{first}-{min(last, first + 63)}"
    for name in ("mpich", "intelmpi"):
        (setting,) = two(plan_two, name, **options).environment
        assert setting.value == f"{first}:{last}"


def openmpi(version: str) -> Facts:
    return launcher("/opt/ompi/bin/mpirun", version)


def test_a_home_that_openmpi_would_tear_apart_is_refused(plan_two: Planner) -> None:
    made = plan_two(launcher_facts=openmpi("4.1.4"))
    bad = dataclasses.replace(made, head=dataclasses.replace(made.head, job_dir="/my home/$(id)/jobs/job"))
    with pytest.raises(InputError, match="torchfleet_home"):
        render(bad)


def test_torchrun_on_two_nodes(plan_two: Planner) -> None:
    python = launcher("/v/bin/python", "2.13.0+cpu")
    other = {**python, "path": "/other/python"}
    command = render(plan_two(launcher_facts=python, n2={"launcher": other, "home": "/tf"}, launcher="torchrun"))
    first, second = (shlex.join(words_of(command.on[name])) for name in ("n1", "n2"))
    assert "--nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr 10.1.0.11" in first
    assert second.startswith("/other/python -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank 1")
    assert second.endswith("--no-python /usr/bin/python3 -I -S /tf/lib/d/torchfleet.py rank /tf/jobs/job")
    with pytest.raises(InputError, match=r"n1 2, n2 1.*-e launcher=openmpi"):
        render(plan_two(launcher_facts=python, launcher="torchrun", np=3))


def test_an_unknown_version_is_refused(plan: Planner) -> None:
    with pytest.raises(InputError, match=r"openmpi 3\.1\.6.*is not 4\.x or 5\.x"):
        render(plan(facts=facts_of_a_node(launcher=openmpi("3.1.6"))))
