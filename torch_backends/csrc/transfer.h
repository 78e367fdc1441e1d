// Moving and reducing memory of any size: MPI before version 4 counts in int.
#pragma once

#include "shared.h"

#include <vector>

namespace torchfleet {

// How the ranks of a group reach each other.
struct Way {
  MPI_Comm comm;                   // all of them
  std::shared_ptr<Shared> shared;  // all of them, where they are on one node that lets them share memory
  std::shared_ptr<Shared> node;    // those of this node, where a group is on several and that pays
  MPI_Comm leaders;                // the first ranks of the nodes; MPI_COMM_NULL on others
  bool ring;                       // whether long data is reduced in a ring of our own where MPI carries it
  bool direct;                     // whether all their MPIs read memory of accelerators
};

// Called by all ranks of `comm`.
Way way_of(MPI_Comm comm);

struct Piece {
  int rank;
  char* data;
  int64_t bytes;
};

// Tensors are dense. Memory of an accelerator is MPI's alone, and what is reduced by a function of ours is not in such.
void broadcast(const Way& way, const at::Tensor& tensor, int root);
void all_reduce(const Way& way, at::Tensor& tensor, const c10d::ReduceOp& op);
void reduce(const Way& way, at::Tensor& tensor, const c10d::ReduceOp& op, int root);
void all_gather(const Way& way, const at::Tensor& input, const at::Tensor& output);

// `input` holds as many parts of the size of `output` as there are ranks; `output` is none of them.
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
