// What a machine's memory allows: all_reduce of float32 between processes through slots in shared memory, with nothing
// around it. Usage: limit RANKS ROUNDS BYTES...; prints "BYTES SECONDS SECONDS ..." per size, a value per round.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {
constexpr int64_t kChunk = 64 << 10;  // floats
using Flag = std::atomic<uint64_t>;

struct Memory {
  Flag* marks;  // 3 of each rank, 64 bytes apart
  float* slots;
  int ranks;

  Flag& mark(int kind, int rank) const { return marks[(kind * ranks + rank) * 8]; }
  float* slot(uint64_t chunk, int from, int part) const {
    return slots + (((chunk & 1) * ranks + from) * ranks + part) * ((kChunk + ranks - 1) / ranks);
  }
  void wait(int kind, int rank, uint64_t value) const {
    for (int i = 0; mark(kind, rank).load(std::memory_order_acquire) < value; ++i) {
      if (i > 20000) {
        sched_yield();
      }
    }
  }
};

void all_reduce(const Memory& memory, int me, float* data, int64_t count, uint64_t& done) {
  const int n = memory.ranks;
  for (int64_t first = 0; first < count; first += kChunk, ++done) {
    const int64_t all = std::min(kChunk, count - first), each = (all + n - 1) / n;
    const auto begin = [&](int rank) { return std::min(rank * each, all); };
    const auto length = [&](int rank) { return begin(rank + 1) - begin(rank); };
    for (int to = 0; to < n; ++to) {
      if (to != me) {
        std::memcpy(memory.slot(done, me, to), data + first + begin(to), length(to) * 4);
      }
    }
    memory.mark(0, me).store(done + 1, std::memory_order_release);
    float* __restrict mine = data + first + begin(me);
    const int64_t own = length(me);
    for (int step = 1; step < n; ++step) {
      const int from = (me + step) % n;
      memory.wait(0, from, done + 1);
      float* __restrict other = memory.slot(done, from, me);
      if (step < n - 1) {
        for (int64_t i = 0; i < own; ++i) {
          mine[i] += other[i];
        }
      } else {  // the result goes back into the slot that was just read: it is in this core's cache
        for (int64_t i = 0; i < own; ++i) {
          mine[i] += other[i];
          other[i] = mine[i];
        }
      }
    }
    memory.mark(1, me).store(done + 1, std::memory_order_release);
    for (int step = 1; step < n; ++step) {
      const int from = (me + step) % n;
      memory.wait(1, from, done + 1);
      std::memcpy(data + first + begin(from), memory.slot(done, (from + n - 1) % n, from), length(from) * 4);
    }
  }
}
}  // namespace

int main(int count, char** words) {
  const int ranks = std::atoi(words[1]), rounds = std::atoi(words[2]);
  const size_t bytes = size_t{2} * ranks * ranks * ((kChunk + ranks - 1) / ranks) * 4;
  char* shared = static_cast<char*>(
      mmap(nullptr, bytes + (1 << 20), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  const Memory memory{reinterpret_cast<Flag*>(shared), reinterpret_cast<float*>(shared + (1 << 20)), ranks};
  int me = 0;
  for (int rank = 1; rank < ranks && me == 0; ++rank) {
    me = fork() == 0 ? rank : 0;
  }
  uint64_t done = 0;
  for (int argument = 3; argument < count; ++argument) {
    const int64_t floats = std::atoll(words[argument]) / 4;
    std::vector<float> data(floats, 0.0F);
    const int times = static_cast<int>(std::clamp<int64_t>(200'000'000 / (floats * 4 + 50'000), 1, 3000));
    all_reduce(memory, me, data.data(), floats, done);
    if (me == 0) {
      std::printf("%s", words[argument]);
    }
    for (int round = 0; round < rounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < times; ++i) {
        all_reduce(memory, me, data.data(), floats, done);
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (me == 0) {
        std::printf(" %.9f", took.count() / times);
      }
    }
    if (me == 0) {
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  while (me == 0 && wait(nullptr) > 0) {
  }
  return 0;
}
