// One thread per group: the collectives of a group run one after the other, in the order of the calls.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace torchfleet {

// The description of an operation for torch and its profilers.
struct Label {
  c10d::OpType type;
  const char* title;
};

// A requested collective. wait() returns after the timeout, although MPI itself has none.
class Collective : public c10d::Work {
 public:
  Collective(Label label, int rank, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
             std::chrono::milliseconds timeout, std::string name, std::function<std::vector<int>()> missing);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  // The worker's part.
  void run(const std::function<void()>& operation);

 private:
  std::vector<at::Tensor> outputs_;
  std::chrono::milliseconds timeout_;
  std::string name_;
  std::function<std::vector<int>()> missing_;  // the ranks that it waits for, as far as they are known
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class Worker {
 public:
  Worker();
  ~Worker();     // requested operations continue
  void close();  // waits for requested operations, unless one timed out
  void submit(c10::intrusive_ptr<Collective> work, std::function<void()> operation);  // throws when it is closed

 private:
  struct Queue;
  void seal();  // accepts no more operations
  std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive the group if an operation never ends
  std::thread thread_;
};

// Waits until all operations of all groups are done.
void await_workers();

}  // namespace torchfleet
