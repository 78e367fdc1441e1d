// Stands between the backend and an MPI, by MPI's profiling interface (MPI 4.1, section 15.2).
//
// Refuses calls that count more than WATCHED_MOST over all ranks, which some MPIs count in an int.
#include <mpi.h>

#include <cstdlib>

namespace {
bool is_too_much(int count, MPI_Comm comm) {
  int ranks = 0;
  PMPI_Comm_size(comm, &ranks);
  return count > std::atoi(std::getenv("WATCHED_MOST")) / ranks;
}
}  // namespace

extern "C" {
int MPI_Iallgather(const void* from, int count, MPI_Datatype type, void* to, int count_of_each, MPI_Datatype type_of_each,
                   MPI_Comm comm, MPI_Request* request) {
  return is_too_much(count_of_each, comm) ? MPI_ERR_COUNT
                                          : PMPI_Iallgather(from, count, type, to, count_of_each, type_of_each, comm, request);
}

int MPI_Ireduce_scatter_block(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              MPI_Request* request) {
  return is_too_much(count, comm) ? MPI_ERR_COUNT : PMPI_Ireduce_scatter_block(from, to, count, type, op, comm, request);
}
}
