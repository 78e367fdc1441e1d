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
bool divides_before(at::ScalarType dtype, const c10d::ReduceOp& op);
void divide_after(at::Tensor& sum, const c10d::ReduceOp& op, int size);

// Memory that is reduced.
struct Elements {
  char* data;
  int64_t count, size;  // units, and bytes of each

  int64_t bytes() const { return count * size; }
  Elements part(int64_t first, int64_t length) const { return {data + first * size, length, size}; }
};

inline Elements elements_of(const at::Tensor& tensor, const Reduction& how) {
  return {static_cast<char*>(tensor.data_ptr()), tensor.numel() * how.per_element,
          static_cast<int64_t>(tensor.element_size()) / how.per_element};
}

}  // namespace torchfleet
