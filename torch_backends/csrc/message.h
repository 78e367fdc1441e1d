// A requested message: posted at once, so that two ranks can send to each other at the same time.
#pragma once

#include "mailbox.h"
#include "worker.h"
#include "world.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace torchfleet {

class MessageWork : public c10d::Work {
 public:
  // `buffer` is the memory that MPI reads or writes; at the end it is copied into `target`, if that is another tensor.
  // `requests`: of a send. `receive`: null of a send.
  MessageWork(c10d::OpType type, int rank, MPI_Comm comm, at::Tensor buffer, at::Tensor target, std::vector<Request> requests,
          std::chrono::milliseconds timeout, std::string name, std::shared_ptr<Receive> receive = nullptr);

  bool isCompleted() override;  // never waits for another thread that looks at it
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return {target_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // For the thread that moves messages on (progress.h):
  bool advance_in_background();  // whether nothing is left to do for it there
  MPI_Comm comm() const { return comm_; }
  bool is_send() const { return opType_ == c10d::OpType::SEND; }
  void cancel();  // a receive; nothing else looks at it any more

  void give_up();  // a receive of which nothing has come: what comes later is for another one

 private:
  // With the lock held:
  bool advance();            // whether it is over; an error is kept in exception_
  bool take();               // whether the message to receive is found
  bool are_requests_done();
  void finish_here();
  void complete_future();

  const MPI_Comm comm_;
  at::Tensor buffer_, target_;
  std::vector<Request> requests_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point posted_ = std::chrono::steady_clock::now();
  const std::string name_;
  std::shared_ptr<Receive> receive_;  // until its message is found
  std::string mismatch_;  // of what came and what is expected, once it is found
  std::atomic<int> source_{-1};
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // once somebody wants it
  bool future_is_over_ = false;
  std::atomic<bool> over_{false};  // completed_, for who has not the lock
};

}  // namespace torchfleet
