#include "transfer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace torchfleet {

namespace {
// Elements or bytes of one call. Tests make it small, to see what happens to more than an int can count.
const int64_t kMost = [] {
  const char* given = std::getenv("TORCHFLEET_MPI_STEP");
  return given != nullptr ? std::max<int64_t>(1, std::atoll(given)) : int64_t{1} << 30;
}();
constexpr int kExchangeTag = 0;

int rank_in(MPI_Comm comm) {
  int rank = 0;
  TORCHFLEET_MPI(MPI_Comm_rank(comm, &rank));
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  TORCHFLEET_MPI(MPI_Comm_size(comm, &size));
  return size;
}

// Calls step(first, count) until all of `total` is done; once with a count of zero if there is nothing to do, for
// every rank takes part in every collective.
template <typename Step>
void in_steps(int64_t total, Step step) {
  int64_t first = 0;
  do {
    const int64_t count = std::min(kMost, total - first);
    step(first, static_cast<int>(count));
    first += count;
  } while (first < total);
}
}  // namespace

void broadcast(MPI_Comm comm, void* data, int64_t bytes, int root) {
  in_steps(bytes, [&](int64_t first, int count) {
    TORCHFLEET_MPI(MPI_Bcast(static_cast<char*>(data) + first, count, MPI_BYTE, root, comm));
  });
}

void all_reduce(MPI_Comm comm, Shared* shared, at::Tensor& tensor, const c10d::ReduceOp& op) {
  const Reduction how = reduction(tensor.scalar_type(), op);
  char* data = static_cast<char*>(tensor.data_ptr());
  const int64_t size = tensor.element_size() / how.per_element;
  const int64_t all = tensor.numel() * how.per_element;
  if (shared != nullptr) {
    shared->all_reduce(data, all, how, size);
  } else {
    in_steps(all, [&](int64_t first, int count) {
      TORCHFLEET_MPI(MPI_Allreduce(MPI_IN_PLACE, data + first * size, count, how.type, how.op, comm));
    });
  }
  average(tensor, op, size_of(comm));
}

void reduce(MPI_Comm comm, at::Tensor& tensor, const c10d::ReduceOp& op, int root) {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const bool here = rank_in(comm) == root;
  char* data = static_cast<char*>(tensor.data_ptr());
  const int64_t size = tensor.element_size() / how.per_element;
  in_steps(tensor.numel() * how.per_element, [&](int64_t first, int count) {
    char* part = data + first * size;
    TORCHFLEET_MPI(MPI_Reduce(here ? MPI_IN_PLACE : part, here ? part : nullptr, count, how.type, how.op, root, comm));
  });
  if (here) {
    average(tensor, op, size_of(comm));
  }
}

void all_gather(MPI_Comm comm, const void* input, void* output, int64_t bytes) {
  char* all = static_cast<char*>(output);
  char* own = all + rank_in(comm) * bytes;
  const bool in_place = own == input;
  if (bytes <= kMost) {
    const void* from = in_place ? MPI_IN_PLACE : input;
    const int count = static_cast<int>(bytes);
    TORCHFLEET_MPI(MPI_Allgather(from, count, MPI_BYTE, all, count, MPI_BYTE, comm));
    return;
  }
  if (!in_place) {
    std::memcpy(own, input, bytes);
  }
  for (int root = 0; root < size_of(comm); ++root) {
    broadcast(comm, all + root * bytes, bytes, root);
  }
}

void reduce_scatter(MPI_Comm comm, const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op) {
  const Reduction how = reduction(output.scalar_type(), op);
  const int64_t count = output.numel() * how.per_element;
  if (count <= kMost) {
    TORCHFLEET_MPI(MPI_Reduce_scatter_block(input.data_ptr(), output.data_ptr(), static_cast<int>(count), how.type,
                                            how.op, comm));
    average(output, op, size_of(comm));
    return;
  }
  const auto parts = input.view({size_of(comm), -1});
  for (int root = 0; root < size_of(comm); ++root) {
    at::Tensor part = parts[root].clone();
    reduce(comm, part, op, root);
    if (root == rank_in(comm)) {
      output.view(-1).copy_(part);
    }
  }
}

std::vector<MPI_Request> post_send(MPI_Comm comm, const Piece& piece, int tag) {
  std::vector<MPI_Request> requests;
  in_steps(piece.bytes, [&](int64_t first, int count) {
    requests.emplace_back();
    TORCHFLEET_MPI(MPI_Isend(piece.data + first, count, MPI_BYTE, piece.rank, tag, comm, &requests.back()));
  });
  return requests;
}

std::vector<MPI_Request> post_receive(MPI_Comm comm, const Piece& piece, int tag) {
  std::vector<MPI_Request> requests;
  in_steps(piece.bytes, [&](int64_t first, int count) {
    requests.emplace_back();
    TORCHFLEET_MPI(MPI_Irecv(piece.data + first, count, MPI_BYTE, piece.rank, tag, comm, &requests.back()));
  });
  return requests;
}

void exchange(MPI_Comm comm, const std::vector<Piece>& sends, const std::vector<Piece>& receives) {
  const int me = rank_in(comm);
  std::vector<MPI_Request> requests;
  const auto add = [&](std::vector<MPI_Request> more) { requests.insert(requests.end(), more.begin(), more.end()); };
  for (const Piece& piece : receives) {
    if (piece.rank != me) {
      add(post_receive(comm, piece, kExchangeTag));
    }
  }
  const Piece* own = nullptr;
  for (const Piece& piece : sends) {
    if (piece.rank != me) {
      add(post_send(comm, piece, kExchangeTag));
    } else {
      own = &piece;
    }
  }
  for (const Piece& piece : receives) {
    if (own != nullptr && piece.rank == me && piece.data != own->data) {
      std::memmove(piece.data, own->data, std::min(piece.bytes, own->bytes));
    }
  }
  TORCHFLEET_MPI(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

}  // namespace torchfleet
