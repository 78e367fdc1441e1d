// TCP connections between the ranks of a group, in a ring.
//
// A connection counts only if it begins with a secret of the rank that accepts it, which the ranks have from their rendezvous.
#pragma once

#include "rendezvous.h"

#include <utility>

namespace torchfleet {

// A file descriptor of a socket, which this closes.
class Socket {
 public:
  explicit Socket(int number = -1) : number_(number) {}
  ~Socket();
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }

 private:
  int number_;
};

// Of a rank: it receives from the one before it, and sends to the next one.
struct RingSockets {
  Socket before, next;
};

// Called by all ranks, at least two. Has no sockets if this rank has not reached its neighbours; then a warning says why.
RingSockets connect_in_ring(Rendezvous& ranks);

}  // namespace torchfleet
