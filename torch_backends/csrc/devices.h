// Tensors that are not the CPU's: whether MPI takes them where they are, and what has to be waited for then.
#pragma once

#include "world.h"

#include <ATen/ATen.h>

namespace torchfleet {

// Whether this process's MPI says that it reads memory of the accelerator that PyTorch has here. TORCHFLEET_MPI_DIRECT=0 or 1
// says it in its place.
bool mpi_reads_accelerators();

// Ends when the device has done all that this thread told it. Nothing for the CPU.
void settle(c10::Device device);

// What MPI reads or writes of a tensor: the tensor itself, or a copy in the host's memory. Throws c10::ValueError for a
// sparse one.
at::Tensor direct(const at::Tensor& tensor);
at::Tensor staged(const at::Tensor& tensor);

// Room for a tensor on a device; for one of a GPU's such memory of the host that it reaches itself.
at::Tensor room_for(const at::Tensor& tensor, c10::Device device);

}  // namespace torchfleet
