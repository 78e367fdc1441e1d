#include "mpi_backend.h"

#include "operation.h"
#include "progress.h"

#include <torch/csrc/distributed/c10d/exception.h>

#include <thread>

namespace torchfleet {

using c10d::OpType;

MPIBackend::MPIBackend(MPI_Comm comm, std::chrono::milliseconds timeout)
    : GroupBackend(std::make_shared<MPITransport>(comm), rank_in(comm), size_of(comm), timeout) {
  TORCHFLEET_MPI(MPI_Comm_dup(comm, &messages_));
  TORCHFLEET_MPI(MPI_Comm_set_errhandler(messages_, MPI_ERRORS_RETURN));
  mailbox_ = std::make_shared<Mailbox>(messages_);
}

// All ranks of a group call this when it is destroyed. MPICH supports only some 2,000 communicators at a time. One on which
// something is under way stays.
void MPIBackend::shutdown() {
  worker_.close();
  if (messages_ == MPI_COMM_NULL || !is_own_process() || worker_.is_broken()) {
    return;
  }
  if (!Progress::of_process().has_any_of(messages_)) {
    MPI_Comm comm = messages_;
    TORCHFLEET_MPI(MPI_Comm_free(&comm));
  }
  static_cast<const MPITransport&>(*transport_).close();
  messages_ = MPI_COMM_NULL;
}

void MPIBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  // Every rank reports to rank 0, and rank 0 answers when all have reported: so it can name the missing ranks.
  constexpr int kTag = (1 << 15) - 2;  // MPI promises tags up to 32767
  auto token = at::zeros({1}, at::kByte);
  const auto timeout = finite(opts.timeout == c10d::kUnsetTimeout ? timeout_ : opts.timeout);
  const auto transfer = [&](OpType type, int peer) {
    Tensors tensors{token.clone()};
    return type == OpType::SEND ? send(tensors, peer, kTag) : recv(tensors, peer, kTag);
  };
  if (rank_ != 0) {
    transfer(OpType::SEND, 0)->wait(timeout);
    transfer(OpType::RECV, 0)->wait(timeout);
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<WorkPtr> heard;
  for (int rank = 1; rank < size_; ++rank) {
    heard.push_back(transfer(OpType::RECV, rank));
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) {
    while (!heard[rank - 1]->isCompleted() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!heard[rank - 1]->isSuccess()) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    TORCH_CHECK_WITH(DistBackendError, false, "backend mpi: monitored_barrier: not there within ", timeout.count(),
                     " ms: rank ", c10::Join(", ", missing));
  }
  for (int rank = 1; rank < size_; ++rank) {
    transfer(OpType::SEND, rank)->wait(timeout);
  }
}

WorkPtr MPIBackend::post(OpType type, const at::Tensor& tensor, int peer, int tag) {
  check_process();
  TORCH_CHECK_WITH(DistBackendError, messages_ != MPI_COMM_NULL, "backend mpi: this group was destroyed");
  TORCH_CHECK_VALUE(tag >= 0, "backend mpi: got tag ", tag, "; give one that is not negative");
  const at::Tensor buffer = dense(tensor);
  const Piece piece{peer, bytes_of(buffer), nbytes_of(buffer)};
  const bool sends = type == OpType::SEND;
  std::vector<Request> requests;
  if (sends) {
    std::lock_guard<std::mutex> lock(sending_);
    requests = post_message(messages_, piece, tag);
  }
  auto message = c10::make_intrusive<Message>(type, rank_, messages_, buffer, sends ? buffer : tensor, std::move(requests),
                                              timeout_, name_of(type, ++message_count_), sends ? nullptr : mailbox_->add(piece, tag));
  Progress::of_process().add(message);
  return tracked(std::move(message));
}

WorkPtr MPIBackend::send(Tensors& tensors, int to, int tag) {
  return post(OpType::SEND, single(tensors), checked_rank("rank", to), tag);
}

WorkPtr MPIBackend::recv(Tensors& tensors, int from, int tag) {
  return post(OpType::RECV, single(tensors), checked_rank("rank", from), tag);
}

WorkPtr MPIBackend::recvAnysource(Tensors& tensors, int tag) {
  return post(OpType::RECVANYSOURCE, single(tensors), MPI_ANY_SOURCE, tag);
}

}  // namespace torchfleet
