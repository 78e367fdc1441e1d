#include "transfer.h"

#include "devices.h"
#include "patience.h"

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

// A ring all-reduce of long data in segments: while one segment is transferred, the previous one is reduced. Each element
// is reduced in one order, so all ranks get the same bits. MPI_Iallreduce does not overlap the two, and makes progress only
// when it is polled.
class Ring {
 public:
  Ring(MPI_Comm comm, char* data, int64_t count, const Reduction& how, int64_t size)
      : comm_(comm), data_(data), count_(count), how_(how), size_(size), rank_(rank_in(comm)), ranks_(size_of(comm)) {
    const int64_t longest = (count + ranks_ - 1) / ranks_;
    segments_ = (longest + kSegment / size - 1) / (kSegment / size);
    items_ = (2 * ranks_ - 2) * segments_;
    room_.resize(kWindow * kSegment);
  }

  void go() {
    Patience patience;
    while (received_ < items_ || sent_ < items_) {
      post();
      if (advance()) {
        patience = Patience();
      } else {
        patience.rest();
      }
    }
  }

 private:
  static constexpr int64_t kSegment = 512 << 10;  // bytes
  static constexpr int64_t kWindow = 4;           // segments in flight

  // Item by item: segment `item % segments_` of step `item / segments_`. The first half of the steps reduces, after which
  // each rank has one finished part; the second half distributes all parts to all ranks.
  bool reduces(int64_t item) const { return item < (ranks_ - 1) * segments_; }
  Piece piece(int64_t item, int ahead, int peer) const {
    const int64_t step = item / segments_ + ahead, part = ((rank_ - step) % ranks_ + ranks_) % ranks_;
    const int64_t first = part * count_ / ranks_ + item % segments_ * (kSegment / size_);
    const int64_t end = std::min((part + 1) * count_ / ranks_, first + kSegment / size_);
    return {static_cast<int>((peer + ranks_) % ranks_), data_ + first * size_, std::max<int64_t>(0, end - first) * size_};
  }

  void post() {
    for (; receiving_ < std::min(items_, received_ + kWindow); ++receiving_) {
      if (!reduces(receiving_) && receiving_ - (ranks_ - 1) * segments_ >= sent_) {
        break;  // its old content is still being sent
      }
      Piece to = piece(receiving_, 1, rank_ - 1);
      if (reduces(receiving_)) {
        to.data = &room_[receiving_ % kWindow * kSegment];
      }
      TORCHFLEET_MPI(MPI_Irecv(to.data, static_cast<int>(to.bytes), MPI_BYTE, to.rank, kExchangeTag, comm_,
                               &receives_[receiving_ % kWindow]));
    }
    for (; sending_ < std::min(items_, sent_ + kWindow) && sending_ - segments_ < received_; ++sending_) {
      const Piece from = piece(sending_, 0, rank_ + 1);
      TORCHFLEET_MPI(MPI_Isend(from.data, static_cast<int>(from.bytes), MPI_BYTE, from.rank, kExchangeTag, comm_,
                               &sends_[sending_ % kWindow]));
    }
  }

  bool advance() {
    int received = 0, sent = 0;
    if (received_ < receiving_) {
      TORCHFLEET_MPI(MPI_Test(&receives_[received_ % kWindow], &received, MPI_STATUS_IGNORE));
    }
    if (sent_ < sending_) {
      TORCHFLEET_MPI(MPI_Test(&sends_[sent_ % kWindow], &sent, MPI_STATUS_IGNORE));
    }
    if (received != 0 && reduces(received_)) {
      const Piece to = piece(received_, 1, rank_ - 1);
      const int count = static_cast<int>(to.bytes / size_);
      TORCHFLEET_MPI(MPI_Reduce_local(&room_[received_ % kWindow * kSegment], to.data, count, how_.type, how_.op));
    }
    received_ += received;
    sent_ += sent;
    return received + sent > 0;
  }

  MPI_Comm comm_;
  char* data_;
  const int64_t count_;
  const Reduction how_;
  const int64_t size_, rank_, ranks_;
  int64_t segments_, items_;
  int64_t receiving_ = 0, received_ = 0, sending_ = 0, sent_ = 0;  // items that are posted, and that are done
  MPI_Request receives_[kWindow], sends_[kWindow];
  static thread_local std::vector<char> room_;
};
thread_local std::vector<char> Ring::room_;

// The benchmark compares with MPI's own.
bool ring_is_wanted() {
  const char* given = std::getenv("TORCHFLEET_MPI_RING");
  return given == nullptr || std::string(given) != "0";
}

// The buffers of a tensor that MPI reduces.
struct Elements {
  Elements(const at::Tensor& tensor, const Reduction& how)
      : data(static_cast<char*>(tensor.data_ptr())),
        count(tensor.numel() * how.per_element),
        size(tensor.element_size() / how.per_element) {}
  char* data;
  int64_t count, size;
};

void reduce_by_mpi(MPI_Comm comm, const at::Tensor& tensor, const Reduction& how, bool ring) {
  const auto [data, count, size] = Elements(tensor, how);
  if (ring && tensor.is_cpu() && count * size >= kLeastInRing * size_of(comm)) {
    Ring(comm, data, count, how, size).go();
    return;
  }
  in_steps(count, [&, data = data, size = size](int64_t first, int some) {
    TORCHFLEET_MPI_DO(tensor, Iallreduce, Allreduce, MPI_IN_PLACE, data + first * size, some, how.type, how.op, comm);
  });
}
}  // namespace

Way way_of(MPI_Comm comm) {
  MPI_Comm node = node_of(comm), leaders = MPI_COMM_NULL;
  const bool alone = size_of(node) == size_of(comm), first = rank_in(node) == 0, ring = ring_is_wanted();
  auto shared = Shared::among(node);
  // In two levels only if every node with several ranks can share memory, because all ranks must use the same algorithm.
  int all[] = {shared || size_of(node) == 1, mpi_reads_accelerators()}, several = size_of(node) > 1;
  TORCHFLEET_MPI(MPI_Allreduce(MPI_IN_PLACE, all, 2, MPI_INT, MPI_MIN, comm));
  TORCHFLEET_MPI(MPI_Allreduce(MPI_IN_PLACE, &several, 1, MPI_INT, MPI_MAX, comm));
  TORCHFLEET_MPI(MPI_Comm_free(&node));
  const bool good = all[0] != 0, direct = all[1] != 0;
  if (alone) {
    return {comm, shared, nullptr, leaders, ring, direct};
  }
  if (!good || several == 0) {
    return {comm, nullptr, nullptr, leaders, ring, direct};
  }
  // A node with one rank needs no shared memory, and its only rank is its leader.
  TORCHFLEET_MPI(MPI_Comm_split(comm, first ? 0 : MPI_UNDEFINED, rank_in(comm), &leaders));
  return {comm, nullptr, shared, leaders, ring, direct};
}

void broadcast(const Way& way, const at::Tensor& tensor, int root) {
  char* all = static_cast<char*>(tensor.data_ptr());
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (way.shared && tensor.is_cpu()) {
    way.shared->broadcast(all, bytes, root);
    return;
  }
  in_steps(bytes, [&](int64_t first, int count) {
    TORCHFLEET_MPI_DO(tensor, Ibcast, Bcast, all + first, count, MPI_BYTE, root, way.comm);
  });
}

void all_reduce(const Way& way, at::Tensor& tensor, const c10d::ReduceOp& op) {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const auto [data, count, size] = Elements(tensor, how);
  if (!tensor.is_cpu()) {
    reduce_by_mpi(way.comm, tensor, how, false);
  } else if (way.shared) {
    way.shared->all_reduce(data, count, how, size);
  } else if (way.node || way.leaders != MPI_COMM_NULL) {
    if (way.node) {
      way.node->reduce(data, count, how, size, 0);
    }
    if (way.leaders != MPI_COMM_NULL) {
      reduce_by_mpi(way.leaders, tensor, how, way.ring);
    }
    if (way.node) {
      way.node->broadcast(data, count * size, 0);
    }
  } else {
    reduce_by_mpi(way.comm, tensor, how, way.ring);
  }
  average(tensor, op, size_of(way.comm));
}

void reduce(const Way& way, at::Tensor& tensor, const c10d::ReduceOp& op, int root) {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const auto [data, count, size] = Elements(tensor, how);
  const bool here = rank_in(way.comm) == root;
  if (way.shared && tensor.is_cpu()) {
    way.shared->reduce(data, count, how, size, root);
  } else {
    in_steps(count, [&, data = data, size = size](int64_t first, int some) {
      char* part = data + first * size;
      const void* from = here ? MPI_IN_PLACE : part;
      TORCHFLEET_MPI_DO(tensor, Ireduce, Reduce, from, here ? part : nullptr, some, how.type, how.op, root, way.comm);
    });
  }
  if (here) {
    average(tensor, op, size_of(way.comm));
  }
}

void all_gather(const Way& way, const at::Tensor& input, const at::Tensor& output) {
  const auto bytes = static_cast<int64_t>(input.nbytes());
  char* all = static_cast<char*>(output.data_ptr());
  const bool in_place = all + rank_in(way.comm) * bytes == input.data_ptr();
  if (way.shared && input.is_cpu()) {
    way.shared->all_gather(static_cast<const char*>(input.data_ptr()), all, bytes);
    return;
  }
  if (bytes <= kMost) {
    const void* from = in_place ? MPI_IN_PLACE : input.data_ptr();
    const int count = static_cast<int>(bytes);
    TORCHFLEET_MPI_DO(input, Iallgather, Allgather, from, count, MPI_BYTE, all, count, MPI_BYTE, way.comm);
    return;
  }
  const at::Tensor parts = output.view({size_of(way.comm), -1});
  if (!in_place) {
    parts[rank_in(way.comm)].copy_(input.view(-1));
    settle(output.device());
  }
  for (int root = 0; root < size_of(way.comm); ++root) {
    broadcast(way, parts[root], root);
  }
}

void reduce_scatter(const Way& way, const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op) {
  const Reduction how = reduction(output.scalar_type(), op);
  const auto [data, count, size] = Elements(output, how);
  if (way.shared && input.is_cpu()) {
    way.shared->reduce_scatter(static_cast<const char*>(input.data_ptr()), data, count, how, size);
  } else if (count <= kMost) {
    TORCHFLEET_MPI_DO(input, Ireduce_scatter_block, Reduce_scatter_block, input.data_ptr(), data, static_cast<int>(count),
                      how.type, how.op, way.comm);
  } else {
    const auto parts = input.view({size_of(way.comm), -1});
    for (int root = 0; root < size_of(way.comm); ++root) {
      at::Tensor part = parts[root].clone();
      settle(part.device());
      reduce(way, part, op, root);
      if (root == rank_in(way.comm)) {
        output.view(-1).copy_(part);
      }
    }
    return;  // reduce() has already averaged
  }
  average(output, op, size_of(way.comm));
}

void barrier(const Way& way) {
  if (way.shared) {
    way.shared->barrier();
  } else {
    TORCHFLEET_MPI_AWAIT(MPI_Ibarrier, way.comm);
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

std::vector<MPI_Request> post_found(MPI_Comm comm, const Piece& piece, int tag, MPI_Message found) {
  const int64_t first = std::min(kMost, piece.bytes);
  MPI_Request request;
  TORCHFLEET_MPI(MPI_Imrecv(piece.data, static_cast<int>(first), MPI_BYTE, &found, &request));
  std::vector<MPI_Request> requests{request};
  if (first < piece.bytes) {
    const auto rest = post_receive(comm, {piece.rank, piece.data + first, piece.bytes - first}, tag);
    requests.insert(requests.end(), rest.begin(), rest.end());
  }
  return requests;
}

void exchange(MPI_Comm comm, const std::vector<Piece>& sends, const std::vector<Piece>& receives) {
  std::vector<MPI_Request> requests;
  const auto add = [&](std::vector<MPI_Request> more) { requests.insert(requests.end(), more.begin(), more.end()); };
  for (const Piece& piece : receives) {
    add(post_receive(comm, piece, kExchangeTag));
  }
  for (const Piece& piece : sends) {
    add(post_send(comm, piece, kExchangeTag));
  }
  for (Patience patience; !are_done(requests); patience.rest()) {
  }
}

}  // namespace torchfleet
