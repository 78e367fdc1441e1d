// Whether MPI reads memory of accelerators.
#pragma once

namespace torchfleet {

// Whether this process's MPI reports that it can read the memory of PyTorch's accelerator. TORCHFLEET_MPI_DIRECT=0 or 1
// overrides it.
bool mpi_is_gpu_aware();

}  // namespace torchfleet
