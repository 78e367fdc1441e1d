// The collectives of a group, on dense tensors.
#pragma once

#include "signature.h"

#include <ATen/ATen.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace torchfleet {

struct Piece {
  int rank;
  char* data;
  int64_t bytes;
};

// The collectives throw TimedOut after the deadline of this thread's Operation, and std::runtime_error if the ranks do not
// ask for the same. Threads may share one, but call its collectives one after the other.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void broadcast(const at::Tensor& tensor, int root) const = 0;
  virtual void all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op) const = 0;
  virtual void reduce(at::Tensor& tensor, const c10d::ReduceOp& op, int root) const = 0;
  virtual void all_gather(const at::Tensor& input, const at::Tensor& output) const = 0;
  // `input` holds one part of the size of `output` for each rank; `output` is not one of these parts.
  virtual void reduce_scatter(const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op) const = 0;
  virtual void barrier() const = 0;
  // Every piece goes to, or comes from, its rank. Throws std::runtime_error if one of another size comes.
  virtual void exchange(Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives) const = 0;

  // Tells the other ranks of this node that an operation failed on this one.
  virtual void fail(const std::string& why) const = 0;
  // The ranks of the group that the current operation waits for, as far as they are known.
  virtual std::vector<int> missing() const = 0;
  virtual bool shares_memory() const = 0;  // of all ranks
  // Whether it reads memory of accelerators; else what they hold is copied to the host. And whether reducing does not.
  virtual bool reads_accelerators() const { return false; }
  virtual bool needs_host_memory(const c10d::ReduceOp&, at::ScalarType) const { return true; }
};

}  // namespace torchfleet
