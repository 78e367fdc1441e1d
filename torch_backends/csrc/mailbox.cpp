#include "mailbox.h"

#include <algorithm>

namespace torchfleet {

std::shared_ptr<Receive> Mailbox::add(const Piece& piece, int tag) {
  auto receive = std::make_shared<Receive>(Receive{shared_from_this(), piece, tag});
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(receive);
  return receive;
}

bool Mailbox::look(const Receive& receive) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (receive.is_found) {
    return true;
  }
  const auto first = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return other->piece.rank == receive.piece.rank && other->tag == receive.tag;
  });
  MPI_Message message;
  MPI_Status status;
  if (!find(receive, &message, &status)) {
    return false;
  }
  const std::shared_ptr<Receive> found = *first;
  waiting_.erase(first);
  found->piece.rank = status.MPI_SOURCE;
  found->requests = post_found(comm_, found->piece, found->tag, message, status);
  found->is_found = true;
  return receive.is_found;
}

bool Mailbox::find(const Receive& receive, MPI_Message* message, MPI_Status* status) const {
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
