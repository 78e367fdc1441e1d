// How the ranks of a group find each other before they share memory: by MPI or by a store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace torchfleet {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // What each rank gives, in the order of the ranks. All of them call this, with texts of one length.
  virtual std::vector<std::string> all_gather(const std::string& own) = 0;
};

// The same for one value of each rank. Throws std::runtime_error if a rank gave something else.
template <typename T>
std::vector<T> all_gather(Rendezvous& ranks, const T& own) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> found;
  for (const std::string& text : ranks.all_gather({reinterpret_cast<const char*>(&own), sizeof own})) {
    if (text.size() != sizeof own) {
      throw std::runtime_error("the ranks of this group do not have the same torchfleet-backends");
    }
    std::memcpy(&found.emplace_back(), text.data(), sizeof own);
  }
  return found;
}

// Whether all ranks say yes. All of them call this.
inline bool on_all(Rendezvous& ranks, bool own) {
  const std::vector<uint8_t> found = all_gather(ranks, static_cast<uint8_t>(own));
  return std::all_of(found.begin(), found.end(), [](uint8_t one) { return one != 0; });
}

}  // namespace torchfleet
