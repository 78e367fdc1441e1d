// Moving and reducing memory of any size: MPI before version 4 counts in int.
#pragma once

#include "shared.h"

#include <vector>

namespace torchfleet {

struct Piece {
  int rank;
  char* data;
  int64_t bytes;
};

void broadcast(MPI_Comm comm, void* data, int64_t bytes, int root);
// Through `shared` unless it is null.
void all_reduce(MPI_Comm comm, Shared* shared, at::Tensor& tensor, const c10d::ReduceOp& op);
void reduce(MPI_Comm comm, at::Tensor& tensor, const c10d::ReduceOp& op, int root);
void all_gather(MPI_Comm comm, const void* input, void* output, int64_t bytes);

// `input` holds as many parts of the size of `output` as there are ranks.
void reduce_scatter(MPI_Comm comm, const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op);

// Every piece goes to, or comes from, its rank; what a rank has for itself is copied.
void exchange(MPI_Comm comm, const std::vector<Piece>& sends, const std::vector<Piece>& receives);

// The requests of a message that may be longer than MPI can count.
std::vector<MPI_Request> post_send(MPI_Comm comm, const Piece& piece, int tag);
std::vector<MPI_Request> post_receive(MPI_Comm comm, const Piece& piece, int tag);

}  // namespace torchfleet
