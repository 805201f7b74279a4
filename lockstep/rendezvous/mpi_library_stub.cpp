// SPDX-License-Identifier: BSD-3-Clause
// In the place of mpi_library.cpp where there is no MPI.
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/mpi_library.h"

namespace lockstep {

MpiLibrary& MpiLibrary::get() {
  throw BackendError(
      "MPI is not built into this Lockstep: it needs an MPI (Debian: apt-get install "
      "libopenmpi-dev openmpi-bin) when Lockstep is configured");
}
bool MpiLibrary::built_in() {
  return false;
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
