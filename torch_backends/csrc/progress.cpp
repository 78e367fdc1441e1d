#include "progress.h"

#include "operation.h"

#include <pthread.h>

#include <algorithm>

namespace torchfleet {

namespace {
// Pauses between two polls: the longer nothing has happened, the longer. The first one comes after a pause, too: whoever
// waits for a message polls itself.
constexpr auto kShortestPause = std::chrono::microseconds(50), kLongestPause = std::chrono::microseconds(1000);
constexpr int kPart = 16;  // of the time since the last news
// Without messages, the thread looks for new ones so long before it has to be woken: waking it costs the sender more.
constexpr auto kLinger = std::chrono::milliseconds(20);
}  // namespace

Progress& Progress::of_process() {
  static auto* found = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&of_process()) Progress; });  // a child is no rank, and has no messages
    return new Progress;
  }();
  return *found;
}

void Progress::add(c10::intrusive_ptr<MessageWork> message) {
  if (message->isCompleted()) {
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  messages_.push_back(std::move(message));
  last_news_ = Clock::now();
  if (closed_) {
    return;  // close() comes again
  }
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { serve(); });
  } else if (idle_) {
    changed_.notify_all();
  }
}

bool Progress::has_any_of(MPI_Comm comm) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(messages_.begin(), messages_.end(), [=](const auto& message) {
    return message->comm() == comm && !message->isCompleted();
  });
}

void Progress::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_) {
    const auto quiet = Clock::now() - last_news_;
    if (messages_.empty() && quiet > kLinger) {
      idle_ = true;
      changed_.wait(lock, [this] { return closed_ || !messages_.empty(); });
      idle_ = false;
      continue;
    }
    const auto pause =
        messages_.empty() ? kLongestPause : std::clamp<Clock::duration>(quiet / kPart, kShortestPause, kLongestPause);
    changed_.wait_for(lock, pause, [this] { return closed_; });
    if (!messages_.empty() && !closed_) {
      lock.unlock();
      advance_all();
      lock.lock();
    }
  }
}

void Progress::advance_all() {
  std::vector<c10::intrusive_ptr<MessageWork>> all, over;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    all = messages_;
  }
  for (auto& message : all) {
    if (message->advance_in_background()) {
      over.push_back(message);
    }
  }
  if (over.empty()) {
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_over = [&](const auto& message) { return std::find(over.begin(), over.end(), message) != over.end(); };
  messages_.erase(std::remove_if(messages_.begin(), messages_.end(), is_over), messages_.end());
  last_news_ = Clock::now();
}

bool Progress::close(std::chrono::milliseconds most) {
  const auto deadline = Clock::now() + most;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto sends = [this] {
    return std::any_of(messages_.begin(), messages_.end(), [](const auto& message) { return message->is_send(); });
  };
  while (sends() && Clock::now() < deadline) {
    lock.unlock();
    advance_all();
    std::this_thread::sleep_for(kShortestPause);
    lock.lock();
  }
  closed_ = true;
  changed_.notify_all();
  lock.unlock();
  if (thread_.joinable()) {
    thread_.join();
  }
  for (auto& message : messages_) {
    if (!message->is_send()) {
      message->cancel();
    }
  }
  return !sends();
}

}  // namespace torchfleet
