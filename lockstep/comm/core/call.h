// SPDX-License-Identifier: BSD-3-Clause
// One rank's description of one call: what must agree between ranks, and what messages say about
// it; and the error of two ranks whose calls differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep {

// A new value needs a case in each switch below.
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

// "unknown" for a value from another rank that this version of Lockstep does not know.
constexpr std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::reduce:
      return "reduce";
    case Collective::all_gather:
      return "all_gather";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::send:
      return "send";
    case Collective::recv:
      return "recv";
    case Collective::barrier:
      return "barrier";
    case Collective::empty:
      return "empty";
    case Collective::split:
      return "split";
  }
  return "unknown";
}

enum class CollectiveKind : std::uint8_t {
  // Combines the ranks' elements.
  reduces,
  // Moves elements.
  moves,
  // Between two ranks only, which number their messages separately.
  message,
  // Has no elements that all ranks agree on.
  agrees
};

constexpr CollectiveKind kind(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter:
      return CollectiveKind::reduces;
    case Collective::send:
    case Collective::recv:
      return CollectiveKind::message;
    case Collective::all_to_all:
    case Collective::barrier:
    case Collective::split:
      return CollectiveKind::agrees;
    case Collective::broadcast:
    case Collective::all_gather:
    case Collective::gather:
    case Collective::scatter:
    case Collective::empty:
      return CollectiveKind::moves;
  }
  return CollectiveKind::agrees;
}
constexpr bool reduces(Collective collective) {
  return kind(collective) == CollectiveKind::reduces;
}
constexpr bool is_message(Collective collective) {
  return kind(collective) == CollectiveKind::message;
}

// Separates messages between the same two ranks: messages of one tag never match those of another.
// `user` is for send and recv, the rest for collectives that are made of messages.
enum class Tag : std::uint8_t { user, ring, all_to_all };

// Plain bytes, since it travels between processes: in shared memory it shares a cache line with its
// flag, so that a rank's number has 24 bits. Fields that do not apply keep their defaults.
struct Call {
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  at::ScalarType type = at::kByte;
  std::int32_t root : 24 = -1;  // for a message, the peer
  // Only for messages.
  CallOrigin origin = CallOrigin::program;
  std::int64_t elements = 0;
  double scale = 1;
  // Which tensor of a list this is, and how many the list has.
  std::int32_t tensor = 0;
  std::int32_t tensors = 1;
  // The call's sequence number in this group.
  std::uint64_t number = 0;

  // Whether the ranks' calls agree, whatever function made them.
  bool operator==(const Call& other) const {
    return collective == other.collective && op == other.op && algorithm == other.algorithm &&
           type == other.type && root == other.root && elements == other.elements &&
           scale == other.scale && tensor == other.tensor && tensors == other.tensors &&
           number == other.number;
  }
};

// "all_reduce #42", "all_gather #43 of accuracy()"
std::string title(const Call& call);

// "all_reduce #42 (sum of 128 Float elements)"
std::string describe(const Call& call);

// Where an error about a call occurred: on rank `rank` of a group of `size`.
ErrorContext context_of(std::string_view backend, const Call& call, int rank, int size);

// "this rank called broadcast #3 (...), but rank 1 called barrier #3", and as the remedy that every
// rank must make the same calls. Names the function that only one of them called, if that is not a
// step of training.
ErrorDetails describe_difference(const std::string& name, const Call& call,
                                 const std::string& others_name, const Call& others_call);

// As above, for a send and a recv of this rank and a peer that do not match.
std::string describe_message_difference(const Call& own, const std::string& peers_name,
                                        const Call& peers_call);

class CallsDiffer : public ErrorType<CallsDiffer, UsageError> {
 public:
  // The message calls the peer `name`.
  CallsDiffer(const ErrorContext& context, const Call& own, int peer, const std::string& name,
              const Call& peers_call);

  const Call& own() const { return own_; }
  int peer() const { return details().peer; }
  const Call& peers_call() const { return peers_call_; }

 private:
  Call own_;
  Call peers_call_;
};

}  // namespace lockstep
