#include "record.h"

#include "name.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>

namespace torchfleet {

namespace {
constexpr uint64_t kSlots = 2048;  // a power of two; PyTorch's flight recorder has 2,000

// One cache line. A slot that is written has number 0, so that who reads it meanwhile takes nothing of it.
struct alignas(64) Entry {
  std::atomic<uint64_t> number{0};
  std::atomic<const char*> group{nullptr};
  std::atomic<const char*> title{nullptr};
  std::atomic<uint64_t> sequence{0};
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> started{0};
  std::atomic<int64_t> ended{0};  // 0: it has not ended
  std::atomic<c10::ScalarType> type{c10::ScalarType::Undefined};
};
static_assert(sizeof(Entry) == 64);

struct Entries {
  std::atomic<uint64_t> newest{0};
  std::array<Entry, kSlots> slots;
};

// Never destroyed, because threads may run until the process ends.
Entries& entries() {
  static auto* found = new Entries;
  return *found;
}

int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}
}  // namespace

bool is_recording() {
  static const bool found = [] {
    for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
      if (const char* value = std::getenv(name)) {
        return std::atoll(value) > 0;
      }
    }
    return false;
  }();
  return found;
}

const char* intern(const std::string& name) {
  static auto* mutex = new std::mutex;
  static auto* names = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(*mutex);
  std::string plain;  // in JSON as it is
  for (const char letter : name) {
    const bool is_ascii = letter >= ' ' && static_cast<unsigned char>(letter) < 127;  // char has a sign, or none on Arm
    plain += is_ascii && letter != '"' && letter != '\\' ? letter : '?';
  }
  return names->insert(plain).first->c_str();
}

uint64_t record_start(const char* group, uint64_t sequence, const char* title, int64_t bytes, c10::ScalarType type) {
  const uint64_t number = entries().newest.fetch_add(1, std::memory_order_relaxed) + 1;
  Entry& slot = entries().slots[number % kSlots];
  slot.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.group.store(group, std::memory_order_relaxed);
  slot.title.store(title, std::memory_order_relaxed);
  slot.sequence.store(sequence, std::memory_order_relaxed);
  slot.bytes.store(bytes, std::memory_order_relaxed);
  slot.type.store(type, std::memory_order_relaxed);
  slot.started.store(nanoseconds(), std::memory_order_relaxed);
  slot.ended.store(0, std::memory_order_relaxed);
  slot.number.store(number, std::memory_order_release);
  return number;
}

void record_end(uint64_t number) {
  if (number == 0) {
    return;
  }
  Entry& slot = entries().slots[number % kSlots];
  if (slot.number.load(std::memory_order_relaxed) == number) {  // else it is that of a later one
    slot.ended.store(nanoseconds(), std::memory_order_relaxed);
  }
}

std::string record_as_json() {
  std::ostringstream text;
  text << R"({"version": "2.10", "entries": [)";
  const uint64_t newest = entries().newest.load(std::memory_order_acquire);
  const char* between = "";
  for (uint64_t number = newest > kSlots ? newest - kSlots + 1 : 1; number <= newest; ++number) {
    const Entry& slot = entries().slots[number % kSlots];
    if (slot.number.load(std::memory_order_acquire) != number) {
      continue;
    }
    const char* group = slot.group.load(std::memory_order_relaxed);
    const char* title = slot.title.load(std::memory_order_relaxed);
    const uint64_t sequence = slot.sequence.load(std::memory_order_relaxed);
    const int64_t bytes = slot.bytes.load(std::memory_order_relaxed);
    const c10::ScalarType type = slot.type.load(std::memory_order_relaxed);
    const int64_t started = slot.started.load(std::memory_order_relaxed), ended = slot.ended.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.number.load(std::memory_order_relaxed) != number) {
      continue;
    }
    text << between << R"({"process_group": [")" << group << R"(", ")" TORCHFLEET_NAME R"("], "collective_seq_id": )" << sequence
         << R"(, "profiling_name": ")" << title << R"(", "bytes": )" << bytes << R"(, "time_created_ns": )" << started
         << R"(, "time_discovered_completed_ns": )" << ended << R"(, "retired": )" << (ended ? "true" : "false")
         << R"(, "is_p2p": false)";
    if (type != c10::ScalarType::Undefined) {
      text << R"(, "output_sizes": [[)" << bytes / static_cast<int64_t>(c10::elementSize(type))
           << R"(]], "output_dtypes": [")" << c10::toString(type) << R"("])";
    }
    text << "}";
    between = ",\n";
  }
  text << "]}";
  return text.str();
}

}  // namespace torchfleet
