// Tensors in memory of this process that the other ranks of the node can reach: DDP's buckets lie there
// (c10d::Backend::allocateTensor). Like all that ranks share it is an anonymous file, which has no name.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace torchfleet {

// Where memory of a process is, for others to find it.
struct Place {
  int64_t process, file;
  int64_t mark;           // in the first bytes of the file; 0 if the memory is not in any
  int64_t bytes, offset;  // of the file, of the memory in it
  int64_t freed;          // how many files the process has let go so far
};

// A tensor of so many elements; an ordinary one where there is no room for a file.
at::Tensor allocate(int64_t count, const at::TensorOptions& options);

// The place of memory of this process.
Place place_of(const void* data, int64_t bytes);

// What was mapped of other processes.
class Neighbours {
 public:
  explicit Neighbours(int ranks) : of_(ranks) {}
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;

  // The memory of a rank in this process. Throws c10::DistBackendError if it cannot be mapped.
  char* at(int rank, const Place& place);

 private:
  struct File {
    int64_t mark;
    char* memory;
    int64_t bytes;
  };
  struct Process {
    int64_t freed = 0;
    std::vector<File> files;
  };
  static void forget(Process& process);

  std::vector<Process> of_;
};

}  // namespace torchfleet
