#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace torchfleet {

int64_t own_process() {
  return getpid();
}

int new_file(const char* name, int64_t bytes) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  if (file >= 0 && posix_fallocate(file, 0, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return -1;
  }
  return file;
}

int file_of(int64_t process, int64_t number) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

char* map_file(int file, int64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
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
