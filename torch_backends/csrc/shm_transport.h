// Collectives by shared memory in a node, all_reduce between nodes by TCP connections of our own, and all else by gloo, without
// MPI. The ranks find each other by c10d's store.
#pragma once

#include "shared.h"
#include "tcp_ring.h"
#include "transport.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>
#include <vector>

namespace torchfleet {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

class ShmTransport : public Transport {
 public:
  // Called by all ranks, with a store of this group alone. `nodes`: the node of each rank. If ranks of a node cannot share
  // memory, if nodes have different numbers of ranks, or do not reach each other, gloo does everything.
  ShmTransport(const StorePtr& store, int rank, const std::vector<int>& nodes, BackendPtr gloo);

  void exchange(Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives) const override;
  void fail(const std::string& why) const override;
  std::vector<int> missing() const override;

 private:
  void broadcast_impl(Signature own, const at::Tensor& tensor, int root) const override;
  void all_reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how) const override;
  void reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how, int root) const override;
  void all_gather_impl(Signature own, const at::Tensor& input, const at::Tensor& output) const override;
  void reduce_scatter_impl(Signature own, const at::Tensor& input, const at::Tensor& output,
                           const Reduction& how) const override;
  void barrier_impl() const override;

  // Throws std::runtime_error if the ranks of a group on several nodes ask for different things.
  void compare(Signature own) const;
  void compare_sizes_by_gloo(const std::vector<Piece>& sends, const std::vector<Piece>& receives) const;

  const BackendPtr gloo_;
  std::unique_ptr<TcpRing> ring_;  // of the ranks with this local rank, one on each node; null on one node
};

}  // namespace torchfleet
