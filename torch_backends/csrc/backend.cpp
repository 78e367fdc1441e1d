#include "backend.h"

#include "devices.h"
#include "operation.h"
#include "progress.h"
#include "record.h"

#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <cstring>

namespace torchfleet {

using c10d::OpType;

namespace {
// The names in profilers, as PyTorch's other backends have them.
const char* title_of(OpType type) {
  switch (type) {
    case OpType::BROADCAST:
      return "mpi:broadcast";
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return "mpi:all_reduce";
    case OpType::REDUCE:
      return "mpi:reduce";
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
      return "mpi:all_gather";
    case OpType::GATHER:
      return "mpi:gather";
    case OpType::SCATTER:
      return "mpi:scatter";
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
      return "mpi:reduce_scatter";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "mpi:all_to_all";
    case OpType::SEND:
      return "mpi:send";
    case OpType::RECV:
      return "mpi:recv";
    case OpType::RECVANYSOURCE:
      return "mpi:recvAnySource";
    default:
      return "mpi:barrier";
  }
}

void put_back(const at::Tensor& target, const at::Tensor& buffer) {
  if (!target.is_same(buffer)) {
    target.copy_(buffer);
  }
}

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "backend mpi: got ", tensors.size(), " tensors; give one");
  return tensors[0];
}

char* bytes_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

std::vector<Piece> pieces(const Tensors& parts) {
  std::vector<Piece> found;
  for (const at::Tensor& part : parts) {
    found.push_back({static_cast<int>(found.size()), bytes_of(part), static_cast<int64_t>(part.nbytes())});
  }
  return found;
}

int64_t nbytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

// Notes in the record that a collective is over, also if it failed.
struct Leaving {
  uint64_t number;
  ~Leaving() { left(number); }
};

void put_all_back(const Tensors& targets, const Tensors& buffers) {
  for (size_t i = 0; i < targets.size(); ++i) {
    put_back(targets[i], buffers[i]);
  }
}

// The parts of a tensor along its first dimension: equal ones if no sizes are given.
Tensors parts_of(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int ranks) {
  if (!sizes.empty()) {
    return tensor.split_with_sizes(sizes, 0);
  }
  TORCH_CHECK_VALUE(tensor.size(0) % ranks == 0, "backend mpi: all_to_all: the first dimension is ", tensor.size(0),
                    ", no multiple of ", ranks, " ranks; give split sizes");
  return tensor.chunk(ranks, 0);
}
}  // namespace

MPIBackend::MPIBackend(MPI_Comm comm, int rank, int size, std::chrono::milliseconds timeout)
    : Backend(rank, size), way_(way_of(comm)), timeout_(timeout) {
  TORCHFLEET_MPI(MPI_Comm_dup(comm, &messages_));
  TORCHFLEET_MPI(MPI_Comm_set_errhandler(messages_, MPI_ERRORS_RETURN));
}

// All ranks of a group call this when it is destroyed. MPICH supports only some 2,000 communicators at a time. One on which
// something is under way stays.
void MPIBackend::shutdown() {
  worker_.close();
  if (messages_ == MPI_COMM_NULL || worker_.is_broken()) {
    return;
  }
  MPI_Comm messages = Progress::of_process().has_any_of(messages_) ? MPI_COMM_NULL : messages_;
  for (MPI_Comm comm : {messages, way_.leaders, way_.comm}) {
    if (comm != MPI_COMM_NULL) {
      TORCHFLEET_MPI(MPI_Comm_free(&comm));
    }
  }
  messages_ = MPI_COMM_NULL;
}

std::string MPIBackend::name_of(OpType type, uint64_t number) const {
  const char* operation = type == OpType::RECVANYSOURCE ? "recv" : std::strchr(title_of(type), ':') + 1;
  return c10::str(operation, " number ", number, " of group ", pg_uid_.empty() ? "world" : pg_uid_, " (rank ", rank_,
                  " of ", size_, ")");
}

WorkPtr MPIBackend::requested(WorkPtr work) {
  if (coalesced_) {
    coalesced_->push_back(work);
  }
  return work;
}

WorkPtr MPIBackend::endCoalescing() {
  std::vector<WorkPtr> works = coalesced_ ? std::move(*coalesced_) : std::vector<WorkPtr>();
  coalesced_.reset();
  return c10::make_intrusive<Coalesced>(rank_, std::move(works));
}

at::Tensor MPIBackend::dense(const at::Tensor& tensor) const {
  return way_.direct ? direct(tensor) : staged(tensor);
}

Tensors MPIBackend::all_dense(const Tensors& tensors) const {
  Tensors found;
  for (const at::Tensor& tensor : tensors) {
    found.push_back(dense(tensor));
  }
  return found;
}

at::Tensor MPIBackend::reducible(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  return divided_before(reduction(tensor.scalar_type(), op).ours ? staged(tensor) : dense(tensor), op, size_);
}

WorkPtr MPIBackend::submit(OpType type, const Tensors& inputs, Tensors outputs, std::chrono::milliseconds timeout,
                           std::function<void(const Way&)> operation) {
  const auto limit = timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
  const Tensors& some = outputs.empty() ? inputs : outputs;
  const c10::Device device = some.empty() ? at::kCPU : some[0].device();
  const int64_t bytes = nbytes_of(some);
  auto missing = [shared = way_.shared] { return shared ? shared->missing() : std::vector<int>(); };
  const uint64_t sequence = ++collectives_;
  const bool bounded = device.is_cpu() || !way_.direct;
  auto work = c10::make_intrusive<Collective>(Label{type, title_of(type)}, rank_, inputs, std::move(outputs), limit,
                                              name_of(type, sequence), missing, bounded);
  if (!group_) {
    group_ = kept(pg_uid_.empty() ? "world" : pg_uid_);
  }
  const uint64_t number = entered(group_, sequence, title_of(type), bytes);
  // An operation may still run when the group is gone: it has its own copy of Way.
  auto run = [way = way_, device, number, operation = std::move(operation)] {
    const Leaving leaving{number};
    const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional(device));
    operation(way);
    settle(device);
  };
  worker_.submit(work, std::move(run), [way = way_](const std::string& why) { way.fail(why); });
  return requested(std::move(work));
}

WorkPtr MPIBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor tensor = only(tensors);
  const at::Tensor buffer = dense(tensor);
  const int root = static_cast<int>(opts.rootRank);
  return submit(OpType::BROADCAST, tensors, tensors, opts.timeout, [=](const Way& way) {
    torchfleet::broadcast(way, buffer, root);
    put_back(tensor, buffer);
  });
}

WorkPtr MPIBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor tensor = only(tensors);
  at::Tensor buffer = reducible(tensor, opts.reduceOp);
  return submit(OpType::ALLREDUCE, tensors, tensors, opts.timeout,
                [tensor, buffer, op = opts.reduceOp](const Way& way) mutable {
                  all_reduce(way, buffer, op);
                  put_back(tensor, buffer);
                });
}

WorkPtr MPIBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  Tensors buffers;
  for (const at::Tensor& tensor : tensors) {
    buffers.push_back(reducible(tensor, opts.reduceOp));
  }
  return submit(OpType::ALLREDUCE_COALESCED, tensors, tensors, opts.timeout,
                [tensors, buffers, op = opts.reduceOp](const Way& way) mutable {
                  for (at::Tensor& buffer : buffers) {
                    all_reduce(way, buffer, op);
                  }
                  put_all_back(tensors, buffers);
                });
}

WorkPtr MPIBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor tensor = only(tensors);
  at::Tensor buffer = reducible(tensor, opts.reduceOp);
  const int root = static_cast<int>(opts.rootRank);
  const bool here = rank_ == root;
  return submit(OpType::REDUCE, tensors, tensors, opts.timeout, [=, op = opts.reduceOp](const Way& way) mutable {
    torchfleet::reduce(way, buffer, op, root);
    if (here) {
      put_back(tensor, buffer);
    }
  });
}

WorkPtr MPIBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const at::Tensor input = dense(only(inputs));
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
                    "backend mpi: all_gather: give a list of ", size_, " tensors");
  const Tensors targets = outputs[0];
  Tensors buffers;  // parts of other sizes than ours: each comes from its own rank
  if (std::any_of(targets.begin(), targets.end(), [&](const auto& target) { return target.numel() != input.numel(); })) {
    buffers = all_dense(targets);
    put_back(buffers[rank_], input.view_as(buffers[rank_]));
    settle(input.device());
  }
  return submit(OpType::ALLGATHER, inputs, targets, opts.timeout, [=, size = size_](const Way& way) {
    for (size_t root = 0; root < buffers.size(); ++root) {
      torchfleet::broadcast(way, buffers[root], static_cast<int>(root));
    }
    if (!buffers.empty()) {
      put_all_back(targets, buffers);
      return;
    }
    const at::Tensor whole = at::empty({size, input.numel()}, input.options());
    Operation::hold(std::make_shared<at::Tensor>(whole));
    all_gather(way, input, whole);
    for (int rank = 0; rank < size; ++rank) {
      targets[rank].copy_(whole[rank].view(targets[rank].sizes()));
    }
  });
}

WorkPtr MPIBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr MPIBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) {
  const Tensors from = all_dense(inputs), to = all_dense(outputs), targets = outputs;
  for (size_t i = 0; i < to.size(); ++i) {
    TORCH_CHECK_VALUE(to[i].nbytes() == from[i].nbytes() * size_, "backend mpi: all_gather: the output has ",
                      to[i].numel(), " elements, ", size_, " ranks give ", from[i].numel(), " each");
  }
  return submit(OpType::_ALLGATHER_BASE, inputs, targets, opts.timeout, [=](const Way& way) {
    for (size_t i = 0; i < to.size(); ++i) {
      all_gather(way, from[i], to[i]);
    }
    put_all_back(targets, to);
  });
}

WorkPtr MPIBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor input = dense(only(inputs));
  const int root = static_cast<int>(opts.rootRank);
  const Tensors targets = rank_ == root ? outputs.at(0) : Tensors{};
  const Tensors buffers = all_dense(targets);
  return submit(OpType::GATHER, inputs, targets, opts.timeout, [=](const Way& way) {
    const Signature own(Signature::kGather, input.scalar_type(), -1, root);
    exchange(way, own, {{root, bytes_of(input), static_cast<int64_t>(input.nbytes())}}, pieces(buffers));
    put_all_back(targets, buffers);
  });
}

WorkPtr MPIBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const at::Tensor target = only(outputs);
  const at::Tensor buffer = dense(target);
  const int root = static_cast<int>(opts.rootRank);
  const Tensors parts = rank_ == root ? all_dense(inputs.at(0)) : Tensors{};
  return submit(OpType::SCATTER, parts, outputs, opts.timeout, [=](const Way& way) {
    const Signature own(Signature::kScatter, buffer.scalar_type(), -1, root);
    exchange(way, own, pieces(parts), {{root, bytes_of(buffer), static_cast<int64_t>(buffer.nbytes())}});
    put_back(target, buffer);
  });
}

WorkPtr MPIBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ReduceScatterOptions& opts) {
  Tensors flat;
  for (const at::Tensor& part : inputs.at(0)) {
    flat.push_back(dense(part).view(-1));
  }
  at::Tensor whole = at::cat(flat);
  at::Tensor output = only(outputs);
  return _reduce_scatter_base(output, whole, opts);
}

WorkPtr MPIBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr MPIBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::ReduceScatterOptions& opts) {
  const Tensors targets = outputs;
  Tensors from, to;
  for (size_t i = 0; i < targets.size(); ++i) {
    from.push_back(reducible(inputs.at(i), opts.reduceOp));
    TORCH_CHECK_VALUE(from[i].numel() == targets[i].numel() * size_, "backend mpi: reduce_scatter: the input has ",
                      from[i].numel(), " elements, the output of each of ", size_, " ranks ", targets[i].numel());
    to.push_back(room_for(targets[i], from[i].device()));  // a copy also because the output may be a part of the input
  }
  return submit(OpType::_REDUCE_SCATTER_BASE, inputs, targets, opts.timeout, [=, op = opts.reduceOp](const Way& way) mutable {
    for (size_t i = 0; i < to.size(); ++i) {
      torchfleet::reduce_scatter(way, from[i], to[i], op);
      targets[i].copy_(to[i]);
    }
  });
}

WorkPtr MPIBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  const at::Tensor target = output, from = dense(input), to = dense(output);
  const Tensors sends = parts_of(from, input_splits, size_), receives = parts_of(to, output_splits, size_);
  return submit(OpType::ALLTOALL_BASE, {input}, {output}, opts.timeout, [=](const Way& way) {
    exchange(way, Signature(Signature::kAllToAll, from.scalar_type(), -1), pieces(sends), pieces(receives));
    put_back(target, to);
  });
}

WorkPtr MPIBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  const Tensors from = all_dense(inputs), to = all_dense(outputs), targets = outputs;
  return submit(OpType::ALLTOALL, inputs, targets, opts.timeout, [=](const Way& way) {
    exchange(way, Signature(Signature::kAllToAll, at::ScalarType::Undefined, -1), pieces(from), pieces(to));
    put_all_back(targets, to);
  });
}

WorkPtr MPIBackend::barrier(const c10d::BarrierOptions& opts) {
  return submit(OpType::BARRIER, {}, {}, opts.timeout, [](const Way& way) { torchfleet::barrier(way); });
}

void MPIBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  // Every rank reports to rank 0, and rank 0 answers when all have reported: so it can name the missing ranks.
  constexpr int kTag = (1 << 15) - 2;  // MPI promises tags up to 32767
  auto token = at::zeros({1}, at::kByte);
  const auto timeout = opts.timeout == c10d::kUnsetTimeout ? timeout_ : opts.timeout;
  const auto transfer = [&](OpType type, int peer) {
    Tensors tensors{token.clone()};
    return type == OpType::SEND ? send(tensors, peer, kTag) : recv(tensors, peer, kTag);
  };
  if (rank_ != 0) {
    transfer(OpType::SEND, 0)->wait(timeout);
    transfer(OpType::RECV, 0)->wait(timeout);
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<WorkPtr> heard;
  for (int rank = 1; rank < size_; ++rank) {
    heard.push_back(transfer(OpType::RECV, rank));
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) {
    while (!heard[rank - 1]->isCompleted() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!heard[rank - 1]->isCompleted()) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    TORCH_CHECK_WITH(DistBackendError, false, "backend mpi: monitored_barrier: not there within ", timeout.count(),
                     " ms: rank ", c10::Join(", ", missing));
  }
  for (int rank = 1; rank < size_; ++rank) {
    transfer(OpType::SEND, rank)->wait(timeout);
  }
}

WorkPtr MPIBackend::post(OpType type, const at::Tensor& tensor, int peer, int tag) {
  const at::Tensor buffer = dense(tensor);
  const Piece piece{peer, bytes_of(buffer), static_cast<int64_t>(buffer.nbytes())};
  auto requests = type == OpType::SEND ? post_send(messages_, piece, tag) : post_receive(messages_, piece, tag);
  return posted(c10::make_intrusive<Message>(Label{type, title_of(type)}, rank_, messages_, buffer,
                                             type == OpType::SEND ? buffer : tensor, std::move(requests), timeout_,
                                             name_of(type, ++message_count_)));
}

WorkPtr MPIBackend::posted(c10::intrusive_ptr<Message> message) {
  Progress::of_process().add(message);
  return requested(std::move(message));
}

WorkPtr MPIBackend::send(Tensors& tensors, int to, int tag) {
  return post(OpType::SEND, only(tensors), to, tag);
}

WorkPtr MPIBackend::recv(Tensors& tensors, int from, int tag) {
  return post(OpType::RECV, only(tensors), from, tag);
}

WorkPtr MPIBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor tensor = only(tensors), buffer = dense(tensor);
  const OpType type = OpType::RECVANYSOURCE;
  std::lock_guard<std::mutex> lock(from_anybody_mutex_);
  const auto last = from_anybody_.find(tag);
  auto message = c10::make_intrusive<Message>(
      Label{type, title_of(type)}, rank_, messages_, buffer, tensor, std::vector<Request>{}, timeout_,
      name_of(type, ++message_count_), Anybody{tag, last == from_anybody_.end() ? nullptr : last->second.lock()});
  from_anybody_.insert_or_assign(tag, c10::weak_intrusive_ptr<Message>(message));
  return posted(std::move(message));
}

}  // namespace torchfleet
