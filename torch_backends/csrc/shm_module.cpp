// The Python bindings of backend shm.
#include "bindings.h"
#include "shm_backend.h"

namespace {
using torchfleet::BackendPtr;

BackendPtr create(const torchfleet::StorePtr& store, int rank, const std::vector<int>& nodes,
                  std::chrono::milliseconds timeout, BackendPtr gloo) {
  return c10::make_intrusive<torchfleet::ShmBackend>(store, rank, nodes, timeout, std::move(gloo));
}
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.doc() = "torch.distributed over shared memory, for the stock PyTorch wheel";
  module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("nodes"), py::arg("timeout"), py::arg("gloo"),
             Unlocked(), "A backend of a group. `nodes`: the number of each rank's node; `gloo`: of all ranks.");
  torchfleet::define_common(module, nullptr);
}
