// The threads of a group. Its collectives run one after the other, in the order of the calls.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torchfleet {

// A requested collective. It fails when its timeout is over, which starts when it begins to run; then all later ones of its
// group fail too.
class CollectiveWork : public c10d::Work {
 public:
  // `bounded`: false for a call of MPI that waits without an end; then wait() has the timeout. `number`: in the record.
  CollectiveWork(c10d::OpType type, int rank, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
             std::chrono::milliseconds timeout, std::string name, std::function<std::vector<int>()> missing, bool bounded,
             uint64_t number);

  // With a timeout of its own, throws when that is over; the collective goes on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  friend class Worker;
  // Return why it failed, an empty text if it did not.
  std::string run(std::function<void()> operation, const std::function<void(const std::string&)>& failed);
  std::string refuse(const std::string& broken);
  std::string end(const std::string& why);
  bool needs_completion();  // of its future, by complete(): somebody has it, and it may run their functions
  void complete();

  std::vector<at::Tensor> outputs_;
  const std::chrono::milliseconds timeout_;
  const std::string name_;
  std::function<std::vector<int>()> missing_;  // the ranks that it waits for, as far as they are known
  const bool bounded_;
  const uint64_t number_;
  std::atomic<bool> begun_{false};
  bool future_is_known_ = false;  // outside of this object
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The text of an exception of ours, of MPI or of torch, without "backend mpi: " and without a backtrace.
std::string plain_text(const std::exception& error);

class Worker {
 public:
  Worker();
  ~Worker();     // requested operations continue
  void close();  // waits for requested operations
  bool is_broken() const;

  // `failed` is told why the operation failed, before its waiters are. Throws when the worker is closed, and std::system_error
  // where no thread can be made.
  void submit(c10::intrusive_ptr<CollectiveWork> work, std::function<void()> operation,
              std::function<void(const std::string&)> failed);

 private:
  struct Queue;
  const pid_t process_ = getpid();  // a forked child has none of the threads, and waits for nothing
  std::shared_ptr<Queue> queue_;    // shared with the threads, which may outlive the group
};

// Waits until all operations of all groups are done, which have timeouts, and the functions that their futures run. False if
// that takes longer.
bool await_workers(std::chrono::milliseconds most, bool and_functions);

// From now on no future runs functions: they may need an interpreter that is gone.
void complete_no_more_futures();
bool futures_are_completed();

// Runs a function in a thread of its own, for which await_workers() waits; not after complete_no_more_futures().
void run_in_thread(std::function<void()> function);

}  // namespace torchfleet
