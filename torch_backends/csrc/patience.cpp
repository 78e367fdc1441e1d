#include "patience.h"

#include "yield.h"

#include <chrono>
#include <thread>

namespace torchfleet {

void Patience::rest() {
  if (is_spent()) {
    Operation::check();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  } else {
    looks_ = yield_and_return_soon() ? looks_ + 1 : kLooks;
  }
}

bool are_done(std::vector<MPI_Request>& requests) {
  int flag = 0;
  TORCHFLEET_MPI(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE));
  return flag != 0;
}

}  // namespace torchfleet
