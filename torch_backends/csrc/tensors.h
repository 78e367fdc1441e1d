// Tensors in memory that the other ranks of the node can access, for DDP's buckets (c10d::Backend::allocateTensor). The
// memory is an anonymous file, like all shared memory here.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace torchfleet {

// The location of a process's memory, for other processes.
struct Location {
  int64_t process, file;
  int64_t token;           // in the first bytes of the file; 0 if the memory is not in a file
  int64_t bytes, offset;  // of the file, and of the memory in it
  int64_t freed;          // how many files the process has freed so far
};

// A tensor of this many elements; an ordinary one if there is not enough memory for a file.
at::Tensor allocate(int64_t count, const at::TensorOptions& options);

// The location of memory in this process.
Location location_of(const void* data, int64_t bytes);

// The mapped memory of other processes.
class PeerMemory {
 public:
  explicit PeerMemory(int ranks) : of_(ranks) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;

  // So many bytes of a rank's memory, in this process. Throws c10::DistBackendError if they cannot be mapped.
  char* at(int rank, const Location& location, int64_t bytes);

 private:
  struct File {
    int64_t token;
    char* memory;
    int64_t bytes;
  };
  struct Peer {
    int64_t freed = 0;
    std::vector<File> files;
  };
  static void unmap_all(Peer& process);

  std::vector<Peer> of_;
};

}  // namespace torchfleet
