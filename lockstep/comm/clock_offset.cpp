// SPDX-License-Identifier: BSD-3-Clause
// Measures offsets by Cristian's algorithm: the middle of the shortest round trip.
#include "lockstep/comm/clock_offset.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <vector>

#include <ATen/ops/zeros.h>
#include <unistd.h>

#include "lockstep/comm/objects.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/core/trace_span.h"

namespace lockstep {
namespace {

constexpr int kRoundTrips = 20;

void answer_with_the_time(int to, ProcessGroup& group) {
  const at::Tensor time = at::zeros({1}, at::kLong);
  for (int i = 0; i < kRoundTrips; ++i) {
    group.recv(time, to).wait();
    time.fill_(monotonic_nanoseconds());
    group.send(time, to).wait();
  }
}

ClockOffset ask_rank_0(ProcessGroup& group) {
  const at::Tensor time = at::zeros({1}, at::kLong);
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  ClockOffset offset;
  for (int i = 0; i < kRoundTrips; ++i) {
    const std::int64_t asked = monotonic_nanoseconds();
    group.send(time, 0).wait();
    group.recv(time, 0).wait();
    const std::int64_t round_trip = monotonic_nanoseconds() - asked;
    if (round_trip >= shortest) continue;
    shortest = round_trip;
    const std::int64_t half = round_trip / 2;
    offset = {.nanoseconds = time.item<std::int64_t>() - (asked + half), .error = half};
  }
  return offset;
}

}  // namespace

std::string name_of_this_clock() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  // A time namespace shifts the clock of its processes.
  std::array<char, 64> shift{};
  if (::readlink("/proc/self/ns/time", shift.data(), shift.size() - 1) < 0) shift[0] = '\0';
  return (boot.empty() ? host_name() : boot) + ' ' + shift.data();
}

ClockOffset measure_clock_offset(std::string_view clock, ProcessGroup& group) {
  const CallScope scope(CallOrigin::clock_offset);
  const std::vector<std::string> clocks = all_gather_object(clock, group);
  const auto first_with = [&](const std::string& name) {
    return static_cast<int>(std::ranges::find(clocks, name) - clocks.begin());
  };
  ClockOffset own;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (first_with(clocks[static_cast<std::size_t>(rank)]) != rank) continue;
    if (group.rank() == 0) answer_with_the_time(rank, group);
    if (group.rank() == rank) own = ask_rank_0(group);
  }
  const auto offsets = all_gather_object(own, group);
  return offsets[static_cast<std::size_t>(first_with(std::string(clock)))];
}

}  // namespace lockstep
