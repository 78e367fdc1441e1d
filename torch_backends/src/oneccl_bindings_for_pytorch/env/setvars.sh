# Scripts that use Intel's bindings of oneCCL source this file. Nothing has to be set: the library is found by its path.
