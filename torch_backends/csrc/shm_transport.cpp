#include "shm_transport.h"

#include "operation.h"
#include "sizes.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <limits>

namespace torchfleet {

namespace {
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
  return bytes_at(static_cast<const char*>(tensor.data_ptr()), static_cast<int64_t>(tensor.nbytes()));
}

// The units of a tensor, flat.
at::Tensor units_of(const at::Tensor& tensor, const Reduction& how) {
  return at::from_blob(tensor.data_ptr(), {tensor.numel() * how.per_element}, how.unit);
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
  if (!gloo_reduces(how)) {
    reduce_rows(gathered(gloo, units), how, units);
    return;
  }
  std::vector<at::Tensor> tensors{units};
  c10d::AllreduceOptions options;
  options.reduceOp = how.op;
  gloo->allreduce(tensors, in_time(options))->wait();
}
}  // namespace

ShmTransport::ShmTransport(const StorePtr& store, int rank, const std::vector<int>& nodes, Gloo gloo)
    : rank_(rank), size_(static_cast<int>(nodes.size())), gloo_(std::move(gloo)) {
  std::vector<int> here;
  for (int other = 0; other < size_; ++other) {
    if (nodes[other] == nodes[rank]) {
      place_ = other == rank ? static_cast<int>(here.size()) : place_;
      here.push_back(other);
    }
  }
  places_ = static_cast<int>(here.size());
  StoreRendezvous node(store, "node " + std::to_string(nodes[rank]), place_, places_), all(store, "all", rank, size_);
  auto shared = places_ > 1 ? Shared::among(node, here) : nullptr;
  if (places_ > 1 && place_ == 0 && !shared) {
    TORCH_WARN("backend shm: ranks ", c10::Join(", ", here),
               " are on one node, but cannot share memory (too little of it, or a sandbox): gloo does everything");
  }
  const std::vector<uint8_t> good = torchfleet::all_gather(all, static_cast<uint8_t>(shared != nullptr));
  if (places_ == size_) {
    shared_ = shared;
  } else if (gloo_.across && std::all_of(good.begin(), good.end(), [](uint8_t one) { return one != 0; })) {
    node_ = shared;
  }
}

void ShmTransport::fail(const std::string& why) const {
  for (const auto& memory : {shared_, node_}) {
    if (memory) {
      memory->fail(why);
    }
  }
}

std::vector<int> ShmTransport::missing() const {
  const auto& memory = shared_ ? shared_ : node_;
  return memory ? memory->missing() : std::vector<int>();
}

void ShmTransport::broadcast(const at::Tensor& tensor, int root) const {
  if (shared_) {
    shared_->begin(Signature(Signature::kBroadcast, tensor.scalar_type(), tensor.numel(), root));
    shared_->broadcast(static_cast<char*>(tensor.data_ptr()), static_cast<int64_t>(tensor.nbytes()), root);
  } else if (tensor.numel() > 0) {
    std::vector<at::Tensor> tensors{bytes_of_all(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    gloo_.all->broadcast(tensors, in_time(options))->wait();
  }
}

void ShmTransport::all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op) const {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const auto [data, count, size] = Elements(tensor, how);
  const Signature own(Signature::kAllReduce, tensor.scalar_type(), tensor.numel(), -1, op.op_);
  if (shared_) {
    shared_->begin(own);
    shared_->all_reduce(data, count, how, size);
  } else if (node_) {
    all_reduce_in_two_levels(own, tensor, how);
  } else if (count > 0) {
    all_reduce_by(gloo_.all, units_of(tensor, how), how);
  }
  divide_after(tensor, op, size_);
}

// Each rank reduces one part in its node, then with the ranks of the same place on the other nodes, so that all of them send
// at the same time; then the ranks of a node share their parts. What is left over is reduced by all.
void ShmTransport::all_reduce_in_two_levels(Signature own, at::Tensor& tensor, const Reduction& how) const {
  const auto [data, count, size] = Elements(tensor, how);
  const int64_t each = count / places_, rest = count % places_;
  char* own_part = data + place_ * each * size;
  const at::Tensor part = rest == 0 ? at::from_blob(own_part, {each}, how.unit) : at::empty({each + rest}, how.unit);
  Operation::hold(std::make_shared<at::Tensor>(part));
  char *here = static_cast<char*>(part.data_ptr()), *last = data + each * places_ * size;
  node_->begin(own);
  node_->reduce_scatter(data, here, each, how, size);
  node_->all_reduce(last, rest, how, size);
  std::memcpy(here + each * size, last, rest * size);
  at::Tensor words = at::empty({size_ / places_}, at::kLong);
  at::Tensor word = at::full({1}, static_cast<int64_t>(own.word()), at::kLong);
  gloo_.across->_allgather_base(words, word, in_time(c10d::AllgatherOptions()))->wait();
  const auto* told = words.const_data_ptr<int64_t>();
  const auto differs = [&](int64_t one) { return static_cast<uint64_t>(one) != own.word(); };
  const auto* other = std::find_if(told, told + words.numel(), differs);
  TORCH_CHECK(other == told + words.numel(), "the ranks do not ask for the same: here ", own.text(), "; on another node ",
              Signature(static_cast<uint64_t>(*other)).text());
  if (part.numel() > 0) {
    all_reduce_by(gloo_.across, part, how);
  }
  node_->all_gather(here, data, each * size);
  std::memcpy(last, here + each * size, rest * size);
}

void ShmTransport::reduce(at::Tensor& tensor, const c10d::ReduceOp& op, int root) const {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const auto [data, count, size] = Elements(tensor, how);
  if (shared_) {
    shared_->begin(Signature(Signature::kReduce, tensor.scalar_type(), tensor.numel(), root, op.op_));
    shared_->reduce(data, count, how, size, root);
  } else if (count > 0) {
    const at::Tensor own = units_of(tensor, how);
    all_reduce_by(gloo_.all, rank_ == root ? own : own.clone(), how);
  }
  if (rank_ == root) {
    divide_after(tensor, op, size_);
  }
}

void ShmTransport::all_gather(const at::Tensor& input, const at::Tensor& output) const {
  const auto bytes = static_cast<int64_t>(input.nbytes());
  char* all = static_cast<char*>(output.data_ptr());
  if (shared_) {
    shared_->begin(Signature(Signature::kAllGather, input.scalar_type(), input.numel()));
    shared_->all_gather(static_cast<const char*>(input.data_ptr()), all, bytes);
  } else if (bytes > 0) {
    // The input may be a part of the output.
    at::Tensor from = bytes_of_all(input).clone(), to = bytes_of_all(output);
    gloo_.all->_allgather_base(to, from, in_time(c10d::AllgatherOptions()))->wait();
  }
}

void ShmTransport::reduce_scatter(const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op) const {
  const Reduction how = reduction(output.scalar_type(), op);
  const auto [data, count, size] = Elements(output, how);
  if (shared_) {
    shared_->begin(Signature(Signature::kReduceScatter, output.scalar_type(), output.numel(), -1, op.op_));
    shared_->reduce_scatter(static_cast<const char*>(input.data_ptr()), data, count, how, size);
  } else if (count > 0) {
    // gloo's own reduces everything everywhere.
    at::Tensor from = bytes_of_all(input), rows = at::empty({size_, static_cast<int64_t>(output.nbytes())}, at::kByte);
    at::Tensor all = rows.view(-1);
    std::vector<int64_t> equal;
    gloo_.all->alltoall_base(all, from, equal, equal, in_time(c10d::AllToAllOptions()))->wait();
    reduce_rows(rows, how, units_of(output, how));
  }
  divide_after(output, op, size_);
}

void ShmTransport::barrier() const {
  if (shared_) {
    shared_->begin(Signature::barrier());
    shared_->barrier();
  } else {
    gloo_.all->barrier(in_time(c10d::BarrierOptions()))->wait();
  }
}

void ShmTransport::exchange(Signature own, const std::vector<Piece>& sends, const std::vector<Piece>& receives) const {
  if (shared_) {
    compare_sizes(*shared_, own, size_, sends, receives);  // all find the same difference, so none waits for gloo
  }
  // Before anything is sent: else this rank would leave while gloo uses its memory.
  const auto own_piece = [rank = rank_](const Piece& piece) { return piece.rank == rank; };
  const auto kept = std::find_if(receives.begin(), receives.end(), own_piece);
  const auto given = std::find_if(sends.begin(), sends.end(), own_piece);
  const bool keeps = kept != receives.end() && given != sends.end();
  if (keeps) {
    check_pair(rank_, rank_, given->bytes, kept->bytes);
  }
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const Piece& piece : receives) {
    std::vector<at::Tensor> tensors{bytes_at(piece.data, piece.bytes)};
    if (piece.rank != rank_ && piece.bytes > 0) {
      works.push_back(gloo_.all->recv(tensors, piece.rank, kExchangeTag));
    }
  }
  for (const Piece& piece : sends) {
    std::vector<at::Tensor> tensors{bytes_at(piece.data, piece.bytes)};
    if (piece.rank != rank_ && piece.bytes > 0) {
      works.push_back(gloo_.all->send(tensors, piece.rank, kExchangeTag));
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
