// torch's collectives over MPI: a c10d backend for the stock PyTorch wheel.
#pragma once

#include "coalesced.h"
#include "message.h"
#include "transfer.h"
#include "worker.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>

namespace torchfleet {

using Tensors = std::vector<at::Tensor>;

class MPIBackend : public c10d::Backend {
 public:
  // `comm` is a communicator that only this group uses.
  MPIBackend(MPI_Comm comm, int rank, int size, std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "mpi"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return collectives_; }
  void shutdown() override;

  // Between these two, operations begin as usual; the second returns a work for all of them together.
  void startCoalescing() override { coalesced_.emplace(); }
  WorkPtr endCoalescing() override;

  // Memory for DDP's buckets; only for a group whose ranks share memory.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0 && way_.shared; }
  at::Tensor allocateTensor(long count, at::TensorOptions options) override { return allocate(count, options); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
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
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  WorkPtr submit(c10d::OpType type, const Tensors& inputs, Tensors outputs, std::chrono::milliseconds timeout,
                 std::function<void(const Way&)> operation);

  // The buffer of a tensor for MPI, also for a reduction. Invalid tensors are refused before other ranks are involved.
  at::Tensor dense(const at::Tensor& tensor) const;
  Tensors all_dense(const Tensors& tensors) const;
  at::Tensor reducible(const at::Tensor& tensor, const c10d::ReduceOp& op) const;

  WorkPtr post(c10d::OpType type, const at::Tensor& tensor, int peer, int tag);
  WorkPtr posted(c10::intrusive_ptr<Message> message);
  WorkPtr requested(WorkPtr work);
  std::string name_of(c10d::OpType type, uint64_t number) const;

  const Way way_;      // of collectives
  MPI_Comm messages_;  // for send and recv, so that the program's messages do not mix with ours
  std::chrono::milliseconds timeout_;
  std::atomic<uint64_t> collectives_{0};     // which all ranks call, so it is the same on all of them
  std::atomic<uint64_t> message_count_{0};
  std::atomic<const char*> group_{nullptr};  // its name in the record
  std::map<int, c10::weak_intrusive_ptr<Message>> from_anybody_;  // the last one of each tag
  std::mutex from_anybody_mutex_;
  std::optional<std::vector<WorkPtr>> coalesced_;
  Worker worker_;
};

}  // namespace torchfleet
