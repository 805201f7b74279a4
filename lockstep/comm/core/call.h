// SPDX-License-Identifier: BSD-3-Clause
// What one rank asks of the others in one collective: what must agree between ranks, and what
// messages say of it.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/core/reduce_op.h"

namespace lockstep {

// How all_reduce goes about it.
enum class Algorithm : std::uint8_t {
  // What the backend does best.
  automatic,
  // Reduce-scatter and all-gather around a ring, over send and recv with the two neighbours: each
  // rank sends 2 (N - 1) / N of the tensor, however many ranks there are (Patarasuk and Yuan,
  // 2009).
  // Element i's sum begins at a rank that depends on i, and half types are rounded at each hop.
  ring,
};

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

std::string_view name(Collective collective);
std::string_view name(Algorithm algorithm);
// Whether it combines the ranks' elements.
bool reduces(Collective collective);
// Whether it is between two ranks, which number their messages by themselves.
bool is_message(Collective collective);

// Messages of one tag do not meet those of another: what send and recv use, and what the
// collectives use that are made of messages.
enum class Tag : std::uint8_t { user, ring, all_to_all };

// Plain bytes, since it travels between processes. What does not apply keeps its default.
struct Call {
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  at::ScalarType type = at::kByte;
  Algorithm algorithm = Algorithm::automatic;
  std::int32_t root = -1;  // of a message, the peer
  std::int64_t elements = 0;
  double scale = 1;
  // Which tensor of a list it is about, and of how many.
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

}  // namespace lockstep
