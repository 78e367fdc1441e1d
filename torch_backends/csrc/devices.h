// The accelerators that tensors are on.
#pragma once

#include <ATen/ATen.h>

namespace torchfleet {

// Waits until the device has done all work of this thread. Does nothing for the CPU.
void synchronize(c10::Device device);

}  // namespace torchfleet
