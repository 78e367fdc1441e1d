#include "types.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

namespace torchfleet {

namespace {
using Kind = c10d::ReduceOp::RedOpType;

// By torch's own vector code, and so as torch defines it: 16-bit floats are added in float32 and rounded, and MIN and MAX
// keep NaN. In blocks that are too small for torch to use several threads.
void reduce_by_torch(at::ScalarType dtype, Kind kind, const void* in, void* inout, int64_t count) {
  constexpr int64_t kBlock = 16384;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t some = std::min(kBlock, count - first);
    char *from = static_cast<char*>(const_cast<void*>(in)) + first * size, *to = static_cast<char*>(inout) + first * size;
    const at::Tensor one = at::from_blob(from, {some}, dtype);
    at::Tensor two = at::from_blob(to, {some}, dtype);
    switch (kind) {
      case Kind::PRODUCT:
        at::mul_out(two, one, two);
        break;
      case Kind::MIN:
        at::minimum_out(two, one, two);
        break;
      case Kind::MAX:
        at::maximum_out(two, one, two);
        break;
      default:
        at::add_out(two, two, one);
    }
  }
}

template <at::ScalarType dtype, Kind kind>
void user_function(void* in, void* inout, int* count, MPI_Datatype*) {
  reduce_by_torch(dtype, kind, in, inout, *count);
}

template <at::ScalarType dtype, Kind kind>
Reduction by_torch(MPI_Datatype type, Kind asked) {
  static const MPI_Op op = [] {
    MPI_Op made;
    TORCHFLEET_MPI(MPI_Op_create(user_function<dtype, kind>, 1, &made));
    return made;
  }();
  return {type, op, dtype, asked, 1, true};
}

[[noreturn]] void refuse(at::ScalarType dtype, Kind kind) {
  TORCH_CHECK_VALUE(false, "backend mpi: ", name_of_reduction(kind), " of ", dtype, " is not to be had");
}

// MPI has no 16-bit floats: it moves them as integers.
template <at::ScalarType dtype>
Reduction half(Kind kind) {
  switch (kind) {
    case Kind::SUM:
    case Kind::AVG:
      return by_torch<dtype, Kind::SUM>(MPI_UINT16_T, kind);
    case Kind::PRODUCT:
      return by_torch<dtype, Kind::PRODUCT>(MPI_UINT16_T, kind);
    case Kind::MIN:
      return by_torch<dtype, Kind::MIN>(MPI_UINT16_T, kind);
    case Kind::MAX:
      return by_torch<dtype, Kind::MAX>(MPI_UINT16_T, kind);
    default:
      refuse(dtype, kind);
  }
}

// MPI leaves open what MIN and MAX of NaN are.
template <at::ScalarType dtype>
Reduction floating(MPI_Datatype type, Kind kind) {
  switch (kind) {
    case Kind::SUM:
    case Kind::AVG:
      return {type, MPI_SUM, dtype, kind};
    case Kind::PRODUCT:
      return {type, MPI_PROD, dtype, kind};
    case Kind::MIN:
      return by_torch<dtype, Kind::MIN>(type, kind);
    case Kind::MAX:
      return by_torch<dtype, Kind::MAX>(type, kind);
    default:
      refuse(dtype, kind);
  }
}

Reduction complex(at::ScalarType dtype, MPI_Datatype part, MPI_Datatype whole, Kind kind) {
  switch (kind) {
    case Kind::SUM:
    case Kind::AVG:
      return {part, MPI_SUM, dtype, kind, 2};
    case Kind::PRODUCT:
      return {whole, MPI_PROD, dtype, kind};
    default:
      refuse(dtype, kind);
  }
}

Reduction integral(at::ScalarType dtype, MPI_Datatype type, Kind kind) {
  switch (kind) {
    case Kind::SUM:
      return {type, MPI_SUM, dtype, kind};
    case Kind::PRODUCT:
      return {type, MPI_PROD, dtype, kind};
    case Kind::MIN:
      return {type, MPI_MIN, dtype, kind};
    case Kind::MAX:
      return {type, MPI_MAX, dtype, kind};
    case Kind::BAND:
      return {type, MPI_BAND, dtype, kind};
    case Kind::BOR:
      return {type, MPI_BOR, dtype, kind};
    case Kind::BXOR:
      return {type, MPI_BXOR, dtype, kind};
    default:
      refuse(dtype, kind);
  }
}

// torch's sum of booleans is "any", its product "all".
Reduction boolean(at::ScalarType dtype, Kind kind) {
  switch (kind) {
    case Kind::SUM:
    case Kind::MAX:
    case Kind::BOR:
      return {MPI_UINT8_T, MPI_BOR, dtype, kind};
    case Kind::PRODUCT:
    case Kind::MIN:
    case Kind::BAND:
      return {MPI_UINT8_T, MPI_BAND, dtype, kind};
    case Kind::BXOR:
      return {MPI_UINT8_T, MPI_BXOR, dtype, kind};
    default:
      refuse(dtype, kind);
  }
}
}  // namespace

Reduction reduction(at::ScalarType dtype, const c10d::ReduceOp& op) {
  const Kind kind = op.op_;
  switch (dtype) {
    case at::kFloat:
      return floating<at::kFloat>(MPI_FLOAT, kind);
    case at::kDouble:
      return floating<at::kDouble>(MPI_DOUBLE, kind);
    case at::kHalf:
      return half<at::kHalf>(kind);
    case at::kBFloat16:
      return half<at::kBFloat16>(kind);
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

const char* name_of_reduction(Kind kind) {
  static const char* names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return names[std::min<int>(kind, 8)];
}

void reduce_local(const Reduction& how, const void* in, void* inout, int64_t count) {
  if (how.ours) {
    reduce_by_torch(how.dtype, how.kind, in, inout, count);
  } else {
    TORCHFLEET_MPI(MPI_Reduce_local(in, inout, static_cast<int>(count), how.type, how.op));
  }
}

at::Tensor divided_before(const at::Tensor& tensor, const c10d::ReduceOp& op, int size) {
  return op.op_ == Kind::AVG && tensor.scalar_type() == at::kHalf ? at::div(tensor, size) : tensor;
}

void divide_after(at::Tensor& sum, const c10d::ReduceOp& op, int size) {
  if (op.op_ == Kind::AVG && sum.scalar_type() != at::kHalf) {
    sum.div_(size);
  }
}

}  // namespace torchfleet
