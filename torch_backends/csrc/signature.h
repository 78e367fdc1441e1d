// What a rank asks for in a collective, in one word: ranks publish it with one atomic store and compare it with one load.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace torchfleet {

class Signature {
 public:
  enum Kind : uint8_t { kBarrier = 1, kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kGather, kScatter, kAllToAll };
  using ReduceKind = c10d::ReduceOp::RedOpType;

  explicit Signature(uint64_t word) : word_(word) {}

  // `root`: -1 if there is none. `count`: elements, which all ranks have to have in common; -1 if they need not.
  Signature(Kind kind, at::ScalarType type, int64_t count, int root = -1, ReduceKind op = ReduceKind::UNUSED);

  static Signature barrier();

  uint64_t word() const { return word_; }
  bool operator==(const Signature& other) const { return word_ == other.word_; }
  std::string text() const;  // "all_reduce (SUM) of 1000 Float"

 private:
  uint64_t word_;
};

// Throws std::runtime_error that names what the ranks ask for, if these words differ. `ranks`: of each word; empty if they
// are the first ones in their order.
void refuse_different(const std::vector<uint64_t>& words, const std::vector<int>& ranks = {});

}  // namespace torchfleet
