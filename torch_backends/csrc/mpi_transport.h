// Collectives by MPI, of any size: MPI before version 4 counts in int.
#pragma once

#include "shared.h"
#include "transport.h"
#include "types.h"
#include "world.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torchfleet {

// The communicators of a group. Only MPI accesses memory of an accelerator; our own reduction functions need host memory.
class MPITransport : public Transport {
 public:
  // Called by all ranks of `comm`.
  explicit MPITransport(MPI_Comm comm);

  void exchange(Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives) const override;
  bool reads_accelerators() const override { return gpu_aware_; }
  bool needs_host_memory(const c10d::ReduceOp& op, at::ScalarType type) const override {
    return torchfleet::needs_host_memory(reduction(type, op));
  }

  // Frees the communicators.
  void close() const;

 private:
  void broadcast_impl(Signature own, const at::Tensor& tensor, int root) const override;
  void all_reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how) const override;
  void reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how, int root) const override;
  void all_gather_impl(Signature own, const at::Tensor& input, const at::Tensor& output) const override;
  void reduce_scatter_impl(Signature own, const at::Tensor& input, const at::Tensor& output,
                           const Reduction& how) const override;
  void barrier_impl() const override;

  // Runs a collective over MPI, and compares meanwhile what the ranks ask for. It is compared first if the call is a blocking
  // one, which cannot be left, and if a node has several ranks: among these, data of another size may be written beyond
  // its buffer (sizes.h).
  template <typename Collective>
  void over_mpi(Signature own, bool blocking, Collective collective) const;

  MPI_Comm comm_;                    // all of them
  MPI_Comm across_ = MPI_COMM_NULL;  // those of this local rank on all nodes; only of the first ones if the numbers differ
  std::vector<int> across_ranks_;    // their ranks in the group
  const bool use_ring_;              // whether long data is reduced in our own ring over MPI
  bool shares_nodes_;                // whether a node has several of them
  bool gpu_aware_;                   // whether the MPI of all ranks can read memory of accelerators
};

// A part of something that may be longer than MPI can count.
struct Request {
  MPI_Request request;
  int64_t bytes;
  std::shared_ptr<std::vector<char>> scratch{};  // where it is received, if it has not the size that is expected
};

// Messages of the program. The last part, which may be empty, is shorter than the others: whoever finds a part knows whether
// more comes, whatever size is expected.
std::vector<Request> post_message(MPI_Comm comm, const Piece& piece, int tag);
bool is_last(const Request& part);

// Receives a part that was found. `rest`: what is expected of the message. A part of another size is received elsewhere.
Request post_matched(const Piece& rest, MPI_Message found, MPI_Status& status);

}  // namespace torchfleet
