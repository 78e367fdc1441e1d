// Stands between the backend and an MPI, by MPI's profiling interface (MPI 4.1, section 15.2).
//
// Refuses calls that count more than WATCHED_MOST over all ranks, which some MPIs count in an int. Between the discovery of a
// message and its receipt it makes file WATCHED_PLACE/found, and waits for file WATCHED_PLACE/posted.
#include <mpi.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

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

int MPI_Imrecv(void* to, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  const std::string place = std::getenv("WATCHED_PLACE");
  std::ofstream(place + "/found");
  for (int looks = 0; looks < 3000 && access((place + "/posted").c_str(), F_OK) != 0; ++looks) {
    usleep(10000);
  }
  return PMPI_Imrecv(to, count, type, message, request);
}
}
