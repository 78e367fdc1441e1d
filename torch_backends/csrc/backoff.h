// Waiting for MPI. MPI's own blocking calls poll without a pause, so that on busy cores (more ranks than cores, a busy
// neighbour) every step of every rank costs a time slice. Ours poll for a while, and then sleep between polls.
#pragma once

#include "operation.h"
#include "world.h"

#include <vector>

namespace torchfleet {

// The pause between two polls: at first only a yield, then sleep.
class Backoff {
 public:
  // Throws TimedOut when the operation of this thread is out of time.
  void pause();
  bool sleeps() const { return polls_ >= kPolls; }

 private:
  static constexpr int kPolls = 200;
  int polls_ = 0;
};

// Whether all requests are done. Throws MPI's error text.
bool test_all(std::vector<MPI_Request>& requests);

// Starts one of MPI's non-blocking collectives and waits for its end.
template <typename Call, typename... Args>
void await(const char* name, Call call, Args... args) {
  std::vector<MPI_Request> requests(1);
  check(call(args..., requests.data()), name);
  for (Backoff backoff; !test_all(requests); backoff.pause()) {
  }
}

}  // namespace torchfleet

#define TORCHFLEET_MPI_AWAIT(call, ...) ::torchfleet::await(#call, call, __VA_ARGS__)
