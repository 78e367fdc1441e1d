// What our c10d backends have in common: the collectives, one after the other in a thread of the group.
#pragma once

#include "buffer.h"
#include "coalesced.h"
#include "name.h"
#include "tensors.h"
#include "transport.h"
#include "worker.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torchfleet {

class GroupBackend : public c10d::Backend {
 public:
  const std::string getBackendName() const override { return TORCHFLEET_NAME; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return collectives_; }
  void shutdown() override;  // all ranks of a group call this when it is destroyed; a forked child may

  // Between these two, operations begin as usual; the second returns a work for all of them together.
  void startCoalescing() override { coalesced_.emplace(); }
  WorkPtr endCoalescing() override;

  // Memory for DDP's buckets; only for a group whose ranks share memory.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0 && transport_->shares_memory(); }
  at::Tensor allocateTensor(long count, at::TensorOptions options) override { return allocate(count, options); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

 protected:
  using Task = std::function<void(const Transport&)>;

  GroupBackend(std::shared_ptr<const Transport> transport, int rank, int size, std::chrono::milliseconds timeout);
  ~GroupBackend() override;
  WorkPtr submit(c10d::OpType type, const Tensors& inputs, Tensors outputs, std::chrono::milliseconds timeout,
                 Task operation);

  bool is_own_process() const { return getpid() == process_; }  // not in a forked child, where none of our threads is
  void check_process() const;                                   // throws c10::DistBackendError in a forked child
  int checked_rank(const char* what, int64_t rank) const;       // throws c10::ValueError for a rank that does not exist

  // The buffer of a tensor for the transport, also for a reduction. Invalid tensors are refused before other ranks are
  // involved.
  Buffer buffer(const at::Tensor& tensor, Buffer::Use use) const;
  std::vector<Buffer> buffers(const Tensors& tensors, Buffer::Use use) const;
  Buffer reduced(const Tensors& tensors, Buffer::Use use, const c10d::ReduceOp& op) const;

  WorkPtr tracked(WorkPtr work);
  std::string name_of(c10d::OpType type, uint64_t number) const;
  // Is called in another thread when an operation of the group fails.
  virtual std::function<void()> note_failure() const { return [] {}; }

  const std::shared_ptr<const Transport> transport_;
  std::chrono::milliseconds timeout_;
  Worker worker_;

 private:
  WorkPtr all_reduce(c10d::OpType type, const Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout);
  WorkPtr reduce_scatter(const Tensors& outputs, const Tensors& inputs, const std::vector<Buffer>& from,
                         const c10d::ReduceScatterOptions& opts);

  const pid_t process_ = getpid();
  std::atomic<uint64_t> collectives_{0};     // which all ranks call, so it is the same on all of them
  std::atomic<const char*> group_{nullptr};  // its name in the record
  std::optional<std::vector<WorkPtr>> coalesced_;
};

const at::Tensor& single(const Tensors& tensors);  // throws c10::ValueError if there are several

}  // namespace torchfleet
