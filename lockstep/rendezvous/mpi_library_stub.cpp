// SPDX-License-Identifier: BSD-3-Clause
// Replaces mpi_library.cpp in builds without MPI.
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/mpi_library.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse() {
  throw BackendError(
      "MPI is not built into this Lockstep: it needs an MPI (Debian: apt-get install "
      "libopenmpi-dev openmpi-bin, or libmpich-dev mpich) when Lockstep is configured");
}

}  // namespace

MpiLibrary& MpiLibrary::get() {
  refuse();
}
void MpiLibrary::load() {
  refuse();
}
std::string MpiLibrary::version() {
  return "none";
}
void MpiLibrary::throw_late(const Deadline&) {
  throw TimeoutError("MPI is not built into this Lockstep");
}
std::string MpiLibrary::broadcast(std::string text) {
  return text;
}
std::unique_lock<std::mutex> MpiLibrary::lock() {
  return {};
}

}  // namespace lockstep
