// The all-reduce of long data between nodes, over MPI.
#pragma once

#include "reduction.h"
#include "world.h"

#include <cstdint>

namespace torchfleet {

// Reduces `count` units of `size` bytes of all ranks of a communicator into `data` of each, which is host memory. All of them
// call this. Throws TimedOut; MPI may then access `data` still.
void reduce_in_ring(MPI_Comm comm, char* data, int64_t count, const Reduction& how, int64_t size);

}  // namespace torchfleet
