#include "signature.h"

#include "reduction.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>

namespace torchfleet {

namespace {
// Bits of each field, from the lowest. Larger numbers are cut off: then two different ones may compare equal.
constexpr int kCountBits = 38, kRootBits = 12, kTypeBits = 6, kOpBits = 4;
constexpr int kRootShift = kCountBits, kTypeShift = kRootShift + kRootBits, kOpShift = kTypeShift + kTypeBits;
constexpr int kKindShift = kOpShift + kOpBits;
static_assert(kKindShift + 4 == 64);
static_assert(static_cast<int>(at::ScalarType::NumOptions) < 1 << kTypeBits);

uint64_t field(int64_t number, int bits) {
  return static_cast<uint64_t>(number) & ((uint64_t{1} << bits) - 1);
}

uint64_t taken(uint64_t word, int shift, int bits) {
  return word >> shift & ((uint64_t{1} << bits) - 1);
}

const char* kName[] = {"nothing",        "barrier",   "all_reduce", "reduce",  "reduce_scatter",
                       "broadcast",      "all_gather", "gather",    "scatter", "all_to_all"};
}  // namespace

Signature::Signature(Kind kind, at::ScalarType type, int64_t count, int root, ReduceKind op)
    : word_(field(count + 1, kCountBits) | field(root + 1, kRootBits) << kRootShift |
            field(static_cast<int>(type), kTypeBits) << kTypeShift | field(op, kOpBits) << kOpShift |
            field(kind, 4) << kKindShift) {}

Signature Signature::barrier() {
  return Signature(kBarrier, at::ScalarType::Undefined, -1);
}

std::string Signature::text() const {
  const auto kind = taken(word_, kKindShift, 4), op = taken(word_, kOpShift, kOpBits);
  const auto root = taken(word_, kRootShift, kRootBits), count = taken(word_, 0, kCountBits);
  const auto type = static_cast<at::ScalarType>(taken(word_, kTypeShift, kTypeBits));
  std::string found = kind < std::size(kName) ? kName[kind] : kName[0];
  if (kind == kAllReduce || kind == kReduce || kind == kReduceScatter) {
    found += c10::str(" (", name_of_reduction(static_cast<ReduceKind>(op)), ")");
  }
  if (root != 0) {
    found += c10::str(" with root ", root - 1);
  }
  if (type != at::ScalarType::Undefined) {
    found += count == 0 ? c10::str(" of ", type) : c10::str(" of ", count - 1, " ", type);
  }
  return found;
}

void refuse_different(const std::vector<uint64_t>& words, const std::vector<int>& ranks) {
  std::map<uint64_t, std::vector<int>> found;
  for (size_t i = 0; i < words.size(); ++i) {
    found[words[i]].push_back(ranks.empty() ? static_cast<int>(i) : ranks[i]);
  }
  if (found.size() == 1) {
    return;
  }
  std::vector<std::string> told;
  for (auto& [word, those] : found) {
    std::sort(those.begin(), those.end());
    told.push_back(c10::str("rank ", c10::Join(", ", those), ": ", Signature(word).text()));
  }
  std::sort(told.begin(), told.end());
  throw std::runtime_error(c10::str("the ranks do not ask for the same: ", c10::Join("; ", told)));
}

}  // namespace torchfleet
