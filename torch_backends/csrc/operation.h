// The collective that a thread is working on: how long it may wait, and what must outlive it.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace torchfleet {

using Clock = std::chrono::steady_clock;

// A timeout with which clocks can count: torch's "no timeout" is more than they hold.
inline std::chrono::milliseconds finite(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

// Thrown where an operation waits, when its time is over.
struct TimedOut {
  std::vector<int> missing;  // the ranks of the group that it waited for, as far as they are known
};

// Exists while a worker runs an operation. Everything that waits inside calls check().
class Operation {
 public:
  explicit Operation(std::chrono::milliseconds timeout);
  ~Operation();
  Operation(const Operation&) = delete;

  // Throws TimedOut after the deadline, and whatever the watch throws. Does nothing in a thread without an operation.
  static void check(const std::vector<int>& missing = {});

  // The time left, at most `most`.
  static std::chrono::nanoseconds at_most(std::chrono::nanoseconds most);

  // The function is called by check(), to notice that the ranks disagree while data is in transit. Null for none.
  static void watch(std::function<void()> function);

  // MPI cannot cancel a collective. If the operation fails, memory that MPI may still access is kept until the process
  // ends.
  static void hold(std::shared_ptr<void> memory);
  void leak();

 private:
  const Clock::time_point deadline_;
  std::function<void()> watch_;
  std::vector<std::shared_ptr<void>> held_;
};

}  // namespace torchfleet
