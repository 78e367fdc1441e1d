"""Sum ones over all ranks with MPI_Allreduce itself, short and long: Open MPI's library by ctypes, and no PyTorch."""

import ctypes
import os

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name: str) -> object:
    """Return what Open MPI's header calls MPI_...: the address of an object of the library."""
    return ctypes.byref(ctypes.c_char.in_dll(mpi, name))


mpi.MPI_Init(None, None)
for count in (4, 1_000_000):
    ones, sums = (ctypes.c_double * count)(*([1.0] * count)), (ctypes.c_double * count)()
    world, double, add = handle("ompi_mpi_comm_world"), handle("ompi_mpi_double"), handle("ompi_mpi_op_sum")
    mpi.MPI_Allreduce(ones, sums, count, double, add, world)
    print(f"sum of {count}:", set(sums), "on", os.uname().nodename)
mpi.MPI_Finalize()
