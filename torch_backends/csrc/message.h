// A message that was asked for: posted at once, so that what two ranks send each other crosses.
#pragma once

#include "transfer.h"
#include "worker.h"

#include <optional>
#include <string>
#include <vector>

namespace torchfleet {

class Message;

// What a message from anybody is waited for with. It is not posted: MPICH 5.0.2 over UCX loses what is posted so when
// some of the ranks are on this node and some are not. So those of a tag are taken in their order, one after the other.
struct Anybody {
  MPI_Comm comm;
  int tag;
  c10::intrusive_ptr<Message> before;  // which comes first, null if there is none
};

class Message : public c10d::Work {
 public:
  // `buffer` is what MPI reads or writes, `target` the tensor that it is copied into at the end if it is another.
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
  bool take();  // whether the message of anybody has been taken

  at::Tensor buffer_, target_;
  std::vector<MPI_Request> requests_;
  std::chrono::milliseconds timeout_;
  std::string name_;
  std::optional<Anybody> anybody_;  // until it is taken
  int source_ = -1;
  bool done_ = false;
};

}  // namespace torchfleet
