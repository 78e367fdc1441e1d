#include "message.h"

#include "patience.h"

#include <torch/csrc/distributed/c10d/exception.h>

namespace torchfleet {

using Clock = std::chrono::steady_clock;

Message::Message(Label label, int rank, at::Tensor buffer, at::Tensor target,
                 std::vector<MPI_Request> requests, std::chrono::milliseconds timeout, std::string name,
                 std::optional<Anybody> anybody)
    : Work(rank, label.type, label.title, std::vector<at::Tensor>{target}),
      buffer_(std::move(buffer)),
      target_(std::move(target)),
      requests_(std::move(requests)),
      timeout_(timeout),
      name_(std::move(name)),
      anybody_(std::move(anybody)) {}

bool Message::take() {
  if (!anybody_) {
    return true;
  }
  if (anybody_->before) {
    std::lock_guard<std::mutex> lock(anybody_->before->mutex_);
    if (!anybody_->before->take()) {
      return false;
    }
  }
  anybody_->before.reset();
  int flag = 0;
  MPI_Message found;
  MPI_Status status;
  TORCHFLEET_MPI(MPI_Improbe(MPI_ANY_SOURCE, anybody_->tag, anybody_->comm, &flag, &found, &status));
  if (flag != 0) {
    source_ = status.MPI_SOURCE;
    const Piece piece{source_, static_cast<char*>(buffer_.data_ptr()), static_cast<int64_t>(buffer_.nbytes())};
    requests_ = post_found(anybody_->comm, piece, anybody_->tag, found);
    anybody_.reset();
  }
  return flag != 0;
}

bool Message::advance() {
  if (!take()) {
    return false;
  }
  while (!done_ && !requests_.empty()) {
    int flag = 0;
    MPI_Status status;
    TORCHFLEET_MPI(MPI_Test(&requests_.back(), &flag, &status));
    if (flag == 0) {
      return false;
    }
    source_ = status.MPI_SOURCE;
    requests_.pop_back();
  }
  if (!done_ && !target_.is_same(buffer_)) {
    target_.copy_(buffer_);
  }
  if (!done_ && recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
  }
  done_ = true;
  return true;
}

bool Message::isCompleted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return advance();
}

bool Message::is_over() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  return lock && advance();
}

bool Message::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
  const auto deadline = Clock::now() + limit;
  std::lock_guard<std::mutex> lock(mutex_);
  for (Patience patience; !advance(); patience.rest()) {
    if (patience.is_spent() && Clock::now() >= deadline) {
      abandon();
      TORCH_CHECK_WITH(DistBackendError, false, "backend mpi: ", name_, " has not ended within ", limit.count(),
                       " ms: the other rank does not take part in it");
    }
  }
  return true;
}

}  // namespace torchfleet
