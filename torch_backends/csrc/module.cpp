// The Python bindings of the backend.
#include "bindings.h"
#include "mpi_backend.h"

namespace {
using torchfleet::MPIBackend;

c10::intrusive_ptr<c10d::Backend> create(const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  torchfleet::begin();
  const MPI_Comm comm = torchfleet::communicator(ranks);
  if (comm == MPI_COMM_NULL) {
    return nullptr;
  }
  int rank = 0, size = 0;
  TORCHFLEET_MPI(MPI_Comm_rank(comm, &rank));
  TORCHFLEET_MPI(MPI_Comm_size(comm, &size));
  return c10::make_intrusive<MPIBackend>(comm, rank, size, timeout);
}
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.doc() = "torch.distributed over MPI, for the stock PyTorch wheel";
  module.def("create", &create, py::arg("ranks"), py::arg("timeout"), Unlocked(),
             "A backend of these ranks of MPI_COMM_WORLD in this order, all if there are none; None if this process is not\n"
             "among them.");
  module.def("begin", &torchfleet::begin, Unlocked(), "MPI_Init_thread; MPI_Finalize comes when the process ends.");
  module.def("world_rank", &torchfleet::world_rank);
  module.def("world_size", &torchfleet::world_size);
  module.def("told_by_all", &torchfleet::told_by_all, Unlocked(), "What every rank of the world says; all call this.");
  torchfleet::define_common(module, [] { torchfleet::end_messages(); });
  module.def("library_version", &torchfleet::library_version);
}
