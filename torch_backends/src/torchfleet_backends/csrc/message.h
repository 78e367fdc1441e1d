// A message that was asked for: posted at once, so that what two ranks send each other crosses.
#pragma once

#include "transfer.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <string>
#include <vector>

namespace torchfleet {

class Message : public c10d::Work {
 public:
  // `buffer` is what MPI reads or writes, `target` the tensor that it is copied into at the end if it is another.
  Message(c10d::OpType type, int rank, at::Tensor buffer, at::Tensor target, std::vector<MPI_Request> requests,
          std::chrono::milliseconds timeout, std::string name);

  bool isCompleted() override;
  bool isSuccess() const override { return done_; }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return {target_}; }

 private:
  bool advance();  // with the lock held

  at::Tensor buffer_, target_;
  std::vector<MPI_Request> requests_;
  std::chrono::milliseconds timeout_;
  std::string name_;
  int source_ = -1;
  bool done_ = false;
};

}  // namespace torchfleet
