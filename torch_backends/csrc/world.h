// MPI as a whole: initialised once and finalised once, in whatever order a program destroys its groups.
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

// Throws std::runtime_error with MPI's error text if `status` is an error of this call.
void check(int status, const char* call);

// Calls MPI_Init_thread once, and MPI_Finalize when the process exits normally, unless an operation failed. Throws if no MPI
// launcher started this process, or without THREAD_MULTIPLE.
void initialize();

// Notes that an operation failed, which MPI may still be doing: MPI must not be finalised, because that would wait for it.
void skip_finalize();

// Waits some seconds for messages that are being sent, and gives up those that nobody has sent. While Python still runs: what
// it holds of their tensors has to be released. False if some could not be sent.
bool end_messages();

inline int rank_in(MPI_Comm comm) {
  int rank = 0;
  check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

inline int size_of(MPI_Comm comm) {
  int size = 0;
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

std::string library_version();

// The texts of all ranks of the world, in their order: up to 127 bytes each. All ranks call this.
std::vector<std::string> gather_texts(const std::string& text);

// A communicator of these ranks of the world in this order, of all if empty. Only its members have to call this
// (MPI_Comm_create_group); others get MPI_COMM_NULL.
MPI_Comm communicator(const std::vector<int>& ranks);

}  // namespace torchfleet

#define TORCHFLEET_MPI(call) ::torchfleet::check(call, #call)
