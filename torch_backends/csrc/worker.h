// One thread per group: collectives of a group run one after the other, in the order in which they were asked for.
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

// What an operation is, for torch and for its profilers.
struct Label {
  c10d::OpType type;
  const char* title;
};

// A collective that was asked for. wait() gives up when its time is over, though MPI itself never does.
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
  ~Worker();     // what was asked for goes on
  void close();  // waits for what was asked for, unless something timed out
  void submit(c10::intrusive_ptr<Collective> work, std::function<void()> operation);  // throws when it is closed

 private:
  struct Queue;
  void seal();  // nothing more can be asked for
  std::shared_ptr<Queue> queue_;  // the thread's too: it may outlive the group when an operation never ends
  std::thread thread_;
};

// Waits until all that was asked for of any group is done.
void await_workers();

}  // namespace torchfleet
