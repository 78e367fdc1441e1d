// MPI as a whole: begun once, ended once, whatever order a program takes its groups down in.
#pragma once

#define OMPI_SKIP_MPICXX 1  // Debian's Open MPI 4.1 would pull in C++ bindings that no library has
#ifdef TORCHFLEET_STANDARD_ABI
#include <mpi_abi.h>
#else
#include <mpi.h>
#endif

#include <string>
#include <vector>

namespace torchfleet {

// Throws std::runtime_error with MPI's own words if `status` is an error of the call named.
void check(int status, const char* call);

// MPI_Init_thread, once, and MPI_Finalize when the process ends well, unless an operation is left that never will. Throws if
// this process was started by no MPI launcher's rules, or without THREAD_MULTIPLE.
void begin();

// Notes that an operation can never end: MPI must not be finalised, for that would wait for it.
void abandon();
bool is_abandoned();

int world_rank();
int world_size();
std::string library_version();

// What every rank of the world says, in their order: up to 127 bytes each. All call this.
std::vector<std::string> told_by_all(const std::string& text);

// A communicator of these ranks of the world, all of them if empty; MPI_COMM_NULL if this process is none of them.
// Only its members call this (MPI_Comm_create_group).
MPI_Comm communicator(const std::vector<int>& ranks);

}  // namespace torchfleet

#define TORCHFLEET_MPI(call) ::torchfleet::check(call, #call)
