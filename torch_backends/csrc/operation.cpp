#include "operation.h"

#include <algorithm>
#include <mutex>

namespace torchfleet {

namespace {
thread_local Operation* running = nullptr;
}  // namespace

Operation::Operation(std::chrono::milliseconds timeout) : deadline_(Clock::now() + finite(timeout)) {
  running = this;
}

Operation::~Operation() {
  running = nullptr;
}

void Operation::watch(std::function<void()> function) {
  if (running != nullptr) {
    running->watch_ = std::move(function);
  }
}

void Operation::check(const std::vector<int>& missing) {
  if (running == nullptr) {
    return;
  }
  if (running->watch_) {
    running->watch_();
  }
  if (Clock::now() >= running->deadline_) {
    throw TimedOut{missing};
  }
}

std::chrono::nanoseconds Operation::at_most(std::chrono::nanoseconds most) {
  if (running == nullptr) {
    return most;
  }
  const std::chrono::nanoseconds left = running->deadline_ - Clock::now();
  return std::clamp<std::chrono::nanoseconds>(left, std::chrono::microseconds(1), most);
}

void Operation::hold(std::shared_ptr<void> memory) {
  if (running != nullptr) {
    running->held_.push_back(std::move(memory));
  }
}

void Operation::leak() {
  static auto* mutex = new std::mutex;
  static auto* kept = new std::vector<std::shared_ptr<void>>;
  std::lock_guard<std::mutex> lock(*mutex);
  kept->insert(kept->end(), held_.begin(), held_.end());
}

}  // namespace torchfleet
