// The whole module as one unit: torch's headers take most of the time to compile, and so they are read once.
#include "backend.cpp"
#include "message.cpp"
#include "module.cpp"
#include "shared.cpp"
#include "transfer.cpp"
#include "types.cpp"
#include "worker.cpp"
#include "world.cpp"
