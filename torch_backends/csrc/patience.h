// Waiting for what MPI brings. Its own blocking calls look without a pause, so that on busy cores (more ranks than cores,
// a busy neighbour) every step of every rank costs a slice of time: ours look for a while and then rest between looks.
#pragma once

#include "world.h"

namespace torchfleet {

// What lies between two looks: at first nothing but a chance for others, then sleep.
class Patience {
 public:
  void rest();
  bool is_spent() const { return looks_ >= kLooks; }

 private:
  static constexpr int kLooks = 200;
  int looks_ = 0;
};

// True when all of them are done. Throws MPI's own words.
bool are_done(std::vector<MPI_Request>& requests);

// Begins one of MPI's collectives that return at once, and waits for its end.
template <typename Call, typename... Words>
void await(const char* name, Call call, Words... words) {
  std::vector<MPI_Request> requests(1);
  check(call(words..., requests.data()), name);
  for (Patience patience; !are_done(requests); patience.rest()) {
  }
}

}  // namespace torchfleet

#define TORCHFLEET_MPI_AWAIT(call, ...) ::torchfleet::await(#call, call, __VA_ARGS__)
