#include "mpi_backend.h"

#include "operation.h"
#include "progress.h"

#include <torch/csrc/distributed/c10d/exception.h>

#include <thread>

namespace torchfleet {

using c10d::OpType;

namespace {
constexpr int kBarrierTag = (1 << 15) - 2;  // MPI promises tags up to 32767
}  // namespace

MPIBackend::MPIBackend(MPI_Comm comm, std::chrono::milliseconds timeout)
    : GroupBackend(std::make_shared<MPITransport>(comm), rank_in(comm), size_of(comm), timeout) {
  TORCHFLEET_MPI(MPI_Comm_dup(comm, &messages_));
  TORCHFLEET_MPI(MPI_Comm_set_errhandler(messages_, MPI_ERRORS_RETURN));
  mailbox_ = std::make_shared<Mailbox>(messages_);
}

// All ranks of a group call this when it is destroyed. MPICH supports only some 2,000 communicators at a time. One on which
// something is under way stays.
void MPIBackend::shutdown() {
  GroupBackend::shutdown();
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

std::vector<int> MPIBackend::unheard(std::vector<int> ranks, int64_t number, std::chrono::steady_clock::time_point deadline) {
  struct Heard {
    at::Tensor number = at::zeros({1}, at::kLong);
    c10::intrusive_ptr<MessageWork> work;
  };
  std::vector<Heard> heard(ranks.size());
  const auto listen = [&](size_t i) { heard[i].work = post(OpType::RECV, heard[i].number, ranks[i], kBarrierTag); };
  for (size_t i = 0; i < ranks.size(); ++i) {
    listen(i);
  }
  while (!ranks.empty() && std::chrono::steady_clock::now() < deadline) {
    for (size_t i = ranks.size(); i-- > 0;) {
      if (!heard[i].work->isCompleted()) {
        continue;
      }
      heard[i].work->wait();
      if (heard[i].number.item<int64_t>() < number) {
        listen(i);  // it is of a barrier that failed here
      } else {
        ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i));
        heard.erase(heard.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  for (const Heard& one : heard) {
    one.work->give_up();
  }
  return ranks;
}

// Every rank sends the number of its barrier to rank 0, and rank 0 its own when all have: so it can name the missing ranks.
void MPIBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  const auto timeout = finite(opts.timeout == c10d::kUnsetTimeout ? timeout_ : opts.timeout);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const int64_t number = ++monitored_barriers_;
  const auto send_to = [&](int rank) { post(OpType::SEND, at::full({1}, number, at::kLong), rank, kBarrierTag)->wait(timeout); };
  std::vector<int> others;
  for (int rank = 1; rank < size_; ++rank) {
    others.push_back(rank);
  }
  if (rank_ != 0) {
    send_to(0);
    others = {0};
  }
  const std::vector<int> missing = unheard(others, number, deadline);
  TORCH_CHECK_WITH(DistBackendError, missing.empty(), "backend mpi: monitored_barrier: not there within ", timeout.count(),
                   " ms: rank ", c10::Join(", ", missing));
  if (rank_ == 0) {
    for (const int rank : others) {
      send_to(rank);
    }
  }
}

c10::intrusive_ptr<MessageWork> MPIBackend::post(OpType type, const at::Tensor& tensor, int peer, int tag) {
  check_process();
  TORCH_CHECK_WITH(DistBackendError, messages_ != MPI_COMM_NULL, "backend mpi: this group was destroyed");
  TORCH_CHECK_VALUE(tag >= 0, "backend mpi: got tag ", tag, "; give one that is not negative");
  const bool sends = type == OpType::SEND;
  const Buffer copied = buffer(tensor, sends ? Buffer::kRead : Buffer::kWritten);
  const at::Tensor& memory = copied.memory;
  const Piece piece{peer, bytes_of(memory), nbytes_of(memory)};
  copied.load();
  std::vector<Request> requests;
  if (sends) {
    std::lock_guard<std::mutex> lock(sending_);
    requests = post_message(messages_, piece, tag);
  }
  auto message = c10::make_intrusive<MessageWork>(type, rank_, messages_, memory, sends ? memory : tensor, std::move(requests),
                                                  timeout_, name_of(type, ++message_count_),
                                                  sends ? nullptr : mailbox_->add(piece, tag));
  Progress::of_process().add(message);
  return message;
}

WorkPtr MPIBackend::send(Tensors& tensors, int to, int tag) {
  return tracked(post(OpType::SEND, single(tensors), checked_rank("rank", to), tag));
}

WorkPtr MPIBackend::recv(Tensors& tensors, int from, int tag) {
  return tracked(post(OpType::RECV, single(tensors), checked_rank("rank", from), tag));
}

WorkPtr MPIBackend::recvAnysource(Tensors& tensors, int tag) {
  return tracked(post(OpType::RECVANYSOURCE, single(tensors), MPI_ANY_SOURCE, tag));
}

}  // namespace torchfleet
