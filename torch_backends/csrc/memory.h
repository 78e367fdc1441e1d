// Anonymous files (memfd_create(2)): memory that processes of one machine can share. They have no name, so nothing is left
// in /dev/shm whoever is killed, and their size is not bounded by that of /dev/shm.
#pragma once

#include <cstdint>

namespace torchfleet {

int64_t own_process();

// A new file of so many bytes, all of them there. -1 if that cannot be.
int new_file(const char* name, int64_t bytes);

// The file that has this number in another process. -1 if it cannot be reached: another machine, another container.
int file_of(int64_t process, int64_t number);

// The file in memory. Null if that cannot be.
char* map_file(int file, int64_t bytes);
void unmap(char* memory, int64_t bytes);
void close_file(int64_t file);  // nothing if it is -1

}  // namespace torchfleet
