// Several operations as one work, for _coalescing_manager(device=...).
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <vector>

namespace torchfleet {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class CoalescedWork : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<WorkPtr> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;  // of all together
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;  // a list of what the futures of all hold

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace torchfleet
