#include "signature_check.h"

#include "operation.h"
#include "backoff.h"

namespace torchfleet {

SignatureCheck::SignatureCheck(MPI_Comm comm, const std::vector<int>& ranks, Signature own, const Shared* node)
    : ranks_(ranks), words_(std::make_shared<std::vector<uint64_t>>(size_of(comm))) {
  (*words_)[rank_in(comm)] = own.word();
  Operation::hold(words_);
  TORCHFLEET_MPI(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, words_->data(), 1, MPI_UINT64_T, comm, &request_));
  Operation::watch([this, node] {
    test();
    if (node != nullptr) {
      node->throw_if_failed();
    }
  });
}

SignatureCheck::~SignatureCheck() {
  Operation::watch(nullptr);
}

bool SignatureCheck::test() {
  if (request_ == MPI_REQUEST_NULL) {
    return true;
  }
  int flag = 0;
  TORCHFLEET_MPI(MPI_Test(&request_, &flag, MPI_STATUS_IGNORE));
  if (flag != 0) {
    refuse_different(*words_, ranks_);
  }
  return flag != 0;
}

void SignatureCheck::wait() {
  for (Backoff backoff; !test(); backoff.pause()) {
  }
}

}  // namespace torchfleet
