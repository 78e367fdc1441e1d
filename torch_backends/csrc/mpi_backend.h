// torch's collectives and messages over MPI: a c10d backend for the stock PyTorch wheel.
#pragma once

#include "backend.h"
#include "mailbox.h"
#include "message.h"
#include "mpi_transport.h"
#include "world.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace torchfleet {

class MPIBackend : public GroupBackend {
 public:
  // `comm` is a communicator that only this group uses.
  MPIBackend(MPI_Comm comm, std::chrono::milliseconds timeout);

  void shutdown() override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 protected:
  std::function<void()> note_failure() const override { return skip_finalize; }

 private:
  // Waits for this number from each of these ranks. Returns those from which it has not come by the deadline.
  std::vector<int> unheard(std::vector<int> ranks, int64_t number, std::chrono::steady_clock::time_point deadline);
  c10::intrusive_ptr<MessageWork> post(c10d::OpType type, const at::Tensor& tensor, int peer, int tag);

  MPI_Comm messages_;  // for send and recv, so that the program's messages do not mix with ours
  std::mutex sending_;  // the parts of a message follow each other
  std::atomic<uint64_t> message_count_{0};
  int64_t monitored_barriers_ = 0;
  std::shared_ptr<Mailbox> mailbox_;  // what is received of them
};

}  // namespace torchfleet
