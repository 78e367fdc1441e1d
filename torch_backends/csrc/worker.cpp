#include "worker.h"

#include "name.h"
#include "operation.h"
#include "record.h"
#include "title.h"

#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace torchfleet {

namespace {
// A future has to know the devices of its tensors, except the CPU.
std::vector<c10::Device> accelerators_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> found;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu() && std::find(found.begin(), found.end(), tensor.device()) == found.end()) {
      found.push_back(tensor.device());
    }
  }
  return found;
}

std::string describe(const std::vector<int>& missing) {
  return missing.empty() ? "another rank" : c10::str("rank ", c10::Join(", ", missing));
}

// The text of the exception that is being handled.
std::string text_of_failure(std::chrono::milliseconds timeout) {
  try {
    throw;
  } catch (const TimedOut& over) {
    return c10::str(" has not ended within ", timeout.count(), " ms: ", describe(over.missing), " does not take part in it");
  } catch (const std::exception& error) {
    return c10::str(": ", plain_text(error));
  } catch (...) {
    return ": an unknown exception";
  }
}

// What is unfinished in all groups. Never destroyed, because threads may run until the process ends.
struct Pending {
  std::mutex mutex;
  std::condition_variable changed;
  int operations = 0, functions = 0;
  std::atomic<bool> completes_futures{true};

  void count(int& which, int more) {
    std::lock_guard<std::mutex> lock(mutex);
    which += more;
    changed.notify_all();
  }
};

Pending& pending() {
  static auto* found = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&pending()) Pending; });  // a child has none of it
    return new Pending;
  }();
  return *found;
}
}  // namespace

std::string plain_text(const std::exception& error) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torchs != nullptr ? torchs->what_without_backtrace() : error.what(), prefix = "backend " TORCHFLEET_NAME ": ";
  return text.compare(0, prefix.size(), prefix) == 0 ? text.substr(prefix.size()) : text;
}

CollectiveWork::CollectiveWork(c10d::OpType type, int rank, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                       std::chrono::milliseconds timeout, std::string name, std::function<std::vector<int>()> missing,
                       bool bounded, uint64_t number)
    : Work(rank, type, title_of(type), inputs),
      outputs_(std::move(outputs)),
      timeout_(timeout),
      name_(std::move(name)),
      missing_(std::move(missing)),
      bounded_(bounded),
      number_(number),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       accelerators_of(outputs_))) {}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_over = [this] { return completed_; };
  if (timeout == kNoTimeout && bounded_) {
    cv_.wait(lock, is_over);
  } else {
    const auto limit = finite(timeout == kNoTimeout ? timeout_ : timeout);
    if (!cv_.wait_for(lock, limit, is_over)) {
      const std::string why = begun_ ? describe(missing_()) + " does not take part in it"
                                     : "it has not begun, as an earlier operation of its group has not ended";
      TORCH_CHECK_WITH(DistBackendError, false, "backend " TORCHFLEET_NAME ": ", name_, " has not ended within ", limit.count(), " ms: ",
                       why);
    }
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  std::lock_guard<std::mutex> lock(mutex_);
  future_is_known_ = true;
  return future_;
}

std::string CollectiveWork::run(std::function<void()> operation, const std::function<void(const std::string&)>& failed) {
  begun_ = true;
  Operation limits(timeout_);
  try {
    operation();
    return end("");
  } catch (...) {
    const std::string why = c10::str("backend " TORCHFLEET_NAME ": ", name_, text_of_failure(timeout_));
    Operation::hold(std::make_shared<std::function<void()>>(std::move(operation)));  // with its tensors
    limits.leak();
    failed(why);
    return end(why);
  }
}

std::string CollectiveWork::refuse(const std::string& broken) {
  return end(c10::str("backend " TORCHFLEET_NAME ": ", name_, ": an earlier operation of its group failed: ", broken));
}

std::string CollectiveWork::end(const std::string& why) {
  record_end(number_);
  finish(why.empty() ? nullptr : std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, why)));
  return why;
}

bool CollectiveWork::needs_completion() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!future_is_known_) {
    complete();  // it runs no function
  }
  return future_is_known_;
}

void CollectiveWork::complete() {
  if (exception_) {
    future_->setError(exception_);
  } else {
    future_->markCompleted(at::IValue(outputs_));
  }
}

bool await_workers(std::chrono::milliseconds most, bool and_functions) {
  std::unique_lock<std::mutex> lock(pending().mutex);
  return pending().changed.wait_for(lock, most, [=] {
    return pending().operations == 0 && (pending().functions == 0 || !and_functions);
  });
}

void complete_no_more_futures() {
  pending().completes_futures = false;
}

bool futures_are_completed() {
  return pending().completes_futures;
}

void run_in_thread(std::function<void()> function) {
  if (!futures_are_completed()) {
    return;
  }
  pending().count(pending().functions, 1);
  try {
    std::thread([function = std::move(function)]() mutable {
      function();
      function = nullptr;  // releases what it holds
      pending().count(pending().functions, -1);
    }).detach();
  } catch (const std::system_error&) {  // no thread can be made: the future stays open
    pending().count(pending().functions, -1);
  }
}

// One thread at a time serves, that is, runs an operation. It then completes the future, which runs the functions that the
// program has attached; these may wait for another operation of the group. So another thread serves meanwhile: one that is
// back from such functions, or a new one.
struct Worker::Queue : std::enable_shared_from_this<Worker::Queue> {
  struct Job {
    c10::intrusive_ptr<CollectiveWork> work;
    std::function<void()> operation;
    std::function<void(const std::string&)> failed;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool closed = false, serving = false;
  int threads = 0, in_functions = 0;
  std::string broken;  // why an operation failed

  // With the lock held. Throws std::system_error if a thread is needed and cannot be made.
  void ensure_thread() {
    if (threads == in_functions) {
      std::thread([queue = shared_from_this()] { queue->serve(); }).detach();
      ++threads;
    } else {
      changed.notify_all();
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !serving && (closed || !jobs.empty()); });
      if (jobs.empty()) {
        --threads;
        return;
      }
      Job job = std::move(jobs.front());
      jobs.pop_front();
      serving = true;
      serve(std::move(job), lock);
      pending().count(pending().functions, -1);
    }
  }

  void serve(Job job, std::unique_lock<std::mutex>& lock) {
    const std::string earlier = broken;
    lock.unlock();
    const std::string why = earlier.empty() ? job.work->run(std::move(job.operation), job.failed) : job.work->refuse(earlier);
    job.operation = nullptr;  // releases its tensors
    const bool runs_functions = job.work->needs_completion();
    pending().count(pending().functions, 1);
    pending().count(pending().operations, -1);
    lock.lock();
    serving = false;
    broken = earlier.empty() ? why : earlier;
    if (closed) {
      changed.notify_all();
    }
    if (runs_functions && futures_are_completed()) {
      ++in_functions;
      try {
        if (!jobs.empty()) {
          ensure_thread();
        }
      } catch (const std::system_error&) {
        // The jobs wait until this thread is back.
      }
      lock.unlock();
      job.work->complete();
      job.work.reset();
      lock.lock();
      --in_functions;
    }
  }
};

Worker::Worker() : queue_(std::make_shared<Queue>()) {}

Worker::~Worker() {
  if (getpid() != process_) {
    return;
  }
  std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->closed = true;
  queue_->changed.notify_all();
}

void Worker::close() {
  if (getpid() != process_) {
    return;
  }
  std::unique_lock<std::mutex> lock(queue_->mutex);
  queue_->closed = true;
  queue_->changed.notify_all();
  queue_->changed.wait(lock, [this] { return queue_->jobs.empty() && !queue_->serving; });
}

bool Worker::is_broken() const {
  std::lock_guard<std::mutex> lock(queue_->mutex);
  return !queue_->broken.empty();
}

void Worker::submit(c10::intrusive_ptr<CollectiveWork> work, std::function<void()> operation,
                    std::function<void(const std::string&)> failed) {
  std::lock_guard<std::mutex> lock(queue_->mutex);
  TORCH_CHECK_WITH(DistBackendError, !queue_->closed, "backend " TORCHFLEET_NAME ": this group was destroyed");
  queue_->ensure_thread();  // it waits for the lock, and then finds the job
  pending().count(pending().operations, 1);
  queue_->jobs.push_back({std::move(work), std::move(operation), std::move(failed)});
}

}  // namespace torchfleet
