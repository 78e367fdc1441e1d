#include "reduction.h"

#include "name.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <functional>
#include <type_traits>

namespace torchfleet {

namespace {
using Kind = c10d::ReduceOp::RedOpType;

// By torch's own vector code, and so as torch defines it: 16-bit floats are added in float32 and rounded, and MIN and MAX
// keep NaN. In blocks that are too small for torch to use several threads.
void reduce_by_torch(at::ScalarType dtype, Kind op, const void* in, void* inout, int64_t count) {
  constexpr int64_t kBlock = 16384;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t some = std::min(kBlock, count - first);
    char *from = static_cast<char*>(const_cast<void*>(in)) + first * size, *to = static_cast<char*>(inout) + first * size;
    const at::Tensor one = at::from_blob(from, {some}, dtype);
    at::Tensor two = at::from_blob(to, {some}, dtype);
    switch (op) {
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

template <typename T, typename Combine>
void each(const void* in, void* inout, int64_t count, Combine combine) {
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(inout);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<T>(combine(from[i], to[i]));
  }
}

// torch lacks some of these for unsigned integers. The compiler vectorises them.
template <typename T>
void reduce_integers(Kind op, const void* in, void* inout, int64_t count) {
  // Without overflow of signed numbers, which the language leaves open; 16-bit ones would be promoted to signed ones.
  using Wide = std::conditional_t<sizeof(T) < sizeof(uint32_t), uint32_t, std::make_unsigned_t<T>>;
  switch (op) {
    case Kind::PRODUCT:
      return each<T>(in, inout, count, [](T a, T b) { return static_cast<Wide>(a) * static_cast<Wide>(b); });
    case Kind::MIN:
      return each<T>(in, inout, count, [](T a, T b) { return std::min(a, b); });
    case Kind::MAX:
      return each<T>(in, inout, count, [](T a, T b) { return std::max(a, b); });
    case Kind::BAND:
      return each<T>(in, inout, count, std::bit_and<T>());
    case Kind::BOR:
      return each<T>(in, inout, count, std::bit_or<T>());
    case Kind::BXOR:
      return each<T>(in, inout, count, std::bit_xor<T>());
    default:
      return each<T>(in, inout, count, [](T a, T b) { return static_cast<Wide>(a) + static_cast<Wide>(b); });
  }
}

[[noreturn]] void refuse(at::ScalarType dtype, Kind kind) {
  TORCH_CHECK_VALUE(false, "backend " TORCHFLEET_NAME ": ", name_of_reduction(kind), " of ", dtype, " is not supported");
}

bool is_bitwise(Kind kind) {
  return kind == Kind::BAND || kind == Kind::BOR || kind == Kind::BXOR;
}

Reduction complex(at::ScalarType dtype, Kind kind) {
  if (kind == Kind::PRODUCT) {
    return {dtype, dtype, kind};
  }
  if (kind != Kind::SUM && kind != Kind::AVG) {
    refuse(dtype, kind);
  }
  return {dtype, c10::toRealValueType(dtype), Kind::SUM, 2};
}

// torch's sum of booleans is "any", its product "all".
Reduction boolean(at::ScalarType dtype, Kind kind) {
  switch (kind) {
    case Kind::SUM:
    case Kind::MAX:
    case Kind::BOR:
      return {dtype, at::kByte, Kind::BOR};
    case Kind::PRODUCT:
    case Kind::MIN:
    case Kind::BAND:
      return {dtype, at::kByte, Kind::BAND};
    case Kind::BXOR:
      return {dtype, at::kByte, Kind::BXOR};
    default:
      refuse(dtype, kind);
  }
}
}  // namespace

Reduction reduction(at::ScalarType dtype, const c10d::ReduceOp& op) {
  const Kind kind = op.op_;
  const auto is_one_of = [=](std::initializer_list<at::ScalarType> types) {
    return std::find(types.begin(), types.end(), dtype) != types.end();
  };
  if (kind > Kind::BXOR) {
    refuse(dtype, kind);
  }
  if (dtype == at::kBool) {
    return boolean(dtype, kind);
  }
  if (is_one_of({at::kComplexFloat, at::kComplexDouble})) {
    return complex(dtype, kind);
  }
  if (c10::isIntegralType(dtype, false) && kind != Kind::AVG) {
    return {dtype, dtype, kind};
  }
  if (is_one_of({at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) && !is_bitwise(kind)) {
    return {dtype, dtype, kind == Kind::AVG ? Kind::SUM : kind};
  }
  refuse(dtype, kind);
}

const char* name_of_reduction(Kind kind) {
  static const char* names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return names[std::min<int>(kind, 8)];
}

void reduce_local(const Reduction& how, const void* in, void* inout, int64_t count) {
  if (!c10::isIntegralType(how.unit, false)) {
    return reduce_by_torch(how.unit, how.op, in, inout, count);
  }
  AT_DISPATCH_V2(how.unit, "reduce_local", AT_WRAP([&] { reduce_integers<scalar_t>(how.op, in, inout, count); }),
                 AT_EXPAND(AT_INTEGRAL_TYPES_V2));
}

bool divides_before(at::ScalarType dtype, const c10d::ReduceOp& op) {
  return op.op_ == Kind::AVG && dtype == at::kHalf;
}

void divide_after(at::Tensor& sum, const c10d::ReduceOp& op, int size) {
  if (op.op_ == Kind::AVG && !divides_before(sum.scalar_type(), op)) {
    sum.div_(size);
  }
}

}  // namespace torchfleet
