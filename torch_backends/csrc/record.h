// The last collectives of this process: which ones were entered, and when. It is read when somebody asks why a job hangs.
// Whoever wants it asks as for PyTorch's flight recorder: TORCH_FR_BUFFER_SIZE, or the older TORCH_NCCL_TRACE_BUFFER_SIZE,
// is above 0.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace torchfleet {

// Keeps a name until the process ends, and returns it: the same one for equal texts.
const char* intern(const std::string& name);

// Whether it is wanted, as it was when this was first asked.
bool is_recording();

// Notes that a collective was entered; returns its number, from 1 on, by which record_end() finds it. `group`: of intern().
// `type`: of all its tensors; Undefined for none or several. It takes no lock: each rank does this for each collective.
uint64_t record_start(const char* group, uint64_t sequence, const char* title, int64_t bytes, c10::ScalarType type);
void record_end(uint64_t number);  // 0: of a collective that was not noted

// All of them, oldest first, as JSON in the form of PyTorch's flight recorder (version 2.10).
std::string record_as_json();

}  // namespace torchfleet
