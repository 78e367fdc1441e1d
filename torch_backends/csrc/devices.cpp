#include "devices.h"

#include "name.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>

#include <mutex>

namespace torchfleet {

namespace {
void refuse_sparse(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!tensor.is_sparse(),
                    "backend " TORCHFLEET_NAME ": got a sparse tensor, and it knows only dense ones");
}
}  // namespace

void synchronize(c10::Device device) {
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl devices(device.type());
    devices.synchronizeStream(devices.getStream(device));
  }
}

at::Tensor device_buffer(const at::Tensor& tensor) {
  refuse_sparse(tensor);
  at::Tensor found = tensor.contiguous();
  if (!found.is_cpu()) {
    synchronize(found.device());
    static std::once_flag told;
    std::call_once(told, [&] {
      LOG(INFO) << "backend " TORCHFLEET_NAME ": tensors on " << found.device() << " are read by MPI itself";
    });
  }
  return found;
}

at::Tensor host_buffer(const at::Tensor& tensor) {
  refuse_sparse(tensor);
  if (tensor.is_cpu()) {
    return tensor.contiguous();
  }
  TORCH_WARN_ONCE("backend " TORCHFLEET_NAME ": tensors on ", tensor.device(), " go through memory of the host");
  return buffer_on(tensor, at::kCPU).copy_(tensor);
}

at::Tensor buffer_on(const at::Tensor& tensor, c10::Device device) {
  return at::empty(tensor.sizes(), tensor.options().device(device).pinned_memory(tensor.is_cuda() && device.is_cpu()));
}

}  // namespace torchfleet
