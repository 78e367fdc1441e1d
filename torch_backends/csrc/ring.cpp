#include "ring.h"

#include "operation.h"
#include "backoff.h"

#include <algorithm>
#include <memory>
#include <vector>

#ifndef TORCHFLEET_RING_SEGMENT  // a test makes it small
#define TORCHFLEET_RING_SEGMENT (512 << 10)
#endif

namespace torchfleet {

namespace {
constexpr int kRingTag = 0;

struct Part {
  int rank;  // of the other one
  char* data;
  int64_t bytes;
};

// A ring all-reduce of long data in segments: while one segment is transferred, the previous one is reduced. Each element
// is reduced in one order, so all ranks get the same bits. MPI_Iallreduce does not overlap the two, and makes progress only
// when it is polled.
class Ring {
 public:
  Ring(MPI_Comm comm, char* data, int64_t count, const Reduction& how, int64_t size)
      : comm_(comm), data_(data), count_(count), how_(how), size_(size), rank_(rank_in(comm)), ranks_(size_of(comm)) {
    const int64_t longest = (count + ranks_ - 1) / ranks_;
    segments_ = (longest + kSegment / size - 1) / (kSegment / size);
    items_ = (2 * ranks_ - 2) * segments_;
    if (!room_) {
      room_ = std::make_shared<std::vector<char>>(kWindow * kSegment);
    }
    Operation::hold(room_);
  }

  void go() {
    Backoff backoff;
    while (received_ < items_ || sent_ < items_) {
      post();
      if (advance()) {
        backoff = Backoff();
      } else {
        backoff.pause();
      }
    }
  }

 private:
  static constexpr int64_t kSegment = TORCHFLEET_RING_SEGMENT;  // bytes
  static constexpr int64_t kWindow = 4;                         // segments in flight

  // Item by item: segment `item % segments_` of step `item / segments_`. The first half of the steps reduces, after which
  // each rank has one finished part; the second half distributes all parts to all ranks.
  bool reduces(int64_t item) const { return item < (ranks_ - 1) * segments_; }
  Part part(int64_t item, int ahead, int peer) const {
    const int64_t step = item / segments_ + ahead, part = ((rank_ - step) % ranks_ + ranks_) % ranks_;
    const int64_t first = part * count_ / ranks_ + item % segments_ * (kSegment / size_);
    const int64_t end = std::min((part + 1) * count_ / ranks_, first + kSegment / size_);
    return {static_cast<int>((peer + ranks_) % ranks_), data_ + first * size_, std::max<int64_t>(0, end - first) * size_};
  }

  void post() {
    for (; receiving_ < std::min(items_, received_ + kWindow); ++receiving_) {
      if (!reduces(receiving_) && receiving_ - (ranks_ - 1) * segments_ >= sent_) {
        break;  // its old content is still being sent
      }
      Part to = part(receiving_, 1, rank_ - 1);
      if (reduces(receiving_)) {
        to.data = room_->data() + receiving_ % kWindow * kSegment;
      }
      TORCHFLEET_MPI(MPI_Irecv(to.data, static_cast<int>(to.bytes), MPI_BYTE, to.rank, kRingTag, comm_,
                               &receives_[receiving_ % kWindow]));
    }
    for (; sending_ < std::min(items_, sent_ + kWindow) && sending_ - segments_ < received_; ++sending_) {
      const Part from = part(sending_, 0, rank_ + 1);
      TORCHFLEET_MPI(MPI_Isend(from.data, static_cast<int>(from.bytes), MPI_BYTE, from.rank, kRingTag, comm_,
                               &sends_[sending_ % kWindow]));
    }
  }

  bool advance() {
    int received = 0, sent = 0;
    if (received_ < receiving_) {
      TORCHFLEET_MPI(MPI_Test(&receives_[received_ % kWindow], &received, MPI_STATUS_IGNORE));
    }
    if (sent_ < sending_) {
      TORCHFLEET_MPI(MPI_Test(&sends_[sent_ % kWindow], &sent, MPI_STATUS_IGNORE));
    }
    if (received != 0 && reduces(received_)) {
      const Part to = part(received_, 1, rank_ - 1);
      reduce_local(how_, room_->data() + received_ % kWindow * kSegment, to.data, to.bytes / size_);
    }
    received_ += received;
    sent_ += sent;
    return received + sent > 0;
  }

  MPI_Comm comm_;
  char* data_;
  const int64_t count_;
  const Reduction how_;
  const int64_t size_;
  const int rank_, ranks_;
  int64_t segments_, items_;
  int64_t receiving_ = 0, received_ = 0, sending_ = 0, sent_ = 0;  // items that are posted, and that are done
  MPI_Request receives_[kWindow], sends_[kWindow];
  static thread_local std::shared_ptr<std::vector<char>> room_;
};
thread_local std::shared_ptr<std::vector<char>> Ring::room_;
}  // namespace

void reduce_in_ring(MPI_Comm comm, char* data, int64_t count, const Reduction& how, int64_t size) {
  Ring(comm, data, count, how, size).go();
}

}  // namespace torchfleet
