// Another process of this machine.
#pragma once

#include <cstdint>

namespace torchfleet {

class Process {
 public:
  // `number`: of a process in this process's own numbering (its pid namespace).
  explicit Process(int64_t number);

  // False also where the kernel cannot tell (pidfd_open(2): Linux 5.3).
  bool has_ended() const;

 private:
  int64_t number_;
  bool is_known_;
};

}  // namespace torchfleet
