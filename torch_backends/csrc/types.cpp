#include "types.h"

#include <algorithm>

namespace torchfleet {

namespace {
using Kind = c10d::ReduceOp::RedOpType;

template <typename T, typename Combine>
void combine(void* in, void* inout, int* count, MPI_Datatype*, Combine with) {
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(inout);
  for (int i = 0; i < *count; ++i) {
    to[i] = static_cast<T>(with(static_cast<float>(from[i]), static_cast<float>(to[i])));
  }
}

#define HALF_OP(NAME, EXPRESSION)                                                     \
  template <typename T>                                                              \
  void NAME(void* in, void* inout, int* count, MPI_Datatype* type) {                  \
    combine<T>(in, inout, count, type, [](float a, float b) { return EXPRESSION; });  \
  }
HALF_OP(half_sum, a + b)
HALF_OP(half_product, a * b)
HALF_OP(half_min, a != a ? a : (b != b ? b : std::min(a, b)))  // propagates NaN, like torch.minimum
HALF_OP(half_max, a != a ? a : (b != b ? b : std::max(a, b)))
#undef HALF_OP

MPI_Op made(MPI_User_function* function) {
  MPI_Op op;
  TORCHFLEET_MPI(MPI_Op_create(function, 1, &op));
  return op;
}

[[noreturn]] void refuse(at::ScalarType dtype, Kind kind) {
  static const char* names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  TORCH_CHECK_VALUE(false, "backend mpi: ", names[std::min<int>(kind, 8)], " of ", dtype, " is not to be had");
}

// MPI has no 16-bit floats: torch moves them as 16-bit integers, and these functions reduce them in float32.
template <typename T>
Reduction half(at::ScalarType dtype, Kind kind) {
  static MPI_Op sum = made(half_sum<T>), product = made(half_product<T>);
  static MPI_Op least = made(half_min<T>), most = made(half_max<T>);
  switch (kind) {
    case Kind::SUM:
    case Kind::AVG:
      return {MPI_UINT16_T, sum, 1, true};
    case Kind::PRODUCT:
      return {MPI_UINT16_T, product, 1, true};
    case Kind::MIN:
      return {MPI_UINT16_T, least, 1, true};
    case Kind::MAX:
      return {MPI_UINT16_T, most, 1, true};
    default:
      refuse(dtype, kind);
  }
}

Reduction floating(at::ScalarType dtype, MPI_Datatype type, Kind kind) {
  switch (kind) {
    case Kind::SUM:
    case Kind::AVG:
      return {type, MPI_SUM};
    case Kind::PRODUCT:
      return {type, MPI_PROD};
    case Kind::MIN:
      return {type, MPI_MIN};
    case Kind::MAX:
      return {type, MPI_MAX};
    default:
      refuse(dtype, kind);
  }
}

Reduction complex(at::ScalarType dtype, MPI_Datatype part, MPI_Datatype whole, Kind kind) {
  switch (kind) {
    case Kind::SUM:
    case Kind::AVG:
      return {part, MPI_SUM, 2};
    case Kind::PRODUCT:
      return {whole, MPI_PROD};
    default:
      refuse(dtype, kind);
  }
}

Reduction integral(at::ScalarType dtype, MPI_Datatype type, Kind kind) {
  switch (kind) {
    case Kind::BAND:
      return {type, MPI_BAND};
    case Kind::BOR:
      return {type, MPI_BOR};
    case Kind::BXOR:
      return {type, MPI_BXOR};
    default:
      return floating(dtype, type, kind);
  }
}

// torch's sum of booleans is "any", its product "all".
Reduction boolean(at::ScalarType dtype, Kind kind) {
  switch (kind) {
    case Kind::SUM:
    case Kind::MAX:
    case Kind::BOR:
      return {MPI_UINT8_T, MPI_BOR};
    case Kind::PRODUCT:
    case Kind::MIN:
    case Kind::BAND:
      return {MPI_UINT8_T, MPI_BAND};
    case Kind::BXOR:
      return {MPI_UINT8_T, MPI_BXOR};
    default:
      refuse(dtype, kind);
  }
}
}  // namespace

Reduction reduction(at::ScalarType dtype, const c10d::ReduceOp& op) {
  const Kind kind = op.op_;
  switch (dtype) {
    case at::kFloat:
      return floating(dtype, MPI_FLOAT, kind);
    case at::kDouble:
      return floating(dtype, MPI_DOUBLE, kind);
    case at::kHalf:
      return half<at::Half>(dtype, kind);
    case at::kBFloat16:
      return half<at::BFloat16>(dtype, kind);
    case at::kComplexFloat:
      return complex(dtype, MPI_FLOAT, MPI_C_FLOAT_COMPLEX, kind);
    case at::kComplexDouble:
      return complex(dtype, MPI_DOUBLE, MPI_C_DOUBLE_COMPLEX, kind);
    case at::kByte:
      return integral(dtype, MPI_UINT8_T, kind);
    case at::kChar:
      return integral(dtype, MPI_INT8_T, kind);
    case at::kShort:
      return integral(dtype, MPI_INT16_T, kind);
    case at::kInt:
      return integral(dtype, MPI_INT32_T, kind);
    case at::kLong:
      return integral(dtype, MPI_INT64_T, kind);
    case at::kUInt16:
      return integral(dtype, MPI_UINT16_T, kind);
    case at::kUInt32:
      return integral(dtype, MPI_UINT32_T, kind);
    case at::kUInt64:
      return integral(dtype, MPI_UINT64_T, kind);
    case at::kBool:
      return boolean(dtype, kind);
    default:
      refuse(dtype, kind);
  }
}

void average(at::Tensor& sum, const c10d::ReduceOp& op, int size) {
  if (op.op_ != Kind::AVG) {
    return;
  }
  if (at::isIntegralType(sum.scalar_type(), false)) {
    sum.div_(size, "trunc");
  } else {
    sum.div_(size);
  }
}

}  // namespace torchfleet
