// Random all-reduces in the ring of backend mpi, of threads that are its ranks, for a sanitizer: every result is compared, and
// ranks are late. Segments are short, so that many of them are under way.
//
// Usage: ring_stress RANKS OPERATIONS SEED. Ends with 0 and "right" if all is well.
#define TORCHFLEET_RING_SEGMENT 512
#include "backoff.cpp"
#include "operation.cpp"
#include "ring.cpp"
#include "yield.cpp"

namespace torchfleet {
void check(int status, const char* call) {
  if (status != MPI_SUCCESS) {
    std::fprintf(stderr, "%s failed\n", call);
    std::_Exit(1);
  }
}

// reduction.cpp is PyTorch's vector code and plain loops; here are sums of whole numbers.
void reduce_local(const Reduction&, const void* in, void* inout, int64_t count) {
  const auto* from = static_cast<const int32_t*>(in);
  auto* to = static_cast<int32_t*>(inout);
  for (int64_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}
}  // namespace torchfleet

using namespace torchfleet;

namespace {
int32_t element(int rank, int64_t place, int64_t number) {
  return static_cast<int32_t>((rank + 1) * ((place + number) % 1009 + 1));
}

void play(Network& network, int rank, int64_t operations, uint64_t seed) {
  const Endpoint own{&network, rank};
  for (int64_t number = 0; number < operations; ++number) {
    std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(number));  // the same on all ranks
    const int64_t longest[] = {8, 300, 3000, 12'000};
    const auto count = static_cast<int64_t>(random() % longest[random() % 4]);
    if (random() % 8 == 0 && static_cast<int>(random() % network.size) == rank) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    std::vector<int32_t> data(count);
    for (int64_t i = 0; i < count; ++i) {
      data[i] = element(rank, i, number);
    }
    Operation operation(std::chrono::minutes(5));
    reduce_in_ring(&own, reinterpret_cast<char*>(data.data()), count, {at::kInt, at::kInt, c10d::ReduceOp::SUM}, 4);
#ifdef TORCHFLEET_HASTY  // the sanitizer has to notice it, not the wrong numbers
    continue;
#endif
    for (int64_t i = 0; i < count; ++i) {
      if (data[i] != element(0, i, number) * network.size * (network.size + 1) / 2) {
        std::fprintf(stderr, "rank %d, operation %ld, %ld elements: a wrong number at %ld\n", rank, static_cast<long>(number),
                     static_cast<long>(count), static_cast<long>(i));
        std::_Exit(1);
      }
    }
  }
}
}  // namespace

int main(int words, char** word) {
  if (words != 4) {
    std::fprintf(stderr, "usage: ring_stress RANKS OPERATIONS SEED\n");
    return 2;
  }
  const uint64_t seed = std::strtoull(word[3], nullptr, 10);
  Network network(std::atoi(word[1]), static_cast<unsigned>(seed));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < network.size; ++rank) {
    threads.emplace_back(play, std::ref(network), rank, std::atol(word[2]), seed);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::puts("right");
  return 0;
}
