#pragma once

namespace c10 {

inline void* GetCPUAllocator() {
  return nullptr;  // nothing is resized here
}

}  // namespace c10
