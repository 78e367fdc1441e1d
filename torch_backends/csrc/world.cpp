#include "world.h"

#include "progress.h"
#include "worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

namespace torchfleet {

namespace {
// For what is still under way at the end: collectives end by themselves, at the latest when their timeout is over, but for
// some calls of MPI with memory of accelerators.
constexpr std::chrono::hours kCollectives{1};
constexpr std::chrono::seconds kMessages{5};

std::atomic<bool> finalize_skipped{false};
std::once_flag initialized_once;
pid_t initialized_in = 0;

bool is_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

// At the end of the process. MPI_Finalize waits for all ranks, and these may wait for this one: a failed process exits
// without it, and the launcher ends the others.
void on_process_exit(int status, void* process) {
  if (reinterpret_cast<intptr_t>(process) != getpid() || !is_initialized() || is_finalized()) {
    return;  // a forked child is not a rank
  }
  if (status != 0) {
    std::fflush(nullptr);
    _exit(status);
  }
  complete_no_more_futures();
  const bool ended = await_workers(kCollectives, false), sent = end_messages();
  if (ended && sent && !finalize_skipped) {
    MPI_Finalize();
  }
}

void initialize_mpi() {
  int provided = MPI_THREAD_SINGLE;
  if (is_initialized()) {
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw std::runtime_error(
        "backend mpi: this MPI gives no MPI_THREAD_MULTIPLE, and every group of torch has a thread of its own: " +
        library_version());
  }
  // MPI_COMM_SELF's is the one of calls without a communicator, such as MPI_Test.
  for (MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF}) {
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  on_exit(on_process_exit, reinterpret_cast<void*>(static_cast<intptr_t>(getpid())));
}
}  // namespace

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw std::runtime_error("backend mpi: " + std::string(call) + ": " + std::string(text, length));
}

void initialize() {
  std::call_once(initialized_once, [] {
    initialized_in = getpid();
    initialize_mpi();
  });
  if (getpid() != initialized_in) {
    throw std::runtime_error("backend mpi: process " + std::to_string(getpid()) + " was forked from process " +
                             std::to_string(initialized_in) + ", which alone is a rank of MPI: use another backend in it");
  }
}

bool end_messages() {
  return Progress::of_process().close(kMessages);
}

void skip_finalize() {
  finalize_skipped = true;
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, length);
  return version.substr(0, version.find_first_of(",\n"));
}

std::vector<std::string> gather_texts(const std::string& text) {
  constexpr int kBytes = 128;
  std::vector<char> all(static_cast<size_t>(kBytes) * size_of(MPI_COMM_WORLD));
  char own[kBytes] = {};
  text.copy(own, kBytes - 1);
  TORCHFLEET_MPI(MPI_Allgather(own, kBytes, MPI_CHAR, all.data(), kBytes, MPI_CHAR, MPI_COMM_WORLD));
  std::vector<std::string> found;
  for (size_t first = 0; first < all.size(); first += kBytes) {
    found.emplace_back(&all[first]);
  }
  return found;
}

MPI_Comm communicator(const std::vector<int>& ranks) {
  MPI_Comm made = MPI_COMM_NULL;
  if (ranks.empty()) {
    TORCHFLEET_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &made));
  } else if (std::find(ranks.begin(), ranks.end(), rank_in(MPI_COMM_WORLD)) != ranks.end()) {
    MPI_Group world, group;
    TORCHFLEET_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
    TORCHFLEET_MPI(MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &group));
    TORCHFLEET_MPI(MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &made));
    MPI_Group_free(&group);
    MPI_Group_free(&world);
  }
  if (made != MPI_COMM_NULL) {
    TORCHFLEET_MPI(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN));
  }
  return made;
}

}  // namespace torchfleet
