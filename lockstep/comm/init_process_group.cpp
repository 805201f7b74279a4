// SPDX-License-Identifier: BSD-3-Clause
// Makes groups: of the processes of a job, of this process alone, and of its threads.
#include "lockstep/comm/init_process_group.h"

#include <algorithm>
#include <sstream>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/group_warnings.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/exchange.h"
#include "lockstep/rendezvous/losses.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/rendezvous/roll_call.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// Makes a GPU the current one, as torch::cuda::set_device would. Ranks share GPUs if they outnumber
// them.
at::Device choose_device(std::optional<at::Device> wanted, const Membership& member) {
  const int gpus = wanted && wanted->is_cpu() ? 0 : device_count(at::kCUDA);
  at::Device device = at::kCPU;
  if (wanted) {
    device = *wanted;
    if (device.is_cuda() && !device.has_index()) {
      device.set_index(static_cast<at::DeviceIndex>(gpus > 0 ? member.local_rank % gpus : 0));
    }
  } else if (gpus > 0) {
    device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(member.local_rank % gpus));
  }
  if (device.is_cuda()) {
    if (device.index() >= gpus) {
      throw UsageError({.rank = member.rank, .size = member.world_size},
                       fmt::format("device {} was asked for, but {}", device.str(),
                                   gpus == 0 ? "this libtorch sees no GPU"
                                             : fmt::format("there are only {} GPUs", gpus)),
                       "ask for cpu, or use a libtorch with CUDA on a machine with that GPU");
    }
    c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  }
  return device;
}

// The GPU's name, the same in all processes of this machine: CUDA_VISIBLE_DEVICES renumbers GPUs.
std::string gpu_name(at::Device device) {
  std::istringstream visible(environment("CUDA_VISIBLE_DEVICES").value_or(""));
  std::string name = std::to_string(device.index());
  std::string entry;
  for (int index = 0; std::getline(visible, entry, ','); ++index) {
    if (index == device.index()) name = entry;
  }
  return name;
}

// Whether NCCL can join the ranks, which needs a GPU for each. All ranks get the same answer, even
// if they were given different devices.
bool has_gpu_for_each_rank(const Membership& member, const GroupOptions& options) {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return false;
  const bool can = options.device.is_cuda() && is_usable(backend_row("nccl"));
  auto gpus = exchange(member, "gpus", can ? this_host() + " " + gpu_name(options.device) : "",
                       Deadline::after(options.timeout));
  std::ranges::sort(gpus);
  return !gpus.front().empty() && std::ranges::adjacent_find(gpus) == gpus.end();
}

Placement find_placement(const Membership& member, const GroupOptions& options) {
  Placement placement{.ranks = member.world_size,
                      .gpu_for_each_rank = has_gpu_for_each_rank(member, options),
                      .between_hosts = backend_between_hosts()};
  if (!member.address.empty()) {
    placement.hosts =
        static_cast<int>(map_hosts(member, this_host(), Deadline::after(options.timeout)).size());
  }
  return placement;
}

// `backend` is one of backends(). A blocking collective call. With "auto", the ranks tell each
// other where they are.
std::shared_ptr<ProcessGroup> make_group(std::string backend, Membership member,
                                         GroupOptions options) {
  if (member.store) {
    member.processes = call_roll(member, backend, Deadline::after(options.timeout));
    if (member.local_world_size == 0) {
      const auto is_here = [&](const ProcessIdentity& process) {
        return process.machine == member.processes[static_cast<std::size_t>(member.rank)].machine;
      };
      member.local_world_size = static_cast<int>(std::ranges::count_if(member.processes, is_here));
    }
    warn_of_oversubscription(member);
  }
  if (member.world_size == 1) {
    options.why = choose_backend({}).why;
    auto alone = make_self_backend(member, options);
    return std::make_shared<ProcessGroup>(std::move(member), std::move(options), std::move(alone));
  }
  if (backend == "auto") {
    const Choice choice = choose_backend(find_placement(member, options));
    backend = choice.backend;
    options.why = choice.why;
  }
  const BackendRow& row = backend_row(backend);
  if (!row.built_in()) {
    throw BackendError(
        fmt::format("backend \"{}\" is not built into this Lockstep: {}", backend, row.how_to_get));
  }
  auto joined = row.join(member, options, backend);
  return std::make_shared<ProcessGroup>(std::move(member), std::move(options), std::move(joined));
}

void check_init_options(const InitOptions& options) {
  const auto& known = backends();
  if (std::ranges::find(known, options.backend) == known.end()) {
    throw UsageError(fmt::format("there is no backend \"{}\"; the backends are {}", options.backend,
                                 fmt::join(known, ", ")));
  }
  if (options.timeout.count() <= 0) {
    throw UsageError(
        fmt::format("the timeout is {} ms; it must be positive", options.timeout.count()));
  }
}

std::shared_ptr<ProcessGroup> join_ranks(Membership member, const InitOptions& options) {
  const GroupOptions group{.timeout = options.timeout,
                           .device = choose_device(options.device, member),
                           .requested_backend = options.backend};
  if (member.world_size == 1 && group.device.is_cpu()) spare_busy_cores();
  const GroupLosses losses(member);
  try {
    auto made = make_group(options.backend, std::move(member), group);
    losses.withdraw();
    return made;
  } catch (const StoreLost& error) {
    losses.note(error);
    ErrorDetails details = error.details();
    details.peer = 0;
    throw PeerLost(std::move(details));
  } catch (const Error&) {
    losses.note(std::current_exception());
    throw;
  }
}

// Null if the options give this process a rank by themselves.
std::shared_ptr<ElasticJob> elastic_job_for(const InitOptions& options) {
  if (options.init_method != "env://" || options.rank || options.world_size) return nullptr;
  return ElasticJob::of_this_process();
}

// Ranks may be lost while the others start, so the newest generation may change meanwhile.
std::shared_ptr<ProcessGroup> join_newest_generation(ElasticJob& job, const InitOptions& options) {
  if (job.in_lobby()) {
    Membership alone;
    alone.local_rank = job.place();
    return join_ranks(std::move(alone), options);
  }
  const Deadline deadline = Deadline::after(options.timeout);
  int generation = -1;
  while (true) {
    const auto newest = job.wait_for_generation(generation, deadline);
    if (!newest) {
      throw BackendError({.operation = "init_process_group"},
                         "the job goes on without this process, since fewer ranks are wanted",
                         "end it");
    }
    generation = newest->number;
    try {
      return init_process_group(job, *newest, options);
    } catch (const PeerLost&) {
      // The launcher opens a generation without the lost rank.
    }
  }
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  check_init_options(options);
  if (const auto job = elastic_job_for(options)) return join_newest_generation(*job, options);
  Membership member = rendezvous({.init_method = options.init_method,
                                  .rank = options.rank,
                                  .world_size = options.world_size,
                                  .timeout = options.timeout});
  // There is no store if no variable and no option gives this process a rank.
  if (!member.store && !options.world_size) {
    warn_of_group_of_one(choose_device(options.device, member));
  }
  return join_ranks(std::move(member), options);
}

std::shared_ptr<ProcessGroup> init_process_group(const ElasticJob& job,
                                                 const Generation& generation,
                                                 const InitOptions& options) {
  check_init_options(options);
  return join_ranks(job.membership(generation), options);
}

const std::vector<std::string>& backends() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"auto"};
    for (const BackendRow& row : backend_rows()) all.emplace_back(row.name);
    return all;
  }();
  return names;
}

std::shared_ptr<ProcessGroup> make_self_group(GroupOptions options) {
  const Membership alone;
  auto backend = make_self_backend(alone, options);
  return std::make_shared<ProcessGroup>(alone, std::move(options), std::move(backend));
}

std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size, GroupOptions options) {
  if (size < 1) {
    throw UsageError(fmt::format("make_thread_groups: {} ranks; give at least 1", size));
  }
  warn_of_oversubscription(size);
  const auto join = join_threads(size);
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (int rank = 0; rank < size; ++rank) {
    const Membership membership{.rank = rank,
                                .world_size = size,
                                .local_rank = rank,
                                .local_world_size = size,
                                .generation = 0,
                                .store = nullptr};
    groups.push_back(
        std::make_shared<ProcessGroup>(membership, options, join(membership, options)));
  }
  return groups;
}

}  // namespace lockstep
