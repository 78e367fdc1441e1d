#include "shm_backend.h"

namespace torchfleet {

ShmBackend::ShmBackend(const StorePtr& store, int rank, const std::vector<int>& nodes, std::chrono::milliseconds timeout,
                       BackendPtr gloo)
    : GroupBackend(std::make_shared<ShmTransport>(store, rank, nodes, gloo), rank, static_cast<int>(nodes.size()), timeout),
      gloo_(std::move(gloo)) {}

// gloo counts its collectives, and ours between nodes are made of them: this one waits for its turn among them.
void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  check_process();
  const auto by_gloo = [gloo = gloo_, opts, wait_all_ranks](const Transport&) { gloo->monitoredBarrier(opts, wait_all_ranks); };
  if (transport_->shares_memory()) {
    by_gloo(*transport_);
  } else {
    submit(c10d::OpType::BARRIER, {}, {}, opts.timeout, by_gloo)->wait();
  }
}

WorkPtr ShmBackend::send(Tensors& tensors, int to, int tag) {
  check_process();
  return tracked(gloo_->send(tensors, checked_rank("rank", to), tag));
}

WorkPtr ShmBackend::recv(Tensors& tensors, int from, int tag) {
  check_process();
  return tracked(gloo_->recv(tensors, checked_rank("rank", from), tag));
}

WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  check_process();
  return tracked(gloo_->recvAnysource(tensors, tag));
}

}  // namespace torchfleet
