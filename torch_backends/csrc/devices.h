// Tensors on accelerators: the memory that a backend reads, and what it has to wait for.
#pragma once

#include <ATen/ATen.h>

namespace torchfleet {

// Waits until the device has done all work of this thread. Does nothing for the CPU.
void synchronize(c10::Device device);

// The buffer of a tensor: the tensor itself, or a copy in host memory. Throws c10::ValueError for a sparse
// tensor.
at::Tensor device_buffer(const at::Tensor& tensor);
at::Tensor host_buffer(const at::Tensor& tensor);

// A buffer for a tensor on this device; for a tensor of a GPU, host memory that the GPU can access.
at::Tensor buffer_on(const at::Tensor& tensor, c10::Device device);

}  // namespace torchfleet
