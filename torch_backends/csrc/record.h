// The last collectives of this process: who entered which, and when. It is read when somebody asks why a job hangs.
#pragma once

#include <cstdint>
#include <string>

namespace torchfleet {

// Keeps a name until the process ends, and returns it: the same one for equal texts.
const char* kept(const std::string& name);

// Notes that a collective was entered; returns its number, by which left() finds it. `group`: of kept(). `type`: the
// c10::ScalarType of all its tensors, -1 for none or several. It takes no lock: each rank does this for each collective.
uint64_t entered(const char* group, uint64_t sequence, const char* title, int64_t bytes, int16_t type);
void left(uint64_t number);

// All of them, oldest first, as JSON in the form of PyTorch's flight recorder (version 2.10).
std::string record_as_json();

}  // namespace torchfleet
