// SPDX-License-Identifier: BSD-3-Clause
// What one rank asks of the others in one call: what must agree between ranks, and what messages
// say about it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/core/reduce_op.h"

namespace lockstep {

enum class Collective : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  send,
  recv,
  barrier,
  empty,
  split
};

// In the order of Collective.
inline constexpr std::array<std::string_view, 13> kCollectiveNames = {
    "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter",
    "all_to_all", "send",      "recv",   "barrier",    "empty",  "split"};

// "unknown" for a value that another rank sent and this Lockstep does not know.
constexpr std::string_view name(Collective collective) {
  const auto index = static_cast<std::size_t>(collective);
  return index < kCollectiveNames.size() ? kCollectiveNames[index] : "unknown";
}
// Whether the collective combines the ranks' elements.
bool reduces(Collective collective);
// Whether the call is between two ranks only, which number their messages separately.
bool is_message(Collective collective);

// Separates messages between the same two ranks: messages of one tag never match those of another.
// `user` is for send and recv, the rest for collectives that are made of messages.
enum class Tag : std::uint8_t { user, ring, all_to_all };

// Plain bytes, since it travels between processes. Fields that do not apply keep their defaults.
struct Call {
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  at::ScalarType type = at::kByte;
  Algorithm algorithm = Algorithm::automatic;
  std::int32_t root = -1;  // for a message, the peer
  std::int64_t elements = 0;
  double scale = 1;
  // Which tensor of a list this is, and how many the list has.
  std::int32_t tensor = 0;
  std::int32_t tensors = 1;
  // The call's sequence number in this group.
  std::uint64_t number = 0;

  bool operator==(const Call&) const = default;
};

// "all_reduce #42"
std::string title(const Call& call);

// "all_reduce #42 (sum of 128 Float elements)"
std::string describe(const Call& call);

// "[gloo] all_reduce #42, rank 1 of 4: ", the beginning of messages about a call.
std::string where_in(std::string_view backend, std::string_view operation, int rank, int size);

}  // namespace lockstep
