"""What torchfleet_backends tells an MPI before it loads it, and which worlds it refuses."""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.programs import load

SOURCE = Path(__file__).parents[2] / "torch_backends/src/torchfleet_backends/__init__.py"


def test_an_mpi_is_told_of_the_libfabric_beside_it(tmp_path: Path) -> None:
    """Intel MPI asks the loader for libfabric.so.1 once ranks are on several nodes: a bare machine has none."""
    package = load(SOURCE)
    library = tmp_path / "libmpi_abi.so.1"
    assert package.beside(library) == {}
    (tmp_path / "libfabric.so.1").touch()
    told = package.beside(library)
    assert told == {"I_MPI_OFI_LIBRARY": str(tmp_path / "libfabric.so.1"), "FI_PROVIDER_PATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("accelerator", "given", "after"),
    [
        (False, {}, {"DDP_DISABLE_COMM_MEM": "0"}),
        (True, {}, {}),
        (False, {"DDP_DISABLE_COMM_MEM": "1"}, {"DDP_DISABLE_COMM_MEM": "1"}),
    ],
    ids=["none", "accelerator", "user"],
)
def test_ddp_asks_for_memory_only_where_no_other_backend_gives_any(
    monkeypatch: pytest.MonkeyPatch, accelerator: bool, given: dict[str, str], after: dict[str, str]
) -> None:
    torch = SimpleNamespace(accelerator=SimpleNamespace(is_available=lambda: accelerator))
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setattr(os, "environ", dict(given))
    load(SOURCE).allow_shared_buckets()
    assert os.environ == after


# --- what cannot work is refused, with what to do -------------------------------------------------------------------


@pytest.fixture
def package() -> ModuleType:
    return load(SOURCE)


def test_an_mpi_is_chosen_by_the_launcher_and_not_by_names_that_scripts_look_for(package: ModuleType) -> None:
    assert package.kind_of({"PMIX_RANK": "0", "PMI_RANK": "0"})[0] == "_openmpi"
    assert package.kind_of({"PMI_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})[0] == "_abi"
    for environment in ({}, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "RANK": "0"}):
        with pytest.raises(package.BackendError, match="no MPI launcher started this process: start it with mpirun"):
            package.kind_of(environment)


def test_the_library_that_the_user_names_comes_before_the_launchers_own(
    package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, library = tmp_path / "bin" / "mpirun", tmp_path / "lib" / "libmpi.so.40"
    monkeypatch.setattr(package, "ancestors", lambda _pid: iter([Path("/usr/bin/python3"), program]))
    assert package.find_library("libmpi.so.40", {}) == "libmpi.so.40"  # whatever the loader finds
    library.parent.mkdir()
    library.touch()
    assert package.find_library("libmpi.so.40", {}) == str(library)
    assert package.find_library("libmpi.so.40", {"TORCHFLEET_MPI_LIBRARY": "/mine/libmpi.so"}) == "/mine/libmpi.so"


MAPS = "7f00-7f01 r-xp 00000000 08:01 7 {}\n7f02-7f03 r-xp 00000000 08:01 8 /usr/lib/libc.so.6\n"


def test_another_mpi_in_the_process_is_refused_before_a_second_one_is_loaded(
    package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(tmp_path / "libmpi.so.40")
    assert package.other_mpi(own, MAPS.format("/opt/mpich/lib/libmpich.so.12")) == "/opt/mpich/lib/libmpich.so.12"
    assert package.other_mpi(own, MAPS.format(own)) == package.other_mpi(own, MAPS.format("/x/libmpicxx.so.1")) == ""
    monkeypatch.setattr(package, "other_mpi", lambda _own, _maps: "/opt/mpich/lib/libmpi.so.12")
    with pytest.raises(package.BackendError, match=r"/opt/mpich/lib/libmpi\.so\.12 .* in this process"):
        package.load_library("libmpi.so.40", {"TORCHFLEET_MPI_LIBRARY": own})


class Mpi(SimpleNamespace):
    """An MPI that sees so many ranks, of which each says a text."""

    def world_size(self) -> int:
        return len(self.says)

    def library_version(self) -> str:
        return "Open MPI v5.0.11"

    def gather_texts(self, _text: str) -> list[str]:
        return list(self.says)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Be a process with some version of torch."""
    made = SimpleNamespace(__version__="2.13.0+cpu")
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.mark.parametrize(
    ("environment", "says", "told"),
    [
        (
            {"PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            ["a"],
            "the launcher started 2 ranks, .* Open MPI v5.0.11 sees 1",
        ),
        ({"PMI_SIZE": "4"}, ["a"], "the launcher started 4 ranks, .* sees 1: it is not the launcher's MPI"),
        ({"PMI_SIZE": "2"}, ["torch 2", "torch 3"], "rank 1 has torch 3, rank 0 torch 2: "),
        ({"PMI_SIZE": "2"}, ["torch 2", "torch 2"], ""),
        ({"PMI_SIZE": "1"}, ["torch 2"], ""),
    ],
)
def test_ranks_that_are_no_world_are_refused(
    package: ModuleType, torch: SimpleNamespace, environment: dict[str, str], says: list[str], told: str
) -> None:
    """Each would train alone, or misread what the others send, and say nothing of it."""
    if not told:
        package.check_world(Mpi(says=says), environment)
        return
    with pytest.raises(package.BackendError, match=told):
        package.check_world(Mpi(says=says), environment)


@pytest.mark.parametrize(
    ("told", "made", "error"),
    [
        ({0: "1 of 3", 1: "0 of 3"}, [1, 0], ""),
        ({0: "2 of 3", 1: "1 of 3"}, [2, 1], ""),
        (
            {0: "0 of 1", 1: "0 of 1"},
            [],
            "no ranks of one MPI, by which they are 0 of 1, 0 of 1: start them all with one",
        ),
        ({0: "0 of 2", 1: "1 of 3"}, [], "by which they are 0 of 2, 1 of 3"),
    ],
    ids=["turned", "part", "alone", "two-launchers"],
)
@pytest.mark.usefixtures("torch")
def test_ranks_of_a_store_are_those_of_one_mpi(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch, told: dict[int, str], made: list[int], error: str
) -> None:
    """RANK may number them otherwise than MPI, and leave some out."""
    mine, size = (int(word) for word in told[1].split(" of "))
    mpi = SimpleNamespace(world_rank=lambda: mine, world_size=lambda: size, create=lambda ranks, _timeout: ranks)
    kept = {"mpi/0": f"{told[0]} {package.own_torch()}"}
    store = SimpleNamespace(set=kept.__setitem__, get=lambda key: kept[key].encode(), has_extended_api=lambda: False)
    monkeypatch.setattr(package, "module", lambda: mpi)
    monkeypatch.setattr(package, "prepare", lambda _found: None)
    monkeypatch.setattr(package, "own_part", lambda whole, _size: whole)
    if error:
        with pytest.raises(package.BackendError, match=error):
            package.create_by_store(store, 1, 2)
    else:
        assert package.create_by_store(store, 1, 2) == made


def test_each_group_has_a_part_of_a_store_of_its_own(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that outlives a group still has the keys of the last one; its ranks come in any order."""
    count = itertools.count(1)
    store = SimpleNamespace(add=lambda _key, _more: next(count))
    dist = SimpleNamespace(PrefixStore=lambda prefix, _store: prefix)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    first, second = ([package.own_part(store, 3) for _ in range(3)] for _ in range(2))
    assert len({*first}) == len({*second}) == 1 and first[0] != second[0]


def test_what_was_built_for_another_torch_is_not_loaded(
    package: ModuleType, torch: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its classes have another layout: the process would die of it, or compute nonsense."""
    monkeypatch.setattr(package, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "built_for.txt").write_text("2.13.0\n")
    package.check_torch()
    torch.__version__ = "2.12.1+cpu"
    with pytest.raises(package.BackendError, match=r"built for torch 2\.13\.0, .* 2\.12\.1: build it"):
        package.check_torch()


@pytest.mark.parametrize(("started_by", "part"), [("PMIX_RANK", "_openmpi"), ("PMI_RANK", "_abi")])
def test_an_mpi_that_nothing_was_compiled_for_is_refused(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started_by: str, part: str
) -> None:
    monkeypatch.setattr(package, "__file__", str(tmp_path / "__init__.py"))
    for variable in package.LAUNCHERS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(started_by, "0")
    with pytest.raises(package.BackendError, match=rf"not compiled for this launcher's MPI \({part}\.so\): ansible-p"):
        package.module()


def new_process_group() -> bool:
    """As torch's own does, ask whether there is an mpi."""
    return c10d.is_mpi_available()


c10d = SimpleNamespace(is_mpi_available=lambda: False, _new_process_group_helper=new_process_group)


@pytest.mark.parametrize(("backend", "shown"), [("", False), ("gloo", False), ("mpi", True)])
def test_frameworks_see_mpi_in_a_job_that_uses_it_only(
    monkeypatch: pytest.MonkeyPatch, backend: str, shown: bool
) -> None:
    """Accelerate takes mpi wherever it is there, also where no MPI has started the rank."""
    monkeypatch.setenv("TORCHFLEET_BACKEND", backend)
    dist = SimpleNamespace(distributed_c10d=SimpleNamespace(**vars(c10d)), is_mpi_available=lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(SOURCE.with_name("_autoload.py")).serve_mpi(dist)
    assert dist.is_mpi_available() is shown and dist.distributed_c10d.is_mpi_available() is True


def test_a_torch_that_asks_nobody_for_mpi_is_told_of() -> None:
    """A later one may do it in another way: then init_process_group("mpi") fails, and this says what works."""
    other = SimpleNamespace(is_mpi_available=lambda: False, _new_process_group_helper=lambda: None)
    dist = SimpleNamespace(distributed_c10d=other, is_mpi_available=lambda: False)
    with pytest.warns(UserWarning, match=r"backend mpi: .* init_process_group\('torchfleet'\)"):
        load(SOURCE.with_name("_autoload.py")).serve_mpi(dist)


@pytest.mark.parametrize("own", [True, False])
def test_a_torch_that_was_built_with_mpi_keeps_its_own(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    registered: list[str] = []
    dist = SimpleNamespace(
        is_available=lambda: True,
        is_mpi_available=lambda: own,
        distributed_c10d=SimpleNamespace(**vars(c10d), ProcessGroupMPI="torch's own"),
        Backend=SimpleNamespace(register_backend=lambda name, *_given, **_more: registered.append(name)),
    )
    for name, found in {
        "torch": SimpleNamespace(distributed=dist),
        "torch.distributed": dist,
        "torchfleet_backends": SimpleNamespace(),
        "torchfleet_backends._oneccl": SimpleNamespace(find=lambda: None),
        "torchfleet_backends._shared": SimpleNamespace(is_built=lambda: False, create=None),
    }.items():
        monkeypatch.setitem(sys.modules, name, found)
    load(SOURCE.with_name("_autoload.py")).autoload()
    assert (dist.distributed_c10d.ProcessGroupMPI == "torch's own") is own
    assert registered == ["torchfleet"]  # no oneCCL, no backend ccl


def test_a_torch_that_asks_for_a_name_gets_it_listed(monkeypatch: pytest.MonkeyPatch, package: ModuleType) -> None:
    """From 2.14 on, also where it was told to load no backend when it is imported. What is not compiled is refused."""
    dist = SimpleNamespace(Backend=SimpleNamespace(_plugins={"OTHER": "theirs"}))
    for name, found in {
        "torch": SimpleNamespace(distributed=dist),
        "torch.distributed": dist,
        "torchfleet_backends": package,
    }.items():
        monkeypatch.setitem(sys.modules, name, found)
    ours = load(SOURCE.with_name("_autoload.py"))
    monkeypatch.setattr(ours, "autoload", lambda: ours.PLUGINS.update(torchfleet="ours"))
    ours.list_torchfleet()
    assert dist.Backend._plugins == {"OTHER": "theirs", "TORCHFLEET": "ours"}
    with pytest.raises(
        package.BackendError, match="backend shm: this torchfleet-backends was built without it: install"
    ):
        ours.list_shm()
