#include "mpi_transport.h"

#include "signature_check.h"
#include "devices.h"
#include "gpu_aware.h"
#include "backoff.h"
#include "ring.h"
#include "sizes.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace torchfleet {

// Non-blocking with polling; blocking for memory of an accelerator, which Open MPI's non-blocking collectives do not
// support (ompi#9845).
#define TORCHFLEET_MPI_DO(tensor, begun, whole, ...)                  \
  ((tensor).is_cpu() ? TORCHFLEET_MPI_AWAIT(MPI_##begun, __VA_ARGS__) \
                     : ::torchfleet::check(MPI_##whole(__VA_ARGS__), "MPI_" #whole))

namespace {
// Elements or bytes of one call. Tests make it small, to test counts that exceed an int.
const int64_t kMost = [] {
  const char* given = std::getenv("TORCHFLEET_MPI_STEP");
  return given != nullptr ? std::max<int64_t>(1, std::atoll(given)) : int64_t{1} << 30;
}();
constexpr int kExchangeTag = 0;
constexpr int64_t kLeastInRing = 128 << 10;  // bytes of each rank's part
constexpr int64_t kLeastInParts = 4 << 20;   // bytes that all ranks of a node, and not the first one alone, reduce between nodes

// What each rank of a communicator says. All of them call this.
std::vector<int> ranks_of(MPI_Comm comm, int own) {
  std::vector<int> found(size_of(comm));
  TORCHFLEET_MPI(MPI_Allgather(&own, 1, MPI_INT, found.data(), 1, MPI_INT, comm));
  return found;
}

// Calls step(first, count) until all of `total` is done; once with a count of zero if there is nothing to do, because
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

// The ranks of a group on this node. Tests divide one machine into nodes with this many ranks each.
MPI_Comm node_of(MPI_Comm comm) {
  MPI_Comm node;
  const char* given = std::getenv("TORCHFLEET_MPI_NODE_RANKS");
  if (given != nullptr) {
    TORCHFLEET_MPI(MPI_Comm_split(comm, rank_in(comm) / std::max(1, std::atoi(given)), rank_in(comm), &node));
  } else {
    TORCHFLEET_MPI(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank_in(comm), MPI_INFO_NULL, &node));
  }
  return node;
}

// The ranks of a communicator that share memory, which this frees.
struct Node : Rendezvous {
  explicit Node(MPI_Comm comm) : comm(comm) {}
  ~Node() override { MPI_Comm_free(&comm); }
  Node(const Node&) = delete;
  int rank() const override { return rank_in(comm); }
  int size() const override { return size_of(comm); }
  std::vector<std::string> all_gather(const std::string& own) override {
    const int bytes = static_cast<int>(own.size());
    std::vector<char> all(own.size() * size());
    TORCHFLEET_MPI(MPI_Allgather(own.data(), bytes, MPI_CHAR, all.data(), bytes, MPI_CHAR, comm));
    std::vector<std::string> found;
    for (size_t first = 0; first < all.size(); first += own.size()) {
      found.emplace_back(&all[first], own.size());
    }
    return found;
  }
  MPI_Comm comm;
};

bool is_on(const char* variable) {  // unless it is 0
  const char* given = std::getenv(variable);
  return given == nullptr || std::string(given) != "0";
}

// `part`: of the memory of a tensor.
void reduce_by_mpi(MPI_Comm comm, const at::Tensor& tensor, const Elements& part, const Reduction& how, bool ring) {
  const auto [data, count, size] = part;
  if (ring && tensor.is_cpu() && count * size >= kLeastInRing * size_of(comm)) {
    reduce_in_ring(comm, data, count, how, size);
    return;
  }
  const MPIReduction mpi = by_mpi(how);
  in_steps(count, [&, data = data, size = size](int64_t first, int some) {
    TORCHFLEET_MPI_DO(tensor, Iallreduce, Allreduce, MPI_IN_PLACE, data + first * size, some, mpi.type, mpi.op, comm);
  });
}
}  // namespace

template <typename Collective>
void MPITransport::over_mpi(Signature own, bool blocking, Collective collective) const {
  static const std::vector<int> same;
  SignatureCheck check(comm_, same, own);
  if (blocking || shares_nodes_) {
    check.wait();
  }
  collective();
  check.wait();
}

MPITransport::MPITransport(MPI_Comm comm)
    : Transport(rank_in(comm), size_of(comm)), comm_(comm), use_ring_(is_on("TORCHFLEET_MPI_RING")) {
  Node node(node_of(comm));
  auto shared = Shared::among(node, ranks_of(node.comm, rank_), is_on("TORCHFLEET_MPI_SHARED"));
  // In two levels only if every node with several ranks can share memory, because all ranks must use the same algorithm.
  int least[] = {shared || node.size() == 1, mpi_is_gpu_aware(), node.size()}, most = node.size();
  TORCHFLEET_MPI(MPI_Allreduce(MPI_IN_PLACE, least, 3, MPI_INT, MPI_MIN, comm));
  TORCHFLEET_MPI(MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, comm));
  gpu_aware_ = least[1] != 0;
  shares_nodes_ = most > 1;
  if (node.size() == size_) {
    shared_ = shared;
  } else if (least[0] != 0 && most > 1) {
    node_ = shared;  // a node with one rank needs none
    local_rank_ = node.rank();
    local_size_ = least[2] == most ? most : 0;
    const int color = local_size_ > 0 || local_rank_ == 0 ? local_rank_ : MPI_UNDEFINED;
    TORCHFLEET_MPI(MPI_Comm_split(comm, color, rank_, &across_));
    across_ranks_ = across_ != MPI_COMM_NULL ? ranks_of(across_, rank_) : std::vector<int>();
  }
}

void MPITransport::close() const {
  for (MPI_Comm comm : {across_, comm_}) {
    if (comm != MPI_COMM_NULL) {
      TORCHFLEET_MPI(MPI_Comm_free(&comm));
    }
  }
}

void MPITransport::broadcast_impl(Signature own, const at::Tensor& tensor, int root) const {
  over_mpi(own, !tensor.is_cpu(), [&] {
    in_steps(nbytes_of(tensor), [&](int64_t first, int count) {
      TORCHFLEET_MPI_DO(tensor, Ibcast, Bcast, bytes_of(tensor) + first, count, MPI_BYTE, root, comm_);
    });
  });
}

void MPITransport::all_reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how) const {
  const Elements all = elements_of(tensor, how);
  if (!tensor.is_cpu() || (!node_ && across_ == MPI_COMM_NULL)) {
    over_mpi(own, !tensor.is_cpu(), [&] { reduce_by_mpi(comm_, tensor, all, how, use_ring_); });
    return;
  }
  // The choice depends only on what is the same on all ranks.
  const bool by_all = local_size_ > 0 && all.bytes() >= kLeastInParts;
  all_reduce_in_two_levels(own, all, how, by_all, [&](const Elements& part) {
    SignatureCheck check(across_, across_ranks_, own, node_.get());
    if (by_all) {  // so long, that it costs nothing to compare first: data of another size could be written beyond its buffer
      check.wait();
    }
    reduce_by_mpi(across_, tensor, part, how, use_ring_);
    check.wait();
  });
}

void MPITransport::reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how, int root) const {
  const auto [data, count, size] = elements_of(tensor, how);
  const MPIReduction mpi = by_mpi(how);
  over_mpi(own, !tensor.is_cpu(), [&, data = data, count = count, size = size] {
    in_steps(count, [&](int64_t first, int some) {
      char* part = data + first * size;
      const void* from = rank_ == root ? MPI_IN_PLACE : part;
      TORCHFLEET_MPI_DO(tensor, Ireduce, Reduce, from, rank_ == root ? part : nullptr, some, mpi.type, mpi.op, root, comm_);
    });
  });
}

void MPITransport::all_gather_impl(Signature own, const at::Tensor& input, const at::Tensor& output) const {
  const int64_t bytes = nbytes_of(input);
  char* all = bytes_of(output);
  const bool in_place = all + rank_ * bytes == bytes_of(input);
  if (bytes <= kMost / size_) {  // some MPIs count what all ranks give in an int
    const void* from = in_place ? MPI_IN_PLACE : input.data_ptr();
    const int count = static_cast<int>(bytes);
    over_mpi(own, !input.is_cpu(), [&] {
      TORCHFLEET_MPI_DO(input, Iallgather, Allgather, from, count, MPI_BYTE, all, count, MPI_BYTE, comm_);
    });
    return;
  }
  const at::Tensor parts = output.view({size_, -1});
  if (!in_place) {
    parts[rank_].copy_(input.view(-1));
    synchronize(output.device());
  }
  for (int root = 0; root < size_; ++root) {
    broadcast(parts[root], root);
  }
}

void MPITransport::reduce_scatter_impl(Signature own, const at::Tensor& input, const at::Tensor& output,
                                       const Reduction& how) const {
  const auto [data, count, size] = elements_of(output, how);
  if (count <= kMost / size_) {  // some MPIs count the elements of all ranks in an int
    const MPIReduction mpi = by_mpi(how);
    over_mpi(own, !input.is_cpu(), [&, data = data, count = count] {
      TORCHFLEET_MPI_DO(input, Ireduce_scatter_block, Reduce_scatter_block, bytes_of(input), data, static_cast<int>(count),
                        mpi.type, mpi.op, comm_);
    });
    return;
  }
  const at::Tensor parts = input.view({size_, -1});
  for (int root = 0; root < size_; ++root) {
    const at::Tensor part = parts[root].clone();
    Operation::hold(std::make_shared<at::Tensor>(part));
    synchronize(part.device());
    reduce_impl(own, part, how, root);
    if (root == rank_) {
      output.view(-1).copy_(part);
    }
  }
}

void MPITransport::barrier_impl() const {
  over_mpi(Signature::barrier(), false, [] {});  // no rank knows what all ask for before all are there
}

namespace {
// Starts MPI_Isend or MPI_Irecv of all of a piece.
template <typename Call>
std::vector<Request> post(const char* name, Call call, MPI_Comm comm, const Piece& piece, int tag) {
  std::vector<Request> requests;
  in_steps(piece.bytes, [&](int64_t first, int count) {
    requests.push_back({MPI_REQUEST_NULL, count});
    check(call(piece.data + first, count, MPI_BYTE, piece.rank, tag, comm, &requests.back().request), name);
  });
  return requests;
}
}  // namespace

std::vector<Request> post_message(MPI_Comm comm, const Piece& piece, int tag) {
  std::vector<Request> requests = post("MPI_Isend", MPI_Isend, comm, piece, tag);
  if (!is_last(requests.back())) {
    requests.push_back(post("MPI_Isend", MPI_Isend, comm, {piece.rank, piece.data, 0}, tag).front());
  }
  return requests;
}

bool is_last(const Request& part) {
  return part.bytes < kMost;
}

Request post_matched(const Piece& rest, MPI_Message found, MPI_Status& status) {
  int came = 0;
  TORCHFLEET_MPI(MPI_Get_count(&status, MPI_BYTE, &came));
  Request part{MPI_REQUEST_NULL, came};
  if (came != std::min(kMost, rest.bytes)) {
    part.scratch = std::make_shared<std::vector<char>>(came);
  }
  TORCHFLEET_MPI(MPI_Imrecv(part.scratch ? part.scratch->data() : rest.data, came, MPI_BYTE, &found, &part.request));
  return part;
}

namespace {
// Of this rank with each other; all ranks have asked for the same.
void compare_sizes_by_mpi(MPI_Comm comm, const std::vector<Piece>& sends, const std::vector<Piece>& receives) {
  const int ranks = size_of(comm), here = rank_in(comm);
  const std::vector<int64_t> mine = sizes_of(ranks, sends, receives);
  const auto own = std::make_shared<std::vector<int64_t>>(mine.size()), theirs = std::make_shared<std::vector<int64_t>>(mine.size());
  Operation::hold(own);
  Operation::hold(theirs);
  for (int rank = 0; rank < ranks; ++rank) {
    (*own)[2 * rank] = mine[rank];
    (*own)[2 * rank + 1] = mine[ranks + rank];
  }
  TORCHFLEET_MPI_AWAIT(MPI_Ialltoall, own->data(), 2, MPI_INT64_T, theirs->data(), 2, MPI_INT64_T, comm);
  for (int rank = 0; rank < ranks; ++rank) {
    check_pair(rank, here, (*theirs)[2 * rank], mine[ranks + rank]);
    check_pair(here, rank, mine[rank], (*theirs)[2 * rank + 1]);
  }
}

void exchange_by_mpi(MPI_Comm comm, const std::vector<Piece>& sends, const std::vector<Piece>& receives) {
  std::vector<MPI_Request> requests;
  const auto add = [&](const std::vector<Request>& more) {
    for (const Request& one : more) {
      requests.push_back(one.request);
    }
  };
  for (const Piece& piece : receives) {
    add(post("MPI_Irecv", MPI_Irecv, comm, piece, kExchangeTag));
  }
  for (const Piece& piece : sends) {
    add(post("MPI_Isend", MPI_Isend, comm, piece, kExchangeTag));
  }
  for (Backoff backoff; !test_all(requests); backoff.pause()) {
  }
}
}  // namespace

void MPITransport::exchange(Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives) const {
  if (shared_) {
    compare_sizes(*shared_, own, size_, sends, receives);
    exchange_by_mpi(comm_, sends, receives);
    return;
  }
  over_mpi(own, true, [&] {
    compare_sizes_by_mpi(comm_, sends, receives);
    exchange_by_mpi(comm_, sends, receives);
  });
}

}  // namespace torchfleet
