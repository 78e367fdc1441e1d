// The sizes of what ranks send to each other and expect, compared before any data moves: a piece that is longer than its
// buffer may be written beyond it. Open MPI 4.1.8 and 5.0.11 do that between ranks of one node that copy from each other's
// memory (smsc/cma), and return MPI_ERR_TRUNCATE only then.
#pragma once

#include "shared.h"
#include "transport.h"

#include <cstdint>
#include <vector>

namespace torchfleet {

// Of a group of so many ranks: the bytes that this one sends to each, and then those that it expects from each.
std::vector<int64_t> sizes_of(int ranks, const std::vector<Piece>& sends, const std::vector<Piece>& receives);

// Throws std::runtime_error if a rank does not send what another one expects.
void check_pair(int from, int to, int64_t sent, int64_t expected);

// Compares what sizes_of() returned on each rank, one after the other: all ranks find the same difference.
void check_pairs(const std::vector<int64_t>& all, int ranks);

// Compares those of all ranks, which share memory.
void compare_sizes(Shared& memory, Signature own, int ranks, const std::vector<Piece>& sends,
                   const std::vector<Piece>& receives);

}  // namespace torchfleet
