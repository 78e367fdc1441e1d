// all_reduce between ranks on different nodes by TCP connections of our own, without MPI: each rank sends to the next one of
// a ring, and receives from the one before it. Both know from the operation what comes when; nothing else is sent.
#pragma once

#include "reduction.h"
#include "rendezvous.h"
#include "shared.h"
#include "signature.h"
#include "tcp_connection.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace torchfleet {

class TcpRing {
 public:
  // Called by all ranks of `ranks`, at least two. Returns null if a neighbour cannot be reached. `numbers`: of them in the
  // group, for error texts. `node`: memory of this node's ranks, which may fail meanwhile; may be null.
  static std::unique_ptr<TcpRing> among(Rendezvous& ranks, std::vector<int> numbers, std::shared_ptr<const Shared> node);
  ~TcpRing();

  // Each throws TimedOut after the deadline of this thread's Operation, and std::runtime_error if a neighbour is gone.
  void compare(Signature own);  // throws std::runtime_error that names what the ranks ask for, if that differs
  void all_reduce(const Elements& all, const Reduction& how);

  // Lets the next rank know that an operation failed here: it gets no more data.
  void fail();
  // The rank that the current operation waits for. May be called by any thread.
  std::vector<int> missing() const;

 private:
  friend class RingReduction;
  TcpRing(RingSockets sockets, int rank, std::vector<int> numbers, std::shared_ptr<const Shared> node);
  int64_t send(const char* data, int64_t bytes);  // what could be sent without waiting
  int64_t receive(char* data, int64_t bytes);
  void send_word(uint64_t word);
  uint64_t receive_word(int of);  // which came by way of the ranks between
  // Pauses until data can be received or sent: at first only a yield, then asleep.
  void pause(bool receives, bool sends, int whom);
  [[noreturn]] void throw_gone(int rank, int why) const;

  const RingSockets sockets_;
  const int rank_, size_;
  const std::vector<int> numbers_;
  const std::shared_ptr<const Shared> node_;
  const pid_t process_ = getpid();
  std::vector<char> room_;  // where what is reduced comes
  int polls_ = 0;           // without success
  std::atomic<int> waits_for_{-1};
};

}  // namespace torchfleet
