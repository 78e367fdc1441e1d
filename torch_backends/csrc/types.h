// MPI's types and operations for torch's dtypes and reductions.
#pragma once

#include "world.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace torchfleet {

struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
  at::ScalarType dtype;
  c10d::ReduceOp::RedOpType kind;
  int per_element = 1;  // how many of `type` an element of the tensor is
  bool ours = false;    // whether `op` is one of our functions, which need host memory
};

const char* name_of_reduction(c10d::ReduceOp::RedOpType kind);

// Throws c10::ValueError for what is not reduced: MIN of complex numbers, bitwise operations on floats, AVG of integers,
// PREMUL_SUM.
Reduction reduction(at::ScalarType dtype, const c10d::ReduceOp& op);

// Reduces `in` and `inout` into `inout`. `count` is in elements of `how.type`.
void reduce_local(const Reduction& how, const void* in, void* inout, int64_t count);

// AVG divides after the sum, as that is the more exact way; float16 divides before it, as its sum would overflow.
at::Tensor divided_before(const at::Tensor& tensor, const c10d::ReduceOp& op, int size);  // the tensor itself for others
void divide_after(at::Tensor& sum, const c10d::ReduceOp& op, int size);

}  // namespace torchfleet
