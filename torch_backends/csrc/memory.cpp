#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace torchfleet {

int64_t own_process() {
  return getpid();
}

int new_file(const char* name, int64_t bytes) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return -1;
  }
  return file;
}

// In pieces, as a program may have a timer whose signals interrupt the call (fallocate(2), EINTR).
bool allocate_file(int file, int64_t offset, int64_t bytes) {
  constexpr int64_t kPiece = 256 << 10;
  for (int64_t done = 0; done < bytes;) {
    const int64_t most = std::min(kPiece, bytes - done);
    const int why = posix_fallocate(file, static_cast<off_t>(offset + done), static_cast<off_t>(most));
    if (why != 0 && why != EINTR) {
      return false;
    }
    done += why == 0 ? most : 0;
  }
  return true;
}

int file_of(int64_t process, int64_t number, int64_t bytes) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
  const std::string prefix = "/memfd:torchfleet";
  char target[64];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length < 0 || std::string(target, length).compare(0, prefix.size(), prefix) != 0) {
    return -1;
  }
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat found;
  if (file >= 0 && (fstat(file, &found) != 0 || found.st_size != static_cast<off_t>(bytes))) {
    close(file);
    return -1;
  }
  return file;
}

char* map_file(int file, int64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

void make_private(char* memory, int64_t bytes, int64_t file) {
  mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, static_cast<int>(file), 0);
}

void unmap(char* memory, int64_t bytes) {
  munmap(memory, bytes);
}

void close_file(int64_t file) {
  if (file >= 0) {
    close(static_cast<int>(file));
  }
}

}  // namespace torchfleet
