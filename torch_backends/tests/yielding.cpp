// Yields until one says what is wanted, for half a minute at most. Usage: yielding alone|beside
//
// alone: until a yield returns soon. beside: until one does not, on a core on which another thread never pauses.
#include "yield.cpp"

#include <sched.h>

#include <atomic>
#include <cstring>

int main(int, char** words) {
  const bool beside = std::strcmp(words[1], "beside") == 0;
  std::atomic<bool> over{false};
  std::thread other;
  if (beside) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);  // the other thread has it too
    other = std::thread([&] {
      while (!over) {
      }
    });
  }
  bool found = false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!found && std::chrono::steady_clock::now() < end) {
    found = torchfleet::yield_and_return_soon() != beside;
  }
  over = true;
  if (beside) {
    other.join();
  }
  return found ? 0 : 1;
}
