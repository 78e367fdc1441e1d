#include "process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // headers of older kernels lack it; the number is the same on x86-64 and aarch64
#endif

namespace torchfleet {

namespace {
int opened(int64_t process) {
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));
}
}  // namespace

Process::Process(int64_t number) : number_(number), is_known_(false) {
  const int descriptor = opened(number);
  is_known_ = descriptor >= 0;
  if (is_known_) {
    close(descriptor);
  }
}

// The descriptor is not kept: a program may have thousands of groups. It is readable also when the process has ended and its
// parent has not asked for its status.
bool Process::has_ended() const {
  if (!is_known_) {
    return false;
  }
  const int descriptor = opened(number_);
  if (descriptor < 0) {
    return errno == ESRCH;
  }
  pollfd ended{descriptor, POLLIN, 0};
  const bool is_readable = poll(&ended, 1, 0) == 1;
  close(descriptor);
  return is_readable;
}

}  // namespace torchfleet
