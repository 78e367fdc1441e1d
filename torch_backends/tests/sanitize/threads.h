// Threads that are the ranks of a group, and how they find each other.
#pragma once

#include "rendezvous.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace torchfleet {

// A store of the threads.
class Table {
 public:
  explicit Table(int size) : told_(size) {}

  std::vector<std::string> all_gather(int rank, const std::string& own) {
    std::unique_lock<std::mutex> lock(mutex_);
    told_[rank] = own;
    const int64_t round = round_;
    if (++there_ == static_cast<int>(told_.size())) {
      there_ = 0;
      ++round_;
      last_ = told_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    return last_;
  }
  int size() const { return static_cast<int>(told_.size()); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> told_, last_;
  int there_ = 0;
  int64_t round_ = 0;
};

class Threads : public Rendezvous {
 public:
  Threads(Table& table, int rank) : table_(table), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return table_.size(); }
  std::vector<std::string> all_gather(const std::string& own) override { return table_.all_gather(rank_, own); }

 private:
  Table& table_;
  const int rank_;
};

}  // namespace torchfleet
