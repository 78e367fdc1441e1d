#include "shm_backend.h"

namespace torchfleet {

ShmBackend::ShmBackend(const StorePtr& store, int rank, const std::vector<int>& nodes, std::chrono::milliseconds timeout,
                       BackendPtr gloo)
    : GroupBackend(std::make_shared<ShmTransport>(store, rank, nodes, gloo), rank, static_cast<int>(nodes.size()), timeout),
      gloo_(std::move(gloo)) {}

void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  gloo_->monitoredBarrier(opts, wait_all_ranks);
}

WorkPtr ShmBackend::send(Tensors& tensors, int to, int tag) {
  return requested(gloo_->send(tensors, to, tag));
}

WorkPtr ShmBackend::recv(Tensors& tensors, int from, int tag) {
  return requested(gloo_->recv(tensors, from, tag));
}

WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return requested(gloo_->recvAnysource(tensors, tag));
}

}  // namespace torchfleet
