// Moving and reducing memory of any size: MPI before version 4 counts in int.
#pragma once

#include "shared.h"

#include <string>
#include <vector>

namespace torchfleet {

// The communicators and the shared memory of a group.
struct Way {
  MPI_Comm comm;                   // all of them
  std::shared_ptr<Shared> shared;  // of all ranks, if they are on one node and can share memory
  std::shared_ptr<Shared> node;    // of this node's ranks, if the group is on several nodes and it is faster
  MPI_Comm leaders;                // the first ranks of the nodes; MPI_COMM_NULL on others
  std::vector<int> leader_ranks;   // their ranks in the group
  bool ring;                       // whether long data is reduced in our own ring over MPI
  bool direct;                     // whether the MPI of all ranks can read memory of accelerators

  // Tells the other ranks of this node that an operation failed on this one.
  void fail(const std::string& why) const;
};

// Called by all ranks of `comm`.
Way way_of(MPI_Comm comm);

struct Piece {
  int rank;
  char* data;
  int64_t bytes;
};

// All of these throw TimedOut after the deadline of this thread's Operation, and std::runtime_error if the ranks do not ask
// for the same. Tensors are dense. Only MPI accesses memory of an accelerator; our own reduction functions need host memory.
void broadcast(const Way& way, const at::Tensor& tensor, int root);
void all_reduce(const Way& way, at::Tensor& tensor, const c10d::ReduceOp& op);
void reduce(const Way& way, at::Tensor& tensor, const c10d::ReduceOp& op, int root);
void all_gather(const Way& way, const at::Tensor& input, const at::Tensor& output);

// `input` holds one part of the size of `output` for each rank; `output` is not one of these parts.
void reduce_scatter(const Way& way, const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op);
void barrier(const Way& way);

// Every piece goes to, or comes from, its rank. Throws std::runtime_error if one of another size comes.
void exchange(const Way& way, Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives);

// A part of a message that may be longer than MPI can count.
struct Request {
  MPI_Request request;
  int64_t bytes;
};
std::vector<Request> post_send(MPI_Comm comm, const Piece& piece, int tag);
std::vector<Request> post_receive(MPI_Comm comm, const Piece& piece, int tag);

// The same for one whose beginning was found.
std::vector<Request> post_found(MPI_Comm comm, const Piece& piece, int tag, MPI_Message found);

// Throws std::runtime_error if what came is not of this size. `status`: of a receive.
void check_size(MPI_Status& status, int64_t bytes);

}  // namespace torchfleet
