// SPDX-License-Identifier: BSD-3-Clause
// ProcessGroup::split: all ranks agree on the new groups before any rank joins one.
#include <algorithm>
#include <set>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/check_arguments.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/losses.h"
#include "lockstep/rendezvous/prefix_store.h"

namespace lockstep {
namespace {

// Pads lists to the same length.
constexpr std::int32_t kNoRank = -1;
// Says that this rank's list cannot form a group, which every rank has to know.
constexpr std::int32_t kImpossibleList = -2;

std::vector<int> as_list(const at::Tensor& tensor) {
  const auto* begin = tensor.data_ptr<std::int32_t>();
  std::vector<int> ranks(begin, begin + tensor.numel());
  ranks.erase(std::remove(ranks.begin(), ranks.end(), kNoRank), ranks.end());
  return ranks;
}

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroup::split(const std::vector<int>& ranks) {
  const ArgumentChecks checks = checks_of("split");
  const bool possible =
      std::ranges::all_of(ranks, [&](int member) { return member >= 0 && member < size(); }) &&
      std::set(ranks.begin(), ranks.end()).size() == ranks.size();
  // Compared first, so that errors mention the split and not the all_gather.
  backend_->start({.call = {.collective = Collective::split}}).wait();
  const at::Tensor own = at::full({size()}, possible ? kNoRank : kImpossibleList, at::kInt);
  if (possible) std::copy(ranks.begin(), ranks.end(), own.data_ptr<std::int32_t>());
  std::vector<at::Tensor> lists;
  for (int peer = 0; peer < size(); ++peer) lists.push_back(at::full({size()}, kNoRank, at::kInt));
  all_gather(lists, own).wait();
  const int number = ++splits_;

  if (!possible) {
    throw UsageError(checks.where() +
                     fmt::format("the list [{}] names a rank twice, or one that is not in this "
                                 "group, whose ranks are 0 to {}",
                                 fmt::join(ranks, ", "), size() - 1));
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (lists[peer][0].item<int>() != kImpossibleList) continue;
    throw UsageError(checks.where() +
                     fmt::format("rank {} passed an invalid list; its own error says why", peer));
  }
  // Every rank sees all lists, so all of them find the same fault.
  for (int peer = 0; peer < size(); ++peer) {
    const auto list = as_list(lists[peer]);
    for (const int member : list) {
      const auto other = as_list(lists[member]);
      if (other == list || std::ranges::find(list, peer) == list.end()) continue;
      throw UsageError(
          checks.where() +
          fmt::format("rank {} names the ranks [{}], but rank {}, which is one of "
                      "them, names [{}]; ranks of one new group must pass the same list",
                      peer, fmt::join(list, ", "), member, fmt::join(other, ", ")));
    }
  }
  if (std::ranges::find(ranks, rank()) == ranks.end()) return nullptr;
  // Its ranks rendezvous where the group's did, under a name of their own.
  const std::string name = fmt::format("{}/{}", number, fmt::join(ranks, "-"));
  Membership member = membership_.part(ranks);
  if (member.store) {
    member.store = std::make_shared<PrefixStore>(name + "/", std::move(member.store));
  }
  const GroupLosses losses(member);
  try {
    auto backend = backend_->split(name, member);
    return std::make_shared<ProcessGroup>(std::move(member),
                                          GroupOptions{.timeout = timeout(), .device = device()},
                                          std::move(backend));
  } catch (const StoreLost& error) {
    losses.note(error);
    throw;
  } catch (const Error&) {
    losses.note(std::current_exception());
    throw;
  }
}

}  // namespace lockstep
