#include "backoff.h"

#include "yield.h"

#include <chrono>
#include <thread>

namespace torchfleet {

void Backoff::pause() {
  if (sleeps()) {
    Operation::check();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  } else {
    polls_ = yield_and_return_soon() ? polls_ + 1 : kPolls;
  }
}

bool test_all(std::vector<MPI_Request>& requests) {
  int flag = 0;
  TORCHFLEET_MPI(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE));
  return flag != 0;
}

}  // namespace torchfleet
