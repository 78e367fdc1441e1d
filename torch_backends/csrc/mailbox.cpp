#include "mailbox.h"

#include <algorithm>

namespace torchfleet {

std::shared_ptr<Receive> Mailbox::add(const Piece& piece, int tag) {
  auto receive = std::make_shared<Receive>(Receive{shared_from_this(), piece, tag});
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(receive);
  return receive;
}

bool Mailbox::try_match(const Receive& receive) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (receive.is_matched) {
    return true;
  }
  const auto first = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return other->piece.rank == receive.piece.rank && other->tag == receive.tag;
  });
  const std::shared_ptr<Receive> found = *first;
  MPI_Message message;
  MPI_Status status;
  if (!scratch_is_free(*found) || !probe(receive, &message, &status)) {
    return false;
  }
  const int64_t before = std::min(found->arrived, found->piece.bytes);
  const Piece rest{status.MPI_SOURCE, found->piece.data + before, found->piece.bytes - before};
  const Request part = post_matched(rest, message, status);
  found->piece.rank = rest.rank;
  found->arrived += part.bytes;
  found->is_matched = is_last(part);
  found->requests.push_back(part);
  if (found->is_matched) {
    waiting_.erase(first);
  } else {
    std::rotate(waiting_.begin(), first, first + 1);  // the other parts are its too
  }
  return receive.is_matched;
}

// What is of another size is received one part after the other, so that it takes no more memory than one.
bool Mailbox::scratch_is_free(Receive& receive) {
  if (!receive.requests.empty() && receive.requests.back().scratch) {
    int flag = 0;
    TORCHFLEET_MPI(MPI_Test(&receive.requests.back().request, &flag, MPI_STATUS_IGNORE));
    if (flag == 0) {
      return false;
    }
    receive.requests.pop_back();
  }
  return true;
}

bool Mailbox::probe(const Receive& receive, MPI_Message* message, MPI_Status* status) const {
  int source = receive.piece.rank, flag = 0;
  if (source == MPI_ANY_SOURCE) {
    TORCHFLEET_MPI(MPI_Iprobe(MPI_ANY_SOURCE, receive.tag, comm_, &flag, status));
    source = status->MPI_SOURCE;
    const auto wants_it = [&](const auto& other) { return other->piece.rank == source && other->tag == receive.tag; };
    if (flag == 0 || std::any_of(waiting_.begin(), waiting_.end(), wants_it)) {
      return false;
    }
  }
  TORCHFLEET_MPI(MPI_Improbe(source, receive.tag, comm_, &flag, message, status));
  return flag != 0;
}

void Mailbox::drop(const Receive& receive) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const auto& other) { return other.get() == &receive; };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_it), waiting_.end());
}

}  // namespace torchfleet
