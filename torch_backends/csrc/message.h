// A requested message: posted at once, so that two ranks can send to each other at the same time.
#pragma once

#include "transfer.h"
#include "worker.h"

#include <optional>
#include <string>
#include <vector>

namespace torchfleet {

class Message;

// The state of a receive from any source. It is not posted: MPICH 5.0.2 over UCX loses such a receive if some ranks are on
// this node and some are not. So receives of one tag are done in order, one after the other.
struct Anybody {
  MPI_Comm comm;
  int tag;
  c10::intrusive_ptr<Message> before;  // the previous receive of this tag, or null
};

class Message : public c10d::Work {
 public:
  // `buffer` is the memory that MPI reads or writes; at the end it is copied into `target`, if that is another tensor.
  Message(Label label, int rank, at::Tensor buffer, at::Tensor target, std::vector<MPI_Request> requests,
          std::chrono::milliseconds timeout, std::string name, std::optional<Anybody> anybody = std::nullopt);

  bool isCompleted() override;
  bool is_over();  // false while another thread waits for it
  bool isSuccess() const override { return done_; }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return {target_}; }

 private:
  // With the lock held:
  bool advance();
  bool take();  // whether the message from any source has been received

  at::Tensor buffer_, target_;
  std::vector<MPI_Request> requests_;
  std::chrono::milliseconds timeout_;
  std::string name_;
  std::optional<Anybody> anybody_;  // until it is received
  int source_ = -1;
  bool done_ = false;
};

}  // namespace torchfleet
