// MPI moves messages only while this process calls it. One thread of the process does so while there are messages under
// way: the program may compute meanwhile, or wait in shared memory for a rank that waits for the message.
#pragma once

#include "message.h"
#include "world.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace torchfleet {

class Progress {
 public:
  // Never destroyed.
  static Progress& of_process();

  // Owns the message until it is over, also if its group and whoever asked for it are gone: MPI uses its memory.
  void add(c10::intrusive_ptr<MessageWork> message);

  // Whether a message of this communicator is under way.
  bool has_any_of(MPI_Comm comm);

  // At the end of the process, and again if messages were added since: waits for messages that are being sent, at most so long,
  // and gives up those that nobody has sent. False if some could not be sent.
  bool close(std::chrono::milliseconds most);

 private:
  void serve();
  void advance_all();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<c10::intrusive_ptr<MessageWork>> messages_;
  std::chrono::steady_clock::time_point last_news_;  // when a message was added or was over
  std::thread thread_;
  bool idle_ = false, closed_ = false;
};

}  // namespace torchfleet
