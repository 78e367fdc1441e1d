// What the ring takes of MPI, in its names, among threads of one process, so that a sanitizer sees who touches memory that is
// under way. A thread of its own carries the data: as with an MPI, it reads a buffer at any time until the send is over, also
// when the receive is over, and writes one at any time until the receive is over.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>

struct Message {
  char* data;
  int bytes;
  bool over = false;
};

class Network {
 public:
  explicit Network(int size, unsigned seed) : size(size), random_(seed), carrier_([this] { carry(); }) {}
  ~Network() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    carrier_.join();
  }

  using Key = std::tuple<int, int, int>;  // sender, receiver, tag
  std::shared_ptr<Message> post(bool sends, Key key, const void* data, int bytes) {
    auto message = std::make_shared<Message>(Message{static_cast<char*>(const_cast<void*>(data)), bytes});
    std::lock_guard<std::mutex> lock(mutex_);
    (sends ? sent_ : expected_)[key].push_back(message);
#ifdef TORCHFLEET_HASTY  // a send is over before it is: the rank then writes what is still read, which the sanitizer has to report
    message->over = sends;
#endif
    changed_.notify_all();
    return message;
  }
  bool is_over(const Message& message) {
    std::lock_guard<std::mutex> lock(mutex_);
    return message.over;
  }

  const int size;

 private:
  // A pair that has come together; a null one if there is none. With the lock held.
  std::pair<std::shared_ptr<Message>, std::shared_ptr<Message>> taken() {
    for (auto& [key, sends] : sent_) {
      auto& receives = expected_[key];
      if (!sends.empty() && !receives.empty() && random_() % 2 == 0) {
        auto found = std::make_pair(sends.front(), receives.front());
        sends.pop_front();
        receives.pop_front();
        return found;
      }
    }
    return {};
  }

  void carry() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (int idle = 0; !closed_; ++idle) {
      auto [from, to] = taken();
      if (from) {
        deliver(lock, from, to);
        idle = 0;
      } else if (idle > 8 && !delivered_.empty()) {
        end_send(lock);
      } else {
        changed_.wait_for(lock, std::chrono::microseconds(20));
      }
    }
  }

  void deliver(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Message>& from, const std::shared_ptr<Message>& to) {
    lock.unlock();
    if (from->bytes != to->bytes) {
      end_with("a message of another size came");
    }
    std::memcpy(to->data, from->data, from->bytes);
    const std::string sent(from->data, from->bytes);
    lock.lock();
    to->over = true;
    from->over = from->over || random_() % 2 == 0;
    if (!from->over) {
      delivered_.emplace_back(from, sent);
    }
  }

  void end_send(std::unique_lock<std::mutex>& lock) {
    const auto [from, sent] = delivered_.front();
    delivered_.pop_front();
    lock.unlock();
    if (std::memcmp(from->data, sent.data(), sent.size()) != 0) {
      end_with("a buffer was written to while it was being sent");
    }
    lock.lock();
    from->over = true;
  }

  static void end_with(const char* why) {
    std::fprintf(stderr, "%s\n", why);
    std::_Exit(1);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::deque<std::shared_ptr<Message>>> sent_, expected_;
  std::deque<std::pair<std::shared_ptr<Message>, std::string>> delivered_;  // sends that are not over, and what was in them
  std::mt19937 random_;
  bool closed_ = false;
  std::thread carrier_;  // last: it uses all others
};

struct Endpoint {
  Network* network;
  int rank;
};
using MPI_Comm = const Endpoint*;
struct MPI_Request {
  Network* network = nullptr;
  std::shared_ptr<Message> message;  // null: none
};
using MPI_Datatype = int;
constexpr MPI_Datatype MPI_BYTE = 0;
constexpr int MPI_SUCCESS = 0;
constexpr void *MPI_STATUS_IGNORE = nullptr, *MPI_STATUSES_IGNORE = nullptr;

inline int MPI_Comm_rank(MPI_Comm comm, int* rank) {
  *rank = comm->rank;
  return MPI_SUCCESS;
}

inline int MPI_Comm_size(MPI_Comm comm, int* size) {
  *size = comm->network->size;
  return MPI_SUCCESS;
}

inline int MPI_Isend(const void* data, int count, MPI_Datatype, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  *request = {comm->network, comm->network->post(true, {comm->rank, to, tag}, data, count)};
  return MPI_SUCCESS;
}

inline int MPI_Irecv(void* data, int count, MPI_Datatype, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  *request = {comm->network, comm->network->post(false, {from, comm->rank, tag}, data, count)};
  return MPI_SUCCESS;
}

inline int MPI_Test(MPI_Request* request, int* flag, void*) {
  *flag = !request->message || request->network->is_over(*request->message);
  if (*flag != 0) {
    request->message.reset();
  }
  return MPI_SUCCESS;
}

inline int MPI_Testall(int count, MPI_Request* requests, int* flag, void*) {
  *flag = 1;
  for (int i = 0; i < count; ++i) {
    int one = 0;
    MPI_Test(&requests[i], &one, nullptr);
    *flag = *flag & one;
  }
  return MPI_SUCCESS;
}
