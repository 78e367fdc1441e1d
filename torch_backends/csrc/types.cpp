#include "types.h"

#include <array>
#include <map>

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
  static const std::map<at::ScalarType, MPI_Datatype> types{
      {at::kFloat, MPI_FLOAT},
      {at::kDouble, MPI_DOUBLE},
      {at::kComplexFloat, MPI_C_FLOAT_COMPLEX},
      {at::kComplexDouble, MPI_C_DOUBLE_COMPLEX},
      {at::kByte, MPI_UINT8_T},
      {at::kChar, MPI_INT8_T},
      {at::kShort, MPI_INT16_T},
      {at::kInt, MPI_INT32_T},
      {at::kLong, MPI_INT64_T},
      {at::kUInt16, MPI_UINT16_T},
      {at::kUInt32, MPI_UINT32_T},
      {at::kUInt64, MPI_UINT64_T},
      {at::kHalf, MPI_UINT16_T},
      {at::kBFloat16, MPI_UINT16_T},
  };
  return types.at(type);
}

MPI_Op operation_of(Kind kind) {
  static const std::map<Kind, MPI_Op> operations{
      {Kind::SUM, MPI_SUM},   {Kind::PRODUCT, MPI_PROD}, {Kind::MIN, MPI_MIN},   {Kind::MAX, MPI_MAX},
      {Kind::BAND, MPI_BAND}, {Kind::BOR, MPI_BOR},      {Kind::BXOR, MPI_BXOR},
  };
  return operations.at(kind);
}
}  // namespace

bool needs_host_memory(const Reduction& how) {
  return is_half(how.unit) || (c10::isFloatingType(how.unit) && (how.op == Kind::MIN || how.op == Kind::MAX));
}

MPIReduction by_mpi(const Reduction& how) {
  return {type_of(how.unit), needs_host_memory(how) ? ours(how.unit, how.op) : operation_of(how.op)};
}

}  // namespace torchfleet
