#include "yield.h"

#include <chrono>
#include <thread>

namespace torchfleet {

namespace {
constexpr std::chrono::microseconds kSoon{100};  // a yield with nobody else on the core takes less than one
}

bool yield_and_return_soon() {
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::yield();
  return std::chrono::steady_clock::now() - start < kSoon;
}

}  // namespace torchfleet
