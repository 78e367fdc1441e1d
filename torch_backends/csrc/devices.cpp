#include "devices.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace torchfleet {

void synchronize(c10::Device device) {
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl devices(device.type());
    devices.synchronizeStream(devices.getStream(device));
  }
}

}  // namespace torchfleet
