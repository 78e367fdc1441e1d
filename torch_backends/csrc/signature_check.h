// Compares what the ranks ask for in a collective over MPI, while its data is in transit.
#pragma once

#include "shared.h"
#include "signature.h"
#include "world.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace torchfleet {

class SignatureCheck {
 public:
  // All ranks of `comm` begin with this. `ranks`: their numbers in the group, for error texts; empty if they are the same.
  // `node`: if a rank that shares this memory fails, whatever waits in this thread throws too; may be null.
  SignatureCheck(MPI_Comm comm, const std::vector<int>& ranks, Signature own, const Shared* node = nullptr);
  ~SignatureCheck();
  SignatureCheck(const SignatureCheck&) = delete;

  // Waits until all ranks have told theirs. Throws std::runtime_error that names them if they differ; so does whatever
  // waits in this thread meanwhile.
  void wait();

 private:
  bool test();

  const std::vector<int>& ranks_;
  std::shared_ptr<std::vector<uint64_t>> words_;  // of each rank
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace torchfleet
