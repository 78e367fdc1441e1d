// Moving and reducing memory of any size: MPI before version 4 counts in int.
#pragma once

#include "shared.h"

#include <vector>

namespace torchfleet {

// The communicators and the shared memory of a group.
struct Way {
  MPI_Comm comm;                   // all of them
  std::shared_ptr<Shared> shared;  // of all ranks, if they are on one node and can share memory
  std::shared_ptr<Shared> node;    // of this node's ranks, if the group is on several nodes and it is faster
  MPI_Comm leaders;                // the first ranks of the nodes; MPI_COMM_NULL on others
  bool ring;                       // whether long data is reduced in our own ring over MPI
  bool direct;                     // whether the MPI of all ranks can read memory of accelerators
};

// Called by all ranks of `comm`.
Way way_of(MPI_Comm comm);

struct Piece {
  int rank;
  char* data;
  int64_t bytes;
};

// Tensors are dense. Only MPI accesses memory of an accelerator; our own reduction functions need host memory.
void broadcast(const Way& way, const at::Tensor& tensor, int root);
void all_reduce(const Way& way, at::Tensor& tensor, const c10d::ReduceOp& op);
void reduce(const Way& way, at::Tensor& tensor, const c10d::ReduceOp& op, int root);
void all_gather(const Way& way, const at::Tensor& input, const at::Tensor& output);

// `input` holds one part of the size of `output` for each rank; `output` is not one of these parts.
void reduce_scatter(const Way& way, const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op);
void barrier(const Way& way);

// Every piece goes to, or comes from, its rank.
void exchange(MPI_Comm comm, const std::vector<Piece>& sends, const std::vector<Piece>& receives);

// The requests of a message that may be longer than MPI can count.
std::vector<MPI_Request> post_send(MPI_Comm comm, const Piece& piece, int tag);
std::vector<MPI_Request> post_receive(MPI_Comm comm, const Piece& piece, int tag);

// The same for one whose beginning was found.
std::vector<MPI_Request> post_found(MPI_Comm comm, const Piece& piece, int tag, MPI_Message found);

}  // namespace torchfleet
