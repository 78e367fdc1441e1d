#include "devices.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>

#include <cstdlib>
#include <mutex>
#include <string>

// No MPI has all of these: Open MPI the first two, MPICH the first and the third, Intel MPI the first and the last.
extern "C" {
__attribute__((weak)) int MPIX_Query_cuda_support(void);
__attribute__((weak)) int MPIX_Query_rocm_support(void);
__attribute__((weak)) int MPIX_Query_hip_support(void);
__attribute__((weak)) int MPIX_Query_ze_support(void);
}

namespace torchfleet {

namespace {
bool says_yes(int (*question)(void)) {
  return question != nullptr && question() == 1;
}

bool mpi_says_so(c10::DeviceType type) {
  if (type == at::kCUDA && at::detail::getCUDAHooks().hasROCM()) {  // PyTorch calls both kinds CUDA
    return says_yes(MPIX_Query_rocm_support) || says_yes(MPIX_Query_hip_support);
  }
  return (type == at::kCUDA && says_yes(MPIX_Query_cuda_support)) || (type == at::kXPU && says_yes(MPIX_Query_ze_support));
}

void refuse_sparse(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!tensor.is_sparse(), "backend mpi: got a sparse tensor, and MPI knows only dense ones");
}
}  // namespace

bool mpi_reads_accelerators() {
  const char* given = std::getenv("TORCHFLEET_MPI_DIRECT");
  const auto type = at::accelerator::getAccelerator();
  return type && (given != nullptr ? given == std::string("1") : mpi_says_so(*type));
}

void settle(c10::Device device) {
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl devices(device.type());
    devices.synchronizeStream(devices.getStream(device));
  }
}

at::Tensor direct(const at::Tensor& tensor) {
  refuse_sparse(tensor);
  at::Tensor found = tensor.contiguous();
  if (!found.is_cpu()) {
    settle(found.device());
    static std::once_flag told;
    std::call_once(told, [&] { LOG(INFO) << "backend mpi: tensors on " << found.device() << " are read by MPI itself"; });
  }
  return found;
}

at::Tensor staged(const at::Tensor& tensor) {
  refuse_sparse(tensor);
  if (tensor.is_cpu()) {
    return tensor.contiguous();
  }
  TORCH_WARN_ONCE("backend mpi: tensors on ", tensor.device(), " go through memory of the host");
  return room_for(tensor, at::kCPU).copy_(tensor);
}

at::Tensor room_for(const at::Tensor& tensor, c10::Device device) {
  return at::empty(tensor.sizes(), tensor.options().device(device).pinned_memory(tensor.is_cuda() && device.is_cpu()));
}

}  // namespace torchfleet
