// The name of the backend in texts. Each module is one backend.
#pragma once

#ifdef TORCHFLEET_SHM
#define TORCHFLEET_NAME "shm"
#else
#define TORCHFLEET_NAME "mpi"
#endif
