#include "shm_transport.h"

#include "operation.h"
#include "sizes.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>

namespace torchfleet {

namespace {
constexpr int64_t kLeastInParts = 128 << 10;  // bytes that all ranks of a node, and not the first one alone, reduce between nodes
constexpr int kExchangeTag = std::numeric_limits<int>::max() - 1;  // of messages that are ours; programs use small ones

// By a store. Each round has keys of its own.
class StoreRendezvous : public Rendezvous {
 public:
  StoreRendezvous(const StorePtr& store, const std::string& name, int rank, int size)
      : store_(c10::make_intrusive<c10d::PrefixStore>(name, store)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> all_gather(const std::string& own) override {
    const std::string prefix = std::to_string(round_++) + "/";
    store_->set(prefix + std::to_string(rank_), std::vector<uint8_t>(own.begin(), own.end()));
    std::vector<std::string> found;
    for (int rank = 0; rank < size_; ++rank) {
      const std::vector<uint8_t> theirs = store_->get(prefix + std::to_string(rank));
      found.emplace_back(theirs.begin(), theirs.end());
    }
    return found;
  }

 private:
  const c10::intrusive_ptr<c10d::PrefixStore> store_;
  const int rank_, size_;
  int round_ = 0;
};

// What is left of the time of this thread's operation, for gloo, which has deadlines of its own.
template <typename Options>
Options in_time(Options options) {
  options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(Operation::at_most(std::chrono::hours(24))) +
                    std::chrono::milliseconds(1);
  return options;
}

at::Tensor bytes_at(const char* data, int64_t bytes) {
  return at::from_blob(const_cast<char*>(data), {bytes}, at::kByte);
}

at::Tensor bytes_of_all(const at::Tensor& tensor) {
  return bytes_at(bytes_of(tensor), nbytes_of(tensor));
}

// What is reduced, as a flat tensor.
at::Tensor units_of(const Elements& all, const Reduction& how) {
  return at::from_blob(all.data, {all.count}, how.unit);
}

// Whether gloo reduces these as we do. It has not all types, and loses NaN in MIN and MAX.
bool gloo_reduces(const Reduction& how) {
  using Op = c10d::ReduceOp;
  switch (how.unit) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return how.op == Op::SUM || how.op == Op::PRODUCT;
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

// Reduces the rows of a matrix, one of each rank, in their order.
void reduce_rows(const at::Tensor& rows, const Reduction& how, const at::Tensor& target) {
  char* to = static_cast<char*>(target.data_ptr());
  const auto bytes = static_cast<int64_t>(target.nbytes());
  const char* from = static_cast<const char*>(rows.data_ptr());
  std::memcpy(to, from, bytes);
  for (int64_t row = 1; row < rows.size(0); ++row) {
    reduce_local(how, from + row * bytes, to, target.numel());
  }
}

// What all ranks have, as rows of bytes.
at::Tensor gathered(const BackendPtr& gloo, const at::Tensor& units) {
  at::Tensor from = bytes_of_all(units), rows = at::empty({gloo->getSize(), from.numel()}, at::kByte);
  at::Tensor all = rows.view(-1);
  gloo->_allgather_base(all, from, in_time(c10d::AllgatherOptions()))->wait();
  return rows;
}

void all_reduce_by(const BackendPtr& gloo, const at::Tensor& units, const Reduction& how) {
  if (units.numel() == 0) {
    return;
  }
  if (!gloo_reduces(how)) {
    reduce_rows(gathered(gloo, units), how, units);
    return;
  }
  std::vector<at::Tensor> tensors{units};
  c10d::AllreduceOptions options;
  options.reduceOp = how.op;
  gloo->allreduce(tensors, in_time(options))->wait();
}

std::map<int, std::vector<int>> ranks_by_node(const std::vector<int>& nodes) {
  std::map<int, std::vector<int>> found;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    found[nodes[rank]].push_back(static_cast<int>(rank));
  }
  return found;
}

bool are_of_one_size(const std::map<int, std::vector<int>>& by_node) {
  const size_t first = by_node.begin()->second.size();
  return std::all_of(by_node.begin(), by_node.end(), [&](const auto& one) { return one.second.size() == first; });
}

std::vector<int> ranks_of_local_rank(const std::map<int, std::vector<int>>& by_node, int local_rank) {
  std::vector<int> found;
  for (const auto& [node, ranks] : by_node) {
    found.push_back(ranks[local_rank]);
  }
  return found;
}
}  // namespace

ShmTransport::ShmTransport(const StorePtr& store, int rank, const std::vector<int>& nodes, BackendPtr gloo)
    : Transport(rank, static_cast<int>(nodes.size())), gloo_(std::move(gloo)) {
  const std::map<int, std::vector<int>> by_node = ranks_by_node(nodes);
  const std::vector<int>& here = by_node.at(nodes[rank]);
  local_size_ = static_cast<int>(here.size());
  local_rank_ = static_cast<int>(std::find(here.begin(), here.end(), rank) - here.begin());
  StoreRendezvous node(store, "node " + std::to_string(nodes[rank]), local_rank_, local_size_), all(store, "all", rank, size_);
  auto shared = local_size_ > 1 ? Shared::among(node, here) : nullptr;
  if (local_size_ > 1 && local_rank_ == 0 && !shared) {
    TORCH_WARN("backend shm: ranks ", c10::Join(", ", here),
               " are on one node, but cannot share memory (too little of it, or a sandbox): gloo does everything");
  }
  if (local_size_ == size_) {
    shared_ = shared;
    return;
  }
  const bool good = shared || local_size_ == 1;
  if (!on_all(all, good) || !are_of_one_size(by_node)) {
    return;
  }
  const std::vector<int> across = ranks_of_local_rank(by_node, local_rank_);
  const auto own = static_cast<int>(std::find(across.begin(), across.end(), rank) - across.begin());
  StoreRendezvous others(store, "local rank " + std::to_string(local_rank_), own, static_cast<int>(across.size()));
  auto ring = TcpRing::among(others, across, shared);
  if (on_all(all, ring != nullptr)) {
    ring_ = std::move(ring);
    node_ = shared;
  } else if (rank_ == 0) {
    TORCH_WARN("backend shm: the nodes do not reach each other's TCP ports: gloo does everything");
  }
}

// gloo compares nothing: it would give one operation's data to another.
void ShmTransport::compare(Signature own) const {
  if (!ring_) {
    const at::Tensor words = gathered(gloo_, at::full({1}, static_cast<int64_t>(own.word()), at::kLong)).view(at::kLong);
    const auto* first = reinterpret_cast<const uint64_t*>(words.data_ptr<int64_t>());
    refuse_different({first, first + size_});
    return;
  }
  if (node_) {
    node_->begin(own);
    node_->barrier();
  }
  ring_->compare(own);
}

void ShmTransport::compare_sizes_by_gloo(const std::vector<Piece>& sends, const std::vector<Piece>& receives) const {
  std::vector<int64_t> mine = sizes_of(size_, sends, receives);
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor rows = gathered(gloo_, at::from_blob(mine.data(), {count}, at::kLong)).view(at::kLong);
  const auto* first = rows.data_ptr<int64_t>();
  check_pairs({first, first + rows.numel()}, size_);
}

void ShmTransport::fail(const std::string& why) const {
  if (ring_) {
    ring_->fail();
  }
  Transport::fail(why);
}

std::vector<int> ShmTransport::missing() const {
  const std::vector<int> here = Transport::missing();
  return here.empty() && ring_ ? ring_->missing() : here;
}

void ShmTransport::broadcast_impl(Signature own, const at::Tensor& tensor, int root) const {
  compare(own);
  if (tensor.numel() > 0) {
    std::vector<at::Tensor> tensors{bytes_of_all(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    gloo_->broadcast(tensors, in_time(options))->wait();
  }
}

void ShmTransport::all_reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how) const {
  const Elements all = elements_of(tensor, how);
  if (!ring_) {
    compare(own);
    all_reduce_by(gloo_, units_of(all, how), how);
    return;
  }
  all_reduce_in_two_levels(own, all, how, all.bytes() >= kLeastInParts, [&](const Elements& part) {
    ring_->compare(own);
    ring_->all_reduce(part, how);
  });
}

void ShmTransport::reduce_impl(Signature own, const at::Tensor& tensor, const Reduction& how, int root) const {
  compare(own);
  const at::Tensor units = units_of(elements_of(tensor, how), how);
  all_reduce_by(gloo_, rank_ == root ? units : units.clone(), how);
}

void ShmTransport::all_gather_impl(Signature own, const at::Tensor& input, const at::Tensor& output) const {
  compare(own);
  if (input.numel() > 0) {
    // The input may be a part of the output.
    at::Tensor from = bytes_of_all(input).clone(), to = bytes_of_all(output);
    gloo_->_allgather_base(to, from, in_time(c10d::AllgatherOptions()))->wait();
  }
}

void ShmTransport::reduce_scatter_impl(Signature own, const at::Tensor& input, const at::Tensor& output,
                                       const Reduction& how) const {
  compare(own);
  if (output.numel() > 0) {  // gloo's own reduces everything everywhere
    at::Tensor from = bytes_of_all(input), rows = at::empty({size_, nbytes_of(output)}, at::kByte);
    at::Tensor all = rows.view(-1);
    std::vector<int64_t> equal;
    gloo_->alltoall_base(all, from, equal, equal, in_time(c10d::AllToAllOptions()))->wait();
    reduce_rows(rows, how, units_of(elements_of(output, how), how));
  }
}

void ShmTransport::barrier_impl() const {
  compare(Signature::barrier());
  gloo_->barrier(in_time(c10d::BarrierOptions()))->wait();
}

void ShmTransport::exchange(Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives) const {
  // All ranks find the same difference before anything is sent: so none leaves while gloo uses its memory.
  if (shared_) {
    compare_sizes(*shared_, own, size_, sends, receives);
  } else {
    compare(own);
    compare_sizes_by_gloo(sends, receives);
  }
  const auto own_piece = [rank = rank_](const Piece& piece) { return piece.rank == rank; };
  const auto kept = std::find_if(receives.begin(), receives.end(), own_piece);
  const auto given = std::find_if(sends.begin(), sends.end(), own_piece);
  const bool keeps = kept != receives.end() && given != sends.end();
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const Piece& piece : receives) {
    std::vector<at::Tensor> tensors{bytes_at(piece.data, piece.bytes)};
    if (piece.rank != rank_ && piece.bytes > 0) {
      works.push_back(gloo_->recv(tensors, piece.rank, kExchangeTag));
    }
  }
  for (const Piece& piece : sends) {
    std::vector<at::Tensor> tensors{bytes_at(piece.data, piece.bytes)};
    if (piece.rank != rank_ && piece.bytes > 0) {
      works.push_back(gloo_->send(tensors, piece.rank, kExchangeTag));
    }
  }
  if (keeps) {
    std::memmove(kept->data, given->data, kept->bytes);
  }
  for (const auto& work : works) {
    work->wait(in_time(c10d::BarrierOptions()).timeout);
  }
}

}  // namespace torchfleet
