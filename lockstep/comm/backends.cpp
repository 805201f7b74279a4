// SPDX-License-Identifier: BSD-3-Clause
// The rows of the table, with the backends that this build contains, and the rule of "auto".
#include "lockstep/comm/backends.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/built_with.h"
#include "lockstep/comm/core/make_backends.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/exchange.h"
#include "lockstep/rendezvous/mpi_library.h"

namespace lockstep {
namespace {

using Join = decltype(BackendRow::join);
using FindLibrary = decltype(BackendRow::find_library);
using Trial = BackendRow::Trial;

constexpr std::string_view kHowToGetGloo =
    "it needs Gloo's headers (Debian: apt-get install libgloo-dev) when Lockstep is configured, "
    "and a libtorch with distributed support";
constexpr std::string_view kHowToGetNccl =
    "it needs the headers of NCCL (nccl.h) and of CUDA (cuda_runtime.h and crt/host_config.h) when "
    "Lockstep is configured, and a libtorch with CUDA. Beside pip's torch with CUDA, only those in "
    "crt/ are missing: pip install nvidia-cuda-crt";

// Null if the backend is not built in; its make function is then declared but never used.
Join gloo_join() {
  if constexpr (built_with::gloo) return make_gloo_backend;
  return nullptr;
}
Join mpi_join() {
  if constexpr (built_with::mpi) return make_mpi_backend;
  return nullptr;
}
Join nccl_join() {
  if constexpr (built_with::nccl) return make_nccl_backend;
  return nullptr;
}
FindLibrary find_mpi() {
  if constexpr (built_with::mpi) return MpiLibrary::version;
  return nullptr;
}
FindLibrary find_nccl() {
  if constexpr (built_with::nccl) return nccl_version;
  return nullptr;
}

// Joins the ranks of several hosts, with the backend of `between` between the hosts.
template <Join (*between)()>
std::shared_ptr<Backend> join_hosts(const Membership& membership, const GroupOptions& options,
                                    const std::string&) {
  return make_hierarchical_backend(membership, options, this_host(), between());
}

}  // namespace

std::span<const BackendRow> backend_rows() {
  static const std::array rows = {
      BackendRow{.name = "shm",
                 .help = "the ranks of one machine, through shared memory",
                 .join = make_shm_backend,
                 .how_to_get = {},
                 .find_library = nullptr,
                 .trial = Trial::ranks,
                 .found = {}},
      BackendRow{.name = "gloo",
                 .help = "ranks on any number of machines, over TCP by libtorch's Gloo",
                 .join = gloo_join(),
                 .how_to_get = kHowToGetGloo,
                 .find_library = nullptr,
                 .trial = Trial::ranks,
                 .found = {}},
      BackendRow{.name = "mpi",
                 .help = "ranks that mpirun or srun started, by MPI",
                 .join = mpi_join(),
                 .how_to_get = kHowToGetMpi,
                 .find_library = find_mpi(),
                 .trial = Trial::library,
                 .found = "built in; {} can be loaded; its ranks are started by mpirun or srun"},
      BackendRow{.name = "nccl",
                 .help = "ranks with a GPU each, by NCCL",
                 .join = nccl_join(),
                 .how_to_get = kHowToGetNccl,
                 .find_library = find_nccl(),
                 .trial = Trial::library,
                 .found = "built in; NCCL {} can be loaded"},
      BackendRow{.name = "hierarchical",
                 .help = "several machines with several ranks each: shm within, gloo between them",
                 .join = built_with::gloo ? join_hosts<gloo_join> : nullptr,
                 .how_to_get = kHowToGetGloo,
                 .find_library = nullptr,
                 .trial = Trial::none,
                 .found = {}},
      BackendRow{.name = "hierarchical:mpi",
                 .help = "the same with mpi between them",
                 .join = built_with::mpi ? join_hosts<mpi_join> : nullptr,
                 .how_to_get = kHowToGetMpi,
                 .find_library = find_mpi(),
                 .trial = Trial::none,
                 .found = {}},
      BackendRow{.name = "hierarchical:nccl",
                 .help = "the same with nccl between them",
                 .join = built_with::nccl ? join_hosts<nccl_join> : nullptr,
                 .how_to_get = kHowToGetNccl,
                 .find_library = find_nccl(),
                 .trial = Trial::none,
                 .found = {}},
  };
  return rows;
}

const BackendRow& backend_row(std::string_view name) {
  return *std::ranges::find(backend_rows(), name, &BackendRow::name);
}

bool is_usable(const BackendRow& row) {
  if (!row.built_in()) return false;
  try {
    if (row.find_library != nullptr) row.find_library();
    return true;
  } catch (const BackendError&) {
    return false;
  }
}

Choice choose_backend(const Placement& placement) {
  if (placement.ranks == 1) return {"self", "there is one rank"};
  if (placement.gpu_for_each_rank) return {"nccl", "each rank has a GPU of its own"};
  if (placement.hosts == 1) return {"shm", "all ranks share this machine"};
  const std::string why = fmt::format("the ranks are on {} hosts", placement.hosts);
  if (placement.hosts == placement.ranks) return {placement.between_hosts, why};
  if (placement.between_hosts == "gloo") return {std::string("hierarchical"), why};
  return {"hierarchical:" + placement.between_hosts, why};
}

std::string backend_between_hosts() {
  return !backend_row("gloo").built_in() && backend_row("mpi").built_in() ? "mpi" : "gloo";
}

}  // namespace lockstep
