// Shared memory of the ranks of a group on one node, and collectives in it.
//
// Every rank has slots in one anonymous file. Each element is reduced once, in the order of the ranks, so every rank gets
// the same bits. While all ranks take part, no system call is made.
#pragma once

#include "tensors.h"
#include "types.h"

#include <atomic>
#include <memory>
#include <vector>

namespace torchfleet {

class Shared {
 public:
  // Called by all ranks of `comm`. Returns null on all ranks if some cannot share memory with the others.
  static std::shared_ptr<Shared> among(MPI_Comm comm);
  ~Shared();

  // `count` is in elements of `size` bytes.
  void all_reduce(char* data, int64_t count, const Reduction& how, int64_t size);
  void reduce(char* data, int64_t count, const Reduction& how, int64_t size, int root);
  void reduce_scatter(const char* input, char* output, int64_t count, const Reduction& how, int64_t size);
  void broadcast(char* data, int64_t bytes, int root);
  void all_gather(const char* input, char* output, int64_t bytes);
  void barrier();

  // The ranks that the current operation waits for.
  std::vector<int> missing() const;

 private:
  // The progress of one rank, for which the others wait. Each has its own cache line.
  struct alignas(64) Mark {
    std::atomic<uint32_t> value;
    std::atomic<uint32_t> sleepers;
  };
  // Per rank: the number of small operations with its data in place; of chunks in place; of chunks that it has finished,
  // so that it no longer reads any rank's slots of these.
  struct Marks {
    Mark small, brought, done;
  };

  Shared(int rank, int size, char* memory, int64_t bytes);
  static int64_t bytes_for(int size);

  void publish(Mark& mark, uint32_t value);
  void await(Mark Marks::*which, int rank, uint32_t value);
  std::vector<const char*> brought_by_all(const void* data, int64_t bytes);  // up to kSmall
  void all_at_once(char* data, int64_t count, const Reduction& how, int64_t size);
  bool in_place(char* data, int64_t count, const Reduction& how, int64_t size);  // false if that is not possible
  void in_chunks(char* data, int64_t count, const Reduction& how, int64_t size);
  void make_room(uint32_t chunk);
  void bring(const char* data, int64_t bytes, uint32_t chunk);
  void bring_parts(char* data, uint32_t chunk, int64_t elements, int64_t size);
  // Calls step(chunk, first, count) until `total` is done, at most `most` at a time, and marks each chunk as done.
  template <typename Step>
  void chunk_by_chunk(int64_t total, int64_t most, Step step);

  Marks& marks_of(int rank) const { return reinterpret_cast<Marks*>(memory_)[rank]; }
  char* small_slot(uint32_t number, int rank) const;
  char* slot(uint32_t chunk, int from, int part) const;  // the slots of one rank are contiguous
  char* result(uint32_t chunk, int part) const;

  const int rank_, size_;
  char* const memory_;
  const int64_t bytes_;
  const int64_t part_bytes_, row_bytes_;
  uint32_t operations_ = 0, chunks_ = 0;
  int spins_;
  std::atomic<Mark Marks::*> waiting_{nullptr};
  std::atomic<uint32_t> awaited_{0};
  Neighbours neighbours_;
};

}  // namespace torchfleet
