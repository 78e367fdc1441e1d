// Random collectives of threads that are the ranks of a node, in the shared memory of backends mpi and shm, for a sanitizer:
// every result is compared, ranks are late, and now and then one asks for something else, which all have to notice.
//
// Usage: stress RANKS OPERATIONS SEED. Ends with 0 and "right" if all is well.
#include "threads.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "one_mapping.cpp"
#include "operation.cpp"
#include "process.cpp"
#ifdef TORCHFLEET_RELAXED  // marks order nothing any more, which -fsanitize=thread must report
#define memory_order_acquire memory_order_relaxed
#define memory_order_seq_cst memory_order_relaxed
#endif
#include "shared.cpp"
#undef memory_order_acquire
#undef memory_order_seq_cst
#include "signature.cpp"
#include "tensors.cpp"

namespace torchfleet {
// reduction.cpp is PyTorch's vector code and plain loops; here are sums of whole numbers.
const char* name_of_reduction(c10d::ReduceOp::RedOpType) {
  return "SUM";
}

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
void require(bool good, const char* what, int rank, int64_t number) {
  if (!good) {
    std::fprintf(stderr, "rank %d, operation %ld: %s\n", rank, static_cast<long>(number), what);
    std::_Exit(1);
  }
}

// The operation of a number, the same on all ranks.
struct Asked {
  Asked(uint64_t seed, int64_t number, int ranks) {
    std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(number));
    const int64_t longest[] = {1, 64, 4096, 30'000, 400'000};
    kind = static_cast<Signature::Kind>(Signature::kBarrier + random() % 6);
    count = static_cast<int64_t>(random() % longest[random() % 5]);
    root = static_cast<int>(random() % ranks);
    is_float = random() % 2 == 0;
    is_shared = random() % 2 == 0;
    odd_one = random() % 100 == 0 ? static_cast<int>(random() % ranks) : -1;
    late_one = random() % 8 == 0 ? static_cast<int>(random() % ranks) : -1;
  }
  Signature::Kind kind;
  int64_t count;
  int root, odd_one, late_one;
  bool is_float, is_shared;
};

// What a rank has at a place; all are small whole numbers, which floats add exactly.
int32_t element(int rank, int64_t place) {
  return static_cast<int32_t>((rank + 1) * (place % 7 + 1));
}

template <typename T>
class Rank {
 public:
  Rank(Shared& shared, int rank, int size, int64_t number, const Asked& asked)
      : shared_(shared), rank_(rank), size_(size), number_(number), asked_(asked), type_(std::is_same_v<T, float> ? at::kFloat : at::kInt) {}

  void run() {
    const int64_t count = asked_.count + (asked_.odd_one == rank_ ? 1 : 0);
    const auto op = c10d::ReduceOp::SUM;
    const Reduction how{type_, type_, op};
    const auto options = at::TensorOptions().dtype(type_);
    at::Tensor own = asked_.is_shared ? allocate(count * size_, options) : at::empty({count * size_}, options);
    T* data = own.template data_ptr<T>();
    for (int64_t i = 0; i < count * size_; ++i) {
      data[i] = static_cast<T>(element(rank_, i));
    }
    std::vector<T> result(count * size_);
    auto* bytes = reinterpret_cast<char*>(data);
    auto* output = reinterpret_cast<char*>(result.data());
    const int root = asked_.kind == Signature::kReduce || asked_.kind == Signature::kBroadcast ? asked_.root : -1;
    shared_.begin(asked_.kind == Signature::kBarrier ? Signature(asked_.kind, type_, count)
                                                     : Signature(asked_.kind, type_, count, root, op));
    switch (asked_.kind) {
      case Signature::kAllReduce:
        shared_.all_reduce({bytes, count, sizeof(T)}, how);
        return compare(data, count, [&](int64_t i) { return sum(i); });
      case Signature::kReduce:
        shared_.reduce({bytes, count, sizeof(T)}, how, root);
        return compare(data, rank_ == root ? count : 0, [&](int64_t i) { return sum(i); });
      case Signature::kReduceScatter:
        shared_.reduce_scatter(bytes, {output, count, sizeof(T)}, how);
        return compare(result.data(), count, [&](int64_t i) { return sum(rank_ * count + i); });
      case Signature::kBroadcast:
        shared_.broadcast(bytes, count * sizeof(T), root);
        return compare(data, count, [&](int64_t i) { return element(root, i); });
      case Signature::kAllGather:
        shared_.all_gather(bytes, output, count * sizeof(T));
        return compare(result.data(), count * size_, [&](int64_t i) { return element(i / count, i % count); });
      default:
        shared_.barrier();
    }
  }

 private:
  int32_t sum(int64_t place) const {
    return element(0, place) * size_ * (size_ + 1) / 2;
  }
  template <typename Expected>
  void compare(const T* found, int64_t count, Expected expected) const {
    for (int64_t i = 0; i < count; ++i) {
      require(found[i] == static_cast<T>(expected(i)), "a wrong number", rank_, number_);
    }
  }

  Shared& shared_;
  const int rank_, size_;
  const int64_t number_;
  const Asked& asked_;
  const at::ScalarType type_;
};

void run_one(Shared& shared, int rank, int size, int64_t number, const Asked& asked) {
  Operation operation(std::chrono::minutes(5));
  if (asked.late_one == rank) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  if (asked.is_float) {
    Rank<float>(shared, rank, size, number, asked).run();
  } else {
    Rank<int32_t>(shared, rank, size, number, asked).run();
  }
}

// The last operation that a rank began and in which one asks for something else. A rank that is slow may still be in an earlier
// one, which then fails too, as the group has failed.
std::atomic<int64_t> disagreed{-1};

// Whether an operation failed, of which the others are told as a worker does.
bool fails(Shared& shared, int rank, int size, int64_t number, const Asked& asked) {
  try {
    run_one(shared, rank, size, number, asked);
  } catch (const TimedOut&) {
    require(false, "out of time", rank, number);
  } catch (const std::exception& error) {
    require(number <= disagreed, error.what(), rank, number);
    shared.fail(error.what());
    return true;
  }
  return false;
}

void play(Table& table, int rank, int64_t operations, uint64_t seed) {
  std::vector<int> ranks(table.size());
  for (int other = 0; other < table.size(); ++other) {
    ranks[other] = other;
  }
  Threads threads(table, rank);
  std::shared_ptr<Shared> shared = Shared::among(threads, ranks);
  for (int64_t number = 0; number < operations; ++number) {
    const Asked asked(seed, number, table.size());
    if (asked.odd_one >= 0) {
      disagreed = number;
    }
    bool failed = fails(*shared, rank, table.size(), number, asked);
    if (asked.odd_one >= 0) {
      Asked next = asked;  // the root of a broadcast, and who has what it sent, wait for nobody else, and notice here
      next.odd_one = -1;
      next.kind = Signature::kBarrier;
      failed = fails(*shared, rank, table.size(), number, next) || failed;
      require(failed, "nothing was noticed", rank, number);
      threads.all_gather("");
      shared = Shared::among(threads, ranks);
    }
    require(shared != nullptr, "no shared memory", rank, number);
  }
  threads.all_gather("");
}
}  // namespace

int main(int words, char** word) {
  if (words != 4) {
    std::fprintf(stderr, "usage: stress RANKS OPERATIONS SEED\n");
    return 2;
  }
  Table table(std::atoi(word[1]));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < table.size(); ++rank) {
    threads.emplace_back(play, std::ref(table), rank, std::atol(word[2]), std::strtoull(word[3], nullptr, 10));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::puts("right");
  return 0;
}
