// memory.cpp, but for one process whose threads are the ranks: they get one mapping of a file. A sanitizer knows memory by
// its address, and would not see that two ranks use the same bytes at two of them.
#define map_file map_anew
#define unmap unmap_it
#include "memory.cpp"
#undef map_file
#undef unmap

#include <map>
#include <mutex>

namespace torchfleet {

namespace {
struct Mapping {
  char* memory;
  int users;
};
std::mutex mutex;
std::map<ino_t, Mapping> mappings;
}  // namespace

char* map_file(int file, int64_t bytes);
void unmap(char* memory, int64_t bytes);

char* map_file(int file, int64_t bytes) {
  struct stat found;
  if (fstat(file, &found) != 0) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex);
  Mapping& mapping = mappings[found.st_ino];
  if (mapping.users++ == 0) {
    mapping.memory = map_anew(file, bytes);
  }
  return mapping.memory;
}

void unmap(char* memory, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto mapping = mappings.begin(); mapping != mappings.end(); ++mapping) {
    if (mapping->second.memory == memory) {
      if (--mapping->second.users == 0) {
        unmap_it(memory, bytes);
        mappings.erase(mapping);
      }
      return;
    }
  }
}

}  // namespace torchfleet
