#include "title.h"

#include "name.h"

namespace torchfleet {

const char* title_of(c10d::OpType type) {
  using c10d::OpType;
  switch (type) {
    case OpType::BROADCAST:
      return TORCHFLEET_NAME ":broadcast";
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return TORCHFLEET_NAME ":all_reduce";
    case OpType::REDUCE:
      return TORCHFLEET_NAME ":reduce";
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
      return TORCHFLEET_NAME ":all_gather";
    case OpType::GATHER:
      return TORCHFLEET_NAME ":gather";
    case OpType::SCATTER:
      return TORCHFLEET_NAME ":scatter";
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
      return TORCHFLEET_NAME ":reduce_scatter";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return TORCHFLEET_NAME ":all_to_all";
    case OpType::SEND:
      return TORCHFLEET_NAME ":send";
    case OpType::RECV:
      return TORCHFLEET_NAME ":recv";
    case OpType::RECVANYSOURCE:
      return TORCHFLEET_NAME ":recvAnySource";
    default:
      return TORCHFLEET_NAME ":barrier";
  }
}

}  // namespace torchfleet
