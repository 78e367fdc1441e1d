#include "backend.h"

#include "devices.h"
#include "operation.h"
#include "record.h"
#include "reduction.h"
#include "title.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <cstring>

namespace torchfleet {

using c10d::OpType;

void copy_back(const at::Tensor& target, const at::Tensor& buffer) {
  if (!target.is_same(buffer)) {
    target.copy_(buffer);
  }
}

const at::Tensor& single(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "backend " TORCHFLEET_NAME ": got ", tensors.size(), " tensors; give one");
  return tensors[0];
}

// Whether two contiguous tensors share memory, such as an output that is a part of the input.
bool overlap(const at::Tensor& one, const at::Tensor& other) {
  return bytes_of(one) < bytes_of(other) + other.nbytes() && bytes_of(other) < bytes_of(one) + one.nbytes();
}

namespace {
std::vector<Piece> pieces(const Tensors& parts) {
  std::vector<Piece> found;
  for (const at::Tensor& part : parts) {
    found.push_back({static_cast<int>(found.size()), bytes_of(part), nbytes_of(part)});
  }
  return found;
}

int64_t nbytes_of_all(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += nbytes_of(tensor);
  }
  return bytes;
}

void check_types(const char* operation, const at::Tensor& output, const at::Tensor& input) {
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "backend " TORCHFLEET_NAME ": ", operation, ": the output has ",
                    output.scalar_type(), ", and the input ", input.scalar_type(), ": give both one type");
}

void check_length(const char* operation, const Tensors& list, size_t length, const char* why = "one for each rank") {
  TORCH_CHECK_VALUE(list.size() == length, "backend " TORCHFLEET_NAME ": ", operation, ": got ", list.size(), " tensors; give ",
                    length, ", ", why);
}

void copy_all_back(const Tensors& targets, const Tensors& buffers) {
  for (size_t i = 0; i < targets.size(); ++i) {
    copy_back(targets[i], buffers[i]);
  }
}

// The type that all of these tensors have; Undefined if they differ, or if there are none.
at::ScalarType common_type(const Tensors& some, const Tensors& others = {}) {
  at::ScalarType found = some.empty() ? at::ScalarType::Undefined : some[0].scalar_type();
  for (const Tensors* list : {&some, &others}) {
    for (const at::Tensor& tensor : *list) {
      found = tensor.scalar_type() == found ? found : at::ScalarType::Undefined;
    }
  }
  return found;
}

// The parts of a tensor along its first dimension: equal ones if no sizes are given.
Tensors parts_of(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int ranks) {
  if (!sizes.empty()) {
    TORCH_CHECK_VALUE(sizes.size() == static_cast<size_t>(ranks), "backend " TORCHFLEET_NAME ": all_to_all: got ", sizes.size(),
                      " split sizes; give ", ranks, ", one for each rank");
    return tensor.split_with_sizes(sizes, 0);
  }
  TORCH_CHECK_VALUE(tensor.size(0) % ranks == 0, "backend " TORCHFLEET_NAME ": all_to_all: the first dimension is ", tensor.size(0),
                    ", no multiple of ", ranks, " ranks; give split sizes");
  return tensor.chunk(ranks, 0);
}
}  // namespace

GroupBackend::GroupBackend(std::shared_ptr<const Transport> transport, int rank, int size,
                           std::chrono::milliseconds timeout)
    : Backend(rank, size), transport_(std::move(transport)), timeout_(timeout) {}

GroupBackend::~GroupBackend() {
  if (!is_own_process()) {  // what it holds is the parent's, and waits for threads that are not here
    new std::shared_ptr<const Transport>(transport_);
  }
}

std::string GroupBackend::name_of(OpType type, uint64_t number) const {
  const char* operation = type == OpType::RECVANYSOURCE ? "recv" : std::strchr(title_of(type), ':') + 1;
  return c10::str(operation, " number ", number, " of group ", pg_uid_.empty() ? "world" : pg_uid_, " (rank ", rank_,
                  " of ", size_, ")");
}

WorkPtr GroupBackend::tracked(WorkPtr work) {
  if (coalesced_) {
    coalesced_->push_back(work);
  }
  return work;
}

WorkPtr GroupBackend::endCoalescing() {
  std::vector<WorkPtr> works = coalesced_ ? std::move(*coalesced_) : std::vector<WorkPtr>();
  coalesced_.reset();
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

at::Tensor GroupBackend::dense(const at::Tensor& tensor) const {
  return transport_->reads_accelerators() ? device_buffer(tensor) : host_buffer(tensor);
}

Tensors GroupBackend::all_dense(const Tensors& tensors) const {
  Tensors found;
  for (const at::Tensor& tensor : tensors) {
    found.push_back(dense(tensor));
  }
  return found;
}

at::Tensor GroupBackend::reducible(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  reduction(tensor.scalar_type(), op);  // throws for what is not supported
  const bool on_host = transport_->needs_host_memory(op, tensor.scalar_type());
  return divided_before(on_host ? host_buffer(tensor) : dense(tensor), op, size_);
}

void GroupBackend::check_process() const {
  TORCH_CHECK_WITH(DistBackendError, is_own_process(), "backend " TORCHFLEET_NAME ": process ", getpid(),
                   " was forked from rank ", rank_, ", and is no rank: call destroy_process_group in it, then init_process_group");
}

int GroupBackend::checked_rank(const char* what, int64_t rank) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "backend " TORCHFLEET_NAME ": got ", what, " ", rank, "; give a rank from 0 to ",
                    size_ - 1);
  return static_cast<int>(rank);
}

WorkPtr GroupBackend::submit(OpType type, const Tensors& inputs, Tensors outputs, std::chrono::milliseconds timeout,
                             Task operation) {
  check_process();
  const auto limit = timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
  const Tensors& some = outputs.empty() ? inputs : outputs;
  const c10::Device device = some.empty() ? at::kCPU : some[0].device();
  if (!group_) {
    group_ = intern(pg_uid_.empty() ? "world" : pg_uid_);
  }
  const uint64_t sequence = ++collectives_;
  const uint64_t number =
      is_recording() ? record_start(group_, sequence, title_of(type), nbytes_of_all(some), common_type(some)) : 0;
  auto missing = [transport = transport_] { return transport->missing(); };
  const bool bounded = device.is_cpu() || !transport_->reads_accelerators();
  c10::intrusive_ptr<CollectiveWork> work;
  // An operation may still run when the group is gone: it holds the transport.
  auto run = [transport = transport_, device, operation = std::move(operation)] {
    const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional(device));
    const at::AutoDispatchBelowADInplaceOrView no_autograd;  // the caller's no_grad or inference_mode is not this thread's
    operation(*transport);
    synchronize(device);
  };
  auto failed = [transport = transport_, note = note_failure()](const std::string& why) {
    note();
    transport->fail(why);
  };
  try {
    work = c10::make_intrusive<CollectiveWork>(type, rank_, inputs, std::move(outputs), limit, name_of(type, sequence), missing,
                                               bounded, number);
    worker_.submit(work, std::move(run), std::move(failed));
  } catch (...) {
    record_end(number);
    throw;
  }
  return tracked(std::move(work));
}

WorkPtr GroupBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor tensor = single(tensors);
  const at::Tensor buffer = dense(tensor);
  const int root = checked_rank("root", opts.rootRank);
  const bool is_root = rank_ == root;
  return submit(OpType::BROADCAST, tensors, tensors, opts.timeout, [=](const Transport& by) {
    by.broadcast(buffer, root);
    if (!is_root) {
      copy_back(tensor, buffer);
    }
  });
}

WorkPtr GroupBackend::all_reduce(OpType type, const Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout) {
  Tensors buffers;
  for (const at::Tensor& tensor : tensors) {
    buffers.push_back(reducible(tensor, op));
  }
  return submit(type, tensors, tensors, timeout, [tensors, buffers, op](const Transport& by) mutable {
    for (at::Tensor& buffer : buffers) {
      by.all_reduce(buffer, op);
    }
    copy_all_back(tensors, buffers);
  });
}

WorkPtr GroupBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return all_reduce(OpType::ALLREDUCE, {single(tensors)}, opts.reduceOp, opts.timeout);
}

WorkPtr GroupBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return all_reduce(OpType::ALLREDUCE_COALESCED, tensors, opts.reduceOp, opts.timeout);
}

WorkPtr GroupBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor tensor = single(tensors);
  at::Tensor buffer = reducible(tensor, opts.reduceOp);
  const int root = checked_rank("root", opts.rootRank);
  const bool is_root = rank_ == root;
  return submit(OpType::REDUCE, tensors, tensors, opts.timeout, [=, op = opts.reduceOp](const Transport& by) mutable {
    by.reduce(buffer, op, root);
    if (is_root) {
      copy_back(tensor, buffer);
    }
  });
}

WorkPtr GroupBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const at::Tensor input = single(inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
                    "backend " TORCHFLEET_NAME ": all_gather: give a list of ", size_, " tensors");
  const Tensors targets = outputs[0];
  if (std::all_of(targets.begin(), targets.end(), [&](const auto& target) { return target.numel() == input.numel(); })) {
    std::vector<Tensors> lists;
    for (const at::Tensor& target : targets) {
      lists.push_back({target});
    }
    return allgather_coalesced(lists, inputs, opts);
  }
  const Tensors buffers = all_dense(targets);  // each comes from its own rank
  const at::Tensor buffer = buffers[rank_], own = dense(input).view_as(buffer);
  return submit(OpType::ALLGATHER, inputs, targets, opts.timeout, [=](const Transport& by) {
    copy_back(buffer, own);
    synchronize(buffer.device());
    for (size_t root = 0; root < buffers.size(); ++root) {
      by.broadcast(buffers[root], static_cast<int>(root));
    }
    copy_all_back(targets, buffers);
  });
}

WorkPtr GroupBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr GroupBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) {
  check_length("all_gather", outputs, inputs.size(), "one for each input");
  const Tensors from = all_dense(inputs), to = all_dense(outputs), targets = outputs;
  for (size_t i = 0; i < to.size(); ++i) {
    check_types("all_gather", to[i], from[i]);
    TORCH_CHECK_VALUE(to[i].numel() == from[i].numel() * size_, "backend " TORCHFLEET_NAME ": all_gather: the output has ",
                      to[i].numel(), " elements, ", size_, " ranks give ", from[i].numel(), " each");
  }
  return submit(OpType::_ALLGATHER_BASE, inputs, targets, opts.timeout, [=](const Transport& by) {
    for (size_t i = 0; i < to.size(); ++i) {
      by.all_gather(from[i], to[i]);
    }
    copy_all_back(targets, to);
  });
}

// `outputs`: for each rank, tensors like those of `inputs`.
WorkPtr GroupBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), "backend " TORCHFLEET_NAME
                    ": all_gather_coalesced: give ", size_, " lists of tensors");
  const Tensors from = all_dense(inputs);
  Tensors all;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == from.size(), "backend " TORCHFLEET_NAME ": all_gather_coalesced: a list has ",
                      list.size(), " tensors, and each rank gives ", from.size());
    for (size_t i = 0; i < list.size(); ++i) {
      TORCH_CHECK_VALUE(list[i].numel() == from[i].numel(), "backend " TORCHFLEET_NAME ": all_gather_coalesced: an output has ",
                        list[i].numel(), " elements, and each rank gives ", from[i].numel());
      all.push_back(list[i]);
    }
  }
  return submit(OpType::ALLGATHER, inputs, all, opts.timeout, [from, lists = outputs, size = size_](const Transport& by) {
    for (size_t i = 0; i < from.size(); ++i) {
      const at::Tensor whole = at::empty({size, from[i].numel()}, from[i].options());
      Operation::hold(std::make_shared<at::Tensor>(whole));
      by.all_gather(from[i], whole);
      for (int rank = 0; rank < size; ++rank) {
        lists[rank][i].copy_(whole[rank].view(lists[rank][i].sizes()));
      }
    }
  });
}

WorkPtr GroupBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor input = dense(single(inputs));
  const int root = checked_rank("root", opts.rootRank);
  const Tensors targets = rank_ == root ? outputs.at(0) : Tensors{};
  if (rank_ == root) {
    check_length("gather", targets, size_);
  }
  const Tensors buffers = all_dense(targets);
  return submit(OpType::GATHER, inputs, targets, opts.timeout, [=](const Transport& by) {
    const Signature own(Signature::kGather, input.scalar_type(), -1, root);
    by.exchange(own, {{root, bytes_of(input), nbytes_of(input)}}, pieces(buffers));
    copy_all_back(targets, buffers);
  });
}

WorkPtr GroupBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const at::Tensor target = single(outputs);
  const at::Tensor buffer = dense(target);
  const int root = checked_rank("root", opts.rootRank);
  const Tensors parts = rank_ == root ? all_dense(inputs.at(0)) : Tensors{};
  if (rank_ == root) {
    check_length("scatter", parts, size_);
  }
  return submit(OpType::SCATTER, parts, outputs, opts.timeout, [=](const Transport& by) {
    const Signature own(Signature::kScatter, buffer.scalar_type(), -1, root);
    by.exchange(own, pieces(parts), {{root, bytes_of(buffer), nbytes_of(buffer)}});
    copy_back(target, buffer);
  });
}

WorkPtr GroupBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ReduceScatterOptions& opts) {
  at::Tensor output = single(outputs);
  check_length("reduce_scatter", inputs.at(0), size_);
  Tensors flat;
  for (const at::Tensor& part : inputs.at(0)) {
    check_types("reduce_scatter", output, part);
    TORCH_CHECK_VALUE(part.numel() == output.numel(), "backend " TORCHFLEET_NAME ": reduce_scatter: a part has ", part.numel(),
                      " elements, and the output ", output.numel());
    flat.push_back(dense(part).view(-1));
  }
  at::Tensor whole = at::cat(flat);
  return _reduce_scatter_base(output, whole, opts);
}

WorkPtr GroupBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr GroupBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::ReduceScatterOptions& opts) {
  check_length("reduce_scatter", outputs, inputs.size(), "one for each input");
  const Tensors targets = outputs;
  Tensors from, to;
  for (size_t i = 0; i < targets.size(); ++i) {
    check_types("reduce_scatter", targets[i], inputs[i]);
    from.push_back(reducible(inputs[i], opts.reduceOp));
    TORCH_CHECK_VALUE(from[i].numel() == targets[i].numel() * size_, "backend " TORCHFLEET_NAME ": reduce_scatter: the input has ",
                      from[i].numel(), " elements, the output of each of ", size_, " ranks ", targets[i].numel());
    const bool serves = targets[i].device() == from[i].device() && targets[i].is_contiguous() && !overlap(targets[i], from[i]);
    to.push_back(serves ? targets[i] : buffer_on(targets[i], from[i].device()));
  }
  return submit(OpType::_REDUCE_SCATTER_BASE, inputs, targets, opts.timeout, [=, op = opts.reduceOp](const Transport& by) mutable {
    for (size_t i = 0; i < to.size(); ++i) {
      by.reduce_scatter(from[i], to[i], op);
      copy_back(targets[i], to[i]);
    }
  });
}

WorkPtr GroupBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  const at::Tensor target = output, from = dense(input), to = dense(output);
  const Tensors sends = parts_of(from, input_splits, size_), receives = parts_of(to, output_splits, size_);
  return submit(OpType::ALLTOALL_BASE, {input}, {output}, opts.timeout, [=](const Transport& by) {
    by.exchange(Signature(Signature::kAllToAll, from.scalar_type(), -1), pieces(sends), pieces(receives));
    copy_back(target, to);
  });
}

WorkPtr GroupBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  check_length("all_to_all", inputs, size_);
  check_length("all_to_all", outputs, size_);
  const Tensors from = all_dense(inputs), to = all_dense(outputs), targets = outputs;
  const Signature own(Signature::kAllToAll, common_type(from, to), -1);
  return submit(OpType::ALLTOALL, inputs, targets, opts.timeout, [=](const Transport& by) {
    by.exchange(own, pieces(from), pieces(to));
    copy_all_back(targets, to);
  });
}

WorkPtr GroupBackend::barrier(const c10d::BarrierOptions& opts) {
  return submit(OpType::BARRIER, {}, {}, opts.timeout, [](const Transport& by) { by.barrier(); });
}

}  // namespace torchfleet
