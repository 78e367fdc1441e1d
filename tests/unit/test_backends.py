"""Which backend the nodes can run, what it wants of the environment, and the NICs that a user names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rejections import WITHOUT_FLAW
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import requirements
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import (
    BACKENDS,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import plan_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import fabric, facts_of_a_node, launcher

Planner = Callable[..., LaunchPlan]
ONECCL = {"CCL_ATL_TRANSPORT": "ofi", "CCL_PROCESS_LAUNCHER": "torchrun", "CCL_WORKER_COUNT": "1"}
NONE, NVIDIA, AMD = {"nvidia": 0, "amd": 0}, {"nvidia": 2, "amd": 0}, {"nvidia": 0, "amd": 2}
CUDA, ROCM = {"version": "2.13.0", "cuda": "13.0", "hip": ""}, {"version": "2.13.0", "cuda": "", "hip": "7.2"}


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("ucc", "a PyTorch that was built with UCC has it"),
        ("mpi", """ansible-playbook setup.yml -e '{"backends": ["mpi"]}' installs it"""),
        ("ccl", '-e \'{"backends": ["ccl"]}\' installs it'),
        ("shm", '-e \'{"backends": ["shm"]}\' installs it'),
    ],
)
def test_what_torch_lacks_is_refused(plan: Planner, backend: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(backend=backend)
    assert told in str(caught.value) and "use -e backend=gloo" in str(caught.value)
    assert plan(facts=facts_of_a_node(backends=[backend]), backend=backend).backend == backend


def test_mpi_needs_an_mpi(plan: Planner) -> None:
    facts = facts_of_a_node(backends=["mpi"], launcher=launcher("/v/python", "2.13.0"))
    with pytest.raises(InputError, match="torchrun starts no MPI; use -e launcher=openmpi"):
        plan(facts=facts, backend="mpi", launcher="torchrun")


@pytest.mark.parametrize("backend", ["nccl", "ucc"])
def test_vendors_are_not_mixed(plan_two: Planner, backend: str) -> None:
    """Both sides are named: which nodes have which GPUs. UCC would begin, and find no common library."""
    mixed = {"accelerators": AMD, "torch": ROCM, "backends": ["ucc"]}
    told = (
        rf"NVIDIA \(n1\) and AMD \(n2\): GPUs of different vendors cannot be mixed under {backend}; use -e backend=mpi"
    )
    with pytest.raises(InputError, match=told):
        plan_two(n1={"accelerators": NVIDIA, "torch": CUDA, "backends": ["ucc"]}, n2=mixed, backend=backend)
    assert plan_two(n1={"accelerators": NVIDIA, "torch": CUDA}, n2=mixed, backend="gloo").backend == "gloo"


INTEL, XPU = {"intel": 4}, {"version": "2.13.0", "cuda": "", "hip": "", "xpu": "20250301"}


def test_gpus_of_intel_are_the_default_where_torch_has_their_backend(plan_two: Planner) -> None:
    both = {"accelerators": INTEL, "torch": XPU, "backends": ["xccl"]}
    with pytest.raises(InputError, match="torch on n1, n2 has no such backend"):
        plan_two(n1={**both, "backends": []}, n2={**both, "backends": []}, backend="xccl")
    assert plan_two(n1=both, n2=both).backend == "xccl"
    with pytest.raises(InputError, match="no GPU on n2"):
        plan_two(n1=both, n2={"accelerators": NONE, "torch": XPU}, backend="xccl")


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (
            {"accelerators": AMD, "torch": ROCM},
            "n1 has 2 of NVIDIA, n2 has 2 of AMD): no backend joins GPUs of different vendors",
        ),
        ({"accelerators": NONE, "torch": CUDA}, "n1 has 2 of NVIDIA): there is no GPU on n2; name the nodes with GPUs"),
        (
            {"accelerators": NVIDIA, "torch": {"version": "2.13.0", "cuda": "", "hip": ""}},
            "torch on n2 has no support for them; ansible-playbook setup.yml installs it",
        ),
    ],
)
def test_gpus_are_not_left_idle_without_a_word(plan_two: Planner, second: dict[str, Any], told: str) -> None:
    first = {"accelerators": NVIDIA, "torch": CUDA}
    (warning,) = plan_two(n1=first, n2=second).warnings
    idle = (
        "this job uses gloo, which does not connect GPUs directly: GPUs are idle unless the program takes them itself"
    )
    assert warning.startswith(f"{idle} (n1 has") and told in warning
    assert "give -e backend=gloo if this is intended" in warning
    assert plan_two(n1=first, n2=second, backend="gloo").warnings == ()


MPI = {"backends": ["mpi"]}


@pytest.mark.parametrize(
    ("backend", "first", "second", "told"),
    [
        ("ccl", {"accelerators": NVIDIA, "torch": CUDA}, {}, "(n1 has 2 of NVIDIA): ccl carries no tensors of NVIDIA"),
        ("ucc", {"accelerators": INTEL, "torch": XPU}, {}, "ucc carries no tensors of Intel GPUs; xccl or mpi does"),
        ("mpi", {"accelerators": NVIDIA}, {}, "torch on n1 has no support for them; ansible-playbook setup.yml"),
        ("mpi", {"accelerators": {"nvidia": 2, "amd": 1}, "torch": CUDA}, {}, "(n1 has 2 of NVIDIA, n1 has 1 of AMD)"),
        ("mpi", {"accelerators": INTEL, "torch": XPU}, {"accelerators": AMD, "torch": ROCM}, ""),
        ("mpi", {"accelerators": NVIDIA, "torch": CUDA}, {"accelerators": AMD, "torch": ROCM}, ""),
    ],
)
def test_no_backend_leaves_gpus_idle_without_a_word(
    plan_two: Planner, backend: str, first: dict[str, Any], second: dict[str, Any], told: str
) -> None:
    has = {"backends": [backend]}
    slots = {"n1": 4, "n2": 4}
    warnings = [*plan_two(n1={**first, **has}, n2={**second, **has}, slots=slots, backend=backend).warnings]
    assert len(warnings) == bool(told) and told in "".join(warnings)


def test_a_job_with_fewer_ranks_than_gpus_says_so(plan_two: Planner) -> None:
    both = {"accelerators": {"nvidia": 8, "amd": 0}, "torch": CUDA}
    (warning,) = plan_two(n1=both, n2=both, slots={"n1": 8, "n2": 4}).warnings
    assert "(n2 has 8 of NVIDIA; ranks: n2 4): raise slots" in warning
    assert plan_two(n1=both, n2=both, slots={"n1": 8, "n2": 4}, np=2).warnings == ()


def test_gpus_that_torch_has_no_code_for_are_refused_by_name(plan_two: Planner) -> None:
    fits = {"accelerators": AMD, "torch": ROCM, "gpu_targets": {"torch": ["gfx90a", "gfx942"], "gpus": ["gfx942"]}}
    lacks = {**fits, "gpu_targets": {"torch": ["gfx90a", "gfx942"], "gpus": ["gfx1011"]}}
    told = "it has no code for the GPUs of n2: gfx1011 (it has gfx90a, gfx942); install a build that does, or"
    for backend in ({}, {"backend": "nccl"}):
        with pytest.raises(InputError, match=re.escape(f'torch: got "2.13.0"; {told} -e backend=gloo')):
            plan_two(n1=fits, n2=lacks, **backend)
        assert plan_two(n1=fits, n2=fits, **backend).backend == "nccl"
        passes = plan_two(n1=fits, n2=lacks, env={"n2": {"HSA_OVERRIDE_GFX_VERSION": "10.1.0"}}, **backend)
        assert passes.backend == "nccl"
    assert plan_two(n1=fits, n2=lacks, backend="gloo").warnings == ()
    (warning,) = plan_two(n1={**fits, **MPI}, n2={**lacks, **MPI}, backend="mpi").warnings
    assert "torch has no code for gfx1011 on n2: install a build that does" in warning


def test_gpus_of_one_vendor_are_the_default(plan_two: Planner) -> None:
    for accelerators, torch in ((NVIDIA, CUDA), (AMD, ROCM)):
        both = {"accelerators": accelerators, "torch": torch}
        assert plan_two(n1=both, n2=both).backend == "nccl"
    for accelerators, torch in ((NVIDIA, ROCM), (AMD, CUDA)):
        both = {"accelerators": accelerators, "torch": torch}
        assert plan_two(n1=both, n2=both).backend == "gloo"
        with pytest.raises(InputError, match="torch on n1, n2 has no GPU support"):
            plan_two(n1=both, n2=both, backend="nccl")


@pytest.mark.parametrize(
    ("backend", "accelerators", "rdma", "wanted"),
    [
        ("gloo", NONE, False, {}),
        ("nccl", NVIDIA, True, {}),
        ("nccl", NVIDIA, False, {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "8"}),
        ("mpi", NONE, False, {"UCX_TLS": "tcp,sm,self", "FI_PROVIDER": "tcp"}),
        ("mpi", NVIDIA, True, {"UCX_TLS": "rc,tcp,sm,self,cuda"}),
        ("mpi", AMD, True, {"UCX_TLS": "rc,tcp,sm,self,rocm", **dict.fromkeys(VENDORS["amd"].detours, "0")}),
        ("ucc", NVIDIA, True, {"UCX_TLS": "rc,tcp,sm,self,cuda", "UCC_TLS": "ucp,self,nccl"}),
        ("ucc", NONE, False, {"UCX_TLS": "tcp,sm,self", "UCC_TLS": "ucp,self"}),
        ("ccl", NONE, False, {"FI_PROVIDER": "tcp", **ONECCL}),
        ("ccl", NONE, True, ONECCL),
    ],
)
def test_environment_of_a_backend(
    backend: str, accelerators: dict[str, int], rdma: bool, wanted: dict[str, str]
) -> None:
    told = BACKENDS[backend].environment(accelerators, rdma)
    assert {key: value for key, (value, _reason) in told.items()} == wanted
    assert all(reason for _value, reason in told.values())


def test_each_node_has_what_it_needs(plan_two: Planner) -> None:
    """A mixed cluster under mpi: ROCm's limits where ROCm is, each node's own transports."""
    both = {"backends": ["mpi"]}
    made = plan_two(n1={"accelerators": NVIDIA, **both}, n2={"accelerators": AMD, **both}, backend="mpi")
    first, second = ({item.name: item.value for item in node.environment} for node in made.nodes)
    assert (first["UCX_TLS"], second["UCX_TLS"]) == ("tcp,sm,self,cuda", "tcp,sm,self,rocm")
    assert "UCX_ROCM_COPY_D2H_THRESH" in second and "UCX_ROCM_COPY_D2H_THRESH" not in first


def test_environment_of_a_node_and_of_the_job(plan_two: Planner) -> None:
    made = plan_two(env={"n2": {"MINE": "node", "BOTH": "node"}}, job_env={"BOTH": "job"})
    first, second = ({item.name: item for item in node.environment} for node in made.nodes)
    assert "MINE" not in first
    assert (second["MINE"].value, second["MINE"].source) == ("node", "inventory")
    assert (second["BOTH"].value, second["BOTH"].source) == ("job", "user")


def test_a_secret_of_a_node_stays_out_of_the_report(plan_two: Planner) -> None:
    made = plan_two(env={"n2": {"HF_TOKEN": "hush"}})
    assert "hush" not in plan_report(made, render(made))


def rejection(code: str, reason: str, nic: str = "eth0") -> dict[str, str]:
    return {"nic": nic, "address": "10.9.0.1/24", "code": code, "reason": reason}


REJECTED = [rejection("not-reached", "10.9.0.2 does not answer")]


@pytest.mark.parametrize(
    ("name", "value", "rejected", "told"),
    [
        ("GLOO_SOCKET_IFNAME", "eth9", [], "NIC eth9 does not exist, only eth0, eth1, lo on n1"),
        ("NCCL_SOCKET_IFNAME", "=eth9", [], "NIC eth9 does not exist"),
        ("TP_SOCKET_IFNAME", "eth9", [], "NIC eth9 does not exist"),
        ("FI_TCP_IFACE", "lo", [], "lo reaches no other node: a job would hang on n1"),
        ("I_MPI_HYDRA_IFACE", "eth0", REJECTED, "role fabric rejected eth0 (10.9.0.2 does not answer) on n2"),
    ],
)
def test_a_nic_that_cannot_work_is_refused(
    plan_two: Planner, name: str, value: str, rejected: list[dict[str, str]], told: str
) -> None:
    chosen = {**fabric("eth1", "10.1.0.12"), "rejected": rejected}
    with pytest.raises(InputError) as caught:
        plan_two(n2={"fabric": chosen}, job_env={name: value})
    assert told in str(caught.value)


@pytest.mark.parametrize("node", ["fabric_a", "usable1", "n1"])
def test_no_name_of_a_node_lets_a_dead_nic_through(node: str) -> None:
    """The codes decide: the sentence begins with whatever the node is called."""
    rows = [rejection("not-reached", f"{node} -> n2: does not answer")]
    fact = {"nics": ["eth0", "eth1"], "fabric": {**fabric("eth1", "10.1.0.12"), "rejected": rows}}
    assert requirements.why_not("eth0", fact, several=True).startswith("role fabric rejected eth0")


def test_a_rejection_of_an_earlier_version_is_not_guessed_at() -> None:
    for code in ({}, {"code": ""}):
        rows = [{"nic": "eth0", "address": "10.9.0.1/24", "reason": "usable; another is preferred", **code}]
        fact = {"nics": ["eth0", "eth1"], "fabric": {**fabric("eth1", "10.1.0.12"), "rejected": rows}}
        assert "setup.yml --tags fabric" in requirements.why_not("eth0", fact, several=True)


def test_a_nic_that_was_not_chosen_is_warned_of(plan_two: Planner) -> None:
    usable = [rejection(code, "10.1.0.0/24 is preferred", "eth1") for code in WITHOUT_FLAW]
    chosen = {**fabric("eth0", "10.1.0.12"), "rejected": usable}
    made = plan_two(n2={"fabric": chosen}, job_env={"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "^lo"})
    assert "GLOO_SOCKET_IFNAME=eth1 contradicts role fabric, which proved eth0 on n1 n2" in made.warnings
    assert "NCCL_SOCKET_IFNAME=^lo contradicts role fabric, which proved =eth0 on n1 n2" in made.warnings


@pytest.mark.parametrize(
    ("name", "value", "nics"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "=eth0", ["eth0"]),
        ("NCCL_SOCKET_IFNAME", "eth", []),  # a prefix
        ("NCCL_SOCKET_IFNAME", "^docker", []),
        ("OTHER", "eth0", []),
    ],
)
def test_nics_that_a_variable_names(name: str, value: str, nics: list[str]) -> None:
    assert requirements.nics_named(name, value) == nics


def test_a_node_without_fabric_has_no_rejections() -> None:
    node = Node("n1", "192.0.2.1")
    facts: dict[str, Any] = {"n1": facts_of_a_node()}
    requirements.check_nics([node], facts, {"GLOO_SOCKET_IFNAME": "eth1"})


def test_torch_is_asked_for_mpi_as_a_job_that_uses_it(tmp_path: Path) -> None:
    """Our own mpi says that it is there only in such a job."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho $TORCHFLEET_BACKEND\n")
    python.chmod(0o755)
    assert survey.backends(str(python), "mpi") == ["mpi"]


MADE = {"backends": ["mpi", "mpi:openmpi", "ccl"]}


def test_mpi_is_refused_under_an_mpi_that_it_is_not_made_for(plan_two: Planner) -> None:
    """Reproduced before: a second setup.yml with fewer `mpis` left MPICH there, and every rank died."""
    told = (
        "on n1, n2 it is made for openmpi, not for mpich: ansible-playbook setup.yml "
        """-e '{"backends": ["mpi", "ccl"], "mpis": ["openmpi", "mpich"]}', or -e launcher=openmpi"""
    )
    with pytest.raises(InputError, match=re.escape(told)):
        plan_two(n1=MADE, n2=MADE, backend="mpi", launcher="mpich")
    with pytest.raises(InputError, match=r'"mpis": \["openmpi", "mpich", "intelmpi"\]'):
        plan_two(n1=MADE, n2=MADE, backend="mpi", launcher="intelmpi")
    assert plan_two(n1=MADE, n2=MADE, backend="mpi").backend == "mpi"


def test_a_torch_with_an_mpi_of_its_own_is_believed(plan_two: Planner) -> None:
    own = {"backends": ["mpi"]}
    assert plan_two(n1=own, n2=own, backend="mpi", launcher="mpich").backend == "mpi"
