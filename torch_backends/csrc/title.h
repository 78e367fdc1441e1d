// The names of operations in profilers, as PyTorch's other backends have them.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace torchfleet {

const char* title_of(c10d::OpType type);

}  // namespace torchfleet
