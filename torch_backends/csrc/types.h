// MPI's types and operations for torch's dtypes and reductions.
#pragma once

#include "world.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace torchfleet {

struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
  int per_element = 1;  // how many of `type` an element of the tensor is
  bool ours = false;    // whether `op` is one of our functions, which need host memory
};

// Throws c10::ValueError for what MPI cannot reduce: MIN of complex numbers, bitwise operations on floats, PREMUL_SUM.
Reduction reduction(at::ScalarType dtype, const c10d::ReduceOp& op);

// The division of AVG after the sum; other reductions do not change the tensor.
void average(at::Tensor& sum, const c10d::ReduceOp& op, int size);

}  // namespace torchfleet
