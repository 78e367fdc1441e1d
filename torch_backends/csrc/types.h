// MPI's types and operations for reductions.
#pragma once

#include "reduction.h"
#include "world.h"

namespace torchfleet {

// MPI has no 16-bit floats, and leaves open what MIN and MAX of NaN are: for these the operation is one of our functions,
// which need host memory.
struct MPIReduction {
  MPI_Datatype type;
  MPI_Op op;
};
MPIReduction by_mpi(const Reduction& how);
bool needs_host_memory(const Reduction& how);

}  // namespace torchfleet
