#include "shared.h"

#include "memory.h"
#include "name.h"
#include "operation.h"

#include <c10/util/Logging.h>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#define TORCHFLEET_HAS_STREAMING 1
#else
#define TORCHFLEET_HAS_STREAMING 0
#endif

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace torchfleet {

namespace {
constexpr int64_t kSmall = 16 << 10;   // bytes up to which every rank reduces everything itself: one wait instead of two
constexpr int64_t kChunk = 256 << 10;  // bytes of one chunk; two are in flight
constexpr int64_t kLeastPart = 512;
constexpr int64_t kMostBytes = 64 << 20;      // of the slots of all ranks together: many ranks have smaller chunks
constexpr int64_t kLeastInPlace = 128 << 10;  // bytes from which exchanging the locations of the data is worth its cost
constexpr int64_t kLong = 1 << 20;            // bytes of an operation whose time is measured
constexpr uint32_t kMeasure = 64;             // one of so many long operations tries the other kind of stores
constexpr int kPolls = 4000;  // polls before a waiting rank sleeps, some ten microseconds
constexpr std::chrono::nanoseconds kSleep = std::chrono::milliseconds(100);
constexpr int64_t kPage = 4096;

// Whether a counter that may wrap has not reached a value.
bool is_before(uint32_t counter, uint32_t value) {
  return static_cast<int32_t>(counter - value) < 0;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// memcpy takes no null pointer, also for no bytes, and an empty tensor has one.
void copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

// Copies into memory that another rank reads. With non-temporal stores it bypasses this core's cache: a core that reads from
// the cache of a core with another last level (another socket, another CCX of an EPYC) gets 1 to 4 GB/s, and from memory the
// full bandwidth. Where ranks share the last level, ordinary stores are two to three times as fast. Other machines than
// x86-64 have ordinary stores only.
void copy_to_shared(void* to, const void* from, int64_t bytes, [[maybe_unused]] bool streaming) {
  int64_t done = 0;
#if TORCHFLEET_HAS_STREAMING
  if (!streaming) {
    copy(to, from, bytes);
    return;
  }
  const auto* source = static_cast<const __m128i*>(from);
  auto* target = static_cast<__m128i*>(to);
  for (; done + 64 <= bytes; done += 64, source += 4, target += 4) {
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
#endif
  copy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, bytes - done);
}

// to = one + two, also stored in `too`; the compiler vectorises it.
template <typename T>
void add(const void* one, const void* two, void* to, void* too, int64_t count) {
  const T *a = static_cast<const T*>(one), *b = static_cast<const T*>(two);
  T *c = static_cast<T*>(to), *d = static_cast<T*>(too);
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (int64_t i = 0; i < count; ++i) {
    const T sum = a[i] + b[i];
    c[i] = sum;
    d[i] = sum;
  }
}

// combine() for the most frequent case in training: the sum of floats.
bool add_fast(const Reduction& how, const void* one, const void* two, void* to, void* too, int64_t count) {
  if (how.op != c10d::ReduceOp::SUM || (how.unit != at::kFloat && how.unit != at::kDouble)) {
    return false;
  }
  (how.unit == at::kFloat ? add<float> : add<double>)(one, two, to, too, count);
  return true;
}

// Reduces the elements of all ranks in their order, into all of `to`. `sum` is the buffer of partial results; no input
// after the first one in `from` overlaps it.
void combine(const std::vector<const char*>& from, char* sum, const std::vector<char*>& to, int64_t count,
             const Reduction& how, int64_t size) {
  if (from.size() == 2 && to.size() <= 2 && add_fast(how, from[0], from[1], to.front(), to.back(), count)) {
    return;
  }
  if (sum != from[0]) {
    copy(sum, from[0], count * size);
  }
  for (size_t i = 1; i < from.size(); ++i) {
    if (!add_fast(how, sum, from[i], sum, sum, count)) {
      reduce_local(how, from[i], sum, count);
    }
  }
  for (char* target : to) {
    if (target != sum) {
      copy(target, sum, count * size);
    }
  }
}

}  // namespace

// The parts of a chunk, one for each rank: equal sizes, in whole cache lines.
struct ChunkParts {
  ChunkParts(int64_t elements, int ranks, int64_t size) : elements(elements), size(size) {
    const int64_t line = std::max<int64_t>(1, 64 / size);
    each = ((elements + ranks - 1) / ranks + line - 1) / line * line;
  }
  int64_t first(int rank) const { return std::min(rank * each, elements); }
  int64_t count(int rank) const { return first(rank + 1) - first(rank); }
  char* at(char* chunk, int rank) const { return chunk + first(rank) * size; }

  int64_t elements, size, each;
};

// Where what lies in the memory.
struct Shared::Layout {
  explicit Layout(int size) {
    const int64_t row = std::min(kChunk, kMostBytes / (2 * size));
    part_bytes = std::max(kLeastPart, row / size / 64 * 64);
    slots = size * sizeof(Marks) + sizeof(Failure) + 2 * size * kSmall;
    slots = (slots + kPage - 1) / kPage * kPage;
    bytes = slots + 2 * size * size * part_bytes;
  }
  int64_t part_bytes, slots, bytes;
};

std::shared_ptr<Shared> Shared::among(Rendezvous& node, std::vector<int> ranks, bool wanted) {
  const int rank = node.rank(), size = node.size();
  const Layout layout(size);
  Location location{own_process(), -1, std::random_device()() | int64_t{1} << 32};
  if (rank == 0 && wanted && size > 1) {
    location.file = new_file("torchfleet", layout.bytes);
  }
  location = torchfleet::all_gather(node, location)[0];
  const bool theirs = location.file >= 0 && rank != 0;
  const int file = theirs ? file_of(location.process, location.file, layout.bytes) : static_cast<int>(location.file);
  // Each rank allocates its own slots, so that they are in the memory next to its core; rank 0 all else.
  const int64_t rows = 2 * size * layout.part_bytes;
  bool allocated = file >= 0 && allocate_file(file, layout.slots + rank * rows, rows);
  allocated = on_all(node, allocated && (rank != 0 || allocate_file(file, 0, layout.slots)));
  char* memory = allocated ? map_file(file, layout.bytes) : nullptr;
  // Another process may have the same numbers of process and descriptor: each rank proves that it is the same memory.
  auto* first = reinterpret_cast<std::atomic<int64_t>*>(memory);
  if (rank == 0 && memory != nullptr) {
    first->store(location.token);
  }
  on_all(node, true);
  const bool good = on_all(node, memory != nullptr && first->load() == location.token);
  close_file(file);
  if (!good) {
    if (memory != nullptr) {
      unmap(memory, layout.bytes);
    }
    return nullptr;
  }
  if (rank == 0) {
    first->store(0);
  }
  // The cores that any of the ranks may use. A launcher may bind each rank to a core of its own.
  cpu_set_t cores, all;
  CPU_ZERO(&cores);
  CPU_ZERO(&all);
  sched_getaffinity(0, sizeof cores, &cores);
  for (const cpu_set_t& theirs_too : torchfleet::all_gather(node, cores)) {
    CPU_OR(&all, &all, &theirs_too);
  }
  std::vector<Process> processes;
  for (const int64_t process : torchfleet::all_gather(node, own_process())) {
    processes.emplace_back(process);
  }
  return std::shared_ptr<Shared>(new Shared(rank, std::move(ranks), memory, layout, CPU_COUNT(&all), std::move(processes)));
}

Shared::Shared(int rank, std::vector<int> ranks, char* memory, const Layout& layout, int cores,
               std::vector<Process> processes)
    : ranks_(std::move(ranks)),
      rank_(rank),
      size_(static_cast<int>(ranks_.size())),
      memory_(memory),
      bytes_(layout.bytes),
      slots_(layout.slots),
      part_bytes_(layout.part_bytes),
      row_bytes_(part_bytes_ * size_),
      compared_(size_),
      spins_(size_ > cores ? 1 : kPolls),
      peers_(size_),
      processes_(std::move(processes)) {
  if (rank_ == 0) {
    LOG(INFO) << "backend " TORCHFLEET_NAME ": " << size_ << " ranks share memory and " << cores << " cores: a rank that waits "
              << (spins_ > 1 ? "polls before it sleeps" : "sleeps at once");
  }
}

Shared::~Shared() {
  unmap(memory_, bytes_);
}

char* Shared::small_slot(uint32_t number, int rank) const {
  return memory_ + size_ * sizeof(Marks) + sizeof(Failure) + ((number & 1) * size_ + rank) * kSmall;
}

char* Shared::slot(uint32_t chunk, int from, int part) const {
  return memory_ + slots_ + (2 * from + (chunk & 1)) * row_bytes_ + part * part_bytes_;
}

const char* Shared::await_slot(uint32_t chunk, int from, int part) {
  await(&Marks::ready, from, chunk + 1);
  return slot(chunk, from, part);
}

void Shared::begin(Signature own) {
  throw_if_failed();
  signature_ = own;
}

void Shared::fail(const std::string& why) {
  uint32_t none = Failure::kNone;
  if (failure().state.compare_exchange_strong(none, Failure::kWriting)) {
    failure().rank = ranks_[rank_];
    failure().text[why.copy(failure().text, sizeof failure().text - 1)] = '\0';
    failure().state.store(Failure::kWritten);
  }
}

void Shared::throw_if_failed() const {
  if (failure().state.load(std::memory_order_acquire) == Failure::kWritten) {
    throw std::runtime_error("rank " + std::to_string(failure().rank) + " failed: " + failure().text);
  }
}

void Shared::enter() {
  Mark& entered = marks_of(rank_).entered;
  entered.signatures[++operations_ % kSignatures].store(signature_.word(), std::memory_order_relaxed);
  publish(entered, operations_);
}

// Compares once per operation and rank.
void Shared::compare(int rank) {
  if (compared_[rank] == operations_) {
    return;
  }
  const Mark& entered = marks_of(rank).entered;
  if (!is_before(entered.value.load(std::memory_order_acquire), operations_)) {
    compared_[rank] = operations_;
    const Signature other(entered.signatures[operations_ % kSignatures].load(std::memory_order_relaxed));
    if (!(other == signature_)) {
      refuse_different({signature_.word(), other.word()}, {ranks_[rank_], ranks_[rank]});
    }
  }
}

void Shared::publish(Mark& mark, uint32_t value) {
  mark.value.store(value, std::memory_order_seq_cst);
  if (mark.sleepers.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, &mark.value, FUTEX_WAKE, size_, nullptr, nullptr, 0);
  }
}

// Waits until a mark of a rank reaches a value. Polls first, then sleeps: a waiting rank must not occupy the core of the
// rank that it waits for.
void Shared::await(Mark Marks::*which, int rank, uint32_t value) {
  Mark& mark = marks_of(rank).*which;
  const auto is_reached = [&] { return !is_before(mark.value.load(std::memory_order_acquire), value); };
  for (int i = 0; i < spins_; ++i) {
    if (is_reached()) {
      compare(rank);
      return;
    }
    pause();
  }
  struct Sleeper {
    Sleeper(Mark& mark, std::atomic<int>& awaited, int rank) : mark(mark), awaited(awaited) {
      awaited = rank;
      mark.sleepers.fetch_add(1);
    }
    ~Sleeper() {
      mark.sleepers.fetch_sub(1);
      awaited = -1;
    }
    Mark& mark;
    std::atomic<int>& awaited;
  };
  const Sleeper sleeper(mark, awaited_, rank);
  bool timed_out = false;  // whether it has slept until the time was over
  while (!is_reached()) {
    compare(rank);
    throw_if_failed();
    // What a process did before it ended counts: so its mark is looked at after its end.
    const bool has_left = timed_out && marks_of(rank).has_left;
    if (timed_out && (has_left || processes_[rank].has_ended()) && !is_reached()) {
      const std::string name = "rank " + std::to_string(ranks_[rank]);
      throw std::runtime_error(has_left ? name + " has left the group" : "the process of " + name + " has ended");
    }
    Operation::check(missing());
    const timespec most{0, static_cast<long>(Operation::at_most(kSleep).count())};
    const uint32_t seen = mark.value.load();
    if (is_before(seen, value)) {
      timed_out = syscall(SYS_futex, &mark.value, FUTEX_WAIT, seen, &most, nullptr, 0) != 0 && errno == ETIMEDOUT;
    }
  }
  compare(rank);
}

// Those that have not entered the operation; if all have, the one that is slow in it.
std::vector<int> Shared::missing() const {
  const int awaited = awaited_;
  std::vector<int> found;
  for (int rank = 0; awaited >= 0 && rank < size_; ++rank) {
    if (is_before(marks_of(rank).entered.value.load(), operations_)) {
      found.push_back(ranks_[rank]);
    }
  }
  return found.empty() && awaited >= 0 ? std::vector<int>{ranks_[awaited]} : found;
}

void Shared::barrier() {
  enter();
  for (int rank = 0; rank < size_; ++rank) {
    await(&Marks::entered, rank, operations_);
  }
}

void Shared::all_reduce(const Elements& all, const Reduction& how) {
  const int64_t bytes = all.bytes();
  if (bytes <= kSmall) {
    combine(gather_small(all.data, bytes), all.data, {all.data}, all.count, how, all.size);
  } else if (bytes < kLeastInPlace || !in_place(all, how)) {
    choose_stores(bytes);
    const auto start = Clock::now();
    in_chunks(all, how);
    if (bytes >= kLong) {
      note_speed(bytes, std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
}

void Shared::choose_stores(int64_t bytes) {
  if (!TORCHFLEET_HAS_STREAMING) {
    return;
  }
  const auto [ordinary, streaming] = seconds_per_byte_;
  streams_ = ordinary > 0 && streaming > 0 && streaming < ordinary;
  if (bytes >= kLong && ++long_ones_ % kMeasure == 0) {
    streams_ = !streams_;
  }
}

void Shared::note_speed(int64_t bytes, double seconds) {
  double& kept = seconds_per_byte_[streams_ ? 1 : 0];
  const double found = seconds / static_cast<double>(bytes);
  kept = kept > 0 ? 0.75 * kept + 0.25 * found : found;
}

// A slot is written again two small operations later: a rank that took part in the small one between has read it.
std::vector<const char*> Shared::gather_small(const void* data, int64_t bytes) {
  const uint32_t number = ++small_;
  copy(small_slot(number, rank_), data, bytes);
  enter();
  std::vector<const char*> found;
  for (int rank = 0; rank < size_; ++rank) {
    await(&Marks::entered, rank, operations_);
    found.push_back(small_slot(number, rank));
  }
  return found;
}

// If all ranks have their data in memory that the others can access, each rank reduces one part of it for all.
bool Shared::in_place(const Elements& all, const Reduction& how) {
  const Location own = location_of(all.data, all.bytes());
  std::vector<Location> locations;
  for (const char* given : gather_small(&own, sizeof own)) {
    locations.push_back(*reinterpret_cast<const Location*>(given));
  }
  if (std::any_of(locations.begin(), locations.end(), [](const Location& location) { return location.token == 0; })) {
    return false;
  }
  std::vector<char*> memories;
  for (int rank = 0; rank < size_; ++rank) {
    memories.push_back(rank == rank_ ? all.data : peers_.at(rank, locations[rank], all.bytes()));
  }
  const ChunkParts parts(all.count, size_, all.size);
  const int64_t end = parts.first(rank_ + 1);
  for (int64_t first = parts.first(rank_), most = part_bytes_ / all.size; first < end; first += most) {
    std::vector<char*> here;
    for (char* memory : memories) {
      here.push_back(memory + first * all.size);
    }
    combine({here.begin(), here.end()}, here[0], here, std::min(most, end - first), how, all.size);
  }
  barrier();
  return true;
}

// A chunk uses the slots of the chunk before the previous one, when no rank reads them any more.
void Shared::wait_until_free(uint32_t chunk) {
  for (int rank = 0; rank < size_; ++rank) {
    await(&Marks::done, rank, chunk - 1);
  }
}

void Shared::write_chunk(const char* data, int64_t bytes, uint32_t chunk) {
  wait_until_free(chunk);
  copy_to_shared(slot(chunk, rank_, 0), data, bytes, streams_);
  publish(marks_of(rank_).ready, chunk + 1);
}

template <typename Part>
void Shared::write_parts(uint32_t chunk, Part part) {
  wait_until_free(chunk);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) {
      const auto [data, bytes] = part(rank);
      copy_to_shared(slot(chunk, rank_, rank), data, bytes, streams_);
    }
  }
  publish(marks_of(rank_).ready, chunk + 1);
}

// Gives and takes a chunk after the other. The next one is given before this one is taken: no rank waits for another one
// with nothing in its slots.
template <typename Give, typename Take>
void Shared::chunk_by_chunk(int64_t total, int64_t most, Give give, Take take) {
  enter();
  const auto length = [&](int64_t first) { return std::min(most, total - first); };
  give(chunks_, 0, length(0));
  int64_t first = 0;
  do {  // an empty one too: the other ranks compare signatures
    const uint32_t chunk = chunks_++;
    if (first + most < total) {
      give(chunk + 1, first + most, length(first + most));
    }
    take(chunk, first, length(first));
    publish(marks_of(rank_).done, chunk + 1);
    first += most;
  } while (first < total);
}

// Each rank reduces one part of every chunk: it has its own elements already, the others copy theirs into their slots, and
// it writes the result into these slots, from which they copy it. The data of the next chunk is copied before this one is
// reduced. A slot may be written again two chunks later: its owner has read the result.
void Shared::in_chunks(const Elements& all, const Reduction& how) {
  const auto give = [&](uint32_t chunk, int64_t first, int64_t count) {
    const ChunkParts parts(count, size_, all.size);
    char* here = all.data + first * all.size;
    write_parts(chunk, [&](int rank) { return std::pair(parts.at(here, rank), parts.count(rank) * all.size); });
  };
  chunk_by_chunk(all.count, part_bytes_ / all.size * size_, give, [&](uint32_t chunk, int64_t first, int64_t count) {
    const ChunkParts parts(count, size_, all.size);
    char* here = all.data + first * all.size;
    reduce_part(parts, here, chunk, how);
    publish(marks_of(rank_).done, chunk + 1);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) {
        await(&Marks::done, rank, chunk + 1);
        copy(parts.at(here, rank), slot(chunk, rank_, rank), parts.count(rank) * all.size);
      }
    }
  });
}

void Shared::reduce_part(const ChunkParts& parts, char* here, uint32_t chunk, const Reduction& how) {
  char* own = parts.at(here, rank_);
  std::vector<const char*> from;
  std::vector<char*> to{own};
  for (int rank = 0; rank < size_; ++rank) {
    from.push_back(rank == rank_ ? own : await_slot(chunk, rank, rank_));
    if (rank != rank_) {
      to.push_back(slot(chunk, rank, rank_));
    }
  }
  char* sum = rank_ == 0 ? own : slot(chunk, 0, rank_);
  if (!streams_) {
    combine(from, sum, to, parts.count(rank_), how, parts.size);
    return;
  }
  combine(from, sum, {own}, parts.count(rank_), how, parts.size);
  for (size_t i = 1; i < to.size(); ++i) {
    copy_to_shared(to[i], own, parts.count(rank_) * parts.size, true);
  }
}

void Shared::reduce(const Elements& all, const Reduction& how, int root) {
  const auto give = [&](uint32_t chunk, int64_t first, int64_t count) {
    if (rank_ != root) {
      write_chunk(all.data + first * all.size, count * all.size, chunk);
    }
  };
  chunk_by_chunk(all.count, row_bytes_ / all.size, give, [&](uint32_t chunk, int64_t first, int64_t count) {
    if (rank_ != root) {
      return;
    }
    char* here = all.data + first * all.size;
    std::vector<const char*> from;
    for (int rank = 0; rank < size_; ++rank) {
      from.push_back(rank == rank_ ? here : await_slot(chunk, rank, 0));
    }
    combine(from, slot(chunk, rank_, 0), {here}, count, how, all.size);
  });
}

void Shared::reduce_scatter(const char* input, const Elements& output, const Reduction& how) {
  const int64_t size = output.size;
  const auto part = [&](int rank, int64_t first) { return input + (rank * output.count + first) * size; };
  const auto give = [&](uint32_t chunk, int64_t first, int64_t count) {
    write_parts(chunk, [&](int rank) { return std::pair(part(rank, first), count * size); });
  };
  chunk_by_chunk(output.count, part_bytes_ / size, give, [&](uint32_t chunk, int64_t first, int64_t count) {
    std::vector<const char*> from;
    for (int rank = 0; rank < size_; ++rank) {
      from.push_back(rank == rank_ ? part(rank, first) : await_slot(chunk, rank, rank_));
    }
    char* here = output.data + first * size;
    // Where the output is the own part, that is read after the part of rank 0: the sum grows elsewhere till then.
    char* sum = here == from[rank_] && rank_ != 0 ? slot(chunk, 0, rank_) : here;
    combine(from, sum, {here}, count, how, size);
  });
}

void Shared::broadcast(char* data, int64_t bytes, int root) {
  const auto give = [&](uint32_t chunk, int64_t first, int64_t count) {
    if (rank_ == root) {
      write_chunk(data + first, count, chunk);
    }
  };
  chunk_by_chunk(bytes, row_bytes_, give, [&](uint32_t chunk, int64_t first, int64_t count) {
    if (rank_ != root) {
      copy(data + first, await_slot(chunk, root, 0), count);
    }
  });
}

void Shared::all_gather(const char* input, char* output, int64_t bytes) {
  if (output + rank_ * bytes != input) {
    copy(output + rank_ * bytes, input, bytes);
  }
  const auto give = [&](uint32_t chunk, int64_t first, int64_t count) { write_chunk(input + first, count, chunk); };
  chunk_by_chunk(bytes, row_bytes_, give, [&](uint32_t chunk, int64_t first, int64_t count) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) {
        copy(output + rank * bytes + first, await_slot(chunk, rank, 0), count);
      }
    }
  });
}

}  // namespace torchfleet
