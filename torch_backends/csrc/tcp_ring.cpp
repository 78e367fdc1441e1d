#include "tcp_ring.h"

#include "operation.h"
#include "yield.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace torchfleet {

namespace {
constexpr std::chrono::milliseconds kRingSleep{100};
constexpr int kRingPolls = 100;  // before a rank sleeps
#ifndef TORCHFLEET_TCP_SEGMENT   // a test makes it small
#define TORCHFLEET_TCP_SEGMENT (512 << 10)
#endif
constexpr int64_t kSegment = TORCHFLEET_TCP_SEGMENT;  // bytes: while one is reduced, the next one comes
}  // namespace

std::unique_ptr<TcpRing> TcpRing::among(Rendezvous& ranks, std::vector<int> numbers, std::shared_ptr<const Shared> node) {
  RingSockets sockets = connect_in_ring(ranks);
  if (sockets.before.number() < 0) {
    return nullptr;
  }
  return std::unique_ptr<TcpRing>(new TcpRing(std::move(sockets), ranks.rank(), std::move(numbers), std::move(node)));
}

TcpRing::TcpRing(RingSockets sockets, int rank, std::vector<int> numbers, std::shared_ptr<const Shared> node)
    : sockets_(std::move(sockets)),
      rank_(rank),
      size_(static_cast<int>(numbers.size())),
      numbers_(std::move(numbers)),
      node_(std::move(node)) {}

// A forked child has these sockets too, and as long as it lives, closing them says nothing to the others.
TcpRing::~TcpRing() {
  if (getpid() == process_) {
    fail();
  }
}

// Each rank hands on what it hears, so that all of them find the same.
void TcpRing::compare(Signature own) {
  std::vector<uint64_t> words(size_, own.word());
  for (int step = 0; step < size_ - 1; ++step) {
    send_word(words[(rank_ - step + size_) % size_]);
    const int of = (rank_ - step - 1 + size_) % size_;
    words[of] = receive_word(of);
  }
  refuse_different(words, numbers_);
}

// Segment by segment, in both directions at the same time. In the first half of the steps each rank reduces a part, after which
// it has one finished part; the second half distributes these. Of two ranks, each sends all it has if that is short: one step,
// but more to reduce. Each element is reduced in one order, so all ranks get the same bits.
class RingReduction {
 public:
  RingReduction(TcpRing& ring, const Elements& all, const Reduction& how)
      : ring_(ring),
        all_(all),
        how_(how),
        ranks_(ring.size_),
        at_once_(ranks_ == 2 && all.bytes() <= kSegment),
        most_(kSegment / all.size) {
    const int64_t longest = at_once_ ? all.count : (all.count + ranks_ - 1) / ranks_;
    segments_ = (longest + most_ - 1) / most_;
    reducing_ = (ranks_ - 1) * segments_;
    items_ = at_once_ ? segments_ : 2 * reducing_;
    ring_.room_.resize(std::max<size_t>(ring_.room_.size(), std::min(most_, longest) * all.size));
  }

  void go() {
    while (sent_ < items_ || received_ < items_) {
      const bool gave = give(), took = take();
      if (gave || took) {
        ring_.polls_ = 0;
      } else {
        const bool receives = received_ < items_ && received_bytes_ < incoming().bytes();
        ring_.pause(receives, may_send(), (receives ? ring_.rank_ - 1 + ranks_ : ring_.rank_ + 1) % ranks_);
      }
    }
  }

 private:
  // Segment `item % segments_` of step `item / segments_`.
  Elements segment(int64_t item, int ahead) const {
    const int64_t step = item / segments_ + ahead, part = ((ring_.rank_ - step) % ranks_ + ranks_) % ranks_;
    const int64_t first = at_once_ ? 0 : part * all_.count / ranks_, end = at_once_ ? all_.count : (part + 1) * all_.count / ranks_;
    const int64_t begin = std::min(end, first + item % segments_ * most_);
    return all_.part(begin, std::min(end - begin, most_));
  }
  Elements outgoing() const { return segment(sent_, 0); }
  Elements incoming() const { return segment(received_, 1); }
  bool is_reducing() const { return received_ < reducing_; }

  bool may_send() const {  // what is sent after the first step has to come before
    return sent_ < items_ && (sent_ < segments_ || sent_ - segments_ < received_);
  }

  bool give() {
    if (!may_send()) {
      return false;
    }
    const Elements from = outgoing();
    const int64_t moved = ring_.send(from.data + sent_bytes_, from.bytes() - sent_bytes_);
    sent_bytes_ += moved;
    const bool whole = sent_bytes_ == from.bytes();
    if (whole) {
      ++sent_;
      sent_bytes_ = 0;
    }
    return moved > 0 || whole;
  }

  // What comes in the second half is reduced of what all ranks had there, so that was sent before.
  bool take() {
    if (received_ == items_) {
      return false;
    }
    const Elements to = incoming();
    char* at = is_reducing() ? ring_.room_.data() : to.data;
    const int64_t moved = received_bytes_ < to.bytes() ? ring_.receive(at + received_bytes_, to.bytes() - received_bytes_) : 0;
    received_bytes_ += moved;
    if (received_bytes_ < to.bytes() || (at_once_ && sent_ <= received_)) {
      return moved > 0;
    }
    if (is_reducing()) {
      reduce(to);
    }
    ++received_;
    received_bytes_ = 0;
    return true;
  }

  // At once, both reduce what the second rank has into what the first one has.
  void reduce(const Elements& to) {
    char* room = ring_.room_.data();
    if (at_once_ && ring_.rank_ == 1) {
      reduce_local(how_, to.data, room, to.count);
      std::memcpy(to.data, room, to.bytes());
    } else {
      reduce_local(how_, room, to.data, to.count);
    }
  }

  TcpRing& ring_;
  const Elements all_;
  const Reduction how_;
  const int ranks_;
  const bool at_once_;
  const int64_t most_;  // elements of a segment
  int64_t segments_, reducing_, items_;
  int64_t sent_ = 0, received_ = 0;  // segments
  int64_t sent_bytes_ = 0, received_bytes_ = 0;  // bytes of the current ones
};

void TcpRing::all_reduce(const Elements& all, const Reduction& how) {
  RingReduction(*this, all, how).go();
}

void TcpRing::fail() {
  shutdown(sockets_.next.number(), SHUT_WR);
}

std::vector<int> TcpRing::missing() const {
  const int rank = waits_for_;
  return rank < 0 ? std::vector<int>() : std::vector<int>{numbers_[rank]};
}

int64_t TcpRing::send(const char* data, int64_t bytes) {
  const ssize_t moved = ::send(sockets_.next.number(), data, static_cast<size_t>(bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (moved < 0 && errno != EAGAIN && errno != EINTR) {
    throw_gone((rank_ + 1) % size_, errno);
  }
  return std::max<ssize_t>(0, moved);
}

int64_t TcpRing::receive(char* data, int64_t bytes) {
  const ssize_t moved = recv(sockets_.before.number(), data, static_cast<size_t>(bytes), MSG_DONTWAIT);
  if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) {
    throw_gone((rank_ + size_ - 1) % size_, moved < 0 ? errno : 0);
  }
  return std::max<ssize_t>(0, moved);
}

void TcpRing::send_word(uint64_t word) {
  const char* data = reinterpret_cast<const char*>(&word);
  for (int64_t sent = 0; sent < static_cast<int64_t>(sizeof word);) {
    const int64_t moved = send(data + sent, sizeof word - sent);
    sent += moved;
    if (moved == 0) {
      pause(false, true, (rank_ + 1) % size_);
    }
  }
  polls_ = 0;
}

uint64_t TcpRing::receive_word(int of) {
  uint64_t word = 0;
  for (int64_t received = 0; received < static_cast<int64_t>(sizeof word);) {
    const int64_t moved = receive(reinterpret_cast<char*>(&word) + received, sizeof word - received);
    received += moved;
    if (moved == 0) {
      pause(true, false, of);
    }
  }
  polls_ = 0;
  return word;
}

void TcpRing::pause(bool receives, bool sends, int whom) {
  if (polls_ < kRingPolls) {
    polls_ = yield_and_return_soon() ? polls_ + 1 : kRingPolls;
    return;
  }
  waits_for_ = whom;
  if (node_) {
    node_->throw_if_failed();
  }
  Operation::check(missing());
  pollfd both[] = {{receives ? sockets_.before.number() : -1, POLLIN, 0}, {sends ? sockets_.next.number() : -1, POLLOUT, 0}};
  const timespec most{0, static_cast<long>(Operation::at_most(kRingSleep).count())};
  ppoll(both, 2, &most, nullptr);
  waits_for_ = -1;
}

// What a rank of this node knows already says more.
void TcpRing::throw_gone(int rank, int why) const {
  if (node_) {
    node_->throw_if_failed();
  }
  const std::string told = "rank " + std::to_string(numbers_[rank]) + " failed, or its process has ended";
  const bool is_plain = why == 0 || why == EPIPE || why == ECONNRESET;
  throw std::runtime_error(is_plain ? told : told + ": " + std::strerror(why));
}

}  // namespace torchfleet
