#include "tcp_ring.h"

#include "name.h"
#include "operation.h"

#include <c10/util/Logging.h>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace torchfleet {

namespace {
constexpr std::chrono::seconds kConnecting{10};
constexpr std::chrono::seconds kSecretComes{2};  // once connected
constexpr std::chrono::milliseconds kRingNap{100};
constexpr int kRingLooks = 100;              // before a rank sleeps
#ifndef TORCHFLEET_TCP_SEGMENT  // a test makes it small
#define TORCHFLEET_TCP_SEGMENT (512 << 10)
#endif
constexpr int64_t kSegment = TORCHFLEET_TCP_SEGMENT;  // bytes: while one is reduced, the next one comes

using Secret = std::array<unsigned char, 16>;

// How a rank is reached by the one before it.
struct Contact {
  char host[INET6_ADDRSTRLEN];  // empty: not at all
  char port[8];
  Secret secret;
};

[[noreturn]] void fail_with(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

int checked(int result, const char* call) {
  return result < 0 ? (fail_with(call), 0) : result;
}

// Waits for an event of a socket. False after that time.
bool comes(int number, short events, std::chrono::milliseconds most) {
  pollfd one{number, events, 0};
  const auto until = Clock::now() + most;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    const int found = poll(&one, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (found >= 0 || errno != EINTR) {
      return checked(found, "poll") > 0;
    }
  }
}

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
  void operator()(ifaddrs* found) const { freeifaddrs(found); }
};
template <typename T>
using Addresses = std::unique_ptr<T, FreeAddresses>;

Addresses<addrinfo> resolved(const char* host, const char* port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  return getaddrinfo(host, port, &hints, &found) == 0 ? Addresses<addrinfo>(found) : nullptr;
}

// A socket that listens on this address, if it is one of this machine.
Socket listening_on(const sockaddr* address, socklen_t length) {
  Socket made(checked(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket"));
  const bool good = bind(made.number(), address, length) == 0 && listen(made.number(), 8) == 0;
  return good ? std::move(made) : Socket();
}

// On the first address of a NIC.
Socket listening_on_nic(const std::string& name) {
  ifaddrs* list = nullptr;
  checked(getifaddrs(&list), "getifaddrs");
  const Addresses<ifaddrs> all(list);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || name != one->ifa_name) {
        continue;
      }
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr)) {
        continue;  // it says nothing on another machine
      }
      return listening_on(one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  return Socket();
}

// As gloo does: on the NIC that the user named, else where the name of this machine leads.
Socket listening() {
  const char* nics = std::getenv("GLOO_SOCKET_IFNAME");
  if (nics != nullptr && *nics != '\0') {
    return listening_on_nic(std::string(nics, std::strcspn(nics, ",")));
  }
  char name[256] = {};
  checked(gethostname(name, sizeof name - 1), "gethostname");
  const Addresses<addrinfo> found = resolved(name, nullptr, 0);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    if (Socket made = listening_on(one->ai_addr, one->ai_addrlen); made.number() >= 0) {
      return made;
    }
  }
  return listening_on_nic("lo");
}

Contact contact_of(const Socket& listener) {
  Contact own{};
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (listener.number() < 0 || getrandom(own.secret.data(), own.secret.size(), 0) != static_cast<ssize_t>(own.secret.size()) ||
      getsockname(listener.number(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, own.host, sizeof own.host, own.port, sizeof own.port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    own.host[0] = '\0';
  }
  return own;
}

void send_at_once(const Socket& socket) {
  const int one = 1;
  checked(setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), "setsockopt");
}

// The connection to a rank, which gets its secret.
Socket connected(Contact to) {
  to.host[sizeof to.host - 1] = to.port[sizeof to.port - 1] = '\0';
  const Addresses<addrinfo> found = to.host[0] != '\0' ? resolved(to.host, to.port, AI_NUMERICHOST | AI_NUMERICSERV) : nullptr;
  if (!found) {
    return Socket();
  }
  Socket made(checked(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket"));
  if (connect(made.number(), found->ai_addr, found->ai_addrlen) != 0) {
    int why = errno;
    socklen_t length = sizeof why;
    if (why != EINPROGRESS || !comes(made.number(), POLLOUT, kConnecting) ||
        getsockopt(made.number(), SOL_SOCKET, SO_ERROR, &why, &length) != 0 || why != 0) {
      return Socket();
    }
  }
  send_at_once(made);
  const ssize_t sent = send(made.number(), to.secret.data(), to.secret.size(), MSG_NOSIGNAL);  // into an empty buffer
  return sent == static_cast<ssize_t>(to.secret.size()) ? std::move(made) : Socket();
}

// Whether who connected knows the secret.
bool knows(const Socket& socket, const Secret& secret) {
  Secret given{};
  for (size_t came = 0; came < given.size();) {
    if (!comes(socket.number(), POLLIN, kSecretComes)) {
      return false;
    }
    const ssize_t more = recv(socket.number(), given.data() + came, given.size() - came, 0);
    if (more <= 0) {
      return false;
    }
    came += static_cast<size_t>(more);
  }
  unsigned char differs = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    differs |= given[i] ^ secret[i];
  }
  return differs == 0;
}

// The connection of the rank before this one. Strangers are sent away.
Socket accepted(const Socket& listener, const Secret& secret) {
  for (const auto until = Clock::now() + kConnecting; Clock::now() < until;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (!comes(listener.number(), POLLIN, left)) {
      break;
    }
    Socket made(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (made.number() >= 0 && knows(made, secret)) {
      send_at_once(made);
      return made;
    }
  }
  return Socket();
}
}  // namespace

Socket::~Socket() {
  if (number_ >= 0) {
    close(number_);
  }
}

std::unique_ptr<TcpRing> TcpRing::among(Rendezvous& ranks, std::vector<int> numbers, std::shared_ptr<const Shared> node) {
  Socket listener, before, next;
  const auto meanwhile = [](auto step) {  // no rank leaves the others alone with what all of them do
    try {
      step();
    } catch (const std::system_error& error) {
      LOG(WARNING) << "backend " TORCHFLEET_NAME ": no TCP connections between nodes: " << error.what();
    }
  };
  Contact own{};
  meanwhile([&] {
    listener = listening();
    own = contact_of(listener);
  });
  const std::vector<Contact> all = torchfleet::all_gather(ranks, own);
  meanwhile([&] {
    next = connected(all[(ranks.rank() + 1) % ranks.size()]);
    before = next.number() >= 0 ? accepted(listener, own.secret) : Socket();
  });
  if (before.number() < 0) {
    return nullptr;
  }
  return std::make_unique<TcpRing>(std::move(before), std::move(next), ranks.rank(), std::move(numbers), std::move(node));
}

TcpRing::TcpRing(Socket before, Socket next, int rank, std::vector<int> numbers, std::shared_ptr<const Shared> node)
    : before_(std::move(before)),
      next_(std::move(next)),
      rank_(rank),
      size_(static_cast<int>(numbers.size())),
      numbers_(std::move(numbers)),
      node_(std::move(node)),
      room_(kSegment) {}

// Each rank hands on what it hears, so that all of them find the same.
void TcpRing::compare(Signature own) {
  std::vector<uint64_t> words(size_, own.word());
  for (int step = 0; step < size_ - 1; ++step) {
    send_word(words[(rank_ - step + size_) % size_]);
    words[(rank_ - step - 1 + size_) % size_] = receive_word();
  }
  refuse_different(words, numbers_);
}

// Segment by segment, in both directions at the same time. In the first half of the steps each rank reduces a part, after which
// it has one finished part; the second half distributes these. Of two ranks, each sends all it has if that is short: one step,
// but more to reduce. Each element is reduced in one order, so all ranks get the same bits.
class RingReduction {
 public:
  RingReduction(TcpRing& ring, const Elements& all, const Reduction& how)
      : ring_(ring), all_(all), how_(how), ranks_(ring.size_), at_once_(ranks_ == 2 && all.count * all.size <= kSegment), most_(kSegment / all.size) {
    const int64_t longest = at_once_ ? all.count : (all.count + ranks_ - 1) / ranks_;
    segments_ = (longest + most_ - 1) / most_;
    reducing_ = (ranks_ - 1) * segments_;
    items_ = at_once_ ? segments_ : 2 * reducing_;
  }

  void go() {
    while (sent_ < items_ || received_ < items_) {
      const bool gave = give(), took = take();
      if (gave || took) {
        ring_.looks_ = 0;
      } else {
        ring_.rest(may_receive() && came_ < bytes_of(incoming()), may_send());
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
  static int64_t bytes_of(const Elements& some) { return some.count * some.size; }
  bool is_reducing() const { return received_ < reducing_; }

  bool may_send() const {  // what is sent after the first step has to come before
    return sent_ < items_ && (sent_ < segments_ || sent_ - segments_ < received_);
  }
  bool may_receive() const {  // over what was there: if that is sent
    return received_ < items_ && (is_reducing() || received_ - reducing_ < sent_);
  }

  bool give() {
    if (!may_send()) {
      return false;
    }
    const Elements from = outgoing();
    const int64_t moved = ring_.send(from.data + gone_, bytes_of(from) - gone_);
    gone_ += moved;
    const bool whole = gone_ == bytes_of(from);
    if (whole) {
      ++sent_;
      gone_ = 0;
    }
    return moved > 0 || whole;
  }

  bool take() {
    if (!may_receive()) {
      return false;
    }
    const Elements to = incoming();
    char* at = is_reducing() ? ring_.room_.data() : to.data;
    const int64_t moved = came_ < bytes_of(to) ? ring_.receive(at + came_, bytes_of(to) - came_) : 0;
    came_ += moved;
    if (came_ < bytes_of(to) || (at_once_ && sent_ <= received_)) {
      return moved > 0;
    }
    if (is_reducing()) {
      reduce(to);
    }
    ++received_;
    came_ = 0;
    return true;
  }

  // At once, both reduce what the second rank has into what the first one has.
  void reduce(const Elements& to) {
    char* room = ring_.room_.data();
    if (at_once_ && ring_.rank_ == 1) {
      reduce_local(how_, to.data, room, to.count);
      std::memcpy(to.data, room, bytes_of(to));
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
  int64_t gone_ = 0, came_ = 0;      // bytes of the current ones
};

void TcpRing::all_reduce(const Elements& all, const Reduction& how) {
  RingReduction(*this, all, how).go();
}

void TcpRing::fail() {
  shutdown(next_.number(), SHUT_WR);
}

std::vector<int> TcpRing::missing() const {
  const int rank = waits_for_;
  return rank < 0 ? std::vector<int>() : std::vector<int>{numbers_[rank]};
}

int64_t TcpRing::send(const char* data, int64_t bytes) {
  const ssize_t moved = ::send(next_.number(), data, static_cast<size_t>(bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (moved < 0 && errno != EAGAIN && errno != EINTR) {
    is_gone((rank_ + 1) % size_);
  }
  return std::max<ssize_t>(0, moved);
}

int64_t TcpRing::receive(char* data, int64_t bytes) {
  const ssize_t moved = recv(before_.number(), data, static_cast<size_t>(bytes), MSG_DONTWAIT);
  if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) {
    is_gone((rank_ + size_ - 1) % size_);
  }
  return std::max<ssize_t>(0, moved);
}

void TcpRing::send_word(uint64_t word) {
  const char* data = reinterpret_cast<const char*>(&word);
  for (int64_t gone = 0; gone < static_cast<int64_t>(sizeof word);) {
    const int64_t moved = send(data + gone, sizeof word - gone);
    gone += moved;
    if (moved == 0) {
      rest(false, true);
    }
  }
  looks_ = 0;
}

uint64_t TcpRing::receive_word() {
  uint64_t word = 0;
  for (int64_t came = 0; came < static_cast<int64_t>(sizeof word);) {
    const int64_t moved = receive(reinterpret_cast<char*>(&word) + came, sizeof word - came);
    came += moved;
    if (moved == 0) {
      rest(true, false);
    }
  }
  looks_ = 0;
  return word;
}

void TcpRing::rest(bool receives, bool sends) {
  if (looks_ < kRingLooks) {
    ++looks_;
    sched_yield();
    return;
  }
  waits_for_ = receives ? (rank_ + size_ - 1) % size_ : (rank_ + 1) % size_;
  if (node_) {
    node_->throw_if_failed();
  }
  Operation::check(missing());
  pollfd both[] = {{receives ? before_.number() : -1, POLLIN, 0}, {sends ? next_.number() : -1, POLLOUT, 0}};
  const auto nap = Operation::at_most(kRingNap);
  const timespec most{0, static_cast<long>(nap.count())};
  ppoll(both, 2, &most, nullptr);
  waits_for_ = -1;
}

void TcpRing::is_gone(int rank) const {
  throw std::runtime_error("rank " + std::to_string(numbers_[rank]) + " failed, or its process has ended");
}

}  // namespace torchfleet
