#include "transfer.h"

#include "agreement.h"
#include "devices.h"
#include "direct.h"
#include "parts.h"
#include "patience.h"
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

bool memory_is_wanted() {
  const char* given = std::getenv("TORCHFLEET_MPI_SHARED");
  return given == nullptr || std::string(given) != "0";
}

// The benchmark compares with MPI's own.
bool ring_is_wanted() {
  const char* given = std::getenv("TORCHFLEET_MPI_RING");
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
  Agreement agreement(comm_, same, own);
  if (blocking || neighbours_) {
    agreement.conclude();
  }
  collective();
  agreement.conclude();
}

void MPITransport::fail(const std::string& why) const {
  for (const auto& memory : {shared_, node_}) {
    if (memory) {
      memory->fail(why);
    }
  }
}

MPITransport::MPITransport(MPI_Comm comm) : comm_(comm), ring_(ring_is_wanted()) {
  Node node(node_of(comm));
  auto shared = Shared::among(node, ranks_of(node.comm, rank_in(comm)), memory_is_wanted());
  // In two levels only if every node with several ranks can share memory, because all ranks must use the same algorithm.
  int least[] = {shared || node.size() == 1, mpi_reads_accelerators(), node.size()}, most = node.size();
  TORCHFLEET_MPI(MPI_Allreduce(MPI_IN_PLACE, least, 3, MPI_INT, MPI_MIN, comm));
  TORCHFLEET_MPI(MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, comm));
  direct_ = least[1] != 0;
  neighbours_ = most > 1;
  if (node.size() == size_of(comm)) {
    shared_ = shared;
  } else if (least[0] != 0 && most > 1) {
    node_ = shared;  // a node with one rank needs none
    place_ = node.rank();
    places_ = least[2] == most ? most : 0;
    const int place = places_ > 0 || place_ == 0 ? place_ : MPI_UNDEFINED;
    TORCHFLEET_MPI(MPI_Comm_split(comm, place, rank_in(comm), &across_));
    across_ranks_ = across_ != MPI_COMM_NULL ? ranks_of(across_, rank_in(comm)) : std::vector<int>();
  }
}

void MPITransport::close() const {
  for (MPI_Comm comm : {across_, comm_}) {
    if (comm != MPI_COMM_NULL) {
      TORCHFLEET_MPI(MPI_Comm_free(&comm));
    }
  }
}

void MPITransport::broadcast(const at::Tensor& tensor, int root) const {
  char* all = static_cast<char*>(tensor.data_ptr());
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const Signature own(Signature::kBroadcast, tensor.scalar_type(), tensor.numel(), root);
  if (shared_ && tensor.is_cpu()) {
    shared_->begin(own);
    shared_->broadcast(all, bytes, root);
    return;
  }
  over_mpi(own, !tensor.is_cpu(), [&] {
    in_steps(bytes, [&](int64_t first, int count) {
      TORCHFLEET_MPI_DO(tensor, Ibcast, Bcast, all + first, count, MPI_BYTE, root, comm_);
    });
  });
}

// Inside each node, then between their first ranks, then inside each node: the fewest messages.
void MPITransport::all_reduce_by_first_ranks(Signature own, const at::Tensor& tensor, const Reduction& how) const {
  const Elements all(tensor, how);
  if (node_) {
    node_->begin(own);
    node_->reduce(all.data, all.count, how, all.size, 0);
  }
  if (place_ == 0) {
    Agreement agreement(across_, across_ranks_, own, node_.get());
    reduce_by_mpi(across_, tensor, all, how, ring_);
    agreement.conclude();
  }
  if (node_) {
    node_->broadcast(all.data, all.count * all.size, 0);
  }
}

// What the nodes ask for is told while each of them reduces, and compared before data of another size could be written beyond
// its buffer.
void MPITransport::all_reduce_by_all_ranks(Signature own, const at::Tensor& tensor, const Reduction& how) const {
  node_->begin(own);
  Agreement agreement(across_, across_ranks_, own, node_.get());
  all_reduce_in_parts(*node_, place_, places_, Elements(tensor, how), how, [&](const Elements& part) {
    agreement.conclude();
    reduce_by_mpi(across_, tensor, part, how, ring_);
  });
}

void MPITransport::all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op) const {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const auto [data, count, size] = Elements(tensor, how);
  const Signature own(Signature::kAllReduce, tensor.scalar_type(), tensor.numel(), -1, op.op_);
  if (shared_ && tensor.is_cpu()) {
    shared_->begin(own);
    shared_->all_reduce(data, count, how, size);
  } else if (tensor.is_cpu() && places_ > 0 && count * size >= kLeastInParts) {
    all_reduce_by_all_ranks(own, tensor, how);
  } else if (tensor.is_cpu() && (node_ || across_ != MPI_COMM_NULL)) {
    all_reduce_by_first_ranks(own, tensor, how);
  } else {
    over_mpi(own, !tensor.is_cpu(), [&] { reduce_by_mpi(comm_, tensor, Elements(tensor, how), how, ring_); });
  }
  divide_after(tensor, op, size_of(comm_));
}

void MPITransport::reduce(at::Tensor& tensor, const c10d::ReduceOp& op, int root) const {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const auto [data, count, size] = Elements(tensor, how);
  const Signature own(Signature::kReduce, tensor.scalar_type(), tensor.numel(), root, op.op_);
  const bool here = rank_in(comm_) == root;
  if (shared_ && tensor.is_cpu()) {
    shared_->begin(own);
    shared_->reduce(data, count, how, size, root);
  } else {
    const MPIReduction mpi = by_mpi(how);
    over_mpi(own, !tensor.is_cpu(), [&, data = data, count = count, size = size] {
      in_steps(count, [&](int64_t first, int some) {
        char* part = data + first * size;
        const void* from = here ? MPI_IN_PLACE : part;
        TORCHFLEET_MPI_DO(tensor, Ireduce, Reduce, from, here ? part : nullptr, some, mpi.type, mpi.op, root, comm_);
      });
    });
  }
  if (here) {
    divide_after(tensor, op, size_of(comm_));
  }
}

void MPITransport::all_gather(const at::Tensor& input, const at::Tensor& output) const {
  const auto bytes = static_cast<int64_t>(input.nbytes());
  char* all = static_cast<char*>(output.data_ptr());
  const bool in_place = all + rank_in(comm_) * bytes == input.data_ptr();
  const Signature own(Signature::kAllGather, input.scalar_type(), input.numel());
  if (shared_ && input.is_cpu()) {
    shared_->begin(own);
    shared_->all_gather(static_cast<const char*>(input.data_ptr()), all, bytes);
    return;
  }
  if (bytes <= kMost / size_of(comm_)) {  // some MPIs count what all ranks give in an int
    const void* from = in_place ? MPI_IN_PLACE : input.data_ptr();
    const int count = static_cast<int>(bytes);
    over_mpi(own, !input.is_cpu(), [&] {
      TORCHFLEET_MPI_DO(input, Iallgather, Allgather, from, count, MPI_BYTE, all, count, MPI_BYTE, comm_);
    });
    return;
  }
  const at::Tensor parts = output.view({size_of(comm_), -1});
  if (!in_place) {
    parts[rank_in(comm_)].copy_(input.view(-1));
    settle(output.device());
  }
  for (int root = 0; root < size_of(comm_); ++root) {
    broadcast(parts[root], root);
  }
}

void MPITransport::reduce_scatter(const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op) const {
  const Reduction how = reduction(output.scalar_type(), op);
  const auto [data, count, size] = Elements(output, how);
  const Signature own(Signature::kReduceScatter, output.scalar_type(), output.numel(), -1, op.op_);
  if (shared_ && input.is_cpu()) {
    shared_->begin(own);
    shared_->reduce_scatter(static_cast<const char*>(input.data_ptr()), data, count, how, size);
  } else if (count <= kMost / size_of(comm_)) {  // some MPIs count the elements of all ranks in an int
    const MPIReduction mpi = by_mpi(how);
    over_mpi(own, !input.is_cpu(), [&, data = data, count = count] {
      TORCHFLEET_MPI_DO(input, Ireduce_scatter_block, Reduce_scatter_block, input.data_ptr(), data,
                        static_cast<int>(count), mpi.type, mpi.op, comm_);
    });
  } else {
    const auto parts = input.view({size_of(comm_), -1});
    for (int root = 0; root < size_of(comm_); ++root) {
      at::Tensor part = parts[root].clone();
      Operation::hold(std::make_shared<at::Tensor>(part));
      settle(part.device());
      reduce(part, op, root);
      if (root == rank_in(comm_)) {
        output.view(-1).copy_(part);
      }
    }
    return;  // reduce() has already averaged
  }
  divide_after(output, op, size_of(comm_));
}

void MPITransport::barrier() const {
  if (shared_) {
    shared_->begin(Signature::barrier());
    shared_->barrier();
  } else {
    over_mpi(Signature::barrier(), false, [] {});  // no rank knows what all ask for before all are there
  }
}

std::vector<Request> post_send(MPI_Comm comm, const Piece& piece, int tag) {
  std::vector<Request> requests;
  in_steps(piece.bytes, [&](int64_t first, int count) {
    requests.push_back({MPI_REQUEST_NULL, count});
    TORCHFLEET_MPI(MPI_Isend(piece.data + first, count, MPI_BYTE, piece.rank, tag, comm,
                             &requests.back().request));
  });
  return requests;
}

std::vector<Request> post_receive(MPI_Comm comm, const Piece& piece, int tag) {
  std::vector<Request> requests;
  in_steps(piece.bytes, [&](int64_t first, int count) {
    requests.push_back({MPI_REQUEST_NULL, count});
    TORCHFLEET_MPI(MPI_Irecv(piece.data + first, count, MPI_BYTE, piece.rank, tag, comm,
                             &requests.back().request));
  });
  return requests;
}

std::vector<Request> post_message(MPI_Comm comm, const Piece& piece, int tag) {
  std::vector<Request> requests = post_send(comm, piece, tag);
  if (!is_last(requests.back())) {
    requests.push_back(post_send(comm, {piece.rank, piece.data, 0}, tag).front());
  }
  return requests;
}

bool is_last(const Request& part) {
  return part.bytes < kMost;
}

Request post_found(const Piece& rest, MPI_Message found, MPI_Status& status) {
  int came = 0;
  TORCHFLEET_MPI(MPI_Get_count(&status, MPI_BYTE, &came));
  Request part{MPI_REQUEST_NULL, came};
  if (came != std::min(kMost, rest.bytes)) {
    part.aside = std::make_shared<std::vector<char>>(came);
  }
  TORCHFLEET_MPI(MPI_Imrecv(part.aside ? part.aside->data() : rest.data, came, MPI_BYTE, &found, &part.request));
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
    add(post_receive(comm, piece, kExchangeTag));
  }
  for (const Piece& piece : sends) {
    add(post_send(comm, piece, kExchangeTag));
  }
  for (Patience patience; !are_done(requests); patience.rest()) {
  }
}
}  // namespace

void MPITransport::exchange(Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives) const {
  if (shared_) {
    compare_sizes(*shared_, own, size_of(comm_), sends, receives);
    exchange_by_mpi(comm_, sends, receives);
    return;
  }
  over_mpi(own, true, [&] {
    compare_sizes_by_mpi(comm_, sends, receives);
    exchange_by_mpi(comm_, sends, receives);
  });
}

}  // namespace torchfleet
