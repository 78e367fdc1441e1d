#include "worker.h"

#include "world.h"

#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>

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
}  // namespace

Collective::Collective(Label label, int rank, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                       std::chrono::milliseconds timeout, std::string name, std::function<std::vector<int>()> missing)
    : Work(rank, label.type, label.title, inputs),
      outputs_(std::move(outputs)),
      timeout_(timeout),
      name_(std::move(name)),
      missing_(std::move(missing)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       accelerators_of(outputs_))) {}

bool Collective::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
  std::unique_lock<std::mutex> lock(mutex_);
  if (!cv_.wait_for(lock, limit, [this] { return completed_; })) {
    const auto ranks = missing_();
    abandon();
    TORCH_CHECK_WITH(DistBackendError, false, "backend mpi: ", name_, " has not ended within ", limit.count(), " ms: ",
                     ranks.empty() ? "another rank" : c10::str("rank ", c10::Join(", ", ranks)),
                     " does not take part in it");
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
  return true;
}

void Collective::run(const std::function<void()>& operation) {
  try {
    operation();
  } catch (...) {
    future_->setError(std::current_exception());
    finish(std::current_exception());
    return;
  }
  future_->markCompleted(at::IValue(outputs_));
  finish();
}

namespace {
// The unfinished operations of all groups. Never destroyed, because threads may run until the process ends.
struct Pending {
  std::mutex mutex;
  std::condition_variable changed;
  int works = 0;

  void count(int more) {
    std::lock_guard<std::mutex> lock(mutex);
    works += more;
    changed.notify_all();
  }
};

Pending& pending() {
  static auto* found = new Pending;
  return *found;
}
}  // namespace

void await_workers() {
  std::unique_lock<std::mutex> lock(pending().mutex);
  pending().changed.wait(lock, [] { return pending().works == 0; });
}

struct Worker::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<c10::intrusive_ptr<Collective>, std::function<void()>>> jobs;
  bool closed = false;

  void serve() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return closed || !jobs.empty(); });
      if (jobs.empty()) {
        return;
      }
      auto [work, operation] = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      work->run(operation);
      operation = nullptr;  // releases its tensors
      work.reset();
      pending().count(-1);
      lock.lock();
    }
  }
};

Worker::Worker() : queue_(std::make_shared<Queue>()), thread_([queue = queue_] { queue->serve(); }) {}

void Worker::seal() {
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->closed = true;
  }
  queue_->changed.notify_all();
}

Worker::~Worker() {
  if (thread_.joinable()) {
    seal();
    thread_.detach();
  }
}

void Worker::close() {
  if (!thread_.joinable()) {
    return;
  }
  seal();
  if (is_abandoned()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Worker::submit(c10::intrusive_ptr<Collective> work, std::function<void()> operation) {
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    TORCH_CHECK_WITH(DistBackendError, !queue_->closed, "backend mpi: this group was destroyed");
    pending().count(1);
    queue_->jobs.emplace_back(std::move(work), std::move(operation));
  }
  queue_->changed.notify_one();
}

}  // namespace torchfleet
