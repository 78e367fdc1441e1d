// all_reduce of a group on several nodes that have as many ranks each, in two levels.
#pragma once

#include "reduction.h"
#include "shared.h"

#include <cstdint>

namespace torchfleet {

// Each rank reduces one part in its node, and then, by between(part), with the ranks of the same local rank on the other nodes, so
// that all of them send at the same time; then the ranks of a node share their parts. The last part has what is left over.
template <typename Between>
void all_reduce_in_parts(Shared& node, int local_rank, int local_size, const Elements& all, const Reduction& how, Between between) {
  const int last = local_size - 1;
  const int64_t each = all.count / local_size, left = all.count % local_size;
  const Elements mine = all.part(local_rank * each, each), rest = all.part(local_size * each, left);
  node.reduce_scatter(all.data, mine.data, each, how, all.size);
  if (left > 0) {
    node.reduce(rest.data, left, how, all.size, last);
  }
  between(local_rank == last ? mine.part(0, each + left) : mine);
  node.all_gather(mine.data, all.data, each * all.size);
  if (left > 0) {
    node.broadcast(rest.data, left * all.size, last);
  }
}

}  // namespace torchfleet
