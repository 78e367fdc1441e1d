// torch's reductions of each dtype, on memory of the host.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>

namespace torchfleet {

struct Reduction {
  at::ScalarType dtype;          // of the tensor
  at::ScalarType unit;           // what is reduced: its real parts, or bytes for booleans
  c10d::ReduceOp::RedOpType op;  // of these: SUM for AVG, BOR for "any"
  int per_element = 1;           // how many units an element of the tensor is
};

const char* name_of_reduction(c10d::ReduceOp::RedOpType kind);

// Throws c10::ValueError for what is not reduced: MIN of complex numbers, bitwise operations on floats, AVG of integers,
// PREMUL_SUM.
Reduction reduction(at::ScalarType dtype, const c10d::ReduceOp& op);

// Reduces `in` and `inout` into `inout`. `count` is in units. Signed overflow wraps around.
void reduce_local(const Reduction& how, const void* in, void* inout, int64_t count);

// AVG divides after the sum, as that is the more exact way; float16 divides before it, as its sum would overflow.
at::Tensor divided_before(const at::Tensor& tensor, const c10d::ReduceOp& op, int size);  // the tensor itself for others
void divide_after(at::Tensor& sum, const c10d::ReduceOp& op, int size);

// The memory of a tensor that is reduced, in units.
struct Elements {
  Elements(const at::Tensor& tensor, const Reduction& how)
      : data(static_cast<char*>(tensor.data_ptr())),
        count(tensor.numel() * how.per_element),
        size(tensor.element_size() / how.per_element) {}
  Elements part(int64_t first, int64_t length) const {
    Elements found = *this;
    found.data += first * size;
    found.count = length;
    return found;
  }
  char* data;
  int64_t count, size;
};

}  // namespace torchfleet
