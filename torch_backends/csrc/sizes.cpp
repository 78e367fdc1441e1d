#include "sizes.h"

namespace torchfleet {

std::vector<int64_t> sizes_of(int ranks, const std::vector<Piece>& sends, const std::vector<Piece>& receives) {
  std::vector<int64_t> found(2 * ranks, 0);
  for (const Piece& piece : sends) {
    found[piece.rank] = piece.bytes;
  }
  for (const Piece& piece : receives) {
    found[ranks + piece.rank] = piece.bytes;
  }
  return found;
}

void check_pair(int from, int to, int64_t sent, int64_t expected) {
  TORCH_CHECK(sent == expected, "rank ", from, " sends ", sent, " bytes to rank ", to, ", which expects ", expected);
}

void check_pairs(const std::vector<int64_t>& all, int ranks) {
  const int row = 2 * ranks;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      check_pair(from, to, all[from * row + to], all[to * row + ranks + from]);
    }
  }
}

void compare_sizes(Shared& memory, Signature own, int ranks, const std::vector<Piece>& sends,
                   const std::vector<Piece>& receives) {
  const std::vector<int64_t> mine = sizes_of(ranks, sends, receives);
  std::vector<int64_t> all(mine.size() * ranks);
  memory.begin(own);
  memory.all_gather(reinterpret_cast<const char*>(mine.data()), reinterpret_cast<char*>(all.data()),
                    static_cast<int64_t>(mine.size() * sizeof(int64_t)));
  check_pairs(all, ranks);
}

}  // namespace torchfleet
