"""What torchfleet_backends tells an MPI before it loads it."""

from __future__ import annotations

from pathlib import Path

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
