#include "tcp_connection.h"

#include "name.h"
#include "operation.h"

#include <c10/util/Logging.h>

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>

namespace torchfleet {

namespace {
constexpr std::chrono::seconds kConnecting{10};
constexpr std::chrono::seconds kSecretComes{2};  // once connected
constexpr std::chrono::milliseconds kPollInterval{100};
constexpr int kWaiting = 64;                     // connections that are not accepted yet, and that have not told it

using Secret = std::array<unsigned char, 16>;

// How a rank is reached by the one before it.
struct Contact {
  char host[INET6_ADDRSTRLEN];  // empty: not at all
  char port[8];
  Secret secret;
};

int checked(int result, const char* call) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), call);
  }
  return result;
}

// Waits for an event of a socket. False if it has not come until then.
bool wait_for(int number, short events, Clock::time_point until) {
  pollfd one{number, events, 0};
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

// A link-local address of IPv6 says nothing on another machine.
bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// A socket that listens on this address, if it is one of this machine. Who connects and says nothing is not handed over.
Socket listening_on(const sockaddr* address, socklen_t length) {
  if (is_link_local(address)) {
    return Socket();
  }
  Socket made(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.number() < 0) {  // a family that this kernel does not have
    return made;
  }
  const int seconds = kConnecting.count();
  setsockopt(made.number(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);  // if this kernel has it
  const bool good = bind(made.number(), address, length) == 0 && listen(made.number(), kWaiting) == 0;
  return good ? std::move(made) : Socket();
}

// On the first address of a NIC.
Socket listening_on_nic(const std::string& name) {
  ifaddrs* list = nullptr;
  checked(getifaddrs(&list), "getifaddrs");
  const Addresses<ifaddrs> all(list);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || name != one->ifa_name || is_link_local(one->ifa_addr)) {
        continue;
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
    throw std::runtime_error("a rank has no address that others reach: set GLOO_SOCKET_IFNAME there");
  }
  Socket made(checked(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket"));
  if (connect(made.number(), found->ai_addr, found->ai_addrlen) != 0) {
    int why = errno;
    socklen_t length = sizeof why;
    if (why == EINPROGRESS) {
      why = ETIMEDOUT;
      if (wait_for(made.number(), POLLOUT, Clock::now() + kConnecting)) {
        checked(getsockopt(made.number(), SOL_SOCKET, SO_ERROR, &why, &length), "getsockopt");
      }
    }
    if (why != 0) {
      throw std::system_error(why, std::generic_category(), std::string("connecting to ") + to.host + " port " + to.port);
    }
  }
  send_at_once(made);
  checked(static_cast<int>(send(made.number(), to.secret.data(), to.secret.size(), MSG_NOSIGNAL)), "send");  // it is short
  return made;
}

// Who connected, until it has told the secret.
struct Candidate {
  Socket socket;
  Clock::time_point until;
  Secret given{};
  size_t received = 0;
};

enum class Handshake { kPending, kSucceeded, kFailed };

// Takes what a candidate has sent so far.
Handshake handshake(Candidate& candidate, const Secret& secret) {
  Secret& given = candidate.given;
  const ssize_t more = recv(candidate.socket.number(), given.data() + candidate.received, given.size() - candidate.received, 0);
  if (more < 0 && (errno == EAGAIN || errno == EINTR)) {
    return Clock::now() < candidate.until ? Handshake::kPending : Handshake::kFailed;
  }
  if (more <= 0) {
    return Handshake::kFailed;
  }
  candidate.received += static_cast<size_t>(more);
  if (candidate.received < given.size()) {
    return Handshake::kPending;
  }
  unsigned char differs = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    differs |= given[i] ^ secret[i];
  }
  return differs == 0 ? Handshake::kSucceeded : Handshake::kFailed;
}

// Waits a moment for news of the listener or of a candidate.
void wait_for_news(const Socket& listener, const std::vector<Candidate>& candidates) {
  std::vector<pollfd> all{{listener.number(), POLLIN, 0}};
  for (const Candidate& candidate : candidates) {
    all.push_back({candidate.socket.number(), POLLIN, 0});
  }
  const int found = poll(all.data(), all.size(), static_cast<int>(kPollInterval.count()));
  if (found < 0 && errno != EINTR) {
    checked(found, "poll");
  }
}

// The connection of the rank before this one. Strangers are sent away, and nobody waits for them.
Socket accepted(const Socket& listener, const Secret& secret) {
  const auto until = Clock::now() + kConnecting;
  std::vector<Candidate> candidates;
  while (Clock::now() < until) {
    wait_for_news(listener, candidates);
    Socket made(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (made.number() < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED && errno != EPROTO) {
      checked(-1, "accept4");
    }
    if (made.number() >= 0) {
      if (candidates.size() == kWaiting) {
        candidates.erase(candidates.begin());
      }
      candidates.push_back({std::move(made), Clock::now() + kSecretComes});
    }
    for (size_t i = candidates.size(); i-- > 0;) {
      const Handshake told = handshake(candidates[i], secret);
      if (told == Handshake::kSucceeded) {
        send_at_once(candidates[i].socket);
        return std::move(candidates[i].socket);
      }
      if (told == Handshake::kFailed) {
        candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  throw std::runtime_error("the rank before this one has not connected");
}
}  // namespace

Socket::~Socket() {
  if (number_ >= 0) {
    close(number_);
  }
}

RingSockets connect_in_ring(Rendezvous& ranks) {
  Socket listener;
  RingSockets found;
  Contact own{};
  // Whatever fails: no rank leaves the others alone in what all of them do.
  const auto attempt = [](auto step) {
    try {
      step();
      return true;
    } catch (const std::exception& error) {
      LOG(WARNING) << "backend " TORCHFLEET_NAME ": no TCP connections between nodes: " << error.what();
      return false;
    }
  };
  attempt([&] {
    listener = listening();
    own = contact_of(listener);
  });
  const std::vector<Contact> all = all_gather(ranks, own);
  const bool good = attempt([&] {
    found.next = connected(all[(ranks.rank() + 1) % ranks.size()]);
    found.before = accepted(listener, own.secret);
  });
  return good ? std::move(found) : RingSockets();
}

}  // namespace torchfleet
