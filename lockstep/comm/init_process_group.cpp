// SPDX-License-Identifier: BSD-3-Clause
// Makes groups: of the processes of a job, of this process alone, and of its threads.
#include "lockstep/comm/init_process_group.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/choose_backend.h"
#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/group_warnings.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/losses.h"
#include "lockstep/rendezvous/rendezvous.h"
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
      throw UsageError(fmt::format(
          "rank {} of {}: device {} was asked for, but {}; ask for cpu, or use a libtorch with "
          "CUDA on a machine with that GPU",
          member.rank, member.world_size, device.str(),
          gpus == 0 ? "this libtorch sees no GPU" : fmt::format("there are only {} GPUs", gpus)));
    }
    c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  }
  return device;
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  const auto& known = backends();
  if (std::ranges::find(known, options.backend) == known.end()) {
    throw UsageError(fmt::format("there is no backend \"{}\"; the backends are {}", options.backend,
                                 fmt::join(known, ", ")));
  }
  if (options.timeout.count() <= 0) {
    throw UsageError(
        fmt::format("the timeout is {} ms; it must be positive", options.timeout.count()));
  }
  Membership member = rendezvous({.init_method = options.init_method,
                                  .rank = options.rank,
                                  .world_size = options.world_size,
                                  .timeout = options.timeout});
  const GroupOptions group{.timeout = options.timeout,
                           .device = choose_device(options.device, member)};
  // There is no store if no variable and no option says which rank this is.
  if (!member.store && !options.world_size) warn_of_group_of_one(group.device);
  if (member.world_size == 1 && group.device.is_cpu()) spare_busy_cores();
  const GroupLosses losses(member);
  try {
    auto made = make_group(options.backend, std::move(member), group);
    losses.withdraw();
    return made;
  } catch (const StoreLost& error) {
    losses.note(error);
    throw PeerLost(0, error.what());
  } catch (const Error&) {
    losses.note(std::current_exception());
    throw;
  }
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
