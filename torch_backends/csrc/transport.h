// The collectives of a group, on dense tensors: in shared memory if all ranks are on one node, else as each backend does them.
#pragma once

#include "reduction.h"
#include "shared.h"
#include "signature.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <functional>
#include <memory>
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
  void broadcast(const at::Tensor& tensor, int root) const;
  void all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op) const;
  void reduce(at::Tensor& tensor, const c10d::ReduceOp& op, int root) const;
  void all_gather(const at::Tensor& input, const at::Tensor& output) const;
  // `input` holds one part of the size of `output` for each rank; `output` is not one of these parts.
  void reduce_scatter(const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op) const;
  void barrier() const;
  // Every piece goes to, or comes from, its rank. Throws std::runtime_error if one of another size comes.
  virtual void exchange(Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives) const = 0;

  // Tells the other ranks of this node that an operation failed on this one.
  virtual void fail(const std::string& why) const;
  // Tells them that this rank takes part in no operation any more.
  virtual void leave() const;
  // The ranks of the group that the current operation waits for, as far as they are known.
  virtual std::vector<int> missing() const;
  bool shares_memory() const { return shared_ != nullptr; }  // of all ranks
  // Whether it reads memory of accelerators; else what they hold is copied to the host.
  virtual bool reads_accelerators() const { return false; }
  // Whether this reduction is done in memory of the host all the same.
  virtual bool needs_host_memory(const c10d::ReduceOp&, at::ScalarType) const { return true; }

 protected:
  Transport(int rank, int size) : rank_(rank), size_(size) {}

  // all_reduce of a group on several nodes: in each node, by `between` from node to node, and in each node again. Either each
  // rank of a node reduces a part of it, all at the same time, or the first ranks alone reduce all: the fewest messages.
  void all_reduce_in_two_levels(Signature own, const Elements& all, const Reduction& how, bool by_all,
                                const std::function<void(const Elements&)>& between) const;

  const int rank_, size_;
  int local_rank_ = 0, local_size_ = 0;  // among those of its node, and the number of these; 0 if it differs between nodes
  std::shared_ptr<Shared> shared_;  // of all ranks, if they are on one node and can share memory
  std::shared_ptr<Shared> node_;    // of this node's ranks, if the group is on several nodes and collectives use it; else null

 private:
  // The collectives where the group's shared memory does not serve. AVG is divided elsewhere.
  virtual void broadcast_impl(Signature own, const at::Tensor& tensor, int root) const = 0;
  virtual void all_reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how) const = 0;
  virtual void reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how, int root) const = 0;
  virtual void all_gather_impl(Signature own, const at::Tensor& input, const at::Tensor& output) const = 0;
  virtual void reduce_scatter_impl(Signature own, const at::Tensor& input, const at::Tensor& output,
                                   const Reduction& how) const = 0;
  virtual void barrier_impl() const = 0;

  bool try_begin_shared(Signature own, const at::Tensor& tensor) const;  // whether shared memory serves; then it has begun
};

char* bytes_of(const at::Tensor& tensor);
int64_t nbytes_of(const at::Tensor& tensor);

}  // namespace torchfleet
