// The receives of a group whose messages have not come. None of them is posted: each message is found first (MPI 4.1, section
// 3.8.2, matching probe), so that its size is known before a byte of it is written. Open MPI 4.1 and 5.0 write a message that
// is longer than a posted receive beyond its memory where they copy from another process of the node (smsc/cma), and Intel MPI
// ends the job. MPICH 5.0.2 over UCX loses receives from any source that are posted if some ranks are on this node and some are
// not.
#pragma once

#include "mpi_transport.h"
#include "world.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace torchfleet {

class Mailbox;

struct Receive {
  const std::shared_ptr<Mailbox> mailbox;
  Piece piece;  // its rank is MPI_ANY_SOURCE until a message is matched, if any will do
  const int tag;
  int64_t arrived = 0;      // bytes of the parts that are matched
  bool is_matched = false;  // to the last part
  std::vector<Request> requests{};  // of these parts
};

class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  explicit Mailbox(MPI_Comm comm) : comm_(comm) {}

  // The memory of `piece` has to live until the receive is matched and its requests are done, or until it is dropped.
  std::shared_ptr<Receive> add(const Piece& piece, int tag);

  // Whether its message is matched, to the last part. Receives of the same source and tag get theirs in the order of add(), and
  // those that name the source before those from any source, as with gloo.
  bool try_match(const Receive& receive);

  void drop(const Receive& receive);

 private:
  static bool scratch_is_free(Receive& receive);  // for one more part
  bool probe(const Receive& receive, MPI_Message* message, MPI_Status* status) const;

  const MPI_Comm comm_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Receive>> waiting_;
};

}  // namespace torchfleet
