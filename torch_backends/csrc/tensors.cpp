#include "tensors.h"

#include "memory.h"

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <random>

namespace torchfleet {

namespace {
constexpr int64_t kHead = 4096;  // bytes before the first tensor: the token, and a page to itself

// The files of this process, by the address of their tensor.
struct Files {
  std::mutex mutex;
  std::map<const char*, Location> by_address;
  int64_t freed = 0;
};

// Never destroyed: a tensor may outlive all other objects. A forked child gets tensors of its own, as of all memory: what it
// writes is not its parent's.
Files& files() {
  static auto* found = [] {
    const auto in_child = [] {
      for (const auto& [address, location] : files().by_address) {
        make_private(const_cast<char*>(address) - kHead, location.bytes, location.file);
      }
      files().mutex.unlock();
    };
    pthread_atfork([] { files().mutex.lock(); }, [] { files().mutex.unlock(); }, in_child);
    return new Files;
  }();
  return *found;
}

void release(char* memory) {
  std::lock_guard<std::mutex> lock(files().mutex);
  const auto found = files().by_address.find(memory + kHead);
  close_file(found->second.file);
  unmap(memory, found->second.bytes);
  files().by_address.erase(found);
  ++files().freed;
}
}  // namespace

at::Tensor allocate(int64_t count, const at::TensorOptions& options) {
  const int64_t bytes = kHead + std::max<int64_t>(1, count) * static_cast<int64_t>(options.dtype().itemsize());
  const int file = new_file("torchfleet-tensor", bytes);
  char* memory = file >= 0 && allocate_file(file, 0, bytes) ? map_file(file, bytes) : nullptr;
  if (memory == nullptr) {
    close_file(file);
    return at::empty({count}, options);
  }
  const int64_t token = std::random_device()() | int64_t{1} << 32;
  *reinterpret_cast<int64_t*>(memory) = token;
  {
    std::lock_guard<std::mutex> lock(files().mutex);
    files().by_address[memory + kHead] = {own_process(), file, token, bytes, 0, 0};
  }
  // A hook of DDP may make its bucket longer, as PyTorch's batched PowerSGD does: it then is an ordinary tensor.
  return at::for_blob(memory + kHead, {count})
      .deleter([memory](void*) { release(memory); })
      .options(options)
      .resizeable_storage()
      .allocator(c10::GetCPUAllocator())
      .make_tensor();
}

Location location_of(const void* data, int64_t bytes) {
  const char* first = static_cast<const char*>(data);
  std::lock_guard<std::mutex> lock(files().mutex);
  auto after = files().by_address.upper_bound(first);
  if (after == files().by_address.begin()) {
    return {};
  }
  auto [address, location] = *--after;
  location.offset = kHead + (first - address);
  location.freed = files().freed;
  return location.offset + bytes <= location.bytes ? location : Location{};
}

PeerMemory::~PeerMemory() {
  for (Peer& process : of_) {
    unmap_all(process);
  }
}

void PeerMemory::unmap_all(Peer& process) {
  for (const File& file : process.files) {
    unmap(file.memory, file.bytes);
  }
  process.files.clear();
}

char* PeerMemory::at(int rank, const Location& location, int64_t bytes) {
  TORCH_CHECK_WITH(DistBackendError, location.offset >= kHead && location.offset <= location.bytes - bytes, "memory of rank ", rank,
                   " has no ", bytes, " bytes at ", location.offset, " of ", location.bytes);
  Peer& process = of_[rank];
  if (process.freed != location.freed) {  // its freed files would stay in memory as long as they are mapped here
    unmap_all(process);
    process.freed = location.freed;
  }
  for (const File& file : process.files) {
    if (file.token == location.token) {
      return file.memory + location.offset;
    }
  }
  const int file = file_of(location.process, location.file, location.bytes);
  char* memory = file < 0 ? nullptr : map_file(file, location.bytes);
  close_file(file);
  if (memory != nullptr && *reinterpret_cast<int64_t*>(memory) != location.token) {  // another container's, with the same numbers
    unmap(memory, location.bytes);
    memory = nullptr;
    errno = ESTALE;
  }
  TORCH_CHECK_WITH(DistBackendError, memory != nullptr, "memory of rank ", rank, " cannot be mapped: ", std::strerror(errno),
                   "; DDP_DISABLE_COMM_MEM=1 does without");
  process.files.push_back({location.token, memory, location.bytes});
  return memory + location.offset;
}

}  // namespace torchfleet
