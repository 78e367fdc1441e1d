#include "coalesced.h"

#include "name.h"
#include "operation.h"

#include <ATen/core/ivalue_inl.h>

#include <algorithm>

namespace torchfleet {

CoalescedWork::CoalescedWork(int rank, std::vector<WorkPtr> works)
    : Work(rank, c10d::OpType::COALESCED, TORCHFLEET_NAME ":coalesced"), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  const auto deadline = std::chrono::steady_clock::now() + finite(timeout);
  for (const WorkPtr& work : works_) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    work->wait(timeout == kNoTimeout ? kNoTimeout : std::max(left, milliseconds(1)));
  }
  return true;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> found;
  for (const WorkPtr& work : works_) {
    const auto more = work->result();
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const WorkPtr& work : works_) {
    futures.push_back(work->getFuture());
  }
  return c10::collectAll(futures);
}

}  // namespace torchfleet
