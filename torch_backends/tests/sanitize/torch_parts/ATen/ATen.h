// What the shared memory of our backends takes of PyTorch, in its names, so that a sanitizer sees all code that runs. PyTorch's
// own libraries are not instrumented, and its headers take minutes to compile with a sanitizer.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace at {

enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, Undefined, NumOptions };
constexpr ScalarType kInt = ScalarType::Int, kFloat = ScalarType::Float, kDouble = ScalarType::Double;

inline std::ostream& operator<<(std::ostream& out, ScalarType type) {
  return out << (type == kInt ? "Int" : type == kFloat ? "Float" : "Double");
}

struct TypeMeta {
  ScalarType type;
  size_t itemsize() const { return type == kDouble ? 8 : 4; }
};

class TensorOptions {
 public:
  TensorOptions dtype(ScalarType type) const {
    TensorOptions found;
    found.type_ = type;
    return found;
  }
  TypeMeta dtype() const { return {type_}; }

 private:
  ScalarType type_ = kFloat;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<void> data, int64_t count, ScalarType type) : data_(std::move(data)), count_(count), type_(type) {}
  void* data_ptr() const { return data_.get(); }
  template <typename T>
  T* data_ptr() const {
    return static_cast<T*>(data_.get());
  }
  int64_t numel() const { return count_; }
  int64_t element_size() const { return static_cast<int64_t>(TypeMeta{type_}.itemsize()); }
  ScalarType scalar_type() const { return type_; }

 private:
  std::shared_ptr<void> data_;
  int64_t count_ = 0;
  ScalarType type_ = kFloat;
};

class TensorMaker {
 public:
  TensorMaker(void* data, int64_t count) : data_(data), count_(count) {}
  TensorMaker& deleter(std::function<void(void*)> free) {
    free_ = std::move(free);
    return *this;
  }
  TensorMaker& options(const TensorOptions& options) {
    options_ = options;
    return *this;
  }
  TensorMaker& resizeable_storage() { return *this; }
  TensorMaker& allocator(void*) { return *this; }
  Tensor make_tensor() { return {std::shared_ptr<void>(data_, std::move(free_)), count_, options_.dtype().type}; }

 private:
  void* data_;
  int64_t count_;
  std::function<void(void*)> free_;
  TensorOptions options_;
};

inline TensorMaker for_blob(void* data, std::vector<int64_t> sizes) {
  return {data, sizes[0]};
}

inline Tensor empty(std::vector<int64_t> sizes, const TensorOptions& options) {
  void* data = std::malloc(sizes[0] * options.dtype().itemsize() + 1);
  return {std::shared_ptr<void>(data, std::free), sizes[0], options.dtype().type};
}

}  // namespace at

namespace c10 {

template <typename... Words>
std::string str(const Words&... words) {
  std::ostringstream text;
  (text << ... << words);
  return text.str();
}

template <typename List>
std::string Join(const std::string& between, const List& list) {
  std::ostringstream text;
  const char* before = "";
  for (const auto& one : list) {
    text << before << one;
    before = between.c_str();
  }
  return text.str();
}

}  // namespace c10

namespace c10d {

struct ReduceOp {
  enum RedOpType : uint8_t { SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM, UNUSED };
  RedOpType op_ = SUM;
};

}  // namespace c10d

#define TORCH_CHECK_WITH(kind, condition, ...)           \
  do {                                                   \
    if (!(condition)) {                                  \
      throw std::runtime_error(::c10::str(__VA_ARGS__)); \
    }                                                    \
  } while (false)
