// Giving the core to others between two polls.
#pragma once

namespace torchfleet {

// False if others ran for so long meanwhile that whoever waits should sleep: on a busy core each yield costs a time slice.
bool yield_and_return_soon();

}  // namespace torchfleet
