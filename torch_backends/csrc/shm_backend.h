// torch's collectives by shared memory, and its messages by gloo: a c10d backend that needs no MPI.
#pragma once

#include "backend.h"
#include "shm_transport.h"

#include <chrono>
#include <vector>

namespace torchfleet {

class ShmBackend : public GroupBackend {
 public:
  // Called by all ranks of the group; as for ShmTransport.
  ShmBackend(const StorePtr& store, int rank, const std::vector<int>& nodes, std::chrono::milliseconds timeout, BackendPtr gloo);

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  const BackendPtr gloo_;
};

}  // namespace torchfleet
