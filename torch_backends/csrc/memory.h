// Anonymous files (memfd_create(2)): memory that processes of one machine can share. They have no name, so nothing remains
// in /dev/shm if a process is killed, and the size of /dev/shm does not limit them.
#pragma once

#include <cstdint>

namespace torchfleet {

int64_t own_process();

// A new file of this many bytes, with all memory allocated. -1 if that fails.
int new_file(const char* name, int64_t bytes);

// The file with this descriptor in another process. -1 if it is not accessible: another machine, another container.
int file_of(int64_t process, int64_t number);

// The mapped file. Null if mapping fails.
char* map_file(int file, int64_t bytes);
void unmap(char* memory, int64_t bytes);
void close_file(int64_t file);  // nothing if it is -1

}  // namespace torchfleet
