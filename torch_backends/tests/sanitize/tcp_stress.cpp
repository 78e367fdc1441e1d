// Random all-reduces over TCP of threads that are ranks on nodes of their own: every result is compared, and ranks are late.
// Segments are short, so that many of them are under way. Strangers connect to each new group. At its end a rank asks for
// something else, or leaves while the others wait, which all have to notice.
//
// Usage: tcp_stress RANKS OPERATIONS SEED. Ends with 0 and "right" if all is well.
#define TORCHFLEET_TCP_SEGMENT 512
#include "threads.h"

#include <cstdio>
#include <cstdlib>
#include <random>

#include "memory.cpp"
#include "operation.cpp"
#include "process.cpp"
#include "shared.cpp"
#include "signature.cpp"
#include "tcp_connection.cpp"
#include "tcp_ring.cpp"
#include "tensors.cpp"
#include "yield.cpp"

namespace torchfleet {
const char* name_of_reduction(c10d::ReduceOp::RedOpType) {
  return "SUM";
}

// It tells in which order the ranks are reduced.
void reduce_local(const Reduction&, const void* in, void* inout, int64_t count) {
  const auto* from = static_cast<const uint32_t*>(in);
  auto* to = static_cast<uint32_t*>(inout);
  for (int64_t i = 0; i < count; ++i) {
    to[i] += 3 * from[i];
  }
}
}  // namespace torchfleet

using namespace torchfleet;

namespace {
constexpr int kOperations = 40;  // of a group
enum End { kDisagrees, kLeaves, kIsSilent, kEnds };

void require(bool good, const std::string& what) {
  if (!good) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::_Exit(1);
  }
}

// Threads of which a stranger is between the first rounds of a group: it knows where they listen, and not their secrets.
class Watched : public Threads {
 public:
  using Threads::Threads;
  std::vector<std::string> all_gather(const std::string& own) override {
    std::vector<std::string> all = Threads::all_gather(own);
    if (own.size() == sizeof(Contact) && rank() == 0) {
      for (std::string& text : all) {
        Contact contact;
        std::memcpy(&contact, text.data(), sizeof contact);
        for (int silent = 0; silent < 8; ++silent) {
          strangers_.push_back(connected_silently(contact));
        }
        for (int slow = 0; slow < 8; ++slow) {  // each says a byte, and no more
          strangers_.push_back(connected_silently(contact));
          require(send(strangers_.back().number(), "x", 1, MSG_NOSIGNAL) == 1, "a stranger cannot send");
        }
        contact.secret.fill(7);
        strangers_.push_back(connected(contact));  // which sends that
        connected(contact);                        // and leaves at once
      }
    }
    Threads::all_gather("");
    return all;
  }

 private:
  static Socket connected_silently(const Contact& to) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::atoi(to.port)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Socket made(socket(AF_INET, SOCK_STREAM, 0));
    require(connect(made.number(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "a stranger cannot connect");
    return made;
  }
  std::vector<Socket> strangers_;
};

uint32_t element(int rank, int64_t place, int64_t number) {
  return static_cast<uint32_t>((rank + 1) * ((place + number) % 1009 + 1));
}

// What all ranks have to find. Part p of a long tensor begins with rank p, of a short one of two ranks with the second.
uint32_t reduced(int ranks, int64_t place, int64_t count, int64_t number) {
  int64_t part = 0;
  while (place >= (part + 1) * count / ranks) {
    ++part;
  }
  const bool at_once = ranks == 2 && count * 4 <= TORCHFLEET_TCP_SEGMENT;
  const int first = at_once ? 1 : static_cast<int>(part);
  uint32_t found = element(first, place, number);
  for (int step = 1; step < ranks; ++step) {
    found = element((first + step) % ranks, place, number) + 3 * found;
  }
  return found;
}

void run(TcpRing& ring, int rank, int ranks, int64_t count, int64_t number, int64_t asked) {
  std::vector<uint32_t> data(count);
  for (int64_t i = 0; i < count; ++i) {
    data[i] = element(rank, i, number);
  }
  const Reduction how{at::kInt, at::kInt, c10d::ReduceOp::SUM};
  ring.compare(Signature(Signature::kAllReduce, at::kInt, asked, -1, c10d::ReduceOp::SUM));
  ring.all_reduce({reinterpret_cast<char*>(data.data()), count, sizeof(uint32_t)}, how);
  for (int64_t i = 0; i < count; ++i) {
    if (data[i] != reduced(ranks, i, count, number)) {
      require(false, c10::str("rank ", rank, ", operation ", number, ": a wrong number at ", i));
    }
  }
}

// The end of a group, which every rank has to notice by itself.
void end(std::unique_ptr<TcpRing> ring, Threads& threads, End how, int odd_one, int64_t number) {
  const int rank = threads.rank(), ranks = threads.size();
  const bool is_odd = rank == odd_one;
  if (how == kEnds) {
    return;
  }
  std::string found;
  if (how == kLeaves && is_odd) {
    ring.reset();
  } else if (how != kIsSilent || !is_odd) {
    Operation operation(how == kIsSilent ? std::chrono::milliseconds(200) : std::chrono::minutes(5));
    try {
      run(*ring, rank, ranks, 20'000, number, how == kDisagrees && is_odd ? 7 : 20'000);
    } catch (const TimedOut& over) {
      found = c10::str("waits for ", over.missing.at(0));
    } catch (const std::exception& error) {
      found = error.what();
    }
    ring->fail();
    const std::string expected = how == kDisagrees ? "rank " + std::to_string(odd_one) + ": all_reduce (SUM) of 7 Int"
                                 : how == kLeaves  ? "failed, or its process has ended"
                                                   : c10::str("waits for ", odd_one);
    const bool heard_first = how == kIsSilent && found.find("failed, or its process has ended") != std::string::npos;
    require(heard_first || found.find(expected) != std::string::npos, c10::str("rank ", rank, ": ", found, "; not ", expected));
  }
  threads.all_gather("");  // no connection ends before all have noticed
}

void play(Table& table, int rank, int64_t operations, uint64_t seed) {
  Watched threads(table, rank);
  std::vector<int> numbers(table.size());
  for (int other = 0; other < table.size(); ++other) {
    numbers[other] = other;
  }
  for (int64_t number = 0; number < operations;) {
    auto ring = TcpRing::among(threads, numbers, nullptr);
    require(ring != nullptr, "the ranks do not reach each other");
    threads.Threads::all_gather("");
    for (const int64_t last = number + kOperations; number < last; ++number) {
      std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(number));  // the same on all ranks
      const int64_t longest[] = {2, 300, 3000, 100'000};
      const auto count = static_cast<int64_t>(random() % longest[random() % 4]);
      if (random() % 8 == 0 && static_cast<int>(random() % table.size()) == rank) {
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
      Operation operation(std::chrono::minutes(5));
      run(*ring, rank, table.size(), count, number, count);
    }
    const int64_t group = number / kOperations;
    end(std::move(ring), threads, static_cast<End>(group % 4), static_cast<int>(group / 4 % table.size()), number);
  }
}

// One rank has no address: its neighbours have no ring, and do not wait for ever.
void play_unreachable(Table& table, int rank) {
  class Unreachable : public Threads {
   public:
    using Threads::Threads;
    std::vector<std::string> all_gather(const std::string& own) override {
      std::string told = own;
      if (own.size() == sizeof(Contact) && rank() == 0) {
        told[0] = '\0';
      }
      return Threads::all_gather(told);
    }
  };
  Unreachable threads(table, rank);
  const auto ring = TcpRing::among(threads, std::vector<int>(table.size()), nullptr);
  require(ring == nullptr || (rank != 0 && rank != table.size() - 1), "a ring that cannot be");
}
}  // namespace

int main(int words, char** word) {
  if (words != 4) {
    std::fprintf(stderr, "usage: tcp_stress RANKS OPERATIONS SEED\n");
    return 2;
  }
  setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  Table table(std::atoi(word[1]));
  const auto all = [&](auto function) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < table.size(); ++rank) {
      threads.emplace_back(function, rank);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  };
  all([&](int rank) { play(table, rank, std::atol(word[2]), std::strtoull(word[3], nullptr, 10)); });
  all([&](int rank) { play_unreachable(table, rank); });
  std::puts("right");
  return 0;
}
