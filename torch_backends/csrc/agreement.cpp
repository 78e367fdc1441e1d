#include "agreement.h"

#include "operation.h"
#include "patience.h"

namespace torchfleet {

Agreement::Agreement(MPI_Comm comm, const std::vector<int>& ranks, Signature own, const Shared* node)
    : ranks_(ranks), words_(std::make_shared<Words>()) {
  int size = 0;
  TORCHFLEET_MPI(MPI_Comm_size(comm, &size));
  words_->own = own.word();
  words_->all.resize(size);
  Operation::hold(words_);
  TORCHFLEET_MPI(MPI_Iallgather(&words_->own, 1, MPI_UINT64_T, words_->all.data(), 1, MPI_UINT64_T, comm, &request_));
  if (Operation::current() != nullptr) {
    Operation::current()->watch([this, node] {
      look();
      if (node != nullptr) {
        node->throw_if_failed();
      }
    });
  }
}

Agreement::~Agreement() {
  if (Operation::current() != nullptr) {
    Operation::current()->watch(nullptr);
  }
}

bool Agreement::look() {
  if (request_ == MPI_REQUEST_NULL) {
    return true;
  }
  int flag = 0;
  TORCHFLEET_MPI(MPI_Test(&request_, &flag, MPI_STATUS_IGNORE));
  if (flag != 0) {
    refuse_different(words_->all, ranks_);
  }
  return flag != 0;
}

void Agreement::conclude() {
  for (Patience patience; !look(); patience.rest()) {
  }
}

}  // namespace torchfleet
