// Giving the core to others between two polls.
#pragma once

namespace torchfleet {

// False if others ran meanwhile for so long that whoever waits should sleep from now on: on a busy core each yield costs a
// time slice, and a thread that has slept goes before one that has run.
bool yield_and_return_soon();

}  // namespace torchfleet
