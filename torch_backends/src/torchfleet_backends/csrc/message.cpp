#include "message.h"

#include <torch/csrc/distributed/c10d/exception.h>

#include <thread>

namespace torchfleet {

namespace {
using Clock = std::chrono::steady_clock;
constexpr int kSpins = 200;  // looks before a waiting thread lets others have its core
constexpr auto kPause = std::chrono::microseconds(50);
}  // namespace

Message::Message(c10d::OpType type, int rank, at::Tensor buffer, at::Tensor target,
                 std::vector<MPI_Request> requests, std::chrono::milliseconds timeout, std::string name)
    : Work(rank, type),
      buffer_(std::move(buffer)),
      target_(std::move(target)),
      requests_(std::move(requests)),
      timeout_(timeout),
      name_(std::move(name)) {}

bool Message::advance() {
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
  done_ = true;
  return true;
}

bool Message::isCompleted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return advance();
}

bool Message::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
  const auto deadline = Clock::now() + limit;
  std::lock_guard<std::mutex> lock(mutex_);
  for (int look = 0; !advance(); ++look) {
    if (look < kSpins) {
      std::this_thread::yield();
      continue;
    }
    if (Clock::now() >= deadline) {
      abandon();
      TORCH_CHECK_WITH(DistBackendError, false, "backend mpi: ", name_, " has not ended within ", limit.count(),
                       " ms: the other rank does not take part in it");
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace torchfleet
