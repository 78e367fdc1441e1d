#include "types.h"

#include <array>

namespace torchfleet {

namespace {
using Kind = c10d::ReduceOp::RedOpType;

bool is_half(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

template <at::ScalarType type, Kind kind>
void user_function(void* in, void* inout, int* count, MPI_Datatype*) {
  reduce_local({type, type, kind}, in, inout, *count);
}

template <at::ScalarType type>
MPI_Op ours(Kind kind) {
  static const auto made = [] {
    const std::array functions{user_function<type, Kind::SUM>, user_function<type, Kind::PRODUCT>,
                               user_function<type, Kind::MIN>, user_function<type, Kind::MAX>};
    std::array<MPI_Op, 4> found;
    for (size_t i = 0; i < functions.size(); ++i) {
      TORCHFLEET_MPI(MPI_Op_create(functions[i], 1, &found[i]));
    }
    return found;
  }();
  return made[kind == Kind::SUM ? 0 : kind == Kind::PRODUCT ? 1 : kind == Kind::MIN ? 2 : 3];
}

MPI_Op ours(at::ScalarType type, Kind kind) {
  switch (type) {
    case at::kHalf:
      return ours<at::kHalf>(kind);
    case at::kBFloat16:
      return ours<at::kBFloat16>(kind);
    case at::kDouble:
      return ours<at::kDouble>(kind);
    default:
      return ours<at::kFloat>(kind);
  }
}

MPI_Datatype type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kComplexFloat:
      return MPI_C_FLOAT_COMPLEX;
    case at::kComplexDouble:
      return MPI_C_DOUBLE_COMPLEX;
    case at::kByte:
      return MPI_UINT8_T;
    case at::kChar:
      return MPI_INT8_T;
    case at::kShort:
      return MPI_INT16_T;
    case at::kInt:
      return MPI_INT32_T;
    case at::kLong:
      return MPI_INT64_T;
    case at::kUInt32:
      return MPI_UINT32_T;
    case at::kUInt64:
      return MPI_UINT64_T;
    default:
      return MPI_UINT16_T;  // 16-bit floats too
  }
}

MPI_Op operation_of(Kind kind) {
  switch (kind) {
    case Kind::PRODUCT:
      return MPI_PROD;
    case Kind::MIN:
      return MPI_MIN;
    case Kind::MAX:
      return MPI_MAX;
    case Kind::BAND:
      return MPI_BAND;
    case Kind::BOR:
      return MPI_BOR;
    case Kind::BXOR:
      return MPI_BXOR;
    default:
      return MPI_SUM;
  }
}
}  // namespace

bool needs_host_memory(const Reduction& how) {
  return is_half(how.unit) || (c10::isFloatingType(how.unit) && (how.op == Kind::MIN || how.op == Kind::MAX));
}

MPIReduction by_mpi(const Reduction& how) {
  return {type_of(how.unit), needs_host_memory(how) ? ours(how.unit, how.op) : operation_of(how.op)};
}

}  // namespace torchfleet
