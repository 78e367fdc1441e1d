#include "gpu_aware.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <cstdlib>
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
}  // namespace

bool mpi_is_gpu_aware() {
  const char* given = std::getenv("TORCHFLEET_MPI_DIRECT");
  const auto type = at::accelerator::getAccelerator();
  return type && (given != nullptr ? given == std::string("1") : mpi_says_so(*type));
}

}  // namespace torchfleet
