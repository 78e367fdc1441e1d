#include "buffer.h"

#include "devices.h"
#include "name.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Logging.h>

#include <mutex>

namespace torchfleet {

Buffer::Buffer(Tensors tensors, Use use, bool on_host, int divisor, bool apart)
    : tensors_(std::move(tensors)), use_(use), divisor_(divisor) {
  for (const at::Tensor& tensor : tensors_) {
    check(tensor, use);
  }
  const at::Tensor& first = tensors_[0];
  const bool moves = on_host && !first.is_cpu();
  is_own_ = tensors_.size() == 1 && !moves && divisor == 1 && !apart && first.is_contiguous();
  if (is_own_) {
    memory = first;
  } else {
    std::vector<int64_t> sizes = first.sizes().vec();
    if (tensors_.size() > 1) {
      sizes = {static_cast<int64_t>(tensors_.size()), first.numel()};
    }
    const c10::Device device = moves ? at::kCPU : first.device();
    memory = at::empty(sizes, first.options().device(device).pinned_memory(moves && first.is_cuda()));
  }
  if (first.is_cpu()) {
    return;
  }
  if (moves) {
    TORCH_WARN_ONCE("backend " TORCHFLEET_NAME ": tensors on ", first.device(), " go through memory of the host");
  } else {
    static std::once_flag told;
    std::call_once(told, [&] {
      LOG(INFO) << "backend " TORCHFLEET_NAME ": tensors on " << first.device() << " are read by MPI itself";
    });
  }
  fill();
  synchronize(first.device());
}

void Buffer::check(const at::Tensor& tensor, Use use) {
  TORCH_CHECK_VALUE(!tensor.is_sparse(), "backend " TORCHFLEET_NAME ": got a sparse tensor, and it knows only dense ones");
  TORCH_CHECK_VALUE((use & kWritten) == 0 || at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "backend " TORCHFLEET_NAME
                    ": got an expanded tensor, of which several elements share memory; give tensor.contiguous()");
}

void Buffer::fill() const {
  if (is_own_ || (use_ & kRead) == 0) {
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor part = tensors_.size() == 1 ? memory : memory[static_cast<int64_t>(i)].view(tensors_[i].sizes());
    part.copy_(tensors_[i]);
  }
  if (divisor_ > 1) {
    at::Tensor(memory).div_(divisor_);
  }
}

void Buffer::load() const {
  if (tensors_[0].is_cpu()) {
    fill();
  }
}

void Buffer::store() const {
  if (!is_own_ && (use_ & kWritten) != 0) {
    tensors_[0].copy_(memory);
  }
}

}  // namespace torchfleet
