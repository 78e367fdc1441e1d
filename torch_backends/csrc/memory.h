// Anonymous files (memfd_create(2)): memory that processes of one machine can share. They have no name, so nothing remains
// in /dev/shm if a process is killed, and the size of /dev/shm does not limit them.
#pragma once

#include <cstdint>

namespace torchfleet {

int64_t own_process();

// A new file of this many bytes, whose name begins with "torchfleet". -1 if that fails.
int new_file(const char* name, int64_t bytes);

// Allocates the memory of a part of a file, near the core that calls it. False if there is not enough.
bool allocate_file(int file, int64_t offset, int64_t bytes);

// The file with this descriptor in another process. -1 if it is not accessible (another machine, another container), or not
// a file of new_file() with this size: in another container, the same numbers may be those of any file.
int file_of(int64_t process, int64_t number, int64_t bytes);

// The mapped file. Null if mapping fails.
char* map_file(int file, int64_t bytes);
void unmap(char* memory, int64_t bytes);

// For a forked child: what it writes from now on to the mapped file, other processes do not see.
void make_private(char* memory, int64_t bytes, int64_t file);

void close_file(int64_t file);  // nothing if it is -1

}  // namespace torchfleet
