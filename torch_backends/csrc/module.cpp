// The Python bindings of the backend.
#include "bindings.h"
#include "mpi_backend.h"

namespace {
using torchfleet::MPIBackend;

c10::intrusive_ptr<c10d::Backend> create(const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  torchfleet::initialize();
  const MPI_Comm comm = torchfleet::communicator(ranks);
  if (comm == MPI_COMM_NULL) {
    return nullptr;
  }
  return c10::make_intrusive<MPIBackend>(comm, timeout);
}
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.doc() = "torch.distributed over MPI, for the stock PyTorch wheel";
  module.def("create", &create, py::arg("ranks"), py::arg("timeout"), Unlocked(),
             "A backend of these ranks of MPI_COMM_WORLD in this order, all if there are none; None if this process is not\n"
             "among them.");
  module.def("initialize", &torchfleet::initialize, Unlocked(), "MPI_Init_thread; MPI_Finalize comes when the process ends.");
  module.def("world_rank", [] { return torchfleet::rank_in(MPI_COMM_WORLD); });
  module.def("world_size", [] { return torchfleet::size_of(MPI_COMM_WORLD); });
  module.def("gather_texts", &torchfleet::gather_texts, Unlocked(), "The texts of all ranks of the world; all call this.");
  torchfleet::define_common(module, [] { torchfleet::end_messages(); });
  module.def("library_version", &torchfleet::library_version);
}
