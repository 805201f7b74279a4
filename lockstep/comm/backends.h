// SPDX-License-Identifier: BSD-3-Clause
// The table of backends, one row for each that can be asked for, and the choice that "auto" stands
// for. --help, `lockstep doctor` and errors about missing backends use the table.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

struct BackendRow {
  std::string_view name;
  // A readable description: "the ranks of one machine, through shared memory".
  std::string_view help;
  // Joins the ranks. Messages of gloo, mpi and nccl call the backend `name`; the others have their
  // own names. Null if it is not built in.
  std::shared_ptr<Backend> (*join)(const Membership& membership, const GroupOptions& options,
                                   const std::string& name);
  // How to get the backend if it is not built in.
  std::string_view how_to_get;
  // Describes the backend's library on this machine: "Open MPI v4.1.4"; null if it has none.
  // BackendError if the library cannot be used.
  std::string (*find_library)();
  // How `lockstep doctor` tries it: with two ranks on this machine, by its library, or not.
  enum class Trial { ranks, library, none } trial;
  // Doctor's text about the library, with {} in place of find_library()'s result.
  std::string_view found;

  bool built_in() const { return join != nullptr; }
};

// In the order of the documentation and --help, without "auto".
std::span<const BackendRow> backend_rows();
// Requires a row of this name.
const BackendRow& backend_row(std::string_view name);
// Whether the backend is built in, and its library can be used.
bool is_usable(const BackendRow& row);

// Where the ranks of a group are.
struct Placement {
  int ranks = 1;
  int hosts = 1;
  // Each rank has a GPU that no other rank has, and NCCL can be loaded.
  bool gpu_for_each_rank = false;
  // The backend that joins hosts: gloo, or mpi if gloo is not built in.
  std::string between_hosts = "gloo";
};

// The backend that joins hosts in this build.
std::string backend_between_hosts();

struct Choice {
  std::string backend;
  // The reason, as text: "all ranks share this machine".
  std::string why;
};

// The backend that "auto" stands for.
Choice choose_backend(const Placement& placement);

}  // namespace lockstep
