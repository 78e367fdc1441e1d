// Tensors on accelerators: whether MPI can access their memory, and what it has to wait for.
#pragma once

#include "world.h"

#include <ATen/ATen.h>

namespace torchfleet {

// Whether this process's MPI reports that it can read the memory of PyTorch's accelerator. TORCHFLEET_MPI_DIRECT=0 or 1
// overrides it.
bool mpi_reads_accelerators();

// Waits until the device has done all work of this thread. Does nothing for the CPU.
void settle(c10::Device device);

// The buffer of a tensor for MPI: the tensor itself, or a copy in host memory. Throws c10::ValueError for a sparse
// tensor.
at::Tensor direct(const at::Tensor& tensor);
at::Tensor staged(const at::Tensor& tensor);

// A buffer for a tensor on this device; for a tensor of a GPU, host memory that the GPU can access.
at::Tensor room_for(const at::Tensor& tensor, c10::Device device);

}  // namespace torchfleet
