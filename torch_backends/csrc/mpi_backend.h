// torch's collectives and messages over MPI: a c10d backend for the stock PyTorch wheel.
#pragma once

#include "backend.h"
#include "mailbox.h"
#include "message.h"
#include "transfer.h"
#include "world.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

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
  WorkPtr post(c10d::OpType type, const at::Tensor& tensor, int peer, int tag);

  MPI_Comm messages_;  // for send and recv, so that the program's messages do not mix with ours
  std::mutex sending_;  // the parts of a message follow each other
  std::atomic<uint64_t> message_count_{0};
  std::shared_ptr<Mailbox> mailbox_;  // what is received of them
};

}  // namespace torchfleet
