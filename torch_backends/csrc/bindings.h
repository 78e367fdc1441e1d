// What the Python modules of both backends have in common.
#pragma once

#include "record.h"
#include "worker.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

namespace torchfleet {

// Defines recorded() and finish(). `then`: what finish() waits for last, unless it must not wait at all; null for nothing.
inline void define_common(py::module_& module, void (*then)()) {
  module.def("recorded", [] { return py::bytes(record_as_json()); },
             "The last collectives of all groups, as JSON in the form of PyTorch's flight recorder.");
  module.def(
      "finish",
      [then](std::chrono::milliseconds most) {
        await_workers(most, true);
        complete_no_more_futures();
        if (then != nullptr && most.count() > 0) {
          then();
        }
      },
      py::arg("most"), py::call_guard<py::gil_scoped_release>(),
      "Waits at most so long for all collectives and for the functions of their futures, which are not run after this,\n"
      "and then for the backend's own messages that are being sent.");
}

}  // namespace torchfleet
