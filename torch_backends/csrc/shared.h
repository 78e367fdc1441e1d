// Shared memory of the ranks of a group on one node, and collectives in it.
//
// Every rank has slots in one anonymous file. Each element is reduced once, in the order of the ranks, so every rank gets
// the same bits. While all ranks take part, no system call is made.
//
// Each rank publishes the signature of its operation before it waits, and compares it with that of each rank that it waits
// for. A rank that waits in vain, or whose operation fails, writes why into the memory: the others then fail too.
//
// Order of memory accesses, which Arm changes and x86-64 mostly does not: a rank writes, then publishes a mark (a store that
// releases); who has read that mark (a load that acquires) sees what was written. A slot is written again only after marks
// that its readers have published after their reads. Where a rank goes to sleep, both sides store one word and then load
// another (publish: value, sleepers; await: sleepers, value): these four are sequentially consistent, so that one of the two
// sees the other. Across processes the futex calls order nothing else.
#pragma once

#include "reduction.h"
#include "process.h"
#include "rendezvous.h"
#include "signature.h"
#include "tensors.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torchfleet {

struct ChunkParts;

class Shared {
 public:
  // Called by all ranks of `node`. Returns null on all ranks if some cannot share memory with the others, or if the first
  // one does not want it. `ranks`: their numbers in the group, for error texts.
  static std::shared_ptr<Shared> among(Rendezvous& node, std::vector<int> ranks, bool wanted = true);
  ~Shared();

  // What the next call is a part of. Throws if an operation failed on any rank.
  void begin(Signature own);
  // Lets the other ranks know that an operation failed here. Only the first failure of all ranks is kept.
  void fail(const std::string& why);
  void throw_if_failed() const;  // if an operation failed on any rank
  // Lets the other ranks know that this one takes part in no operation any more.
  void leave() { marks_of(rank_).has_left = true; }

  // Each throws TimedOut after the deadline of this thread's Operation, and std::runtime_error if another rank asks for
  // something else or has failed.
  void all_reduce(const Elements& all, const Reduction& how);
  void reduce(const Elements& all, const Reduction& how, int root);
  // `output` may be this rank's part of `input`.
  void reduce_scatter(const char* input, const Elements& output, const Reduction& how);
  void broadcast(char* data, int64_t bytes, int root);
  void all_gather(const char* input, char* output, int64_t bytes);
  void barrier();

  // The ranks of the group that the current operation waits for. May be called by any thread.
  std::vector<int> missing() const;

 private:
  static constexpr uint32_t kSignatures = 4;  // no rank is more than two operations ahead of one that it waits for

  // The progress of one rank, for which the others wait. Each has its own cache line.
  struct alignas(64) Mark {
    std::atomic<uint32_t> value;
    std::atomic<uint32_t> sleepers;
    std::atomic<uint64_t> signatures[kSignatures];  // of `entered`: of the last operations
  };
  // Per rank: the number of operations that it has entered, with its data in place if it is small; of chunks in place; of
  // chunks that it has finished, so that it no longer reads any rank's slots of these.
  struct Marks {
    Mark entered, ready, done;
    std::atomic<bool> has_left;
  };
  // The first failure of all ranks.
  struct alignas(64) Failure {
    enum State : uint32_t { kNone, kWriting, kWritten };
    std::atomic<uint32_t> state;
    int32_t rank;
    char text[1000];
  };
  struct Layout;

  Shared(int rank, std::vector<int> ranks, char* memory, const Layout& layout, int cores,
         std::vector<Process> processes);

  void enter();
  void compare(int rank);
  void publish(Mark& mark, uint32_t value);
  void await(Mark Marks::*which, int rank, uint32_t value);
  std::vector<const char*> gather_small(const void* data, int64_t bytes);  // up to kSmall
  bool in_place(const Elements& all, const Reduction& how);  // false if that is not possible
  void reduce_part(const ChunkParts& parts, char* here, uint32_t chunk, const Reduction& how);
  void in_chunks(const Elements& all, const Reduction& how);
  void wait_until_free(uint32_t chunk);
  void write_chunk(const char* data, int64_t bytes, uint32_t chunk);
  template <typename Part>
  void write_parts(uint32_t chunk, Part part);  // part(rank) returns the data for that rank and its bytes
  // Calls give(chunk, first, count) and take(chunk, first, count) until `total` is done, at most `most` at a time and at least
  // once, and marks each chunk as done.
  template <typename Give, typename Take>
  void chunk_by_chunk(int64_t total, int64_t most, Give give, Take take);

  Marks& marks_of(int rank) const { return reinterpret_cast<Marks*>(memory_)[rank]; }
  Failure& failure() const { return *reinterpret_cast<Failure*>(memory_ + size_ * sizeof(Marks)); }
  char* small_slot(uint32_t number, int rank) const;
  char* slot(uint32_t chunk, int from, int part) const;  // the slots of one rank's chunk are contiguous
  const char* await_slot(uint32_t chunk, int from, int part);  // a slot of another rank, once its data is in place

  // Whether this rank writes past its cache into memory that another rank reads. Which is faster depends on the machine,
  // so it is measured: one of 64 long operations takes the other way.
  void choose_stores(int64_t bytes);
  void note_speed(int64_t bytes, double seconds);

  const std::vector<int> ranks_;
  const int rank_, size_;
  char* const memory_;
  const int64_t bytes_, slots_, part_bytes_, row_bytes_;
  Signature signature_ = Signature::barrier();
  std::vector<uint32_t> compared_;  // by rank: the last operation whose signature was compared
  std::atomic<uint32_t> operations_{0};
  uint32_t small_ = 0, chunks_ = 0;
  uint32_t long_ones_ = 0;
  double seconds_per_byte_[2] = {0, 0};  // of ordinary and of streaming stores; 0: not measured yet
  bool streams_ = false;
  int spins_;
  std::atomic<int> awaited_{-1};  // the rank for which this one sleeps
  PeerMemory peers_;
  const std::vector<Process> processes_;  // of the ranks
};

}  // namespace torchfleet
