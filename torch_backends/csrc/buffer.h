// The memory that a transport reads or writes for tensors of the program.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace torchfleet {

using Tensors = std::vector<at::Tensor>;

// The memory of a tensor itself if that is contiguous and where the transport reads it; else a copy. What is read is copied when
// the operation runs, as an earlier one may still write the tensor; from an accelerator at the call, whose stream it is.
class Buffer {
 public:
  enum Use { kRead = 1, kWritten = 2, kReadAndWritten = 3 };

  // `tensors`: one; or several to read, of one size, which lie one after the other in memory. `on_host`: memory of accelerators
  // does not serve. `divisor`: of what is read. `apart`: the tensor's own memory does not serve. Throws c10::ValueError for a
  // sparse tensor, and for one to be written of which several elements share memory.
  Buffer(Tensors tensors, Use use, bool on_host, int divisor = 1, bool apart = false);

  void load() const;   // before the operation: copies from the tensors
  void store() const;  // after it: copies back

  static void check(const at::Tensor& tensor, Use use);

  at::Tensor memory;

 private:
  void fill() const;

  const Tensors tensors_;
  const Use use_;
  const int divisor_;
  bool is_own_;
};

}  // namespace torchfleet
