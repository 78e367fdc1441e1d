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
#include <numeric>

namespace torchfleet {

using c10d::OpType;

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

void load(const std::vector<Buffer>& all) {
  for (const Buffer& one : all) {
    one.load();
  }
}

void store(const std::vector<Buffer>& all) {
  for (const Buffer& one : all) {
    one.store();
  }
}

Tensors memory_of(const std::vector<Buffer>& all) {
  Tensors found;
  for (const Buffer& one : all) {
    found.push_back(one.memory);
  }
  return found;
}

// The only list of several tensors, where c10d takes a list of lists.
const Tensors& single_list(const char* operation, const std::vector<Tensors>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "backend " TORCHFLEET_NAME ": ", operation, ": got ", lists.size(),
                    " lists of tensors; give one");
  return lists[0];
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
    const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    TORCH_CHECK_VALUE(sum == tensor.size(0), "backend " TORCHFLEET_NAME ": all_to_all: the split sizes are ", sum,
                      " together, the first dimension ", tensor.size(0));
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

Buffer GroupBackend::buffer(const at::Tensor& tensor, Buffer::Use use) const {
  return Buffer({tensor}, use, !transport_->reads_accelerators());
}

std::vector<Buffer> GroupBackend::buffers(const Tensors& tensors, Buffer::Use use) const {
  std::vector<Buffer> found;
  for (const at::Tensor& tensor : tensors) {
    found.push_back(buffer(tensor, use));
  }
  return found;
}

Buffer GroupBackend::reduced(const Tensors& tensors, Buffer::Use use, const c10d::ReduceOp& op) const {
  const at::ScalarType type = tensors[0].scalar_type();
  reduction(type, op);  // throws for what is not supported
  const bool on_host = !transport_->reads_accelerators() || transport_->needs_host_memory(op, type);
  return Buffer(tensors, use, on_host, divides_before(type, op) ? size_ : 1);
}

void GroupBackend::shutdown() {
  worker_.close();
  if (is_own_process()) {
    transport_->leave();
  }
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
  const int root = checked_rank("root", opts.rootRank);
  const Buffer all = buffer(single(tensors), rank_ == root ? Buffer::kRead : Buffer::kWritten);
  return submit(OpType::BROADCAST, tensors, tensors, opts.timeout, [=](const Transport& by) {
    all.load();
    by.broadcast(all.memory, root);
    all.store();
  });
}

WorkPtr GroupBackend::all_reduce(OpType type, const Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout) {
  std::vector<Buffer> all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(reduced({tensor}, Buffer::kReadAndWritten, op));
  }
  return submit(type, tensors, tensors, timeout, [all, op](const Transport& by) mutable {
    for (Buffer& one : all) {
      one.load();
      by.all_reduce(one.memory, op);
      one.store();
    }
  });
}

WorkPtr GroupBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return all_reduce(OpType::ALLREDUCE, {single(tensors)}, opts.reduceOp, opts.timeout);
}

WorkPtr GroupBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return all_reduce(OpType::ALLREDUCE_COALESCED, tensors, opts.reduceOp, opts.timeout);
}

WorkPtr GroupBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const int root = checked_rank("root", opts.rootRank);
  Buffer all = reduced({single(tensors)}, rank_ == root ? Buffer::kReadAndWritten : Buffer::kRead, opts.reduceOp);
  return submit(OpType::REDUCE, tensors, tensors, opts.timeout, [all, root, op = opts.reduceOp](const Transport& by) mutable {
    all.load();
    by.reduce(all.memory, op, root);
    all.store();
  });
}

WorkPtr GroupBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const at::Tensor input = single(inputs);
  const Tensors targets = single_list("all_gather", outputs);
  check_length("all_gather", targets, size_);
  if (std::all_of(targets.begin(), targets.end(), [&](const auto& target) { return target.numel() == input.numel(); })) {
    std::vector<Tensors> lists;
    for (const at::Tensor& target : targets) {
      lists.push_back({target});
    }
    return allgather_coalesced(lists, inputs, opts);
  }
  const std::vector<Buffer> to = buffers(targets, Buffer::kWritten);  // each comes from its own rank
  const Buffer from = buffer(input, Buffer::kRead);
  const at::Tensor here = to[rank_].memory, own = from.memory.view_as(here);
  return submit(OpType::ALLGATHER, inputs, targets, opts.timeout, [=](const Transport& by) {
    from.load();
    here.copy_(own);
    synchronize(here.device());
    for (size_t root = 0; root < to.size(); ++root) {
      by.broadcast(to[root].memory, static_cast<int>(root));
    }
    store(to);
  });
}

WorkPtr GroupBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr GroupBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) {
  check_length("all_gather", outputs, inputs.size(), "one for each input");
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_types("all_gather", outputs[i], inputs[i]);
    TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * size_, "backend " TORCHFLEET_NAME ": all_gather: the output has ",
                      outputs[i].numel(), " elements, ", size_, " ranks give ", inputs[i].numel(), " each");
  }
  const std::vector<Buffer> from = buffers(inputs, Buffer::kRead), to = buffers(outputs, Buffer::kWritten);
  return submit(OpType::_ALLGATHER_BASE, inputs, outputs, opts.timeout, [=](const Transport& by) {
    for (size_t i = 0; i < to.size(); ++i) {
      from[i].load();
      by.all_gather(from[i].memory, to[i].memory);
      to[i].store();
    }
  });
}

// `outputs`: for each rank, tensors like those of `inputs`.
WorkPtr GroupBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), "backend " TORCHFLEET_NAME
                    ": all_gather_coalesced: give ", size_, " lists of tensors");
  Tensors all;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "backend " TORCHFLEET_NAME ": all_gather_coalesced: a list has ",
                      list.size(), " tensors, and each rank gives ", inputs.size());
    for (size_t i = 0; i < list.size(); ++i) {
      TORCH_CHECK_VALUE(list[i].numel() == inputs[i].numel(), "backend " TORCHFLEET_NAME ": all_gather_coalesced: an output has ",
                        list[i].numel(), " elements, and each rank gives ", inputs[i].numel());
      Buffer::check(list[i], Buffer::kWritten);
      all.push_back(list[i]);
    }
  }
  const std::vector<Buffer> from = buffers(inputs, Buffer::kRead);
  return submit(OpType::ALLGATHER, inputs, all, opts.timeout, [from, lists = outputs, size = size_](const Transport& by) {
    for (size_t i = 0; i < from.size(); ++i) {
      const at::Tensor& own = from[i].memory;
      const at::Tensor whole = at::empty({size, own.numel()}, own.options());
      Operation::hold(std::make_shared<at::Tensor>(whole));
      from[i].load();
      by.all_gather(own, whole);
      for (int rank = 0; rank < size; ++rank) {
        lists[rank][i].copy_(whole[rank].view(lists[rank][i].sizes()));
      }
    }
  });
}

WorkPtr GroupBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const Buffer from = buffer(single(inputs), Buffer::kRead);
  const int root = checked_rank("root", opts.rootRank);
  const Tensors targets = rank_ == root ? single_list("gather", outputs) : Tensors{};
  if (rank_ == root) {
    check_length("gather", targets, size_);
  }
  const std::vector<Buffer> to = buffers(targets, Buffer::kWritten);
  return submit(OpType::GATHER, inputs, targets, opts.timeout, [=](const Transport& by) {
    const at::Tensor& own = from.memory;
    from.load();
    by.exchange(Signature(Signature::kGather, own.scalar_type(), -1, root), {{root, bytes_of(own), nbytes_of(own)}},
                pieces(memory_of(to)));
    store(to);
  });
}

WorkPtr GroupBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const Buffer to = buffer(single(outputs), Buffer::kWritten);
  const int root = checked_rank("root", opts.rootRank);
  const Tensors parts = rank_ == root ? single_list("scatter", inputs) : Tensors{};
  if (rank_ == root) {
    check_length("scatter", parts, size_);
  }
  const std::vector<Buffer> from = buffers(parts, Buffer::kRead);
  return submit(OpType::SCATTER, parts, outputs, opts.timeout, [=](const Transport& by) {
    const at::Tensor& own = to.memory;
    load(from);
    by.exchange(Signature(Signature::kScatter, own.scalar_type(), -1, root), pieces(memory_of(from)),
                {{root, bytes_of(own), nbytes_of(own)}});
    to.store();
  });
}

WorkPtr GroupBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = single(outputs);
  const Tensors& parts = single_list("reduce_scatter", inputs);
  check_length("reduce_scatter", parts, size_);
  for (const at::Tensor& part : parts) {
    check_types("reduce_scatter", output, part);
    TORCH_CHECK_VALUE(part.numel() == output.numel(), "backend " TORCHFLEET_NAME ": reduce_scatter: a part has ", part.numel(),
                      " elements, and the output ", output.numel());
  }
  return reduce_scatter(outputs, parts, {reduced(parts, Buffer::kRead, opts.reduceOp)}, opts);
}

WorkPtr GroupBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr GroupBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::ReduceScatterOptions& opts) {
  check_length("reduce_scatter", outputs, inputs.size(), "one for each input");
  std::vector<Buffer> from;
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_types("reduce_scatter", outputs[i], inputs[i]);
    TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * size_, "backend " TORCHFLEET_NAME ": reduce_scatter: the input has ",
                      inputs[i].numel(), " elements, the output of each of ", size_, " ranks ", outputs[i].numel());
    from.push_back(reduced({inputs[i]}, Buffer::kRead, opts.reduceOp));
  }
  return reduce_scatter(outputs, inputs, from, opts);
}

WorkPtr GroupBackend::reduce_scatter(const Tensors& outputs, const Tensors& inputs, const std::vector<Buffer>& from,
                                     const c10d::ReduceScatterOptions& opts) {
  std::vector<Buffer> to;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& whole = from[i].memory;
    to.emplace_back(Tensors{outputs[i]}, Buffer::kWritten, whole.is_cpu(), 1, overlap(outputs[i], whole));
  }
  return submit(OpType::_REDUCE_SCATTER_BASE, inputs, outputs, opts.timeout, [=, op = opts.reduceOp](const Transport& by) mutable {
    for (size_t i = 0; i < to.size(); ++i) {
      from[i].load();
      by.reduce_scatter(from[i].memory, to[i].memory, op);
      to[i].store();
    }
  });
}

WorkPtr GroupBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  const Buffer from = buffer(input, Buffer::kRead), to = buffer(output, Buffer::kWritten);
  const Tensors sends = parts_of(from.memory, input_splits, size_), receives = parts_of(to.memory, output_splits, size_);
  return submit(OpType::ALLTOALL_BASE, {input}, {output}, opts.timeout, [=](const Transport& by) {
    from.load();
    by.exchange(Signature(Signature::kAllToAll, from.memory.scalar_type(), -1), pieces(sends), pieces(receives));
    to.store();
  });
}

WorkPtr GroupBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  check_length("all_to_all", inputs, size_);
  check_length("all_to_all", outputs, size_);
  const std::vector<Buffer> from = buffers(inputs, Buffer::kRead), to = buffers(outputs, Buffer::kWritten);
  const Signature own(Signature::kAllToAll, common_type(inputs, outputs), -1);
  return submit(OpType::ALLTOALL, inputs, outputs, opts.timeout, [=](const Transport& by) {
    load(from);
    by.exchange(own, pieces(memory_of(from)), pieces(memory_of(to)));
    store(to);
  });
}

WorkPtr GroupBackend::barrier(const c10d::BarrierOptions& opts) {
  return submit(OpType::BARRIER, {}, {}, opts.timeout, [](const Transport& by) { by.barrier(); });
}

}  // namespace torchfleet
