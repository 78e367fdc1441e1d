#pragma once
#include <sstream>
#define LOG(level) std::ostringstream()  // nobody reads it here
