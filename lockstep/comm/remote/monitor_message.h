// SPDX-License-Identifier: BSD-3-Clause
// What ranks and the server of their peer monitors tell each other: frames of bounded length, on a
// connection whose ends have authenticated each other.
//   length of the rest (4 bytes) | kind, cause, rank, lost_rank, culprit, number and text, packed
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/core/error.h"

namespace lockstep::remote {

struct MonitorMessage {
  enum class Kind : std::uint32_t {
    // From a rank to the monitor's server.
    hello,      // rank; number: its process id
    connected,  // to all other ranks
    waiting,  // number: of the call that it has waited in for a while, 0 for a message between two
              // ranks; text: the call's description
    ask,      // number: which ranks do not wait in this call? Or rank: what does this one wait in?
    abort,    // cause, lost_rank, culprit; text: the reason
    leaving,  // number: of the last call that it has made; during an exception also culprit and, as
              // text, the reason
    // From the monitor's server to the ranks.
    welcome,        // all ranks have joined; text: their process ids
    all_connected,  // to each other
    absent,   // text: the ranks that did not join, and which peers were refused; after the welcome,
              // those that have not connected
    answer,   // number, rank: as asked; text: two lines for each call that ranks were last seen
              // waiting in: its description, the ranks
    aborted,  // rank: the one that aborted; cause, lost_rank, culprit, text
    lost,     // rank; number: 1 if its process is known to have ended; text: its process id
    left,     // rank; number, culprit, text: as in leaving
    all_left,
  };
  Kind kind = Kind::hello;
  AbortCause cause = AbortCause::none;
  std::int32_t rank = -1;
  std::int32_t lost_rank = -1;
  // The job rank at fault.
  std::int32_t culprit = -1;
  std::uint64_t number = 0;
  std::string text = {};
};

std::string encode(const MonitorMessage& message);

// A rank has sent what this version of Lockstep does not send.
BackendError malformed_message();

// A list of numbers as a message's text, and back.
std::string as_text(std::span<const int> numbers);
std::vector<int> as_numbers(const std::string& text);

// How long a dying rank's process may outlive its connection, also on a busy machine. A wait takes
// all of it only if the process stays alive.
inline constexpr std::chrono::milliseconds kDeathDelay(1000);

// Assembles messages from the bytes of a stream.
class MonitorReader {
 public:
  void add(std::span<const std::byte> bytes);
  // Empty if no message is complete. BackendError if the bytes are not a message.
  std::optional<MonitorMessage> next();

 private:
  std::string received_;
};

}  // namespace lockstep::remote
