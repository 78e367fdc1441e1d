// What a machine's memory and its TCP allow: all_reduce of float32 between two nodes with as many processes each, with nothing
// around it. Each process reduces one part in its node's shared memory, exchanges it with the process of the same place on
// the other node, and gives the result to its node, all chunk by chunk at the same time.
// Usage: limit_nodes PLACES ROUNDS PORT OTHER BYTES...; OTHER: the other node's address, "-" on the node that waits for it.
// The latter prints "BYTES SECONDS SECONDS ..." per size, a value per round.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {
constexpr int64_t kChunk = 128 << 10;  // floats: the fastest of 32, 64, 128 and 256 Ki where this was written
constexpr int64_t kSlots = 4;
constexpr int64_t kBytes = kChunk * 4;
enum Mark { kGiven, kReduced, kPublished, kGathered, kMarks };

void require(bool good, const char* what) {
  if (!good) {
    std::perror(what);
    std::exit(1);
  }
}

void add(float* __restrict to, const float* __restrict from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}

// Of one node. The counts only grow: chunks since the start.
struct Memory {
  std::atomic<int64_t>* marks;  // 64 bytes apart
  float* slots;
  int places;

  std::atomic<int64_t>& mark(Mark kind, int place) const { return marks[(kind * places + place) * 8]; }
  int64_t least(Mark kind) const {
    int64_t found = INT64_MAX;
    for (int place = 0; place < places; ++place) {
      found = std::min(found, mark(kind, place).load(std::memory_order_acquire));
    }
    return found;
  }
  // What `from` gives to `to`; its result if they are the same.
  float* slot(int from, int to, int64_t chunk) const {
    return slots + ((from * places + to) * kSlots + chunk % kSlots) * kChunk;
  }
};

class Reduction {
 public:
  Reduction(const Memory& memory, int place, int socket, float* data, int64_t count, int64_t begun)
      : memory_(memory), me_(place), socket_(socket), data_(data), each_(count / memory.places), begun_(begun),
        chunks_((each_ + kChunk - 1) / kChunk) {}

  int64_t go() {
    while (gathered_ < chunks_ || sent_ < each_ * 4) {
      if (!(give() | reduce() | send() | receive() | publish() | gather())) {
        sched_yield();
      }
    }
    return begun_ + chunks_;
  }

 private:
  int64_t length(int64_t chunk) const { return std::min(kChunk, each_ - chunk * kChunk); }
  int64_t end(int64_t chunk) const { return (chunk * kChunk + length(chunk)) * 4; }
  float* part(int place, int64_t chunk) const { return data_ + place * each_ + chunk * kChunk; }
  void mark(Mark kind, int64_t done) const { memory_.mark(kind, me_).store(begun_ + done, std::memory_order_release); }
  bool all(Mark kind, int64_t done) const { return memory_.least(kind) >= begun_ + done; }

  bool give() {
    if (given_ == chunks_ || !all(kReduced, given_ - kSlots + 1)) {
      return false;
    }
    for (int to = 0; to < memory_.places; ++to) {
      if (to != me_) {
        std::memcpy(memory_.slot(me_, to, given_), part(to, given_), length(given_) * 4);
      }
    }
    mark(kGiven, ++given_);
    return true;
  }

  bool reduce() {
    if (reduced_ == chunks_ || !all(kGiven, reduced_ + 1)) {
      return false;
    }
    for (int from = 0; from < memory_.places; ++from) {
      if (from != me_) {
        add(part(me_, reduced_), memory_.slot(from, me_, reduced_), length(reduced_));
      }
    }
    mark(kReduced, ++reduced_);
    return true;
  }

  bool send() {
    const int64_t ready = reduced_ == 0 ? 0 : end(reduced_ - 1);
    if (sent_ == ready) {
      return false;
    }
    const ssize_t moved = ::send(socket_, reinterpret_cast<char*>(part(me_, 0)) + sent_, ready - sent_, MSG_DONTWAIT);
    require(moved > 0 || errno == EAGAIN, "send");
    sent_ += std::max<ssize_t>(0, moved);
    return moved > 0;
  }

  // Of the other node, a chunk at a time.
  bool receive() {
    if (published_ == chunks_ || came_ == length(published_) * 4) {
      return false;
    }
    const ssize_t moved = ::recv(socket_, room_.data() + came_, length(published_) * 4 - came_, MSG_DONTWAIT);
    require(moved > 0 || errno == EAGAIN, "recv");
    came_ += std::max<ssize_t>(0, moved);
    return moved > 0;
  }

  bool publish() {
    if (published_ == chunks_ || came_ < length(published_) * 4 || sent_ < end(published_) ||
        !all(kGathered, published_ - kSlots + 1)) {
      return false;
    }
    add(part(me_, published_), reinterpret_cast<float*>(room_.data()), length(published_));
    std::memcpy(memory_.slot(me_, me_, published_), part(me_, published_), length(published_) * 4);
    came_ = 0;
    mark(kPublished, ++published_);
    return true;
  }

  bool gather() {
    if (gathered_ == chunks_ || !all(kPublished, gathered_ + 1)) {
      return false;
    }
    for (int from = 0; from < memory_.places; ++from) {
      if (from != me_) {
        std::memcpy(part(from, gathered_), memory_.slot(from, from, gathered_), length(gathered_) * 4);
      }
    }
    mark(kGathered, ++gathered_);
    return true;
  }

  const Memory& memory_;
  const int me_, socket_;
  float* data_;
  const int64_t each_, begun_, chunks_;
  int64_t given_ = 0, reduced_ = 0, published_ = 0, gathered_ = 0, sent_ = 0, came_ = 0;
  std::vector<char> room_ = std::vector<char>(kBytes);
};

int connected(const std::string& other, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int one = 1, first = socket(AF_INET, SOCK_STREAM, 0);
  int made = first;
  if (other == "-") {
    setsockopt(first, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    require(bind(first, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(first, 1) == 0, "bind");
    made = accept(first, nullptr, nullptr);
  } else {
    inet_pton(AF_INET, other.c_str(), &address.sin_addr);
    for (int tries = 0; connect(made, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0; ++tries) {
      require(tries < 100, "connect");
      usleep(100'000);
    }
  }
  require(made >= 0, "accept");
  setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return made;
}
}  // namespace

int main(int count, char** words) {
  const int places = std::atoi(words[1]), rounds = std::atoi(words[2]);
  const size_t slots = static_cast<size_t>(places) * places * kSlots * kBytes;
  char* shared = static_cast<char*>(
      mmap(nullptr, slots + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  const Memory memory{reinterpret_cast<std::atomic<int64_t>*>(shared), reinterpret_cast<float*>(shared + 4096), places};
  int me = 0;
  for (int place = 1; place < places && me == 0; ++place) {
    me = fork() == 0 ? place : 0;
  }
  if (me > 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  const int socket = connected(words[4], std::atoi(words[3]) + me);
  const bool tells = me == 0 && std::strcmp(words[4], "-") == 0;
  int64_t done = 0;
  for (int argument = 5; argument < count; ++argument) {
    const int64_t floats = std::atoll(words[argument]) / 4 / places * places;
    std::vector<float> data(floats, 1.0F);
    const int times = static_cast<int>(std::clamp<int64_t>(50'000'000 / (floats * 4 + 50'000), 1, 300));
    done = Reduction(memory, me, socket, data.data(), floats, done).go();
    for (float value : data) {
      require(value == 2.0F * places, "wrong sum");
    }
    std::fill(data.begin(), data.end(), 0.0F);
    if (tells) {
      std::printf("%s", words[argument]);
    }
    for (int round = 0; round < rounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < times; ++i) {
        done = Reduction(memory, me, socket, data.data(), floats, done).go();
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (tells) {
        std::printf(" %.9f", took.count() / times);
      }
    }
    if (tells) {
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  while (me == 0 && wait(nullptr) > 0) {
  }
  return 0;
}
