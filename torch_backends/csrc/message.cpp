#include "message.h"

#include "backoff.h"
#include "devices.h"
#include "operation.h"
#include "title.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>

namespace torchfleet {

MessageWork::MessageWork(c10d::OpType type, int rank, MPI_Comm comm, at::Tensor buffer, at::Tensor target,
                 std::vector<Request> requests, std::chrono::milliseconds timeout, std::string name,
                 std::shared_ptr<Receive> receive)
    : Work(rank, type, title_of(type), std::vector<at::Tensor>{target}),
      comm_(comm),
      buffer_(std::move(buffer)),
      target_(std::move(target)),
      requests_(std::move(requests)),
      timeout_(timeout),
      name_(std::move(name)),
      receive_(std::move(receive)) {
  std::reverse(requests_.begin(), requests_.end());  // the first one is at the end
}

bool MessageWork::take() {
  if (!receive_) {
    return true;
  }
  if (!receive_->mailbox->try_match(*receive_)) {
    return false;
  }
  source_ = receive_->piece.rank;
  if (receive_->arrived != receive_->piece.bytes) {
    mismatch_ = c10::str("rank ", source_, " sent ", receive_->arrived, " bytes, and ", receive_->piece.bytes, " are expected");
  }
  requests_ = std::move(receive_->requests);
  std::reverse(requests_.begin(), requests_.end());
  receive_.reset();
  return true;
}

bool MessageWork::are_requests_done() {
  while (!requests_.empty()) {
    int flag = 0;
    TORCHFLEET_MPI(MPI_Test(&requests_.back().request, &flag, MPI_STATUS_IGNORE));
    if (flag == 0) {
      return false;
    }
    requests_.pop_back();
  }
  return true;
}

bool MessageWork::advance() {
  if (completed_) {
    return true;
  }
  try {
    if (!take() || !are_requests_done()) {
      return false;
    }
    if (!mismatch_.empty()) {
      throw std::runtime_error(mismatch_);
    }
    if (!target_.is_same(buffer_)) {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;  // whichever thread this is
      target_.copy_(buffer_);
      if (future_) {  // this may be any thread, and its stream is not that of who waits for the future
        torchfleet::synchronize(target_.device());
      }
    }
  } catch (const std::exception& error) {
    if (!requests_.empty() || (receive_ && !receive_->requests.empty())) {  // MPI may still access the memory
      new at::Tensor(buffer_);
      new std::shared_ptr<Receive>(receive_);
      skip_finalize();
    }
    exception_ = std::make_exception_ptr(
        C10_BUILD_ERROR(DistBackendError, c10::str("backend mpi: ", name_, ": ", plain_text(error))));
  }
  finish_here();
  return true;
}

void MessageWork::finish_here() {
  completed_ = true;
  if (receive_) {  // it failed
    receive_->mailbox->drop(*receive_);
    receive_.reset();
  }
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
  complete_future();
  over_ = true;
}

// In a thread of its own: it may run functions that the program has attached.
void MessageWork::complete_future() {
  if (!future_ || future_is_over_) {
    return;
  }
  future_is_over_ = true;
  run_in_thread([future = future_, error = exception_, target = target_] {
    if (error) {
      future->setError(error);
    } else {
      future->markCompleted(at::IValue(std::vector<at::Tensor>{target}));
    }
  });
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!future_) {
    std::vector<c10::Device> devices;
    if (!target_.is_cpu()) {
      devices.push_back(target_.device());
      torchfleet::synchronize(target_.device());  // what this thread still does with the tensor comes before the message
      advance();                                  // it may be left to this thread alone
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    if (completed_) {
      complete_future();
    }
  }
  return future_;
}

bool MessageWork::isCompleted() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  return over_ || (lock && advance());
}

bool MessageWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && !exception_;
}

// What is copied to an accelerator at the end is left to the thread that waits for it, as that is where its stream is; nobody
// waits for one with a future.
bool MessageWork::advance_in_background() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) {
    return false;
  }
  if (!completed_ && !future_ && !target_.is_same(buffer_) && !target_.is_cpu()) {
    try {
      return take() && are_requests_done();
    } catch (const std::exception&) {
    }  // advance() comes to it again
  }
  if (advance()) {
    return true;
  }
  if (future_ && !future_is_over_ && Clock::now() - posted_ >= finite(timeout_)) {
    future_is_over_ = true;
    const auto error = std::make_exception_ptr(C10_BUILD_ERROR(
        DistBackendError, c10::str("backend mpi: ", name_, " has not ended within ", timeout_.count(), " ms")));
    run_in_thread([future = future_, error] { future->setError(error); });
  }
  return false;
}

void MessageWork::cancel() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Request& one : requests_) {
    MPI_Cancel(&one.request);
    MPI_Request_free(&one.request);
  }
  requests_.clear();
}

void MessageWork::give_up() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!completed_ && receive_ && receive_->requests.empty()) {
    exception_ = std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, c10::str("backend mpi: ", name_, " was given up")));
    finish_here();
  }
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = finite(timeout == kNoTimeout ? timeout_ : timeout);
  const auto start = Clock::now();
  for (Backoff backoff;; backoff.pause()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (advance()) {
        break;
      }
    }
    TORCH_CHECK_WITH(DistBackendError, !backoff.sleeps() || Clock::now() - start < limit, "backend mpi: ", name_,
                     " has not ended within ", limit.count(), " ms: the other rank does not take part in it");
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
  return true;
}

}  // namespace torchfleet
