// SPDX-License-Identifier: BSD-3-Clause
// Collects refused hosts, up to a bound, and puts them in words.
#include "lockstep/core/net/refusals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

// Bounded, since refused peers may come from anywhere.
constexpr std::size_t kMostHosts = 8;

}  // namespace

void Refusals::add(const std::string& host) {
  const std::lock_guard lock(mutex_);
  if (hosts_.size() < kMostHosts) hosts_.insert(host);
}

std::string Refusals::in_words() const {
  const std::lock_guard lock(mutex_);
  if (hosts_.empty()) return "";
  return fmt::format(
      "; a process on host {} was refused, since it knew another secret: give all ranks the same "
      "one",
      fmt::join(hosts_, ", "));
}

}  // namespace lockstep
